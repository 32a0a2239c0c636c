//! A million tasks that wait take as much memory as the options say, and no more.

#![allow(unreachable_pub, reason = "all of it is one binary")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

#[path = "support/mod.rs"]
mod support;

use std::time::Duration;

use earmark_client::core::LimitKey;
use earmark_client::{
    Actuals, Client, Deadline, Guard, Job, Lane, Limiter, LimiterOptions, LocalOptions, Priority, Scheduler,
    SchedulerOptions, SubmitError, Task,
};
use support::{job, key, rolling, soon};

const TASKS: usize = 1_000_000;
/// What [`SchedulerOptions::queued_max`] says of one.
const BYTES_MAX: usize = 512;

/// What this process has in memory, in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1_024
}

#[tokio::test]
async fn a_million_waiting_tasks_stay_within_their_bound_and_can_be_cancelled() {
    if !std::path::Path::new("/proc/self/status").exists() {
        println!("skipped: this system does not tell how much memory a process has");
        return;
    }
    let client = Client::local(LocalOptions::default()).unwrap();
    let names = ["rpm", "tpm", "concurrency", "daily"];
    for name in names {
        client.put_limit(&rolling(name, 1, 3_600), soon()).await.unwrap();
    }
    let limiter = Limiter::new(&client, LimiterOptions::default()).unwrap();
    // Nothing can go ahead for an hour.
    let used_up = limiter.acquire(&job(&[("rpm", 1)]), soon()).await.unwrap();
    used_up.complete(Actuals::unknown()).await.unwrap();
    let work = |payload: u64, guard: Guard| async move {
        drop(guard);
        payload
    };
    let scheduler = Scheduler::start(&limiter, SchedulerOptions::default(), work).unwrap();
    let keys: Vec<LimitKey> = names.iter().map(|name| key(name)).collect();
    let task = |number: u64| Task {
        lane: Lane::of("provider", &format!("model{}", number % 20)),
        priority: [Priority::High, Priority::Normal, Priority::Low][usize::try_from(number % 3).unwrap()],
        // Each has a list of its own, as jobs with different amounts do.
        job: Job::new(keys.iter().map(|key| (key.clone(), 1))).unwrap(),
        payload: number,
        deadline: Deadline::after(Duration::from_secs(3_600)),
    };
    let before = resident();
    let mut tickets = Vec::with_capacity(TASKS);
    for number in 0..TASKS {
        tickets.push(scheduler.submit(task(number as u64)).unwrap());
    }
    let each = resident().saturating_sub(before) / TASKS;
    println!("{each} bytes for each of {TASKS} waiting tasks, their tickets included");
    assert!(each <= BYTES_MAX, "{each} bytes each");
    assert_eq!(scheduler.queued(), TASKS);
    assert!(matches!(scheduler.submit(task(0)), Err(SubmitError::Full { .. })));

    drop(tickets);
    // The next one finds that there is room.
    scheduler.submit(task(0)).unwrap().detach();
    assert!(scheduler.queued() <= 1, "{} are left of those that were cancelled", scheduler.queued());
}
