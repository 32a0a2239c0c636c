//! A cache of the ids that the Book gave to namespaces and limits.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use earmark_core::{Book, LimitId, LimitKey, LimitRef, NamespaceId, NamespaceName};

/// Ids by name. An id never changes, so a cached id is always valid. A name without a cached id goes to the Book as it
/// is.
#[derive(Default)]
pub(crate) struct Names(RwLock<HashMap<NamespaceName, Namespace>>);

/// A namespace and the limits of it that were looked up.
struct Namespace {
    id: NamespaceId,
    limits: HashMap<LimitKey, LimitId>,
}

impl Names {
    /// The id of a namespace.
    pub(crate) fn namespace(&self, name: &NamespaceName) -> Option<NamespaceId> {
        if name.is_default() {
            return Some(NamespaceId::DEFAULT);
        }
        let names = self.0.read().unwrap_or_else(PoisonError::into_inner);
        names.get(name).map(|namespace| namespace.id)
    }

    /// Calls `resolve` with a function that turns a key into a reference for the Book.
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

    /// Caches the id of a limit that was just created.
    pub(crate) fn learn(&self, book: &Book, namespace: &NamespaceName, key: &LimitKey) {
        let Some(id) = book.namespace(namespace) else { return };
        let mut names = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let entry = names.entry(namespace.clone()).or_insert_with(|| Namespace { id, limits: HashMap::new() });
        if let Some(limit) = book.resolve(id, key) {
            entry.limits.insert(key.clone(), limit);
        }
    }
}
