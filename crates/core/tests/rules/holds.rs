//! Credit holds: reserved together with limits, settled at the actual cost, returned on time.

use earmark_core::{
    AccountStatus, Charge, Command, CompleteOutcome, CreditShortage, Definition, JournalRecord, Kind, LeaseId,
    LimitOutcome, LimitStatus, Moment, NamespaceId, Operation, Outcome, Overage, Principal, PutLimit, ReserveOutcome,
    TIME_MAX, VaultId, WriteError, WriteOutcome,
};

use crate::support::bank::{
    Bank, account, asset, close, credit, freeze, issue, open, open_overdraft, retire, transfer, unfreeze,
};
use crate::support::snapshot::{restore, snapshot};
use crate::support::test_book::{changed, concurrency, created, rolling};
use crate::support::writer::Writer;

/// An account `acme` with `amount` usd, and a credit limit `usd` on it with a timeout of 60 seconds.
fn bank(amount: u128, overage: Overage) -> Bank {
    let mut bank = Bank::new();
    bank.commit(vec![open("acme"), issue("acme", "usd", amount)]);
    bank.test.put_active(credit("usd", "acme", 60, overage));
    bank
}

/// Available and held credit of `acme`, and the balance of `revenue`.
fn sums(bank: &Bank) -> (i128, i128, i128) {
    bank.assert_balanced();
    let acme = bank.balance("acme", "usd").unwrap();
    (acme.available, acme.held, bank.available("revenue", "usd"))
}

fn charged(bank: &mut Bank, lease: LeaseId, actuals: &[(&str, u64)]) -> Charge {
    let settlement = bank.test.settle(lease, actuals);
    assert_eq!(settlement.charges.len(), 1, "{settlement:?}");
    settlement.charges[0]
}

/// Regression: time stops at `TIME_MAX`, when nothing expires. A balance read at a later clock showed no holds, while
/// the Book still held them.
#[test]
fn beyond_the_end_of_time_what_is_held_is_read_as_held() {
    let mut bank = bank(100, Overage::Debt);
    bank.test.advance(u64::MAX);
    let lease = bank.test.lease();
    assert_eq!(bank.test.reserve(lease, &[("usd", 40)]), created(TIME_MAX));
    let usage = bank.test.usage("usd");
    assert_eq!((usage.capacity, usage.reserved, usage.available), (100, 40, 60));
    assert_eq!(sums(&bank), (60, 40, 0));
    assert_eq!(bank.deny_credit(&[("usd", 61)]).why, CreditShortage::NotEnough);
}

#[test]
fn settling_pays_what_it_cost_and_returns_the_rest() {
    // (has, actual, overage) -> (left, paid, debt, uncollected)
    for (has, actual, overage, left, paid, debt, uncollected) in [
        (100, Some(10), Overage::Debt, 90, 10, 0, 0),
        (100, Some(40), Overage::Debt, 60, 40, 0, 0),
        (100, Some(70), Overage::Debt, 30, 70, 0, 0),
        (100, Some(70), Overage::Deny, 30, 70, 0, 0),
        (50, Some(70), Overage::Debt, -20, 70, 20, 0),
        (50, Some(70), Overage::Deny, 0, 50, 0, 20),
        (40, Some(u64::MAX), Overage::Deny, 0, 40, 0, u64::MAX - 40),
        (100, Some(0), Overage::Debt, 100, 0, 0, 0),
        (100, None, Overage::Debt, 60, 40, 0, 0),
    ] {
        let mut bank = bank(has, overage);
        let lease = bank.test.take(&[("usd", 40)]);
        assert_eq!(sums(&bank), (has as i128 - 40, 40, 0));
        let actuals: Vec<(&str, u64)> = actual.map(|amount| ("usd", amount)).into_iter().collect();
        let charge = charged(&mut bank, lease, &actuals);
        assert_eq!((charge.paid, charge.debt, charge.uncollected), (paid, debt, uncollected), "{has} {actual:?}");
        assert_eq!(sums(&bank), (left, 0, i128::from(paid)), "{has} {actual:?} {overage:?}");
        // A second complete changes nothing.
        assert_eq!(bank.test.complete(lease, &[("usd", 5)]), CompleteOutcome::Before);
        assert_eq!(sums(&bank), (left, 0, i128::from(paid)));
    }
}

