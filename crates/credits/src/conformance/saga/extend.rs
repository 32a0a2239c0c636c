//! Extensions of holds, and timeouts that pay.

use std::sync::Arc;

use earmark_admission::{
    Credits, EntryKind, EntryQuery, GrowAnswer, HoldAnswer, HoldState, ManualClock, RenewAnswer, WriteAnswer,
};
use earmark_core::{Actor, CreditShortage, LeaseId, OnTimeout, Overage, SettleReason, UnixMs, WriteError};

use super::faulty::{Faulty, Mode, When};
use super::process::{
    Fixture, HoldSpec, RenewSpec, START_MS, TestProcess, close, freeze, hold_of, issue, lease, limit, open,
    open_overdrawn, options, renewal, transfer, usage,
};
use crate::model::{EntryBody, EntryReason, LeaseKey};
use crate::store::Store;

/// The end of a lease that was extended, with nothing to say about its usage.
fn alive(after_ms: u64) -> RenewAnswer {
    RenewAnswer::Alive { ends_at: Some(UnixMs::new(START_MS + after_ms)), ignored: vec![], above: vec![] }
}

/// A hold of ten seconds.
const fn short(amount: u64) -> HoldSpec {
    HoldSpec { timeout_seconds: 10, ..hold_of("acme", amount) }
}

/// A process whose account `acme` has an amount.
async fn process_with(fixture: &Fixture, amount: u128) -> TestProcess {
    let process = fixture.process().await;
    process.write_next(vec![open("acme"), open("bob"), issue("acme", amount)]).await;
    process
}

/// The reasons, payments and actors of the settlements and returns of a lease, in order.
async fn settled(fixture: &Fixture, lease: LeaseId) -> Vec<(EntryReason, u64, String)> {
    let key = LeaseKey { namespace: fixture.namespace.clone(), lease };
    let mut entries = fixture.store.lease(key).await.expect("a store that answers");
    entries.sort_by_key(|stored| stored.number);
    let of = |actor: &Option<earmark_core::Actor>| actor.as_ref().map_or("", |actor| actor.as_str()).to_owned();
    let settled = entries.iter().filter_map(|stored| match &stored.entry.body {
        EntryBody::Settle(settlement) => Some((settlement.reason, settlement.paid, of(&settlement.actor))),
        EntryBody::Release { reason, actor, .. } => Some((*reason, 0, of(actor))),
        _ => None,
    });
    settled.collect()
}

/// A number has one effect, and the cost of a limit is that of all it holds.
pub async fn a_hold_grows_once_with_each_number(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let (process, other) = (process_with(&fixture, 1_000).await, fixture.process().await);
    let lease = process.holds(&[hold_of("acme", 100)]).await;
    for process in [&process, &other, &process] {
        assert_eq!(process.grow(lease, 1, &[hold_of("acme", 30)]).await, GrowAnswer::Held);
        assert_eq!(process.balance("acme").await, (870, 130));
    }
    assert_eq!(process.grow(lease, 1, &[hold_of("acme", 31)]).await, GrowAnswer::Differs);
    assert_eq!(process.grow(lease, 1, &[]).await, GrowAnswer::Differs);
    assert_eq!(process.renew(lease, RenewSpec { parts: &[hold_of("acme", 30)], ..renewal(1) }).await, alive(60_000));
    assert_eq!(other.grow(lease, 2, &[hold_of("acme", 20)]).await, GrowAnswer::Held);
    assert_eq!(other.renew(lease, RenewSpec { parts: &[hold_of("acme", 20)], ..renewal(2) }).await, alive(60_000));
    assert_eq!(other.grow(lease, 1, &[hold_of("acme", 7)]).await, GrowAnswer::Held, "an older number changes nothing");
    assert_eq!(other.grow(lease, 2, &[hold_of("acme", 7)]).await, GrowAnswer::Differs);
    assert_eq!(process.hold(lease, &[hold_of("acme", 100)]).await, HoldAnswer::Held, "the reserve has its answer");
    assert_eq!(process.balance("acme").await, (850, 150));
    let answer = process.settle(lease, &[]).await;
    assert_eq!((answer.paid, process.balance("acme").await), (150, (850, 0)), "a missing actual costs the whole hold");
    for number in [2, 3] {
        assert_eq!(process.grow(lease, number, &[hold_of("acme", 20)]).await, GrowAnswer::Ended);
        assert_eq!(other.renew(lease, renewal(number)).await, RenewAnswer::Ended);
    }
    assert_eq!(settled(&fixture, lease).await, [(EntryReason::Complete, 150, "system:earmark".to_owned())]);
    process.assert_balanced("main").await;
}

