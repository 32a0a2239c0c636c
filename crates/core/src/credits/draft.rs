//! The credit operations of one transaction: all are checked, then all are applied as one entry.

use std::collections::{BTreeMap, BTreeSet};

use super::plan::{self, Net, Overdraft, PlanError};
use super::wallet::{self, Wallet, WalletError, WalletGrant};
use super::{Account, AccountId, AccountStatus, AssetId, Credits, GrantTerms, Owner, Plan, State};
use crate::book::{Change, Operation, VaultId};
use crate::id::{AccountName, AssetName};
use crate::limits::slab::NONE;
use crate::time::UnixMs;

/// Why a credit operation is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CreditRefusal {
    TooManyAccounts,
    /// The namespace has as many accounts as its quota allows.
    AccountsQuota,
    TooManyAssets,
    /// The account would have more grants of an asset than [`GRANTS_MAX`](super::GRANTS_MAX).
    TooManyGrants,
    /// The grant would expire before it could be spent.
    ExpiryPast,
    OutOfRange,
    NotFound,
    Closed,
    Frozen,
    Conflict,
    Insufficient,
}

/// Why a draft cannot be applied, and the balance or total to blame.
pub(crate) struct Shortfall(pub(crate) CreditRefusal, pub(crate) Culprit);

/// The balance or total that a draft would violate.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Culprit {
    Balance(AccountId, AssetId),
    Issued(AssetId),
    Retired(AssetId),
}

/// The state of a transaction while it is checked. Account changes are made at once and undone if a later operation
/// is refused; credit moves at the end.
#[derive(Default)]
pub(crate) struct Draft {
    now: UnixMs,
    vault: VaultId,
    room: AccountRoom,
    assets: usize,
    /// The accounts that it opened, in order.
    opened: Vec<u32>,
    standings: Vec<(u32, AccountStatus)>,
    net: Net<(AccountId, AssetId)>,
    issued: Net<AssetId>,
    retired: Net<AssetId>,
    /// Whether an issue has a priority or an expiry.
    has_terms: bool,
}

/// The room for accounts, and for balances beyond the first of each.
#[derive(Clone, Default)]
struct AccountRoom {
    /// Free accounts in the quota of the namespace.
    quota: u64,
    /// Free accounts in the table of all namespaces.
    table: u64,
    /// The balances that the transaction adds.
    added: BTreeSet<(AccountId, AssetId)>,
}

impl AccountRoom {
    fn take(&mut self) -> Result<(), CreditRefusal> {
        self.quota = self.quota.checked_sub(1).ok_or(CreditRefusal::AccountsQuota)?;
        self.table = self.table.checked_sub(1).ok_or(CreditRefusal::TooManyAccounts)?;
        Ok(())
    }

    /// Takes the room of a balance, unless it is there, added already, or the first of its account.
    fn take_balance(&mut self, state: &State, key: (AccountId, AssetId)) -> Result<(), CreditRefusal> {
        let (account, asset) = key;
        if state.balance(account.0, asset).is_some() {
            return Ok(());
        }
        let has_others = state.accounts.get(account.0).balances != NONE
            || self.added.range((account, AssetId(0))..=(account, AssetId(u16::MAX))).next().is_some();
        if self.added.insert(key) && has_others {
            self.take()?;
        }
        Ok(())
    }
}

impl Credits {
    /// `accounts_quota` is the number of accounts that the namespace of the vault may have.
    pub(crate) fn begin(&self, now: UnixMs, vault: VaultId, accounts_quota: u64) -> Draft {
        let assets = self.state.vaults.get(&vault).map_or(0, |vault| vault.assets.len());
        let namespace = self.state.vaults.get(&vault).map(|vault| vault.namespace);
        let used = namespace.map_or(0, |namespace| u64::from(self.account_use_of(namespace)));
        let (quota, table) = (accounts_quota.saturating_sub(used), self.account_room().into());
        Draft { now, vault, assets, room: AccountRoom { quota, table, ..AccountRoom::default() }, ..Draft::default() }
    }

