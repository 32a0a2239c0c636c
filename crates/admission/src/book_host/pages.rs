//! Pages of limits and of their usage, read in pieces.

use earmark_core::NamespaceName;

use super::{BookBackend, BookHost};
use crate::backend::{BackendError, LimitPage, LimitQuery};
use crate::usage::{UsageCollector, UsageError, UsagePage, UsageQuery};
use crate::writes::PAGE_MAX;

/// Limits that a page reads while it holds the Book: about a tenth of a millisecond.
const LIMITS_PIECE: usize = 100;

impl<H: BookHost> BookBackend<H> {
    /// Reads a page of limits in pieces, so that neither the Book nor a thread of the runtime is held for long.
    pub(super) async fn limit_page(
        &self,
        namespace: NamespaceName,
        query: LimitQuery,
    ) -> Result<LimitPage, BackendError> {
        let now = self.0.host.read_barrier().await?;
        let LimitQuery { prefix, after, page_size, defined } = query;
        let page_size = page_size.clamp(1, PAGE_MAX);
        let mut page = LimitPage { limits: Vec::new(), next: after };
        loop {
            let most = LIMITS_PIECE.min(page_size - page.limits.len());
            let (limits, next) = self.0.host.with_book(|book| match book.namespace(&namespace) {
                Some(id) if defined => book.defined_page(now, id, (prefix.as_ref(), page.next.as_ref()), most),
                Some(id) => book.limit_page(now, id, (prefix.as_ref(), page.next.as_ref()), most),
                None => (Vec::new(), None),
            });
            page.limits.extend(limits);
            page.next = next;
            if page.next.is_none() || page.limits.len() >= page_size {
                return Ok(page);
            }
            tokio::task::yield_now().await;
        }
    }

    /// Reads limits with their usage in pieces, like [`limit_page`](BookBackend::limit_page). Other orders than by key read
    /// all limits, and keep one page of them.
    pub(super) async fn usage_in_pieces(
        &self,
        namespace: NamespaceName,
        query: UsageQuery,
    ) -> Result<UsagePage, UsageError> {
        query.check()?;
        self.check_placement().map_err(BackendError::from)?;
        let now = self.0.host.read_barrier().await?;
        let mut collector = UsageCollector::new(&query);
        let UsageQuery { prefix, after: mut next, .. } = query;
        loop {
            let most = collector.piece(LIMITS_PIECE);
            let (piece, after) = self.0.host.with_book(|book| match book.namespace(&namespace) {
                Some(namespace) => book.usage_page(now, namespace, (prefix.as_ref(), next.as_ref()), most),
                None => (Vec::new(), None),
            });
            collector.add(piece);
            next = after;
            if let Some(page) = collector.finish(next.as_ref()) {
                return Ok(page);
            }
            tokio::task::yield_now().await;
        }
    }
}
