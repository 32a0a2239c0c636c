//! A fault at every store call of every task.

use std::sync::Arc;
use std::time::Duration;

use earmark_admission::BackendError;
use tokio::task::JoinHandle;

use super::faulty::{Faulty, Mode, When};
use super::process::{Fixture, TestProcess, options, retry_until_ok, short_deadline};
use super::scenario::{Reply, Scenario, TASK_KINDS, TaskKind, View};
use crate::store::Store;

/// How long a woken process may take to finish.
const SOON: Duration = Duration::from_secs(20);

/// The states and the number of calls of a task without a fault.
struct Baseline {
    before: View,
    /// The state after the first of two commits.
    between: Option<View>,
    after: View,
    /// The calls that faults are injected at: all of them, or those that commit a whole plan.
    calls: Vec<u64>,
}

/// Runs a task without a fault.
async fn baseline(store: &Arc<dyn Store>, kind: TaskKind, is_whole: bool) -> Baseline {
    let (fixture, scenario) = (Fixture::new(store), Scenario::new(kind));
    let process = fixture.process().await;
    scenario.prepare(&fixture, &process).await;
    let before = scenario.view(&fixture, &process).await;
    let faulty = Faulty::with(Arc::clone(store), is_whole);
    let counted = fixture.process_on(Arc::clone(&faulty) as Arc<dyn Store>, options()).await;
    faulty.reset_calls();
    let reply = scenario.act(&counted).await.expect("a store that answers");
    let calls = if is_whole { faulty.whole_commits() } else { (1..=faulty.calls()).collect() };
    let after = scenario.view(&fixture, &process).await;
    let between = match kind {
        TaskKind::SettlesLate
        | TaskKind::SettlesLateAfterUsage
        | TaskKind::RenewsWhatWasReturned
        | TaskKind::HoldsAndSettles
        | TaskKind::SetsAPlan
        | TaskKind::OpensWithAPlan
        | TaskKind::SettlesAfterTheExpiry => Some(half(store, kind).await),
        _ => None,
    };
    assert_ne!(before, after, "{kind:?} is seen");
    let again = scenario.act(&counted).await.expect("a store that answers");
    assert!(scenario.is_same_reply(&reply, &again), "{kind:?}: {reply:?}, then {again:?}");
    assert_eq!(scenario.view(&fixture, &process).await, after, "{kind:?} happens once");
    assert_clean(&fixture, &process).await;
    Baseline { before, between, after, calls }
}

/// The state after the first of two commits.
async fn half(store: &Arc<dyn Store>, kind: TaskKind) -> View {
    let (fixture, scenario) = (Fixture::new(store), Scenario::new(kind));
    let process = fixture.process().await;
    scenario.prepare(&fixture, &process).await;
    scenario.half(&fixture, &process).await.expect("a store that answers");
    let view = scenario.view(&fixture, &process).await;
    // Leaves nothing to the sweeps of later tasks.
    process.maintain().await;
    view
}

impl Baseline {
    fn allows(&self, view: &View) -> bool {
        [Some(&self.before), self.between.as_ref(), Some(&self.after)].contains(&Some(view))
    }
}

/// Asserts that no saga is left and every vault balances.
async fn assert_clean(fixture: &Fixture, process: &TestProcess) {
    assert_eq!(fixture.store.orphans(9).await, Ok(vec![]));
    let census = fixture.store.census(fixture.home()).await.expect("a store that answers");
    assert_eq!(census.records, 0, "no saga is in progress");
    for home in ["main", "eu"] {
        process.assert_balanced(home).await;
    }
}

/// One fault at one call of one task.
#[derive(Clone, Copy, Debug)]
struct Fault {
    kind: TaskKind,
    is_whole: bool,
    call: u64,
    when: When,
    mode: Mode,
}

/// Starts a task on a new process and stops it at a fault.
async fn stop(
    fixture: &Fixture,
    scenario: Scenario,
    fault: Fault,
) -> (Arc<Faulty>, Arc<TestProcess>, JoinHandle<Result<Reply, BackendError>>) {
    let faulty = Faulty::with(Arc::clone(&fixture.store), fault.is_whole);
    let process = Arc::new(fixture.process_on(Arc::clone(&faulty) as Arc<dyn Store>, options()).await);
    faulty.inject(fault.call, fault.when, fault.mode);
    let acting = Arc::clone(&process);
    let act = tokio::spawn(async move { scenario.act(&acting).await });
    let stopped = tokio::time::timeout(SOON, faulty.stopped()).await;
    assert!(stopped.is_ok(), "{fault:?} was not made");
    (faulty, process, act)
}

