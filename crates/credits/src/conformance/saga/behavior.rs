//! Behavior that callers rely on.

use std::sync::Arc;
use std::time::Duration;

use earmark_admission::{BackendError, Clock, Credits, HoldAnswer, HoldState, WriteAnswer};
use earmark_core::{CreditShortage, GrantTerms, Overage, WriteError};

use super::faulty::{Faulty, Mode, When};
use super::many::begin_saga;
use super::process::{
    Fixture, HoldSpec, TestProcess, close, freeze, hold_of, issue, lease, limit, open, options, retire, retry_until_ok,
    short_deadline, transfer, usd,
};
use crate::coin_selection::SPLIT;
use crate::id::{GateId, OwnerId, ReservationId};
use crate::model::{AccountChange, AssetKey, Entry, EntryBody, Plan, Posting, Record, SagaToken, TotalsChange};
use crate::saga::Options;
use crate::store::{Change, StaleOwners, Store};

/// A day, in milliseconds.
const DAY_MS: u64 = 86_400_000;
/// The call that decides the first write of a client: survey, client count, record, reserve, decide.
const DECISION: u64 = 5;

type StoppedCall = tokio::task::JoinHandle<Result<WriteAnswer, BackendError>>;

/// A process that is stopped at a call, and its request.
async fn stopped(
    fixture: &Fixture,
    when: When,
    call: u64,
    sequence: u64,
    operations: Vec<earmark_core::Operation>,
) -> (Arc<Faulty>, StoppedCall) {
    let faulty = Faulty::new(Arc::clone(&fixture.store));
    let process = fixture.process_on(Arc::clone(&faulty) as Arc<dyn Store>, options()).await;
    faulty.inject(call, when, Mode::Stop);
    let act = tokio::spawn(async move { process.try_write_as("other", sequence, operations).await });
    faulty.stopped().await;
    (faulty, act)
}

/// Wakes a stopped process after a moment and returns its answer.
async fn wake(faulty: &Faulty, act: StoppedCall) -> WriteAnswer {
    tokio::time::sleep(Duration::from_millis(60)).await;
    faulty.repair();
    act.await.expect("no panic").expect("a store that answers")
}

/// Entries, and so their answers, are kept for good.
pub async fn the_same_write_a_day_later_has_the_same_receipt(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let process = fixture.process().await;
    let operations = || vec![open("acme"), issue("acme", 100)];
    let first = process.commit(1, operations()).await;
    process.commit(2, vec![issue("acme", 1)]).await;
    fixture.clock.advance_ms(DAY_MS);
    assert_eq!(process.commit(1, operations()).await, first);
    let next = fixture.process().await;
    assert_eq!(next.commit(1, operations()).await, first);
    assert_eq!((next.balance("acme").await, next.last().await), ((101, 0), 2));
    assert_eq!((first.log_index, first.sequence, first.actor.as_str()), (1, Some(1), "system:test"));
}

/// One sequence, one content.
pub async fn another_content_under_a_number_is_refused(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let process = fixture.process().await;
    process.commit(1, vec![open("acme"), issue("acme", 100)]).await;
    let reused = WriteError::SequenceReused { last_committed_sequence: 1 };
    assert_eq!(process.refuse(1, vec![open("acme"), issue("acme", 101)]).await, reused);
    assert_eq!(process.refuse(3, vec![]).await, WriteError::SequenceGap { last_committed_sequence: 1 });
    assert_eq!(process.refuse(0, vec![]).await.code(), "INVALID");
    assert_eq!(process.refuse(2, vec![open("acme")]).await, WriteError::Conflict { operation: 0 });
    assert_eq!(process.balance("acme").await, (100, 0));
}

/// A refusal is final for its lease.
pub async fn a_refused_hold_stays_refused(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let (process, other) = (fixture.process().await, fixture.process().await);
    process.write_next(vec![open("acme"), issue("acme", 10)]).await;
    let lease = lease();
    let refused = HoldAnswer::Refused { key: limit("acme"), why: CreditShortage::NotEnough };
    assert_eq!(process.hold(lease, &[hold_of("acme", 11)]).await, refused);
    process.write_next(vec![issue("acme", 100)]).await;
    assert_eq!(process.hold(lease, &[hold_of("acme", 11)]).await, refused);
    assert_eq!(other.hold(lease, &[hold_of("acme", 11)]).await, refused);
    let state = process.credits.holds(fixture.namespace.clone(), lease, Vec::new()).await;
    let why = CreditShortage::NotEnough;
    assert_eq!(state, Ok(HoldState::Refused { key: limit("acme"), why }));
    assert!(!process.settle(lease, &[]).await.is_known);
    assert_eq!(process.balance("acme").await, (110, 0));
}

