//! Credit held for leases: set aside with the limits, paid as it cost, given back on time.

use earmark_core::{
    Charge, CompleteOutcome, CreditShortage, Definition, JournalRecord, Kind, LeaseId, LimitStatus, Overage,
    ReserveOutcome, Standing, TIME_MAX, VaultId,
};

use crate::support::bank::{
    Bank, account, asset, close, credit, freeze, issue, open, open_overdraft, retire, transfer, unfreeze,
};
use crate::support::desk::{changed, concurrency, rolling};
use crate::support::snapshot::{restore, snapshot};

/// An account `acme` with so many usd, and a limit `usd` on it that holds for 60 seconds.
fn bank(amount: u128, overage: Overage) -> Bank {
    let mut bank = Bank::new();
    bank.does(vec![open("acme"), issue("acme", "usd", amount)]);
    bank.desk.has(credit("usd", "acme", 60, overage));
    bank
}

/// Available and held of `acme`, and what `revenue` got.
fn sums(bank: &Bank) -> (i128, i128, i128) {
    bank.assert_balanced();
    let acme = bank.balance("acme", "usd").unwrap();
    (acme.available, acme.held, bank.available("revenue", "usd"))
}

fn charged(bank: &mut Bank, lease: LeaseId, actuals: &[(&str, u64)]) -> Charge {
    let settlement = bank.desk.settle(lease, actuals);
    assert_eq!(settlement.charges.len(), 1, "{settlement:?}");
    settlement.charges[0]
}

/// Time stops at `TIME_MAX`, in which nothing ends any more. What an account has was read at whatever time was asked
/// for, so that for a clock beyond that nothing was held, while the Book went on holding it.
#[test]
fn beyond_the_end_of_time_what_is_held_is_read_as_held() {
    let mut bank = bank(100, Overage::Debt);
    bank.desk.pass(u64::MAX);
    let lease = bank.desk.lease();
    assert_eq!(bank.desk.reserve(lease, &[("usd", 40)]), ReserveOutcome::Created { reserved_at: TIME_MAX });
    let usage = bank.desk.usage("usd");
    assert_eq!((usage.capacity, usage.reserved, usage.available), (100, 40, 60));
    assert_eq!(sums(&bank), (60, 40, 0));
    assert_eq!(bank.short(&[("usd", 61)]).why, CreditShortage::NotEnough);
}

#[test]
fn settling_pays_what_it_cost_and_returns_the_rest() {
    // (has, holds, actual, overage) -> (available, owed at the end; revenue; paid, debt, uncollected)
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
        let lease = bank.desk.take(&[("usd", 40)]);
        assert_eq!(sums(&bank), (has as i128 - 40, 40, 0));
        let actuals: Vec<(&str, u64)> = actual.map(|amount| ("usd", amount)).into_iter().collect();
        let charge = charged(&mut bank, lease, &actuals);
        assert_eq!(
            (charge.paid, charge.debt, charge.uncollected),
            (paid, debt, uncollected),
            "{has} {actual:?}"
        );
        assert_eq!(sums(&bank), (left, 0, i128::from(paid)), "{has} {actual:?} {overage:?}");
        // A second complete changes nothing.
        assert_eq!(bank.desk.complete(lease, &[("usd", 5)]), CompleteOutcome::Before);
        assert_eq!(sums(&bank), (left, 0, i128::from(paid)));
    }
}

#[test]
fn a_debt_is_covered_by_the_next_deposit_first() {
    let mut bank = bank(50, Overage::Debt);
    let lease = bank.desk.take(&[("usd", 50)]);
    charged(&mut bank, lease, &[("usd", 80)]);
    assert_eq!(sums(&bank).0, -30);
    bank.does(vec![issue("acme", "usd", 100)]);
    assert_eq!(sums(&bank).0, 70);
    bank.refuses(vec![retire("acme", "usd", 71)]);
    assert_eq!(bank.short(&[("usd", 71)]).why, CreditShortage::NotEnough);
    bank.desk.take(&[("usd", 70)]);
}

