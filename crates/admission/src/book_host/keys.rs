//! The API keys of a Book.

use std::sync::Arc;

use earmark_core::{CreateKey, KeyId, KeyInfo, NamespaceName, Principal, RevokeKey, SecretHash};

use super::{BookBackend, BookHost};
use crate::backend::{Answer, BackendError};
use crate::book_request::ChangeKey;
use crate::callers::{ChangePage, ChangeQuery, KeyError, Keys};

use crate::writes::PAGE_MAX;

impl<H: BookHost> Keys for BookBackend<H> {
    fn has_keys(&self) -> bool {
        self.0.host.with_book(earmark_core::Book::has_keys)
    }

    fn authenticate(&self, id: &KeyId, secret: &SecretHash) -> Option<Arc<KeyInfo>> {
        let now = self.0.host.now();
        self.0.host.with_book(|book| book.authenticate(now, id, secret).cloned())
    }

    fn valid(&self, id: &KeyId) -> Option<Arc<KeyInfo>> {
        let now = self.0.host.now();
        self.0.host.with_book(|book| book.valid_key(now, id).cloned())
    }

    fn permits(&self, by: &Principal) -> bool {
        let now = self.0.host.now();
        self.0.host.with_book(|book| book.permits(now, by))
    }

    fn check(&self, by: Principal) -> Answer<'_, Result<(), BackendError>> {
        Box::pin(async move {
            match self.read(|book, now| book.permits(now, &by)).await? {
                true => Ok(()),
                false => Err(BackendError::Unauthenticated),
            }
        })
    }

    fn list(&self, namespace: Option<NamespaceName>) -> Answer<'_, Result<Vec<Arc<KeyInfo>>, BackendError>> {
        Box::pin(self.read(move |book, _| {
            let is_meant = |info: &&Arc<KeyInfo>| namespace.as_ref().is_none_or(|name| *name == info.namespace);
            book.keys().filter(is_meant).cloned().collect()
        }))
    }

    fn create(&self, by: Principal, command: CreateKey) -> Answer<'_, Result<Arc<KeyInfo>, KeyError>> {
        Box::pin(self.0.submit_one(by, ChangeKey::Create(command)))
    }

    fn revoke(&self, by: Principal, command: RevokeKey) -> Answer<'_, Result<Arc<KeyInfo>, KeyError>> {
        Box::pin(self.0.submit_one(by, ChangeKey::Revoke(command)))
    }

    fn log(&self, query: ChangeQuery) -> Answer<'_, Result<ChangePage, BackendError>> {
        Box::pin(async move {
            self.0.host.read_barrier().await?;
            let page_size = query.page_size.clamp(1, PAGE_MAX);
            self.0.host.log(ChangeQuery { page_size, ..query }).await
        })
    }
}