/// A transaction has one vault, but a lease may span several.
pub async fn a_hold_of_several_vaults_is_all_or_nothing(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let process = fixture.process().await;
    process.write_next(vec![open("acme"), issue("acme", 100)]).await;
    process.write_in("eu", vec![open("acme"), issue("acme", 10)]).await;
    let there = |amount| HoldSpec { name: "there", vault: "eu", ..hold_of("acme", amount) };
    let why = CreditShortage::NotEnough;
    let refused = HoldAnswer::Refused { key: limit("there"), why };
    assert_eq!(process.hold(lease(), &[hold_of("acme", 50), there(11)]).await, refused);
    assert_eq!((process.balance("acme").await, process.balance_in("eu", "acme").await), ((100, 0), Some((10, 0, 0))));
    let lease = process.holds(&[hold_of("acme", 50), there(10)]).await;
    assert_eq!((process.balance("acme").await, process.balance_in("eu", "acme").await), ((50, 50), Some((0, 10, 0))));
    let answer = process.settle(lease, &[("acme", 20), ("nothing", 1)]).await;
    assert_eq!((answer.paid, answer.debt, answer.ignored), (30, 0, vec![limit("nothing")]));
    assert_eq!((process.balance("acme").await, process.balance("revenue").await), ((80, 0), (20, 0)));
    assert_eq!(process.balance_in("eu", "revenue").await, Some((10, 0, 0)));
    process.assert_balanced("main").await;
    process.assert_balanced("eu").await;
}

/// Whichever comes first, the lease pays once.
pub async fn a_hold_that_ran_out_against_its_settlement(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let (process, other) = (fixture.process().await, fixture.process().await);
    process.write_next(vec![open("acme"), issue("acme", 100_000)]).await;
    let mut paid = 0;
    for round in 0..12 {
        let hold = HoldSpec { timeout_seconds: 10, overage: Overage::Deny, ..hold_of("acme", 300) };
        let lease = process.holds(&[hold]).await;
        // Just before the timeout, then just after it.
        fixture.clock.advance_ms(if round % 2 == 0 { 9_999 } else { 10_000 });
        let (answer, ()) = tokio::join!(process.settle(lease, &[("acme", 200)]), async {
            fixture.clock.advance_ms(1);
            other.maintain().await;
        });
        assert_eq!((answer.is_known, answer.paid, answer.uncollected), (true, 200, 0));
        paid += 200;
        assert_eq!(process.hold(lease, &[hold]).await, HoldAnswer::Ended);
        assert_eq!((process.balance("acme").await, process.balance("revenue").await), ((100_000 - paid, 0), (paid, 0)));
    }
    process.assert_balanced("main").await;
}

/// A reserve that arrives after its complete must not hold credit.
pub async fn a_lease_that_was_settled_first_holds_nothing(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let (process, other) = (fixture.process().await, fixture.process().await);
    process.write_next(vec![open("acme"), issue("acme", 100)]).await;
    let early = lease();
    assert!(!process.settle(early, &[]).await.is_known);
    assert_eq!(other.hold(early, &[hold_of("acme", 1)]).await, HoldAnswer::Ended);
    assert_eq!(process.credits.holds(fixture.namespace.clone(), early, Vec::new()).await, Ok(HoldState::Ended));
    // Concurrently, the lease is held and settled, or neither.
    for _ in 0..10 {
        let (before, both) = (process.balance("revenue").await.0, lease());
        let holds = [hold_of("acme", 1)];
        let (hold, settle) = tokio::join!(process.hold(both, &holds), other.settle(both, &[]));
        let paid = process.balance("revenue").await.0 - before;
        match hold {
            HoldAnswer::Held => assert_eq!((settle.is_known, settle.paid, paid), (true, 1, 1)),
            HoldAnswer::Ended => assert_eq!(paid, i128::from(settle.paid)),
            HoldAnswer::Refused { .. } => panic!("{hold:?}"),
        }
    }
    assert_eq!(process.balance("acme").await.1, 0);
}

