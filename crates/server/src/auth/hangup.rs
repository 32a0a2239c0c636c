//! Detects that an HTTP/1 client hung up while its request waits in the fair queue of its caller.
//!
//! HTTP/2 cancels the request of a client that gives up; HTTP/1 does not. There, the end of the client's input may also
//! mean that it still waits for the response. So a queued request ends when its client sends no more. It is answered like
//! a request that finds the queue full: rate limited, and nothing was executed. The connection looks for the end of input
//! each time it is flushed (`server::io`).

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

/// Shared by an HTTP/1 connection and its current request. Both run in one task, so waking one wakes the other.
#[derive(Debug, Default)]
pub(crate) struct Hangup {
    is_watched: AtomicBool,
    has_happened: AtomicBool,
}

impl Hangup {
    /// Completes when the client has ended its input.
    pub(crate) fn wait(&self) -> HangupFuture<'_> {
        HangupFuture(self)
    }

    /// Whether a queued request waits for a hangup, so that the connection must look for one.
    pub(crate) fn is_watched(&self) -> bool {
        self.is_watched.load(Ordering::Relaxed)
    }

    /// Records that the client has ended its input.
    pub(crate) fn set(&self) {
        self.has_happened.store(true, Ordering::Relaxed);
    }
}

/// See [`Hangup::wait`].
pub(crate) struct HangupFuture<'a>(&'a Hangup);

impl Future for HangupFuture<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        self.0.is_watched.store(true, Ordering::Relaxed);
        if self.0.has_happened.load(Ordering::Relaxed) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for HangupFuture<'_> {
    fn drop(&mut self) {
        self.0.is_watched.store(false, Ordering::Relaxed);
    }
}
