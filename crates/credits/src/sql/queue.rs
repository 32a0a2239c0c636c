//! The queues before the writers and before those who survey: whoever is free takes all that waits and does it together.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};

use crate::store::{Change, StoreError, Survey};

/// So many calls may wait.
const WAITING_MAX: usize = 4096;

/// So many that are urgent may wait besides, which is more than a process ever has.
const URGENT_MAX: usize = 64;

/// So many calls at most are done together.
pub(crate) const TOGETHER_MAX: usize = 128;

/// What a call that writes is answered.
pub(crate) type Counts = Result<Vec<u64>, StoreError>;

/// Lists of changes that wait for a writer.
pub(crate) type Writes = Waiting<Vec<Change>, Vec<u64>>;

/// What is asked for.
pub(crate) trait Asked {
    /// Whether it goes before all that is not.
    fn is_urgent(&self) -> bool;
}

impl Asked for Vec<Change> {
    /// A process is taken for dead unless its sign of life is made in time, however much else waits.
    fn is_urgent(&self) -> bool {
        self.iter().all(|change| matches!(change, Change::Beat(..) | Change::Leave(_)))
    }
}

impl Asked for Survey {
    fn is_urgent(&self) -> bool {
        false
    }
}

/// A call that waits. Once it is taken up it is done, whether or not its caller still waits.
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
pub(crate) struct Queue<Q, A>(Arc<Line<Q, A>>);

/// Where those who do the work find them. Several may share it.
pub(crate) struct Waiting<Q, A>(Arc<Line<Q, A>>);

impl<Q, A> Clone for Waiting<Q, A> {
    fn clone(&self) -> Waiting<Q, A> {
        Waiting(Arc::clone(&self.0))
    }
}

struct Line<Q, A> {
    state: Mutex<LineState<Q, A>>,
    /// There is something to do, or there will be nothing more.
    changed: Notify,
}

struct LineState<Q, A> {
    urgent: VecDeque<Job<Q, A>>,
    usual: VecDeque<Job<Q, A>>,
    is_closed: bool,
}

impl<Q, A> Line<Q, A> {
    fn state(&self) -> MutexGuard<'_, LineState<Q, A>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What waits, so much at most; an empty list if there will be nothing more, and none if there is nothing now.
    fn take(&self) -> Option<Vec<Job<Q, A>>> {
        let mut state = self.state();
        let LineState { urgent, usual, is_closed } = &mut *state;
        let room = TOGETHER_MAX.saturating_sub(urgent.len()).min(usual.len());
        let jobs = urgent.drain(..).chain(usual.drain(..room));
        // Whoever gave up waiting was told that nobody knows what became of it, and may have gone on otherwise.
        let jobs: Vec<Job<Q, A>> = jobs.filter(|job| !job.answer.is_closed()).collect();
        if *is_closed || !usual.is_empty() {
            // Another one takes the rest, or ends.
            self.changed.notify_one();
        }
        (*is_closed || !jobs.is_empty()).then_some(jobs)
    }

    fn close(&self) {
        self.state().is_closed = true;
        // Who is not waiting now looks before it waits.
        self.changed.notify_one();
    }
}

impl<Q: Asked, A> Line<Q, A> {
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

impl<Q: Asked, A> Queue<Q, A> {
    pub(crate) fn new() -> (Queue<Q, A>, Waiting<Q, A>) {
        let state = LineState { urgent: VecDeque::new(), usual: VecDeque::new(), is_closed: false };
        let line = Arc::new(Line { state: Mutex::new(state), changed: Notify::new() });
        (Queue(Arc::clone(&line)), Waiting(line))
    }

    /// Waits until somebody has done it.
    pub(crate) async fn ask(&self, asked: Q) -> Result<A, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.0.push(Job { asked, answer })?;
        let gone = |_| Err(StoreError::Unavailable("who was to answer is gone".to_owned()));
        answered.await.unwrap_or_else(gone)
    }

    /// Takes no more calls. Those who do the work end when they have done what waits.
    pub(crate) fn close(&self) {
        self.0.close();
    }
}

impl<Q, A> Drop for Queue<Q, A> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<Q, A> Waiting<Q, A> {
    /// All that waits; at least one, unless there will be no more.
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

    /// Signs of life waited behind everything else, and were refused where four thousand calls waited already: a process
    /// that had too much to do was taken for dead, and others took over what it was in the middle of.
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
        let beat = wait_for(&queue, Change::Beat(OwnerId(7), UnixMs::new(1)));
        while queue.0.state().urgent.is_empty() {
            tokio::task::yield_now().await;
        }
        let jobs = waiting.next().await;
        assert_eq!(jobs.len(), TOGETHER_MAX);
        assert!(matches!(jobs[0].asked[..], [Change::Beat(..)]));
        jobs.into_iter().for_each(|job| job.answer(Ok(vec![1])));
        assert_eq!(beat.await.expect("no panic"), Ok(vec![1]));
        let mut answered = TOGETHER_MAX - 1;
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

    /// A call that had waited too long was still made, seconds after its caller had been told so and had gone on.
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
