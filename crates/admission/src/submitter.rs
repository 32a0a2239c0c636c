//! The submitter: a bounded queue between many callers and one batch target.
//!
//! A batch leaves as soon as the target is free: an idle system adds no delay, and a busy one fills its batches. An
//! item stays in one batch, and is submitted even if its caller has disconnected.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use earmark_trace::{InQueue, TraceContext};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::backend::BackendError;

/// How long the queue stays empty before the target's `idle` runs. One second keeps timeouts accurate enough.
const IDLE: Duration = Duration::from_secs(1);
/// The share of `queue_max` reserved for returns, as a divisor: completes get a quarter more room than reserves.
const RETURNS_PART: usize = 4;

/// Executes batches, one at a time.
pub trait BatchTarget: Send + 'static {
    /// The unit of submission, which carries the way to its caller. It is never split between batches.
    type Item: Send + 'static;

    /// Most events in one batch.
    const BATCH_EVENTS_MAX: usize;

    /// Executes a batch and answers each item.
    fn submit(&mut self, batch: Vec<Self::Item>) -> impl Future<Output = ()> + Send;

    /// Called when nothing was submitted for a second.
    fn idle(&mut self) -> impl Future<Output = ()> + Send;
}

/// Whether a request reserves something or returns something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It reserves.
    Takes,
    /// It returns. Such requests get extra queue room, because a lost complete leaks its slot until the timeout.
    GivesBack,
}

/// An item and the channel for its outcome.
pub struct PendingItem<I, O> {
    /// The item.
    pub item: I,
    reply: oneshot::Sender<O>,
    trace: Option<InQueue>,
}

impl<I, O> PendingItem<I, O> {
    /// Ends the time of the item in the queue. Returns the context of its request, if that is sampled.
    pub fn dequeued(&self) -> Option<TraceContext> {
        let queued = self.trace?;
        queued.end();
        Some(queued.context())
    }

    /// Sends the outcome. This has no effect if the caller has disconnected.
    pub fn reply(self, outcome: O) {
        _ = self.reply.send(outcome);
    }
}

/// An item in the queue, and the number of events it counts as.
struct QueuedItem<T: BatchTarget> {
    item: T::Item,
    events: usize,
}

/// The callers' handle.
pub struct Submitter<T: BatchTarget> {
    sender: mpsc::UnboundedSender<Option<QueuedItem<T>>>,
    waiting: Arc<AtomicUsize>,
    under_way: Arc<AtomicUsize>,
    queue_max: usize,
    driver: Mutex<Option<JoinHandle<()>>>,
}

impl<T: BatchTarget> Submitter<T> {
    /// Starts the task that drives the target. At most `queue_max` events wait.
    pub fn start(target: T, queue_max: usize) -> Submitter<T> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let under_way = Arc::new(AtomicUsize::new(0));
        let (waits, goes) = (Arc::clone(&waiting), Arc::clone(&under_way));
        let driver = crate::spawn(Driver { target, receiver, waiting: waits, under_way: goes }.run());
        Submitter { sender, waiting, under_way, queue_max, driver: Mutex::new(Some(driver)) }
    }

    /// Whether the task has ended.
    pub fn is_stopped(&self) -> bool {
        self.sender.is_closed()
    }

    /// Events in the queue.
    pub fn depth(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Events without an answer: in the queue or being executed.
    pub fn load(&self) -> usize {
        self.depth().saturating_add(self.under_way.load(Ordering::Relaxed))
    }

    /// Queues an item that counts as `events`.
    ///
    /// # Errors
    /// When the queue is full or the submitter has stopped.
    pub fn enqueue(&self, item: T::Item, events: usize, direction: Direction) -> Result<(), BackendError> {
        let room = match direction {
            Direction::Takes => self.queue_max,
            Direction::GivesBack => self.queue_max.saturating_add(self.queue_max / RETURNS_PART),
        };
        let admit = |waiting: usize| waiting.checked_add(events).filter(|sum| *sum <= room);
        if self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, admit).is_err() {
            return Err(BackendError::Overloaded("the queue is full"));
        }
        if self.sender.send(Some(QueuedItem { item, events })).is_err() {
            self.waiting.fetch_sub(events, Ordering::Relaxed);
            return Err(BackendError::Overloaded("the server is shutting down"));
        }
        Ok(())
    }

    /// Executes queued items, then stops. Later items are refused.
    pub async fn stop(&self) {
        // `None` marks the end of the queue. The driver then closes the channel and drains it.
        _ = self.sender.send(None);
        if let Some(driver) = self.driver.lock().await.take() {
            _ = driver.await;
        }
    }
}

impl<I, O, T> Submitter<T>
where
    I: Send + 'static,
    O: Send + 'static,
    T: BatchTarget<Item = PendingItem<I, O>>,
{
    /// Queues an item that counts as `events`. It is executed even when the future is dropped.
    pub fn submit(
        &self,
        item: I,
        events: usize,
        direction: Direction,
    ) -> impl Future<Output = Result<O, BackendError>> + Send + use<I, O, T> {
        let (reply, outcome) = oneshot::channel();
        let queued = self.enqueue(PendingItem { item, reply, trace: InQueue::begin() }, events, direction);
        async move {
            queued?;
            outcome.await.map_err(|_| BackendError::Failed("the server stopped before it answered".into()))
        }
    }
}

/// The task that takes batches from the queue and hands them to the target.
struct Driver<T: BatchTarget> {
    target: T,
    receiver: mpsc::UnboundedReceiver<Option<QueuedItem<T>>>,
    waiting: Arc<AtomicUsize>,
    under_way: Arc<AtomicUsize>,
}

impl<T: BatchTarget> Driver<T> {
    async fn run(mut self) {
        let mut left_over = None;
        loop {
            let first = match left_over.take() {
                Some(work) => work,
                None => {
                    let Some(work) = self.next().await else { return };
                    // Tasks that are ready run first, so that their items join the batch. Without it each item of a
                    // busy server would be a batch of its own: a woken task runs before those that wait.
                    tokio::task::yield_now().await;
                    work
                }
            };
            let mut events = first.events;
            let mut items = vec![first.item];
            while let Some(work) = self.ready() {
                if events.saturating_add(work.events) > T::BATCH_EVENTS_MAX {
                    left_over = Some(work);
                    break;
                }
                events = events.saturating_add(work.events);
                items.push(work.item);
            }
            self.under_way.store(events, Ordering::Relaxed);
            self.waiting.fetch_sub(events, Ordering::Relaxed);
            metrics::histogram!("earmark_batch_size").record(events as f64);
            self.target.submit(items).await;
            self.under_way.store(0, Ordering::Relaxed);
        }
    }

    /// The next item, if one is waiting.
    fn ready(&mut self) -> Option<QueuedItem<T>> {
        match self.receiver.try_recv().ok()? {
            Some(work) => Some(work),
            None => {
                self.receiver.close();
                self.receiver.try_recv().ok().flatten()
            }
        }
    }

    /// Waits for an item. `None` means that the submitter was stopped.
    async fn next(&mut self) -> Option<QueuedItem<T>> {
        loop {
            if let Some(work) = self.ready() {
                return Some(work);
            }
            match tokio::time::timeout(IDLE, self.receiver.recv()).await {
                Ok(Some(Some(work))) => return Some(work),
                Ok(Some(None)) => self.receiver.close(),
                Ok(None) => return None,
                Err(_) => self.target.idle().await,
            }
        }
    }
}

#[cfg(test)]
mod tests;
