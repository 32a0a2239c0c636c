//! Shared state of the workers, their counters, and the stages of a run.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::histogram::Histogram;
use crate::failure::Failure;
use crate::output::thousands;

/// Longest warm-up that is not counted, while connections, caches and the branch predictor are cold.
const WARM_UP_MAX: Duration = Duration::from_secs(1);
/// How long workers may wait for their last answers after the end of the run.
pub(super) const GRACE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(10);
const SECOND: Duration = Duration::from_secs(1);

const WARMING_UP: u8 = 0;
const MEASURING: u8 = 1;
const STOPPING: u8 = 2;

pub(super) struct Shared {
    stage: AtomicU8,
    /// All reserves, including warm-up.
    ops: AtomicU64,
    errors: AtomicU64,
    is_over: AtomicBool,
}

impl Shared {
    pub(super) fn new() -> Shared {
        Shared {
            stage: AtomicU8::new(WARMING_UP),
            ops: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        }
    }

    pub(super) fn goes_on(&self) -> bool {
        self.stage.load(Ordering::Relaxed) != STOPPING
    }

    /// Ends the run early, because all workers have ended.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) allowed: u64,
    pub(super) denied: u64,
    pub(super) errors: u64,
}

/// The counters of one worker, or the sum of all.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) latency: Histogram,
    pub(super) allowed: u64,
    pub(super) denied: u64,
    pub(super) completed: u64,
    /// Errors, including those of the warm-up.
    pub(super) errors: u64,
    pub(super) first_error: Option<String>,
}

impl Tally {
    pub(super) fn note(&mut self, shared: &Shared, latency: Duration, counts: &Counts) {
        let ops = counts.allowed + counts.denied;
        shared.ops.fetch_add(ops, Ordering::Relaxed);
        if shared.stage.load(Ordering::Relaxed) == MEASURING {
            self.latency.record(latency, ops);
            self.allowed += counts.allowed;
            self.denied += counts.denied;
        }
    }

    pub(super) fn note_completed(&mut self, shared: &Shared, completed: u64) {
        if shared.stage.load(Ordering::Relaxed) == MEASURING {
            self.completed += completed;
        }
    }

    /// Counts errors and keeps the message of the first.
    pub(super) fn note_errors(&mut self, shared: &Shared, errors: u64, what: impl FnOnce() -> String) {
        if errors > 0 {
            shared.errors.fetch_add(errors, Ordering::Relaxed);
            self.errors += errors;
            self.first_error.get_or_insert_with(what);
        }
    }

    /// Counts an error outside of the workers.
    pub(super) fn add_error(&mut self, what: String) {
        self.errors += 1;
        self.first_error.get_or_insert(what);
    }

    pub(super) fn merge(&mut self, other: Tally) {
        self.latency.merge(&other.latency);
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.completed += other.completed;
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
    }
}

/// The end of a run by time and by count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) duration: Duration,
    pub(super) ops_max: u64,
    pub(super) progress: Progress,
}

impl Bounds {
    /// When workers stop waiting for answers.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.warm_up() + self.duration + GRACE
    }

    /// One second, or less for a shorter run.
    pub(super) fn warm_up(&self) -> Duration {
        self.duration.min(WARM_UP_MAX)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    None,
    /// A new line every second.
    Lines,
    /// One line, updated every second.
    OneLine,
}

impl Progress {
    /// Always shows progress on a terminal; elsewhere unless `--json` was given.
    pub(super) fn choose(is_json: bool) -> Progress {
        match (io::stderr().is_terminal(), is_json) {
            (true, _) => Progress::OneLine,
            (false, false) => Progress::Lines,
            (false, true) => Progress::None,
        }
    }

    fn show(self, text: &str) {
        let mut stderr = io::stderr().lock();
        // Progress is optional, so a failed write is ignored.
        _ = match self {
            Progress::None => Ok(()),
            Progress::Lines => writeln!(stderr, "{text}"),
            Progress::OneLine => write!(stderr, "\r\x1b[K{text}").and_then(|()| stderr.flush()),
        };
    }

    fn end(self) {
        if self == Progress::OneLine {
            self.show("");
        }
    }
}

/// Shows the progress of a loop once per second.
pub(super) struct Steps {
    progress: Progress,
    what: &'static str,
    total: usize,
    done: usize,
    shown: Instant,
}

