//! The batcher: many callers, few requests.
//!
//! What callers ask waits in a bounded queue, reserves in one and completes in another, so that they are never mixed. A
//! request leaves as soon as one of a few places is free: an idle batcher adds no delay, and a busy one fills its
//! requests. Nothing is retried here: each caller gets what became of its own item, and decides.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::ask::{Answer, Ask, BATCH_MAX, CompleteItem, Completed, ReserveAnswer, ReserveItem};
use crate::client::{Client, mixed_up};
use crate::deadline::Deadline;
use crate::failure::Failure;

/// A server refuses bodies over 1 MiB.
const BATCH_BYTES_MAX: usize = 900 << 10;
/// The bytes of an item besides its keys, and of an amount beside its key: more than either can take.
const ITEM_BYTES: usize = 256;
const PART_BYTES: usize = 64;

/// How callers share requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchOptions {
    /// How many requests of either kind may be in flight. More make smaller requests and less waiting.
    pub in_flight_max: usize,
    /// How many items of either kind may wait. Beyond it callers wait and try again.
    pub waiting_max: usize,
}

impl Default for BatchOptions {
    fn default() -> BatchOptions {
        BatchOptions { in_flight_max: 4, waiting_max: 65_536 }
    }
}

/// What can share a request with others of its kind.
pub(crate) trait Item: Send + Sync + 'static {
    type Answer: Send + 'static;

    /// How long it is in a request, at most.
    fn bytes(&self) -> usize;

    fn ask(items: Vec<Self>) -> Ask
    where
        Self: Sized;

    fn answers(answer: Answer) -> Option<Vec<Result<Self::Answer, Failure>>>;
}

impl Item for ReserveItem {
    type Answer = ReserveAnswer;

    fn bytes(&self) -> usize {
        let parts = self.job.requirements().iter().map(|(key, _)| key.as_str().len() + PART_BYTES);
        ITEM_BYTES + parts.sum::<usize>()
    }

    fn ask(items: Vec<ReserveItem>) -> Ask {
        Ask::Reserve(items)
    }

    fn answers(answer: Answer) -> Option<Vec<Result<ReserveAnswer, Failure>>> {
        match answer {
            Answer::Reserve(answers) => Some(answers),
            _ => None,
        }
    }
}

impl Item for CompleteItem {
    type Answer = Completed;

    fn bytes(&self) -> usize {
        let parts = self.actuals.amounts().iter().map(|(key, _)| key.as_str().len() + PART_BYTES);
        ITEM_BYTES + parts.sum::<usize>()
    }

    fn ask(items: Vec<CompleteItem>) -> Ask {
        Ask::Complete(items)
    }

    fn answers(answer: Answer) -> Option<Vec<Result<Completed, Failure>>> {
        match answer {
            Answer::Complete(answers) => Some(answers),
            _ => None,
        }
    }
}

/// Asks for one item alone.
pub(crate) async fn ask_alone<I: Item>(
    client: &Client,
    item: I,
    deadline: Deadline,
) -> Result<I::Answer, Failure> {
    let answers = I::answers(client.ask_once(&I::ask(vec![item]), deadline).await?);
    answers.and_then(|answers| answers.into_iter().next()).unwrap_or_else(|| Err(mixed_up()))
}

struct Waiting<I: Item> {
    item: I,
    deadline: Deadline,
    reply: oneshot::Sender<Result<I::Answer, Failure>>,
}

/// The callers' end of one queue.
pub(crate) struct Batcher<I: Item> {
    sender: mpsc::Sender<Waiting<I>>,
    waiting_max: usize,
}

impl<I: Item> Batcher<I> {
    /// Starts the task that makes requests. It ends when this is dropped and nothing waits any more.
    pub(crate) fn start(client: Client, options: BatchOptions, handle: &Handle) -> Batcher<I> {
        let waiting_max = options.waiting_max.clamp(1, Semaphore::MAX_PERMITS);
        let (sender, receiver) = mpsc::channel(waiting_max);
        let in_flight = options.in_flight_max.clamp(1, Semaphore::MAX_PERMITS);
        let driver = Driver { client, receiver, slots: Arc::new(Semaphore::new(in_flight)), left: None };
        handle.spawn(driver.run());
        Batcher { sender, waiting_max }
    }

    /// Asks for one item, together with whatever else waits. After its deadline nobody wants its answer.
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

/// The task that was to answer is gone, because its runtime is.
fn lost() -> Failure {
    Failure::NoAnswer { server: "the batcher".into(), why: "its runtime has stopped".into() }
}

struct Driver<I: Item> {
    client: Client,
    receiver: mpsc::Receiver<Waiting<I>>,
    slots: Arc<Semaphore>,
    /// What did not fit into the last request.
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
            // While all places are taken others come, and share the request.
            let Ok(slot) = Arc::clone(&self.slots).acquire_owned().await else { return };
            let batch = self.batch(first);
            if !batch.is_empty() {
                tokio::spawn(send(self.client.clone(), batch, slot));
            }
        }
    }

    /// What waits now, as much as fits into one request. What nobody waits for any more is not sent at all: its
    /// caller has given its lease up already.
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

/// Sends one request, and gives every caller its own answer.
async fn send<I: Item>(client: Client, batch: Vec<Waiting<I>>, slot: OwnedSemaphorePermit) {
    // A server that does not answer is held to it as soon as nobody waits for it, and the next callers ask another.
    // Not sooner: one caller that is in a hurry must not end the request of all the others.
    let latest = batch.iter().map(|waiting| waiting.deadline).max();
    let deadline = latest.unwrap_or_else(|| Deadline::after(Duration::ZERO));
    let (items, replies): (Vec<I>, Vec<_>) =
        batch.into_iter().map(|waiting| (waiting.item, waiting.reply)).unzip();
    let answer = client.ask_once(&I::ask(items), deadline).await;
    drop(slot);
    let answers = answer.and_then(|answer| I::answers(answer).ok_or_else(mixed_up));
    match answers {
        Ok(answers) => {
            for (reply, answer) in replies.into_iter().zip(answers) {
                // A caller that went away does not want to know.
                _ = reply.send(answer);
            }
        }
        Err(failure) => {
            for reply in replies {
                _ = reply.send(Err(failure.clone()));
            }
        }
    }
}
