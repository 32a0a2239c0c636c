//! Quotas: the share of each table that one namespace may use, so that no tenant can use up what all share.
//!
//! A quota bounds growth only. One that is set below the current use refuses new records and removes none.

use std::collections::BTreeMap;
use std::fmt;

use crate::book::NamespaceId;
use crate::credits::{ACCOUNTS_MAX, VAULTS_MAX};
use crate::id::NamespaceName;
use crate::idempotency::IDEMPOTENCY_KEYS_MAX;
use crate::keys::KEYS_MAX;
use crate::limits::{Config, TEMPLATES_MAX};
use crate::time::UnixMs;

/// The highest quota: 2^53 - 1, which every JSON parser reads exactly.
pub const QUOTA_MAX: u64 = (1 << 53) - 1;
/// Journal bytes that `default` may write in one day: 256 GiB, or 3 MiB a second. Others get a tenth.
pub const JOURNAL_BYTES_PER_DAY: u64 = 256 << 30;
/// Bytes of policies in all namespaces, with their kept revisions: 16 MiB.
const POLICIES_BYTES_MAX: u64 = 16 << 20;
/// The part of a table that a namespace other than `default` gets unless an admin sets another quota.
const SHARE: u64 = 10;
/// Retired client ids that count as one client: a hash takes less than a sixteenth of the memory of a client.
pub(crate) const RETIRED_PER_CLIENT: u32 = 16;
/// Deleted vaults that count as one vault: the numbers of vaults, 2^32, by the maximum number of vaults, 2^16. Only their
/// numbers stay used, so nobody can use up more of these than a share.
pub(crate) const DELETED_PER_VAULT: u64 = 1 << 16;
/// When to try again after a quota refused a reserve: 10 seconds, since nobody knows when records are freed.
pub(crate) const QUOTA_RETRY_MS: u64 = 10_000;
const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

/// The resource that a quota bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum QuotaKind {
    /// Limits that were put; a deleted one counts until it is freed.
    Limits = 1,
    /// Limits derived from templates.
    DerivedLimits = 2,
    /// Templates of limits.
    Templates = 3,
    /// Vaults; 65,536 deleted ones count as one.
    Vaults = 4,
    /// Accounts of all vaults, closed ones included, and the balances beyond the first of each.
    Accounts = 5,
    /// Clients, counted once per scope; 16 retired ones count as one.
    Clients = 6,
    /// API keys, ended ones included until a new key takes their place.
    Keys = 7,
    /// Lease records, those of denied and completed leases included.
    Leases = 8,
    /// Idempotency keys that were ever used.
    IdempotencyKeys = 9,
    /// Bytes of journal records in one day of log time.
    JournalBytesPerDay = 10,
    /// Bytes of policies, with the revisions that are kept.
    PolicyBytes = 11,
}

impl QuotaKind {
    /// All kinds, in the order of the API.
    pub const ALL: [QuotaKind; 11] = [
        QuotaKind::Limits,
        QuotaKind::DerivedLimits,
        QuotaKind::Templates,
        QuotaKind::Vaults,
        QuotaKind::Accounts,
        QuotaKind::Clients,
        QuotaKind::Keys,
        QuotaKind::Leases,
        QuotaKind::IdempotencyKeys,
        QuotaKind::JournalBytesPerDay,
        QuotaKind::PolicyBytes,
    ];

    /// The name in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            QuotaKind::Limits => "limits",
            QuotaKind::DerivedLimits => "derived_limits",
            QuotaKind::Templates => "templates",
            QuotaKind::Vaults => "vaults",
            QuotaKind::Accounts => "accounts",
            QuotaKind::Clients => "clients",
            QuotaKind::Keys => "keys",
            QuotaKind::Leases => "leases",
            QuotaKind::IdempotencyKeys => "idempotency_keys",
            QuotaKind::JournalBytesPerDay => "journal_bytes_per_day",
            QuotaKind::PolicyBytes => "policy_bytes",
        }
    }

    /// The quota of a namespace for which nobody has set one.
    fn default_quota(self, is_default: bool, config: &Config) -> u64 {
        let table = match self {
            QuotaKind::Limits | QuotaKind::DerivedLimits => u64::from(config.limits_max),
            QuotaKind::Templates => return TEMPLATES_MAX,
            QuotaKind::Vaults => VAULTS_MAX as u64,
            QuotaKind::Accounts => u64::from(ACCOUNTS_MAX),
            QuotaKind::Clients => u64::from(config.clients_max),
            QuotaKind::Keys => KEYS_MAX as u64,
            QuotaKind::Leases => u64::from(config.leases_max),
            QuotaKind::IdempotencyKeys => IDEMPOTENCY_KEYS_MAX.into(),
            QuotaKind::JournalBytesPerDay => JOURNAL_BYTES_PER_DAY,
            QuotaKind::PolicyBytes => POLICIES_BYTES_MAX,
        };
        if is_default { table } else { (table / SHARE).max(1) }
    }
}

