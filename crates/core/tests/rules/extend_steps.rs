//! The steps of an extension whose limits another system enforces.

use earmark_core::{CreditShortage, ExtendOutcome, ExtendStep, ExternalParts, JournalRecord, Overage};

use crate::support::bank::{Bank, credit, issue, open};
use crate::support::snapshot::{restored, snapshot};
use crate::support::test_book::{Asked, add, concurrency};

fn bank() -> Bank {
    let mut bank = Bank::new();
    bank.commit(vec![open("acme"), issue("acme", "usd", 100)]);
    bank.test.put_active(credit("usd", "acme", 60, Overage::Debt));
    bank.test.put_active(credit("more", "acme", 60, Overage::Debt));
    bank.test.set_external(ExternalParts { limits: true, credit: false });
    bank
}

fn step<'a>(step: ExtendStep, asked: Asked<'a>) -> Asked<'a> {
    Asked { step, ..asked }
}

fn held(bank: &mut Bank) -> i128 {
    let bytes = snapshot(&mut bank.test.book);
    let mut copy = restored(&mut bank.test.book);
    assert_eq!(snapshot(&mut copy), bytes);
    bank.assert_balanced();
    bank.balance("acme", "usd").unwrap().held
}

#[test]
fn credit_grows_first_and_is_renewed_last() {
    let mut bank = bank();
    let lease = bank.test.take(&[("usd", 40)]);
    bank.test.advance(30_000);
    let grow = step(ExtendStep::Grow, add(&[("usd", 10), ("more", 5)]));
    for _ in 0..2 {
        assert_eq!(bank.test.extended(lease, 1, grow), 30_000);
        assert_eq!(held(&mut bank), 55);
    }
    assert_eq!(bank.test.extend(lease, 1, step(ExtendStep::Grow, add(&[]))), ExtendOutcome::NumberReused);
    // Only the growth that it names is confirmed.
    let other = Asked { renew: true, used: &[("usd", 45)], step: ExtendStep::Renew, ..Asked::default() };
    assert_eq!(bank.test.extend(lease, 1, other), ExtendOutcome::NumberReused);
    let renew = Asked { add: grow.add, ..other };
    assert_eq!(bank.test.extended(lease, 1, renew), 60_000);
    bank.test.advance(10_000);
    // A repeated step changes nothing.
    assert_eq!(bank.test.extended(lease, 1, renew), 50_000);
    assert_eq!(bank.test.extended(lease, 1, step(ExtendStep::Return, add(&[]))), 0);
    assert_eq!(held(&mut bank), 55);
    assert_eq!(bank.test.extended(lease, 1, grow), 50_000);
    // The system that enforces the limits decides about numbers, so there may be a gap here.
    assert_eq!(bank.test.extend(lease, 5, renew), ExtendOutcome::NumberDiffers { expected: 2 });
    assert_eq!(bank.test.extended(lease, 5, other), 60_000);
    assert_eq!(bank.test.extend(lease, 4, grow), ExtendOutcome::NumberDiffers { expected: 6 });
    bank.test.advance(60_000);
    for asked in [grow, renew, step(ExtendStep::Return, add(&[]))] {
        assert_eq!(bank.test.extend(lease, 6, asked), ExtendOutcome::LeaseExpired);
    }
    bank.test.tick();
    assert_eq!((held(&mut bank), bank.available("revenue", "usd")), (0, 45));
}

/// Growth that was returned left its limits behind, with an end of their own that could end the lease early.
#[test]
fn growth_that_the_limits_denied_is_returned_with_its_limits() {
    let mut bank = bank();
    let lease = bank.test.take(&[("usd", 40)]);
    let fresh = snapshot(&mut bank.test.book).len();
    let info = bank.test.info(lease);
    let grow = step(ExtendStep::Grow, add(&[("usd", 10), ("more", 5)]));
    for _ in 0..2 {
        bank.test.extended(lease, 1, grow);
        assert_eq!(held(&mut bank), 55);
        for _ in 0..2 {
            bank.test.extended(lease, 1, step(ExtendStep::Return, add(&[])));
            assert_eq!((held(&mut bank), bank.test.info(lease)), (40, info.clone()));
        }
    }
    assert!(snapshot(&mut bank.test.book).len() > fresh);
    bank.test.settle(lease, &[("usd", 7), ("more", 9)]);
    assert_eq!((held(&mut bank), bank.available("acme", "usd")), (0, 93));
}

/// A number with a gap that the limits refused blocked every later renewal of the lease.
#[test]
fn returned_growth_leaves_the_last_number_and_its_answer() {
    let mut bank = bank();
    let lease = bank.test.take(&[("usd", 40)]);
    let grow = step(ExtendStep::Grow, add(&[("usd", 10)]));
    let renew = Asked { renew: true, ..step(ExtendStep::Renew, add(&[("usd", 10)])) };
    bank.test.extended(lease, 1, grow);
    let first = bank.test.extend(lease, 1, renew);
    for number in [500, 2] {
        bank.test.extended(lease, number, grow);
        assert_eq!(held(&mut bank), 60);
        bank.test.extended(lease, number, step(ExtendStep::Return, add(&[])));
        assert_eq!(held(&mut bank), 50);
        assert_eq!(bank.test.extend(lease, 1, renew), first);
    }
    bank.test.extended(lease, 2, grow);
    bank.test.extended(lease, 2, renew);
    assert_eq!((held(&mut bank), bank.test.info(lease).unwrap().extensions), (60, 2));
}

