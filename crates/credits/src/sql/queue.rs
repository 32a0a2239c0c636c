//! The queue before the writers: whoever writes takes all that waits and commits it together.

use std::sync::{Arc, PoisonError};

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::store::{Change, StoreError};

/// So many calls may wait.
const WAITING_MAX: usize = 4096;

/// So many calls at most are committed together.
pub(crate) const TOGETHER_MAX: usize = 128;

/// What a call is answered.
pub(crate) type Counts = Result<Vec<u64>, StoreError>;

/// A list of changes that waits for a writer, whether or not its caller still does.
pub(crate) struct Job {
    pub(crate) changes: Vec<Change>,
    answer: oneshot::Sender<Counts>,
}

impl Job {
    pub(crate) fn answer(self, counts: Counts) {
        // A caller that went away is not told, and will find out when it asks again.
        let _ = self.answer.send(counts);
    }
}

/// Where callers wait.
pub(crate) struct Queue {
    sender: std::sync::Mutex<Option<mpsc::Sender<Job>>>,
    open: mpsc::WeakSender<Job>,
}

/// Where a writer finds them. Several writers may share it.
#[derive(Clone)]
pub(crate) struct Waiting(Arc<Mutex<mpsc::Receiver<Job>>>);

impl Queue {
    pub(crate) fn new() -> (Queue, Waiting) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        let open = sender.downgrade();
        (Queue { sender: std::sync::Mutex::new(Some(sender)), open }, Waiting(Arc::new(Mutex::new(receiver))))
    }

    /// Waits until a writer has made the changes.
    pub(crate) async fn write(&self, changes: Vec<Change>) -> Counts {
        let (answer, counts) = oneshot::channel();
        let Some(sender) = self.open.upgrade() else {
            return Err(StoreError::Busy("it is closed"));
        };
        let sent = sender.try_send(Job { changes, answer });
        drop(sender);
        sent.map_err(|error| match error {
            TrySendError::Full(_) => StoreError::Busy("too many calls wait for it"),
            TrySendError::Closed(_) => StoreError::Busy("it is closed"),
        })?;
        let gone = |_| Err(StoreError::Unavailable("its writer is gone".to_owned()));
        counts.await.unwrap_or_else(gone)
    }

    /// Takes no more calls. Writers end when they have made what waits.
    pub(crate) fn close(&self) {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl Waiting {
    /// All that waits; at least one, unless there will be no more.
    pub(crate) async fn next(&self) -> Vec<Job> {
        let mut jobs = Vec::new();
        self.0.lock().await.recv_many(&mut jobs, TOGETHER_MAX).await;
        jobs
    }
}