#[test]
fn a_debt_is_covered_by_the_next_deposit_first() {
    let mut bank = bank(50, Overage::Debt);
    let lease = bank.test.take(&[("usd", 50)]);
    charged(&mut bank, lease, &[("usd", 80)]);
    assert_eq!(sums(&bank).0, -30);
    bank.commit(vec![issue("acme", "usd", 100)]);
    assert_eq!(sums(&bank).0, 70);
    bank.refuse(vec![retire("acme", "usd", 71)]);
    assert_eq!(bank.deny_credit(&[("usd", 71)]).why, CreditShortage::NotEnough);
    bank.test.take(&[("usd", 70)]);
}

#[test]
fn a_hold_returns_exactly_at_its_time_and_counts_in_the_very_next_decision() {
    let mut bank = bank(100, Overage::Debt);
    bank.test.take(&[("usd", 100)]);
    bank.test.advance(59_999);
    assert_eq!(bank.deny_credit(&[("usd", 1)]).retry_after_ms, 10_000);
    bank.test.advance(1);
    assert_eq!(sums(&bank), (100, 0, 0));
    bank.test.take(&[("usd", 100)]);
    assert_eq!(sums(&bank), (0, 100, 0));
}

#[test]
fn settling_after_the_hold_ran_out_charges_the_owner_while_the_lease_is_remembered() {
    for (actual, overage, left, paid) in [
        (Some(30), Overage::Debt, 70, 30),
        (None, Overage::Debt, 60, 40),
        (Some(130), Overage::Debt, -30, 130),
        (Some(130), Overage::Deny, 0, 100),
        (Some(0), Overage::Debt, 100, 0),
    ] {
        for ticks in [0, 1] {
            let mut bank = bank(100, overage);
            let lease = bank.test.take(&[("usd", 40)]);
            bank.test.advance(70_000);
            (0..ticks).for_each(|_| bank.test.tick());
            assert_eq!(sums(&bank), (100, 0, 0));
            let actuals: Vec<(&str, u64)> = actual.map(|amount| ("usd", amount)).into_iter().collect();
            charged(&mut bank, lease, &actuals);
            assert_eq!(sums(&bank), (left, 0, paid), "{actual:?}");
        }
    }
    let mut bank = bank(100, Overage::Debt);
    let lease = bank.test.take(&[("usd", 40)]);
    bank.test.advance(3_600_000);
    bank.test.tick();
    assert_eq!(bank.test.complete(lease, &[("usd", 40)]), CompleteOutcome::UnknownByAge);
    assert_eq!(sums(&bank), (100, 0, 0));
}

#[test]
fn settling_works_whatever_became_of_the_limit_and_the_account() {
    // The limit was deleted.
    let mut deleted = bank(100, Overage::Debt);
    let lease = deleted.test.take(&[("usd", 40)]);
    deleted.test.delete("usd");
    charged(&mut deleted, lease, &[("usd", 55)]);
    assert_eq!(sums(&deleted), (45, 0, 55));
    // The limit has another kind or account.
    let mut changed = bank(100, Overage::Debt);
    let lease = changed.test.take(&[("usd", 40)]);
    changed.test.delete("usd");
    changed.test.put_active(rolling("usd", 5, 60));
    charged(&mut changed, lease, &[("usd", 55)]);
    assert_eq!((sums(&changed), changed.test.reserved("usd")), ((45, 0, 55), 0));
    // A frozen account only pays settlements.
    let mut frozen = bank(100, Overage::Debt);
    let lease = frozen.test.take(&[("usd", 40)]);
    frozen.commit(vec![freeze("acme")]);
    assert_eq!(frozen.deny_credit(&[("usd", 1)]).why, CreditShortage::Frozen);
    charged(&mut frozen, lease, &[("usd", 120)]);
    assert_eq!(sums(&frozen), (-20, 0, 120));
    // A closed account is not charged; the loss is counted.
    let mut closed = bank(40, Overage::Debt);
    let lease = closed.test.take(&[("usd", 40)]);
    closed.refuse(vec![close("acme")]);
    closed.test.advance(60_000);
    closed.commit(vec![retire("acme", "usd", 40), close("acme")]);
    let charge = charged(&mut closed, lease, &[("usd", 10)]);
    assert_eq!((charge.paid, charge.uncollected), (0, 10));
    assert_eq!((sums(&closed), closed.standing("acme")), ((0, 0, 0), AccountStatus::Closed));
    assert_eq!(closed.deny_credit(&[("usd", 1)]).why, CreditShortage::Closed);
}