#[test]
fn a_hold_returns_exactly_at_its_time_and_counts_in_the_very_next_decision() {
    let mut bank = bank(100, Overage::Debt);
    bank.desk.take(&[("usd", 100)]);
    bank.desk.pass(59_999);
    assert_eq!(bank.short(&[("usd", 1)]).retry_after_ms, 10_000);
    bank.desk.pass(1);
    assert_eq!(sums(&bank), (100, 0, 0));
    bank.desk.take(&[("usd", 100)]);
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
            let lease = bank.desk.take(&[("usd", 40)]);
            bank.desk.pass(70_000);
            (0..ticks).for_each(|_| bank.desk.tick());
            assert_eq!(sums(&bank), (100, 0, 0));
            let actuals: Vec<(&str, u64)> = actual.map(|amount| ("usd", amount)).into_iter().collect();
            charged(&mut bank, lease, &actuals);
            assert_eq!(sums(&bank), (left, 0, paid), "{actual:?}");
        }
    }
    let mut bank = bank(100, Overage::Debt);
    let lease = bank.desk.take(&[("usd", 40)]);
    bank.desk.pass(3_600_000);
    bank.desk.tick();
    assert_eq!(bank.desk.complete(lease, &[("usd", 40)]), CompleteOutcome::UnknownByAge);
    assert_eq!(sums(&bank), (100, 0, 0));
}

#[test]
fn settling_works_whatever_became_of_the_limit_and_the_account() {
    // The limit is gone.
    let mut deleted = bank(100, Overage::Debt);
    let lease = deleted.desk.take(&[("usd", 40)]);
    deleted.desk.delete("usd");
    charged(&mut deleted, lease, &[("usd", 55)]);
    assert_eq!(sums(&deleted), (45, 0, 55));
    // The limit came back as something else, or with another account.
    let mut changed = bank(100, Overage::Debt);
    let lease = changed.desk.take(&[("usd", 40)]);
    changed.desk.delete("usd");
    changed.desk.has(rolling("usd", 5, 60));
    charged(&mut changed, lease, &[("usd", 55)]);
    assert_eq!((sums(&changed), changed.desk.reserved("usd")), ((45, 0, 55), 0));
    // A frozen account pays settlements, and nothing else goes out.
    let mut frozen = bank(100, Overage::Debt);
    let lease = frozen.desk.take(&[("usd", 40)]);
    frozen.does(vec![freeze("acme")]);
    assert_eq!(frozen.short(&[("usd", 1)]).why, CreditShortage::Frozen);
    charged(&mut frozen, lease, &[("usd", 120)]);
    assert_eq!(sums(&frozen), (-20, 0, 120));
    // From a closed one nothing is charged, and that is counted.
    let mut closed = bank(40, Overage::Debt);
    let lease = closed.desk.take(&[("usd", 40)]);
    closed.refuses(vec![close("acme")]);
    closed.desk.pass(60_000);
    closed.does(vec![retire("acme", "usd", 40), close("acme")]);
    let charge = charged(&mut closed, lease, &[("usd", 10)]);
    assert_eq!((charge.paid, charge.uncollected), (0, 10));
    assert_eq!((sums(&closed), closed.standing("acme")), ((0, 0, 0), Standing::Closed));
    assert_eq!(closed.short(&[("usd", 1)]).why, CreditShortage::Closed);
}

#[test]
fn a_closed_revenue_account_is_replaced_by_the_vaults_own() {
    let mut bank = Bank::new();
    bank.does(vec![open("acme"), open("sales"), issue("acme", "usd", 100)]);
    bank.desk.has(bank.paying("usd", "acme", "sales", 60));
    let lease = bank.desk.take(&[("usd", 40)]);
    bank.does(vec![close("sales")]);
    assert_eq!(bank.short(&[("usd", 1)]).why, CreditShortage::Closed);
    charged(&mut bank, lease, &[("usd", 30)]);
    assert_eq!(sums(&bank), (70, 0, 30));
}

