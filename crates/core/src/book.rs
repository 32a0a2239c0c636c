//! The Book: commands in, outcomes out.

pub(crate) mod codec;
mod command;
mod journal;
mod key;
mod outcome;
mod receipt;
mod transact;
mod transact_vault;
mod write;

pub use codec::{CodecError, CommandBuffer, put_right, take_right};
pub use command::{
    Command, Complete, DeleteLimit, DropLimit, Elsewhere, Keep, LimitId, LimitRef, NamespaceId, Part,
    PutLimit, REQUIREMENTS_MAX, Release, Reserve, VaultId,
};
pub use journal::{
    Change, HoldEntry, JournalRecord, KeyChange, KeyEntry, LimitEdit, LimitEntry, SettleEntry, Transaction,
};
pub use key::KeyOutcome;
pub use outcome::{
    Charge, CompleteOutcome, CreditDenial, CreditShortage, Denial, InvalidParts, LimitOutcome, LimitStatus,
    NamespaceOutcome, Outcome, OverageHow, OverageTaken, ReserveOutcome, Settlement,
};
pub use receipt::{InvalidOperation, InvalidWrite, OperationResult, Receipt, WriteError, WriteOutcome};
pub use write::{MEMO_BYTES_MAX, OPERATIONS_MAX, Operation, TxId, Write};

use std::sync::Arc;

use crate::credits::{AccountId, AccountInfo, AssetId, AssetTotals, BalanceInfo, Credits};
use crate::id::{AccountName, AssetName, ClientId, LeaseId, LimitKey, NamespaceName, VaultName};
use crate::keys::{By, Keys};
use crate::limits::{Config, LeaseInfo, LimitInfo, Limits, Totals, Usage};
use crate::sequence::{Scope, Sequences};
use crate::snapshot::Frozen;
use crate::time::UnixMs;

/// So many commands have their leases looked up side by side.
const GROUP: usize = 16;

/// One deterministic state machine that holds everything. The same commands at the same times give the same
/// outcomes and the same snapshot, on every machine.
pub struct Book {
    pub(crate) limits: Limits,
    pub(crate) credits: Credits,
    pub(crate) sequences: Sequences<Option<Arc<Receipt>>>,
    pub(crate) keys: Keys,
    scratch: Vec<u8>,
}

impl Book {
    /// An empty Book. The seed lays out its hash table and shows in nothing it says; callers who choose
    /// their lease ids should not know it.
    #[must_use]
    pub fn new(config: Config, table_seed: u64) -> Book {
        let limits = Limits::new(config, table_seed);
        Book { credits: Credits::new(table_seed), ..Book::of(limits, table_seed) }
    }

    /// A Book of these limits, without any vault.
    pub(crate) fn of(limits: Limits, table_seed: u64) -> Book {
        let sequences = Sequences::new(limits.state.config.clients_max, table_seed);
        let keys = Keys::default();
        Book { limits, credits: Credits::empty(table_seed), sequences, keys, scratch: Vec::new() }
    }

    /// Applies one command. Time that goes back is taken as standing still.
    pub fn apply(&mut self, now: UnixMs, command: Command<'_>) -> Outcome {
        let now = self.limits.advance(now, &mut self.credits);
        self.credits.advance(now);
        self.sequences.forget(now);
        match command {
            Command::OpenNamespace(name) => Outcome::Namespace(self.open_namespace(name)),
            Command::PutLimit(command) => {
                let (change, key) = (LimitEdit::Put, &command.definition.key);
                let outcome = self.limits.put_limit(now, &command);
                Outcome::Limit(self.changed_limit(now, (command.namespace, key), change, outcome))
            }
            Command::DeleteLimit(command) => {
                let (change, key) = (LimitEdit::Deleted, command.key);
                let outcome = self.limits.delete_limit(now, &command);
                Outcome::Limit(self.changed_limit(now, (command.namespace, key), change, outcome))
            }
            Command::Reserve(command) => {
                Outcome::Reserve(self.limits.reserve(now, &command, &mut self.credits))
            }
            Command::Complete(command) => {
                Outcome::Complete(self.limits.complete(now, &command, &mut self.credits))
            }
            Command::Release(command) => {
                Outcome::Complete(self.limits.release(now, &command, &mut self.credits))
            }
            Command::DropLimit(command) => Outcome::Limit(self.limits.drop_limit(now, &command)),
            Command::Keep(keep) => {
                self.limits.keep(keep);
                Outcome::Kept
            }
            Command::Write(write) => Outcome::Write(self.write(now, write)),
            Command::CreateKey(command) => Outcome::Key(self.create_key(now, command)),
            Command::RevokeKey(command) => Outcome::Key(self.revoke_key(now, command)),
            Command::Tick => Outcome::Ticked,
        }
    }

