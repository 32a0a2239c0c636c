//! The registry's keys, and the change log merged from the Book and the SQL credit store.

use std::sync::Arc;

use earmark_core::{CreateKey, KeyId, KeyInfo, NamespaceName, Principal, RevokeKey, SecretHash};

use super::Composed;
use crate::backend::{Answer, BackendError};
use crate::book_host::BookHost;
use crate::callers::{ChangeCursor, ChangePage, KeyError, Keys};
use crate::history::ChangePager;
use crate::writes::PAGE_MAX;

impl<H: BookHost> Keys for Composed<H> {
    fn has_keys(&self) -> bool {
        self.0.registry.has_keys()
    }

    fn authenticate(&self, id: &KeyId, secret: &SecretHash) -> Option<Arc<KeyInfo>> {
        self.0.registry.authenticate(id, secret)
    }

    fn permits(&self, by: &Principal) -> bool {
        self.0.registry.permits(by)
    }

    fn check(&self, by: Principal) -> Answer<'_, Result<(), BackendError>> {
        self.0.registry.check(by)
    }

    fn list(&self, namespace: Option<NamespaceName>) -> Answer<'_, Result<Vec<Arc<KeyInfo>>, BackendError>> {
        self.0.registry.list(namespace)
    }

    fn create(&self, by: Principal, command: CreateKey) -> Answer<'_, Result<Arc<KeyInfo>, KeyError>> {
        self.0.registry.create(by, command)
    }

    fn revoke(&self, by: Principal, command: RevokeKey) -> Answer<'_, Result<Arc<KeyInfo>, KeyError>> {
        self.0.registry.revoke(by, command)
    }

    fn log(
        &self,
        namespace: Option<NamespaceName>,
        after: ChangeCursor,
        page_size: usize,
    ) -> Answer<'_, Result<ChangePage, BackendError>> {
        let page_size = page_size.clamp(1, PAGE_MAX);
        let book = self.0.registry.log(namespace.clone(), after, page_size);
        if !self.0.setup.parts.credit {
            return book;
        }
        Box::pin(async move {
            let credit = self.0.credits.changes(namespace, after.credit, page_size);
            let (book, credit) = tokio::join!(book, credit);
            Ok(merge(after, page_size, book?, credit?))
        })
    }
}

/// Merges two pages by time and keeps the order of each. The merged page ends where a page ends that has a successor,
/// because its next entry may be older than the other page's next.
fn merge(after: ChangeCursor, page_size: usize, book: ChangePage, credit: ChangePage) -> ChangePage {
    let (book_next, credit_next) = (book.next, credit.next);
    let mut of_book = book.entries.into_iter().peekable();
    let mut of_credit = credit.entries.into_iter().peekable();
    let mut pager = ChangePager::new(None, page_size);
    let mut place = after;
    loop {
        let is_of_book = match (of_book.peek(), of_credit.peek()) {
            (Some(first), Some(second)) => first.at <= second.at,
            (Some(_), None) if credit_next.is_none() => true,
            (None, Some(_)) if book_next.is_none() => false,
            (None | Some(_), None) | (None, Some(_)) => break,
        };
        if pager.is_full() {
            break;
        }
        let next = if is_of_book { of_book.next() } else { of_credit.next() };
        let Some(mut entry) = next else { break };
        if is_of_book {
            place.book = entry.place.book;
        } else {
            place.credit = entry.place.credit;
        }
        entry.place = place;
        pager.add(entry);
    }
    let (is_book_left, is_credit_left) = (of_book.peek().is_some(), of_credit.peek().is_some());
    // Skip what a list has scanned without finding an entry.
    if let (false, Some(next)) = (is_book_left, book_next) {
        place.book = next.book;
    }
    if let (false, Some(next)) = (is_credit_left, credit_next) {
        place.credit = next.credit;
    }
    let has_more = is_book_left || is_credit_left || book_next.is_some() || credit_next.is_some();
    ChangePage { next: has_more.then_some(place), ..pager.finish() }
}

#[cfg(test)]
mod tests;
