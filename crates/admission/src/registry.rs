//! The Book as the registry of limits that are enforced elsewhere.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use earmark_core::{
    Book, By, Elsewhere, Keep, LimitInfo, LimitKey, LimitStatus, NamespaceId, NamespaceName, UnixMs,
    VaultName,
};

use crate::backend::{Answer, BackendError};
use crate::book_host::{BookBackend, BookHost, vault};
use crate::limits::Registry;
use crate::work::{Done, Work, mixed_up};
use crate::writes::CreditReadError;

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
    /// Its limits are enforced on another ledger than is meant.
    #[error(
        "the limits that are defined here are enforced on the ledger of cluster {found}, and --ledger names cluster \
         {named}: name the first"
    )]
    OtherLedger {
        /// The number of the ledger that enforces them.
        found: u128,
        /// The number of the ledger that was meant.
        named: u128,
    },
    /// It cannot be noted now.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl From<KeepError> for BackendError {
    fn from(error: KeepError) -> BackendError {
        match error {
            KeepError::Backend(error) => error,
            KeepError::LimitsElsewhere
            | KeepError::CreditElsewhere
            | KeepError::CreditHere
            | KeepError::OtherLedger { .. } => BackendError::Failed(error.to_string()),
        }
    }
}

/// What a process was started to leave to others. The Book may be told otherwise later, by another process that has the
/// same Book: from then on this one must not decide anything.
pub(crate) struct Duty {
    keep: Keep,
    /// The version of the limits in which both were last found to agree, and one more; 0 before that.
    agreed: AtomicU64,
}

impl Duty {
    /// How a process that leaves this to others contradicts what the Book was told.
    fn contradiction(keep: Keep, found: Keep) -> Option<KeepError> {
        if found.elsewhere.limits && !keep.elsewhere.limits {
            return Some(KeepError::LimitsElsewhere);
        }
        if found.elsewhere.credit && !keep.elsewhere.credit {
            return Some(KeepError::CreditElsewhere);
        }
        match (found.ledger, keep.ledger) {
            (Some(found), Some(named)) if found != named => Some(KeepError::OtherLedger { found, named }),
            (Some(_), Some(_)) | (None, _) | (_, None) => None,
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

impl<H: BookHost> Registry for BookBackend<H> {
    fn limit(&self, namespace: &NamespaceName, key: &LimitKey) -> Option<Arc<LimitInfo>> {
        let host = &self.0.host;
        if let Some(limit) = self.0.copies.get(host.limits_version(), namespace, key) {
            return Some(limit);
        }
        let (version, limit) = host.look(|book| (book.limits_version(), find(book, namespace, key)));
        let limit = Arc::new(limit?);
        self.0.copies.keep(version, namespace, &limit);
        Some(limit)
    }

    fn refresh(&self) -> Answer<'_, Result<(), BackendError>> {
        Box::pin(async { self.0.host.fresh().await.map(drop) })
    }

    fn limits(&self) -> Vec<(NamespaceName, Arc<LimitInfo>)> {
        self.0.host.look(|book| {
            let names =
                (0..=u16::MAX).map_while(|id| Some((NamespaceId(id), book.namespace_name(NamespaceId(id))?)));
            let of = |(id, name): (NamespaceId, &NamespaceName)| {
                let name = name.clone();
                book.limits(book.time(), id).into_iter().map(move |limit| (name.clone(), Arc::new(limit)))
            };
            names.flat_map(of).collect()
        })
    }

    fn version(&self) -> u64 {
        self.0.host.limits_version()
    }

    fn is_in_charge(&self) -> bool {
        self.0.host.is_in_charge()
    }
}

impl<H: BookHost> BookBackend<H> {
    /// What is kept elsewhere, as far as is known here.
    #[must_use]
    pub fn elsewhere(&self) -> Elsewhere {
        self.0.host.look(Book::elsewhere)
    }

    /// The same Book for a process that leaves this to others. It refuses to decide once the Book is told otherwise,
    /// whoever tells it.
    #[must_use]
    pub fn leaving(&self, keep: impl Into<Keep>) -> BookBackend<H> {
        let duty = Duty { keep: keep.into(), agreed: AtomicU64::new(0) };
        BookBackend(Arc::clone(&self.0), Some(Arc::new(duty)))
    }

    /// Whether this process may decide what it is asked for, as far as is known here.
    ///
    /// # Errors
    /// When the Book was told that others keep it.
    pub(crate) fn agree(&self) -> Result<(), KeepError> {
        let Some(duty) = &self.1 else { return Ok(()) };
        let version = self.0.host.limits_version().wrapping_add(1);
        if duty.agreed.load(Ordering::Relaxed) == version {
            return Ok(());
        }
        let (version, found) = self.0.host.look(|book| (book.limits_version().wrapping_add(1), book.kept()));
        match Duty::contradiction(duty.keep, found) {
            Some(error) => Err(error),
            None => {
                duty.agreed.store(version, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    /// Has the Book leave what is kept elsewhere alone, from now on.
    ///
    /// # Errors
    /// When it cannot be noted now; and when it would lose sight of what is kept, here or there.
    pub async fn keep(&self, keep: impl Into<Keep>) -> Result<(), KeepError> {
        let keep = keep.into();
        let (found, has_credit) = self.read(|book, _| (book.kept(), book.has_credit())).await?;
        if let Some(error) = Duty::contradiction(keep, found) {
            return Err(error);
        }
        if found.elsewhere == keep.elsewhere && (found.ledger == keep.ledger || keep.ledger.is_none()) {
            return Ok(());
        }
        if has_credit && keep.elsewhere.credit && !found.elsewhere.credit {
            return Err(KeepError::CreditHere);
        }
        match self.0.submit_one(By::Itself, Work::Keep(keep)).await? {
            Done::Kept => {}
            _ => return Err(mixed_up().into()),
        }
        // Somebody else may have been faster, with another ledger.
        let found = self.read(|book, _| book.kept()).await?;
        Duty::contradiction(keep, found).map_or(Ok(()), Err)
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
        self.0.submit_one(By::Itself, Work::Drop { namespace, key, revision }).await.map(drop)
    }

    /// Whether a vault is open. Vaults are for ever, so that what is known here need not be asked again.
    pub(crate) async fn check_vault(
        &self,
        namespace: &NamespaceName,
        name: &VaultName,
    ) -> Result<(), CreditReadError> {
        if self.0.host.look(|book| vault(book, namespace, name)).is_ok() {
            return Ok(());
        }
        self.read(|book, _: UnixMs| vault(book, namespace, name).map(drop)).await?
    }
}