/// A growth is all or nothing, and a refused one may be tried again: the limits remember the refusal.
pub async fn a_growth_is_all_or_nothing(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let process = process_with(&fixture, 100).await;
    process.write_in("eu", vec![open("acme"), issue("acme", 10)]).await;
    let there = |amount| HoldSpec { name: "there", vault: "eu", ..hold_of("acme", amount) };
    let lease = process.holds(&[hold_of("acme", 50)]).await;
    let short = |key: &str| GrowAnswer::Refused { key: limit(key), why: CreditShortage::NotEnough };
    assert_eq!(process.grow(lease, 1, &[hold_of("acme", 20), there(11)]).await, short("there"));
    assert_eq!(process.grow(lease, 1, &[hold_of("acme", 51), there(1)]).await, short("acme"));
    assert_eq!(process.grow(lease, 1, &[hold_of("acme", u64::MAX)]).await, short("acme"));
    assert_eq!(process.balance("acme").await, (50, 50));
    assert_eq!(process.grow(lease, 1, &[there(10)]).await, GrowAnswer::Held, "a limit that the lease did not hold");
    assert_eq!(process.grow(lease, 2, &[hold_of("acme", 20), there(1)]).await, short("there"));
    process.write_next(vec![freeze("acme")]).await;
    let frozen = GrowAnswer::Refused { key: limit("acme"), why: CreditShortage::Frozen };
    assert_eq!(process.grow(lease, 2, &[hold_of("acme", 1)]).await, frozen);
    assert_eq!(process.renew(lease, RenewSpec { parts: &[there(10)], ..renewal(1) }).await, alive(60_000));
    assert_eq!(process.settle(lease, &[("acme", 1), ("there", 4)]).await.paid, 5);
    assert_eq!((process.balance("acme").await, process.balance_in("eu", "acme").await), ((99, 0), Some((6, 0, 0))));
    process.assert_balanced("main").await;
    process.assert_balanced("eu").await;
}

/// A lease without credit gets its first hold by an extension. If the limits refuse that, the lease holds nothing, and
/// it can still grow, be reserved, or end.
pub async fn a_growth_that_is_returned_can_be_held_again(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let (process, other) = (process_with(&fixture, 100).await, fixture.process().await);
    let parts = [hold_of("acme", 40)];
    for first in [None, Some(hold_of("acme", 10))] {
        let lease = lease();
        if let Some(first) = first {
            assert_eq!(process.hold(lease, &[first]).await, HoldAnswer::Held);
        }
        let held = first.map_or(0, |first| i128::from(first.amount));
        for process in [&process, &other, &process] {
            assert_eq!(process.grow(lease, 1, &parts).await, GrowAnswer::Held);
            assert_eq!(process.balance("acme").await, (60 - held, 40 + held));
            process.shrink(lease, 1, &parts).await;
            other.shrink(lease, 1, &parts).await;
            assert_eq!(process.balance("acme").await, (100 - held, held));
        }
        // A copy of the request returned the growth, and the limits accepted this one.
        assert_eq!(other.renew(lease, RenewSpec { parts: &parts, ..renewal(1) }).await, alive(60_000));
        process.shrink(lease, 1, &parts).await;
        assert_eq!(process.balance("acme").await, (60 - held, 40 + held), "what is confirmed stays");
        assert_eq!(process.settle(lease, &[("acme", 0)]).await.paid, 0);
        assert_eq!(process.balance("acme").await, (100, 0));
    }
    for is_reserved in [true, false] {
        let lease = lease();
        assert_eq!(process.grow(lease, 1, &parts).await, GrowAnswer::Held);
        process.shrink(lease, 1, &parts).await;
        let state = process.credits.holds(fixture.namespace.clone(), lease, Vec::new()).await;
        assert_eq!(state, Ok(HoldState::Unknown));
        if is_reserved {
            assert_eq!(other.hold(lease, &[hold_of("acme", 5)]).await, HoldAnswer::Held);
            assert_eq!(process.settle(lease, &[]).await.paid, 5);
        } else {
            assert!(!process.settle(lease, &[]).await.is_known);
            assert_eq!(other.grow(lease, 1, &parts).await, GrowAnswer::Ended);
            assert_eq!(other.hold(lease, &parts).await, HoldAnswer::Ended);
        }
    }
    assert_eq!(process.balance("acme").await, (95, 0));
    process.assert_balanced("main").await;
}

