//! Credit in the model: balances, holds and settlements.

use std::collections::BTreeMap;

use earmark_core::{
    AccountId, AccountInfo, AccountName, AccountStatus, AssetName, AssetTotals, Charge, CreditDenial, CreditShortage,
    CreditTerms, GrantTerms, InvalidOperation, InvalidWrite, Kind, LeaseId, LimitId, LimitStatus, NamespaceId,
    OnTimeout, Overage, Overdraft, UnixMs, Usage, VaultId, VaultName, WriteError,
};

use super::Model;
use super::plans::ModelPlan;

const RETRY_MS: u64 = 10_000;

#[derive(Clone, Debug)]
pub struct Vault {
    pub namespace: NamespaceId,
    pub name: VaultName,
    pub is_deleted: bool,
    /// In order of first use.
    pub assets: Vec<Asset>,
}

#[derive(Clone, Debug)]
pub struct Asset {
    pub name: AssetName,
    pub issued: i128,
    pub retired: i128,
    pub expired: i128,
}

#[derive(Clone, Debug)]
pub struct Account {
    pub vault: VaultId,
    pub name: AccountName,
    /// Its vault was deleted. The next account takes its place.
    pub is_gone: bool,
    pub standing: AccountStatus,
    pub overdraft: Overdraft,
    /// Plain credit, held credit included.
    pub amounts: BTreeMap<AssetName, i128>,
    /// All other credit, held credit included.
    pub grants: BTreeMap<(AssetName, GrantTerms), i128>,
    pub plan: Option<ModelPlan>,
}

/// The hold of one requirement, with the terms at that time. It stays until its lease is completed or forgotten; after
/// its timeout it holds nothing.
#[derive(Clone, Debug)]
pub struct Hold {
    pub lease: (NamespaceId, LeaseId),
    pub limit: LimitId,
    pub account: AccountId,
    pub asset: AssetName,
    pub revenue: AccountId,
    pub amount: u64,
    /// The amount by terms.
    pub parts: BTreeMap<GrantTerms, u64>,
    pub end: UnixMs,
    pub keeps_debt: bool,
    /// The reported usage.
    pub used: u64,
    pub charges_timeout: bool,
    /// The amount paid at its timeout, once that is recorded.
    pub paid: Option<u64>,
    /// The order of holds that end in one second.
    pub queued: u64,
}

impl Hold {
    /// The part that its timeout charges.
    pub fn due(&self) -> u64 {
        match self.paid {
            Some(_) => 0,
            None if self.charges_timeout => self.amount,
            None => self.used.min(self.amount),
        }
    }

    fn second(&self) -> u64 {
        self.end.get().div_ceil(1_000)
    }
}

impl Model {
    pub fn vault(&self, namespace: NamespaceId, name: &VaultName) -> Option<VaultId> {
        let is_meant = |v: &Vault| v.namespace == namespace && v.name == *name && !v.is_deleted;
        let place = self.vaults.iter().position(is_meant)?;
        Some(VaultId(u32::try_from(place).unwrap()))
    }

    /// Opens a vault with its revenue account, unless it exists.
    pub fn open_vault(&mut self, namespace: NamespaceId, name: &VaultName) -> VaultId {
        if let Some(vault) = self.vault(namespace, name) {
            return vault;
        }
        self.vaults.push(Vault { namespace, name: name.clone(), is_deleted: false, assets: Vec::new() });
        let vault = VaultId(u32::try_from(self.vaults.len() - 1).unwrap());
        self.add_account(vault, &AccountName::new(AccountName::REVENUE).unwrap(), Overdraft::Deny);
        vault
    }

    pub fn add_account(&mut self, vault: VaultId, name: &AccountName, overdraft: Overdraft) -> AccountId {
        let account = Account {
            vault,
            name: name.clone(),
            is_gone: false,
            standing: AccountStatus::Open,
            overdraft,
            amounts: BTreeMap::new(),
            grants: BTreeMap::new(),
            plan: None,
        };
        let place = self.accounts.iter().position(|account| account.is_gone).unwrap_or(self.accounts.len());
        match self.accounts.get_mut(place) {
            Some(gone) => *gone = account,
            None => self.accounts.push(account),
        }
        AccountId(u32::try_from(place).unwrap())
    }

    /// The vault to delete, unless it is in use or `deleted` has it already.
    pub fn deletable(
        &self,
        operation: usize,
        (namespace, name): (NamespaceId, &VaultName),
        deleted: &[VaultId],
    ) -> Result<VaultId, WriteError> {
        if self.external.credit {
            let why = InvalidOperation::CreditExternal;
            return Err(WriteError::Invalid(InvalidWrite::Operation { operation, why }));
        }
        let vault = self.vault(namespace, name).filter(|vault| !deleted.contains(vault));
        let vault = vault.ok_or(WriteError::VaultNotFound { operation: Some(operation) })?;
        let accounts = self.accounts.iter().filter(|account| account.vault == vault).count();
        let is_used = accounts > 1 || !self.vaults[vault.0 as usize].assets.is_empty() || self.has_clients(vault);
        if is_used || vault == VaultId::MAIN { Err(WriteError::Conflict { operation }) } else { Ok(vault) }
    }

