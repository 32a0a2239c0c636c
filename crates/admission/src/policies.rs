//! Policies of namespaces: reading and replacing them.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use earmark_core::{Command, NamespaceName, Outcome, PolicyOutcome, PolicyRevision, Principal, PutPolicy, QuotaKind};

use crate::backend::{Answer, BackendError};
use crate::book_host::{BookBackend, BookHost, Inner};
use crate::book_request::{Answered, Applied, BookRequest};
use crate::names::NameHash;
use crate::quotas::describe_quota;

/// The newest policies of namespaces as of one version of the Book's definitions, so that a call does not wait for the
/// lock of the Book, which is held while commands are applied.
#[derive(Default)]
pub(crate) struct NewestPolicies(RwLock<CachedPolicies>);

#[derive(Default)]
struct CachedPolicies {
    version: u64,
    newest: HashMap<NamespaceName, Option<PolicyRevision>, NameHash>,
}

impl NewestPolicies {
    fn get(&self, version: u64, namespace: &NamespaceName) -> Option<Option<PolicyRevision>> {
        let cached = self.0.read().unwrap_or_else(PoisonError::into_inner);
        cached.newest.get(namespace).filter(|_| cached.version == version).cloned()
    }

    fn insert(&self, version: u64, namespace: &NamespaceName, newest: Option<PolicyRevision>) {
        let mut cached = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if cached.version != version {
            *cached = CachedPolicies { version, newest: HashMap::default() };
        }
        cached.newest.insert(namespace.clone(), newest);
    }
}

fn describe_revision(revision: u64) -> String {
    match revision {
        0 => "the namespace has no policy; expect revision 0".to_owned(),
        revision => format!("the policy has revision {revision}; read it and try again"),
    }
}

/// Why a policy was not replaced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The document is too long.
    #[error(
        "policy: found more than {} bytes, allowed are {}",
        earmark_core::POLICY_BYTES_MAX,
        earmark_core::POLICY_BYTES_MAX
    )]
    TooLarge,
    /// The policy does not have the expected revision.
    #[error("{}", describe_revision(*revision))]
    RevisionDiffers {
        /// The revision it has; 0 if there is no policy.
        revision: u64,
    },
    /// The namespace has used up a quota.
    #[error("{}", describe_quota(*.0))]
    QuotaExceeded(QuotaKind),
    /// The namespace count is at its maximum.
    #[error("namespace: the namespace count is at its maximum")]
    TooManyNamespaces,
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl BookRequest for PutPolicy {
    type Answer = u64;
    type Error = PolicyError;

    fn command(&self) -> Command<'_> {
        Command::PutPolicy(self)
    }

    fn answer(&self, _: &Applied<'_>, outcome: Outcome) -> Option<Answered<Self>> {
        let Outcome::Policy(outcome) = outcome else { return None };
        Some(match outcome {
            PolicyOutcome::Changed { revision } => Ok(revision),
            PolicyOutcome::TooLarge => Err(PolicyError::TooLarge),
            PolicyOutcome::RevisionDiffers { revision } => Err(PolicyError::RevisionDiffers { revision }),
            PolicyOutcome::QuotaExceeded(kind) => Err(PolicyError::QuotaExceeded(kind)),
            PolicyOutcome::TooManyNamespaces => Err(PolicyError::TooManyNamespaces),
        })
    }
}

impl<H: BookHost> BookBackend<H> {
    pub(crate) async fn newest_policy(&self, namespace: NamespaceName) -> Result<Option<PolicyRevision>, BackendError> {
        self.read(|book, _| book.namespace(&namespace).and_then(|id| book.policy(id, None).cloned())).await
    }

    pub(crate) fn put_policy_of(&self, by: Principal, command: PutPolicy) -> Answer<'_, Result<u64, PolicyError>> {
        Box::pin(self.0.submit_one(by, command))
    }

    /// The policy as this process has applied it, without asking the leader: the one with `revision` if it is kept, else
    /// the newest.
    pub(crate) fn applied_policy(&self, namespace: &NamespaceName, revision: Option<u64>) -> Option<PolicyRevision> {
        match revision {
            None => self.applied_newest_policy(namespace),
            Some(revision) => self.0.host.with_book(|book| {
                let id = book.namespace(namespace)?;
                book.policy(id, Some(revision)).or_else(|| book.policy(id, None)).cloned()
            }),
        }
    }

    fn applied_newest_policy(&self, namespace: &NamespaceName) -> Option<PolicyRevision> {
        let Inner { host, newest_policies, .. } = &*self.0;
        if let Some(found) = newest_policies.get(host.limits_version(), namespace) {
            return found;
        }
        let (version, found) = host.with_book(|book| {
            let newest = |id| book.policy(id, None).cloned();
            (book.limits_version(), book.namespace(namespace).map(newest))
        });
        // A name without a namespace may be any text, so it is not cached.
        let found = found?;
        newest_policies.insert(version, namespace, found.clone());
        found
    }
}
