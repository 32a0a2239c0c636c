//! The first credit of a lease whose limits another system enforces comes with an extension.

use earmark_core::{
    CompleteOutcome, Config, ExtendOutcome, ExtendStep, ExternalParts, Kind, LeaseId, LeaseState, OnTimeout, Overage,
    QuotaKind, UnixMs,
};

use crate::support::bank::{Bank, credit, issue, open};
use crate::support::snapshot::{restored, snapshot};
use crate::support::test_book::{Asked, add};

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

fn bank_with(config: Config, on_timeout: OnTimeout) -> Bank {
    let mut bank = Bank::with(config);
    bank.commit(vec![open("acme"), issue("acme", "usd", 100)]);
    let mut definition = credit("usd", "acme", 60, Overage::Debt);
    if let Kind::Credit(terms) = &mut definition.kind {
        terms.on_timeout = on_timeout;
    }
    bank.test.put_active(definition);
    bank.test.set_external(ExternalParts { limits: true, credit: false });
    bank
}

fn bank() -> Bank {
    bank_with(Config::default(), OnTimeout::Release)
}

/// The first growth of a lease that the other system reserved `ago_ms` before.
fn begin(bank: &Bank, ago_ms: u64) -> Asked<'static> {
    let reserved_at = UnixMs::new(bank.test.now().get() - ago_ms);
    Asked { step: ExtendStep::Begin { reserved_at }, ..add(&[("usd", 40)]) }
}

fn confirm() -> Asked<'static> {
    Asked { renew: true, step: ExtendStep::Renew, ..add(&[("usd", 40)]) }
}

fn give_back() -> Asked<'static> {
    Asked { step: ExtendStep::Return, ..Asked::default() }
}

/// Available and held credit of `acme`, and the balance of `revenue`. The Book is the same after a restore.
fn sums(bank: &mut Bank) -> (i128, i128, i128) {
    let bytes = snapshot(&mut bank.test.book);
    assert_eq!(snapshot(&mut restored(&mut bank.test.book)), bytes);
    bank.assert_balanced();
    let acme = bank.balance("acme", "usd").unwrap();
    (acme.available, acme.held, bank.available("revenue", "usd"))
}

fn expires(bank: &mut Bank, lease: LeaseId, asked: Asked<'_>) {
    assert_eq!(bank.test.extend(lease, 3, asked), ExtendOutcome::LeaseExpired);
    assert_eq!(sums(bank), (100, 0, 0));
}

#[test]
fn the_first_growth_of_a_lease_makes_its_record() {
    let mut bank = bank();
    let lease = bank.test.lease();
    let first = begin(&bank, 0);
    assert_eq!(bank.test.extend(lease, 3, Asked { step: ExtendStep::Grow, ..first }), ExtendOutcome::LeaseExpired);
    for _ in 0..2 {
        assert_eq!(bank.test.extended(lease, 3, first), 60_000);
        assert_eq!(sums(&mut bank), (60, 40, 0));
    }
    let other = Asked { add: &[("usd", 41)], ..first };
    assert_eq!(bank.test.extend(lease, 3, other), ExtendOutcome::NumberReused);
    bank.test.advance(10_000);
    assert_eq!(bank.test.extended(lease, 3, confirm()), 60_000);
    assert_eq!(bank.test.info(lease).unwrap().extensions, 3);
    // The steps of the next extension are those of any lease with credit.
    assert_eq!(bank.test.extended(lease, 4, Asked { step: ExtendStep::Grow, ..first }), 60_000);
    assert_eq!(bank.test.extended(lease, 4, give_back()), 60_000);
    assert_eq!((sums(&mut bank), bank.test.state(lease)), ((60, 40, 0), Some(LeaseState::Live)));
    bank.test.settle(lease, &[("usd", 25)]);
    assert_eq!(sums(&mut bank), (75, 0, 25));
    assert_eq!(bank.test.extend(lease, 5, begin(&bank, 0)), ExtendOutcome::LeaseExpired);
}