#[test]
fn limits_and_credit_are_taken_together_or_not_at_all() {
    let mut bank = bank(100, Overage::Debt);
    bank.desk.has(concurrency("slots", 1, 60));
    bank.desk.has(rolling("rpm", 10, 60));
    let short = bank.short(&[("slots", 1), ("usd", 101), ("rpm", 1)]);
    assert_eq!((short.limit, short.retry_after_ms), (bank.desk.id("usd"), 10_000));
    assert_eq!((bank.desk.reserved("slots"), bank.desk.reserved("rpm")), (0, 0));
    let lease = bank.desk.take(&[("slots", 1), ("usd", 60), ("rpm", 1)]);
    // A limit in the way too: the plain denial, which names no credit.
    let (_, denial) = bank.desk.denied(&[("slots", 1), ("usd", 60)]);
    assert_eq!(denial.limited_by, [bank.desk.id("slots")]);
    assert_eq!(sums(&bank), (40, 60, 0));
    bank.desk.settle(lease, &[("usd", 1)]);
    assert_eq!((sums(&bank), bank.desk.reserved("slots")), ((99, 0, 1), 0));
}

#[test]
fn a_lease_denied_for_want_of_credit_stays_denied() {
    let mut bank = bank(10, Overage::Debt);
    let lease = bank.desk.lease();
    let first = bank.desk.reserve(lease, &[("usd", 11)]);
    let ReserveOutcome::InsufficientCredit(denial) = first else { panic!("{first:?}") };
    bank.does(vec![issue("acme", "usd", 100)]);
    bank.desk.pass(4_000);
    let again = bank.desk.reserve(lease, &[("usd", 11)]);
    let expected = earmark_core::CreditDenial { retry_after_ms: 6_000, ..denial };
    assert_eq!(again, ReserveOutcome::ExistsInsufficientCredit(expected));
    assert_eq!(bank.desk.reserve(lease, &[("usd", 1)]), ReserveOutcome::ExistsWithOtherRequirements);
    assert_eq!(bank.desk.complete(lease, &[]), CompleteOutcome::HeldNothing);
}

#[test]
fn keys_of_one_account_are_planned_together_and_the_first_by_key_is_named() {
    let mut bank = bank(100, Overage::Deny);
    bank.desk.has(credit("a:usd", "acme", 30, Overage::Deny));
    let short = bank.short(&[("usd", 60), ("a:usd", 41)]);
    assert_eq!((short.limit, short.why), (bank.desk.id("a:usd"), CreditShortage::NotEnough));
    let lease = bank.desk.take(&[("usd", 60), ("a:usd", 40)]);
    // One key gives back what the other is short of.
    let settlement = bank.desk.settle(lease, &[("usd", 20), ("a:usd", 75)]);
    assert!(settlement.charges.iter().all(|charge| charge.uncollected == 0), "{settlement:?}");
    assert_eq!(sums(&bank), (5, 0, 95));
}

#[test]
fn an_unknown_account_or_vault_is_a_want_of_credit_until_it_is_there() {
    let mut bank = Bank::new();
    bank.desk.has(credit("usd", "acme", 60, Overage::Debt));
    assert_eq!(bank.short(&[("usd", 1)]).why, CreditShortage::UnknownAccount);
    bank.does(vec![open("acme")]);
    assert_eq!(bank.short(&[("usd", 1)]).why, CreditShortage::NotEnough);
    bank.does(vec![issue("revenue", "usd", 5)]);
    assert_eq!(bank.short(&[("usd", 1)]).why, CreditShortage::NotEnough);
    bank.does(vec![transfer("revenue", "acme", "usd", 5)]);
    bank.desk.take(&[("usd", 5)]);
}