    pub(crate) fn open_account(
        &mut self,
        draft: &mut Draft,
        name: &AccountName,
        (overdraft, plan): (Overdraft, Option<&Plan>),
    ) -> Result<AccountId, CreditRefusal> {
        if self.account(draft.vault, name).is_some() {
            return Err(CreditRefusal::Conflict);
        }
        draft.room.take()?;
        let account = Account { vault: draft.vault, name: Some(name.clone()), overdraft, ..Account::default() };
        let account = self.add_account(account).ok_or(CreditRefusal::TooManyAccounts)?;
        draft.opened.push(account);
        self.check_plan(draft, AccountId(account), plan)?;
        Ok(AccountId(account))
    }

    /// Checks that an account can have a plan, and adds its asset. The plan is set once the transaction is committed.
    pub(crate) fn plan_account(
        &mut self,
        draft: &mut Draft,
        name: &AccountName,
        plan: Option<&Plan>,
    ) -> Result<AccountId, CreditRefusal> {
        let account = self.open(draft, name)?;
        self.check_plan(draft, account, plan)?;
        Ok(account)
    }

    fn check_plan(&mut self, draft: &mut Draft, account: AccountId, plan: Option<&Plan>) -> Result<(), CreditRefusal> {
        let Some(plan) = plan else { return Ok(()) };
        let asset = self.asset_of(draft, &plan.asset)?;
        draft.room.take_balance(&self.state, (account, asset))
    }

    /// Freezes, unfreezes or closes an account. Setting the same status again is allowed; a closed account stays
    /// closed.
    pub(crate) fn set_standing(
        &mut self,
        draft: &mut Draft,
        name: &AccountName,
        standing: AccountStatus,
    ) -> Result<AccountId, CreditRefusal> {
        let account = self.open(draft, name)?;
        if standing == AccountStatus::Closed {
            self.apply_due_on(draft.now, account.0);
        }
        if standing == AccountStatus::Closed && (!self.is_empty(draft, account) || is_revenue(name)) {
            return Err(CreditRefusal::Conflict);
        }
        let found = self.state.accounts.get_mut(account.0);
        draft.standings.push((account.0, found.standing));
        found.standing = standing;
        Ok(account)
    }

    pub(crate) fn issue(
        &mut self,
        draft: &mut Draft,
        to: &AccountName,
        asset: &AssetName,
        (amount, terms): (i128, GrantTerms),
    ) -> Result<(), CreditRefusal> {
        let to = self.open(draft, to)?;
        if terms.is_expired(draft.now) {
            return Err(CreditRefusal::ExpiryPast);
        }
        let asset = self.asset_of(draft, asset)?;
        draft.has_terms |= terms != GrantTerms::PLAIN;
        draft.net.add((to, asset), amount).map_err(refusal)?;
        draft.issued.add(asset, amount).map_err(refusal)
    }

    pub(crate) fn transfer(
        &mut self,
        draft: &mut Draft,
        (from, to): (&AccountName, &AccountName),
        asset: &AssetName,
        amount: i128,
    ) -> Result<(), CreditRefusal> {
        let from = self.spendable(draft, from)?;
        let to = self.open(draft, to)?;
        let asset = self.asset_of(draft, asset)?;
        draft.net.add((from, asset), amount.saturating_neg()).map_err(refusal)?;
        draft.net.add((to, asset), amount).map_err(refusal)
    }

    pub(crate) fn retire(
        &mut self,
        draft: &mut Draft,
        from: &AccountName,
        asset: &AssetName,
        amount: i128,
    ) -> Result<(), CreditRefusal> {
        let from = self.spendable(draft, from)?;
        let asset = self.asset_of(draft, asset)?;
        draft.net.add((from, asset), amount.saturating_neg()).map_err(refusal)?;
        draft.retired.add(asset, amount).map_err(refusal)
    }