    /// Applies commands one after the other, all at one time, and appends their outcomes in order. Where the
    /// Book is much larger than the processor's cache, this is a good deal faster than one by one.
    pub fn apply_all(&mut self, now: UnixMs, commands: &[Command<'_>], outcomes: &mut Vec<Outcome>) {
        self.apply_all_by(now, &[], commands, outcomes);
    }

    /// Applies commands like [`Book::apply_all`], each by the right that has its place in `rights`; those that have
    /// none are Earmark's own. What has no right changes nothing.
    pub fn apply_all_by(
        &mut self,
        now: UnixMs,
        rights: &[By],
        commands: &[Command<'_>],
        outcomes: &mut Vec<Outcome>,
    ) {
        let mut rights = rights.iter();
        for group in commands.chunks(GROUP) {
            self.limits.warm(group);
            self.credits.warm(&self.limits, group);
            for command in group {
                outcomes.push(self.apply_by(now, rights.next().unwrap_or(&By::Itself), *command));
            }
        }
    }

    fn open_namespace(&mut self, name: &NamespaceName) -> NamespaceOutcome {
        if let Some(id) = self.limits.namespace(name) {
            return NamespaceOutcome::Exists(id);
        }
        self.limits.add_namespace(name).map_or(NamespaceOutcome::TooMany, NamespaceOutcome::Opened)
    }

    /// The latest time that was applied.
    #[must_use]
    pub fn time(&self) -> UnixMs {
        self.limits.state.now()
    }

    /// Leases made before this are refused, since they may have been forgotten.
    #[must_use]
    pub fn forgotten_before(&self) -> UnixMs {
        self.limits.state.forgotten_before
    }

    /// The settings the Book was made with.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.limits.state.config
    }

    /// What is kept elsewhere.
    #[must_use]
    pub fn elsewhere(&self) -> Elsewhere {
        self.limits.state.kept.elsewhere
    }

    /// What is kept elsewhere, and by whom.
    #[must_use]
    pub fn kept(&self) -> Keep {
        self.limits.state.kept
    }

    /// Whether anybody was ever issued any credit here.
    #[must_use]
    pub fn has_credit(&self) -> bool {
        let mut assets = self.credits.state.vaults.iter().flat_map(|vault| &vault.assets);
        assets.any(|asset| asset.issued != 0)
    }

    /// Grows whenever somebody puts, deletes or drops a limit, or says what is kept elsewhere, so that whoever has a copy
    /// knows when to look again. It means nothing on another machine.
    #[must_use]
    pub fn limits_version(&self) -> u64 {
        self.limits.version
    }

    /// The number of a namespace.
    #[must_use]
    pub fn namespace(&self, name: &NamespaceName) -> Option<NamespaceId> {
        self.limits.namespace(name)
    }

    /// The name of a namespace.
    #[must_use]
    pub fn namespace_name(&self, namespace: NamespaceId) -> Option<&NamespaceName> {
        self.limits.state.namespaces.get(usize::from(namespace.0))
    }

    /// The number of a limit, if it was ever put; deleted or not.
    #[must_use]
    pub fn resolve(&self, namespace: NamespaceId, key: &LimitKey) -> Option<LimitId> {
        self.limits.resolve(namespace, key)
    }

    /// The name of a limit that was ever put.
    #[must_use]
    pub fn key(&self, limit: LimitId) -> Option<&LimitKey> {
        self.limits.key(limit)
    }

    /// What a limit is.
    #[must_use]
    pub fn limit(&self, now: UnixMs, limit: LimitId) -> Option<LimitInfo> {
        self.limits.limit_info(now, limit)
    }

    /// All limits of a namespace, in order of their keys.
    #[must_use]
    pub fn limits(&self, now: UnixMs, namespace: NamespaceId) -> Vec<LimitInfo> {
        self.limits.limit_infos(now, namespace)
    }

    /// What a limit holds. Of a limit of kind `credit`, what its account has of the asset, whoever holds it.
    #[must_use]
    pub fn usage(&self, now: UnixMs, limit: LimitId) -> Option<Usage> {
        let usage = self.limits.usage(now, limit)?;
        Some(match self.limits.purse(limit, &self.credits) {
            Some((account, asset)) => self.credits.usage(self.limits.at(now), (account, asset), usage.status),
            None => usage,
        })
    }

    /// What is known of a lease.
    #[must_use]
    pub fn lease(&self, now: UnixMs, namespace: NamespaceId, lease: LeaseId) -> Option<LeaseInfo> {
        self.limits.lease(now, namespace, lease)
    }

    /// Why a lease got no credit, if it was denied for want of it and is remembered.
    #[must_use]
    pub fn credit_denial(&self, now: UnixMs, namespace: NamespaceId, lease: LeaseId) -> Option<CreditDenial> {
        self.limits.credit_denial(now, namespace, lease)
    }

    /// How many leases are remembered, resolved ones included.
    #[must_use]
    pub fn leases(&self) -> usize {
        self.limits.state.remembered()
    }

    /// How many leases hold something, or ran out without being completed.
    #[must_use]
    pub fn live_leases(&self) -> usize {
        self.limits.state.leases.len() as usize
    }

    /// All limits of all namespaces, counted.
    #[must_use]
    pub fn totals(&self, now: UnixMs) -> Totals {
        self.limits.totals(now)
    }

    /// Whether something waits to be done that only commands do: holds to release, records to forget. What has
    /// ended counts as free without it.
    #[must_use]
    pub fn is_due(&self, now: UnixMs) -> bool {
        self.limits.is_due(now) || self.credits.is_due(now) || self.sequences.is_due(now)
    }

    /// How many units of work were done so far: sums looked at, records and nodes cleaned up.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.limits.state.nodes.steps.wrapping_add(self.credits.state.nodes.steps)
    }

