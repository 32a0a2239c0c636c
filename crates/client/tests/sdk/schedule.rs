//! The scheduler in virtual time, on a Book in this process: what it does is counted, never timed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use earmark_admission::Clock;
use earmark_client::core::{Moment, UnixMs};
use earmark_client::{
    AcquireError, Actuals, Client, Deadline, Guard, Lane, Limiter, LimiterOptions, LocalOptions, Priority,
    Scheduler, SchedulerOptions, SubmitError, Surroundings, Task, TaskError,
};
use tokio::time::Instant;

use crate::support::random::Random;
use crate::support::{concurrency, job, key, rolling, soon};

const START_MS: u64 = 1_700_000_000_000;

/// The time of tokio, which stands still while something can be done and jumps when nothing can.
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

impl Surroundings for Seeded {
    fn wall(&self) -> UnixMs {
        self.clock.now_ms()
    }

    fn random(&self) -> u64 {
        self.random.lock().unwrap().next()
    }
}

/// A Book, a limiter on it, and what work counts.
struct Desk {
    client: Client,
    limiter: Limiter,
}

impl Desk {
    async fn new(limits: &[earmark_client::core::Definition]) -> Desk {
        let clock = Arc::new(Virtual(Instant::now()));
        let seeded = Seeded { clock: Arc::clone(&clock), random: std::sync::Mutex::new(Random::new(1)) };
        let options = LocalOptions { clock, ..LocalOptions::default() };
        let client = Client::local_with(options, Arc::new(seeded)).unwrap();
        for limit in limits {
            client.put_limit(limit, soon()).await.unwrap();
        }
        let limiter = Limiter::new(&client, LimiterOptions::default()).unwrap();
        Desk { client, limiter }
    }

