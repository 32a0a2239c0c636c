//! HTTP load: keep-alive connections with one request in flight on each.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout_at;

use super::job::{Call, Calls, Part};
use super::measure::{Bounds, Counts, GRACE, Run, Shared, Tally, join, run_stages};
use super::reply::{self, Reply};
use super::request::{Action, Request};
use crate::client::{self, ServerUrl};
use crate::failure::Failure;
use crate::serve::cores;

/// Reconnects per worker before it gives up, and the pause before each.
const RECONNECTS_MAX: u32 = 100;
const RECONNECT_AFTER: Duration = Duration::from_millis(10);
const REPLY_BYTES: usize = 4_096;

/// The load and its server.
#[derive(Clone)]
pub(super) struct Load {
    pub(super) url: ServerUrl,
    pub(super) headers: String,
    pub(super) parts: Vec<Part>,
    pub(super) connections: usize,
    pub(super) batch: usize,
    pub(super) complete: bool,
    /// Whether calls are reserved by attributes.
    pub(super) calls: bool,
}

/// Runs the load on half of the cores, because the server may need the other half.
pub(super) fn run(load: &Load, bounds: &Bounds) -> Result<Run, Failure> {
    let threads = (cores() / 2).clamp(1, load.connections);
    let shared = Arc::new(Shared::new());
    let (ready, is_ready) = mpsc::channel();
    let mut starts = Vec::new();
    let mut generators = Vec::new();
    for thread in 0..threads {
        let connections = load.connections / threads + usize::from(thread < load.connections % threads);
        let (start, started) = mpsc::channel();
        let (load, shared, ready) = (load.clone(), Arc::clone(&shared), ready.clone());
        let generate = move || generate(&load, connections, &shared, &ready, &started);
        let generator = std::thread::Builder::new().name(format!("load-{thread}")).spawn(generate);
        generators.push(generator.map_err(|source| Failure::System { what: "starting a thread", source })?);
        starts.push(start);
    }
    drop(ready);
    for _ in 0..threads {
        is_ready.recv().map_err(|_| Failure::Bench("a thread of the load ended early".into()))??;
    }
    let deadline = bounds.deadline();
    for start in starts {
        start.send(deadline).map_err(|_| Failure::Bench("a thread of the load ended early".into()))?;
    }
    let (measured, end) = run_stages(&shared, bounds);
    let mut tally = Tally::default();
    for generator in generators {
        let one = generator.join().map_err(|_| Failure::Bench("a thread of the load broke".into()))?;
        tally.merge(one?);
    }
    Ok(Run { tally, measured, end, bare_ops_per_s: None })
}

/// One load thread: connects, waits for the start, and sends until the run ends.
fn generate(
    load: &Load,
    connections: usize,
    shared: &Arc<Shared>,
    ready: &mpsc::Sender<Result<(), Failure>>,
    started: &mpsc::Receiver<Instant>,
) -> Result<Tally, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| Failure::System { what: "starting the runtime", source })?;
    let streams = runtime.block_on(async {
        let mut streams = Vec::with_capacity(connections);
        for _ in 0..connections {
            streams.push(load.url.connect().await?);
        }
        Ok(streams)
    });
    let streams: Vec<TcpStream> = match streams {
        Ok(streams) => streams,
        Err(failure) => {
            _ = ready.send(Err(failure));
            return Ok(Tally::default());
        }
    };
    _ = ready.send(Ok(()));
    // The sender is dropped without a start if another thread could not connect.
    let Ok(deadline) = started.recv() else { return Ok(Tally::default()) };
    runtime.block_on(async {
        let mut workers = JoinSet::new();
        for stream in streams {
            let worker = Worker::new(load, Arc::clone(shared), stream);
            workers.spawn(worker.run(deadline.into()));
        }
        let tally = join(workers).await;
        shared.end();
        tally
    })
}

struct Worker {
    url: ServerUrl,
    shared: Arc<Shared>,
    stream: TcpStream,
    calls: Calls,
    current: Vec<Call>,
    reserve: Request,
    complete: Option<Request>,
    reply: Vec<u8>,
    tally: Tally,
}

impl Worker {
    fn new(load: &Load, shared: Arc<Shared>, stream: TcpStream) -> Worker {
        let request = |action| Request::new(action, &load.headers, &load.parts, load.batch);
        Worker {
            url: load.url.clone(),
            shared,
            stream,
            calls: Calls::new(),
            current: Vec::with_capacity(load.batch),
            reserve: request(if load.calls { Action::Call } else { Action::Reserve }),
            complete: load.complete.then(|| request(Action::Complete)),
            reply: Vec::with_capacity(REPLY_BYTES),
            tally: Tally::default(),
        }
    }

    /// Sends until the run ends. One timer serves the whole run, because a timer per request would cost as much as the
    /// request.
    async fn run(mut self, deadline: tokio::time::Instant) -> Tally {
        if timeout_at(deadline, self.repeat()).await.is_err() {
            let what = || format!("no answer within {} s after the end of the run", GRACE.as_secs());
            self.tally.note_errors(&self.shared, self.current.len() as u64, what);
        }
        self.tally
    }

    async fn repeat(&mut self) {
        let mut reconnects = 0;
        let calls = self.reserve.calls();
        while self.shared.goes_on() {
            self.calls.tick();
            self.current.clear();
            self.current.extend((0..calls).map(|_| self.calls.next()));
            let Err(what) = self.admit().await else { continue };
            self.tally.note_errors(&self.shared, calls as u64, || what);
            if reconnects == RECONNECTS_MAX {
                return;
            }
            reconnects += 1;
            tokio::time::sleep(RECONNECT_AFTER).await;
            if let Ok(stream) = self.url.connect().await {
                self.stream = stream;
            }
        }
    }

    /// Reserves the current calls and, with `complete`, completes them. Error answers are counted; an `Err` is a broken
    /// connection.
    async fn admit(&mut self) -> Result<(), String> {
        let calls = self.current.len() as u64;
        self.reserve.fill(self.current.iter().copied());
        let start = Instant::now();
        let reply = exchange(&mut self.stream, self.reserve.bytes(), &mut self.reply).await?;
        let latency = start.elapsed();
        let body = &self.reply[reply.body];
        let counts = match reply.status {
            200 => reply::reserve_counts(body, calls),
            _ => Counts { errors: calls, ..Counts::default() },
        };
        self.tally.note(&self.shared, latency, &counts);
        self.tally.note_errors(&self.shared, counts.errors, || describe(reply.status, body));
        let Some(complete) = &mut self.complete else { return Ok(()) };
        complete.fill(self.current.iter().copied());
        let reply = exchange(&mut self.stream, complete.bytes(), &mut self.reply).await?;
        let body = &self.reply[reply.body];
        let settled = reply::settled(body).min(calls);
        self.tally.note_completed(&self.shared, settled);
        let missing = counts.allowed.saturating_sub(settled);
        self.tally.note_errors(&self.shared, missing, || describe(reply.status, body));
        Ok(())
    }
}

/// Sends `request` and reads the answer into `bytes`.
async fn exchange(stream: &mut TcpStream, request: &[u8], bytes: &mut Vec<u8>) -> Result<Reply, String> {
    stream.write_all(request).await.map_err(|error| error.to_string())?;
    bytes.clear();
    loop {
        if stream.read_buf(bytes).await.map_err(|error| error.to_string())? == 0 {
            return Err("the server closed the connection".into());
        }
        if let Some(reply) = reply::parse(bytes)? {
            return Ok(reply);
        }
    }
}

fn describe(status: u16, body: &[u8]) -> String {
    format!("status {status}: {}", client::excerpt(body))
}
