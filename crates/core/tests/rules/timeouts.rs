//! Timeouts that pay: what is reported as used is charged when a lease runs out, and never spendable before.

use earmark_core::{
    Charge, CompleteOutcome, CreditShortage, Definition, ExtendOutcome, JournalRecord, Kind, LeaseId, NamespaceId,
    OnTimeout, Overage, SettleReason, TimedOut, TimeoutScan, WriteError,
};

use crate::support::bank::{Bank, close, credit, freeze, issue, open, open_overdraft, transfer};
use crate::support::snapshot::{restored, snapshot};
use crate::support::test_book::{Asked, add, concurrency, renew, rolling, used};

fn charging(definition: Definition) -> Definition {
    let mut definition = definition;
    if let Kind::Credit(terms) = &mut definition.kind {
        terms.on_timeout = OnTimeout::Charge;
    }
    definition
}

/// An account `acme` with `amount` usd and a credit limit `usd` on it with a timeout of 60 seconds.
fn bank(amount: u128, overage: Overage) -> Bank {
    let mut bank = Bank::new();
    bank.commit(vec![open("acme"), open("other"), issue("acme", "usd", amount)]);
    bank.test.put_active(credit("usd", "acme", 60, overage));
    bank
}

/// Available and held credit of `acme`, and the balance of `revenue`.
fn sums(bank: &Bank) -> (i128, i128, i128) {
    bank.assert_balanced();
    let acme = bank.balance("acme", "usd").unwrap();
    (acme.available, acme.held, bank.available("revenue", "usd"))
}

fn keep(bank: &mut Bank) {
    let bytes = snapshot(&mut bank.test.book);
    let journal = bank.test.book.drain_journal();
    bank.test.book = restored(&mut bank.test.book);
    assert_eq!(snapshot(&mut bank.test.book), bytes);
    drop(journal);
}

/// The settlements in the journal: lease, held, paid, uncollected, reason, and whether somebody caused it.
fn settlements(bank: &mut Bank) -> Vec<(LeaseId, u64, u64, u64, SettleReason, bool)> {
    let records = bank.test.book.drain_journal();
    let settled = records.into_iter().filter_map(|record| match record {
        JournalRecord::Settle(settle) => Some(settle),
        _ => None,
    });
    settled.map(|s| (s.hold.lease, s.held, s.paid, s.uncollected, s.reason, s.hold.actor.is_some())).collect()
}

#[test]
fn a_lease_that_runs_out_pays_what_it_reported_and_returns_the_rest() {
    let mut bank = bank(100, Overage::Debt);
    let lease = bank.test.take(&[("usd", 40)]);
    bank.test.extended(lease, 1, used(&[("usd", 15)]));
    assert_eq!(sums(&bank), (60, 40, 0));
    bank.test.advance(60_000);
    // The rest is spendable at once, and what is due stays held until it is charged.
    assert_eq!(sums(&bank), (85, 15, 0));
    _ = bank.test.book.drain_journal();
    bank.test.tick();
    assert_eq!(sums(&bank), (85, 0, 15));
    assert_eq!(settlements(&mut bank), [(lease, 40, 15, 0, SettleReason::Timeout, false)]);
    keep(&mut bank);
    // A late complete charges only what exceeds that.
    let settlement = bank.test.settle(lease, &[("usd", 22)]);
    assert_eq!((settlement.charges[0].cost, settlement.charges[0].paid), (7, 7));
    assert_eq!(settlements(&mut bank), [(lease, 0, 7, 0, SettleReason::Late, false)]);
    assert_eq!(sums(&bank), (78, 0, 22));
}

#[test]
fn a_late_complete_below_the_payment_refunds_nothing() {
    for (is_charging, paid) in [(false, 15), (true, 40)] {
        let mut bank = bank(100, Overage::Debt);
        if is_charging {
            bank.test.put_active(charging(credit("usd", "acme", 60, Overage::Debt)));
        }
        let lease = bank.test.take(&[("usd", 40)]);
        bank.test.extended(lease, 1, used(&[("usd", 15)]));
        bank.test.advance(60_000);
        // The complete meets a timeout that is not recorded yet.
        let settlement = bank.test.settle(lease, &[("usd", 3)]);
        let nothing = Charge { limit: bank.test.id("usd"), cost: 0, paid: 0, debt: 0, uncollected: 0 };
        assert_eq!(settlement.charges, [nothing]);
        assert_eq!(sums(&bank), (100 - i128::from(paid), 0, paid.into()));
        assert_eq!(settlements(&mut bank), [(lease, 40, paid, 0, SettleReason::Timeout, false)]);
    }
}