/// A read of a lease read postings before entries. A copy of a hold that committed in between was told that its lease
/// had ended.
pub async fn a_lease_that_is_looked_at_while_it_is_held_has_not_ended(store: Arc<dyn Store>) {
    for is_settled in [false, true] {
        let fixture = Fixture::new(&store);
        let process = fixture.process().await;
        process.write_next(vec![open("acme"), issue("acme", 100)]).await;
        let (lease, namespace) = (lease(), fixture.namespace.clone());
        if is_settled {
            assert_eq!(process.hold(lease, &[hold_of("acme", 10)]).await, HoldAnswer::Held);
        }
        let faulty = Faulty::new(Arc::clone(&store));
        let other = fixture.process_on(Arc::clone(&faulty) as Arc<dyn Store>, options()).await;
        faulty.inject(1, When::After, Mode::Stop);
        let look = tokio::spawn(async move { other.credits.holds(namespace, lease, Vec::new()).await });
        faulty.stopped().await;
        if is_settled {
            process.settle(lease, &[]).await;
        } else {
            assert_eq!(process.hold(lease, &[hold_of("acme", 10)]).await, HoldAnswer::Held);
        }
        faulty.repair();
        let state = look.await.expect("no panic").expect("a store that answers");
        let allowed =
            if is_settled { [HoldState::Held, HoldState::Ended] } else { [HoldState::Unknown, HoldState::Held] };
        assert!(allowed.contains(&state), "{state:?}");
    }
}

/// Concurrent calls of one tenant seldom collide.
pub async fn a_deposit_is_split_and_change_is_one_posting(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let process = fixture.process().await;
    process.write_next(vec![open("acme"), open("bob"), issue("acme", 1_000_000)]).await;
    assert_eq!(fixture.postings("acme").await, SPLIT);
    process.write_next(vec![transfer("acme", "bob", 10_000)]).await;
    assert_eq!((fixture.postings("acme").await, fixture.postings("bob").await), (SPLIT, SPLIT));
    process.write_next(vec![transfer("acme", "bob", 10_000)]).await;
    assert_eq!((fixture.postings("acme").await, fixture.postings("bob").await), (SPLIT, SPLIT + 1));
    process.holds(&[hold_of("acme", 1_000)]).await;
    assert_eq!((fixture.postings("acme").await, process.balance("acme").await), (SPLIT, (979_000, 1_000)));
    process.write_next(vec![retire("acme", 979_000)]).await;
    assert_eq!(fixture.postings("acme").await, 0);
}

/// Under steady traffic the postings of payer and payee stay bounded.
pub async fn small_postings_do_not_pile_up(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let process = fixture.process().await;
    process.write_next(vec![open("acme"), issue("acme", 1_000_000)]).await;
    let mut most = (0, 0);
    for _ in 0..30 {
        let call = async || {
            let lease = process.holds(&[hold_of("acme", 10)]).await;
            process.settle(lease, &[("acme", 7)]).await;
        };
        tokio::join!(call(), call(), call(), call(), call(), call(), call(), call());
        let now = (fixture.postings("acme").await, fixture.postings("revenue").await);
        most = (most.0.max(now.0), most.1.max(now.1));
    }
    assert!(most.0 <= 96, "{most:?}");
    assert!(most.1 <= 96, "{most:?}");
    assert_eq!(process.balance("revenue").await, (30 * 8 * 7, 0));
    process.assert_balanced("main").await;
}

/// Another writer may have split the account into many postings.
pub async fn thousands_of_small_postings_are_spent(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let process = fixture.process().await;
    process.write_next(vec![open("acme"), open("bob")]).await;
    for _ in 0..6 {
        issue_in_ones(&fixture, "acme", 500).await;
    }
    assert_eq!(fixture.postings("acme").await, 3_000);
    process.write_next(vec![transfer("acme", "bob", 2_500)]).await;
    assert_eq!((process.balance("acme").await, process.balance("bob").await), ((500, 0), (2_500, 0)));
    process.assert_balanced("main").await;
}

