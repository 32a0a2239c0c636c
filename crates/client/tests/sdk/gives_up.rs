//! Tasks of the scheduler that nobody wants any more while their admission is under way.

use std::time::Duration;

use earmark_client::{
    BackoffOptions, Client, ClientOptions, Deadline, Guard, Lane, Limiter, LimiterOptions, Priority,
    Scheduler, SchedulerOptions, Task, TaskError,
};

use crate::scripted::Scripted;
use crate::support::{job, soon};

fn scheduler(script: &Scripted) -> Scheduler<(), ()> {
    let mut options = ClientOptions::of(&[&script.url]).unwrap();
    options.backoff = BackoffOptions { first: Duration::from_millis(5), longest: Duration::from_millis(10) };
    let limiter = Limiter::new(&Client::new(options).unwrap(), LimiterOptions::default()).unwrap();
    Scheduler::start(&limiter, SchedulerOptions::default(), |(), guard: Guard| async move { drop(guard) })
        .unwrap()
}

fn task() -> Task<()> {
    let (lane, priority) = (Lane::of("p", "a"), Priority::Normal);
    Task { lane, priority, job: job(&[("a", 1)]), payload: (), deadline: soon() }
}

fn reserves(script: &Scripted) -> usize {
    script.asked().iter().filter(|asked| asked.starts_with("POST /v1/reserve ")).count()
}

/// A drain gave up what waited. One task was being asked for just then; it was denied after that, went back into the
/// queue, and was tried again and again by a scheduler that had said it was done.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_is_denied_after_the_drain_does_not_come_back() {
    let script = Scripted::by(|_| {
        std::thread::sleep(Duration::from_millis(500));
        let denied =
            r#"{"allowed":false,"retry_after_ms":5,"reserved_at_unix_ms":0,"error":"","limited_by":["a"]}"#;
        Some((200, denied.to_owned()))
    })
    .await;
    let scheduler = scheduler(&script);
    let ticket = scheduler.submit(task()).unwrap();
    scheduler.drain(Deadline::after(Duration::from_millis(100))).await;
    assert_eq!(ticket.outcome().await, Err(TaskError::ShutDown));
    assert_eq!((scheduler.queued(), reserves(&script)), (0, 1));
}

/// A ticket was dropped while servers gave no answers. Its task was asked for until its deadline, in vain, and took one
/// of the few places of its lane.
#[tokio::test]
async fn a_cancelled_task_is_not_asked_for_any_more() {
    let script = Scripted::by(|_| None).await;
    let scheduler = scheduler(&script);
    let ticket = scheduler.submit(task()).unwrap();
    let other = scheduler.submit(Task { lane: Lane::of("p", "b"), ..task() }).unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(reserves(&script) > 2);
    assert!(ticket.cancel());
    assert!(other.cancel());
    tokio::time::sleep(Duration::from_millis(200)).await;
    let before = reserves(&script);
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(reserves(&script), before);

    // One that was let go is still asked for.
    scheduler.submit(task()).unwrap().detach();
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert!(reserves(&script) > before + 2);
}
