//! The queues in front of writers and surveys. A free worker takes everything that waits and handles it together.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};

use crate::store::StoreError;

/// Calls that may wait.
const WAITING_MAX: usize = 4096;

/// Additional urgent calls that may wait. A process never has that many heartbeats.
const URGENT_MAX: usize = 64;

/// Calls handled together.
pub(crate) const BATCH_MAX: usize = 128;

/// A waiting call. Once a worker takes it, it is done even if its caller stops waiting.
pub(crate) struct Job<Q, A> {
    pub(crate) request: Q,
    pub(crate) answer: oneshot::Sender<Result<A, StoreError>>,
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

/// The queue that callers and workers share.
struct QueueLine<Q, A> {
    state: Mutex<QueueState<Q, A>>,
    /// Signals new work or the end.
    changed: Notify,
}

/// The waiting jobs. Urgent ones come first.
struct QueueState<Q, A> {
    urgent: VecDeque<Job<Q, A>>,
    normal: VecDeque<Job<Q, A>>,
    is_closed: bool,
}

impl<Q, A> QueueLine<Q, A> {
    fn state(&self) -> MutexGuard<'_, QueueState<Q, A>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The waiting calls, at most [`BATCH_MAX`]. `None` if nothing waits; an empty list at the end.
    fn take(&self) -> Option<Vec<Job<Q, A>>> {
        let mut state = self.state();
        let QueueState { urgent, normal, is_closed } = &mut *state;
        let room = BATCH_MAX.saturating_sub(urgent.len()).min(normal.len());
        let jobs = urgent.drain(..).chain(normal.drain(..room));
        // The caller was told that the outcome is unknown, and may have continued differently.
        let jobs: Vec<Job<Q, A>> = jobs.filter(|job| !job.answer.is_closed()).collect();
        if *is_closed || !normal.is_empty() {
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

    fn push(&self, job: Job<Q, A>, is_urgent: bool) -> Result<(), StoreError> {
        let mut state = self.state();
        if state.is_closed {
            return Err(StoreError::Busy("closed"));
        }
        let (line, max) = match is_urgent {
            true => (&mut state.urgent, URGENT_MAX),
            false => (&mut state.normal, WAITING_MAX),
        };
        if line.len() >= max {
            return Err(StoreError::Busy("too many calls are waiting"));
        }
        line.push_back(job);
        drop(state);
        self.changed.notify_one();
        Ok(())
    }
}

impl<Q, A> Queue<Q, A> {
    pub(crate) fn new() -> (Queue<Q, A>, QueueReader<Q, A>) {
        let state = QueueState { urgent: VecDeque::new(), normal: VecDeque::new(), is_closed: false };
        let line = Arc::new(QueueLine { state: Mutex::new(state), changed: Notify::new() });
        (Queue(Arc::clone(&line)), QueueReader(line))
    }

    /// Waits until a worker has answered.
    pub(crate) async fn call(&self, request: Q) -> Result<A, StoreError> {
        self.call_as(request, false).await
    }

    /// Waits until a worker has answered. An urgent request goes before all others.
    pub(crate) async fn call_as(&self, request: Q, is_urgent: bool) -> Result<A, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.0.push(Job { request, answer }, is_urgent)?;
        let dropped = |_| Err(StoreError::Unavailable("its worker is gone".to_owned()));
        answered.await.unwrap_or_else(dropped)
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
    use crate::store::Change;

    fn wait_for(
        queue: &Arc<Queue<Vec<Change>, Vec<u64>>>,
        change: Change,
        is_urgent: bool,
    ) -> tokio::task::JoinHandle<Result<Vec<u64>, StoreError>> {
        let queue = Arc::clone(queue);
        tokio::spawn(async move { queue.call_as(vec![change], is_urgent).await })
    }

    /// Heartbeats waited behind everything else, and were refused when four thousand calls waited. A busy process was
    /// taken for dead, and others took over its sagas.
    #[tokio::test]
    async fn a_sign_of_life_goes_before_a_full_queue() {
        let (queue, waiting) = Queue::new();
        let queue = Arc::new(queue);
        let normal = || Change::Release(ReservationId(1));
        let calls: Vec<_> = (0..WAITING_MAX).map(|_| wait_for(&queue, normal(), false)).collect();
        while queue.0.state().normal.len() < WAITING_MAX {
            tokio::task::yield_now().await;
        }
        let refused = queue.call(vec![normal()]).await;
        assert_eq!(refused, Err(StoreError::Busy("too many calls are waiting")));
        let heartbeat = wait_for(&queue, Change::Heartbeat(OwnerId(7), UnixMs::new(1)), true);
        while queue.0.state().urgent.is_empty() {
            tokio::task::yield_now().await;
        }
        let jobs = waiting.next().await;
        assert_eq!(jobs.len(), BATCH_MAX);
        assert!(matches!(jobs[0].request[..], [Change::Heartbeat(..)]));
        jobs.into_iter().for_each(|job| drop(job.answer.send(Ok(vec![1]))));
        assert_eq!(heartbeat.await.expect("no panic"), Ok(vec![1]));
        let mut answered = BATCH_MAX - 1;
        queue.close();
        loop {
            let jobs = waiting.next().await;
            if jobs.is_empty() {
                break;
            }
            answered += jobs.len();
            jobs.into_iter().for_each(|job| drop(job.answer.send(Ok(vec![0]))));
        }
        assert_eq!(answered, WAITING_MAX);
        for call in calls {
            call.await.expect("no panic").expect("an answer");
        }
        assert_eq!(queue.call(vec![normal()]).await, Err(StoreError::Busy("closed")));
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
        let abandoned = wait_for(&queue, Change::Release(ReservationId(1)), false);
        while queue.0.state().normal.is_empty() {
            tokio::task::yield_now().await;
        }
        abandoned.abort();
        assert!(abandoned.await.expect_err("an end").is_cancelled());
        let waited = wait_for(&queue, Change::Release(ReservationId(2)), false);
        let jobs = waiting.next().await;
        assert!(matches!(jobs[0].request[..], [Change::Release(ReservationId(2))]));
        assert_eq!(jobs.len(), 1);
        jobs.into_iter().for_each(|job| drop(job.answer.send(Ok(vec![1]))));
        assert_eq!(waited.await.expect("no panic"), Ok(vec![1]));
    }
}