#[test]
fn a_limit_that_charges_timeouts_charges_all_of_it() {
    let mut bank = bank(100, Overage::Debt);
    bank.test.put_active(charging(credit("usd", "acme", 60, Overage::Debt)));
    let lease = bank.test.take(&[("usd", 40)]);
    // It decides by the terms of the reserve.
    bank.test.put_active(credit("usd", "acme", 60, Overage::Debt));
    let released = bank.test.take(&[("usd", 20)]);
    bank.test.advance(59_999);
    keep(&mut bank);
    assert_eq!(sums(&bank), (40, 60, 0));
    bank.test.advance(1);
    assert_eq!(sums(&bank), (60, 40, 0));
    keep(&mut bank);
    bank.test.tick();
    assert_eq!(sums(&bank), (60, 0, 40));
    assert_eq!(settlements(&mut bank), [(lease, 40, 40, 0, SettleReason::Timeout, false)]);
    keep(&mut bank);
    assert!(matches!(bank.test.complete(released, &[("usd", 0)]), CompleteOutcome::Completed(_)));
    // In time it pays its actual cost.
    let mut bank = self::bank(100, Overage::Debt);
    bank.test.put_active(charging(credit("usd", "acme", 60, Overage::Debt)));
    let lease = bank.test.take(&[("usd", 40)]);
    bank.test.settle(lease, &[("usd", 5)]);
    assert_eq!(sums(&bank), (95, 0, 5));
}

/// The amount to be charged was spendable between the end of a hold and its settlement, which waits its turn.
#[test]
fn with_65_holds_due_at_once_nobody_spends_what_will_be_charged() {
    for is_charging in [false, true] {
        for is_ticked in [false, true] {
            let mut bank = bank(6_500, Overage::Deny);
            let definition = credit("usd", "acme", 60, Overage::Deny);
            bank.test.put_active(if is_charging { charging(definition) } else { definition });
            for _ in 0..65 {
                let lease = bank.test.take(&[("usd", 100)]);
                if !is_charging {
                    bank.test.extended(lease, 1, used(&[("usd", 100)]));
                }
            }
            assert_eq!(sums(&bank), (0, 6_500, 0));
            bank.test.advance(60_000);
            if is_ticked {
                bank.test.tick();
            }
            for amount in [6_500, 100, 1] {
                let refused = bank.refuse(vec![transfer("acme", "other", "usd", amount)]);
                assert!(matches!(refused, WriteError::InsufficientCredit { .. }), "{refused:?}");
                let denied = bank.deny_credit(&[("usd", 1)]);
                assert_eq!(denied.why, CreditShortage::NotEnough);
            }
            bank.test.tick();
            assert_eq!(sums(&bank), (0, 0, 6_500));
        }
    }
}

#[test]
fn the_transfer_of_a_whole_balance_leaves_what_running_leases_have_used() {
    let mut bank = bank(6_500, Overage::Deny);
    for _ in 0..65 {
        let lease = bank.test.take(&[("usd", 100)]);
        bank.test.extended(lease, 1, used(&[("usd", 40)]));
    }
    bank.test.advance(60_000);
    bank.refuse(vec![transfer("acme", "other", "usd", 3_901)]);
    bank.commit(vec![transfer("acme", "other", "usd", 3_900)]);
    for _ in 0..2 {
        bank.test.tick();
        assert!(sums(&bank).0 >= 0);
    }
    assert_eq!(sums(&bank), (0, 0, 2_600));
}

#[test]
fn usage_above_the_hold_is_charged_by_the_rule_of_the_limit() {
    // (has, overage) -> (left, paid, uncollected)
    for (has, overage, left, paid, uncollected) in
        [(100, Overage::Debt, 30, 70, 0), (50, Overage::Debt, -20, 70, 0), (50, Overage::Deny, 0, 50, 20)]
    {
        let mut bank = bank(has, overage);
        let lease = bank.test.take(&[("usd", 40)]);
        let outcome = bank.test.extend(lease, 1, used(&[("usd", 70)]));
        let ExtendOutcome::Extended(extension) = outcome else { panic!("{outcome:?}") };
        assert!(!extension.above.is_empty());
        keep(&mut bank);
        bank.test.advance(60_000);
        bank.test.tick();
        assert_eq!(sums(&bank), (left, 0, paid), "{has} {overage:?}");
        let expected = (lease, 40, u64::try_from(paid).unwrap(), uncollected, SettleReason::Timeout, false);
        assert_eq!(settlements(&mut bank), [expected]);
        // The unpaid rest can be paid later.
        bank.commit(vec![issue("acme", "usd", 100)]);
        let late = bank.test.settle(lease, &[("usd", 10)]);
        assert_eq!(late.charges[0].cost, uncollected);
        assert_eq!(sums(&bank).2, i128::from(70));
    }
}

