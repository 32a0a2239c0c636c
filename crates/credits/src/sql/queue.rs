//! The queues before the writers and before those who survey: whoever is free takes all that waits and does it together.

use std::sync::{Arc, PoisonError};

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::store::{Change, StoreError};

/// So many calls may wait.
const WAITING_MAX: usize = 4096;

/// So many calls at most are done together.
pub(crate) const TOGETHER_MAX: usize = 128;

/// What a call that writes is answered.
pub(crate) type Counts = Result<Vec<u64>, StoreError>;

/// Lists of changes that wait for a writer.
pub(crate) type Writes = Waiting<Vec<Change>, Vec<u64>>;

/// A call that waits, whether or not its caller still does.
pub(crate) struct Job<Q, A> {
    pub(crate) asked: Q,
    answer: oneshot::Sender<Result<A, StoreError>>,
}

impl<Q, A> Job<Q, A> {
    pub(crate) fn answer(self, answer: Result<A, StoreError>) {
        // A caller that went away is not told, and will find out when it asks again.
        let _ = self.answer.send(answer);
    }
}

/// Where callers wait.
pub(crate) struct Queue<Q, A> {
    sender: std::sync::Mutex<Option<mpsc::Sender<Job<Q, A>>>>,
    open: mpsc::WeakSender<Job<Q, A>>,
}

/// Where those who do the work find them. Several may share it.
pub(crate) struct Waiting<Q, A>(Arc<Mutex<mpsc::Receiver<Job<Q, A>>>>);

impl<Q, A> Clone for Waiting<Q, A> {
    fn clone(&self) -> Waiting<Q, A> {
        Waiting(Arc::clone(&self.0))
    }
}

impl<Q, A> Queue<Q, A> {
    pub(crate) fn new() -> (Queue<Q, A>, Waiting<Q, A>) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        let open = sender.downgrade();
        (Queue { sender: std::sync::Mutex::new(Some(sender)), open }, Waiting(Arc::new(Mutex::new(receiver))))
    }

    /// Waits until somebody has done it.
    pub(crate) async fn ask(&self, asked: Q) -> Result<A, StoreError> {
        let (answer, answered) = oneshot::channel();
        let Some(sender) = self.open.upgrade() else {
            return Err(StoreError::Busy("it is closed"));
        };
        let sent = sender.try_send(Job { asked, answer });
        drop(sender);
        sent.map_err(|error| match error {
            TrySendError::Full(_) => StoreError::Busy("too many calls wait for it"),
            TrySendError::Closed(_) => StoreError::Busy("it is closed"),
        })?;
        let gone = |_| Err(StoreError::Unavailable("who was to answer is gone".to_owned()));
        answered.await.unwrap_or_else(gone)
    }

    /// Takes no more calls. Those who do the work end when they have done what waits.
    pub(crate) fn close(&self) {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl<Q, A> Waiting<Q, A> {
    /// All that waits; at least one, unless there will be no more.
    pub(crate) async fn next(&self) -> Vec<Job<Q, A>> {
        let mut jobs = Vec::new();
        self.0.lock().await.recv_many(&mut jobs, TOGETHER_MAX).await;
        jobs
    }
}
