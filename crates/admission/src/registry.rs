//! The Book as the registry of limits that TigerBeetle enforces.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use earmark_core::{
    Book, Config, Definition, ExternalParts, ExternalSetup, LimitInfo, LimitKey, LimitStatus, NamespaceId,
    NamespaceName, Principal, UnixMs, VaultName,
};

use crate::backend::{Answer, BackendError, LimitError};
use crate::book_host::{BookBackend, BookHost, vault};
use crate::book_request::{ChangeLimit, LimitCommand};
use crate::limits::Registry;

use crate::writes::CreditReadError;

/// Why the Book and the `--ledger` and `--credits` options of a process contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// TigerBeetle enforces the limits.
    #[error("TigerBeetle enforces the limits of this server: name its cluster with --ledger")]
    LimitsExternal,
    /// SQL keeps the credit.
    #[error("a database keeps the credit of this server: name it with --credits")]
    CreditExternal,
    /// The Book has credit, which would be missing in SQL.
    #[error("this server already has credit, which --credits would leave behind: use --credits with new data only")]
    CreditInBook,
    /// Another TigerBeetle cluster enforces the limits.
    #[error(
        "TigerBeetle cluster {found} enforces the limits of this server, but --ledger names cluster {named}: name cluster \
         {found}"
    )]
    OtherLedger {
        /// The cluster that enforces them.
        found: u128,
        /// The cluster that `--ledger` names.
        named: u128,
    },
    /// The Book could not be read or written.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl From<PlacementError> for BackendError {
    fn from(error: PlacementError) -> BackendError {
        match error {
            PlacementError::Backend(error) => error,
            PlacementError::LimitsExternal
            | PlacementError::CreditExternal
            | PlacementError::CreditInBook
            | PlacementError::OtherLedger { .. } => BackendError::Failed(error.to_string()),
        }
    }
}

/// The placement that a process was started with. Another process may change the Book's placement later; from then on
/// this process must not decide anything.
pub(crate) struct ProcessPlacement {
    setup: ExternalSetup,
    /// The limits version of the last successful comparison, plus 1; 0 before the first.
    checked_version: AtomicU64,
}

impl ProcessPlacement {
    /// The contradiction between a process's placement and the Book's, if any.
    fn contradiction(own: ExternalSetup, found: ExternalSetup) -> Option<PlacementError> {
        if found.parts.limits && !own.parts.limits {
            return Some(PlacementError::LimitsExternal);
        }
        if found.parts.credit && !own.parts.credit {
            return Some(PlacementError::CreditExternal);
        }
        match (found.ledger, own.ledger) {
            (Some(found), Some(named)) if found != named => Some(PlacementError::OtherLedger { found, named }),
            (Some(_), Some(_)) | (None, _) | (_, None) => None,
        }
    }
}

/// The maximum number of cached limits: about 50 MB. Beyond it the cache starts anew, which only costs lookups. Keys of
/// templates are without number.
const CACHED_MAX: usize = 1 << 17;

/// A cache of limits for the lock-free path. It holds one version of the limits.
#[derive(Default)]
pub(crate) struct LimitCache(RwLock<CachedLimits>);

#[derive(Default)]
struct CachedLimits {
    version: u64,
    len: usize,
    limits: HashMap<NamespaceName, HashMap<LimitKey, Arc<LimitInfo>>>,
}

impl LimitCache {
    fn get(&self, version: u64, namespace: &NamespaceName, key: &LimitKey) -> Option<Arc<LimitInfo>> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let limits = known.limits.get(namespace).filter(|_| known.version == version);
        limits.and_then(|limits| limits.get(key)).map(Arc::clone)
    }

    /// Caches a limit as of a version.
    fn insert(&self, version: u64, namespace: &NamespaceName, limit: &Arc<LimitInfo>) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if known.version != version || known.len >= CACHED_MAX {
            *known = CachedLimits { version, len: 0, limits: HashMap::new() };
        }
        let limits = known.limits.entry(namespace.clone()).or_default();
        if limits.insert(limit.definition.key.clone(), Arc::clone(limit)).is_none() {
            known.len = known.len.saturating_add(1);
        }
    }
}

/// Whether a limit is being deleted. It decreases to 0 and stays visible until the enforcer reports it gone.
pub(crate) fn is_deleting(limit: &LimitInfo) -> bool {
    limit.definition.kind.terms().is_none() && limit.status == LimitStatus::Decreasing { to: 0 }
}

/// All limits of all namespaces that were put.
pub(crate) fn all_limits(book: &Book, now: UnixMs) -> impl Iterator<Item = (&NamespaceName, LimitInfo)> {
    let names = (0..=u16::MAX).map(NamespaceId).map_while(|id| Some((id, book.namespace_name(id)?)));
    names.flat_map(move |(id, name)| book.defined_limits(now, id).into_iter().map(move |limit| (name, limit)))
}

fn find(book: &Book, namespace: &NamespaceName, key: &LimitKey) -> Option<LimitInfo> {
    book.find_limit(book.time(), book.namespace(namespace)?, key)
}

