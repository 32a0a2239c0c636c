//! The Book: commands in, outcomes out.

mod call;
pub(crate) mod codec;
mod command;
mod extend;
mod journal;
mod key;
mod limit;
mod outcome;
mod policy;
mod quota;
mod receipt;
mod template;
mod transact;
mod transact_identity;
mod transact_vault;
mod write;

pub use call::{CallMark, LeaseClaim};
pub use codec::{CodecError, CommandBuffer, put_principal, take_principal};
pub use command::{
    Command, Complete, DeleteLimit, DeleteTemplate, DropLimit, ExternalParts, ExternalSetup, ForeignLimit, LimitId,
    LimitRef, NamespaceId, Part, PauseLimit, PutLimit, PutTemplate, REQUIREMENTS_MAX, Release, Reserve, VaultId,
};
pub use extend::{EXTENSIONS_MAX, Extend, ExtendOutcome, ExtendStep, Extension, InvalidExtend};
pub use journal::{
    Change, DefinitionChange, ExpireEntry, HoldEntry, JournalRecord, KeyChange, KeyEntry, LimitEdit, LimitEntry,
    PauseEntry, PlanEntry, PolicyEntry, QuotaChange, QuotaEntry, Replaced, SettleEntry, SettleReason, Transaction,
};
pub use key::KeyOutcome;
pub use outcome::{
    Charge, CompleteOutcome, ConfigureOutcome, CreditDenial, CreditShortage, Denial, InvalidParts, LimitOutcome,
    LimitStatus, NamespaceOutcome, Outcome, OverageHow, OverageTaken, PauseOutcome, RequirementSet, ReserveOutcome,
    Settlement, TemplateOutcome,
};
pub use receipt::{InvalidOperation, InvalidWrite, OperationResult, Receipt, WriteError, WriteOutcome};
pub use write::{MEMO_BYTES_MAX, OPERATIONS_MAX, Operation, TxId, Write, WriteId};

use std::sync::Arc;

use crate::credits::{AccountId, AccountInfo, AssetId, AssetTotals, BalanceInfo, Credits, GrantInfo};
use crate::id::{AccountName, AssetName, ClientId, LeaseId, LimitKey, NamespaceName, VaultName};
use crate::idempotency::IdempotencyKeys;
use crate::keys::{ClientClaim, Keys, Principal};
use crate::limits::{
    Config, CreditTerms, LeaseInfo, LimitInfo, LimitSlot, LimitUsage, Limits, Listed, TemplateInfo, Totals, Usage,
};
use crate::policies::Policies;
use crate::sequence::{Scope, Sequences};
use crate::snapshot::Frozen;
use crate::time::{Moment, UnixMs};

/// Commands whose leases are looked up together, so that their cache misses overlap.
const GROUP: usize = 16;

/// The deterministic state machine. The same commands at the same times give the same outcomes and the same snapshot
/// bytes on every machine.
pub struct Book {
    pub(crate) limits: Limits,
    pub(crate) credits: Credits,
    pub(crate) sequences: Sequences<Option<Arc<Receipt>>>,
    pub(crate) idempotency: IdempotencyKeys,
    pub(crate) keys: Keys,
    pub(crate) policies: Policies,
    /// The claim to its client id of the write being applied.
    client_claim: Option<ClientClaim>,
    scratch: Vec<u8>,
}

impl Book {
    /// An empty Book. `table_seed` seeds its hash tables and affects no outcome. Callers choose lease ids, so keep
    /// the seed secret from them.
    #[must_use]
    pub fn new(config: Config, table_seed: u64) -> Book {
        let limits = Limits::new(config, table_seed);
        Book { credits: Credits::new(table_seed), ..Book::of(limits, table_seed) }
    }