#[test]
fn a_closed_revenue_account_is_replaced_by_the_vaults_own() {
    let mut bank = Bank::new();
    bank.commit(vec![open("acme"), open("sales"), issue("acme", "usd", 100)]);
    bank.test.put_active(bank.paying("usd", "acme", "sales", 60));
    let lease = bank.test.take(&[("usd", 40)]);
    bank.commit(vec![close("sales")]);
    assert_eq!(bank.deny_credit(&[("usd", 1)]).why, CreditShortage::Closed);
    charged(&mut bank, lease, &[("usd", 30)]);
    assert_eq!(sums(&bank), (70, 0, 30));
}

#[test]
fn limits_and_credit_are_taken_together_or_not_at_all() {
    let mut bank = bank(100, Overage::Debt);
    bank.test.put_active(concurrency("slots", 1, 60));
    bank.test.put_active(rolling("rpm", 10, 60));
    let short = bank.deny_credit(&[("slots", 1), ("usd", 101), ("rpm", 1)]);
    assert_eq!((short.requirement, short.retry_after_ms), (1, 10_000));
    assert_eq!((bank.test.reserved("slots"), bank.test.reserved("rpm")), (0, 0));
    let lease = bank.test.take(&[("slots", 1), ("usd", 60), ("rpm", 1)]);
    // With a limit in the way too, the denial is plain and names no credit.
    let (_, denial) = bank.test.denied(&[("slots", 1), ("usd", 60)]);
    assert_eq!(denial.limited_by, [0]);
    assert_eq!(sums(&bank), (40, 60, 0));
    bank.test.settle(lease, &[("usd", 1)]);
    assert_eq!((sums(&bank), bank.test.reserved("slots")), ((99, 0, 1), 0));
}

#[test]
fn a_lease_denied_for_want_of_credit_stays_denied() {
    let mut bank = bank(10, Overage::Debt);
    let lease = bank.test.lease();
    let first = bank.test.reserve(lease, &[("usd", 11)]);
    let ReserveOutcome::InsufficientCredit(denial) = first else { panic!("{first:?}") };
    bank.commit(vec![issue("acme", "usd", 100)]);
    bank.test.advance(4_000);
    let again = bank.test.reserve(lease, &[("usd", 11)]);
    let expected = earmark_core::CreditDenial { retry_after_ms: 6_000, ..denial };
    assert_eq!(again, ReserveOutcome::ExistsInsufficientCredit(expected));
    assert_eq!(bank.test.reserve(lease, &[("usd", 1)]), ReserveOutcome::ExistsWithOtherRequirements);
    assert_eq!(bank.test.complete(lease, &[]), CompleteOutcome::HeldNothing);
}

#[test]
fn keys_of_one_account_are_planned_together_and_the_first_by_key_is_named() {
    let mut bank = bank(100, Overage::Deny);
    bank.test.put_active(credit("a:usd", "acme", 30, Overage::Deny));
    let short = bank.deny_credit(&[("usd", 60), ("a:usd", 41)]);
    assert_eq!((short.requirement, short.why), (1, CreditShortage::NotEnough));
    let lease = bank.test.take(&[("usd", 60), ("a:usd", 40)]);
    // The refund of one key covers the shortage of the other.
    let settlement = bank.test.settle(lease, &[("usd", 20), ("a:usd", 75)]);
    assert!(settlement.charges.iter().all(|charge| charge.uncollected == 0), "{settlement:?}");
    assert_eq!(sums(&bank), (5, 0, 95));
}

/// A typo in the vault of a credit limit used to be found only by the first caller, as a lack of credit.
#[test]
fn a_credit_limit_on_a_missing_vault_is_refused() {
    let mut bank = Bank::new();
    let mut definition = credit("usd", "acme", 60, Overage::Debt);
    if let Kind::Credit(terms) = &mut definition.kind {
        terms.vault = "nowhere".parse().unwrap();
    }
    let put = PutLimit { namespace: NamespaceId::DEFAULT, definition: &definition, expected_revision: None };
    let now = bank.test.book.time();
    let at = Moment { log: now, wall: now };
    let outcome = bank.test.book.apply_as(at, &Principal::Anonymous, Command::PutLimit(put));
    assert_eq!(outcome, Outcome::Limit(LimitOutcome::VaultNotFound));
    let put = || Operation::PutLimit { definition: definition.clone(), expected_revision: None };
    let mut writer = Writer::new("admin");
    let refused = writer.write(&mut bank.test, vec![put()]);
    assert_eq!(refused, WriteOutcome::Refused(WriteError::VaultNotFound { operation: Some(0) }));
    let open = Operation::OpenVault { vault: "nowhere".parse().unwrap() };
    assert!(matches!(writer.write(&mut bank.test, vec![open, put()]), WriteOutcome::Committed(_)));
}

