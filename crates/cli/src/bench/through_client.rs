//! Load through the Rust client: each task reserves and completes calls.

use std::sync::Arc;
use std::time::Instant;

use earmark_client::{Actuals, BatchOptions, Client, Deadline, Job, Limiter, LimiterOptions, OptionsError};
use tokio::task::JoinSet;

use super::job::{Call, Calls, Keys, Part};
use super::measure::{Bounds, Counts, Run, Shared, Tally, join, run_stages};
use crate::client::ServerUrl;
use crate::failure::Failure;
use crate::serve::runtime;

/// The load and its server.
pub(super) struct Load<'a> {
    pub(super) url: &'a ServerUrl,
    pub(super) parts: &'a [Part],
    pub(super) tasks: usize,
    /// Whether tasks share requests.
    pub(super) shares: bool,
}

/// Runs the load.
pub(super) fn run(load: &Load<'_>, bounds: &Bounds) -> Result<Run, Failure> {
    let runtime = runtime()?;
    let shared = Arc::new(Shared::new());
    let deadline = Deadline::at(bounds.deadline().into());
    let keys = Arc::new(Keys::of(load.parts)?);
    let inside = runtime.enter();
    let limiter = limiter(load)?;
    let mut workers = JoinSet::new();
    for _ in 0..load.tasks {
        let worker = Worker {
            limiter: limiter.clone(),
            shared: Arc::clone(&shared),
            keys: Arc::clone(&keys),
            calls: Calls::new(),
            tally: Tally::default(),
        };
        workers.spawn(worker.run(deadline));
    }
    drop(inside);
    let (measured, end) = run_stages(&shared, bounds);
    let tally = runtime.block_on(join(workers))?;
    Ok(Run { tally, measured, end, bare_ops_per_s: None })
}

fn limiter(load: &Load<'_>) -> Result<Limiter, Failure> {
    let mut options = load.url.options()?;
    // Without batching each task uses its own connection.
    options.connections_max = load.tasks;
    let batching = load.shares.then(BatchOptions::default);
    let failed = |error: OptionsError| Failure::Bench(error.to_string());
    let client = Client::new(options).map_err(failed)?;
    Limiter::new(&client, LimiterOptions { batching, ..LimiterOptions::default() }).map_err(failed)
}

/// One task.
struct Worker {
    limiter: Limiter,
    shared: Arc<Shared>,
    keys: Arc<Vec<Keys>>,
    calls: Calls,
    tally: Tally,
}

impl Worker {
    async fn run(mut self, deadline: Deadline) -> Tally {
        while self.shared.goes_on() {
            let call = self.calls.next();
            if let Err(what) = self.admit(&call, deadline).await {
                self.tally.note_errors(&self.shared, 1, || what);
                // A server that is down fails every call at once.
                if deadline.has_passed() {
                    break;
                }
            }
        }
        self.tally
    }

    async fn admit(&mut self, call: &Call, deadline: Deadline) -> Result<(), String> {
        let needs = self.keys.iter().map(|keys| (keys.key(call), keys.amount));
        let job = Job::new(needs).map_err(|error| error.to_string())?;
        let start = Instant::now();
        let guard = self.limiter.acquire(&job, deadline).await.map_err(|error| error.to_string())?;
        self.tally.note(&self.shared, start.elapsed(), &Counts { allowed: 1, ..Counts::default() });
        let used = self.keys.iter().filter_map(|keys| Some((keys.key(call), keys.actual_amount?)));
        let actuals = used.fold(Actuals::unknown(), |all, (key, amount)| all.used(key, amount));
        match guard.complete(actuals).await {
            Ok(completed) if completed.reconciled => {
                self.tally.note_completed(&self.shared, 1);
                Ok(())
            }
            Ok(_) => Err("a lease could not be completed".into()),
            Err(failure) => Err(failure.to_string()),
        }
    }
}
