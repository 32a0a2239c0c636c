//! The Book as the registry of limits that are enforced elsewhere.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use earmark_core::{
    Book, Elsewhere, LimitInfo, LimitKey, LimitStatus, NamespaceId, NamespaceName, UnixMs, VaultName,
};

use crate::backend::{Answer, BackendError};
use crate::keeper::{BookBackend, Keeper, vault};
use crate::ledger::LedgerError;
use crate::limits::Registry;
use crate::work::{Done, Work, mixed_up};

/// Why a Book does not become the registry of other parts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeepError {
    /// Its limits are enforced by others.
    #[error("the limits that are defined here are enforced on a ledger elsewhere: name it with --ledger")]
    LimitsElsewhere,
    /// Its credit is kept by others.
    #[error("the credit of the vaults that were opened here is kept elsewhere: say where with --credits")]
    CreditElsewhere,
    /// It has credit of its own, which nobody would find elsewhere.
    #[error("there is credit here already, which is not found elsewhere: use --credits with new data only")]
    CreditHere,
    /// It cannot be noted now.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl From<KeepError> for BackendError {
    fn from(error: KeepError) -> BackendError {
        match error {
            KeepError::Backend(error) => error,
            KeepError::LimitsElsewhere | KeepError::CreditElsewhere | KeepError::CreditHere => {
                BackendError::Failed(error.to_string())
            }
        }
    }
}

/// Limits that were looked up, for as long as nobody changes any. What is not among them is asked of the Book.
#[derive(Default)]
pub(crate) struct Copies(RwLock<Known>);

#[derive(Default)]
struct Known {
    version: u64,
    limits: HashMap<NamespaceName, HashMap<LimitKey, Arc<LimitInfo>>>,
}

impl Copies {
    fn get(&self, version: u64, namespace: &NamespaceName, key: &LimitKey) -> Option<Arc<LimitInfo>> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let limits = known.limits.get(namespace).filter(|_| known.version == version);
        limits.and_then(|limits| limits.get(key)).map(Arc::clone)
    }

    /// Keeps a limit that the Book had when it was of this version.
    fn keep(&self, version: u64, namespace: &NamespaceName, limit: &Arc<LimitInfo>) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if known.version != version {
            *known = Known { version, limits: HashMap::new() };
        }
        let limits = known.limits.entry(namespace.clone()).or_default();
        limits.insert(limit.definition.key.clone(), Arc::clone(limit));
    }
}

/// Whether a limit is on its way out: until it is gone it is known, and decreases to nothing.
pub(crate) fn is_deleting(limit: &LimitInfo) -> bool {
    limit.definition.kind.terms().is_none() && limit.status == LimitStatus::Decreasing { to: 0 }
}

fn find(book: &Book, namespace: &NamespaceName, key: &LimitKey) -> Option<LimitInfo> {
    book.limit(book.time(), book.resolve(book.namespace(namespace)?, key)?)
}

impl<K: Keeper> Registry for BookBackend<K> {
    fn limit(&self, namespace: &NamespaceName, key: &LimitKey) -> Option<Arc<LimitInfo>> {
        let keeper = &self.0.keeper;
        if let Some(limit) = self.0.copies.get(keeper.limits_version(), namespace, key) {
            return Some(limit);
        }
        let (version, limit) = keeper.look(|book| (book.limits_version(), find(book, namespace, key)));
        let limit = Arc::new(limit?);
        self.0.copies.keep(version, namespace, &limit);
        Some(limit)
    }

    fn refresh(&self) -> Answer<'_, Result<(), BackendError>> {
        Box::pin(async { self.0.keeper.fresh().await.map(drop) })
    }

    fn limits(&self) -> Vec<(NamespaceName, Arc<LimitInfo>)> {
        self.0.keeper.look(|book| {
            let names =
                (0..=u16::MAX).map_while(|id| Some((NamespaceId(id), book.namespace_name(NamespaceId(id))?)));
            let of = |(id, name): (NamespaceId, &NamespaceName)| {
                let name = name.clone();
                book.limits(book.time(), id).into_iter().map(move |limit| (name.clone(), Arc::new(limit)))
            };
            names.flat_map(of).collect()
        })
    }

    fn is_in_charge(&self) -> bool {
        self.0.keeper.is_in_charge()
    }
}

impl<K: Keeper> BookBackend<K> {
    /// What is kept elsewhere, as far as is known here.
    #[must_use]
    pub fn elsewhere(&self) -> Elsewhere {
        self.0.keeper.look(Book::elsewhere)
    }

    /// Has the Book leave what is kept elsewhere alone, from now on.
    ///
    /// # Errors
    /// When it cannot be noted now; and when it would lose sight of what is kept, here or there.
    pub async fn keep(&self, elsewhere: Elsewhere) -> Result<(), KeepError> {
        let (found, has_credit) = self.read(|book, _| (book.elsewhere(), book.has_credit())).await?;
        if found == elsewhere {
            return Ok(());
        }
        if found.limits && !elsewhere.limits {
            return Err(KeepError::LimitsElsewhere);
        }
        if found.credit && !elsewhere.credit {
            return Err(KeepError::CreditElsewhere);
        }
        if has_credit && elsewhere.credit && !found.credit {
            return Err(KeepError::CreditHere);
        }
        match self.0.submit_one(Work::Keep(elsewhere)).await? {
            Done::Kept => Ok(()),
            _ => Err(mixed_up().into()),
        }
    }

    /// Forgets a deleted limit that is gone from where it was enforced, if it was not put again since.
    pub(crate) async fn drop_limit(
        &self,
        namespace: &NamespaceName,
        limit: &LimitInfo,
    ) -> Result<(), BackendError> {
        let Some(namespace) = self.0.namespace(namespace) else { return Ok(()) };
        let (key, revision) = (limit.definition.key.clone(), limit.revision);
        // Whoever was faster, or put it again, has said all there is to say.
        self.0.submit_one(Work::Drop { namespace, key, revision }).await.map(drop)
    }

    /// Whether a vault is open. Vaults are for ever, so that what is known here need not be asked again.
    pub(crate) async fn check_vault(
        &self,
        namespace: &NamespaceName,
        name: &VaultName,
    ) -> Result<(), LedgerError> {
        if self.0.keeper.look(|book| vault(book, namespace, name)).is_ok() {
            return Ok(());
        }
        self.read(|book, _: UnixMs| vault(book, namespace, name).map(drop)).await?
    }
}