#[test]
fn a_missing_account_leaves_no_trace_of_the_lease() {
    let mut bank = Bank::new();
    bank.test.put_active(credit("usd", "acme", 60, Overage::Debt));
    let lease = bank.test.lease();
    let missing = ReserveOutcome::AccountNotFound { requirement: 0, retry_after_ms: 10_000 };
    assert_eq!(bank.test.reserve(lease, &[("usd", 1)]), missing);
    assert_eq!(bank.test.reserve(lease, &[("usd", 1)]), missing);
    bank.commit(vec![open("acme")]);
    assert!(matches!(bank.test.reserve(lease, &[("usd", 1)]), ReserveOutcome::InsufficientCredit(_)));
    bank.commit(vec![issue("revenue", "usd", 5)]);
    assert_eq!(bank.deny_credit(&[("usd", 1)]).why, CreditShortage::NotEnough);
    bank.commit(vec![transfer("revenue", "acme", "usd", 5)]);
    bank.test.take(&[("usd", 5)]);
}

#[test]
fn held_credit_cannot_be_spent_and_overdraft_can() {
    let mut bank = bank(100, Overage::Debt);
    bank.commit(vec![open("bob"), open_overdraft("bank"), transfer("bank", "bob", "usd", 1)]);
    bank.test.take(&[("usd", 80)]);
    bank.refuse(vec![transfer("acme", "bob", "usd", 21)]);
    bank.commit(vec![transfer("acme", "bob", "usd", 20)]);
    bank.test.put_active(credit("o:usd", "bank", 60, Overage::Deny));
    let lease = bank.test.take(&[("o:usd", 500)]);
    assert_eq!((bank.available("bank", "usd"), bank.balance("bank", "usd").unwrap().held), (-501, 500));
    bank.test.settle(lease, &[("o:usd", 700)]);
    assert_eq!(bank.available("bank", "usd"), -701);
    bank.commit(vec![unfreeze("acme")]);
}

#[test]
fn the_journal_tells_of_every_hold_settlement_and_release() {
    let mut bank = bank(100, Overage::Debt);
    let _ = bank.test.book.drain_journal();
    let settled = bank.test.take(&[("usd", 40)]);
    let released = bank.test.take(&[("usd", 10)]);
    bank.test.take(&[("usd", 20)]);
    bank.test.settle(settled, &[("usd", 25)]);
    bank.test.settle(released, &[("usd", 0)]);
    bank.test.advance(61_000);
    bank.test.tick();
    let journal = bank.test.book.drain_journal();
    let said: Vec<String> = journal
        .iter()
        .map(|record| match record {
            JournalRecord::Transaction(_) => "transaction".into(),
            JournalRecord::Hold(hold) => format!("hold {}", hold.amount),
            JournalRecord::Settle(settle) => format!("settle {} of {}", settle.paid, settle.held),
            JournalRecord::Release(hold) => format!("release {}", hold.amount),
            JournalRecord::Key(key) => format!("key {}", key.id),
            JournalRecord::Limit(limit) | JournalRecord::Template(limit) => {
                format!("limit {}", limit.edit.change().key)
            }
            JournalRecord::Pause(pause) => format!("pause {}", pause.key),
            JournalRecord::Quotas(quotas) => format!("quotas {}", quotas.changes.len()),
            JournalRecord::Policy(policy) => format!("policy {}", policy.revision),
            JournalRecord::Expire(expire) => format!("expire {}", expire.amount),
            JournalRecord::Plan(plan) => format!("plan {}", plan.amount),
        })
        .collect();
    assert_eq!(said, ["hold 40", "hold 10", "hold 20", "settle 25 of 40", "release 10", "release 20"]);
    bank.test.tick();
    assert_eq!(bank.test.book.drain_journal(), []);
}

