//! Quotas of the model: every use is counted again from the lists.

use std::collections::{BTreeMap, BTreeSet};

use earmark_core::{
    ACCOUNTS_MAX, AccountId, AssetName, JOURNAL_BYTES_PER_DAY, NamespaceId, NamespaceOutcome, QUOTA_MAX, QuotaKind,
    QuotasOutcome, SetQuotas, UnixMs, VAULTS_MAX,
};

use super::Model;

const DAY_MS: u64 = 86_400_000;

/// The quotas that were set, and the journal bytes of a day, which the test adds.
#[derive(Clone, Debug, Default)]
pub struct Quotas {
    set: BTreeMap<(NamespaceId, QuotaKind), u64>,
    journal: BTreeMap<(NamespaceId, u64), u64>,
}

/// The number of balances beyond the first of each account.
fn further(balances: &[&(AccountId, AssetName)]) -> usize {
    balances.len() - balances.iter().map(|(account, _)| account).collect::<BTreeSet<_>>().len()
}

impl Model {
    /// Adds a balance for the write being applied. Returns whether its namespace has room for it.
    pub fn add_balance(&mut self, id: AccountId, asset: &AssetName) -> bool {
        let before = self.added_further();
        self.added_balances.insert((id, asset.clone()));
        let namespace = self.vaults[self.account(id).vault.0 as usize].namespace;
        let used = self.used(self.time(), namespace, QuotaKind::Accounts) + self.added_further() as u64;
        self.added_further() == before || used <= self.quota(namespace, QuotaKind::Accounts)
    }

    /// The number of balances beyond the first of each account that the write being applied adds.
    pub fn added_further(&self) -> usize {
        let all: BTreeSet<_> = self.balances.union(&self.added_balances).collect();
        further(&all.into_iter().collect::<Vec<_>>()) - further(&self.balances.iter().collect::<Vec<_>>())
    }

    pub fn set_quotas(&mut self, command: &SetQuotas) -> QuotasOutcome {
        if let Some((kind, _)) = command.quotas.iter().find(|(_, quota)| **quota > QUOTA_MAX) {
            return QuotasOutcome::TooHigh(*kind);
        }
        let namespace = match self.open_namespace(&command.namespace) {
            NamespaceOutcome::Opened(namespace) | NamespaceOutcome::Exists(namespace) => namespace,
            NamespaceOutcome::TooMany => return QuotasOutcome::TooManyNamespaces,
        };
        self.quotas.set.extend(command.quotas.iter().map(|(kind, quota)| ((namespace, *kind), *quota)));
        QuotasOutcome::Set
    }

    pub fn quota(&self, namespace: NamespaceId, kind: QuotaKind) -> u64 {
        let table = match kind {
            QuotaKind::Limits | QuotaKind::DerivedLimits => u64::from(self.config.limits_max),
            QuotaKind::Templates => 10_240,
            QuotaKind::Vaults => VAULTS_MAX as u64,
            QuotaKind::Accounts => u64::from(ACCOUNTS_MAX),
            QuotaKind::Clients => u64::from(self.config.clients_max),
            QuotaKind::Keys => 10_000,
            QuotaKind::Leases => u64::from(self.config.leases_max),
            QuotaKind::IdempotencyKeys => 1 << 24,
            QuotaKind::JournalBytesPerDay => JOURNAL_BYTES_PER_DAY,
            QuotaKind::PolicyBytes => 1 << 24,
        };
        let whole = if kind == QuotaKind::Templates { 1_024 } else { table };
        let share = if namespace == NamespaceId::DEFAULT { whole } else { (table / 10).max(1) };
        self.quotas.set.get(&(namespace, kind)).copied().unwrap_or(share)
    }

    pub fn used(&self, at: UnixMs, namespace: NamespaceId, kind: QuotaKind) -> u64 {
        let home = |vault: earmark_core::VaultId| self.vaults[vault.0 as usize].namespace == namespace;
        let count = match kind {
            QuotaKind::Limits => self.limits_of(namespace, false),
            QuotaKind::DerivedLimits => self.limits_of(namespace, true),
            QuotaKind::Vaults => {
                let mine = self.vaults.iter().filter(|vault| vault.namespace == namespace);
                let (deleted, live): (Vec<_>, Vec<_>) = mine.partition(|vault| vault.is_deleted);
                live.len() + deleted.len() / 65_536
            }
            QuotaKind::Accounts => {
                let accounts = self.accounts.iter().filter(|account| home(account.vault) && !account.is_gone);
                let balances: Vec<_> = self.balances.iter().filter(|(id, _)| home(self.account(*id).vault)).collect();
                accounts.count() + further(&balances)
            }
            QuotaKind::Clients => {
                let retired = self.retired.iter().filter(|(home, _, _)| *home == namespace).count();
                self.clients_of(namespace) + retired.div_ceil(16)
            }
            QuotaKind::Leases => self.leases.iter().filter(|lease| lease.namespace == namespace).count(),
            QuotaKind::JournalBytesPerDay => {
                let day = at.max(self.time()).get() / DAY_MS;
                return self.quotas.journal.get(&(namespace, day)).copied().unwrap_or(0);
            }
            QuotaKind::Templates => self.templates.iter().filter(|one| one.namespace == namespace).count(),
            QuotaKind::PolicyBytes => self.policies(namespace).iter().map(|policy| policy.text.len()).sum(),
            QuotaKind::IdempotencyKeys => self.idempotency_keys_of(namespace),
            QuotaKind::Keys => 0,
        };
        count as u64
    }

    fn limits_of(&self, namespace: NamespaceId, is_derived: bool) -> usize {
        let limits = self.limits.iter().filter(|limit| limit.namespace == namespace);
        limits.filter(|limit| limit.derived.is_some() == is_derived).count()
    }

    pub fn has_room(&self, namespace: NamespaceId, kind: QuotaKind) -> bool {
        self.used(self.time(), namespace, kind) < self.quota(namespace, kind)
    }

    /// Counts journal bytes of the last command.
    pub fn add_journal_bytes(&mut self, namespace: NamespaceId, bytes: u64) {
        let day = self.time().get() / DAY_MS;
        *self.quotas.journal.entry((namespace, day)).or_default() += bytes;
    }
}
