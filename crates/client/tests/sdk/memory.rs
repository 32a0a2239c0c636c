//! A million queued tasks take no more memory than the options promise. Run it in a process of its own.

use std::time::Duration;

use earmark_client::core::LimitKey;
use earmark_client::{
    Actuals, Client, Deadline, Guard, Job, Lane, LocalOptions, Priority, Scheduler, SchedulerOptions, SubmitError, Task,
};

use crate::fixture::limiter;
use crate::support::{job, key, rolling, soon};

const TASKS: usize = 1_000_000;
/// Bytes of one task that [`SchedulerOptions::queued_max`] promises.
const BYTES_MAX: usize = 512;

/// The resident memory of this process, in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1_024
}

#[tokio::test]
async fn a_million_waiting_tasks_stay_within_their_bound_and_can_be_cancelled() {
    if !std::path::Path::new("/proc/self/status").exists() {
        println!("skipped: this system has no /proc/self/status");
        return;
    }
    let client = Client::local(LocalOptions::default()).unwrap();
    let names = ["rpm", "tpm", "concurrency", "daily"];
    for name in names {
        client.put_limit(&rolling(name, 1, 3_600), soon()).await.unwrap();
    }
    let limiter = limiter(&client);
    // No task can be admitted for an hour.
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
        // Each task has its own list of requirements, as jobs with different amounts do.
        job: Job::new(keys.iter().map(|key| (key.clone(), 1))).unwrap(),
        payload: number,
        deadline: Deadline::after(Duration::from_secs(3_600)),
    };
    let before = resident();
    let mut handles = Vec::with_capacity(TASKS);
    for number in 0..TASKS {
        handles.push(scheduler.submit(task(number as u64)).unwrap());
    }
    let each = resident().saturating_sub(before) / TASKS;
    println!("{each} bytes for each of {TASKS} queued tasks with their handles");
    assert!(each <= BYTES_MAX, "{each} bytes each");
    assert_eq!(scheduler.queued(), TASKS);
    assert!(matches!(scheduler.submit(task(0)), Err(SubmitError::Full { .. })));

    drop(handles);
    // The next submit sweeps out the cancelled tasks.
    scheduler.submit(task(0)).unwrap().detach();
    assert!(scheduler.queued() <= 1, "{} cancelled tasks are left", scheduler.queued());
}