    /// A Book with these limits and no vault.
    pub(crate) fn of(limits: Limits, table_seed: u64) -> Book {
        let sequences = Sequences::new(limits.state.config.clients_max, table_seed);
        Book {
            limits,
            credits: Credits::empty(table_seed),
            sequences,
            idempotency: IdempotencyKeys::new(table_seed),
            keys: Keys::default(),
            policies: Policies::default(),
            client_claim: None,
            scratch: Vec::new(),
        }
    }

    /// Applies one command. A log time before that of the last command counts as that time.
    pub fn apply(&mut self, at: impl Into<Moment>, command: Command<'_>) -> Outcome {
        self.apply_at(at.into(), command)
    }

    fn apply_at(&mut self, at: Moment, command: Command<'_>) -> Outcome {
        let recorded = self.credits.journal.len();
        let at = self.advance(at);
        let is_tick = matches!(command, Command::Tick);
        let outcome = self.dispatch(at, command);
        self.limits.sweep(is_tick);
        if self.credits.journal.len() > recorded {
            self.count_journal_bytes(recorded);
        }
        outcome
    }

    /// Advances the clock to a command and cleans up a bounded number of records. Returns the time to use.
    #[inline]
    fn advance(&mut self, at: Moment) -> Moment {
        self.credits.wall = at.wall;
        self.credits.state.expiry.advance(Moment { log: self.limits.at(at.log), ..at });
        let now = self.limits.advance(at.log, &mut self.credits);
        self.credits.advance(now, &self.limits.state);
        self.sequences.forget(now);
        self.idempotency.forget(now);
        Moment { log: now, ..at }
    }

    fn dispatch(&mut self, at: Moment, command: Command<'_>) -> Outcome {
        let now = at.log;
        match command {
            Command::OpenNamespace(name) => Outcome::Namespace(self.open_namespace(name)),
            Command::PutLimit(command) => Outcome::Limit(self.put_limit(at, &command)),
            Command::DeleteLimit(command) => Outcome::Limit(self.delete_limit(at, &command)),
            Command::PutTemplate(command) => Outcome::Template(self.put_template(at, &command)),
            Command::DeleteTemplate(command) => Outcome::Template(self.delete_template(at, &command)),
            Command::PauseLimit(command) => Outcome::Pause(self.pause_limit(at, &command)),
            Command::Reserve(command) => Outcome::Reserve(self.limits.reserve(at, &command, &mut self.credits)),
            Command::Extend(command) => Outcome::Extend(self.limits.extend(now, &command, &mut self.credits)),
            Command::Complete(command) => Outcome::Complete(self.limits.complete(at, &command, &mut self.credits)),
            Command::Release(command) => Outcome::Complete(self.limits.release(at, &command, &mut self.credits)),
            Command::DropLimit(command) => Outcome::Limit(self.limits.drop_limit(now, &command)),
            Command::SetExternal(setup) => {
                self.limits.set_external(setup);
                Outcome::ExternalSet
            }
            Command::Configure(changes) => Outcome::Configure(self.limits.configure(changes)),
            Command::Write(write) => Outcome::Write(self.write(at, write)),
            Command::CreateKey(command) => Outcome::Key(self.create_key(at, command)),
            Command::RevokeKey(command) => Outcome::Key(self.revoke_key(at, command)),
            Command::SetQuotas(command) => Outcome::Quotas(self.set_quotas(at, command)),
            Command::PutPolicy(command) => Outcome::Policy(self.put_policy(at, command)),
            Command::Tick => Outcome::Ticked,
            Command::AdvanceTime(to) => {
                if self.is_nothing_reserved(now) {
                    self.limits.advance(to, &mut self.credits);
                    self.credits.state.expiry.skip_to(self.limits.state.now());
                }
                Outcome::Ticked
            }
        }
    }