#[test]
fn a_crowd_of_holds_that_run_out_at_once_stalls_no_call_and_counts_at_once() {
    let mut bank = bank(100_000, Overage::Debt);
    for _ in 0..20_000 {
        bank.test.take(&[("usd", 5)]);
    }
    bank.deny_credit(&[("usd", 1)]);
    bank.test.advance(60_000);
    let before = bank.test.book.steps();
    bank.test.take(&[("usd", 100_000)]);
    let steps = bank.test.book.steps() - before;
    assert!(steps < 1_000, "{steps} steps");
    for _ in 0..400 {
        bank.test.tick();
    }
    let released = bank.test.book.drain_journal().iter().filter(|r| matches!(r, JournalRecord::Release(_))).count();
    assert_eq!(released, 20_000);
}

#[test]
fn holds_go_through_a_snapshot_in_every_state() {
    let mut bank = bank(1_000, Overage::Deny);
    bank.test.put_active(credit("a:usd", "acme", 5, Overage::Debt));
    bank.test.put_active(concurrency("slots", 10, 600));
    let live = bank.test.take(&[("usd", 40), ("slots", 1)]);
    let expired = bank.test.take(&[("a:usd", 50), ("usd", 7)]);
    bank.test.advance(5_500);
    bank.test.denied(&[("slots", 20)]);
    bank.deny_credit(&[("usd", 2_000)]);
    bank.test.advance(1_000);
    bank.test.tick();
    bank.test.take(&[("a:usd", 9)]);
    let bytes = snapshot(&mut bank.test.book);
    let expected = sums(&bank);
    bank.test.book = restore(&bytes, 17, 9).unwrap();
    assert_eq!((snapshot(&mut bank.test.book), sums(&bank)), (bytes, expected));
    bank.test.settle(live, &[("usd", 41)]);
    bank.test.settle(expired, &[("usd", 7), ("a:usd", 60)]);
    assert_eq!(sums(&bank), (1_000 - 41 - 7 - 60 - 9, 9, 41 + 7 + 60));
    assert!(bank.test.book.account(VaultId::MAIN, &account("acme")).is_some());
}

/// Regression: an account with `overdraft: allow` was refused every lease before its first deposit. Without a balance
/// it counted as empty, and in a vault without the asset as unknown. Accounts that pay at the end of the month never
/// deposit in advance.
#[test]
fn an_account_that_may_owe_needs_no_deposit_before_its_first_lease() {
    let mut bank = Bank::new();
    bank.commit(vec![open_overdraft("acme"), open("bob")]);
    bank.test.put_active(credit("usd", "acme", 60, Overage::Deny));
    bank.test.put_active(credit("a:usd", "acme", 5, Overage::Deny));
    bank.test.put_active(credit("b:usd", "bob", 60, Overage::Deny));
    // A denied lease leaves no trace, not even the asset's name.
    let short = bank.deny_credit(&[("usd", 40), ("a:usd", 2), ("b:usd", 1)]);
    assert_eq!((short.requirement, short.why), (2, CreditShortage::NotEnough));
    assert_eq!((bank.test.book.audit(VaultId::MAIN), bank.balance("acme", "usd")), (vec![], None));
    let lease = bank.test.take(&[("usd", 40), ("a:usd", 2)]);
    assert_eq!(sums(&bank), (-42, 42, 0));
    let bytes = snapshot(&mut bank.test.book);
    bank.test.book = restore(&bytes, 50, 3).unwrap();
    bank.test.settle(lease, &[("usd", 30), ("a:usd", 5)]);
    assert_eq!(sums(&bank), (-35, 0, 35));
}

/// Regression: held credit is counted in 64 bits, and expired holds counted until their release was recorded, up to a
/// second later. A restored Book counts live holds only, so two replicas answered the same lease differently.
#[test]
fn holds_that_ended_leave_room_for_others_at_once_on_every_replica() {
    let mut bank = bank(u128::from(u64::MAX) * 3, Overage::Debt);
    bank.test.advance(500);
    bank.test.take(&[("usd", u64::MAX)]);
    assert_eq!(bank.deny_credit(&[("usd", 1)]).why, CreditShortage::NotEnough);
    bank.test.advance(60_000);
    let bytes = snapshot(&mut bank.test.book);
    let mut restored = restore(&bytes, bytes.len(), 4).unwrap();
    let lease = bank.test.take(&[("usd", u64::MAX)]);
    assert_eq!(sums(&bank), (2 * i128::from(u64::MAX), u64::MAX.into(), 0));
    std::mem::swap(&mut bank.test.book, &mut restored);
    let reserved_at = bank.test.now();
    assert_eq!(bank.test.reserve(lease, &[("usd", u64::MAX)]), created(reserved_at));
    assert_eq!(snapshot(&mut bank.test.book), snapshot(&mut restored));
}