impl Steps {
    pub(super) fn new(progress: Progress, what: &'static str, total: usize) -> Steps {
        Steps { progress, what, total, done: 0, shown: Instant::now() }
    }

    pub(super) fn step(&mut self) {
        self.done += 1;
        if self.shown.elapsed() >= SECOND {
            self.shown = Instant::now();
            let (done, total) = (thousands(self.done as u128), thousands(self.total as u128));
            self.progress.show(&format!("{}: {done} of {total}", self.what));
        }
        if self.done == self.total {
            self.progress.end();
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Time,
    Ops,
    /// All workers ended early.
    Workers,
}

pub(super) struct Run {
    pub(super) tally: Tally,
    pub(super) measured: Duration,
    pub(super) end: End,
    /// Ops per second of a bare TigerBeetle client.
    pub(super) bare_ops_per_s: Option<f64>,
}

/// Adds up the counters of all workers.
pub(super) async fn join(mut workers: JoinSet<Tally>) -> Result<Tally, Failure> {
    let mut tally = Tally::default();
    while let Some(worker) = workers.join_next().await {
        tally.merge(worker.map_err(|error| Failure::Bench(error.to_string()))?);
    }
    Ok(tally)
}

/// Leads the workers through warm-up, measurement and stop. Returns the measured time and why the run ended.
pub(super) fn run_stages(shared: &Shared, bounds: &Bounds) -> (Duration, End) {
    let start = Instant::now();
    let (mut seconds, mut ops_before) = (0, 0);
    let mut measuring_since = None;
    loop {
        std::thread::sleep(POLL);
        let ops = shared.ops.load(Ordering::Relaxed);
        if measuring_since.is_none() && start.elapsed() >= bounds.warm_up() {
            shared.stage.store(MEASURING, Ordering::Relaxed);
            measuring_since = Some(Instant::now());
        }
        let measured = measuring_since.map_or(Duration::ZERO, |since| since.elapsed());
        let end = match () {
            () if measured >= bounds.duration => Some(End::Time),
            () if ops >= bounds.ops_max => Some(End::Ops),
            () if shared.is_over.load(Ordering::Relaxed) => Some(End::Workers),
            () => None,
        };
        if let Some(end) = end {
            shared.stage.store(STOPPING, Ordering::Relaxed);
            bounds.progress.end();
            return (measured, end);
        }
        if start.elapsed() >= SECOND * (seconds + 1) {
            seconds += 1;
            let what = if seconds <= 1 { "warm-up, " } else { "" };
            let errors = thousands(shared.errors.load(Ordering::Relaxed).into());
            let rate = thousands((ops - ops_before).into());
            bounds.progress.show(&format!("{seconds:>4} s: {what}{rate} ops/s, {errors} errors"));
            ops_before = ops;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_answers_while_measuring_count_but_all_errors_do() {
        let shared = Shared::new();
        let mut tally = Tally::default();
        let counts = Counts { allowed: 2, denied: 1, errors: 0 };
        for stage in [WARMING_UP, MEASURING, STOPPING] {
            shared.stage.store(stage, Ordering::Relaxed);
            tally.note(&shared, Duration::from_micros(5), &counts);
            tally.note_completed(&shared, 2);
            tally.note_errors(&shared, 1, || format!("error {stage}"));
            tally.note_errors(&shared, 0, || "none".to_owned());
        }
        assert_eq!((tally.allowed, tally.denied, tally.completed, tally.errors), (2, 1, 2, 3));
        assert_eq!(tally.first_error.as_deref(), Some("error 0"));
        assert_eq!(shared.ops.load(Ordering::Relaxed), 9);
    }

    #[test]
    fn a_run_ends_by_count_or_when_all_workers_have_ended() {
        let bounds = Bounds { duration: SECOND * 60, ops_max: 3, progress: Progress::None };
        let shared = Shared::new();
        shared.ops.store(3, Ordering::Relaxed);
        assert_eq!(run_stages(&shared, &bounds), (Duration::ZERO, End::Ops));
        assert!(!shared.goes_on());
        let shared = Shared::new();
        shared.end();
        assert_eq!(run_stages(&shared, &bounds), (Duration::ZERO, End::Workers));
    }
}