    /// Applies commands in order, all at one time, and appends their outcomes. Faster than one by one when the Book
    /// is much larger than the processor's cache.
    pub fn apply_all(&mut self, at: impl Into<Moment>, commands: &[Command<'_>], outcomes: &mut Vec<Outcome>) {
        self.apply_all_as(at, &[], commands, outcomes);
    }

    /// Applies commands like [`Book::apply_all`], checking each against the right at the same index in `rights`. A
    /// command without a right runs as Earmark itself. A command whose right is not valid changes nothing.
    pub fn apply_all_as(
        &mut self,
        at: impl Into<Moment>,
        rights: &[Principal],
        commands: &[Command<'_>],
        outcomes: &mut Vec<Outcome>,
    ) {
        let (at, mut rights) = (at.into(), rights.iter());
        for group in commands.chunks(GROUP) {
            self.limits.prefetch(group);
            self.credits.prefetch(&self.limits, group);
            for command in group {
                outcomes.push(self.apply_as(at, rights.next().unwrap_or(&Principal::System), *command));
            }
        }
    }

    fn open_namespace(&mut self, name: &NamespaceName) -> NamespaceOutcome {
        if let Some(id) = self.limits.namespace(name) {
            return NamespaceOutcome::Exists(id);
        }
        self.limits.add_namespace(name).map_or(NamespaceOutcome::TooMany, NamespaceOutcome::Opened)
    }

    /// Whether no limit and no account has a live reservation at `now`. Reads every limit if none has.
    #[must_use]
    pub fn is_nothing_reserved(&self, now: UnixMs) -> bool {
        self.limits.holds_nothing(now) && self.credits.holds_nothing(self.limits.at(now))
    }

    /// The time of the last command.
    #[must_use]
    pub fn time(&self) -> UnixMs {
        self.limits.state.now()
    }

    /// Leases with a ULID time before this are refused: their records may have been deleted.
    #[must_use]
    pub fn forgotten_before(&self) -> UnixMs {
        self.limits.state.forgotten_before
    }

    /// The settings, which are part of the state.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.limits.state.config
    }

    /// Which parts of the state other systems keep.
    #[must_use]
    pub fn external_parts(&self) -> ExternalParts {
        self.limits.state.external.parts
    }

    /// Which parts of the state other systems keep, and the ledger that keeps the limits.
    #[must_use]
    pub fn external_setup(&self) -> ExternalSetup {
        self.limits.state.external
    }

    /// Whether any credit was ever issued here.
    #[must_use]
    pub fn has_credit(&self) -> bool {
        let mut assets = self.credits.state.vaults.values().flat_map(|vault| &vault.assets);
        assets.any(|asset| asset.issued != 0)
    }

    /// A counter that grows with every change to a definition, a policy or [`Book::external_parts`], so that a cached copy
    /// knows when it is stale. Only comparable within one process.
    #[must_use]
    pub fn limits_version(&self) -> u64 {
        self.limits.version
    }

    /// The id of a namespace.
    #[must_use]
    pub fn namespace(&self, name: &NamespaceName) -> Option<NamespaceId> {
        self.limits.namespace(name)
    }

    /// The name of a namespace.
    #[must_use]
    pub fn namespace_name(&self, namespace: NamespaceId) -> Option<&NamespaceName> {
        self.limits.state.namespaces.get(usize::from(namespace.0))
    }

    /// The id of a limit, live or deleted, until it is freed.
    #[must_use]
    pub fn resolve(&self, namespace: NamespaceId, key: &LimitKey) -> Option<LimitId> {
        Some(self.limits.state.limits.id(self.limits.resolve(namespace, key)?))
    }

    /// The key of a limit, live or deleted. `None` if the id is stale.
    #[must_use]
    pub fn key(&self, limit: LimitId) -> Option<LimitKey> {
        self.limits.state.key(self.limits.state.limits.slot(limit)?)
    }

    /// The key of a limit, live or deleted, as leases of the namespace `own` name it. `None` if the id is stale.
    #[must_use]
    pub fn key_seen_from(&self, own: NamespaceId, limit: LimitId) -> Option<LimitKey> {
        let owner = self.limits.state.limits.get(self.limits.state.limits.slot(limit)?)?.namespace;
        let key = self.key(limit)?;
        if owner == own { Some(key) } else { Some(LimitKey::in_namespace(self.namespace_name(owner)?, &key)) }
    }

    /// The number of limits of all namespaces; deleted ones count until they are freed.
    #[must_use]
    pub fn limit_count(&self) -> u32 {
        self.limits.state.limits.len()
    }

    /// The definition and status of a limit.
    #[must_use]
    pub fn limit(&self, now: UnixMs, limit: LimitId) -> Option<LimitInfo> {
        self.limits.limit_info(now, self.limits.state.limits.slot(limit)?)
    }

    /// All limits of a namespace, ordered by key.
    #[must_use]
    pub fn limits(&self, now: UnixMs, namespace: NamespaceId) -> Vec<LimitInfo> {
        self.limits.limit_infos(now, namespace, Listed::All)
    }

    /// The limits of a namespace that were put, ordered by key. Reads no derived ones.
    #[must_use]
    pub fn defined_limits(&self, now: UnixMs, namespace: NamespaceId) -> Vec<LimitInfo> {
        self.limits.limit_infos(now, namespace, Listed::Defined)
    }

    /// Limits of a namespace, ordered by key: those whose key begins with `prefix`, after a key. It looks at `most` keys,
    /// which may include deleted ones, and returns the last of them if there are more.
    #[must_use]
    pub fn limit_page(
        &self,
        now: UnixMs,
        namespace: NamespaceId,
        (prefix, after): (Option<&LimitKey>, Option<&LimitKey>),
        most: usize,
    ) -> (Vec<LimitInfo>, Option<LimitKey>) {
        let (slots, next) = self.limits.slot_page(namespace, Listed::All, (prefix, after), most);
        (slots.into_iter().filter_map(|slot| self.limits.limit_info(now, slot)).collect(), next)
    }

    /// [`limit_page`](Book::limit_page) of the limits that were put. Reads no derived ones.
    #[must_use]
    pub fn defined_page(
        &self,
        now: UnixMs,
        namespace: NamespaceId,
        (prefix, after): (Option<&LimitKey>, Option<&LimitKey>),
        most: usize,
    ) -> (Vec<LimitInfo>, Option<LimitKey>) {
        let (slots, next) = self.limits.slot_page(namespace, Listed::Defined, (prefix, after), most);
        (slots.into_iter().filter_map(|slot| self.limits.limit_info(now, slot)).collect(), next)
    }

    /// The usage of limits of a namespace, ordered by key. Reads the same keys as [`limit_page`](Book::limit_page), and
    /// copies no texts but the keys.
    #[must_use]
    pub fn usage_page(
        &self,
        now: UnixMs,
        namespace: NamespaceId,
        (prefix, after): (Option<&LimitKey>, Option<&LimitKey>),
        most: usize,
    ) -> (Vec<LimitUsage>, Option<LimitKey>) {
        self.usage_page_of(now, namespace, (Listed::All, prefix, after), most)
    }

    /// [`usage_page`](Book::usage_page) of the limits that were put. Reads no derived ones.
    #[must_use]
    pub fn defined_usage_page(
        &self,
        now: UnixMs,
        namespace: NamespaceId,
        after: Option<&LimitKey>,
        most: usize,
    ) -> (Vec<LimitUsage>, Option<LimitKey>) {
        self.usage_page_of(now, namespace, (Listed::Defined, None, after), most)
    }

    fn usage_page_of(
        &self,
        now: UnixMs,
        namespace: NamespaceId,
        (listed, prefix, after): (Listed, Option<&LimitKey>, Option<&LimitKey>),
        most: usize,
    ) -> (Vec<LimitUsage>, Option<LimitKey>) {
        let (slots, next) = self.limits.slot_page(namespace, listed, (prefix, after), most);
        let usage = |slot| {
            let (usage, (key, kind)) = (self.slot_usage(now, slot)?, self.limits.key_and_kind(slot)?);
            Some(LimitUsage { key, kind, usage })
        };
        (slots.into_iter().filter_map(usage).collect(), next)
    }

    /// All templates of a namespace, ordered by key.
    #[must_use]
    pub fn templates(&self, namespace: NamespaceId) -> Vec<TemplateInfo> {
        self.limits.template_infos(namespace)
    }

    /// The usage of a limit. For a credit limit: the balance of its account, including what other limits hold of it.
    #[must_use]
    pub fn usage(&self, now: UnixMs, limit: LimitId) -> Option<Usage> {
        self.slot_usage(now, self.limits.state.limits.slot(limit)?)
    }

    /// The largest amount of a credit limit with these terms that a reserve would get now.
    ///
    /// # Errors
    /// No reserve would get any.
    pub fn credit_room(&self, now: UnixMs, namespace: NamespaceId, terms: &CreditTerms) -> Result<u64, CreditShortage> {
        let credits = &self.credits;
        let found = credits.vault(namespace, &terms.vault).and_then(|vault| {
            let accounts = (credits.account(vault, &terms.account)?, credits.account(vault, &terms.revenue)?);
            Some((accounts, credits.state.asset(vault, &terms.asset)))
        });
        let (accounts, asset) = found.ok_or(CreditShortage::UnknownAccount)?;
        let balance = asset.and_then(|asset| credits.state.balance(accounts.0, asset));
        credits.room(self.limits.at(now), accounts, balance)
    }

    fn slot_usage(&self, now: UnixMs, slot: LimitSlot) -> Option<Usage> {
        let usage = self.limits.usage(now, slot)?;
        Some(match self.limits.paying_balance(slot, &self.credits) {
            Some(balance) => {
                let credit = self.credits.usage(self.limits.at(now), balance, usage.status);
                Usage { paused_until: usage.paused_until, ..credit }
            }
            None => usage,
        })
    }

    /// The record of a lease.
    #[must_use]
    pub fn lease(&self, now: UnixMs, namespace: NamespaceId, lease: LeaseId) -> Option<LeaseInfo> {
        self.limits.lease(now, namespace, lease)
    }

    /// Why the lease was denied credit, if it was and its record is still kept. `requirements` are those of its reserve;
    /// limits of other kinds may be among them.
    #[must_use]
    pub fn credit_denial(
        &self,
        now: UnixMs,
        lease: (NamespaceId, LeaseId),
        requirements: &[Part],
    ) -> Option<CreditDenial> {
        self.limits.credit_denial(now, lease, requirements)
    }

    /// The number of lease records, tombstones included.
    #[must_use]
    pub fn leases(&self) -> usize {
        self.limits.state.remembered()
    }

    /// The number of leases that can be extended at `now`, to the second: they are not resolved and have not run out.
    #[must_use]
    pub fn live_leases(&self, now: UnixMs) -> usize {
        self.limits.state.leases.live_at(self.limits.at(now))
    }

    /// Totals over the limits of all namespaces, by counters. The debt of derived credit limits is not included: their
    /// accounts have it, and there may be millions.
    #[must_use]
    pub fn totals(&self, now: UnixMs) -> Totals {
        let mut totals = self.limits.totals(now);
        let (time, status) = (self.limits.at(now), LimitStatus::Active);
        for balance in self.limits.paying_balances(&self.credits) {
            totals.debt = totals.debt.saturating_add(self.credits.usage(time, balance, status).debt);
        }
        totals
    }

    /// Whether a `Tick` has work to do: holds to release in the journal, or records to delete. Expired capacity
    /// counts as free without it.
    #[must_use]
    pub fn is_due(&self, now: UnixMs) -> bool {
        self.limits.is_due(now)
            || self.credits.is_due(now)
            || self.sequences.is_due(now)
            || self.idempotency.is_due(now)
    }

    /// Work units done so far: sums read, records deleted and tree nodes freed. Tests use it to bound the cost of a
    /// command.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.limits.state.nodes.steps.wrapping_add(self.credits.state.nodes.steps)
    }