    pub fn delete_vault(&mut self, vault: VaultId) {
        self.vaults[vault.0 as usize].is_deleted = true;
        self.accounts.iter_mut().filter(|account| account.vault == vault).for_each(|account| account.is_gone = true);
        while self.accounts.last().is_some_and(|account| account.is_gone) {
            self.accounts.pop();
        }
    }

    pub fn find_account(&self, vault: VaultId, name: &AccountName) -> Option<AccountId> {
        let place = self.accounts.iter().position(|a| a.vault == vault && a.name == *name)?;
        Some(AccountId(u32::try_from(place).unwrap()))
    }

    pub fn account(&self, id: AccountId) -> &Account {
        &self.accounts[id.0 as usize]
    }

    pub fn info(&self, id: AccountId) -> AccountInfo {
        let Account { standing, overdraft, .. } = *self.account(id);
        AccountInfo { id, standing, overdraft, plan: self.plan_info(id) }
    }

    pub fn held(&self, now: UnixMs, account: AccountId, asset: &AssetName) -> i128 {
        let mine = self.holds.iter().filter(|h| h.account == account && h.asset == *asset);
        mine.map(|h| i128::from(if h.end > now { h.amount } else { h.due() })).sum()
    }

    /// Totals of every asset of a vault, sorted by name.
    pub fn audit(&self, vault: VaultId) -> Vec<AssetTotals> {
        let total = |asset: &Asset| AssetTotals {
            asset: asset.name.clone(),
            issued: asset.issued,
            retired: asset.retired,
            expired: asset.expired,
            live: (0..)
                .map(AccountId)
                .zip(&self.accounts)
                .filter(|(_, account)| account.vault == vault)
                .map(|(id, _)| self.amount(id, &asset.name))
                .fold(0, i128::wrapping_add),
        };
        let mut totals: Vec<AssetTotals> = self.vaults[vault.0 as usize].assets.iter().map(total).collect();
        totals.sort_by(|a, b| a.asset.cmp(&b.asset));
        totals
    }

    /// The credit terms of a limit; `None` for other kinds.
    pub fn terms(&self, limit: LimitId) -> Option<&CreditTerms> {
        match &self.limits[limit].definition.kind {
            Kind::Credit(terms) => Some(terms),
            Kind::Rolling { .. } | Kind::Concurrency { .. } | Kind::Calendar { .. } => None,
        }
    }

    /// The first requirement, by key, whose vault or account does not exist.
    pub fn missing_account(&self, namespace: NamespaceId, wanted: &[(LimitId, u64)]) -> Option<usize> {
        let is_missing =
            |place: &usize| self.terms(wanted[*place].0).is_some_and(|terms| self.payers(namespace, terms).is_none());
        let missing = (0..wanted.len()).filter(is_missing);
        missing.min_by_key(|place| self.limits[wanted[*place].0].definition.key.as_str())
    }

    /// The first requirement, by key, whose account cannot hold the sum of all requirements on it.
    pub fn shortage(&mut self, namespace: NamespaceId, wanted: &[(LimitId, u64)]) -> Option<CreditDenial> {
        for &(limit, _) in wanted {
            if let Some(terms) = self.terms(limit).cloned()
                && let Some((account, _)) = self.payers(namespace, &terms)
            {
                self.apply_due(account, &terms.asset);
            }
        }
        let mut short: Vec<(&str, usize, CreditShortage)> = Vec::new();
        for (place, &(limit, _)) in wanted.iter().enumerate() {
            if let Some(terms) = self.terms(limit)
                && let Err(why) = self.can_hold(namespace, terms, wanted)
            {
                short.push((self.limits[limit].definition.key.as_str(), place, why));
            }
        }
        let (_, requirement, why) = short.into_iter().min_by_key(|(key, ..)| *key)?;
        Some(CreditDenial { requirement, retry_after_ms: RETRY_MS, why })
    }

