//! The registry's keys, and the change log merged from the Book and the SQL credit store.

use std::sync::Arc;

use earmark_core::{CreateKey, KeyId, KeyInfo, NamespaceName, Principal, RevokeKey, SecretHash};

use super::Composed;
use crate::backend::{Answer, BackendError};
use crate::book_host::BookHost;
use crate::callers::{ChangeCursor, ChangePage, ChangeQuery, CreditCursor, KeyError, Keys};
use crate::history::ChangePager;
use crate::writes::PAGE_MAX;

impl<H: BookHost> Keys for Composed<H> {
    fn has_keys(&self) -> bool {
        self.0.registry.has_keys()
    }

    fn authenticate(&self, id: &KeyId, secret: &SecretHash) -> Option<Arc<KeyInfo>> {
        self.0.registry.authenticate(id, secret)
    }

    fn valid(&self, id: &KeyId) -> Option<Arc<KeyInfo>> {
        self.0.registry.valid(id)
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

    fn log(&self, query: ChangeQuery) -> Answer<'_, Result<ChangePage, BackendError>> {
        // Only the Book changes limits.
        if !self.0.setup.parts.credit || query.key.is_some() {
            return self.0.registry.log(query);
        }
        let query = ChangeQuery { page_size: query.page_size.clamp(1, PAGE_MAX), ..query };
        Box::pin(async move {
            let book = self.0.registry.log(query.clone());
            let credit = self.0.credits.changes(query.clone());
            let (book, credit) = tokio::join!(book, credit);
            Ok(merge(query, book?, credit?))
        })
    }
}

/// Merges two pages, newest first. Each keeps its own order, and the Book goes first at equal times. The merged page ends
/// where a page ends that has a successor, because its next entry may be newer than the other page's next.
fn merge(query: ChangeQuery, book: ChangePage, credit: ChangePage) -> ChangePage {
    let (book_next, credit_next) = (book.next, credit.next);
    let mut place = pinned(query.after, &book, &credit);
    let mut of_book = book.entries.into_iter().peekable();
    let mut of_credit = credit.entries.into_iter().peekable();
    let mut pager = ChangePager::new(query);
    loop {
        let is_of_book = match (of_book.peek(), of_credit.peek()) {
            (Some(first), Some(second)) => first.at >= second.at,
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
    if !is_book_left {
        place.book = book_next.map_or(ChangeCursor::BOOK_END, |next| next.book);
    }
    if !is_credit_left {
        place.credit = credit_next.map_or(CreditCursor::END, |next| next.credit);
    }
    let has_more = is_book_left || is_credit_left || book_next.is_some() || credit_next.is_some();
    ChangePage { next: has_more.then_some(place), ..pager.finish() }
}

/// The position before the first entries of both pages. At the start of a list it names the newest entry, so that
/// changes made meanwhile are not listed among older ones.
fn pinned(after: ChangeCursor, book: &ChangePage, credit: &ChangePage) -> ChangeCursor {
    let mut place = after;
    if place.book == 0 {
        let next = book.next.map_or(ChangeCursor::BOOK_END, |next| next.book);
        place.book = book.entries.first().map_or(next, |first| first.place.book.saturating_add(1));
    }
    if place.credit.is_start() {
        let next = credit.next.map_or(CreditCursor::END, |next| next.credit);
        place.credit = credit.entries.first().map_or(next, |first| {
            let CreditCursor { commit, given } = first.place.credit;
            CreditCursor { commit, given: given.saturating_sub(1) }
        });
    }
    place
}

#[cfg(test)]
mod tests;