    /// A copy of the state to encode while commands continue. Leases and limits are shared copy-on-write.
    #[must_use]
    pub fn freeze(&mut self) -> Frozen {
        let (keys, policies) = (self.keys.clone(), self.policies.clone());
        let (streams, idempotency) = (self.sequences.share(), self.idempotency.share());
        Frozen::new(self.limits.state.share(), self.credits.share(), (streams, idempotency), keys, policies)
    }

    /// Takes the journal records made since the last call, in order. They are history and not part of a snapshot, so
    /// the caller must store them.
    #[must_use = "what is taken from the journal is gone from it"]
    pub fn drain_journal(&mut self) -> Vec<JournalRecord> {
        std::mem::take(&mut self.credits.journal)
    }

    /// The id of a vault.
    #[must_use]
    pub fn vault(&self, namespace: NamespaceId, name: &VaultName) -> Option<VaultId> {
        self.credits.vault(namespace, name)
    }

    /// The names of a namespace's vaults after a name, in order.
    pub fn vault_names(&self, namespace: NamespaceId, after: Option<&VaultName>) -> impl Iterator<Item = &VaultName> {
        self.credits.vault_names(namespace, after)
    }

    /// The namespace and the name of a vault.
    #[must_use]
    pub fn vault_name(&self, vault: VaultId) -> Option<(NamespaceId, &VaultName)> {
        let vault = self.credits.state.vaults.get(&vault)?;
        Some((vault.namespace, &vault.name))
    }