    /// Work that takes so long.
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

/// How many tasks of model B are done in ten seconds, beside so many of A, of which none can go ahead.
async fn done_of_b(tasks_of_a: u64) -> u64 {
    let desk = Desk::new(&[rolling("a", 10, 3_600), concurrency("b", 8)]).await;
    // A is exhausted for the next hour.
    let used_up = desk.limiter.acquire(&job(&[("a", 10)]), soon()).await.unwrap();
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
    let scheduler = Scheduler::start(&desk.limiter, SchedulerOptions::default(), work).unwrap();
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
    let desk = Desk::new(&[concurrency("b", 3)]).await;
    let scheduler = desk.scheduler(SchedulerOptions::default(), 10);
    let tickets: Vec<_> =
        (0..100).map(|number| scheduler.submit(task("b", &[("b", 1)], number)).unwrap()).collect();
    for (number, ticket) in (0..).zip(tickets) {
        assert_eq!(ticket.outcome().await, Ok(number));
    }
    assert_eq!(scheduler.drain(soon()).await, 0);
    assert_eq!(desk.client.usage(&key("b"), soon()).await.unwrap().reserved, 0);
}

#[tokio::test(start_paused = true)]
async fn what_waiting_cannot_cure_fails_alone() {
    let desk = Desk::new(&[concurrency("b", 1)]).await;
    let scheduler = desk.scheduler(SchedulerOptions::default(), 1);
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
async fn low_priority_goes_on_while_high_never_ends() {
    let desk = Desk::new(&[concurrency("b", 1)]).await;
    let scheduler = desk.scheduler(SchedulerOptions::default(), 10);
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
async fn a_ticket_that_is_dropped_cancels_what_has_not_started() {
    let desk = Desk::new(&[concurrency("b", 1)]).await;
    let options = SchedulerOptions { queued_max: 10, ..SchedulerOptions::default() };
    let scheduler = desk.scheduler(options, 1_000);
    let running = scheduler.submit(task("b", &[("b", 1)], 0)).unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut tickets: Vec<_> =
        (1..=10).map(|number| scheduler.submit(task("b", &[("b", 1)], number)).unwrap()).collect();
    let full = scheduler.submit(task("b", &[("b", 1)], 11)).unwrap_err();
    let SubmitError::Full { task: given_back, queued_max: 10 } = full else { panic!("{full:?}") };
    assert_eq!(given_back.payload, 11);
    assert!(tickets.remove(0).cancel());
    drop(tickets.remove(0));
    assert!(!running.cancel(), "it has started, and goes on");
    // Those that were cancelled have left their places.
    let late = scheduler.submit(*given_back).unwrap();
    for (number, ticket) in (3..).zip(tickets) {
        assert_eq!(ticket.outcome().await, Ok(number));
    }
    assert_eq!(late.outcome().await, Ok(11));
    assert_eq!(scheduler.drain(soon()).await, 0);
    assert_eq!(desk.client.usage(&key("b"), soon()).await.unwrap().reserved, 0);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_is_not_admitted_in_time_never_is() {
    let desk = Desk::new(&[concurrency("b", 1)]).await;
    let scheduler = desk.scheduler(SchedulerOptions::default(), 10_000);
    let running = scheduler.submit(task("b", &[("b", 1)], 0)).unwrap();
    let start = Instant::now();
    let hasty = Task { deadline: Deadline::after(Duration::from_secs(1)), ..task("b", &[("b", 1)], 1) };
    let outcome = scheduler.submit(hasty).unwrap().outcome().await;
    assert_eq!(outcome, Err(TaskError::DeadlinePassed { last: None }));
    assert_eq!(start.elapsed(), Duration::from_secs(1));
    assert_eq!(running.outcome().await, Ok(0), "one that has started is waited for");
}

#[tokio::test(start_paused = true)]
async fn a_drain_finishes_what_it_can_and_gives_up_the_rest_by_name() {
    let desk = Desk::new(&[concurrency("b", 1)]).await;
    let scheduler = desk.scheduler(SchedulerOptions::default(), 1_000);
    let tickets: Vec<_> =
        (0..100).map(|number| scheduler.submit(task("b", &[("b", 1)], number)).unwrap()).collect();
    let outcomes = tokio::spawn(async move {
        let mut outcomes = Vec::new();
        for ticket in tickets {
            outcomes.push(ticket.outcome().await);
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
    assert_eq!(desk.client.usage(&key("b"), soon()).await.unwrap().reserved, 0);
}

#[tokio::test(start_paused = true)]
async fn work_that_panics_is_lost_alone_and_its_slot_comes_back() {
    let desk = Desk::new(&[concurrency("b", 1)]).await;
    let scheduler = Scheduler::start(
        &desk.limiter,
        SchedulerOptions::default(),
        |number: u64, guard: Guard| async move {
            assert_ne!(number, 1, "this one panics");
            guard.complete(Actuals::unknown()).await.unwrap();
            number
        },
    )
    .unwrap();
    let bad = scheduler.submit(task("b", &[("b", 1)], 1)).unwrap();
    assert_eq!(bad.outcome().await, Err(TaskError::Lost));
    assert_eq!(scheduler.submit(task("b", &[("b", 1)], 2)).unwrap().outcome().await, Ok(2));
    assert_eq!(scheduler.drain(soon()).await, 0);
}

/// The bound on tasks that wait was one for all lanes: a model that had run out filled it, and tasks of models that were
/// idle were not taken.
#[tokio::test(start_paused = true)]
async fn an_exhausted_model_does_not_take_the_whole_queue() {
    let desk = Desk::new(&[concurrency("a", 1), concurrency("b", 1)]).await;
    let _used_up = desk.limiter.acquire(&job(&[("a", 1)]), soon()).await.unwrap();
    let options =
        SchedulerOptions { queued_max: 100, queued_per_lane_max: 25, ..SchedulerOptions::default() };
    let scheduler = desk.scheduler(options, 1);
    let mut waiting = Vec::new();
    let full = loop {
        match scheduler.submit(task("a", &[("a", 1)], 0)) {
            Ok(ticket) => waiting.push(ticket),
            Err(full) => break full,
        }
    };
    let SubmitError::LaneFull { task: given_back, queued_per_lane_max: 25 } = full else {
        panic!("{full:?}")
    };
    assert_eq!(waiting.len(), 25);
    for number in 0..50 {
        assert_eq!(scheduler.submit(task("b", &[("b", 1)], number)).unwrap().outcome().await, Ok(number));
    }
    // What was cancelled has left its place.
    waiting.truncate(20);
    waiting.push(scheduler.submit(*given_back).unwrap());
    assert_eq!(scheduler.queued(), 21);
}