/// A number that is repeated answers the first end, and no end lies more than a day after the reserve.
pub async fn an_end_moves_with_each_number_and_not_beyond_a_day(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let (process, other) = (process_with(&fixture, 100).await, fixture.process().await);
    let lease = process.holds(&[short(10), HoldSpec { name: "b", ..short(10) }]).await;
    fixture.clock.advance_ms(9_000);
    for process in [&process, &other] {
        assert_eq!(process.renew(lease, renewal(1)).await, alive(69_000));
        fixture.clock.advance_ms(1_000);
    }
    assert_eq!(process.renew(lease, usage(2, &[])).await, alive(69_000), "without renew the end stays");
    let shorter = RenewSpec { timeout_seconds: Some(5), ..renewal(3) };
    assert_eq!(process.renew(lease, shorter).await, alive(69_000), "an end moves forward only");
    fixture.clock.advance_ms(55_000);
    assert_eq!(process.renew(lease, shorter).await, alive(69_000), "a repeated number moves nothing");
    let deleted = RenewSpec { timeout_seconds: None, ..renewal(4) };
    assert_eq!(process.renew(lease, deleted).await, alive(76_000), "a deleted limit: the hold's own ten seconds");
    let late = RenewSpec { timeout_seconds: Some(90_000), ..renewal(5) };
    assert_eq!(process.renew(lease, late).await, alive(86_400_000));
    assert_eq!(other.renew(lease, RenewSpec { number: 6, ..late }).await, alive(86_400_000));
    process.maintain().await;
    fixture.clock.advance_ms(86_400_000 - 66_000 - 1);
    process.maintain().await;
    assert_eq!(process.hold(lease, &[short(10)]).await, HoldAnswer::Held);
    assert_eq!(process.balance("acme").await, (80, 20));
    fixture.clock.advance_ms(1);
    assert_eq!(process.balance("acme").await, (100, 0), "nothing was reported as used");
    assert_eq!(process.renew(lease, RenewSpec { number: 7, ..late }).await, RenewAnswer::Ended);
    assert_eq!(process.grow(lease, 7, &[]).await, GrowAnswer::Ended);
    process.maintain().await;
    assert_eq!(process.history("main", "acme").await, 5, "issue, two holds, two releases: no entry of a renewal");
    process.assert_balanced("main").await;
}

/// A lease that completes pays at least what it reported.
pub async fn reported_usage_is_the_least_that_a_complete_costs(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let process = process_with(&fixture, 1_000).await;
    for (said, is_release, cost) in [(None, false, 100), (None, true, 30), (Some(20), false, 30), (Some(40), true, 40)]
    {
        let before = process.balance("revenue").await.0;
        let lease = process.holds(&[hold_of("acme", 100)]).await;
        let answer = process.renew(lease, usage(1, &[("acme", 30), ("none", 1)])).await;
        let ends_at = Some(UnixMs::new(START_MS + 60_000));
        assert_eq!(answer, RenewAnswer::Alive { ends_at, ignored: vec![limit("none")], above: vec![] });
        process.renew(lease, usage(2, &[("acme", 10)])).await;
        let said: Vec<(&str, u64)> = said.iter().map(|said| ("acme", *said)).collect();
        let answer = process.try_settle(lease, &said, is_release).await.expect("a store that answers");
        assert_eq!((answer.paid, process.balance("revenue").await.0 - before), (cost, i128::from(cost)));
        let is_below = said.iter().any(|(_, said)| *said < 30);
        assert_eq!(answer.raised, if is_below { vec![limit("acme")] } else { vec![] });
    }
    process.assert_balanced("main").await;
}

