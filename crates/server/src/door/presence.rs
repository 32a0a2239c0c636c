//! Whether the client of a connection is still there, which is looked at only while a request of it waits for its turn.
//!
//! HTTP/2 tells when a client gives a request up, and then nobody waits any more. HTTP/1 does not: a client that hangs up
//! looks like one that has asked all it wants and still waits for the answer. So whoever waits on such a connection is told
//! of the end of what its client sends, and answers; one that is still there hears that nothing happened.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

/// What a connection of HTTP/1 and the request on it tell each other. Both are one task, so that a wake of one is a wake of
/// the other.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    is_asked_for: AtomicBool,
    is_gone: AtomicBool,
}

impl Presence {
    /// Ends when the client has sent all it will.
    pub(crate) fn gone(&self) -> Gone<'_> {
        Gone(self)
    }

    /// Whether somebody wants to know.
    pub(crate) fn is_asked_for(&self) -> bool {
        self.is_asked_for.load(Ordering::Relaxed)
    }

    /// The client has sent all it will.
    pub(crate) fn leave(&self) {
        self.is_gone.store(true, Ordering::Relaxed);
    }
}

/// See [`Presence::gone`].
pub(crate) struct Gone<'a>(&'a Presence);

impl Future for Gone<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        self.0.is_asked_for.store(true, Ordering::Relaxed);
        if self.0.is_gone.load(Ordering::Relaxed) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        self.0.is_asked_for.store(false, Ordering::Relaxed);
    }
}
