//! The batcher: callers share requests.
//!
//! Items wait in a bounded queue, one for each kind of request, so that a batch never mixes them. A batch
//! leaves as soon as a request slot is free: an idle batcher adds no delay, and a busy one fills its batches. The batcher
//! does not retry: each caller gets the answer to its own item.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::client::Client;
use crate::deadline::Deadline;
use crate::failure::Failure;
use crate::request::{Batch, Item};

/// The number of items that a server takes in one request.
const BATCH_MAX: usize = 256;
/// Bytes of one batch. A server refuses bodies over 1 MiB.
const BATCH_BYTES_MAX: usize = 900 << 10;

/// How callers share requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchOptions {
    /// Concurrent requests, of reserves, extensions and completes each. A higher value means smaller batches and less waiting.
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

/// The sending end of one queue.
pub(crate) struct Batcher<I: Item> {
    sender: mpsc::Sender<Waiting<I>>,
    waiting_max: usize,
}

impl<I: Item> Batcher<I> {
    /// Starts the task that sends batches. It ends once this is dropped and the queue is empty.
    pub(crate) fn start(client: Client, options: BatchOptions, handle: &Handle) -> Batcher<I> {
        let waiting_max = options.waiting_max.clamp(1, Semaphore::MAX_PERMITS);
        let (sender, receiver) = mpsc::channel(waiting_max);
        let in_flight = options.in_flight_max.clamp(1, Semaphore::MAX_PERMITS);
        let driver = Driver { client, receiver, slots: Arc::new(Semaphore::new(in_flight)), left: None };
        handle.spawn(driver.run());
        Batcher { sender, waiting_max }
    }

    /// Sends one item in a batch with other waiting items. An answer after its deadline is not needed.
    pub(crate) async fn ask(&self, item: I, deadline: Deadline) -> Result<I::Answer, Failure> {
        let (reply, answer) = oneshot::channel();
        match self.sender.try_send(Waiting { item, deadline, reply }) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => return Err(Failure::Busy { waiting_max: self.waiting_max }),
            Err(TrySendError::Closed(_)) => return Err(lost()),
        }
        answer.await.unwrap_or_else(|_| Err(lost()))
    }
}

/// The batcher task is gone, because its runtime stopped.
fn lost() -> Failure {
    Failure::NoAnswer { server: "the batcher".into(), why: "its runtime has stopped".into() }
}

/// The task that fills and sends batches.
struct Driver<I: Item> {
    client: Client,
    receiver: mpsc::Receiver<Waiting<I>>,
    slots: Arc<Semaphore>,
    /// The item that did not fit into the last batch.
    left: Option<Waiting<I>>,
}

impl<I: Item> Driver<I> {
    async fn run(mut self) {
        loop {
            let first = match self.left.take() {
                Some(waiting) => waiting,
                None => match self.receiver.recv().await {
                    Some(waiting) => waiting,
                    None => return,
                },
            };
            // Items that arrive while all slots are taken share the batch.
            let Ok(slot) = Arc::clone(&self.slots).acquire_owned().await else { return };
            let batch = self.batch(first);
            if !batch.is_empty() {
                tokio::spawn(send(self.client.clone(), batch, slot));
            }
        }
    }

    /// The waiting items, as many as fit into one request. Items of callers that are gone are not sent: those callers
    /// have given up their leases.
    fn batch(&mut self, first: Waiting<I>) -> Vec<Waiting<I>> {
        let mut bytes = first.item.bytes();
        let mut batch = vec![first];
        batch.retain(|waiting| !waiting.reply.is_closed());
        while batch.len() < BATCH_MAX {
            let Ok(waiting) = self.receiver.try_recv() else { break };
            if waiting.reply.is_closed() {
                continue;
            }
            bytes += waiting.item.bytes();
            if bytes > BATCH_BYTES_MAX {
                self.left = Some(waiting);
                break;
            }
            batch.push(waiting);
        }
        batch
    }
}

/// Sends one batch, and hands every caller its own answer.
async fn send<I: Item>(client: Client, batch: Vec<Waiting<I>>, slot: OwnedSemaphorePermit) {
    // The request ends at the latest deadline, so that later callers go to another server. It must not end earlier: one
    // caller in a hurry must not end the request of the others.
    let latest = batch.iter().map(|waiting| waiting.deadline).max();
    let deadline = latest.unwrap_or_else(|| Deadline::after(Duration::ZERO));
    let mut parts = vec![batch];
    while let Some(mut part) = parts.pop() {
        let (items, replies): (Vec<I>, Vec<_>) = part.drain(..).map(|waiting| (waiting.item, waiting.reply)).unzip();
        let batch = Batch(items);
        let answers = client.ask_once(&batch, deadline).await;
        // One malformed item makes the server refuse the whole batch, and nothing was executed. The others must not fail
        // with it.
        if let Err(Failure::Invalid { .. }) = answers
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
    drop(slot);
}
