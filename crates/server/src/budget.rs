//! Memory budgets that all requests share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Bytes;

/// Smallest response that is charged to the budget, in bytes. Answers to a single reserve or complete stay below it;
/// the limits on connections and streams bound those.
pub(crate) const LARGE_BYTES: usize = 4 << 10;

/// A number of bytes that may be in use at once.
#[derive(Debug)]
pub(crate) struct Budget {
    left: AtomicUsize,
}

/// A share of a budget, returned on drop.
#[derive(Debug)]
pub(crate) struct BudgetShare {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Budget {
    pub(crate) fn new(bytes: usize) -> Arc<Budget> {
        Arc::new(Budget { left: AtomicUsize::new(bytes) })
    }

    pub(crate) fn empty_share(self: &Arc<Budget>) -> BudgetShare {
        BudgetShare { budget: Arc::clone(self), bytes: 0 }
    }

    fn take(&self, bytes: usize) -> bool {
        let taken = |left: usize| left.checked_sub(bytes);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
    }
}

impl BudgetShare {
    /// Grows the share to `bytes` in total. Returns false, and changes nothing, if the budget has too few left.
    #[must_use]
    pub(crate) fn grow_to(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let is_share = self.budget.take(more);
        if is_share {
            self.bytes += more;
        }
        is_share
    }

    /// Attaches the share to its bytes; dropping the last of them returns it.
    pub(crate) fn attach(self, bytes: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        Bytes::from_owner(Owner { bytes, _share: self })
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.budget.left.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

struct Owner<T> {
    bytes: T,
    _share: BudgetShare,
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
    fn a_share_returns_to_the_budget_with_the_last_of_its_bytes() {
        let budget = Budget::new(10);
        let (mut first, mut second) = (budget.empty_share(), budget.empty_share());
        assert!(first.grow_to(6));
        assert!(first.grow_to(4), "it never shrinks");
        assert!(!second.grow_to(5));
        assert!(second.grow_to(4));
        let bytes = first.attach(vec![0; 6]);
        let part = bytes.slice(..1);
        drop(bytes);
        assert!(!second.grow_to(5));
        drop(part);
        assert!(second.grow_to(10));
    }
}