    /// Applies the movements, if every balance suffices and nothing overflows.
    pub(crate) fn finish(&mut self, draft: &Draft, operations: &[Operation]) -> Result<Vec<Change>, Shortfall> {
        let has_grants = self.apply_due_of(draft);
        for (key, change) in draft.net.iter() {
            let is_in_range = self.amount(key).checked_add(change).is_some();
            let culprit = Culprit::Balance(key.0, key.1);
            is_in_range.then_some(()).ok_or(Shortfall(CreditRefusal::OutOfRange, culprit))?;
        }
        self.check_totals(draft).map_err(|culprit| Shortfall(CreditRefusal::OutOfRange, culprit))?;
        for (key, change) in draft.net.iter() {
            let overdraft = self.state.accounts.get(key.0.0).overdraft;
            plan::after(self.available(draft.now, key), change, overdraft)
                .map_err(|error| Shortfall(refusal(error), Culprit::Balance(key.0, key.1)))?;
        }
        let has_grants = has_grants || draft.has_terms;
        let wallets = if has_grants { self.try_moves(draft, operations)? } else { BTreeMap::new() };
        self.check_balances(draft, has_grants)?;
        self.count(draft);
        let mut changes = Vec::new();
        // An account whose movements add up to zero has an entry too.
        for (account, asset) in draft.net.keys() {
            let amount = draft.net.get((account, asset));
            if amount != 0 && !has_grants {
                let balance = self.balance_mut(account.0, asset);
                balance.pot.amount = balance.pot.amount.saturating_add(amount);
            }
            changes.push(Change { account, asset, amount });
        }
        for (key, wallet) in wallets {
            self.keep_wallet(draft.now, key, &wallet);
        }
        Ok(changes)
    }

    /// Checks that there is room for the balances that the movements add.
    fn check_balances(&self, draft: &Draft, has_grants: bool) -> Result<(), Shortfall> {
        let mut room = draft.room.clone();
        for key in draft.net.keys().filter(|key| has_grants || draft.net.get(*key) != 0) {
            let taken = room.take_balance(&self.state, key);
            taken.map_err(|refusal| Shortfall(refusal, Culprit::Balance(key.0, key.1)))?;
        }
        Ok(())
    }

    /// Applies what is due on the balances of a draft. Returns whether one has grants then.
    fn apply_due_of(&mut self, draft: &Draft) -> bool {
        let mut has_grants = false;
        for (account, asset) in draft.net.keys() {
            if let Some(balance) = self.state.balance(account.0, asset) {
                self.apply_due(draft.now, Owner { account: account.0, balance });
                has_grants |= self.state.balances.get(balance).grants != NONE;
            }
        }
        has_grants
    }

    /// The credit of each owner by terms after all movements.
    fn try_moves(&self, draft: &Draft, operations: &[Operation]) -> Result<Wallets, Shortfall> {
        let mut wallets: Wallets = draft.net.keys().map(|key| (key, self.wallet(draft.now, key))).collect();
        let key_of = |account: &AccountName, asset: &AssetName| {
            let account = self.account(draft.vault, account)?;
            Some((AccountId(account), self.state.asset(draft.vault, asset)?))
        };
        let shortfall =
            |(error, key): (WalletError, WalletKey)| Shortfall(error.into(), Culprit::Balance(key.0, key.1));
        wallet::try_moves(&mut wallets, operations, key_of).map_err(shortfall)?;
        for (key, wallet) in &wallets {
            wallet.check().map_err(|error| shortfall((error, *key)))?;
        }
        Ok(wallets)
    }

    /// The credit of an owner by terms, as it is now.
    fn wallet(&self, now: UnixMs, (account, asset): WalletKey) -> Wallet {
        let Some(slot) = self.state.balance(account.0, asset) else { return Wallet::default() };
        let (balance, nodes) = (self.state.balances.get(slot), &self.state.nodes);
        let time = self.state.expiry.at(now);
        let carried = self.carried_terms(now, Owner { account: account.0, balance: slot });
        let grants = self.state.grant_slots(balance).map(|slot| {
            let grant = self.state.grants.get(slot);
            let free = if grant.terms.is_expired(time) { 0 } else { grant.pot.free(nodes, now) };
            let is_held = grant.holds > 0 || carried == Some(grant.terms);
            WalletGrant { terms: grant.terms, before: free, free, is_held }
        });
        let plain_held = balance.pot.held_at(nodes, now).into();
        Wallet { plain: balance.pot.amount, plain_held, grants: grants.collect() }
    }

    fn keep_wallet(&mut self, now: UnixMs, (account, asset): WalletKey, wallet: &Wallet) {
        let balance = self.balance_slot(account.0, asset);
        let owner = Owner { account: account.0, balance };
        self.state.balances.get_mut(balance).pot.amount = wallet.plain;
        for grant in wallet.grants.iter().filter(|grant| grant.free != grant.before) {
            self.change_grant(owner, grant.terms, grant.free.saturating_sub(grant.before));
        }
        self.apply_due(now, owner);
    }