#[test]
fn usage_is_charged_from_an_overdraft_and_from_a_frozen_account() {
    let mut bank = Bank::new();
    bank.commit(vec![open_overdraft("acme")]);
    bank.test.put_active(credit("usd", "acme", 60, Overage::Deny));
    let lease = bank.test.take(&[("usd", 40)]);
    bank.test.extended(lease, 1, used(&[("usd", 50)]));
    bank.commit(vec![freeze("acme")]);
    bank.test.advance(60_000);
    bank.test.tick();
    assert_eq!(sums(&bank), (-50, 0, 50));
}

#[test]
fn an_account_is_not_closed_while_something_is_due() {
    let mut bank = bank(40, Overage::Deny);
    let lease = bank.test.take(&[("usd", 40)]);
    bank.test.extended(lease, 1, used(&[("usd", 40)]));
    bank.test.advance(60_000);
    // The write meets the due hold, and charges it first.
    bank.commit(vec![close("acme")]);
    assert_eq!(bank.available("revenue", "usd"), 40);
}

#[test]
fn a_renewed_hold_is_charged_at_its_new_end_with_its_highest_report() {
    let mut bank = bank(100, Overage::Debt);
    let lease = bank.test.take(&[("usd", 40)]);
    for number in 1..=5 {
        bank.test.advance(50_000);
        let report = [("usd", u64::from(number) * 4)];
        let asked = Asked { renew: true, used: &report, ..add(&[("usd", 2)]) };
        assert_eq!(bank.test.extended(lease, number, asked), 60_000);
        keep(&mut bank);
    }
    bank.test.extended(lease, 6, used(&[("usd", 1)]));
    assert_eq!(sums(&bank), (50, 50, 0));
    bank.test.advance(60_000);
    bank.test.tick();
    assert_eq!(sums(&bank), (80, 0, 20));
    assert_eq!(bank.test.extend(lease, 7, renew()), ExtendOutcome::LeaseExpired);
    // It stays paid when the lease is forgotten.
    bank.test.advance(24 * 3_600 * 1_000);
    for _ in 0..3 {
        bank.test.tick();
    }
    assert_eq!(bank.test.book.leases(), 0);
    assert_eq!(sums(&bank), (80, 0, 20));
}

#[test]
fn a_release_pays_what_was_reported() {
    let mut bank = bank(100, Overage::Debt);
    let lease = bank.test.take(&[("usd", 40)]);
    bank.test.extended(lease, 1, used(&[("usd", 15)]));
    assert!(matches!(bank.test.release(lease), CompleteOutcome::Completed(_)));
    assert_eq!(sums(&bank), (85, 0, 15));
}

#[test]
fn a_lease_that_runs_out_is_reported_once_and_completed_or_renewed_ones_are_not() {
    let mut bank = bank(100, Overage::Debt);
    bank.test.put_active(concurrency("slots", 5_000, 30));
    bank.test.put_active(rolling("rpm", 5_000, 600));
    let mut scan = TimeoutScan::default();
    let old = bank.test.take(&[("slots", 1)]);
    bank.test.advance(30_000);
    assert!(bank.test.book.timed_out(bank.test.now(), &mut scan).is_empty(), "{old} ran out before the first look");
    let lost = bank.test.take(&[("rpm", 9), ("slots", 2), ("usd", 5)]);
    let renewed = bank.test.take(&[("slots", 1)]);
    let completed = bank.test.take(&[("slots", 1)]);
    bank.test.take(&[("rpm", 1)]);
    bank.test.settle(completed, &[]);
    bank.test.advance(20_000);
    bank.test.extended(renewed, 1, renew());
    bank.test.advance(10_000);
    let found = bank.test.book.timed_out(bank.test.now(), &mut scan);
    let slots = bank.test.id("slots");
    let of =
        |lease, limits: &[_]| TimedOut { namespace: NamespaceId::DEFAULT, lease, job: None, limits: limits.into() };
    assert_eq!(found, [of(lost, &[(slots, 2)])]);
    assert!(bank.test.book.timed_out(bank.test.now(), &mut scan).is_empty());
    bank.test.advance(30_000);
    assert_eq!(bank.test.book.timed_out(bank.test.now(), &mut scan), [of(renewed, &[(slots, 1)])]);
    // More leases than one chunk of the scan, all found, none twice.
    let many: Vec<LeaseId> = (0..3_000).map(|_| bank.test.take(&[("slots", 1)])).collect();
    bank.test.advance(30_000);
    let mut found: Vec<LeaseId> = Vec::new();
    for _ in 0..3 {
        found.extend(bank.test.book.timed_out(bank.test.now(), &mut scan).iter().map(|found| found.lease));
    }
    found.sort_unstable();
    let mut expected = many;
    expected.sort_unstable();
    assert_eq!(found, expected);
}