/// Regression: an expired hold stays while its lease is remembered. The snapshot decoder added it to the held credit,
/// and refused a valid snapshot when the sum exceeded 64 bits.
#[test]
fn a_snapshot_may_remember_more_ended_holds_than_could_ever_be_held_at_once() {
    let mut bank = bank(u128::from(u64::MAX), Overage::Debt);
    for _ in 0..3 {
        bank.test.take(&[("usd", u64::MAX)]);
        bank.test.advance(61_000);
    }
    bank.test.take(&[("usd", u64::MAX)]);
    let bytes = snapshot(&mut bank.test.book);
    bank.test.book = restore(&bytes, bytes.len(), 4).unwrap();
    assert_eq!(sums(&bank), (0, u64::MAX.into(), 0));
}

#[test]
fn the_first_shortage_in_their_order_is_the_one_that_is_told() {
    let mut bank = Bank::new();
    bank.commit(vec![open("acme"), open("sales"), issue("acme", "usd", 10), close("sales")]);
    bank.test.put_active(bank.paying("usd", "acme", "sales", 60));
    bank.test.put_active(bank.paying("nobody", "acme", "never", 60));
    // Credit is too low and the revenue account is closed: more credit would not help.
    assert_eq!(bank.deny_credit(&[("usd", 11)]).why, CreditShortage::Closed);
    bank.commit(vec![freeze("acme")]);
    assert_eq!(bank.deny_credit(&[("usd", 11)]).why, CreditShortage::Frozen);
    let missing = ReserveOutcome::AccountNotFound { requirement: 1, retry_after_ms: 10_000 };
    let lease = bank.test.lease();
    assert_eq!(bank.test.reserve(lease, &[("usd", 11), ("nobody", 11)]), missing);
}

#[test]
fn a_hold_keeps_the_terms_it_was_made_on() {
    // (overage at reserve, overage at settlement) -> available credit of `acme` after a cost of 130 with 100 in total
    for (then, later, left, paid) in [(Overage::Debt, Overage::Deny, -30, 130), (Overage::Deny, Overage::Debt, 0, 100)]
    {
        let mut bank = bank(100, then);
        bank.commit(vec![open("bob"), open("sales"), issue("bob", "usd", 500)]);
        let lease = bank.test.take(&[("usd", 40)]);
        // The limit now has another account, revenue account and timeout.
        let definition = Definition { overage: later, ..bank.paying("usd", "bob", "sales", 1) };
        bank.test.put_active(definition);
        bank.test.advance(2_000);
        assert_eq!(sums(&bank), (60, 40, 0));
        charged(&mut bank, lease, &[("usd", 130)]);
        assert_eq!(sums(&bank), (left, 0, paid), "{then:?}");
        assert_eq!((bank.available("bob", "usd"), bank.available("sales", "usd")), (500, 0));
    }
}

#[test]
fn a_limit_of_credit_goes_at_once_and_what_it_holds_stays_held() {
    let mut bank = bank(100, Overage::Debt);
    let lease = bank.test.take(&[("usd", 40)]);
    let id = bank.test.id("usd");
    assert_eq!(bank.test.delete("usd"), changed(id, 2, LimitStatus::Deleted));
    assert_eq!(bank.test.book.usage(bank.test.now(), id), None);
    assert_eq!(sums(&bank), (60, 40, 0));
    bank.refuse(vec![retire("acme", "usd", 61)]);
    // Without a complete the hold still returns on time.
    bank.test.advance(60_000);
    assert_eq!(sums(&bank), (100, 0, 0));
    charged(&mut bank, lease, &[("usd", 7)]);
    assert_eq!(sums(&bank), (93, 0, 7));
}