    fn amount(&self, (account, asset): (AccountId, AssetId)) -> i128 {
        self.state.balance(account.0, asset).map_or(0, |slot| self.state.whole(self.state.balances.get(slot)))
    }

    fn available(&self, now: UnixMs, (account, asset): (AccountId, AssetId)) -> i128 {
        let slot = self.state.balance(account.0, asset);
        slot.map_or(0, |slot| self.state.available(self.state.balances.get(slot), now))
    }

    fn check_totals(&self, draft: &Draft) -> Result<(), Culprit> {
        let Some(vault) = self.state.vaults.get(&draft.vault) else { return Ok(()) };
        let total = |asset: AssetId| &vault.assets[usize::from(asset.0)];
        for (asset, amount) in draft.issued.iter() {
            total(asset).issued.checked_add(amount).ok_or(Culprit::Issued(asset))?;
        }
        for (asset, amount) in draft.retired.iter() {
            total(asset).retired.checked_add(amount).ok_or(Culprit::Retired(asset))?;
        }
        Ok(())
    }

    /// Adds to the issued and retired totals.
    fn count(&mut self, draft: &Draft) {
        let Some(vault) = self.state.vaults.get_mut(&draft.vault) else { return };
        for (asset, amount) in draft.issued.iter() {
            let issued = &mut vault.assets[usize::from(asset.0)].issued;
            *issued = issued.saturating_add(amount);
        }
        for (asset, amount) in draft.retired.iter() {
            let retired = &mut vault.assets[usize::from(asset.0)].retired;
            *retired = retired.saturating_add(amount);
        }
    }

    /// Undoes the account changes of a draft.
    pub(crate) fn abandon(&mut self, draft: Draft) {
        for (account, standing) in draft.standings.into_iter().rev() {
            self.state.accounts.get_mut(account).standing = standing;
        }
        for account in draft.opened.into_iter().rev() {
            self.remove_account(account);
        }
        if let Some(vault) = self.state.vaults.get_mut(&draft.vault) {
            vault.assets.truncate(draft.assets);
        }
    }

    /// An account that accepts deposits.
    fn open(&self, draft: &Draft, name: &AccountName) -> Result<AccountId, CreditRefusal> {
        let account = self.account(draft.vault, name).ok_or(CreditRefusal::NotFound)?;
        match self.state.accounts.get(account).standing {
            AccountStatus::Open | AccountStatus::Frozen => Ok(AccountId(account)),
            AccountStatus::Closed => Err(CreditRefusal::Closed),
        }
    }

    /// An account that allows withdrawals.
    fn spendable(&self, draft: &Draft, name: &AccountName) -> Result<AccountId, CreditRefusal> {
        let account = self.open(draft, name)?;
        match self.state.accounts.get(account.0).standing {
            AccountStatus::Frozen => Err(CreditRefusal::Frozen),
            AccountStatus::Open | AccountStatus::Closed => Ok(account),
        }
    }

    /// Whether an account is empty once the draft is applied.
    fn is_empty(&self, draft: &Draft, account: AccountId) -> bool {
        let changes = draft.net.iter().filter(|((changed, _), _)| *changed == account);
        let is_known = |asset| self.state.balance(account.0, asset).is_some();
        let is_untouched = changes.into_iter().all(|((_, asset), _)| is_known(asset));
        is_untouched
            && self.state.balance_slots(account.0).all(|slot| {
                let balance = self.state.balances.get(slot);
                self.state.held_at(balance, draft.now) == 0
                    && self.state.whole(balance).checked_add(draft.net.get((account, balance.asset))) == Some(0)
            })
    }

    fn asset_of(&mut self, draft: &Draft, name: &AssetName) -> Result<AssetId, CreditRefusal> {
        let known = self.state.asset(draft.vault, name);
        known.or_else(|| self.add_asset(draft.vault, name)).ok_or(CreditRefusal::TooManyAssets)
    }
}

/// The owner and asset of a wallet.
type WalletKey = (AccountId, AssetId);
type Wallets = BTreeMap<WalletKey, Wallet>;

fn is_revenue(name: &AccountName) -> bool {
    name.as_str() == AccountName::REVENUE
}

fn refusal(error: PlanError) -> CreditRefusal {
    match error {
        PlanError::OutOfRange => CreditRefusal::OutOfRange,
        PlanError::Insufficient { .. } => CreditRefusal::Insufficient,
    }
}