#[test]
fn held_credit_cannot_be_spent_and_overdraft_can() {
    let mut bank = bank(100, Overage::Debt);
    bank.does(vec![open("bob"), open_overdraft("bank"), transfer("bank", "bob", "usd", 1)]);
    bank.desk.take(&[("usd", 80)]);
    bank.refuses(vec![transfer("acme", "bob", "usd", 21)]);
    bank.does(vec![transfer("acme", "bob", "usd", 20)]);
    bank.desk.has(credit("o:usd", "bank", 60, Overage::Deny));
    let lease = bank.desk.take(&[("o:usd", 500)]);
    assert_eq!((bank.available("bank", "usd"), bank.balance("bank", "usd").unwrap().held), (-501, 500));
    bank.desk.settle(lease, &[("o:usd", 700)]);
    assert_eq!(bank.available("bank", "usd"), -701);
    bank.does(vec![unfreeze("acme")]);
}

#[test]
fn the_journal_tells_of_every_hold_settlement_and_release() {
    let mut bank = bank(100, Overage::Debt);
    let _ = bank.desk.book.drain_journal();
    let settled = bank.desk.take(&[("usd", 40)]);
    let released = bank.desk.take(&[("usd", 10)]);
    bank.desk.take(&[("usd", 20)]);
    bank.desk.settle(settled, &[("usd", 25)]);
    bank.desk.settle(released, &[("usd", 0)]);
    bank.desk.pass(61_000);
    bank.desk.tick();
    let journal = bank.desk.book.drain_journal();
    let said: Vec<String> = journal
        .iter()
        .map(|record| match record {
            JournalRecord::Transaction(_) => "transaction".into(),
            JournalRecord::Hold(hold) => format!("hold {}", hold.amount),
            JournalRecord::Settle(settle) => format!("settle {} of {}", settle.paid, settle.held),
            JournalRecord::Release(hold) => format!("release {}", hold.amount),
            JournalRecord::Key(key) => format!("key {}", key.id),
            JournalRecord::Limit(limit) => format!("limit {}", limit.key),
        })
        .collect();
    assert_eq!(said, ["hold 40", "hold 10", "hold 20", "settle 25 of 40", "release 10", "release 20"]);
    bank.desk.tick();
    assert_eq!(bank.desk.book.drain_journal(), []);
}

#[test]
fn a_crowd_of_holds_that_run_out_at_once_stalls_no_call_and_counts_at_once() {
    let mut bank = bank(100_000, Overage::Debt);
    for _ in 0..20_000 {
        bank.desk.take(&[("usd", 5)]);
    }
    bank.short(&[("usd", 1)]);
    bank.desk.pass(60_000);
    let before = bank.desk.book.steps();
    bank.desk.take(&[("usd", 100_000)]);
    let steps = bank.desk.book.steps() - before;
    assert!(steps < 1_000, "{steps} steps");
    for _ in 0..400 {
        bank.desk.tick();
    }
    let released =
        bank.desk.book.drain_journal().iter().filter(|r| matches!(r, JournalRecord::Release(_))).count();
    assert_eq!(released, 20_000);
}

#[test]
fn holds_go_through_a_snapshot_in_every_state() {
    let mut bank = bank(1_000, Overage::Deny);
    bank.desk.has(credit("a:usd", "acme", 5, Overage::Debt));
    bank.desk.has(concurrency("slots", 10, 600));
    let live = bank.desk.take(&[("usd", 40), ("slots", 1)]);
    let expired = bank.desk.take(&[("a:usd", 50), ("usd", 7)]);
    bank.desk.pass(5_500);
    bank.desk.denied(&[("slots", 20)]);
    bank.short(&[("usd", 2_000)]);
    bank.desk.pass(1_000);
    bank.desk.tick();
    bank.desk.take(&[("a:usd", 9)]);
    let bytes = snapshot(&mut bank.desk.book);
    let expected = sums(&bank);
    bank.desk.book = restore(&bytes, 17, 9).unwrap();
    assert_eq!((snapshot(&mut bank.desk.book), sums(&bank)), (bytes, expected));
    bank.desk.settle(live, &[("usd", 41)]);
    bank.desk.settle(expired, &[("usd", 7), ("a:usd", 60)]);
    assert_eq!(sums(&bank), (1_000 - 41 - 7 - 60 - 9, 9, 41 + 7 + 60));
    assert!(bank.desk.book.account(VaultId::MAIN, &account("acme")).is_some());
}

