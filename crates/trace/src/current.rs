//! The context of the running task.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;

use crate::context::TraceContext;

thread_local! {
    static CURRENT: Cell<Option<TraceContext>> = const { Cell::new(None) };
}

/// The context of the span in which this code runs. A task that was spawned inside has none.
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
        assert_eq!(current(), None);
    }
}
