//! Futures that are seldom ready, beside one that is polled all the time.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// Polls its future only after it was woken. The task of a connection is polled several times per request, and polling
/// a timer and a signal each time would cost hundreds of instructions.
pub(super) struct Seldom<F> {
    future: Pin<Box<F>>,
    woken: Arc<Woken>,
    waker: Waker,
}

/// Whether the future was woken since its last poll, and the task to wake.
struct Woken {
    is_woken: AtomicBool,
    task: AtomicWaker,
}

impl Wake for Woken {
    fn wake(self: Arc<Woken>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Woken>) {
        self.is_woken.store(true, Ordering::Release);
        self.task.wake();
    }
}

impl<F: Future> Seldom<F> {
    pub(super) fn new(future: F) -> Seldom<F> {
        let woken = Arc::new(Woken { is_woken: AtomicBool::new(true), task: AtomicWaker::new() });
        let waker = Waker::from(Arc::clone(&woken));
        Seldom { future: Box::pin(future), woken, waker }
    }
}

impl<F: Future> Future for Seldom<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        // Before the flag is read, so that a wake in between is not lost.
        self.woken.task.register(context.waker());
        if !self.woken.is_woken.swap(false, Ordering::AcqRel) {
            return Poll::Pending;
        }
        let Seldom { future, waker, .. } = &mut *self;
        future.as_mut().poll(&mut Context::from_waker(waker))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn it_is_polled_when_it_was_woken_and_not_when_its_task_was() {
        let (sender, mut receiver) = oneshot::channel::<()>();
        let polls = AtomicUsize::new(0);
        let counted = std::future::poll_fn(|context| {
            polls.fetch_add(1, Ordering::Relaxed);
            Pin::new(&mut receiver).poll(context)
        });
        let mut seldom = Seldom::new(counted);
        for _ in 0..10 {
            let poll = std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut seldom).poll(context)));
            assert!(poll.await.is_pending());
        }
        assert_eq!(polls.load(Ordering::Relaxed), 1);
        sender.send(()).unwrap();
        assert_eq!(seldom.await, Ok(()));
        assert_eq!(polls.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn a_wake_reaches_a_task_that_waits_for_it() {
        let (sender, receiver) = oneshot::channel::<u8>();
        let waiting = tokio::spawn(Seldom::new(receiver));
        tokio::task::yield_now().await;
        sender.send(7).unwrap();
        assert_eq!(waiting.await.unwrap(), Ok(7));
    }
}