/// An account opened with `overdraft: allow` was refused every lease until somebody paid a first unit of the asset
/// into it: without a balance it counted as empty, and in a vault that had never seen the asset as unknown. Who
/// pays at the end of the month never pays in advance.
#[test]
fn an_account_that_may_owe_needs_no_deposit_before_its_first_lease() {
    let mut bank = Bank::new();
    bank.does(vec![open_overdraft("acme"), open("bob")]);
    bank.desk.has(credit("usd", "acme", 60, Overage::Deny));
    bank.desk.has(credit("a:usd", "acme", 5, Overage::Deny));
    bank.desk.has(credit("b:usd", "bob", 60, Overage::Deny));
    // A lease that is denied leaves nothing behind, not even the name of the asset.
    let short = bank.short(&[("usd", 40), ("a:usd", 2), ("b:usd", 1)]);
    assert_eq!((short.limit, short.why), (bank.desk.id("b:usd"), CreditShortage::NotEnough));
    assert_eq!((bank.desk.book.audit(VaultId::MAIN), bank.balance("acme", "usd")), (vec![], None));
    let lease = bank.desk.take(&[("usd", 40), ("a:usd", 2)]);
    assert_eq!(sums(&bank), (-42, 42, 0));
    let bytes = snapshot(&mut bank.desk.book);
    bank.desk.book = restore(&bytes, 50, 3).unwrap();
    bank.desk.settle(lease, &[("usd", 30), ("a:usd", 5)]);
    assert_eq!(sums(&bank), (-35, 0, 35));
}

/// What is held of one balance is counted in 64 bits, and holds that had ended were counted until their release
/// was written down, up to a second later. A restored Book counts only what still holds: the same lease was
/// refused by one replica and allowed by another.
#[test]
fn holds_that_ended_leave_room_for_others_at_once_on_every_replica() {
    let mut bank = bank(u128::from(u64::MAX) * 3, Overage::Debt);
    bank.desk.pass(500);
    bank.desk.take(&[("usd", u64::MAX)]);
    assert_eq!(bank.short(&[("usd", 1)]).why, CreditShortage::NotEnough);
    bank.desk.pass(60_000);
    let bytes = snapshot(&mut bank.desk.book);
    let mut restored = restore(&bytes, bytes.len(), 4).unwrap();
    let lease = bank.desk.take(&[("usd", u64::MAX)]);
    assert_eq!(sums(&bank), (2 * i128::from(u64::MAX), u64::MAX.into(), 0));
    std::mem::swap(&mut bank.desk.book, &mut restored);
    let reserved_at = bank.desk.now();
    assert_eq!(bank.desk.reserve(lease, &[("usd", u64::MAX)]), ReserveOutcome::Created { reserved_at });
    assert_eq!(snapshot(&mut bank.desk.book), snapshot(&mut restored));
}

/// A hold that has ended stays for as long as its lease is remembered. The decoder of snapshots added it to what
/// is held now, and so refused the snapshot of a healthy Book once both together passed 64 bits.
#[test]
fn a_snapshot_may_remember_more_ended_holds_than_could_ever_be_held_at_once() {
    let mut bank = bank(u128::from(u64::MAX), Overage::Debt);
    for _ in 0..3 {
        bank.desk.take(&[("usd", u64::MAX)]);
        bank.desk.pass(61_000);
    }
    bank.desk.take(&[("usd", u64::MAX)]);
    let bytes = snapshot(&mut bank.desk.book);
    bank.desk.book = restore(&bytes, bytes.len(), 4).unwrap();
    assert_eq!(sums(&bank), (0, u64::MAX.into(), 0));
}

#[test]
fn the_first_shortage_in_their_order_is_the_one_that_is_told() {
    let mut bank = Bank::new();
    bank.does(vec![open("acme"), open("sales"), issue("acme", "usd", 10), close("sales")]);
    bank.desk.has(bank.paying("usd", "acme", "sales", 60));
    bank.desk.has(bank.paying("nobody", "acme", "never", 60));
    // Too little, and nobody to pay it to: more credit would not help.
    assert_eq!(bank.short(&[("usd", 11)]).why, CreditShortage::Closed);
    bank.does(vec![freeze("acme")]);
    assert_eq!(bank.short(&[("usd", 11)]).why, CreditShortage::Frozen);
    assert_eq!(bank.short(&[("nobody", 11)]).why, CreditShortage::UnknownAccount);
}