    /// The id, status, overdraft and plan of an account.
    #[must_use]
    pub fn account(&self, vault: VaultId, name: &AccountName) -> Option<AccountInfo> {
        self.credits.account_info(vault, name)
    }

    /// The ids of all accounts from this one on, in order.
    pub fn accounts(&self, from: AccountId) -> impl Iterator<Item = AccountId> + '_ {
        let ids = (from.0..self.credits.state.accounts.used()).map(AccountId);
        ids.filter(|id| self.account_name(*id).is_some())
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

    /// The balances of an account, ordered by asset.
    #[must_use]
    pub fn balances(&self, now: UnixMs, account: AccountId) -> Vec<BalanceInfo> {
        self.credits.balances(self.limits.at(now), account)
    }

    /// The whole amount of an account per asset: available, held, and expired credit whose expiry is not recorded yet.
    #[must_use]
    pub fn amounts(&self, account: AccountId) -> Vec<(AssetName, i128)> {
        self.credits.amounts(account)
    }

    /// The grants of an account, by asset and then in spending order. Plain credit is one of them.
    #[must_use]
    pub fn grants(&self, now: UnixMs, account: AccountId) -> Vec<GrantInfo> {
        self.credits.grants(self.limits.at(now), account)
    }

    /// Whether expiry waits, because log time and wall time differed by more than
    /// [`EXPIRY_SKEW_MS_MAX`](crate::EXPIRY_SKEW_MS_MAX) at the last command.
    #[must_use]
    pub fn is_expiry_waiting(&self) -> bool {
        self.credits.state.expiry.is_waiting
    }

    /// The totals of a vault, ordered by asset, summed again over all its accounts.
    #[must_use]
    pub fn audit(&self, vault: VaultId) -> Vec<AssetTotals> {
        self.credits.audit(vault)
    }

    /// The last sequence that a client committed in a namespace, or in a vault of it; 0 before the first.
    #[must_use]
    pub fn last_committed(&self, namespace: NamespaceId, vault: Option<VaultId>, client: &ClientId) -> u64 {
        self.sequences.last(Scope { namespace, vault }, client)
    }
}
