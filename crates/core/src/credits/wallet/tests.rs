use super::*;
use crate::time::UnixMs;

fn terms(priority: u8, expires_at: u64) -> GrantTerms {
    GrantTerms::new(priority, Some(UnixMs::new(expires_at)))
}

#[test]
fn the_lowest_priority_number_is_spent_first_then_the_earliest_expiry() {
    let mut wallet = Wallet::default();
    for (terms, amount) in [
        (terms(200, 5), 1),
        (GrantTerms::PLAIN, 10),
        (terms(128, 9), 100),
        (terms(128, 7), 1_000),
        (terms(3, 99), 10_000),
    ] {
        wallet.deposit(terms, amount).unwrap();
    }
    let order = [terms(3, 99), terms(128, 7), terms(128, 9), GrantTerms::PLAIN, terms(200, 5)];
    let amounts = [10_000, 1_000, 100, 10, 1];
    let taken = wallet.withdraw(11_111).unwrap();
    assert_eq!(taken, order.into_iter().zip(amounts).collect::<Vec<_>>());
    assert_eq!(wallet.plain, 0);
    assert!(wallet.grants.iter().all(|grant| grant.free == 0));
}

#[test]
fn a_deposit_covers_debt_before_it_becomes_a_grant() {
    let mut wallet = Wallet::default();
    assert_eq!(wallet.withdraw(30).unwrap(), [(GrantTerms::PLAIN, 30)]);
    wallet.deposit(terms(1, 5), 20).unwrap();
    assert_eq!((wallet.plain, wallet.grants.len()), (-10, 0));
    wallet.deposit(terms(1, 5), 25).unwrap();
    assert_eq!((wallet.plain, wallet.grants[0].free), (0, 15));
}

#[test]
fn held_plain_credit_is_not_taken_and_not_owed_to_a_deposit() {
    let mut wallet = Wallet { plain: 10, plain_held: 8, ..Wallet::default() };
    wallet.deposit(terms(200, 5), 5).unwrap();
    assert_eq!(wallet.withdraw(4).unwrap(), [(GrantTerms::PLAIN, 2), (terms(200, 5), 2)]);
    assert_eq!((wallet.plain, wallet.grants[0].free), (8, 3));
}

#[test]
fn sums_out_of_range_and_too_many_grants_are_refused() {
    let mut wallet = Wallet { plain: i128::MAX, ..Wallet::default() };
    assert_eq!(wallet.deposit(GrantTerms::PLAIN, 1), Err(WalletError::OutOfRange));
    let mut wallet = Wallet { plain: i128::MIN, ..Wallet::default() };
    assert_eq!(wallet.withdraw(1), Err(WalletError::OutOfRange));
    let mut wallet = Wallet::default();
    for at in 0..GRANTS_MAX as u64 {
        wallet.deposit(terms(1, at), 1).unwrap();
    }
    assert_eq!(wallet.check(), Ok(()));
    wallet.deposit(terms(1, 1_000), 1).unwrap();
    assert_eq!(wallet.check(), Err(WalletError::TooManyGrants));
    wallet.withdraw(1).unwrap();
    assert_eq!(wallet.check(), Ok(()), "a spent grant does not count");
}