    fn can_hold(
        &self,
        namespace: NamespaceId,
        terms: &CreditTerms,
        wanted: &[(LimitId, u64)],
    ) -> Result<(), CreditShortage> {
        let (account, revenue) = self.payers(namespace, terms).ok_or(CreditShortage::UnknownAccount)?;
        match (self.account(account).standing, self.account(revenue).standing) {
            (AccountStatus::Frozen, _) => return Err(CreditShortage::Frozen),
            (AccountStatus::Closed, _) | (_, AccountStatus::Closed) => return Err(CreditShortage::Closed),
            (AccountStatus::Open, _) => {}
        }
        // Requirements on the same account and asset are met together, except those without a revenue account.
        let is_same = |other: &CreditTerms| {
            let payer = self.payers(namespace, other).map(|(payer, _)| payer);
            payer == Some(account) && other.asset == terms.asset
        };
        let same = wanted.iter().filter(|(limit, _)| self.terms(*limit).is_some_and(is_same));
        let sum: i128 = same.map(|(_, amount)| i128::from(*amount)).sum();
        let available = self.spendable(self.time(), account, &terms.asset);
        let floor = self.account(account).overdraft.floor();
        let is_there = available.checked_sub(sum).is_some_and(|left| left >= floor);
        let is_countable = self.held(self.time(), account, &terms.asset) + sum <= i128::from(u64::MAX);
        if is_there && is_countable { Ok(()) } else { Err(CreditShortage::NotEnough) }
    }

    /// Paying and paid account, if both exist.
    pub fn payers(&self, namespace: NamespaceId, terms: &CreditTerms) -> Option<(AccountId, AccountId)> {
        let vault = self.vault(namespace, &terms.vault)?;
        Some((self.find_account(vault, &terms.account)?, self.find_account(vault, &terms.revenue)?))
    }

    /// Usage of a credit limit: the credit of its account, held by any limit.
    pub fn credit_usage(&self, now: UnixMs, limit: LimitId, status: LimitStatus) -> Option<Usage> {
        // A derived limit shows the account of its current template.
        let namespace = self.limits[limit].namespace;
        self.terms(limit)?;
        let (shown, _) = self.shown(&self.limits[limit])?;
        let terms = shown.kind.terms()?;
        let (account, _) = self.payers(namespace, terms)?;
        let assets = &self.vaults[self.account(account).vault.0 as usize].assets;
        assets.iter().find(|asset| asset.name == terms.asset)?;
        let reserved = u64::try_from(self.held(now, account, &terms.asset)).unwrap();
        let has = self.spendable(now, account, &terms.asset);
        let can_go_out = self.account(account).standing == AccountStatus::Open;
        let spendable = if can_go_out { u64::try_from(has.max(0)).unwrap_or(u64::MAX) } else { 0 };
        // Reserved plus available must fit into 64 bits; reserved is reported in full.
        let available = spendable.min(u64::MAX - reserved);
        let debt = if has < 0 { has.unsigned_abs() } else { 0 };
        Some(Usage { capacity: reserved + available, reserved, available, debt, status, paused_until: None })
    }

    /// Adds a hold. The caller has checked that the credit suffices.
    pub fn hold(&mut self, lease: (NamespaceId, LeaseId), limit: LimitId, amount: u64, end: UnixMs) {
        let terms = self.terms(limit).unwrap().clone();
        let vault = self.vault(lease.0, &terms.vault).unwrap();
        let (account, revenue) = self.payers(lease.0, &terms).unwrap();
        let keeps_debt = self.limits[limit].definition.overage == Overage::Debt;
        self.see_asset(vault, &terms.asset);
        self.balances.insert((account, terms.asset.clone()));
        let asset = terms.asset.clone();
        let charges_timeout = terms.on_timeout == OnTimeout::Charge;
        let queued = self.next_queued();
        let parts = self.draw(account, &asset, amount);
        self.holds.push(Hold {
            parts,
            lease,
            limit,
            account,
            asset,
            revenue,
            amount,
            end,
            keeps_debt,
            used: 0,
            charges_timeout,
            paid: None,
            queued,
        });
    }

    /// Adds an asset to a vault.
    pub fn see_asset(&mut self, vault: VaultId, name: &AssetName) {
        let assets = &mut self.vaults[vault.0 as usize].assets;
        if !assets.iter().any(|asset| asset.name == *name) {
            assets.push(Asset { name: name.clone(), issued: 0, retired: 0, expired: 0 });
        }
    }

    /// Charges the cost of a lease, first from its holds, then from the owners.
    pub fn charge(&mut self, lease: (NamespaceId, LeaseId), actual: impl Fn(LimitId) -> Option<u64>) -> Vec<Charge> {
        let mut limits: Vec<LimitId> =
            self.holds.iter().filter(|hold| hold.lease == lease).map(|hold| hold.limit).collect();
        limits.sort();
        let (mut charges, mut mine): (Vec<Charge>, Vec<Hold>) = (Vec::new(), Vec::new());
        for limit in limits {
            let place = self.holds.iter().position(|hold| hold.lease == lease && hold.limit == limit).unwrap();
            let (account, asset) = (self.holds[place].account, self.holds[place].asset.clone());
            self.apply_due(account, &asset);
            let mut hold = self.holds.remove(place);
            let mut cost = actual(hold.limit).unwrap_or(hold.amount);
            let mut of_hold = 0;
            if hold.end > self.time() {
                of_hold = cost.min(hold.amount);
            } else {
                self.time_out(&mut hold);
                cost = cost.saturating_sub(hold.paid.unwrap());
            }
            let paid = if self.pay_from(&hold, of_hold) { of_hold } else { 0 };
            charges.push(Charge { limit: hold.limit, cost, paid, debt: 0, uncollected: 0 });
            mine.push(hold);
        }
        for (hold, charge) in mine.iter().zip(&mut charges) {
            self.charge_owner(hold, charge);
            self.apply_due(hold.account, &hold.asset);
        }
        charges
    }