/// Issues an amount in postings of 1.
pub(super) async fn issue_in_ones(fixture: &Fixture, name: &str, count: u16) {
    let rid = ReservationId(ulid::Ulid::generate().0);
    let token = SagaToken { gate: GateId(rid.0), rid, owner: OwnerId(1) };
    let account = fixture.account(name);
    let posting = |place| Posting {
        id: rid.posting(place),
        account: account.clone(),
        asset: usd(),
        amount: 1,
        terms: GrantTerms::PLAIN,
        hold: None,
        plan: None,
    };
    let (amount, held) = (i128::from(count), 0);
    let change = AccountChange { account: account.account.clone(), asset: usd(), amount, held };
    let at = earmark_admission::Clock::now(&*fixture.clock);
    let entry = Entry { home: fixture.home(), at, body: EntryBody::Ended { lease: lease() }, changes: vec![change] };
    let asset = AssetKey { home: fixture.home(), asset: usd() };
    let plan = Arc::new(Plan {
        outputs: (0..count).map(posting).collect(),
        entries: vec![entry],
        totals: vec![TotalsChange { asset, issued: amount, retired: 0, expired: 0 }],
        ..Plan::default()
    });
    let record = Record { token, lease: None, begun_at: at.log, plan };
    assert_eq!(fixture.store.commit(Arc::new(record)).await, Ok(true));
}

/// For a tenant with thirty thousand holds and no balance, every refused call and every overrun added up all holds. Its
/// own calls took a sixth of a second, and those of all others forty times as long as before.
pub async fn what_is_held_is_not_counted_for_who_is_refused_or_pays_more(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let faulty = Faulty::new(Arc::clone(&store));
    let process = fixture.process_on(Arc::clone(&faulty) as Arc<dyn Store>, options()).await;
    process.write_next(vec![open("acme"), issue("acme", 100)]).await;
    let lease = process.holds(&[hold_of("acme", 40)]).await;
    process.holds(&[hold_of("acme", 40)]).await;
    let refused = process.hold(self::lease(), &[hold_of("acme", 30)]).await;
    assert!(matches!(refused, HoldAnswer::Refused { .. }), "{refused:?}");
    let refused = process.refuse(2, vec![retire("acme", 30)]).await;
    assert_eq!(refused, WriteError::InsufficientCredit { operation: 0 });
    process.settle(lease, &[("acme", 55)]).await;
    assert_eq!(faulty.funds_reads(), 0);
    assert_eq!(process.balance("acme").await, (5, 40));
    assert_eq!(faulty.funds_reads(), 1);
}

/// A saga that has not decided when the account freezes is refused.
pub async fn an_account_is_frozen_in_the_middle_of_a_saga(store: Arc<dyn Store>) {
    for (when, expected) in [(When::Before, Err("ACCOUNT_FROZEN")), (When::After, Ok(()))] {
        let fixture = Fixture::new(&store);
        let process = fixture.process().await;
        process.write_next(vec![open("acme"), open("bob"), issue("acme", 100)]).await;
        let (faulty, act) = stopped(&fixture, when, DECISION, 1, vec![transfer("acme", "bob", 40)]).await;
        process.write_next(vec![freeze("acme")]).await;
        faulty.repair();
        let reply = act.await.expect("no panic").expect("a store that answers");
        let reply = match &reply {
            WriteAnswer::Committed(_) => Ok(()),
            WriteAnswer::Refused(error) => Err(error.code()),
        };
        assert_eq!(reply, expected, "{when:?}");
        let moved = if expected.is_ok() { 40 } else { 0 };
        assert_eq!((process.balance("acme").await, process.balance("bob").await), ((100 - moved, 0), (moved, 0)));
        process.assert_balanced("main").await;
    }
}

/// The account closes before the older saga decides, and the saga is refused.
pub async fn an_account_closes_against_a_saga_that_names_it(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let process = fixture.process().await;
    process.write_next(vec![open("acme"), issue("revenue", 1)]).await;
    // An issue reserves nothing, so it decides one call earlier.
    let (faulty, act) = stopped(&fixture, When::Before, DECISION - 1, 1, vec![issue("acme", 5)]).await;
    let (closed, reply) = tokio::join!(process.write_next(vec![close("acme")]), wake(&faulty, act));
    assert_eq!(closed.sequence, Some(2));
    assert_eq!(reply, WriteAnswer::Refused(WriteError::AccountClosed { operation: 0 }));
    assert_eq!(process.balance("acme").await, (0, 0));
    process.assert_balanced("main").await;
}

