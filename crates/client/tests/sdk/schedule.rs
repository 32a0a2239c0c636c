//! The scheduler. Most tests run in virtual time on a Book in this process, and count instead of measuring time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use earmark_admission::Clock;
use earmark_client::core::{Moment, UnixMs};
use earmark_client::{
    AcquireError, Actuals, BackoffOptions, Client, ClientOptions, Deadline, Env, Guard, Lane, Limiter, LocalOptions,
    Priority, Scheduler, SchedulerOptions, SubmitError, Task, TaskError,
};
use tokio::time::Instant;

use crate::fixture::{ScriptedServer, limiter, ok, refused};
use crate::support::random::Random;
use crate::support::{concurrency, job, key, rolling, soon};

const START_MS: u64 = 1_700_000_000_000;

/// The paused clock of tokio, which advances only when all tasks wait.
struct Virtual(Instant);

impl Virtual {
    fn now_ms(&self) -> UnixMs {
        UnixMs::new(START_MS + u64::try_from(self.0.elapsed().as_millis()).unwrap())
    }
}

impl Clock for Virtual {
    fn now(&self) -> Moment {
        Moment { log: self.now_ms(), wall: self.now_ms() }
    }
}

struct Seeded {
    clock: Arc<Virtual>,
    random: std::sync::Mutex<Random>,
}

impl Env for Seeded {
    fn wall(&self) -> UnixMs {
        self.clock.now_ms()
    }

    fn random(&self) -> u64 {
        self.random.lock().unwrap().next()
    }
}

/// A Book in virtual time, and a limiter on it.
struct SchedulerFixture {
    client: Client,
    limiter: Limiter,
}

impl SchedulerFixture {
    async fn new(limits: &[earmark_client::core::Definition]) -> SchedulerFixture {
        let clock = Arc::new(Virtual(Instant::now()));
        let seeded = Seeded { clock: Arc::clone(&clock), random: std::sync::Mutex::new(Random::new(1)) };
        let options = LocalOptions { clock, ..LocalOptions::default() };
        let client = Client::local_with(options, Arc::new(seeded)).unwrap();
        for limit in limits {
            client.put_limit(limit, soon()).await.unwrap();
        }
        SchedulerFixture { limiter: limiter(&client), client }
    }

    /// A scheduler whose work takes `work_ms`.
    fn scheduler(&self, options: SchedulerOptions, work_ms: u64) -> Scheduler<u64, u64> {
        Scheduler::start(&self.limiter, options, move |number: u64, guard: Guard| async move {
            tokio::time::sleep(Duration::from_millis(work_ms)).await;
            guard.complete(Actuals::unknown()).await.unwrap();
            number
        })
        .unwrap()
    }
}

fn task(model: &str, needs: &[(&str, u64)], payload: u64) -> Task<u64> {
    Task {
        lane: Lane::of("p", model),
        priority: Priority::Normal,
        job: job(needs),
        payload,
        deadline: Deadline::after(Duration::from_secs(86_400)),
    }
}

/// The number of tasks of model B that run in 10 s beside `tasks_of_a` blocked tasks of model A.
async fn done_of_b(tasks_of_a: u64) -> u64 {
    let fixture = SchedulerFixture::new(&[rolling("a", 10, 3_600), concurrency("b", 8)]).await;
    // A is exhausted for the next hour.
    let used_up = fixture.limiter.acquire(&job(&[("a", 10)]), soon()).await.unwrap();
    used_up.complete(Actuals::unknown()).await.unwrap();
    let done = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&done);
    let work = move |_: u64, guard: Guard| {
        let done = Arc::clone(&counted);
        async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            guard.complete(Actuals::unknown()).await.unwrap();
            done.fetch_add(1, Ordering::SeqCst);
        }
    };
    let scheduler = Scheduler::start(&fixture.limiter, SchedulerOptions::default(), work).unwrap();
    for number in 0..tasks_of_a {
        scheduler.submit(task("a", &[("a", 1)], number)).unwrap().detach();
    }
    for number in 0..20_000 {
        scheduler.submit(task("b", &[("b", 1)], number)).unwrap().detach();
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    done.load(Ordering::SeqCst)
}

#[tokio::test(start_paused = true)]
async fn an_exhausted_model_takes_nothing_from_another() {
    let (alone, beside) = (done_of_b(0).await, done_of_b(20_000).await);
    assert!(alone > 1_000, "{alone}");
    assert!(beside * 100 >= alone * 95, "alone {alone}, beside an exhausted model {beside}");
}