/// A caller died. Its hold pays what it had reported, and only the rest returns.
pub async fn a_hold_that_times_out_pays_what_was_used(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let (process, other) = (process_with(&fixture, 1_000).await, fixture.process().await);
    let lease = process.holds(&[short(100)]).await;
    process.renew(lease, usage(1, &[("acme", 60)])).await;
    fixture.clock.advance_ms(10_000);
    assert_eq!(process.balance("acme").await, (940, 60), "the usage stays held until its settlement");
    process.maintain().await;
    other.maintain().await;
    assert_eq!((process.balance("acme").await, process.balance("revenue").await), ((940, 0), (60, 0)));
    let timeout = (EntryReason::Timeout, 60, "system:earmark".to_owned());
    assert_eq!(settled(&fixture, lease).await, std::slice::from_ref(&timeout));
    let page = process
        .credits
        .entries(process.path("main", "acme"), EntryQuery::oldest_first(0, 9))
        .await
        .expect("a store that answers");
    let last = page.entries.last().expect("an entry");
    let is_told = matches!(&last.what, EntryKind::Settle { hold, paid: 60, reason: SettleReason::Timeout, .. }
        if hold.lease == lease && hold.actor.as_ref().is_some_and(|actor| actor.as_str() == Actor::ITSELF));
    assert!(is_told, "{last:?}");
    // A complete that arrives late pays the rest of its cost, and gets nothing back.
    let answer = other.settle(lease, &[("acme", 75)]).await;
    assert_eq!((answer.is_known, answer.paid, answer.debt), (true, 15, 0));
    assert_eq!(settled(&fixture, lease).await, [timeout, (EntryReason::Late, 15, "system:earmark".to_owned())]);
    let next = process.holds(&[short(100)]).await;
    process.renew(next, usage(1, &[("acme", 60)])).await;
    fixture.clock.advance_ms(10_000);
    assert_eq!(process.settle(next, &[("acme", 20)]).await.paid, 0);
    assert_eq!((process.balance("acme").await, process.balance("revenue").await), ((865, 0), (135, 0)));
    for lease in [lease, next] {
        assert_eq!(process.settle(lease, &[("acme", 500)]).await.paid, 0, "a lease is settled once");
        assert_eq!(process.grow(lease, 2, &[short(1)]).await, GrowAnswer::Ended);
    }
    process.assert_balanced("main").await;
}

/// A limit may charge the whole hold of a caller that died, growth included. None of it is spendable before.
pub async fn a_limit_may_charge_the_whole_hold_at_its_timeout(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let process = process_with(&fixture, 1_000).await;
    let hold = |amount| HoldSpec { on_timeout: OnTimeout::Charge, ..short(amount) };
    let (dies, returns) = (process.holds(&[hold(100)]).await, process.holds(&[hold(100)]).await);
    for lease in [dies, returns] {
        assert_eq!(process.grow(lease, 1, &[hold(50)]).await, GrowAnswer::Held);
    }
    process.shrink(returns, 1, &[hold(50)]).await;
    process.renew(dies, RenewSpec { parts: &[hold(50)], ..usage(1, &[("acme", 20)]) }).await;
    assert_eq!(process.balance("acme").await, (750, 250));
    fixture.clock.advance_ms(10_000);
    assert_eq!(process.balance("acme").await, (750, 250), "nothing returns");
    let sequence = process.last().await + 1;
    let refused = process.refuse(sequence, vec![transfer("acme", "bob", 751)]).await;
    assert_eq!(refused, WriteError::InsufficientCredit { operation: 0 });
    process.maintain().await;
    assert_eq!((process.balance("acme").await, process.balance("revenue").await), ((750, 0), (250, 0)));
    assert_eq!(settled(&fixture, dies).await, [(EntryReason::Timeout, 150, "system:earmark".to_owned())]);
    assert_eq!(process.settle(dies, &[("acme", 10)]).await.paid, 0, "nothing is refunded");
    assert_eq!(process.settle(returns, &[("acme", 110)]).await.paid, 10);
    let completes = process.holds(&[hold(100)]).await;
    assert_eq!(process.settle(completes, &[("acme", 10)]).await.paid, 10, "a complete in time pays its cost");
    process.assert_balanced("main").await;
}