    pub fn next_queued(&mut self) -> u64 {
        self.queued += 1;
        self.queued
    }

    /// Settles the timeouts of up to 64 holds, in order.
    pub fn time_out_due(&mut self) {
        for _ in 0..64 {
            let now = self.time();
            let is_due = |hold: &Hold| hold.paid.is_none() && hold.second() * 1_000 <= now.get();
            let due = (0..self.holds.len()).filter(|place| is_due(&self.holds[*place]));
            let first = due.min_by_key(|place| (self.holds[*place].second(), self.holds[*place].queued));
            let Some(first) = first else { return };
            let mut hold = self.holds.remove(first);
            self.time_out(&mut hold);
            self.holds.push(hold);
        }
    }

    /// Settles the timeouts of a lease that is forgotten.
    pub fn time_out_all(&mut self, lease: (NamespaceId, LeaseId)) {
        let mut limits: Vec<LimitId> =
            self.holds.iter().filter(|hold| hold.lease == lease).map(|hold| hold.limit).collect();
        limits.sort();
        for limit in limits {
            let place = self.holds.iter().position(|hold| hold.lease == lease && hold.limit == limit).unwrap();
            let mut hold = self.holds.remove(place);
            self.time_out(&mut hold);
        }
    }

    /// Charges what a hold that has ended still owes. It is not among the holds meanwhile.
    fn time_out(&mut self, hold: &mut Hold) {
        if hold.paid.is_some() {
            return;
        }
        let cost = if hold.charges_timeout { hold.used.max(hold.amount) } else { hold.used };
        let due = hold.due();
        let mut charge = Charge { limit: hold.limit, cost, paid: 0, debt: 0, uncollected: 0 };
        if cost > 0 {
            charge.paid = if self.pay_from(hold, due) { due } else { 0 };
            self.charge_owner(hold, &mut charge);
            self.timeouts.push(charge);
        }
        hold.paid = Some(charge.paid);
        hold.parts = BTreeMap::new();
        self.apply_due(hold.account, &hold.asset.clone());
    }

    fn charge_owner(&mut self, hold: &Hold, charge: &mut Charge) {
        let missing = charge.cost - charge.paid;
        let available = self.spendable(self.time(), hold.account, &hold.asset).max(0);
        let has = u64::try_from(available).unwrap_or(u64::MAX).min(missing);
        let owner = self.account(hold.account);
        let mut taken = match owner.standing {
            AccountStatus::Closed => 0,
            AccountStatus::Open | AccountStatus::Frozen if hold.keeps_debt => missing,
            AccountStatus::Open | AccountStatus::Frozen if owner.overdraft != Overdraft::Deny => missing,
            AccountStatus::Open | AccountStatus::Frozen => has,
        };
        if self.plain(hold.account, &hold.asset).checked_sub(taken.into()).is_some() {
            let pieces = self.draw(hold.account, &hold.asset, taken);
            self.take_pieces(hold.account, &hold.asset, &pieces);
        } else {
            taken = 0;
        }
        charge.paid += taken;
        charge.debt = taken.saturating_sub(has);
        charge.uncollected = missing - taken;
        let payee = match self.account(hold.revenue).standing {
            AccountStatus::Open | AccountStatus::Frozen => hold.revenue,
            AccountStatus::Closed => {
                let own = AccountName::new(AccountName::REVENUE).unwrap();
                self.find_account(self.account(hold.revenue).vault, &own).unwrap()
            }
        };
        self.balances.insert((payee, hold.asset.clone()));
        if !self.add(payee, &hold.asset, charge.paid.into()) {
            // The revenue account would overflow, so the owner keeps the credit.
            assert!(self.add(hold.account, &hold.asset, charge.paid.into()));
            (charge.paid, charge.debt, charge.uncollected) = (0, 0, charge.cost);
        }
    }

    /// Changes plain credit; false on overflow.
    fn add(&mut self, account: AccountId, asset: &AssetName, change: i128) -> bool {
        let after = self.plain(account, asset).checked_add(change);
        if let Some(after) = after {
            self.accounts[account.0 as usize].amounts.insert(asset.clone(), after);
        }
        after.is_some()
    }
}
