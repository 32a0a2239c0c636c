//! Policies of namespaces: reading and replacing them.

use earmark_core::{Command, NamespaceName, Outcome, PolicyOutcome, PolicyRevision, Principal, PutPolicy, QuotaKind};

use crate::backend::{Answer, BackendError};
use crate::book_host::{BookBackend, BookHost};
use crate::book_request::{Answered, Applied, BookRequest};
use crate::quotas::describe_quota;

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
    #[error("the policy has revision {revision}; read it and try again")]
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
        self.0.host.with_book(|book| {
            let id = book.namespace(namespace)?;
            let kept = revision.and_then(|revision| book.policy(id, Some(revision)));
            kept.or_else(|| book.policy(id, None)).cloned()
        })
    }
}