/// The saga has decided, so the account is paid and does not close.
pub async fn an_account_that_is_paid_while_it_closes_does_not_close(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let process = fixture.process().await;
    process.write_next(vec![open("acme"), issue("revenue", 1)]).await;
    let (faulty, act) = stopped(&fixture, When::After, DECISION - 1, 1, vec![issue("acme", 5)]).await;
    let (refused, reply) = tokio::join!(process.refuse(2, vec![close("acme")]), wake(&faulty, act));
    assert_eq!(refused, WriteError::Conflict { operation: 0 });
    assert!(matches!(reply, WriteAnswer::Committed(_)), "{reply:?}");
    assert_eq!(process.balance("acme").await, (5, 0));
    process.write_next(vec![retire("acme", 5), close("acme")]).await;
    process.assert_balanced("main").await;
}

/// A read of a client's sequence waits for its saga in progress.
pub async fn the_state_of_a_client_waits_for_what_is_under_way(store: Arc<dyn Store>) {
    for (when, expected) in [(When::Before, 0), (When::After, 1)] {
        let fixture = Fixture::new(&store);
        let process = fixture.process_on(Arc::clone(&store), short_deadline()).await;
        process.write_next(vec![open("acme"), issue("acme", 100)]).await;
        let operations = vec![retire("acme", 10)];
        let (_faulty, _act) = stopped(&fixture, when, DECISION, 1, operations.clone()).await;
        let client = earmark_core::ClientId::new("other").expect("a valid client");
        let home = fixture.home();
        let last = || process.credits.client_state(home.namespace.clone(), home.vault.clone(), client.clone());
        assert!(last().await.is_err(), "the outcome is open");
        fixture.expire_heartbeats();
        assert_eq!(retry_until_ok(async || last().await).await, Ok(expected), "{when:?}");
        let again = retry_until_ok(async || process.try_write_as("other", 1, operations.clone()).await).await;
        assert!(matches!(again, Ok(WriteAnswer::Committed(_))), "{again:?}");
        assert_eq!(process.balance("acme").await, (90, 0));
    }
}

/// The saga was aborted meanwhile, and its postings are spent.
pub async fn a_process_that_wakes_up_too_late_changes_nothing(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let process = fixture.process().await;
    process.write_next(vec![open("acme"), open("bob"), issue("acme", 100)]).await;
    let (faulty, act) = stopped(&fixture, When::Before, DECISION, 1, vec![transfer("acme", "bob", 60)]).await;
    assert_eq!(process.balance_in("main", "acme").await, Some((0, 0, 100)));
    fixture.expire_heartbeats();
    process.maintain().await;
    assert_eq!(process.balance("acme").await, (100, 0));
    process.write_next(vec![retire("acme", 100)]).await;
    faulty.repair();
    let reply = act.await.expect("no panic").expect("a store that answers");
    assert_eq!(reply, WriteAnswer::Refused(WriteError::InsufficientCredit { operation: 0 }));
    assert_eq!((process.balance("acme").await, process.balance("bob").await), ((0, 0), (0, 0)));
    process.assert_balanced("main").await;
}

/// A delayed reserve after its saga was aborted.
pub async fn orphans_are_given_back(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let process = fixture.process().await;
    process.write_next(vec![open("acme"), issue("acme", 100)]).await;
    let find = crate::store::PostingQuery {
        account: fixture.account("acme"),
        asset: usd(),
        largest: 9,
        smallest: 0,
        count_max: 9,
    };
    let survey = crate::store::Survey { posting_sets: vec![find], ..Default::default() };
    let found = fixture.store.survey(survey).await.expect("a store that answers").posting_sets.remove(0);
    let token = begin_saga(&fixture, &process, &found.large).await;
    assert_eq!(fixture.store.write(vec![Change::Abort(token), Change::End(token)]).await, Ok(vec![1, 1]));
    assert_eq!(process.balance_in("main", "acme").await, Some((0, 0, 100)));
    process.maintain().await;
    assert_eq!(process.balance("acme").await, (100, 0));
}