    /// The Book as it is now, to be encoded while commands go on. Leases are shared, not copied; limits are
    /// copied, which takes a tenth of a second for a million of them.
    #[must_use]
    pub fn freeze(&mut self) -> Frozen {
        let keys = self.keys.clone();
        Frozen::new(self.limits.state.share(), self.credits.share(), self.sequences.share(), keys)
    }

    /// What happened since this was called last, in order. It is history and not part of a snapshot: whoever
    /// applies commands takes it and keeps it.
    #[must_use = "what is taken from the journal is gone from it"]
    pub fn drain_journal(&mut self) -> Vec<JournalRecord> {
        std::mem::take(&mut self.credits.journal)
    }

    /// The number of a vault.
    #[must_use]
    pub fn vault(&self, namespace: NamespaceId, name: &VaultName) -> Option<VaultId> {
        self.credits.vault(namespace, name)
    }

    /// The namespace and the name of a vault.
    #[must_use]
    pub fn vault_name(&self, vault: VaultId) -> Option<(NamespaceId, &VaultName)> {
        let vault = self.credits.state.vaults.get(vault.0 as usize)?;
        Some((vault.namespace, &vault.name))
    }

    /// What an account is, if it was ever opened.
    #[must_use]
    pub fn account(&self, vault: VaultId, name: &AccountName) -> Option<AccountInfo> {
        self.credits.account_info(vault, name)
    }

    /// The vault and the name of an account.
    #[must_use]
    pub fn account_name(&self, account: AccountId) -> Option<(VaultId, &AccountName)> {
        self.credits.account_name(account)
    }

    /// The name of an asset.
    #[must_use]
    pub fn asset_name(&self, vault: VaultId, asset: AssetId) -> Option<&AssetName> {
        self.credits.asset_name(vault, asset)
    }

    /// What an account has, in order of asset.
    #[must_use]
    pub fn balances(&self, now: UnixMs, account: AccountId) -> Vec<BalanceInfo> {
        self.credits.balances(self.limits.at(now), account)
    }

    /// How much there is in a vault, in order of asset, counted anew from all its accounts.
    #[must_use]
    pub fn audit(&self, vault: VaultId) -> Vec<AssetTotals> {
        self.credits.audit(vault)
    }

    /// The last number that a client committed in a namespace, or in a vault of it; 0 before the first.
    #[must_use]
    pub fn last_committed(&self, namespace: NamespaceId, vault: Option<VaultId>, client: &ClientId) -> u64 {
        self.sequences.last(Scope { namespace, vault }, client)
    }
}