/// Runs one of `stride` faults, and all of them if it is 1. The store in memory does.
async fn for_every_fault<F: Future<Output = ()>>(
    store: &Arc<dyn Store>,
    stride: usize,
    modes: &[Mode],
    make: impl Fn(Fault, Arc<Baseline>) -> F,
) {
    let (mut made, mut found) = (0_usize, 0_usize);
    for (kind, is_whole) in TASK_KINDS.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let baseline = Arc::new(baseline(store, kind, is_whole).await);
        let sides = baseline.calls.iter().flat_map(|call| [When::Before, When::After].map(|when| (*call, when)));
        for ((call, when), mode) in sides.flat_map(|side| modes.iter().map(move |mode| (side, *mode))) {
            found += 1;
            if found % stride == 0 {
                make(Fault { kind, is_whole, call, when, mode }, Arc::clone(&baseline)).await;
                made += 1;
            }
        }
    }
    assert!(found >= 30 * 2 * 5, "a saga has more than a few calls: {found}");
    assert_eq!(made, found / stride, "a fault on both sides of each call");
    println!("{made} faults of {found}");
}

/// A process is killed; another one starts later and recovers.
pub async fn every_saga_stopped_at_every_call_ends_in_one_of_two_ways(store: Arc<dyn Store>, stride: usize) {
    let make = async |fault: Fault, baseline: Arc<Baseline>| {
        let (fixture, scenario) = (Fixture::new(&store), Scenario::new(fault.kind));
        let first = fixture.process().await;
        scenario.prepare(&fixture, &first).await;
        let (_faulty, killed, act) = stop(&fixture, scenario, fault).await;
        act.abort();
        killed.credits.abandon();
        fixture.expire_heartbeats();
        let next = fixture.process().await;
        let view = scenario.view(&fixture, &next).await;
        assert!(baseline.allows(&view), "{fault:?} ends in a third way: {view:#?}");
        assert_clean(&fixture, &next).await;
        scenario.act(&next).await.expect("a store that answers");
        assert_eq!(scenario.view(&fixture, &next).await, baseline.after, "{fault:?} and a retry");
        assert_clean(&fixture, &next).await;
    };
    for_every_fault(&store, stride, &[Mode::Stop], make).await;
}

/// A call fails, with and without effect, alone or with all later calls. The process lives on.
pub async fn every_saga_failed_at_every_call_ends_in_one_of_two_ways(store: Arc<dyn Store>, stride: usize) {
    let make = async |fault: Fault, baseline: Arc<Baseline>| {
        let (fixture, scenario) = (Fixture::new(&store), Scenario::new(fault.kind));
        let first = fixture.process().await;
        scenario.prepare(&fixture, &first).await;
        let faulty = Faulty::with(Arc::clone(&store), fault.is_whole);
        let process = fixture.process_on(Arc::clone(&faulty) as Arc<dyn Store>, options()).await;
        faulty.inject(fault.call, fault.when, fault.mode);
        let reply = scenario.act(&process).await;
        faulty.repair();
        process.maintain().await;
        let view = scenario.view(&fixture, &process).await;
        assert!(baseline.allows(&view), "{fault:?} ends in a third way: {view:#?}");
        let second_reply = scenario.act(&process).await.expect("a store that answers");
        if let Ok(reply) = &reply {
            assert_eq!(view, baseline.after, "{fault:?} was answered");
            assert!(scenario.is_same_reply(reply, &second_reply), "{fault:?}: {reply:?}, then {second_reply:?}");
        }
        assert_eq!(scenario.view(&fixture, &process).await, baseline.after, "{fault:?} and a retry");
        assert_clean(&fixture, &process).await;
    };
    for_every_fault(&store, stride, &[Mode::Fail, Mode::Outage], make).await;
}

/// A process stops, another one does the same work, and the first wakes up too late.
pub async fn every_saga_stopped_at_every_call_is_finished_by_another_process(store: Arc<dyn Store>, stride: usize) {
    let make = async |fault: Fault, baseline: Arc<Baseline>| {
        let (fixture, scenario) = (Fixture::new(&store), Scenario::new(fault.kind));
        let other = fixture.process_on(Arc::clone(&store), short_deadline()).await;
        scenario.prepare(&fixture, &fixture.process().await).await;
        let (faulty, late, act) = stop(&fixture, scenario, fault).await;
        // The other process may have to wait until the heartbeat of the first expires.
        let mut reply: Option<Reply> = scenario.act(&other).await.ok();
        fixture.expire_heartbeats();
        other.maintain().await;
        if reply.is_none() {
            reply = Some(retry_until_ok(async || scenario.act(&other).await).await.expect("a process that took over"));
        }
        assert_eq!(scenario.view(&fixture, &other).await, baseline.after, "{fault:?} and another process");
        faulty.repair();
        let late_reply = tokio::time::timeout(SOON, act).await.unwrap_or_else(|_| panic!("{fault:?} hangs"));
        if let (Ok(Ok(late_reply)), Some(reply)) = (&late_reply, &reply) {
            assert!(scenario.is_same_reply(reply, late_reply), "{fault:?}: {reply:?}, then {late_reply:?}");
        }
        late.maintain().await;
        assert_eq!(scenario.view(&fixture, &other).await, baseline.after, "{fault:?} and a late step");
        assert_clean(&fixture, &other).await;
    };
    for_every_fault(&store, stride, &[Mode::Stop], make).await;
}