impl fmt::Display for QuotaKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A quota and its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaUsage {
    /// The bounded resource.
    pub kind: QuotaKind,
    /// The quota.
    pub quota: u64,
    /// The use; above the quota if the quota was lowered.
    pub used: u64,
}

/// Sets quotas of a namespace. Quotas that it does not name stay as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetQuotas {
    /// The namespace. It is opened if it does not exist.
    pub namespace: NamespaceName,
    /// The quotas, ordered by kind, no kind twice; each at most [`QUOTA_MAX`].
    pub quotas: BTreeMap<QuotaKind, u64>,
}

/// The answer to `SetQuotas`, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotasOutcome {
    /// A quota is above [`QUOTA_MAX`].
    TooHigh(QuotaKind),
    /// The maximum number of namespaces is reached.
    TooManyNamespaces,
    /// Set.
    Set,
}

/// The use and the quotas of one namespace in the tables that every reserve touches.
#[derive(Clone, Copy, Debug, Default)]
struct Hot {
    leases: u32,
    leases_quota: u32,
    /// The day of log time that `journal_bytes` counts.
    journal_day: u64,
    journal_bytes: u64,
    journal_quota: u64,
}

/// The quotas of all namespaces, and the counters that no table has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Quotas {
    /// The quotas that an admin has set.
    set: BTreeMap<(NamespaceId, QuotaKind), u64>,
    /// By namespace.
    hot: Vec<Hot>,
    /// The number of deleted vaults of each namespace that has deleted one.
    deleted_vaults: BTreeMap<NamespaceId, u64>,
}

impl Quotas {
    pub(crate) fn get(&self, namespace: NamespaceId, kind: QuotaKind, config: &Config) -> u64 {
        let set = self.set.get(&(namespace, kind)).copied();
        set.unwrap_or_else(|| kind.default_quota(namespace == NamespaceId::DEFAULT, config))
    }

    /// Adds the next namespace.
    pub(crate) fn add_namespace(&mut self, config: &Config) {
        let namespace = NamespaceId(u16::try_from(self.hot.len()).unwrap_or(u16::MAX));
        self.hot.push(Hot::default());
        self.refresh(namespace, config);
    }

    pub(crate) fn set(&mut self, namespace: NamespaceId, kind: QuotaKind, quota: u64, config: &Config) {
        self.set.insert((namespace, kind), quota);
        self.refresh(namespace, config);
    }

    /// Copies the quotas that reserves read, after the settings changed.
    pub(crate) fn refresh_all(&mut self, config: &Config) {
        for namespace in (0..=u16::MAX).map(NamespaceId).take(self.hot.len()) {
            self.refresh(namespace, config);
        }
    }

    /// Copies the quotas of a namespace that reserves read.
    fn refresh(&mut self, namespace: NamespaceId, config: &Config) {
        let leases = self.get(namespace, QuotaKind::Leases, config);
        let journal = self.get(namespace, QuotaKind::JournalBytesPerDay, config);
        if let Some(hot) = self.hot.get_mut(usize::from(namespace.0)) {
            hot.leases_quota = u32::try_from(leases).unwrap_or(u32::MAX);
            hot.journal_quota = journal;
        }
    }

    pub(crate) fn leases(&self, namespace: NamespaceId) -> u64 {
        self.hot(namespace).leases.into()
    }

    pub(crate) fn has_room_for_lease(&self, namespace: NamespaceId) -> bool {
        let hot = self.hot(namespace);
        hot.leases < hot.leases_quota
    }

    pub(crate) fn add_lease(&mut self, namespace: NamespaceId) {
        if let Some(hot) = self.hot.get_mut(usize::from(namespace.0)) {
            hot.leases = hot.leases.saturating_add(1);
        }
    }

    pub(crate) fn remove_lease(&mut self, namespace: NamespaceId) {
        if let Some(hot) = self.hot.get_mut(usize::from(namespace.0)) {
            hot.leases = hot.leases.saturating_sub(1);
        }
    }

    /// The journal bytes of the day of `now`.
    pub(crate) fn journal_bytes(&self, namespace: NamespaceId, now: UnixMs) -> u64 {
        let hot = self.hot(namespace);
        if hot.journal_day == day(now) { hot.journal_bytes } else { 0 }
    }

    /// Whether the namespace may still add to the journal. The record that reaches the quota is the last one.
    pub(crate) fn has_room_in_journal(&self, namespace: NamespaceId, now: UnixMs) -> bool {
        self.journal_bytes(namespace, now) < self.hot(namespace).journal_quota
    }

