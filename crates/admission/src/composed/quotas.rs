//! Quotas of what the Book has and of what a database has.

use std::time::Duration;

use earmark_core::{Book, ExternalParts, NamespaceName, QuotaKind, QuotaUsage, SetQuotas, UnixMs};

use super::Parts;
use crate::backend::BackendError;
use crate::book_host::BookHost;
use crate::credits::CreditCounts;
use crate::quotas::QuotaError;

/// How long metrics wait for a database.
const GAUGES_TIMEOUT: Duration = Duration::from_secs(1);

impl<H: BookHost> Parts<H> {
    pub(super) async fn quotas(&self, namespace: NamespaceName) -> Result<Option<Vec<QuotaUsage>>, BackendError> {
        let Some(mut usages) = self.registry.quota_usage(namespace.clone()).await? else { return Ok(None) };
        let counts = self.credits.counts(vec![namespace]).await?;
        counts.iter().for_each(|counts| add(&mut usages, counts));
        usages.retain(|usage| self.why_unenforced(usage.kind).is_none());
        Ok(Some(usages))
    }

    pub(super) async fn quota_gauges(&self) -> Vec<(NamespaceName, Vec<QuotaUsage>)> {
        let mut gauges = self.registry.quota_gauges_now();
        let namespaces = gauges.iter().map(|(namespace, _)| namespace.clone()).collect();
        let counts = tokio::time::timeout(GAUGES_TIMEOUT, self.credits.counts(namespaces)).await;
        let counts = counts.ok().and_then(Result::ok);
        for (place, (_, usages)) in gauges.iter_mut().enumerate() {
            match counts.as_ref().and_then(|counts| counts.get(place)) {
                Some(counts) => add(usages, counts),
                None => usages.retain(|usage| count_of(&CreditCounts::default(), usage.kind).is_none()),
            }
            usages.retain(|usage| self.why_unenforced(usage.kind).is_none());
        }
        gauges
    }

    /// The first quota of a command that nothing enforces.
    pub(super) fn find_unenforced(&self, command: &SetQuotas) -> Option<QuotaError> {
        let mut kinds = command.quotas.keys();
        kinds.find_map(|kind| Some(QuotaError::KeptElsewhere(*kind, self.why_unenforced(*kind)?)))
    }

    /// Why nothing enforces a quota: nobody counts what another system keeps for ever.
    fn why_unenforced(&self, kind: QuotaKind) -> Option<&'static str> {
        let ExternalParts { limits, .. } = self.setup.parts;
        let is_kept = matches!(kind, QuotaKind::Leases | QuotaKind::DerivedLimits);
        (limits && is_kept).then_some("limits are enforced by another system, which keeps leases and derived limits")
    }
}

/// The most that a namespace may have in a database: its quotas less what the Book has.
pub(super) fn credit_quotas(book: &Book, now: UnixMs, namespace: &NamespaceName) -> CreditCounts {
    let Some(id) = book.namespace(namespace) else { return CreditCounts::default() };
    let rest = |kind| book.quota(id, kind).saturating_sub(book.quota_used(now, id, kind));
    CreditCounts {
        accounts: rest(QuotaKind::Accounts),
        clients: rest(QuotaKind::Clients),
        idempotency_keys: rest(QuotaKind::IdempotencyKeys),
    }
}

/// The count of a database for a quota, if it counts towards it.
fn count_of(counts: &CreditCounts, kind: QuotaKind) -> Option<u64> {
    match kind {
        QuotaKind::Accounts => Some(counts.accounts),
        QuotaKind::Clients => Some(counts.clients),
        QuotaKind::IdempotencyKeys => Some(counts.idempotency_keys),
        QuotaKind::Limits
        | QuotaKind::DerivedLimits
        | QuotaKind::Templates
        | QuotaKind::Vaults
        | QuotaKind::Keys
        | QuotaKind::Leases
        | QuotaKind::JournalBytesPerDay
        | QuotaKind::PolicyBytes => None,
    }
}

fn add(usages: &mut [QuotaUsage], counts: &CreditCounts) {
    for usage in usages {
        usage.used = usage.used.saturating_add(count_of(counts, usage.kind).unwrap_or(0));
    }
}
