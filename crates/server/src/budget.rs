//! Bytes that all requests together may hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Bytes;

/// Answers from this size on count towards the budget. Hardly any answer to a single reserve or complete does,
/// and of smaller ones only so many can wait as connections and their streams allow.
pub(crate) const LARGE_BYTES: usize = 4 << 10;

/// So many bytes, and no more, are held at once.
#[derive(Debug)]
pub(crate) struct Budget {
    left: AtomicUsize,
}

/// Bytes of a budget, which go back to it when this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Budget {
    pub(crate) fn of(bytes: usize) -> Arc<Budget> {
        Arc::new(Budget { left: AtomicUsize::new(bytes) })
    }

    /// Holds nothing yet.
    pub(crate) fn nothing(self: &Arc<Budget>) -> Held {
        Held { budget: Arc::clone(self), bytes: 0 }
    }

    fn take(&self, bytes: usize) -> bool {
        let taken = |left: usize| left.checked_sub(bytes);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
    }
}

impl Held {
    /// Holds so many in all from now on, unless there are too few left; then nothing changes.
    #[must_use]
    pub(crate) fn grow_to(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let is_held = self.budget.take(more);
        if is_held {
            self.bytes += more;
        }
        is_held
    }

    /// Ties the budget's bytes to those they stand for, wherever these end up.
    pub(crate) fn with(self, bytes: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        Bytes::from_owner(Owner { bytes, _held: self })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.left.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

struct Owner<T> {
    bytes: T,
    _held: Held,
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for Owner<T> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_missing_until_the_last_of_its_bytes_is_gone() {
        let budget = Budget::of(10);
        let (mut first, mut second) = (budget.nothing(), budget.nothing());
        assert!(first.grow_to(6));
        assert!(first.grow_to(4), "it never shrinks");
        assert!(!second.grow_to(5));
        assert!(second.grow_to(4));
        let bytes = first.with(vec![0; 6]);
        let part = bytes.slice(..1);
        drop(bytes);
        assert!(!second.grow_to(5));
        drop(part);
        assert!(second.grow_to(10));
    }
}