    pub(crate) fn add_journal_bytes(&mut self, namespace: NamespaceId, now: UnixMs, bytes: u64) {
        let before = self.journal_bytes(namespace, now);
        if let Some(hot) = self.hot.get_mut(usize::from(namespace.0)) {
            (hot.journal_day, hot.journal_bytes) = (day(now), before.saturating_add(bytes));
        }
    }

    pub(crate) fn deleted_vaults(&self, namespace: NamespaceId) -> u64 {
        self.deleted_vaults.get(&namespace).copied().unwrap_or(0)
    }

    pub(crate) fn add_deleted_vault(&mut self, namespace: NamespaceId) {
        let count = self.deleted_vaults.entry(namespace).or_default();
        *count = count.saturating_add(1);
    }

    /// The number of deleted vaults of each namespace that has deleted one, in order.
    pub(crate) fn all_deleted_vaults(&self) -> impl Iterator<Item = (NamespaceId, u64)> + '_ {
        self.deleted_vaults.iter().map(|(namespace, count)| (*namespace, *count))
    }

    /// Restores the number of deleted vaults of a namespace. Returns false if it has one already.
    pub(crate) fn restore_deleted_vaults(&mut self, namespace: NamespaceId, count: u64) -> bool {
        self.deleted_vaults.insert(namespace, count).is_none()
    }

    /// The quotas that were set, in order.
    pub(crate) fn all_set(&self) -> impl Iterator<Item = (NamespaceId, QuotaKind, u64)> + '_ {
        self.set.iter().map(|(&(namespace, kind), &quota)| (namespace, kind, quota))
    }

    /// The journal bytes of each namespace that has written, with their day.
    pub(crate) fn journal_days(&self) -> impl Iterator<Item = (NamespaceId, u64, u64)> + '_ {
        let all = (0..=u16::MAX).map(NamespaceId).zip(&self.hot);
        all.filter(|(_, hot)| hot.journal_bytes > 0)
            .map(|(namespace, hot)| (namespace, hot.journal_day, hot.journal_bytes))
    }

    /// Restores the journal bytes of a namespace. Returns false if it has some already or does not exist.
    pub(crate) fn restore_journal(&mut self, namespace: NamespaceId, day: u64, bytes: u64) -> bool {
        let free = self.hot.get_mut(usize::from(namespace.0)).filter(|hot| hot.journal_bytes == 0);
        free.map(|hot| (hot.journal_day, hot.journal_bytes) = (day, bytes)).is_some()
    }

    fn hot(&self, namespace: NamespaceId) -> Hot {
        self.hot.get(usize::from(namespace.0)).copied().unwrap_or_default()
    }
}

/// The day of a time.
pub(crate) fn day(now: UnixMs) -> u64 {
    now.get() / DAY_MS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Bytes, Wire};

    #[test]
    fn a_namespace_other_than_default_gets_a_tenth_of_every_table() {
        let (config, mut quotas) = (Config::default(), Quotas::default());
        quotas.add_namespace(&config);
        quotas.add_namespace(&config);
        for kind in QuotaKind::ALL.into_iter().filter(|kind| *kind != QuotaKind::Templates) {
            let whole = quotas.get(NamespaceId::DEFAULT, kind, &config);
            assert_eq!(quotas.get(NamespaceId(1), kind, &config), whole / 10, "{kind}");
            assert_eq!(QuotaKind::read(&mut Bytes(&[kind as u8])), Ok(kind));
        }
        assert!(QuotaKind::read(&mut Bytes(&[0])).is_err());
    }

    /// The number of the namespace after the last overflowed, and every replica stopped at its next snapshot.
    #[test]
    fn journal_bytes_are_listed_with_as_many_namespaces_as_there_may_be() {
        let (config, mut quotas) = (Config::default(), Quotas::default());
        (0..=u16::MAX).for_each(|_| quotas.add_namespace(&config));
        quotas.add_journal_bytes(NamespaceId(u16::MAX), UnixMs::new(DAY_MS), 7);
        assert_eq!(quotas.journal_days().collect::<Vec<_>>(), [(NamespaceId(u16::MAX), 1, 7)]);
    }

    #[test]
    fn journal_bytes_start_again_with_every_day() {
        let (config, mut quotas) = (Config::default(), Quotas::default());
        quotas.add_namespace(&config);
        quotas.set(NamespaceId::DEFAULT, QuotaKind::JournalBytesPerDay, 100, &config);
        let evening = UnixMs::new(DAY_MS - 1);
        quotas.add_journal_bytes(NamespaceId::DEFAULT, evening, 99);
        assert!(quotas.has_room_in_journal(NamespaceId::DEFAULT, evening));
        quotas.add_journal_bytes(NamespaceId::DEFAULT, evening, 99);
        assert!(!quotas.has_room_in_journal(NamespaceId::DEFAULT, evening));
        assert!(quotas.has_room_in_journal(NamespaceId::DEFAULT, evening.plus_ms(1)));
    }
}
