//! The queues in front of writers and surveys. A free worker takes everything that waits and handles it together.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};

use crate::store::{Change, StoreError, Survey};

/// Calls that may wait.
const WAITING_MAX: usize = 4096;

/// Additional urgent calls that may wait. A process never has that many heartbeats.
const URGENT_MAX: usize = 64;

/// Calls handled together.
pub(crate) const BATCH_MAX: usize = 128;

/// What a call that writes is answered.
pub(crate) type Counts = Result<Vec<u64>, StoreError>;

/// Lists of changes that wait for a writer.
pub(crate) type Writes = QueueReader<Vec<Change>, Vec<u64>>;

/// What is asked for.
pub(crate) trait Priority {
    /// Whether it is handled before all calls that are not urgent.
    fn is_urgent(&self) -> bool;
}

impl Priority for Vec<Change> {
    /// A process counts as dead unless its heartbeat is written in time, so heartbeats go first.
    fn is_urgent(&self) -> bool {
        self.iter().all(|change| matches!(change, Change::Heartbeat(..) | Change::Leave(_)))
    }
}

impl Priority for Survey {
    fn is_urgent(&self) -> bool {
        false
    }
}

/// A waiting call. Once a worker takes it, it is done even if its caller stops waiting.
pub(crate) struct Job<Q, A> {
    pub(crate) asked: Q,
    answer: oneshot::Sender<Result<A, StoreError>>,
}

impl<Q, A> Job<Q, A> {
    pub(crate) fn answer(self, answer: Result<A, StoreError>) {
        // The caller may be gone; it reads the outcome when it asks again.
        let _ = self.answer.send(answer);
    }
}

/// The side of the callers.
pub(crate) struct Queue<Q, A>(Arc<QueueLine<Q, A>>);

/// The side of the workers. Several may share it.
pub(crate) struct QueueReader<Q, A>(Arc<QueueLine<Q, A>>);

impl<Q, A> Clone for QueueReader<Q, A> {
    fn clone(&self) -> QueueReader<Q, A> {
        QueueReader(Arc::clone(&self.0))
    }
}

struct QueueLine<Q, A> {
    state: Mutex<QueueState<Q, A>>,
    /// Signals new work or the end.
    changed: Notify,
}

struct QueueState<Q, A> {
    urgent: VecDeque<Job<Q, A>>,
    usual: VecDeque<Job<Q, A>>,
    is_closed: bool,
}

impl<Q, A> QueueLine<Q, A> {
    fn state(&self) -> MutexGuard<'_, QueueState<Q, A>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The waiting calls, at most [`BATCH_MAX`]. `None` if nothing waits; an empty list at the end.
    fn take(&self) -> Option<Vec<Job<Q, A>>> {
        let mut state = self.state();
        let QueueState { urgent, usual, is_closed } = &mut *state;
        let room = BATCH_MAX.saturating_sub(urgent.len()).min(usual.len());
        let jobs = urgent.drain(..).chain(usual.drain(..room));
        // The caller was told that the outcome is unknown, and may have continued differently.
        let jobs: Vec<Job<Q, A>> = jobs.filter(|job| !job.answer.is_closed()).collect();
        if *is_closed || !usual.is_empty() {
            // Wakes another worker for the rest, or for the end.
            self.changed.notify_one();
        }
        (*is_closed || !jobs.is_empty()).then_some(jobs)
    }

    fn close(&self) {
        self.state().is_closed = true;
        // A worker that is not waiting checks before it waits.
        self.changed.notify_one();
    }
}

impl<Q: Priority, A> QueueLine<Q, A> {
    fn push(&self, job: Job<Q, A>) -> Result<(), StoreError> {
        let mut state = self.state();
        if state.is_closed {
            return Err(StoreError::Busy("it is closed"));
        }
        let (line, max) = match job.asked.is_urgent() {
            true => (&mut state.urgent, URGENT_MAX),
            false => (&mut state.usual, WAITING_MAX),
        };
        if line.len() >= max {
            return Err(StoreError::Busy("too many calls wait for it"));
        }
        line.push_back(job);
        drop(state);
        self.changed.notify_one();
        Ok(())
    }
}

impl<Q: Priority, A> Queue<Q, A> {
    pub(crate) fn new() -> (Queue<Q, A>, QueueReader<Q, A>) {
        let state = QueueState { urgent: VecDeque::new(), usual: VecDeque::new(), is_closed: false };
        let line = Arc::new(QueueLine { state: Mutex::new(state), changed: Notify::new() });
        (Queue(Arc::clone(&line)), QueueReader(line))
    }

