//! Behavior with thousands of rows or callers.

use std::sync::Arc;

use earmark_admission::WriteAnswer;

use super::behavior::issue_in_ones;
use super::faulty::{Faulty, Mode, When};
use super::process::{Fixture, hold_of, issue, open, open_overdrawn, options, short_deadline, transfer, usd};
use crate::id::{GateId, ReservationId};
use crate::model::{LivePosting, Plan, Posting, Record, SagaToken};
use crate::store::{AsOf, Change, Filter, PostingQuery, RecordPage, Store, Survey};

/// More than one page.
const MANY: usize = 150;
/// The call that decides a first write: survey, counters, record, reserve, decide.
const DECISION: u64 = 5;

/// A deposit that came during another merge merged nothing. With hundreds of callers that was nearly every deposit.
pub async fn small_postings_do_not_pile_up_where_many_come_at_once(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let faulty = Faulty::new(Arc::clone(&store));
    let process = Arc::new(fixture.process_on(Arc::clone(&faulty) as Arc<dyn Store>, options()).await);
    process.write_next(vec![open("acme")]).await;
    // All deposits of a round read before the first one writes.
    faulty.measure_concurrency();
    for sequence in 1..=10 {
        let deposits = (0..MANY).map(|caller| {
            let (process, client) = (Arc::clone(&process), format!("till-{caller}"));
            tokio::spawn(async move { process.try_write_as(&client, sequence, vec![issue("acme", 1)]).await })
        });
        for deposit in deposits.collect::<Vec<_>>() {
            let reply = deposit.await.expect("no panic");
            assert!(matches!(reply, Ok(WriteAnswer::Committed(_))), "{reply:?}");
        }
    }
    let left = fixture.postings("acme").await;
    assert!(left <= 4 * MANY, "{left}");
    assert_eq!(process.balance("acme").await, (10 * MANY as i128, 0));
    process.assert_balanced("main").await;
}

/// One hold whose account was busy kept every later hold from being released, in every round.
pub async fn an_account_that_is_busy_keeps_no_hold_of_others(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let process = fixture.process_on(Arc::clone(&store), short_deadline()).await;
    process.write_next(vec![open_overdrawn("acme"), open("bob"), issue("bob", 100)]).await;
    process.write_next(vec![transfer("acme", "bob", 50)]).await;
    process.holds(&[hold_of("acme", 5)]).await;
    fixture.clock.advance_ms(1);
    process.holds(&[hold_of("bob", 20)]).await;
    let faulty = Faulty::new(Arc::clone(&store));
    let slow = Arc::new(fixture.process_on(Arc::clone(&faulty) as Arc<dyn Store>, options()).await);
    faulty.inject(DECISION, When::Before, Mode::Stop);
    let act = tokio::spawn({
        let slow = Arc::clone(&slow);
        async move { slow.try_write_as("other", 1, vec![issue("acme", 1)]).await }
    });
    faulty.stopped().await;
    fixture.clock.advance_ms(61_000);
    let now = earmark_admission::Clock::now(&*fixture.clock).log;
    store.write(vec![Change::Heartbeat(slow.credits.owner(), now)]).await.expect("a sign of life");
    process.maintain().await;
    let held =
        async |name: &str| store.funds(fixture.account(name), AsOf::at(now)).await.expect("a store that answers");
    assert_eq!(held("bob").await.iter().map(|funds| funds.due).sum::<i128>(), 0);
    assert_eq!(held("acme").await.iter().map(|funds| funds.due).sum::<i128>(), 5);
    faulty.repair();
    act.await.expect("no panic").expect("a store that answers");
    process.maintain().await;
    assert_eq!((process.balance("acme").await, process.balance("bob").await), ((-49, 0), (150, 0)));
    process.assert_balanced("main").await;
}

/// Holds were released one after the other, each commit waiting for the disk: a hundred a second. A service whose
/// callers died faster never caught up.
pub async fn holds_that_ended_are_given_back_side_by_side(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let faulty = Faulty::new(Arc::clone(&store));
    let process = fixture.process_on(Arc::clone(&faulty) as Arc<dyn Store>, options()).await;
    process.write_next(vec![open("acme"), issue("acme", 1_000)]).await;
    for _ in 0..MANY {
        process.holds(&[hold_of("acme", 2)]).await;
    }
    assert_eq!(process.balance("acme").await, (700, 300));
    fixture.clock.advance_ms(61_000);
    faulty.measure_concurrency();
    process.maintain().await;
    assert!(faulty.max_concurrency() > 4, "{}", faulty.max_concurrency());
    let now = earmark_admission::Clock::now(&*fixture.clock).log;
    let funds = store.funds(fixture.account("acme"), AsOf::at(now)).await.expect("a store that answers");
    assert_eq!(funds.iter().map(|funds| (funds.active, funds.due)).collect::<Vec<_>>(), [(1_000, 0)]);
    process.assert_balanced("main").await;
}