#[test]
fn a_hold_keeps_the_terms_it_was_made_on() {
    // (overage then, overage when it is settled) -> available of `acme` after a cost of 130 with 100 in all
    for (then, later, left, paid) in
        [(Overage::Debt, Overage::Deny, -30, 130), (Overage::Deny, Overage::Debt, 0, 100)]
    {
        let mut bank = bank(100, then);
        bank.does(vec![open("bob"), open("sales"), issue("bob", "usd", 500)]);
        let lease = bank.desk.take(&[("usd", 40)]);
        // The limit now means another account, pays another one, and holds for another time.
        let definition = Definition { overage: later, ..bank.paying("usd", "bob", "sales", 1) };
        bank.desk.has(definition);
        bank.desk.pass(2_000);
        assert_eq!(sums(&bank), (60, 40, 0));
        charged(&mut bank, lease, &[("usd", 130)]);
        assert_eq!(sums(&bank), (left, 0, paid), "{then:?}");
        assert_eq!((bank.available("bob", "usd"), bank.available("sales", "usd")), (500, 0));
    }
}

#[test]
fn a_limit_of_credit_goes_at_once_and_what_it_holds_stays_held() {
    let mut bank = bank(100, Overage::Debt);
    let lease = bank.desk.take(&[("usd", 40)]);
    let id = bank.desk.id("usd");
    assert_eq!(bank.desk.delete("usd"), changed(id, 2, LimitStatus::Deleted));
    assert_eq!(bank.desk.book.usage(bank.desk.now(), id), None);
    assert_eq!(sums(&bank), (60, 40, 0));
    bank.refuses(vec![retire("acme", "usd", 61)]);
    // Nobody completes it, and it still comes back on time.
    bank.desk.pass(60_000);
    assert_eq!(sums(&bank), (100, 0, 0));
    charged(&mut bank, lease, &[("usd", 7)]);
    assert_eq!(sums(&bank), (93, 0, 7));
}

#[test]
fn several_accounts_and_assets_are_held_together_or_not_at_all() {
    let mut bank = Bank::new();
    bank.does(vec![
        open("a"),
        open("b"),
        issue("a", "usd", 10),
        issue("a", "eur", 10),
        issue("b", "usd", 10),
    ]);
    let mut euros = credit("a:eur", "a", 60, Overage::Deny);
    if let Kind::Credit(terms) = &mut euros.kind {
        terms.asset = asset("eur");
    }
    bank.desk.has(euros);
    bank.desk.has(credit("a:usd", "a", 60, Overage::Deny));
    bank.desk.has(credit("b:usd", "b", 60, Overage::Deny));
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
        assert_eq!(bank.short(&wanted).limit, bank.desk.id(first), "{wanted:?}");
        assert_eq!(all(&bank), [(10, 0); 3], "{wanted:?}");
    }
    let lease = bank.desk.take(&[("a:usd", 10), ("a:eur", 4), ("b:usd", 5)]);
    assert_eq!(all(&bank), [(0, 10), (6, 4), (5, 5)]);
    // What one asset or account gives back pays for no other.
    let settlement = bank.desk.settle(lease, &[("a:usd", 14), ("a:eur", 0), ("b:usd", 5)]);
    assert_eq!(settlement.charges.iter().map(|charge| charge.uncollected).sum::<u64>(), 4);
    assert_eq!(all(&bank), [(0, 0), (10, 0), (5, 0)]);
    assert_eq!((bank.available("revenue", "usd"), bank.available("revenue", "eur")), (15, 0));
}

