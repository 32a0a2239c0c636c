//! The batcher: callers share requests.
//!
//! Items wait in a bounded queue, one for each kind of request and each client that a gateway calls for, so that a batch
//! never mixes them. A batch leaves as soon as a request slot of its queue is free: an idle batcher adds no delay, and a
//! busy one fills its batches. The batcher does not retry: each caller gets the answer to its own item.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use earmark_trace::carried;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::client::Client;
use crate::deadline::Deadline;
use crate::failure::Failure;
use crate::key::ClientKey;
use crate::request::{Batch, Item};

/// The number of items that a server takes in one request.
const BATCH_MAX: usize = 256;
/// Bytes of one batch. A server refuses bodies over 1 MiB.
const BATCH_BYTES_MAX: usize = 900 << 10;

/// How callers share requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchOptions {
    /// Concurrent requests, of reserves, extensions and completes each. A higher value means smaller batches and less
    /// waiting. Calls of a gateway are counted for each of its clients.
    pub in_flight_max: usize,
    /// Waiting items, of reserves, extensions and completes each. Beyond it callers back off and retry.
    pub waiting_max: usize,
}

impl Default for BatchOptions {
    fn default() -> BatchOptions {
        BatchOptions { in_flight_max: 4, waiting_max: 65_536 }
    }
}

/// Sends one item in a request of its own.
pub(crate) async fn ask_alone<I: Item>(client: &Client, item: I, deadline: Deadline) -> Result<I::Answer, Failure> {
    // The answer to a batch of one has one item.
    let answers = client.ask_once(&Batch(vec![item]), deadline).await?;
    answers.into_iter().next().unwrap_or_else(|| Err(lost()))
}

/// An item that waits for a batch.
struct Waiting<I: Item> {
    item: I,
    deadline: Deadline,
    reply: oneshot::Sender<Result<I::Answer, Failure>>,
}

/// The queues of one kind of request.
pub(crate) struct Batcher<I: Item>(Arc<Shared<I>>);

struct Shared<I: Item> {
    client: Client,
    options: BatchOptions,
    /// The runtime that sends. That of a caller may stop while its batch has items of others.
    handle: Handle,
    queues: Mutex<Queues<I>>,
}

/// The queues of a batcher. One without items and requests is removed.
struct Queues<I: Item> {
    of_clients: HashMap<Option<ClientKey>, Queue<I>>,
    /// Items of all queues.
    waiting: usize,
}

struct Queue<I: Item> {
    waiting: VecDeque<Waiting<I>>,
    /// Tasks that send batches of this queue.
    in_flight: usize,
}

impl<I: Item> Batcher<I> {
    pub(crate) fn new(client: Client, options: BatchOptions, handle: Handle) -> Batcher<I> {
        let BatchOptions { in_flight_max, waiting_max } = options;
        let options = BatchOptions { in_flight_max: in_flight_max.max(1), waiting_max: waiting_max.max(1) };
        let queues = Mutex::new(Queues { of_clients: HashMap::new(), waiting: 0 });
        Batcher(Arc::new(Shared { client, options, handle, queues }))
    }

    /// Sends one item in a batch with other waiting items. An answer after its deadline is not needed.
    pub(crate) async fn ask(&self, item: I, deadline: Deadline) -> Result<I::Answer, Failure> {
        let (reply, answer) = oneshot::channel();
        if let Some(sender) = self.0.push(Waiting { item, deadline, reply })? {
            // Boxed: a large future would be copied several times.
            self.0.handle.spawn(Box::pin(carried(sender.run())));
        }
        answer.await.unwrap_or_else(|_| Err(lost()))
    }
}

impl<I: Item> Shared<I> {
    /// Puts an item into its queue. Returns a task that must run if a request slot is free.
    fn push(self: &Arc<Self>, waiting: Waiting<I>) -> Result<Option<Sender<I>>, Failure> {
        let BatchOptions { in_flight_max, waiting_max } = self.options;
        let client = waiting.item.client().cloned();
        let mut queues = self.lock();
        if queues.waiting >= waiting_max {
            return Err(Failure::Busy { waiting_max });
        }
        queues.waiting += 1;
        let queue = queues.of_clients.entry(client.clone()).or_insert_with(Queue::new);
        queue.waiting.push_back(waiting);
        if queue.in_flight >= in_flight_max {
            return Ok(None);
        }
        queue.in_flight += 1;
        Ok(Some(Sender { shared: Arc::clone(self), client, is_done: false }))
    }