/// Usage above the hold is charged at the timeout as a complete would: as debt, or as far as the balance goes.
pub async fn usage_above_the_hold_follows_the_rule_of_the_limit(store: Arc<dyn Store>) {
    for (overage, expected) in [(Overage::Debt, (-30, 130)), (Overage::Deny, (0, 100))] {
        let fixture = Fixture::new(&store);
        let process = process_with(&fixture, 100).await;
        let hold = HoldSpec { overage, ..short(40) };
        let (lease, plain) = (process.holds(&[hold]).await, process.holds(&[short(50)]).await);
        let answer = process.renew(lease, usage(1, &[("acme", 130)])).await;
        let ends_at = Some(UnixMs::new(START_MS + 10_000));
        assert_eq!(answer, RenewAnswer::Alive { ends_at, ignored: vec![], above: vec![limit("acme")] });
        fixture.clock.advance_ms(10_000);
        // The other hold is due too, and what it returns pays a part.
        process.maintain().await;
        process.maintain().await;
        assert_eq!(process.balance("acme").await, (expected.0, 0), "{overage:?}");
        assert_eq!(process.balance("revenue").await, (expected.1, 0), "{overage:?}");
        process.settle(plain, &[("acme", 0)]).await;
        process.assert_balanced("main").await;
    }
}

/// The holds of 65 callers that died are due at once, one more than a page of the sweep, and the owner moves its whole
/// balance in the same moment. The account may not owe, and never does.
pub async fn many_timeouts_against_a_transfer_leave_no_debt(store: Arc<dyn Store>) {
    const MANY: u64 = 65;
    let fixture = Fixture::new(&store);
    let (process, other) = (process_with(&fixture, u128::from(MANY) * 10).await, fixture.process().await);
    for _ in 0..MANY {
        let lease = process.holds(&[HoldSpec { overage: Overage::Deny, ..short(10) }]).await;
        process.renew(lease, usage(1, &[("acme", 6)])).await;
    }
    let (whole, returned) = (u128::from(MANY) * 10, u128::from(MANY) * 4);
    fixture.clock.advance_ms(10_000);
    let insufficient = WriteAnswer::Refused(WriteError::InsufficientCredit { operation: 0 });
    let all = process.try_write_as("all", 1, vec![transfer("acme", "bob", whole)]);
    let rest = other.try_write_as("rest", 1, vec![transfer("acme", "bob", returned)]);
    let look = async {
        for _ in 0..50 {
            let (available, held, _) = other.balance_in("main", "acme").await.expect("an account that is there");
            assert!(available >= 0 && held >= 0, "{available} and {held}");
            tokio::task::yield_now().await;
        }
    };
    let (all, rest, (), ()) = tokio::join!(all, rest, process.maintain(), look);
    assert_eq!(all.expect("a store that answers"), insufficient, "what was used is not spendable");
    assert!(matches!(rest, Ok(WriteAnswer::Committed(_))), "{rest:?}");
    process.maintain().await;
    let spent = i128::from(MANY) * 6;
    assert_eq!(process.balance("acme").await, (0, 0));
    assert_eq!((process.balance("revenue").await, process.balance("bob").await), ((spent, 0), (650 - spent, 0)));
    process.assert_balanced("main").await;
}

