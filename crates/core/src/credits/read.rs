//! Reads of credit. They answer as of `now` and change nothing.

use std::collections::BTreeMap;

use super::vault::Asset;
use super::{AccountId, AccountStatus, AssetId, Balance, Credits, GrantTerms, Overdraft, PlanInfo};
use crate::book::{LimitStatus, VaultId};
use crate::id::{AccountName, AssetName};
use crate::limits::Usage;
use crate::time::UnixMs;

/// The id, status, overdraft and plan of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountInfo {
    /// The id.
    pub id: AccountId,
    /// The status.
    pub standing: AccountStatus,
    /// Whether it may go below zero.
    pub overdraft: Overdraft,
    /// The plan, if it has one.
    pub plan: Option<PlanInfo>,
}

/// A balance of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalanceInfo {
    /// The asset.
    pub asset: AssetName,
    /// The spendable amount; negative if owed.
    pub available: i128,
    /// The amount held for leases.
    pub held: i128,
    /// The amount of unfinished entries. 0 in the Book, where an entry is one step.
    pub pending: i128,
}

/// Credit of an account with the same priority and expiry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantInfo {
    /// The asset.
    pub asset: AssetName,
    /// The spendable amount; negative if plain credit is owed.
    pub remaining: i128,
    /// The amount held for leases.
    pub held: i128,
    /// The priority and the expiry.
    pub terms: GrantTerms,
}

/// The totals of an asset in a vault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssetTotals {
    /// The asset.
    pub asset: AssetName,
    /// The amount ever issued.
    pub issued: i128,
    /// The amount ever retired.
    pub retired: i128,
    /// The amount that ever expired.
    pub expired: i128,
    /// The sum of all balances, held amounts included. Equals issued minus retired and expired.
    pub live: i128,
}

impl Credits {
    pub(crate) fn account_info(&self, vault: VaultId, name: &AccountName) -> Option<AccountInfo> {
        let slot = self.account(vault, name)?;
        let account = self.state.accounts.get(slot);
        let (standing, overdraft) = (account.standing, account.overdraft);
        Some(AccountInfo { id: AccountId(slot), standing, overdraft, plan: self.state.plan_info(slot) })
    }

    pub(crate) fn account_name(&self, account: AccountId) -> Option<(VaultId, &AccountName)> {
        if account.0 >= self.state.accounts.used() {
            return None;
        }
        let found = self.state.accounts.get(account.0);
        Some((found.vault, found.name.as_ref()?))
    }

    pub(crate) fn asset_name(&self, vault: VaultId, asset: AssetId) -> Option<&AssetName> {
        let vault = self.state.vaults.get(&vault)?;
        vault.assets.get(usize::from(asset.0)).map(|asset| &asset.name)
    }

    /// The balances of an account, ordered by asset.
    pub(crate) fn balances(&self, now: UnixMs, account: AccountId) -> Vec<BalanceInfo> {
        let Some((vault, _)) = self.account_name(account) else { return Vec::new() };
        let mut balances: Vec<BalanceInfo> = (self.state.balance_slots(account.0))
            .filter_map(|slot| {
                let balance = self.state.balances.get(slot);
                let asset = self.asset_name(vault, balance.asset)?.clone();
                let held = self.state.held_at(balance, now).into();
                let available = self.state.available(balance, now);
                Some(BalanceInfo { asset, available, held, pending: 0 })
            })
            .collect();
        balances.sort_by(|a, b| a.asset.cmp(&b.asset));
        balances
    }

    /// The whole amount of an account per asset, ordered by asset.
    pub(crate) fn amounts(&self, account: AccountId) -> Vec<(AssetName, i128)> {
        let Some((vault, _)) = self.account_name(account) else { return Vec::new() };
        let balances = self.state.balance_slots(account.0).map(|slot| self.state.balances.get(slot));
        let amount =
            |balance: &Balance| Some((self.asset_name(vault, balance.asset)?.clone(), self.state.whole(balance)));
        let mut amounts: Vec<(AssetName, i128)> = balances.filter_map(amount).collect();
        amounts.sort_by(|a, b| a.0.cmp(&b.0));
        amounts
    }

    /// The grants of an account, by asset and then in spending order. Plain credit is one of them.
    pub(crate) fn grants(&self, now: UnixMs, account: AccountId) -> Vec<GrantInfo> {
        let Some((vault, _)) = self.account_name(account) else { return Vec::new() };
        let (state, time) = (&self.state, self.state.expiry.at(now));
        let mut infos = Vec::new();
        for slot in state.balance_slots(account.0) {
            let balance = state.balances.get(slot);
            let Some(asset) = self.asset_name(vault, balance.asset) else { continue };
            let grants = state.grant_slots(balance).map(|slot| state.grants.get(slot));
            let pots = grants.map(|grant| (grant.terms, &grant.pot)).chain([(GrantTerms::PLAIN, &balance.pot)]);
            for (terms, pot) in pots {
                let free = if terms.is_expired(time) { 0 } else { pot.free(&state.nodes, now) };
                let held = pot.held_at(&state.nodes, now).into();
                if free != 0 || held != 0 {
                    infos.push(GrantInfo { asset: asset.clone(), remaining: free, held, terms });
                }
            }
        }
        infos.sort_by(|a, b| (&a.asset, a.terms).cmp(&(&b.asset, b.terms)));
        infos
    }

    /// The balance of an account as the usage of a credit limit. Nothing is available from a frozen or closed
    /// account. Amounts beyond 64 bits are clamped.
    pub(crate) fn usage(&self, now: UnixMs, (account, asset): (u32, AssetId), status: LimitStatus) -> Usage {
        let balance = self.state.balance(account, asset).map(|slot| self.state.balances.get(slot));
        let available = balance.map_or(0, |balance| self.state.available(balance, now));
        let reserved = balance.map_or(0, |balance| self.state.held_at(balance, now));
        let spendable = match self.state.accounts.get(account).standing {
            AccountStatus::Open => available.max(0),
            AccountStatus::Frozen | AccountStatus::Closed => 0,
        };
        let capacity = reserved.saturating_add(u64::try_from(spendable).unwrap_or(u64::MAX));
        Usage {
            capacity,
            reserved,
            available: capacity.saturating_sub(reserved),
            debt: available.min(0).unsigned_abs(),
            status,
            paused_until: None,
        }
    }

    /// The sum of all balances by vault and asset. It wraps, so that the order of addition does not matter.
    pub(crate) fn live(&self) -> BTreeMap<(VaultId, AssetId), i128> {
        let mut live = BTreeMap::new();
        for account in 0..self.state.accounts.used() {
            let vault = self.state.accounts.get(account).vault;
            for slot in self.state.balance_slots(account) {
                let balance = self.state.balances.get(slot);
                let sum: &mut i128 = live.entry((vault, balance.asset)).or_default();
                *sum = sum.wrapping_add(self.state.whole(balance));
            }
        }
        live
    }

    /// The totals of a vault, summed again over all its accounts.
    pub(crate) fn audit(&self, vault: VaultId) -> Vec<AssetTotals> {
        let Some(found) = self.state.vaults.get(&vault) else { return Vec::new() };
        let live = self.live();
        let mut totals: Vec<AssetTotals> = (found.assets.iter().zip(0..))
            .map(|(asset, id)| {
                let Asset { issued, retired, expired, .. } = *asset;
                let live = live.get(&(vault, AssetId(id))).copied().unwrap_or(0);
                AssetTotals { asset: asset.name.clone(), issued, retired, expired, live }
            })
            .collect();
        totals.sort_by(|a, b| a.asset.cmp(&b.asset));
        totals
    }
}
