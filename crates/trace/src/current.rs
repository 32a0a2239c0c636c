//! The context of the running task.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::time::SystemTime;

use crate::context::TraceContext;
use crate::span::Span;

thread_local! {
    static CURRENT: Cell<Option<TraceContext>> = const { Cell::new(None) };
}

/// The context of the span in which this code runs. A task has none, unless its future is [`carried`] there.
#[must_use]
pub fn current() -> Option<TraceContext> {
    CURRENT.get()
}

/// Restores the context of the task that polled this one.
struct Entered(Option<TraceContext>);

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

/// Runs a future in the context of a span.
pub async fn within<F: Future>(context: TraceContext, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|task| {
        let _entered = Entered(CURRENT.replace(Some(context)));
        future.as_mut().poll(task)
    })
    .await
}

/// A future that runs in the context in which it was made, also in another task.
pub fn carried<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let context = current();
    async move {
        match context {
            Some(context) => within(context, future).await,
            None => future.await,
        }
    }
}

/// Runs a step of a request, in a span below the current one if that is sampled.
pub async fn step<F: Future>(name: &'static str, future: F) -> F::Output {
    match sampled() {
        Some(parent) => {
            let span = Span::below(name, parent);
            within(span.context(), future).await
        }
        None => future.await,
    }
}

fn sampled() -> Option<TraceContext> {
    current().filter(|context| context.is_sampled)
}

/// A sampled request that waits in a queue.
#[derive(Clone, Copy, Debug)]
pub struct InQueue {
    context: TraceContext,
    since: SystemTime,
}

impl InQueue {
    /// The running request, which is queued now; `None` if it is not sampled.
    #[must_use]
    pub fn begin() -> Option<InQueue> {
        sampled().map(|context| InQueue { context, since: SystemTime::now() })
    }

    /// The context of the request.
    #[must_use]
    pub fn context(&self) -> TraceContext {
        self.context
    }

    /// Records the span of its time in the queue.
    pub fn end(self) {
        drop(Span::below_since("queue", self.context, self.since));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_context_ends_with_its_future_and_at_every_wait() {
        let context = |span| TraceContext { trace: 1, span, is_sampled: true };
        let inside = within(context(2), async {
            tokio::task::yield_now().await;
            assert_eq!(within(context(3), async { current() }).await, Some(context(3)));
            current()
        });
        let outside = async {
            assert_eq!(current(), None);
            tokio::task::yield_now().await;
            current()
        };
        assert_eq!(tokio::join!(inside, outside), (Some(context(2)), None));
        let spawned =
            async { [tokio::spawn(async { current() }).await, tokio::spawn(carried(async { current() })).await] };
        assert_eq!(within(context(2), spawned).await.map(Result::unwrap), [None, Some(context(2))]);
        assert_eq!(current(), None);
    }
}
