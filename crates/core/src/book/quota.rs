//! Quotas: the command that sets them, their use, and the count of journal bytes.

use super::{Book, JournalRecord, LimitOutcome, NamespaceId, NamespaceOutcome, QuotaChange, QuotaEntry};
use crate::quota::{QUOTA_MAX, QuotaKind, QuotaUsage, QuotasOutcome, SetQuotas};
use crate::time::{Moment, UnixMs};

impl Book {
    /// The quota of a namespace.
    #[must_use]
    pub fn quota(&self, namespace: NamespaceId, kind: QuotaKind) -> u64 {
        self.limits.quota(namespace, kind)
    }

    /// All quotas of a namespace with their use at `now`, in the order of [`QuotaKind::ALL`].
    #[must_use]
    pub fn quotas(&self, now: UnixMs, namespace: NamespaceId) -> Vec<QuotaUsage> {
        let usage =
            |kind| QuotaUsage { kind, quota: self.quota(namespace, kind), used: self.quota_used(now, namespace, kind) };
        QuotaKind::ALL.map(usage).to_vec()
    }

    /// The use of a quota of a namespace at `now`.
    #[must_use]
    pub fn quota_used(&self, now: UnixMs, namespace: NamespaceId, kind: QuotaKind) -> u64 {
        let now = self.limits.at(now);
        match kind {
            QuotaKind::Limits => self.limits.limits_of(namespace),
            QuotaKind::Vaults => self.vaults_of(namespace),
            QuotaKind::Accounts => self.credits.account_use_of(namespace).into(),
            QuotaKind::Clients => self.sequences.clients_of(namespace),
            QuotaKind::Keys => self.namespace_name(namespace).map_or(0, |name| self.keys.count_of(name) as u64),
            QuotaKind::Leases => self.limits.state.quotas.leases(namespace),
            QuotaKind::JournalBytesPerDay => self.limits.state.quotas.journal_bytes(namespace, now),
            QuotaKind::Templates => self.limits.template_count(namespace),
            QuotaKind::DerivedLimits => self.limits.derived_of(namespace),
            QuotaKind::PolicyBytes => self.policies.bytes(namespace),
            QuotaKind::IdempotencyKeys => self.idempotency.count_of(namespace),
        }
    }

    pub(super) fn set_quotas(&mut self, at: Moment, command: &SetQuotas) -> QuotasOutcome {
        if let Some((kind, _)) = command.quotas.iter().find(|(_, quota)| **quota > QUOTA_MAX) {
            return QuotasOutcome::TooHigh(*kind);
        }
        let (NamespaceOutcome::Opened(namespace) | NamespaceOutcome::Exists(namespace)) =
            self.open_namespace(&command.namespace)
        else {
            return QuotasOutcome::TooManyNamespaces;
        };
        let mut changes = Vec::with_capacity(command.quotas.len());
        for (&kind, &new) in &command.quotas {
            changes.push(QuotaChange { kind, old: self.quota(namespace, kind), new });
            let state = &mut self.limits.state;
            state.quotas.set(namespace, kind, new, &state.config);
        }
        if let Some(actor) = self.credits.actor.clone() {
            self.credits.journal.push(JournalRecord::Quotas(QuotaEntry { at, namespace, changes, actor }));
        }
        QuotasOutcome::Set
    }

    /// The refusal of a change of a limit that would be recorded in a journal without room. Earmark's own changes are
    /// not recorded.
    pub(super) fn full_journal(&self, namespace: NamespaceId, now: UnixMs) -> Option<LimitOutcome> {
        let is_recorded = self.credits.actor.is_some() && self.limits.has_namespace(namespace);
        let is_full = is_recorded && !self.limits.state.quotas.has_room_in_journal(namespace, now);
        is_full.then_some(LimitOutcome::QuotaExceeded(QuotaKind::JournalBytesPerDay))
    }

    /// Counts the journal records from `first` on, each for its namespace.
    pub(super) fn count_journal_bytes(&mut self, first: usize) {
        let now = self.time();
        for record in self.credits.journal.iter().skip(first) {
            let namespace = match record {
                JournalRecord::Transaction(transaction) => transaction.namespace,
                JournalRecord::Hold(hold) | JournalRecord::Release(hold) => hold.namespace,
                JournalRecord::Settle(settle) => settle.hold.namespace,
                JournalRecord::Expire(expire) => expire.namespace,
                JournalRecord::Plan(plan) => plan.namespace,
                JournalRecord::Limit(limit) | JournalRecord::Template(limit) => limit.namespace,
                JournalRecord::Pause(pause) => pause.namespace,
                JournalRecord::Quotas(quotas) => quotas.namespace,
                JournalRecord::Policy(policy) => policy.namespace,
                JournalRecord::Key(key) => self.limits.namespace(&key.namespace).unwrap_or_default(),
            };
            self.scratch.clear();
            record.encode(&mut self.scratch);
            self.limits.state.quotas.add_journal_bytes(namespace, now, self.scratch.len() as u64);
        }
    }
}
