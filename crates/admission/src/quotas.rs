//! Quotas of namespaces: reading, setting, and the text of a refusal.

use earmark_core::{
    Command, NamespaceName, Outcome, Principal, QUOTA_MAX, QuotaKind, QuotaUsage, QuotasOutcome, SetQuotas,
};

use crate::backend::{Answer, BackendError};
use crate::book_host::{BookBackend, BookHost};
use crate::book_request::{Answered, Applied, BookRequest};

/// Namespaces whose quotas are in the metrics. The first ones by creation, because each has two series per kind.
const GAUGES_NAMESPACES_MAX: u16 = 64;

/// Why quotas were not set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuotaError {
    /// A quota is out of range.
    #[error("{0}: allowed are integers from 0 to {QUOTA_MAX}")]
    TooHigh(QuotaKind),
    /// The resource is kept in another system, which does not count it.
    #[error("{0}: this quota is not enforced, because {1}")]
    KeptElsewhere(QuotaKind, &'static str),
    /// The namespace count is at its maximum.
    #[error("namespace: the namespace count is at its maximum")]
    TooManyNamespaces,
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// The error code of a refusal by a quota.
#[must_use]
pub fn quota_code(kind: QuotaKind) -> String {
    format!("quota_exceeded:{kind}")
}

/// Explains a refusal by a quota to the caller.
#[must_use]
pub fn describe_quota(kind: QuotaKind) -> String {
    let remedy = match kind {
        QuotaKind::Leases => "wait until older leases are forgotten, or complete them",
        QuotaKind::JournalBytesPerDay => "wait until the next day (UTC)",
        QuotaKind::Keys => "revoke unused keys",
        QuotaKind::Clients => "use a client_id that has written before, or have an admin retire unused ones",
        QuotaKind::Limits
        | QuotaKind::DerivedLimits
        | QuotaKind::Templates
        | QuotaKind::Vaults
        | QuotaKind::Accounts
        | QuotaKind::IdempotencyKeys
        | QuotaKind::PolicyBytes => "use what exists",
    };
    format!(
        "{}: this namespace has used up its quota; {remedy}, or ask an admin of namespace default for a higher quota",
        quota_code(kind)
    )
}

impl BookRequest for SetQuotas {
    type Answer = ();
    type Error = QuotaError;

    fn command(&self) -> Command<'_> {
        Command::SetQuotas(self)
    }

    fn answer(&self, _: &Applied<'_>, outcome: Outcome) -> Option<Answered<Self>> {
        let Outcome::Quotas(outcome) = outcome else { return None };
        Some(match outcome {
            QuotasOutcome::Set => Ok(()),
            QuotasOutcome::TooHigh(kind) => Err(QuotaError::TooHigh(kind)),
            QuotasOutcome::TooManyNamespaces => Err(QuotaError::TooManyNamespaces),
        })
    }
}

impl<H: BookHost> BookBackend<H> {
    pub(crate) async fn quota_usage(&self, namespace: NamespaceName) -> Result<Option<Vec<QuotaUsage>>, BackendError> {
        self.read(|book, now| book.namespace(&namespace).map(|id| book.quotas(now, id))).await
    }

    pub(crate) fn set_quotas_of(&self, by: Principal, command: SetQuotas) -> Answer<'_, Result<(), QuotaError>> {
        Box::pin(self.0.submit_one(by, command))
    }

    pub(crate) fn quota_gauges_now(&self) -> Vec<(NamespaceName, Vec<QuotaUsage>)> {
        let now = self.0.host.now();
        self.0.host.with_book(|book| {
            let ids = (0..GAUGES_NAMESPACES_MAX).map(earmark_core::NamespaceId);
            ids.map_while(|id| Some((book.namespace_name(id)?.clone(), book.quotas(now, id)))).collect()
        })
    }
}
