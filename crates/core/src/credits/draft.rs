//! The credit operations of one transaction: all are checked, then all are applied as one entry.

use super::plan::{self, Net, Overdraft, PlanError};
use super::{Account, AccountId, AccountStatus, AssetId, Credits};
use crate::book::{Change, VaultId};
use crate::id::{AccountName, AssetName};
use crate::time::UnixMs;

/// Why a credit operation is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CreditRefusal {
    TooManyAccounts,
    /// The namespace has as many accounts as its quota allows.
    AccountsQuota,
    TooManyAssets,
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
    /// The number of accounts that the namespace may still open.
    accounts_left: u64,
    assets: usize,
    opened: usize,
    standings: Vec<(u32, AccountStatus)>,
    net: Net<(AccountId, AssetId)>,
    issued: Net<AssetId>,
    retired: Net<AssetId>,
}

impl Credits {
    /// `accounts_quota` is the number of accounts that the namespace of the vault may have.
    pub(crate) fn begin(&self, now: UnixMs, vault: VaultId, accounts_quota: u64) -> Draft {
        let assets = self.state.vaults.get(vault.0 as usize).map_or(0, |vault| vault.assets.len());
        let namespace = self.state.vaults.get(vault.0 as usize).map(|vault| vault.namespace);
        let accounts = namespace.map_or(0, |namespace| u64::from(self.accounts_of(namespace)));
        Draft { now, vault, assets, accounts_left: accounts_quota.saturating_sub(accounts), ..Draft::default() }
    }

    pub(crate) fn open_account(
        &mut self,
        draft: &mut Draft,
        name: &AccountName,
        overdraft: Overdraft,
    ) -> Result<AccountId, CreditRefusal> {
        if self.account(draft.vault, name).is_some() {
            return Err(CreditRefusal::Conflict);
        }
        draft.accounts_left = draft.accounts_left.checked_sub(1).ok_or(CreditRefusal::AccountsQuota)?;
        let account = Account { vault: draft.vault, name: Some(name.clone()), overdraft, ..Account::default() };
        let account = self.add_account(account).ok_or(CreditRefusal::TooManyAccounts)?;
        draft.opened = draft.opened.saturating_add(1);
        Ok(AccountId(account))
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
        amount: i128,
    ) -> Result<(), CreditRefusal> {
        let to = self.open(draft, to)?;
        let asset = self.asset_of(draft, asset)?;
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
    pub(crate) fn finish(&mut self, draft: &Draft) -> Result<Vec<Change>, Shortfall> {
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
        self.count(draft);
        let mut changes = Vec::new();
        for ((account, asset), amount) in draft.net.iter() {
            let balance = self.balance_mut(account.0, asset);
            balance.amount = balance.amount.saturating_add(amount);
            changes.push(Change { account, asset, amount });
        }
        Ok(changes)
    }

    fn amount(&self, (account, asset): (AccountId, AssetId)) -> i128 {
        self.state.balance(account.0, asset).map_or(0, |slot| self.state.balances.get(slot).amount)
    }

    fn available(&self, now: UnixMs, (account, asset): (AccountId, AssetId)) -> i128 {
        let slot = self.state.balance(account.0, asset);
        slot.map_or(0, |slot| self.state.balances.get(slot).available(&self.state.nodes, now))
    }

    fn check_totals(&self, draft: &Draft) -> Result<(), Culprit> {
        let Some(vault) = self.state.vaults.get(draft.vault.0 as usize) else { return Ok(()) };
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
        let Some(vault) = self.state.vaults.get_mut(draft.vault.0 as usize) else { return };
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
        for _ in 0..draft.opened {
            self.pop_account();
        }
        if let Some(vault) = self.state.vaults.get_mut(draft.vault.0 as usize) {
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
                balance.held_at(&self.state.nodes, draft.now) == 0
                    && balance.amount.checked_add(draft.net.get((account, balance.asset))) == Some(0)
            })
    }

    fn asset_of(&mut self, draft: &Draft, name: &AssetName) -> Result<AssetId, CreditRefusal> {
        let known = self.state.asset(draft.vault, name);
        known.or_else(|| self.add_asset(draft.vault, name)).ok_or(CreditRefusal::TooManyAssets)
    }
}

fn is_revenue(name: &AccountName) -> bool {
    name.as_str() == AccountName::REVENUE
}

fn refusal(error: PlanError) -> CreditRefusal {
    match error {
        PlanError::OutOfRange => CreditRefusal::OutOfRange,
        PlanError::Insufficient { .. } => CreditRefusal::Insufficient,
    }
}