/// A process that started after one that left twenty thousand sagas was not ready for a minute. It recovered four
/// thousand one after the other, without a heartbeat.
pub async fn sagas_of_the_dead_are_finished_side_by_side(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let dead = fixture.process().await;
    dead.write_next(vec![open("acme"), issue("acme", 1_000)]).await;
    for _ in 0..MANY {
        begin_saga(&fixture, &dead, &[]).await;
    }
    dead.credits.abandon();
    fixture.expire_heartbeats();
    let faulty = Faulty::new(Arc::clone(&store));
    faulty.measure_concurrency();
    let next = fixture.process_on(Arc::clone(&faulty) as Arc<dyn Store>, options()).await;
    assert!(faulty.max_concurrency() > 4, "{}", faulty.max_concurrency());
    let of_all = Filter::Expired { except: next.credits.owner(), since: earmark_core::UnixMs::new(u64::MAX >> 20) };
    let left = store.records(of_all, RecordPage::first(9)).await.expect("a store that answers");
    assert_eq!(left.found.iter().filter(|left| left.record.token.owner == dead.credits.owner()).count(), 0);
}

/// Sixty-four orphans were released per second, so fifty thousand took a quarter of an hour.
pub async fn all_orphans_are_given_back_at_once(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let process = fixture.process().await;
    process.write_next(vec![open("acme")]).await;
    issue_in_ones(&fixture, "acme", u16::try_from(MANY).unwrap_or(0)).await;
    let (account, asset) = (fixture.account("acme"), usd());
    let query = PostingQuery { account, asset, largest: MANY, smallest: 0, count_max: 0 };
    let survey = Survey { posting_sets: vec![query], ..Survey::default() };
    let found = store.survey(survey).await.expect("a store that answers").posting_sets.remove(0).large;
    assert_eq!(found.len(), MANY);
    for live in &found {
        let token = begin_saga(&fixture, &process, std::slice::from_ref(live)).await;
        let dropped = store.write(vec![Change::Abort(token), Change::End(token)]).await;
        assert_eq!(dropped, Ok(vec![1, 1]));
    }
    assert_eq!(process.balance_in("main", "acme").await, Some((0, 0, MANY as i128)));
    process.maintain().await;
    assert_eq!(process.balance("acme").await, (MANY as i128, 0));
}

/// Sixty-four callers that paged through a history occupied all connections. Of six hundred payments a second, twenty
/// were left.
pub async fn those_who_read_leave_connections_to_those_who_pay(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let faulty = Faulty::new(Arc::clone(&store));
    let process = Arc::new(fixture.process_on(Arc::clone(&faulty) as Arc<dyn Store>, options()).await);
    process.write_next(vec![open("acme"), issue("acme", 1)]).await;
    faulty.measure_concurrency();
    let readers = (0..MANY).map(|_| {
        let process = Arc::clone(&process);
        tokio::spawn(async move { (process.history("main", "acme").await, process.balance("acme").await) })
    });
    for reader in readers.collect::<Vec<_>>() {
        assert_eq!(reader.await.expect("no panic"), (1, (1, 0)));
    }
    assert!((1..=2).contains(&faulty.max_concurrency()), "{}", faulty.max_concurrency());
}

/// A saga that has reserved its inputs and goes no further.
pub(super) async fn begin_saga(
    fixture: &Fixture,
    process: &super::process::TestProcess,
    live: &[LivePosting],
) -> SagaToken {
    let input = |live: &LivePosting| Posting {
        id: live.id,
        account: fixture.account("acme"),
        asset: usd(),
        amount: live.amount,
        terms: earmark_core::GrantTerms::PLAIN,
        hold: None,
        plan: None,
    };
    let rid = ReservationId(ulid::Ulid::generate().0);
    let token = SagaToken { gate: GateId(rid.0), rid, owner: process.credits.owner() };
    let plan = Arc::new(Plan { inputs: live.iter().map(input).collect(), ..Plan::default() });
    let begun_at = earmark_admission::Clock::now(&*fixture.clock).log;
    let record = Record { token, lease: None, begun_at, plan: Arc::clone(&plan) };
    let steps = vec![Change::Begin(Arc::new(record)), Change::Reserve(token, plan)];
    assert_eq!(fixture.store.write(steps).await, Ok(vec![1, live.len() as u64]));
    token
}