#[test]
fn several_accounts_and_assets_are_held_together_or_not_at_all() {
    let mut bank = Bank::new();
    bank.commit(vec![open("a"), open("b"), issue("a", "usd", 10), issue("a", "eur", 10), issue("b", "usd", 10)]);
    let mut euros = credit("a:eur", "a", 60, Overage::Deny);
    if let Kind::Credit(terms) = &mut euros.kind {
        terms.asset = asset("eur");
    }
    bank.test.put_active(euros);
    bank.test.put_active(credit("a:usd", "a", 60, Overage::Deny));
    bank.test.put_active(credit("b:usd", "b", 60, Overage::Deny));
    let all = |bank: &Bank| {
        [("a", "usd"), ("a", "eur"), ("b", "usd")].map(|(name, what)| {
            let balance = bank.balance(name, what).unwrap();
            (balance.available, balance.held)
        })
    };
    for (wanted, first) in [
        ([("a:usd", 11), ("a:eur", 1), ("b:usd", 1)], "a:usd"),
        ([("a:usd", 1), ("a:eur", 11), ("b:usd", 1)], "a:eur"),
        ([("a:usd", 1), ("a:eur", 1), ("b:usd", 11)], "b:usd"),
        ([("b:usd", 11), ("a:usd", 11), ("a:eur", 11)], "a:eur"),
    ] {
        let named = wanted[bank.deny_credit(&wanted).requirement].0;
        assert_eq!(named, first, "{wanted:?}");
        assert_eq!(all(&bank), [(10, 0); 3], "{wanted:?}");
    }
    let lease = bank.test.take(&[("a:usd", 10), ("a:eur", 4), ("b:usd", 5)]);
    assert_eq!(all(&bank), [(0, 10), (6, 4), (5, 5)]);
    // The refund of one asset or account does not pay for another.
    let settlement = bank.test.settle(lease, &[("a:usd", 14), ("a:eur", 0), ("b:usd", 5)]);
    assert_eq!(settlement.charges.iter().map(|charge| charge.uncollected).sum::<u64>(), 4);
    assert_eq!(all(&bank), [(0, 0), (10, 0), (5, 0)]);
    assert_eq!((bank.available("revenue", "usd"), bank.available("revenue", "eur")), (15, 0));
}

#[test]
fn a_frozen_account_gets_its_hold_back_and_pays_a_lease_that_is_late() {
    for (actual, left, paid) in [(0, 100, 0), (30, 70, 30), (130, -30, 130)] {
        for ms in [0, 60_000] {
            let mut bank = bank(100, Overage::Debt);
            let lease = bank.test.take(&[("usd", 40)]);
            bank.commit(vec![freeze("acme")]);
            bank.test.advance(ms);
            charged(&mut bank, lease, &[("usd", actual)]);
            assert_eq!(sums(&bank), (left, 0, paid), "{actual} after {ms} ms");
            // A deposit covers the debt of a frozen account.
            bank.commit(vec![issue("acme", "usd", 30)]);
            assert_eq!(sums(&bank).0, left + 30);
        }
    }
}

#[test]
fn what_is_held_can_be_neither_spent_nor_closed_away() {
    let mut bank = bank(40, Overage::Debt);
    bank.commit(vec![open("bob"), open_overdraft("bank")]);
    bank.test.put_active(credit("o:usd", "bank", 60, Overage::Debt));
    bank.test.take(&[("usd", 40)]);
    bank.test.take(&[("o:usd", 5)]);
    assert_eq!(bank.refuse(vec![retire("acme", "usd", 1)]).code(), "INSUFFICIENT_CREDIT");
    assert_eq!(bank.refuse(vec![transfer("acme", "bob", "usd", 1)]).code(), "INSUFFICIENT_CREDIT");
    assert_eq!(bank.refuse(vec![close("acme")]).code(), "CONFLICT");
    // The balance is 0, but a hold is live.
    assert_eq!(bank.refuse(vec![close("bank")]).code(), "CONFLICT");
    bank.test.advance(60_000);
    bank.commit(vec![close("bank"), retire("acme", "usd", 40), close("acme")]);
}