#[test]
fn a_first_growth_that_is_returned_leaves_nothing_of_the_lease() {
    let mut bank = bank();
    let lease = bank.test.lease();
    let before = bank.test.book.live_leases(bank.test.now());
    for number in [1, 1, 2] {
        let first = begin(&bank, 0);
        bank.test.extended(lease, number, first);
        assert_eq!(bank.test.book.live_leases(bank.test.now()), before + 1);
        assert_eq!(bank.test.extended(lease, number, give_back()), 0);
        assert_eq!((sums(&mut bank), bank.test.info(lease)), ((100, 0, 0), None));
        assert_eq!(bank.test.book.live_leases(bank.test.now()), before);
        assert_eq!(bank.test.extend(lease, number, give_back()), ExtendOutcome::LeaseExpired);
    }
    let older = bank.test.lease_from(UnixMs::new(bank.test.now().get() - 1_000));
    let first = begin(&bank, 0);
    bank.test.extended(older, 1, first);
    bank.test.extended(lease, 1, first);
    bank.test.settle(lease, &[("usd", 40)]);
    assert_eq!(sums(&mut bank), (20, 40, 40));
}

/// A lease that was completed gets no hold by a late copy of an extension.
#[test]
fn a_lease_that_has_ended_is_not_begun() {
    let mut bank = bank();
    let lease = bank.test.lease();
    assert_eq!(bank.test.complete(lease, &[("usd", 7)]), CompleteOutcome::Marked);
    let first = begin(&bank, 0);
    expires(&mut bank, lease, first);
    let fresh = bank.test.lease();
    bank.test.set_external(ExternalParts::default());
    expires(&mut bank, fresh, first);
}

/// The stream of another system may be older than all leases that this Book remembers.
#[test]
fn a_lease_that_is_older_than_the_retention_may_begin() {
    let mut bank = bank();
    let old = bank.test.lease();
    let other = bank.test.take(&[("usd", 1)]);
    bank.test.settle(other, &[("usd", 0)]);
    let ms = 2 * Config::default().retention_ms;
    bank.test.advance(ms);
    while bank.test.book.is_due(bank.test.now()) {
        bank.test.tick();
    }
    assert!(old.time() < bank.test.book.forgotten_before());
    let first = begin(&bank, ms);
    bank.test.extended(old, 1, first);
    bank.test.extended(old, 1, confirm());
    assert_eq!(sums(&mut bank), (60, 40, 0));
    bank.test.settle(old, &[("usd", 1)]);
    assert_eq!(sums(&mut bank), (99, 0, 1));
}

#[test]
fn the_end_of_a_first_hold_is_counted_from_the_reserve() {
    let mut bank = bank();
    let lease = bank.test.lease();
    let first = begin(&bank, DAY_MS - 45_000);
    assert_eq!(bank.test.extended(lease, 1, first), 60_000);
    bank.test.advance(20_000);
    // The latest end is in 25 seconds. It never moves back.
    assert_eq!(bank.test.extended(lease, 1, confirm()), 40_000);
    assert_eq!(
        bank.test.extended(lease, 2, Asked { renew: true, step: ExtendStep::Renew, ..Asked::default() }),
        40_000
    );
    sums(&mut bank);
}

/// Until the limits have accepted the extension, nobody is charged for it.
#[test]
fn only_a_confirmed_first_hold_is_charged_by_its_timeout() {
    for is_confirmed in [false, true] {
        let mut bank = bank_with(Config::default(), OnTimeout::Charge);
        let lease = bank.test.lease();
        let first = begin(&bank, 0);
        bank.test.extended(lease, 1, first);
        if is_confirmed {
            bank.test.extended(lease, 1, confirm());
        }
        let cost = if is_confirmed { 40 } else { 0 };
        bank.test.advance(60_000);
        assert_eq!(sums(&mut bank), (100 - cost, cost, 0));
        bank.test.tick();
        assert_eq!(sums(&mut bank), (100 - cost, 0, cost));
    }
}

#[test]
fn a_first_growth_needs_room_for_a_lease() {
    let mut bank = bank_with(Config { leases_max: 1, ..Config::default() }, OnTimeout::Release);
    let (one, other) = (bank.test.lease(), bank.test.lease());
    let first = begin(&bank, 0);
    bank.test.extended(one, 1, first);
    let outcome = bank.test.extend(other, 1, first);
    assert!(matches!(outcome, ExtendOutcome::QuotaExceeded { kind: QuotaKind::Leases, .. }), "{outcome:?}");
    bank.test.extended(one, 1, give_back());
    bank.test.extended(other, 1, first);
    assert_eq!(sums(&mut bank), (60, 40, 0));
}