#[test]
fn a_frozen_account_gets_its_hold_back_and_pays_a_lease_that_is_late() {
    for (actual, left, paid) in [(0, 100, 0), (30, 70, 30), (130, -30, 130)] {
        for ms in [0, 60_000] {
            let mut bank = bank(100, Overage::Debt);
            let lease = bank.desk.take(&[("usd", 40)]);
            bank.does(vec![freeze("acme")]);
            bank.desk.pass(ms);
            charged(&mut bank, lease, &[("usd", actual)]);
            assert_eq!(sums(&bank), (left, 0, paid), "{actual} after {ms} ms");
            // The debt of a frozen account is covered by what it takes.
            bank.does(vec![issue("acme", "usd", 30)]);
            assert_eq!(sums(&bank).0, left + 30);
        }
    }
}

#[test]
fn what_is_held_can_be_neither_spent_nor_closed_away() {
    let mut bank = bank(40, Overage::Debt);
    bank.does(vec![open("bob"), open_overdraft("bank")]);
    bank.desk.has(credit("o:usd", "bank", 60, Overage::Debt));
    bank.desk.take(&[("usd", 40)]);
    bank.desk.take(&[("o:usd", 5)]);
    assert_eq!(bank.refuses(vec![retire("acme", "usd", 1)]).code(), "INSUFFICIENT_CREDIT");
    assert_eq!(bank.refuses(vec![transfer("acme", "bob", "usd", 1)]).code(), "INSUFFICIENT_CREDIT");
    assert_eq!(bank.refuses(vec![close("acme")]).code(), "CONFLICT");
    // It has nothing and owes nothing, and yet it holds something.
    assert_eq!(bank.refuses(vec![close("bank")]).code(), "CONFLICT");
    bank.desk.pass(60_000);
    bank.does(vec![close("bank"), retire("acme", "usd", 40), close("acme")]);
}

#[test]
fn settlements_at_the_ends_of_the_range_lose_nothing() {
    let most = i128::MAX as u128;
    // The account that should be paid cannot count one more: the owner keeps what it has.
    let mut full = Bank::new();
    full.does(vec![open_overdraft("acme"), open("sales")]);
    full.does(vec![issue("acme", "usd", most), transfer("acme", "sales", "usd", most)]);
    full.desk.has(full.paying("usd", "acme", "sales", 60));
    let lease = full.desk.take(&[("usd", 40)]);
    let charge = charged(&mut full, lease, &[("usd", 50)]);
    assert_eq!((charge.paid, charge.debt, charge.uncollected), (0, 0, 50));
    full.assert_balanced();
    assert_eq!((full.available("acme", "usd"), full.available("sales", "usd")), (0, i128::MAX));
    // The owner cannot owe one more: what its hold does not cover is not collected.
    let mut low = Bank::new();
    low.does(vec![open_overdraft("acme"), open("bob")]);
    low.does(vec![transfer("acme", "bob", "usd", most)]);
    low.desk.has(credit("usd", "acme", 60, Overage::Debt));
    assert_eq!(low.short(&[("usd", 2)]).why, CreditShortage::NotEnough);
    let lease = low.desk.take(&[("usd", 1)]);
    let charge = charged(&mut low, lease, &[("usd", 3)]);
    assert_eq!((charge.paid, charge.debt, charge.uncollected), (1, 0, 2));
    low.assert_balanced();
    assert_eq!((low.available("acme", "usd"), low.available("revenue", "usd")), (i128::MIN, 1));
}

/// An account at the very end of its overdraft paid more than its hold, out of what another lease still held. What it
/// could spend was then below the range: it was read as the least there is, and the audit cried over books in order.
#[test]
fn what_is_charged_beyond_a_hold_leaves_room_for_the_other_holds() {
    let mut low = Bank::new();
    low.does(vec![open_overdraft("acme"), open("bob")]);
    low.does(vec![transfer("acme", "bob", "usd", i128::MAX as u128 - 9)]);
    low.desk.has(credit("usd", "acme", 60, Overage::Debt));
    let (first, second) = (low.desk.take(&[("usd", 5)]), low.desk.take(&[("usd", 5)]));
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