    fn lock(&self) -> MutexGuard<'_, Queues<I>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task that sends the batch is gone, because its runtime stopped.
fn lost() -> Failure {
    Failure::NoAnswer { server: "the batcher".into(), why: "its runtime has stopped".into() }
}

impl<I: Item> Queue<I> {
    const fn new() -> Queue<I> {
        Queue { waiting: VecDeque::new(), in_flight: 0 }
    }

    /// The next batch, and the number of items that were taken for it. Items of callers that are gone are not sent: those
    /// callers have given up their leases.
    fn batch(&mut self) -> (Vec<Waiting<I>>, usize) {
        let (mut batch, mut bytes, before) = (Vec::new(), 0, self.waiting.len());
        while batch.len() < BATCH_MAX
            && let Some(waiting) = self.waiting.pop_front()
        {
            if waiting.reply.is_closed() {
                continue;
            }
            bytes += waiting.item.bytes();
            if bytes > BATCH_BYTES_MAX && !batch.is_empty() {
                self.waiting.push_front(waiting);
                break;
            }
            batch.push(waiting);
        }
        (batch, before - self.waiting.len())
    }
}

/// A request slot in use: the task that sends batches until nothing waits.
struct Sender<I: Item> {
    shared: Arc<Shared<I>>,
    client: Option<ClientKey>,
    is_done: bool,
}

impl<I: Item> Sender<I> {
    async fn run(mut self) {
        while let Some(batch) = self.next() {
            send(&self.shared.client, batch).await;
        }
    }

    /// The next batch. Without one the slot is free.
    fn next(&mut self) -> Option<Vec<Waiting<I>>> {
        let mut queues = self.shared.lock();
        let queue = queues.of_clients.get_mut(&self.client)?;
        let (batch, taken) = queue.batch();
        if batch.is_empty() {
            self.is_done = true;
            queue.in_flight -= 1;
            if queue.in_flight == 0 {
                queues.of_clients.remove(&self.client);
            }
        }
        queues.waiting -= taken;
        Some(batch).filter(|batch| !batch.is_empty())
    }
}

impl<I: Item> Drop for Sender<I> {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        // The runtime has stopped. Callers that wait must not wait forever.
        let mut queues = self.shared.lock();
        let Some(queue) = queues.of_clients.get_mut(&self.client) else { return };
        queue.in_flight -= 1;
        if queue.in_flight == 0 {
            let waiting = queue.waiting.len();
            queues.of_clients.remove(&self.client);
            queues.waiting -= waiting;
        }
    }
}

/// Sends one batch, and hands every caller its own answer.
async fn send<I: Item>(client: &Client, batch: Vec<Waiting<I>>) {
    // The request ends at the latest deadline, so that later callers go to another server. It must not end earlier: one
    // caller in a hurry must not end the request of the others.
    let latest = batch.iter().map(|waiting| waiting.deadline).max();
    let deadline = latest.unwrap_or_else(|| Deadline::after(Duration::ZERO));
    let mut parts = vec![batch];
    while let Some(mut part) = parts.pop() {
        let (items, replies): (Vec<I>, Vec<_>) = part.drain(..).map(|waiting| (waiting.item, waiting.reply)).unzip();
        let batch = Batch(items);
        let answers = client.ask_once(&batch, deadline).await;
        // One item that is malformed or not allowed makes the server refuse the whole batch, and nothing was executed. The
        // others must not fail with it.
        if let Err(Failure::Invalid { .. } | Failure::Forbidden { .. }) = answers
            && replies.len() > 1
        {
            let again = batch.0.into_iter().zip(replies).map(|(item, reply)| Waiting { item, deadline, reply });
            part.extend(again);
            parts.push(part.split_off(part.len() / 2));
            parts.push(part);
            continue;
        }
        let answers = answers.unwrap_or_else(|failure| replies.iter().map(|_| Err(failure.clone())).collect());
        for (reply, answer) in replies.into_iter().zip(answers) {
            // The caller may be gone.
            _ = reply.send(answer);
        }
    }
}
