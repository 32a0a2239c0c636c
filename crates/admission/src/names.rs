//! Names and the numbers the Book knows them by.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use earmark_core::{Book, LimitId, LimitKey, LimitRef, NamespaceId, NamespaceName};

/// What the Book has numbered so far, for callers that have only names.
///
/// Numbers are for ever, so what is found here is right however old it is. What is not found here goes to
/// the Book by name.
#[derive(Default)]
pub(crate) struct Names(RwLock<HashMap<NamespaceName, Namespace>>);

struct Namespace {
    id: NamespaceId,
    limits: HashMap<LimitKey, LimitId>,
}

impl Names {
    /// The number of a namespace.
    pub(crate) fn namespace(&self, name: &NamespaceName) -> Option<NamespaceId> {
        if name.is_default() {
            return Some(NamespaceId::DEFAULT);
        }
        let names = self.0.read().unwrap_or_else(PoisonError::into_inner);
        names.get(name).map(|namespace| namespace.id)
    }

    /// Calls `resolve` with a function from names to what the Book is told.
    pub(crate) fn with<T>(
        &self,
        namespace: &NamespaceName,
        resolve: impl FnOnce(&dyn Fn(&LimitKey) -> LimitRef) -> T,
    ) -> T {
        let names = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let limits = names.get(namespace).map(|namespace| &namespace.limits);
        resolve(&|key| match limits.and_then(|limits| limits.get(key)) {
            Some(id) => LimitRef::Id(*id),
            None => LimitRef::Key(key.clone()),
        })
    }

    /// Remembers the number of a limit that was just put.
    pub(crate) fn learn(&self, book: &Book, namespace: &NamespaceName, key: &LimitKey) {
        let Some(id) = book.namespace(namespace) else { return };
        let mut names = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let entry =
            names.entry(namespace.clone()).or_insert_with(|| Namespace { id, limits: HashMap::new() });
        if let Some(limit) = book.resolve(id, key) {
            entry.limits.insert(key.clone(), limit);
        }
    }
}
