//! The submitter: many callers, one target.
//!
//! Items wait in a bounded queue. A batch leaves as soon as the target is free, so that an idle system adds
//! no delay and a busy one fills its batches. An item goes into one batch as a whole, and is submitted even
//! if its caller went away meanwhile: what was promised to nobody is still taken.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::backend::BackendError;

/// How long the target is left alone when nothing comes.
const IDLE: Duration = Duration::from_secs(1);
/// Of the room in the queue, so much more is kept for work that gives something back.
const RETURNS_PART: usize = 4;

/// What takes batches, one at a time.
pub trait BatchTarget: Send + 'static {
    /// What is submitted as a whole.
    type Item: Send + 'static;
    /// What becomes of it.
    type Outcome: Send + 'static;

    /// The most events of one batch.
    const BATCH_EVENTS_MAX: usize;

    /// Carries a batch out. The outcomes are in the order of the items.
    fn submit(&mut self, batch: Vec<Self::Item>) -> impl Future<Output = Vec<Self::Outcome>> + Send;

    /// Nothing came for a second.
    fn idle(&mut self) -> impl Future<Output = ()> + Send;
}

/// Whether work takes something, or gives something back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It takes.
    Takes,
    /// Room is kept for it: a complete that is lost is a slot that leaks.
    GivesBack,
}

struct QueuedItem<T: BatchTarget> {
    item: T::Item,
    events: usize,
    reply: oneshot::Sender<T::Outcome>,
}

/// The callers' end.
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
        let driver = tokio::spawn(Driver { target, receiver, waiting: waits, under_way: goes }.run());
        Submitter { sender, waiting, under_way, queue_max, driver: Mutex::new(Some(driver)) }
    }

    /// Whether nothing is carried out any more.
    pub fn is_stopped(&self) -> bool {
        self.sender.is_closed()
    }

    /// How many events wait.
    pub fn depth(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// How many events have no answer yet: those that wait, and those that are being carried out.
    pub fn load(&self) -> usize {
        self.depth().saturating_add(self.under_way.load(Ordering::Relaxed))
    }

    /// Puts an item of so many events into the queue. It is carried out whether or not the answer is waited
    /// for.
    pub fn submit(
        &self,
        item: T::Item,
        events: usize,
        direction: Direction,
    ) -> impl Future<Output = Result<T::Outcome, BackendError>> + Send + use<T> {
        let queued = self.enqueue(item, events, direction);
        async move {
            let lost = |_| BackendError::Failed("the target stopped before it answered".into());
            queued?.await.map_err(lost)
        }
    }

    fn enqueue(
        &self,
        item: T::Item,
        events: usize,
        direction: Direction,
    ) -> Result<oneshot::Receiver<T::Outcome>, BackendError> {
        let room = match direction {
            Direction::Takes => self.queue_max,
            Direction::GivesBack => self.queue_max.saturating_add(self.queue_max / RETURNS_PART),
        };
        let admit = |waiting: usize| waiting.checked_add(events).filter(|sum| *sum <= room);
        if self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, admit).is_err() {
            return Err(BackendError::Overloaded("too much is waiting already"));
        }
        let (reply, answer) = oneshot::channel();
        if self.sender.send(Some(QueuedItem { item, events, reply })).is_err() {
            self.waiting.fetch_sub(events, Ordering::Relaxed);
            return Err(BackendError::Overloaded("it has stopped"));
        }
        Ok(answer)
    }

    /// Carries out what waits, then stops. Whatever comes later is refused.
    pub async fn stop(&self) {
        // Nothing may be sent behind the end: once it is received the queue is closed and emptied.
        _ = self.sender.send(None);
        if let Some(driver) = self.driver.lock().await.take() {
            _ = driver.await;
        }
    }
}

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
                None => match self.next().await {
                    Some(work) => work,
                    None => return,
                },
            };
            let mut events = first.events;
            let mut items = vec![first.item];
            let mut replies = vec![first.reply];
            while let Some(work) = self.ready() {
                if events.saturating_add(work.events) > T::BATCH_EVENTS_MAX {
                    left_over = Some(work);
                    break;
                }
                events = events.saturating_add(work.events);
                items.push(work.item);
                replies.push(work.reply);
            }
            self.under_way.store(events, Ordering::Relaxed);
            self.waiting.fetch_sub(events, Ordering::Relaxed);
            metrics::histogram!("earmark_batch_size").record(events as f64);
            let outcomes = self.target.submit(items).await;
            self.under_way.store(0, Ordering::Relaxed);
            for (reply, outcome) in replies.into_iter().zip(outcomes) {
                // A caller that went away does not want to know.
                _ = reply.send(outcome);
            }
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

    /// Waits for work; `None` when there will be no more.
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