#[test]
fn what_is_returned_is_in_the_journal_as_it_was_held() {
    let mut bank = bank();
    let lease = bank.test.take(&[("usd", 40)]);
    _ = bank.test.book.drain_journal();
    bank.test.extended(lease, 1, step(ExtendStep::Grow, add(&[("usd", 10)])));
    bank.test.extended(lease, 1, step(ExtendStep::Return, add(&[])));
    let records = bank.test.book.drain_journal();
    let [JournalRecord::Hold(grown), JournalRecord::Release(returned)] = records.as_slice() else {
        panic!("{records:?}")
    };
    assert_eq!((grown.amount, grown.extension, returned.amount), (10, 1, 10));
}

/// The system that enforces the limits remembers the refusal, so the Book must not answer for it later.
#[test]
fn a_shortage_of_credit_leaves_the_number_of_a_growth_free() {
    let mut bank = bank();
    let lease = bank.test.take(&[("usd", 40)]);
    let grow = step(ExtendStep::Grow, add(&[("usd", 61)]));
    let before = snapshot(&mut bank.test.book);
    assert!(matches!(bank.test.extend(lease, 1, grow), ExtendOutcome::InsufficientCredit(_)));
    assert_eq!(snapshot(&mut bank.test.book), before);
    bank.commit(vec![issue("acme", "usd", 100)]);
    bank.test.extended(lease, 1, grow);
}

#[test]
fn limits_that_another_system_enforces_are_not_extended_here() {
    let mut bank = bank();
    bank.test.put_active(concurrency("calls", 1, 10));
    let lease = bank.test.take(&[("usd", 40)]);
    assert_eq!(bank.test.extend(lease, 1, add(&[("calls", 1)])), ExtendOutcome::LimitsExternal);
    bank.test.extended(lease, 1, add(&[("usd", 1)]));
}

#[test]
fn credit_that_another_store_holds_is_registered_and_not_held() {
    let mut bank = bank();
    bank.test.set_external(ExternalParts { limits: false, credit: true });
    bank.test.put_active(concurrency("calls", 2, 10));
    let lease = bank.test.take(&[("usd", 40), ("calls", 1)]);
    bank.test.advance(5_000);
    let asked = Asked { renew: true, used: &[("usd", 60)], ..add(&[("usd", 10), ("more", 900)]) };
    assert_eq!(bank.test.extended(lease, 1, asked), 10_000);
    assert_eq!(held(&mut bank), 0);
    let info = bank.test.info(lease).unwrap();
    let amounts: Vec<u64> = info.requirements.iter().map(|(_, amount)| *amount).collect();
    assert_eq!((amounts, info.used), (vec![50, 900, 1], vec![(bank.test.id("usd"), 60)]));
}

/// The credit store refuses an extension: the Book answers what comes first, or remembers the refusal.
#[test]
fn an_extension_without_credit_elsewhere_is_judged_and_denied() {
    let mut bank = bank();
    bank.test.set_external(ExternalParts { limits: false, credit: true });
    bank.test.put_active(concurrency("calls", 2, 10));
    let lease = bank.test.take(&[("usd", 40), ("calls", 1)]);
    let more = add(&[("usd", 10), ("calls", 1)]);
    // A judgement changes nothing, and the number stays free.
    bank.test.extended(lease, 1, step(ExtendStep::Judge, more));
    let gap = ExtendOutcome::NumberDiffers { expected: 1 };
    assert_eq!(bank.test.extend(lease, 2, step(ExtendStep::Judge, more)), gap);
    assert_eq!(bank.test.extend(lease, 2, step(ExtendStep::Deny, more)), gap);
    let steps = [
        (ExtendStep::Deny, CreditShortage::NotEnough),
        (ExtendStep::DenyFrozen, CreditShortage::Frozen),
        (ExtendStep::DenyClosed, CreditShortage::Closed),
    ];
    for (number, (how, why)) in (1..).zip(steps) {
        for how in [how, ExtendStep::Whole, ExtendStep::Judge] {
            let outcome = bank.test.extend(lease, number, step(how, more));
            let ExtendOutcome::InsufficientCredit(denial) = outcome else { panic!("{outcome:?}") };
            assert_eq!((denial.requirement, denial.why), (0, why));
        }
        assert_eq!(bank.test.info(lease).unwrap().requirements.len(), 2);
    }
    // A limit without room comes first.
    let outcome = bank.test.extend(lease, 4, step(ExtendStep::Deny, add(&[("usd", 10), ("calls", 2)])));
    assert!(matches!(outcome, ExtendOutcome::Denied(_)), "{outcome:?}");
    bank.test.extended(lease, 5, more);
    assert_eq!(held(&mut bank), 0);
}