    /// Waits until a worker has answered.
    pub(crate) async fn ask(&self, asked: Q) -> Result<A, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.0.push(Job { asked, answer })?;
        let gone = |_| Err(StoreError::Unavailable("who was to answer is gone".to_owned()));
        answered.await.unwrap_or_else(gone)
    }

    /// Refuses further calls. The workers end after the waiting ones.
    pub(crate) fn close(&self) {
        self.0.close();
    }
}

impl<Q, A> Drop for Queue<Q, A> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<Q, A> QueueReader<Q, A> {
    /// All waiting calls; an empty list at the end.
    pub(crate) async fn next(&self) -> Vec<Job<Q, A>> {
        loop {
            if let Some(jobs) = self.0.take() {
                return jobs;
            }
            self.0.changed.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use earmark_core::UnixMs;

    use super::*;
    use crate::id::{OwnerId, ReservationId};

    fn wait_for(
        queue: &Arc<Queue<Vec<Change>, Vec<u64>>>,
        change: Change,
    ) -> tokio::task::JoinHandle<Counts> {
        let queue = Arc::clone(queue);
        tokio::spawn(async move { queue.ask(vec![change]).await })
    }

    /// Heartbeats waited behind everything else, and were refused when four thousand calls waited. A busy process was
    /// taken for dead, and others took over its sagas.
    #[tokio::test]
    async fn a_sign_of_life_goes_before_a_full_queue() {
        let (queue, waiting) = Queue::new();
        let queue = Arc::new(queue);
        let usual = || Change::Release(ReservationId(1));
        let calls: Vec<_> = (0..WAITING_MAX).map(|_| wait_for(&queue, usual())).collect();
        while queue.0.state().usual.len() < WAITING_MAX {
            tokio::task::yield_now().await;
        }
        let refused = queue.ask(vec![usual()]).await;
        assert_eq!(refused, Err(StoreError::Busy("too many calls wait for it")));
        let heartbeat = wait_for(&queue, Change::Heartbeat(OwnerId(7), UnixMs::new(1)));
        while queue.0.state().urgent.is_empty() {
            tokio::task::yield_now().await;
        }
        let jobs = waiting.next().await;
        assert_eq!(jobs.len(), BATCH_MAX);
        assert!(matches!(jobs[0].asked[..], [Change::Heartbeat(..)]));
        jobs.into_iter().for_each(|job| job.answer(Ok(vec![1])));
        assert_eq!(heartbeat.await.expect("no panic"), Ok(vec![1]));
        let mut answered = BATCH_MAX - 1;
        queue.close();
        loop {
            let jobs = waiting.next().await;
            if jobs.is_empty() {
                break;
            }
            answered += jobs.len();
            jobs.into_iter().for_each(|job| job.answer(Ok(vec![0])));
        }
        assert_eq!(answered, WAITING_MAX);
        for call in calls {
            call.await.expect("no panic").expect("an answer");
        }
        assert_eq!(queue.ask(vec![usual()]).await, Err(StoreError::Busy("it is closed")));
    }

    #[tokio::test]
    async fn every_writer_ends_when_the_queue_is_closed_and_a_late_one_too() {
        let (queue, waiting) = Queue::<Vec<Change>, Vec<u64>>::new();
        let writers: Vec<_> = (0..3)
            .map(|_| {
                let waiting = waiting.clone();
                tokio::spawn(async move { waiting.next().await.len() })
            })
            .collect();
        tokio::task::yield_now().await;
        drop(queue);
        for writer in writers {
            assert_eq!(writer.await.expect("no panic"), 0);
        }
        assert!(waiting.next().await.is_empty());
    }

    /// A call that had timed out in the queue was still made seconds later, after its caller had continued.
    #[tokio::test]
    async fn what_nobody_waits_for_any_more_is_not_begun() {
        let (queue, waiting) = Queue::new();
        let queue = Arc::new(queue);
        let abandoned = wait_for(&queue, Change::Release(ReservationId(1)));
        while queue.0.state().usual.is_empty() {
            tokio::task::yield_now().await;
        }
        abandoned.abort();
        assert!(abandoned.await.expect_err("an end").is_cancelled());
        let waited = wait_for(&queue, Change::Release(ReservationId(2)));
        let jobs = waiting.next().await;
        assert!(matches!(jobs[0].asked[..], [Change::Release(ReservationId(2))]));
        assert_eq!(jobs.len(), 1);
        jobs.into_iter().for_each(|job| job.answer(Ok(vec![1])));
        assert_eq!(waited.await.expect("no panic"), Ok(vec![1]));
    }
}