/// A sweep read a hold that was due, and stopped. Its end had been moved before the sweep committed: with the clock of
/// another process it was not due yet.
pub async fn a_sweep_does_not_end_a_hold_that_was_renewed(store: Arc<dyn Store>) {
    for when in [When::Before, When::After] {
        let fixture = Fixture::new(&store);
        let process = process_with(&fixture, 100).await;
        let lease = process.holds(&[short(40)]).await;
        let (clock, namespace) = (ManualClock::at(START_MS + 9_000), fixture.namespace.clone());
        let behind = Fixture { store: Arc::clone(&store), clock, namespace }.process().await;
        fixture.clock.advance_ms(10_000);
        let faulty = Faulty::with(Arc::clone(&store), true);
        let sweeper = Arc::new(fixture.process_on(Arc::clone(&faulty) as Arc<dyn Store>, options()).await);
        let due_call = calls_until_due(&faulty).await;
        faulty.inject(due_call, when, Mode::Stop);
        let sweep = tokio::spawn({
            let sweeper = Arc::clone(&sweeper);
            async move { sweeper.credits.maintain().await }
        });
        faulty.stopped().await;
        let renewed = behind.renew(lease, RenewSpec { used: &[("acme", 25)], ..renewal(1) }).await;
        assert_eq!(renewed, alive(69_000));
        faulty.repair();
        sweep.await.expect("no panic").expect("a store that answers");
        assert_eq!(process.balance("acme").await, (60, 40), "{when:?}");
        fixture.clock.advance_ms(59_000);
        process.maintain().await;
        assert_eq!((process.balance("acme").await, process.balance("revenue").await), ((75, 0), (25, 0)), "{when:?}");
        process.assert_balanced("main").await;
    }
}

/// The calls of a round of maintenance up to the list of holds that are due, measured where nothing is due.
async fn calls_until_due(faulty: &Arc<Faulty>) -> u64 {
    let store = Arc::clone(faulty) as Arc<dyn Store>;
    let idle = Fixture::new(&store).process().await;
    faulty.reset_calls();
    idle.maintain().await;
    faulty.calls()
}

/// Whichever comes first: a lease that was completed holds nothing that an extension added.
pub async fn an_extension_against_a_complete_leaves_nothing_held(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let (process, other) = (process_with(&fixture, 10_000).await, fixture.process().await);
    for round in 0..12 {
        let before = process.balance("revenue").await.0;
        let lease = lease();
        if round % 3 != 0 {
            assert_eq!(process.hold(lease, &[hold_of("acme", 100)]).await, HoldAnswer::Held);
        }
        // The same limit, or one that the lease did not hold.
        let name = if round % 2 == 0 { "acme" } else { "0-first" };
        let parts = [HoldSpec { name, ..hold_of("acme", 50) }];
        let extend = async {
            let grown = other.grow(lease, 1, &parts).await;
            let renewed = other.renew(lease, RenewSpec { parts: &parts, ..renewal(1) }).await;
            (grown, renewed)
        };
        let (settled, (grown, renewed)) = tokio::join!(process.settle(lease, &[]), extend);
        assert!(matches!(grown, GrowAnswer::Held | GrowAnswer::Ended), "{grown:?}");
        if grown == GrowAnswer::Ended {
            assert_eq!(renewed, RenewAnswer::Ended);
        }
        let (_, held) = process.balance("acme").await;
        let paid = process.balance("revenue").await.0 - before;
        assert_eq!(i128::from(settled.paid), paid);
        // A settlement that came between growing and renewing paid for the growth.
        match (grown, renewed) {
            (_, RenewAnswer::Ended) => assert_eq!(held, 0, "round {round}"),
            (_, RenewAnswer::Alive { .. }) => {
                assert!(round % 3 == 0 || paid == 150, "round {round} paid {paid}");
                process.settle(lease, &[]).await;
            }
            (grown, renewed) => panic!("{grown:?}, {renewed:?}"),
        }
        assert_eq!(process.balance("acme").await.1, 0, "round {round}");
    }
    process.assert_balanced("main").await;
}

/// An account with usage that is not settled yet cannot close.
pub async fn an_account_with_usage_to_settle_does_not_close(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let process = process_with(&fixture, 100).await;
    process.write_next(vec![open_overdrawn("carl")]).await;
    let lease = process.holds(&[short(100)]).await;
    process.renew(lease, usage(1, &[("acme", 100)])).await;
    fixture.clock.advance_ms(10_000);
    let sequence = process.last().await + 1;
    assert_eq!(process.refuse(sequence, vec![close("acme")]).await, WriteError::Conflict { operation: 0 });
    process.maintain().await;
    process.write_next(vec![close("acme")]).await;
    assert_eq!(process.balance("revenue").await, (100, 0));
    process.assert_balanced("main").await;
}
