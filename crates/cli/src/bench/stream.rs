//! Load over gRPC streams `Leases`: each connection has one stream with several leases in flight.

use std::sync::Arc;

use earmark_client::{
    Actuals, Client, ClientOptions, Deadline, Job, LeaseAnswer, LeaseStream, OptionsError, Protocol, ReserveAnswer,
};
use earmark_core::LeaseId;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::job::{Call, Calls, Keys, Part};
use super::measure::{Bounds, Counts, Run, Shared, Tally, join, run_stages};
use crate::client::ServerUrl;
use crate::failure::Failure;
use crate::serve::cores;

/// The load and its server.
pub(super) struct Load<'a> {
    pub(super) url: &'a ServerUrl,
    pub(super) parts: &'a [Part],
    pub(super) streams: usize,
    /// Leases in flight on each stream.
    pub(super) in_flight: usize,
    pub(super) complete: bool,
}

/// Runs the load on half of the cores, because the server may need the other half.
pub(super) fn run(load: &Load<'_>, bounds: &Bounds) -> Result<Run, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads((cores() / 2).max(1)).enable_all().build();
    let runtime = runtime.map_err(|source| Failure::System { what: "starting the runtime", source })?;
    let mut options = load.url.options()?;
    options.protocol = Protocol::Grpc;
    let deadline = Instant::from(bounds.deadline());
    let streams = runtime.block_on(open(&options, load.streams, Deadline::at(deadline)))?;
    let (shared, keys) = (Arc::new(Shared::new()), Arc::new(Keys::of(load.parts)?));
    let inside = runtime.enter();
    let mut workers = JoinSet::new();
    for (client, stream) in streams {
        let worker = Worker {
            _client: client,
            stream,
            slots: Vec::with_capacity(load.in_flight),
            complete: load.complete,
            shared: Arc::clone(&shared),
            keys: Arc::clone(&keys),
            calls: Calls::new(),
            tally: Tally::default(),
        };
        workers.spawn(worker.run(load.in_flight, deadline));
    }
    drop(inside);
    let (measured, end) = run_stages(&shared, bounds);
    let tally = runtime.block_on(join(workers))?;
    Ok(Run { tally, measured, end, bare_ops_per_s: None })
}

/// Opens the streams, each on its own connection.
async fn open(
    options: &ClientOptions,
    count: usize,
    deadline: Deadline,
) -> Result<Vec<(Client, LeaseStream)>, Failure> {
    let mut streams = Vec::with_capacity(count);
    for _ in 0..count {
        let client = Client::new(options.clone()).map_err(|error: OptionsError| Failure::Bench(error.to_string()))?;
        let stream = client.lease_stream(deadline).await;
        let stream = stream.map_err(|failure| Failure::Bench(format!("cannot open a stream: {failure}")))?;
        streams.push((client, stream));
    }
    Ok(streams)
}

/// One lease in flight. Its index is the id of its request.
struct Slot {
    call: Call,
    lease: LeaseId,
    job: Job,
    start: Instant,
}

/// One stream.
struct Worker {
    /// Keeps the connection open.
    _client: Client,
    stream: LeaseStream,
    slots: Vec<Slot>,
    complete: bool,
    shared: Arc<Shared>,
    keys: Arc<Vec<Keys>>,
    calls: Calls,
    tally: Tally,
}

impl Worker {
    async fn run(mut self, in_flight: usize, deadline: Instant) -> Tally {
        if let Err(what) = self.work(in_flight, deadline).await {
            self.tally.note_errors(&self.shared, 1, || what);
        }
        self.tally
    }

    async fn work(&mut self, in_flight: usize, deadline: Instant) -> Result<(), String> {
        for id in 0..in_flight {
            let slot = self.slot()?;
            self.slots.push(slot);
            self.reserve(id).await?;
        }
        let mut open = in_flight;
        while open > 0 {
            let answer = timeout_at(deadline, self.stream.next()).await.map_err(|_| "no answer in time")?;
            let (id, answer) = answer.map_err(|failure| failure.to_string())?.ok_or("the server ended the stream")?;
            let id = usize::try_from(id).unwrap_or(usize::MAX);
            if self.slots.get(id).is_none() {
                return Err(format!("an answer to request {id}, which was not sent"));
            }
            let is_completing = self.note(id, answer).await?;
            if is_completing {
                continue;
            }
            if self.shared.goes_on() {
                self.slots[id] = self.slot()?;
                self.reserve(id).await?;
            } else {
                open -= 1;
            }
        }
        Ok(())
    }

    fn slot(&mut self) -> Result<Slot, String> {
        let call = self.calls.next();
        let needs = self.keys.iter().map(|keys| (keys.key(&call), keys.amount));
        let job = Job::new(needs).map_err(|error| error.to_string())?;
        Ok(Slot { lease: call.lease, call, job, start: Instant::now() })
    }

    async fn reserve(&mut self, id: usize) -> Result<(), String> {
        let Slot { lease, job, .. } = &self.slots[id];
        self.stream.reserve(id as u64, *lease, job).await.map_err(|failure| failure.to_string())
    }

    /// Counts an answer. Returns whether the lease is completed next.
    async fn note(&mut self, id: usize, answer: Result<LeaseAnswer, earmark_client::Failure>) -> Result<bool, String> {
        let Slot { call, lease, job, start } = &self.slots[id];
        let latency = start.elapsed();
        match answer {
            Ok(LeaseAnswer::Reserved(ReserveAnswer::Allowed { .. })) => {
                self.tally.note(&self.shared, latency, &Counts { allowed: 1, ..Counts::default() });
                if !self.complete {
                    return Ok(false);
                }
                let used = self.keys.iter().filter_map(|keys| Some((keys.key(call), keys.actual_amount?)));
                let actuals = used.fold(Actuals::unknown(), |all, (key, amount)| all.used(key, amount));
                let sent = self.stream.complete(id as u64, *lease, job, actuals).await;
                return sent.map(|()| true).map_err(|failure| failure.to_string());
            }
            Ok(LeaseAnswer::Reserved(ReserveAnswer::Denied(_))) => {
                self.tally.note(&self.shared, latency, &Counts { denied: 1, ..Counts::default() });
            }
            Ok(LeaseAnswer::Reserved(other)) => self.tally.note_errors(&self.shared, 1, || format!("{other:?}")),
            Ok(LeaseAnswer::Completed(completed)) if completed.reconciled => {
                self.tally.note_completed(&self.shared, 1);
            }
            Ok(LeaseAnswer::Extended(other)) => self.tally.note_errors(&self.shared, 1, || format!("{other:?}")),
            Ok(LeaseAnswer::Completed(_)) => {
                self.tally.note_errors(&self.shared, 1, || "a lease could not be completed".into());
            }
            Err(failure) => self.tally.note_errors(&self.shared, 1, || failure.to_string()),
        }
        Ok(false)
    }
}