impl<H: BookHost> Registry for BookBackend<H> {
    fn limit(&self, namespace: &NamespaceName, key: &LimitKey) -> Option<Arc<LimitInfo>> {
        let host = &self.0.host;
        if let Some(limit) = self.0.cache.get(host.limits_version(), namespace, key) {
            return Some(limit);
        }
        let (version, limit) = host.with_book(|book| (book.limits_version(), find(book, namespace, key)));
        let limit = Arc::new(limit?);
        self.0.cache.insert(version, namespace, &limit);
        Some(limit)
    }

    fn refresh(&self) -> Answer<'_, Result<(), BackendError>> {
        Box::pin(async { self.0.host.read_barrier().await.map(drop) })
    }

    fn limits(&self) -> Vec<(NamespaceName, Arc<LimitInfo>)> {
        self.0.host.with_book(|book| {
            all_limits(book, book.time()).map(|(name, limit)| (name.clone(), Arc::new(limit))).collect()
        })
    }

    fn version(&self) -> u64 {
        self.0.host.limits_version()
    }

    fn config(&self) -> Config {
        self.0.host.with_book(|book| *book.config())
    }

    fn runs_maintenance(&self) -> bool {
        self.0.host.runs_maintenance()
    }
}

impl<H: BookHost> BookBackend<H> {
    /// The parts that are kept outside the Book, as this process knows them.
    #[must_use]
    pub fn external(&self) -> ExternalParts {
        self.0.host.with_book(Book::external_parts)
    }

    /// The same Book, for a process with this placement. It refuses requests once the Book has another placement.
    #[must_use]
    pub fn with_placement(&self, setup: impl Into<ExternalSetup>) -> BookBackend<H> {
        let placement = ProcessPlacement { setup: setup.into(), checked_version: AtomicU64::new(0) };
        BookBackend(Arc::clone(&self.0), Some(Arc::new(placement)))
    }

    /// Checks that the Book's placement is that of this process, without a read barrier.
    ///
    /// # Errors
    /// When they contradict each other.
    pub(crate) fn check_placement(&self) -> Result<(), PlacementError> {
        let Some(placement) = &self.1 else { return Ok(()) };
        let version = self.0.host.limits_version().wrapping_add(1);
        if placement.checked_version.load(Ordering::Relaxed) == version {
            return Ok(());
        }
        let (version, found) =
            self.0.host.with_book(|book| (book.limits_version().wrapping_add(1), book.external_setup()));
        match ProcessPlacement::contradiction(placement.setup, found) {
            Some(error) => Err(error),
            None => {
                placement.checked_version.store(version, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    /// Records in the Book which parts are kept elsewhere.
    ///
    /// # Errors
    /// When the Book cannot record it, or when limits or credit would become unreachable.
    pub async fn record_placement(&self, setup: impl Into<ExternalSetup>) -> Result<(), PlacementError> {
        let setup = setup.into();
        let (found, has_credit) = self.read(|book, _| (book.external_setup(), book.has_credit())).await?;
        if let Some(error) = ProcessPlacement::contradiction(setup, found) {
            return Err(error);
        }
        if found.parts == setup.parts && (found.ledger == setup.ledger || setup.ledger.is_none()) {
            return Ok(());
        }
        if has_credit && setup.parts.credit && !found.parts.credit {
            return Err(PlacementError::CreditInBook);
        }
        self.0.submit_one(Principal::System, setup).await?;
        // Another process may have recorded another cluster first.
        let found = self.read(|book, _| book.external_setup()).await?;
        ProcessPlacement::contradiction(setup, found).map_or(Ok(()), Err)
    }

    /// Whether a template of the same kind matches the key of a limit.
    pub(crate) fn overrides_template(&self, namespace: &NamespaceName, limit: &LimitInfo) -> bool {
        let Definition { key, kind, .. } = &limit.definition;
        let template = |book: &Book| book.derive(book.namespace(namespace)?, key);
        self.0.host.with_book(template).is_some_and(|(template, _)| template.kind.is_same_kind(kind))
    }

    /// Forgets a deleted limit that the enforcer no longer has, unless it was created again.
    pub(crate) async fn drop_limit(&self, namespace: &NamespaceName, limit: &LimitInfo) -> Result<(), BackendError> {
        let Some(namespace) = self.0.namespace(namespace) else { return Ok(()) };
        let change = LimitCommand::Drop(limit.definition.key.clone(), limit.revision);
        match self.0.submit_one(Principal::System, ChangeLimit { namespace, change }).await {
            Err(LimitError::Backend(error)) => Err(error),
            // A refusal means that another process was first, or that the limit was created again. Both are fine.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Checks that a vault exists. Vaults are never deleted, so a local hit needs no read barrier.
    pub(crate) async fn check_vault(&self, namespace: &NamespaceName, name: &VaultName) -> Result<(), CreditReadError> {
        if self.0.host.with_book(|book| vault(book, namespace, name)).is_ok() {
            return Ok(());
        }
        self.read(|book, _: UnixMs| vault(book, namespace, name).map(drop)).await?
    }
}
