//! In-process load: tasks that call the backend directly.

use std::sync::Arc;
use std::time::{Duration, Instant};

use earmark_admission::{Amount, Backend, CompleteRequest, PutLimitRequest, ReserveAnswer, ReserveRequest};
use earmark_core::{Definition, NameError, NamespaceName, Principal};
use tokio::task::JoinSet;
use tokio::time::timeout_at;

use super::job::{Call, Calls, Keys, Part};
use super::measure::{Bounds, Counts, GRACE, Run, Shared, Tally, join, run_stages};
use super::target::{Scratch, Target};
use super::tigerbeetle;
use crate::failure::Failure;
use crate::serve::{LedgerUrl, runtime};

/// Most copies of the names, see [`Names`].
const NAMES_MAX: usize = 64;

/// The load and its backend.
#[derive(Clone, Copy)]
pub(super) struct Load<'a> {
    pub(super) parts: &'a [Part],
    pub(super) definitions: &'a [Definition],
    pub(super) tasks: usize,
    pub(super) batch: usize,
    pub(super) complete: bool,
    /// The folder of the node; `None` for a Book in memory.
    pub(super) scratch: Option<&'a Scratch>,
    /// The TigerBeetle cluster, instead of a node or Book.
    pub(super) ledger: Option<&'a LedgerUrl>,
}

pub(super) fn run(load: Load<'_>, bounds: &Bounds) -> Result<Run, Failure> {
    let runtime = runtime()?;
    let shared = Arc::new(Shared::new());
    let target = runtime.block_on(open(load))?;
    let bare = || match load.ledger {
        Some(url) => runtime.block_on(tigerbeetle::bare(url, load.parts, bounds.duration / 2)).map(Some),
        None => Ok(None),
    };
    let before = bare()?;
    let mut workers = JoinSet::new();
    let extra = load.ledger.map_or(Duration::ZERO, |_| tigerbeetle::RESERVE_TIMEOUT);
    let deadline = (bounds.deadline() + extra).into();
    let names = (0..load.tasks.min(NAMES_MAX)).map(|_| Names::new(load.parts).map(Arc::new));
    let names: Vec<Arc<Names>> = names.collect::<Result<_, _>>()?;
    for names in names.iter().cycle().take(load.tasks) {
        let worker = Worker {
            backend: Arc::clone(&target.backend),
            shared: Arc::clone(&shared),
            names: Arc::clone(names),
            calls: Calls::new(),
            current: Vec::with_capacity(load.batch),
            batch: load.batch,
            complete: load.complete,
            tally: Tally::default(),
        };
        workers.spawn_on(worker.run(deadline), runtime.handle());
    }
    let (measured, end) = run_stages(&shared, bounds);
    let tally = runtime.block_on(join(workers))?;
    // After the last answers, which the bare client would delay.
    let after = bare()?;
    runtime.block_on(target.shut_down())?;
    // Freeing millions of leases takes seconds, and the process ends anyway.
    std::mem::forget(target);
    let bare_ops_per_s = before.zip(after).map(|(before, after)| (before + after) / 2.0);
    Ok(Run { tally, measured, end, bare_ops_per_s })
}

fn misnamed(error: NameError) -> Failure {
    Failure::Bench(error.to_string())
}

async fn open(load: Load<'_>) -> Result<Target, Failure> {
    // All tasks may wait at the same time, which is not overload.
    let reserves = load.tasks * load.batch * 2;
    let target = match load.ledger {
        Some(url) => Target::of(tigerbeetle::open(url, reserves * (load.parts.len() + 1)).await?),
        None => Target::open(load.scratch, reserves).await?,
    };
    let namespace = NamespaceName::new(NamespaceName::DEFAULT).map_err(misnamed)?;
    for definition in load.definitions {
        let request =
            PutLimitRequest { namespace: namespace.clone(), definition: definition.clone(), expected_revision: None };
        let put = target.backend.put_limit(Principal::System, request).await;
        put.map_err(|error| Failure::Bench(format!("{}: {error}", definition.key)))?;
    }
    Ok(target)
}

/// The names in requests. A name is reference-counted, and a counter shared by all cores is slow, so tasks use several
/// copies. Requests from different processes would not share counters either.
struct Names {
    namespace: NamespaceName,
    keys: Vec<Keys>,
}

impl Names {
    fn new(parts: &[Part]) -> Result<Names, Failure> {
        let namespace = NamespaceName::new(NamespaceName::DEFAULT).map_err(misnamed)?;
        Ok(Names { namespace, keys: Keys::of(parts)? })
    }

    fn reserve(&self, call: &Call) -> ReserveRequest {
        let requirement = |keys: &Keys| Amount { key: keys.key(call), amount: keys.amount };
        ReserveRequest {
            namespace: self.namespace.clone(),
            lease: call.lease,
            job: None,
            call: None,
            by_gateway: false,
            requirements: self.keys.iter().map(requirement).collect(),
        }
    }

    fn complete(&self, call: &Call) -> CompleteRequest {
        let actual = |keys: &Keys| Some(Amount { key: keys.key(call), amount: keys.actual_amount? });
        CompleteRequest {
            namespace: self.namespace.clone(),
            lease: call.lease,
            job: None,
            claim: earmark_core::LeaseClaim::default(),
            actuals: self.keys.iter().filter_map(actual).collect(),
            labels: earmark_core::SettleLabels::NONE,
        }
    }
}

struct Worker {
    backend: Arc<dyn Backend>,
    shared: Arc<Shared>,
    names: Arc<Names>,
    calls: Calls,
    current: Vec<Call>,
    batch: usize,
    complete: bool,
    tally: Tally,
}

impl Worker {
    async fn run(mut self, deadline: tokio::time::Instant) -> Tally {
        let repeated = timeout_at(deadline, async {
            while self.shared.goes_on() {
                self.admit().await;
            }
        });
        if repeated.await.is_err() {
            let what = || format!("no answer within {} s after the end of the run", GRACE.as_secs());
            self.tally.note_errors(&self.shared, self.batch as u64, what);
        }
        self.tally
    }

    async fn admit(&mut self) {
        self.calls.tick();
        self.current.clear();
        self.current.extend((0..self.batch).map(|_| self.calls.next()));
        let requests = self.current.iter().map(|call| self.names.reserve(call)).collect();
        let start = Instant::now();
        let answers = self.backend.reserve(Principal::System, requests).await;
        let latency = start.elapsed();
        let (mut counts, mut error) = (Counts::default(), None);
        for answer in answers {
            match answer {
                Ok(ReserveAnswer::Allowed { .. }) => counts.allowed += 1,
                Ok(ReserveAnswer::Denied { .. }) => counts.denied += 1,
                other => {
                    counts.errors += 1;
                    error.get_or_insert(other);
                }
            }
        }
        self.tally.note(&self.shared, latency, &counts);
        self.tally.note_errors(&self.shared, counts.errors, || format!("{error:?}"));
        if self.complete {
            self.complete().await;
        }
    }

    async fn complete(&mut self) {
        let requests = self.current.iter().map(|call| self.names.complete(call)).collect();
        let answers = self.backend.complete(Principal::System, requests).await;
        let settled = answers.iter().flatten().filter(|answer| answer.reconciled).count();
        self.tally.note_completed(&self.shared, settled as u64);
        let missing = (self.current.len() - settled) as u64;
        self.tally.note_errors(&self.shared, missing, || "a lease could not be completed".into());
    }
}