#[test]
fn settlements_at_the_ends_of_the_range_lose_nothing() {
    let most = i128::MAX as u128;
    // The revenue account would overflow, so the owner keeps the credit.
    let mut full = Bank::new();
    full.commit(vec![open_overdraft("acme"), open("sales")]);
    full.commit(vec![issue("acme", "usd", most), transfer("acme", "sales", "usd", most)]);
    full.test.put_active(full.paying("usd", "acme", "sales", 60));
    let lease = full.test.take(&[("usd", 40)]);
    let charge = charged(&mut full, lease, &[("usd", 50)]);
    assert_eq!((charge.paid, charge.debt, charge.uncollected), (0, 0, 50));
    full.assert_balanced();
    assert_eq!((full.available("acme", "usd"), full.available("sales", "usd")), (0, i128::MAX));
    // The owner's debt would overflow, so the excess is not collected.
    let mut low = Bank::new();
    low.commit(vec![open_overdraft("acme"), open("bob")]);
    low.commit(vec![transfer("acme", "bob", "usd", most)]);
    low.test.put_active(credit("usd", "acme", 60, Overage::Debt));
    assert_eq!(low.deny_credit(&[("usd", 2)]).why, CreditShortage::NotEnough);
    let lease = low.test.take(&[("usd", 1)]);
    let charge = charged(&mut low, lease, &[("usd", 3)]);
    assert_eq!((charge.paid, charge.debt, charge.uncollected), (1, 0, 2));
    low.assert_balanced();
    assert_eq!((low.available("acme", "usd"), low.available("revenue", "usd")), (i128::MIN, 1));
}

/// Regression: an account at its overdraft limit paid more than its hold out of another lease's hold. Its spendable
/// balance was then below the range, was read as the minimum, and the audit reported a false difference.
#[test]
fn what_is_charged_beyond_a_hold_leaves_room_for_the_other_holds() {
    let mut low = Bank::new();
    low.commit(vec![open_overdraft("acme"), open("bob")]);
    low.commit(vec![transfer("acme", "bob", "usd", i128::MAX as u128 - 9)]);
    low.test.put_active(credit("usd", "acme", 60, Overage::Debt));
    let (first, second) = (low.test.take(&[("usd", 5)]), low.test.take(&[("usd", 5)]));
    assert_eq!(low.available("acme", "usd"), i128::MIN);
    let charge = charged(&mut low, second, &[("usd", 10)]);
    assert_eq!((charge.paid, charge.debt, charge.uncollected), (5, 0, 5));
    let acme = low.balance("acme", "usd").unwrap();
    assert_eq!((acme.available, acme.held), (i128::MIN, 5));
    assert_eq!(acme.available.checked_add(acme.held), Some(i128::MIN + 5));
    low.assert_balanced();
    let charge = charged(&mut low, first, &[]);
    assert_eq!((charge.paid, charge.uncollected), (5, 0));
    assert_eq!((low.available("acme", "usd"), low.available("revenue", "usd")), (i128::MIN, 10));
}

/// Regression: receipts and entries carried log time only. A node that was started with a wrong clock stamped them
/// wrongly for months, because log time follows the wall clock slowly.
#[test]
fn records_of_money_carry_the_wall_time_of_their_command_beside_log_time() {
    let mut bank = bank(100, Overage::Debt);
    drop(bank.test.book.drain_journal());
    bank.test.wall_ahead_ms = 50_000;
    let receipt = bank.commit(vec![issue("acme", "usd", 1)]);
    let [paid, _lost] = [bank.test.take(&[("usd", 10)]), bank.test.take(&[("usd", 20)])];
    bank.test.settle(paid, &[("usd", 3)]);
    let before = Moment { log: bank.test.now(), wall: bank.test.now().plus_ms(50_000) };
    bank.test.advance(62_000);
    bank.test.wall_ahead_ms = 7;
    bank.test.tick();
    let after = Moment { log: bank.test.now(), wall: bank.test.now().plus_ms(7) };
    let at = |record: &JournalRecord| match record {
        JournalRecord::Transaction(transaction) => transaction.receipt.committed_at,
        JournalRecord::Hold(hold) | JournalRecord::Release(hold) => hold.at,
        JournalRecord::Settle(settle) => settle.hold.at,
        other => panic!("{other:?}"),
    };
    let times: Vec<Moment> = bank.test.book.drain_journal().iter().map(at).collect();
    assert_eq!(times, [before, before, before, before, after]);
    let restored = restore(&snapshot(&mut bank.test.book), 64, 3).unwrap();
    bank.test.book = restored;
    let again = bank.writer.write_as(&mut bank.test, receipt.sequence.unwrap(), vec![issue("acme", "usd", 1)]);
    assert_eq!(again, WriteOutcome::Exists(receipt));
}