/// Callers get an error, and the same request works later.
pub async fn a_store_that_was_gone_is_used_again_without_a_restart(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let faulty = Faulty::new(Arc::clone(&store));
    let process: TestProcess = fixture.process_on(Arc::clone(&faulty) as Arc<dyn Store>, options()).await;
    process.write_next(vec![open("acme"), issue("acme", 100)]).await;
    assert_eq!(process.credits.ready(), Ok(()));
    faulty.fail_all();
    let lease = lease();
    let write = process.try_write(2, vec![issue("acme", 1)]).await;
    assert!(matches!(&write, Err(BackendError::Failed(why)) if why.contains("does not answer")), "{write:?}");
    assert!(process.try_hold(lease, &[hold_of("acme", 10)]).await.is_err());
    assert!(process.credits.maintain().await.is_err());
    let why = process.credits.ready().expect_err("a store that is gone");
    assert!(why.contains("it is gone"), "{why}");
    faulty.repair();
    process.maintain().await;
    assert_eq!(process.credits.ready(), Ok(()));
    process.commit(2, vec![issue("acme", 1)]).await;
    assert_eq!(process.hold(lease, &[hold_of("acme", 10)]).await, HoldAnswer::Held);
    assert_eq!(process.balance("acme").await, (91, 10));
}

/// The heartbeat row of a killed process stayed for good. A process whose clock had been a year ahead never counted as
/// dead.
pub async fn processes_that_are_gone_are_forgotten(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let (a, b) = (fixture.process().await, fixture.process().await);
    let ahead = OwnerId(7);
    store
        .write(vec![Change::Heartbeat(ahead, fixture.clock.now().log.plus_ms(1 << 35))])
        .await
        .expect("a sign of life");
    b.credits.abandon();
    let gone = async || {
        let since = fixture.clock.now().log;
        let gone = StaleOwners { expired_since: since, ahead_of: since.plus_ms(60_000) };
        store.stale_owners(gone, 9).await.expect("a store that answers")
    };
    a.maintain().await;
    assert_eq!(gone().await, [], "of the clock that was wrong nothing is left");
    fixture.clock.advance_ms(2 * 60 * 60 * 1_000);
    assert_eq!(gone().await.len(), 2, "neither sent a heartbeat for two hours");
    a.maintain().await;
    assert_eq!(gone().await, []);
    // The process is alive after all.
    b.maintain().await;
    fixture.clock.advance_ms(1);
    let mut both = [a.credits.owner(), b.credits.owner()];
    both.sort_unstable();
    assert_eq!(gone().await, both);
}

/// The deadline started only when no other call worked on the same lease. A caller behind a slow one waited twice as
/// long.
pub async fn nobody_waits_beyond_the_deadline_for_a_call_about_the_same(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    fixture.process().await.write_next(vec![open("acme"), issue("acme", 100)]).await;
    let faulty = Faulty::new(Arc::clone(&store));
    let hurry = Options { deadline: Duration::from_millis(300), ..options() };
    let patient = Options { call_timeout: Duration::from_secs(3_600), ..hurry };
    let process = Arc::new(fixture.process_on(Arc::clone(&faulty) as _, patient).await);
    let lease = lease();
    faulty.inject(2, When::Before, Mode::Stop);
    let first = tokio::spawn({
        let process = Arc::clone(&process);
        async move { process.try_hold(lease, &[hold_of("acme", 10)]).await }
    });
    faulty.stopped().await;
    let holds = [hold_of("acme", 10)];
    let second = process.try_hold(lease, &holds);
    let second = tokio::time::timeout(Duration::from_secs(20), second).await.expect("an answer in time");
    assert!(matches!(second, Err(BackendError::Overloaded(_))), "{second:?}");
    faulty.repair();
    // The first call may have failed by now, and left nothing.
    let _ = first.await.expect("no panic");
    let patient = fixture.process().await;
    assert_eq!(patient.hold(lease, &[hold_of("acme", 10)]).await, HoldAnswer::Held);
    assert_eq!(patient.balance("acme").await, (90, 10));
}