#[tokio::test(start_paused = true)]
async fn a_task_is_done_once_admitted_and_its_answer_comes_back() {
    let fixture = SchedulerFixture::new(&[concurrency("b", 3)]).await;
    let scheduler = fixture.scheduler(SchedulerOptions::default(), 10);
    let handles: Vec<_> = (0..100).map(|number| scheduler.submit(task("b", &[("b", 1)], number)).unwrap()).collect();
    for (number, handle) in (0..).zip(handles) {
        assert_eq!(handle.outcome().await, Ok(number));
    }
    assert_eq!(scheduler.drain(soon()).await, 0);
    assert_eq!(fixture.client.usage(&key("b"), soon()).await.unwrap().reserved, 0);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_can_never_be_admitted_fails_alone() {
    let fixture = SchedulerFixture::new(&[concurrency("b", 1)]).await;
    let scheduler = fixture.scheduler(SchedulerOptions::default(), 1);
    let never = scheduler.submit(task("b", &[("b", 2)], 1)).unwrap();
    let unknown = scheduler.submit(task("b", &[("c", 1)], 2)).unwrap();
    let good = scheduler.submit(task("b", &[("b", 1)], 3)).unwrap();
    let limited_by = vec![key("b")];
    assert_eq!(never.outcome().await, Err(TaskError::Refused(AcquireError::Never { limited_by })));
    let refused = AcquireError::UnknownLimitKey { key: key("c") };
    assert_eq!(unknown.outcome().await, Err(TaskError::Refused(refused)));
    assert_eq!(good.outcome().await, Ok(3));
}

#[tokio::test(start_paused = true)]
async fn low_priority_progresses_while_high_never_ends() {
    let fixture = SchedulerFixture::new(&[concurrency("b", 1)]).await;
    let scheduler = fixture.scheduler(SchedulerOptions::default(), 10);
    for number in 0..2_000 {
        let urgent = Task { priority: Priority::High, ..task("b", &[("b", 1)], number) };
        scheduler.submit(urgent).unwrap().detach();
    }
    let start = Instant::now();
    for number in 0..5 {
        let late = Task { priority: Priority::Low, ..task("b", &[("b", 1)], number) };
        scheduler.submit(late).unwrap().outcome().await.unwrap();
    }
    assert!(scheduler.queued() > 1_500, "{} of high priority are left", scheduler.queued());
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_handle_cancels_a_task_that_has_not_started() {
    let fixture = SchedulerFixture::new(&[concurrency("b", 1)]).await;
    let options = SchedulerOptions { queued_max: 10, ..SchedulerOptions::default() };
    let scheduler = fixture.scheduler(options, 1_000);
    let running = scheduler.submit(task("b", &[("b", 1)], 0)).unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut handles: Vec<_> =
        (1..=10).map(|number| scheduler.submit(task("b", &[("b", 1)], number)).unwrap()).collect();
    let full = scheduler.submit(task("b", &[("b", 1)], 11)).unwrap_err();
    let SubmitError::Full { task: given_back, queued_max: 10 } = full else { panic!("{full:?}") };
    assert_eq!(given_back.payload, 11);
    assert!(handles.remove(0).cancel());
    drop(handles.remove(0));
    assert!(!running.cancel(), "a started task continues");
    // The cancelled tasks have left the queue.
    let late = scheduler.submit(*given_back).unwrap();
    for (number, handle) in (3..).zip(handles) {
        assert_eq!(handle.outcome().await, Ok(number));
    }
    assert_eq!(late.outcome().await, Ok(11));
    assert_eq!(scheduler.drain(soon()).await, 0);
    assert_eq!(fixture.client.usage(&key("b"), soon()).await.unwrap().reserved, 0);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_is_not_admitted_in_time_never_runs() {
    let fixture = SchedulerFixture::new(&[concurrency("b", 1)]).await;
    let scheduler = fixture.scheduler(SchedulerOptions::default(), 10_000);
    let running = scheduler.submit(task("b", &[("b", 1)], 0)).unwrap();
    let start = Instant::now();
    let hasty = Task { deadline: Deadline::after(Duration::from_secs(1)), ..task("b", &[("b", 1)], 1) };
    let outcome = scheduler.submit(hasty).unwrap().outcome().await;
    assert_eq!(outcome, Err(TaskError::DeadlinePassed { last: None }));
    assert_eq!(start.elapsed(), Duration::from_secs(1));
    assert_eq!(running.outcome().await, Ok(0), "a started task ends");
}

#[tokio::test(start_paused = true)]
async fn a_drain_finishes_tasks_until_its_deadline_and_gives_up_the_rest() {
    let fixture = SchedulerFixture::new(&[concurrency("b", 1)]).await;
    let scheduler = fixture.scheduler(SchedulerOptions::default(), 1_000);
    let handles: Vec<_> = (0..100).map(|number| scheduler.submit(task("b", &[("b", 1)], number)).unwrap()).collect();
    let outcomes = tokio::spawn(async move {
        let mut outcomes = Vec::new();
        for handle in handles {
            outcomes.push(handle.outcome().await);
        }
        outcomes
    });
    let given_up = scheduler.drain(Deadline::after(Duration::from_secs(10))).await;
    let refused = scheduler.submit(task("b", &[("b", 1)], 200)).unwrap_err();
    assert!(matches!(refused, SubmitError::ShuttingDown { .. }), "{refused:?}");
    let outcomes = outcomes.await.unwrap();
    let done = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(_) | Err(TaskError::ShutDown))));
    assert!((5..=11).contains(&done), "{done} were done");
    assert_eq!(done + given_up, 100);
    assert_eq!(fixture.client.usage(&key("b"), soon()).await.unwrap().reserved, 0);
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_work_loses_one_task_and_frees_its_slot() {
    let fixture = SchedulerFixture::new(&[concurrency("b", 1)]).await;
    let scheduler =
        Scheduler::start(&fixture.limiter, SchedulerOptions::default(), |number: u64, guard: Guard| async move {
            assert_ne!(number, 1, "this one panics");
            guard.complete(Actuals::unknown()).await.unwrap();
            number
        })
        .unwrap();
    let bad = scheduler.submit(task("b", &[("b", 1)], 1)).unwrap();
    assert_eq!(bad.outcome().await, Err(TaskError::Lost));
    assert_eq!(scheduler.submit(task("b", &[("b", 1)], 2)).unwrap().outcome().await, Ok(2));
    assert_eq!(scheduler.drain(soon()).await, 0);
}

/// All lanes shared one bound on queued tasks. An exhausted model filled the queue, and tasks of idle models were
/// refused.
#[tokio::test(start_paused = true)]
async fn an_exhausted_model_does_not_take_the_whole_queue() {
    let fixture = SchedulerFixture::new(&[concurrency("a", 1), concurrency("b", 1)]).await;
    let _used_up = fixture.limiter.acquire(&job(&[("a", 1)]), soon()).await.unwrap();
    let options = SchedulerOptions { queued_max: 100, queued_per_lane_max: 25, ..SchedulerOptions::default() };
    let scheduler = fixture.scheduler(options, 1);
    let mut waiting = Vec::new();
    let full = loop {
        match scheduler.submit(task("a", &[("a", 1)], 0)) {
            Ok(handle) => waiting.push(handle),
            Err(full) => break full,
        }
    };
    let SubmitError::LaneFull { task: given_back, queued_per_lane_max: 25 } = full else { panic!("{full:?}") };
    assert_eq!(waiting.len(), 25);
    for number in 0..50 {
        assert_eq!(scheduler.submit(task("b", &[("b", 1)], number)).unwrap().outcome().await, Ok(number));
    }
    // The cancelled tasks have left the queue.
    waiting.truncate(20);
    waiting.push(scheduler.submit(*given_back).unwrap());
    assert_eq!(scheduler.queued(), 21);
}

fn scripted_scheduler(script: &ScriptedServer) -> Scheduler<(), ()> {
    let mut options = ClientOptions::of(&[&script.url]).unwrap();
    options.backoff = BackoffOptions { first: Duration::from_millis(5), longest: Duration::from_millis(10) };
    let limiter = limiter(&Client::new(options).unwrap());
    Scheduler::start(&limiter, SchedulerOptions::default(), |(), guard: Guard| async move { drop(guard) }).unwrap()
}

fn slot_task() -> Task<()> {
    let (lane, priority) = (Lane::of("p", "a"), Priority::Normal);
    Task { lane, priority, job: job(&[("a", 1)]), payload: (), deadline: soon() }
}

fn reserves(script: &ScriptedServer) -> usize {
    script.count("POST /v1/reserve ")
}

async fn wait_for_reserves(script: &ScriptedServer, count: usize) {
    let deadline = soon();
    while reserves(script) < count {
        assert!(!deadline.has_passed(), "{} reserves", reserves(script));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A drain gave up the queue during an attempt of one task. The task was denied after that, went back into the queue, and
/// was tried again and again by a drained scheduler.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_is_denied_after_the_drain_does_not_come_back() {
    let script = ScriptedServer::by(|_| {
        std::thread::sleep(Duration::from_millis(300));
        ok(&refused("", 5))
    })
    .await;
    let scheduler = scripted_scheduler(&script);
    let handle = scheduler.submit(slot_task()).unwrap();
    scheduler.drain(Deadline::after(Duration::from_millis(50))).await;
    assert_eq!(handle.outcome().await, Err(TaskError::ShutDown));
    assert_eq!((scheduler.queued(), reserves(&script)), (0, 1));
}

/// A handle was dropped while no server answered. Its task was retried until its deadline, and occupied one of the few
/// attempts of its lane.
#[tokio::test]
async fn a_cancelled_task_is_not_tried_any_more() {
    let script = ScriptedServer::by(|_| None).await;
    let scheduler = scripted_scheduler(&script);
    let handle = scheduler.submit(slot_task()).unwrap();
    let other = scheduler.submit(Task { lane: Lane::of("p", "b"), ..slot_task() }).unwrap();
    wait_for_reserves(&script, 3).await;
    assert!(handle.cancel());
    assert!(other.cancel());
    tokio::time::sleep(Duration::from_millis(50)).await;
    let before = reserves(&script);
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert_eq!(reserves(&script), before);

    // A detached task is still tried.
    scheduler.submit(slot_task()).unwrap().detach();
    wait_for_reserves(&script, before + 3).await;
}
