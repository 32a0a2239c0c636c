//! The operations of one transaction, checked in order like the Book does.

use std::collections::{BTreeMap, BTreeSet};

use earmark_core::{
    AccountName, AccountStatus, AssetName, GrantTerms, InvalidOperation, InvalidWrite, MEMO_BYTES_MAX, Operation,
    Overdraft, QuotaKind, UnixMs, WriteError,
};

use super::room::Room;
use crate::coin_selection::BalanceChange;
use crate::model::{Account, AccountChange, AccountKey, AssetKey, Claim, ClaimKind, TotalsChange, VaultKey};
use crate::saga::{Engine, TaskError};
use crate::store::{AssetSums, Surveyed};
use crate::task::{AccountView, account_view};

/// A balance or total that a transaction would violate.
#[derive(Clone, Debug)]
pub(super) enum Violation {
    Balance(AccountName, AssetName),
    Issued(AssetName),
    Retired(AssetName),
}

/// The net effect of all operations on balances and totals, independent of their order. Sums saturate;
/// [`Operations::check`] finds the operation that overflows.
#[derive(Clone, Debug, Default)]
pub(super) struct Operations {
    names: BTreeSet<AccountName>,
    net: BTreeMap<(AccountName, AssetName), i128>,
    /// The issues that are not plain credit.
    granted: BTreeMap<(AccountName, AssetName), Vec<(GrantTerms, i128)>>,
    /// The balances that an operation spends.
    spent: BTreeSet<(AccountName, AssetName)>,
    issued: BTreeMap<AssetName, i128>,
    retired: BTreeMap<AssetName, i128>,
    asset_names: BTreeSet<AssetName>,
}

/// The effects on accounts.
pub(super) struct Verdict {
    /// Accounts to open, change or close.
    pub(super) claims: Vec<Claim>,
    /// Accounts that receive credit or, if true, spend it.
    pub(super) moved: BTreeMap<AccountName, bool>,
    /// Whether another saga is changing one of them.
    pub(super) is_in_doubt: bool,
    overdrafts: BTreeMap<AccountName, Overdraft>,
}

impl Verdict {
    pub(super) fn overdraft(&self, account: &AccountName) -> Option<Overdraft> {
        self.overdrafts.get(account).copied()
    }
}

/// An account after the operations so far.
struct Drafted {
    row: Option<Account>,
    is_in_doubt: bool,
    is_being_opened: bool,
    is_claimed: bool,
    standing: AccountStatus,
    overdraft: Overdraft,
    is_changed: bool,
}

enum Refusal {
    Error(fn(usize) -> WriteError),
    Invalid(InvalidOperation),
    /// Another saga must end first.
    InDoubt,
}

const NOT_FOUND: Refusal = Refusal::Error(|operation| WriteError::AccountNotFound { operation });
const CLOSED: Refusal = Refusal::Error(|operation| WriteError::AccountClosed { operation });
const FROZEN: Refusal = Refusal::Error(|operation| WriteError::AccountFrozen { operation });
const CONFLICT: Refusal = Refusal::Error(|operation| WriteError::Conflict { operation });
const ACCOUNTS_QUOTA: Refusal =
    Refusal::Error(|operation| WriteError::QuotaExceeded { operation: Some(operation), kind: QuotaKind::Accounts });

impl Operations {
    pub(super) fn new(operations: &[Operation]) -> Operations {
        let mut all = Operations::default();
        for operation in operations {
            // `check` reports errors in order.
            let _ = all.add(operation);
        }
        all
    }

    fn add(&mut self, operation: &Operation) -> Result<(), Refusal> {
        let mut overflows = false;
        let mut sum = |entry: &mut i128, amount: i128| match entry.checked_add(amount) {
            Some(after) => *entry = after,
            None => overflows = true,
        };
        match operation {
            Operation::OpenAccount { account, plan, .. } | Operation::SetPlan { account, plan } => {
                self.names.insert(account.clone());
                self.asset_names.extend(plan.as_ref().map(|plan| plan.asset.clone()));
            }
            Operation::FreezeAccount { account }
            | Operation::UnfreezeAccount { account }
            | Operation::CloseAccount { account } => {
                self.names.insert(account.clone());
            }
            Operation::Issue { account, asset, amount, terms, .. } => {
                let amount = i128::try_from(*amount).unwrap_or(i128::MAX);
                if *terms != GrantTerms::PLAIN {
                    let granted = self.granted.entry((account.clone(), asset.clone())).or_default();
                    granted.push((*terms, amount));
                }
                self.names.insert(account.clone());
                self.asset_names.insert(asset.clone());
                sum(self.net.entry((account.clone(), asset.clone())).or_default(), amount);
                sum(self.issued.entry(asset.clone()).or_default(), amount);
            }
            Operation::Transfer { from, to, asset, amount, .. } => {
                let amount = i128::try_from(*amount).unwrap_or(i128::MAX);
                self.names.extend([from.clone(), to.clone()]);
                self.asset_names.insert(asset.clone());
                self.spent.insert((from.clone(), asset.clone()));
                sum(self.net.entry((from.clone(), asset.clone())).or_default(), amount.saturating_neg());
                sum(self.net.entry((to.clone(), asset.clone())).or_default(), amount);
            }
            Operation::Retire { account, asset, amount, .. } => {
                let amount = i128::try_from(*amount).unwrap_or(i128::MAX);
                self.names.insert(account.clone());
                self.asset_names.insert(asset.clone());
                self.spent.insert((account.clone(), asset.clone()));
                sum(self.net.entry((account.clone(), asset.clone())).or_default(), amount.saturating_neg());
                sum(self.retired.entry(asset.clone()).or_default(), amount);
            }
            Operation::PutLimit { .. }
            | Operation::DeleteLimit { .. }
            | Operation::OpenVault { .. }
            | Operation::DeleteVault { .. }
            | Operation::RetireClient { .. } => {}
        }
        if overflows { Err(Refusal::Invalid(InvalidOperation::OutOfRange)) } else { Ok(()) }
    }

    /// Every account named, in order.
    pub(super) fn accounts(&self) -> Vec<&AccountName> {
        self.names.iter().collect()
    }

    /// Every asset named, in order.
    pub(super) fn assets(&self) -> Vec<&AssetName> {
        self.asset_names.iter().collect()
    }

    /// The balance changes by account and asset.
    pub(super) fn moves(&self, home: &VaultKey) -> Vec<BalanceChange> {
        let changes = self.net.iter().filter(|(key, change)| **change != 0 || self.spent.contains(*key));
        changes
            .map(|(key, change)| {
                let (account, asset) = (AccountKey { home: home.clone(), account: key.0.clone() }, &key.1);
                BalanceChange {
                    is_deposit: true,
                    spends: self.spent.contains(key),
                    deposits: self.granted.get(key).cloned().unwrap_or_default(),
                    ..BalanceChange::plain(&account, asset, *change, Overdraft::Deny)
                }
            })
            .collect()
    }

    /// The changes of the entry. An account whose movements add up to zero has one too, as in the Book.
    pub(super) fn changes(&self) -> Vec<AccountChange> {
        let changes = self.net.iter();
        changes
            .map(|((account, asset), change)| AccountChange {
                account: account.clone(),
                asset: asset.clone(),
                amount: *change,
                held: 0,
            })
            .collect()
    }

    /// The changes of totals, with the totals so far. An unknown asset is registered.
    pub(super) fn totals(&self, home: &VaultKey, found: &Surveyed) -> Vec<(TotalsChange, Option<AssetSums>)> {
        let assets = self.asset_names.iter().zip(&found.assets);
        let change = |(asset, sums): (&AssetName, &Option<AssetSums>)| {
            let issued = self.issued.get(asset).copied().unwrap_or(0);
            let retired = self.retired.get(asset).copied().unwrap_or(0);
            let key = AssetKey { home: home.clone(), asset: asset.clone() };
            (TotalsChange { asset: key, issued, retired, expired: 0 }, *sums)
        };
        let is_needed = |(change, sums): &(TotalsChange, Option<AssetSums>)| {
            sums.is_none() || (change.issued, change.retired) != (0, 0)
        };
        assets.map(change).filter(is_needed).collect()
    }

    /// The last operation that contributes to a violation. For a shortage only spending operations count.
    pub(super) fn violating_operation(&self, operations: &[Operation], blame: &Violation, is_short: bool) -> usize {
        let is_meant = |operation: &Operation| match (operation, blame) {
            (Operation::Issue { account, asset, .. }, Violation::Balance(owner, what)) => {
                !is_short && account == owner && asset == what
            }
            (Operation::Retire { account, asset, .. }, Violation::Balance(owner, what)) => {
                account == owner && asset == what
            }
            (Operation::Transfer { from, to, asset, .. }, Violation::Balance(owner, what)) => {
                (from == owner || (to == owner && !is_short)) && asset == what
            }
            (Operation::Issue { asset, .. }, Violation::Issued(what))
            | (Operation::Retire { asset, .. }, Violation::Retired(what)) => asset == what,
            _ => false,
        };
        operations.iter().rposition(is_meant).unwrap_or(0)
    }

    /// Checks the operations in order. `self` is reset and summed up again.
    pub(super) async fn check(
        &mut self,
        engine: &Engine,
        home: &VaultKey,
        operations: &[Operation],
        (found, room): (&Surveyed, &Room),
    ) -> Result<Result<Verdict, WriteError>, TaskError> {
        if let Some(operation) = operations.iter().position(|operation| !operation.fits(true)) {
            return Ok(Err(WriteError::WrongScope { operation }));
        }
        let is_retirement = |operation: &Operation| matches!(operation, Operation::RetireClient { .. });
        if let Some(operation) = operations.iter().position(is_retirement) {
            let why = InvalidOperation::CreditExternal;
            return Ok(Err(WriteError::Invalid(InvalidWrite::Operation { operation, why })));
        }
        let rows = self.names.iter().cloned().zip(&found.accounts);
        let mut accounts: BTreeMap<AccountName, Drafted> = rows.map(|(name, row)| (name, Drafted::new(*row))).collect();
        let mut moved = BTreeMap::new();
        let now = engine.time.now();
        let mut opened = 0_u64;
        *self = Operations::default();
        for (place, operation) in operations.iter().enumerate() {
            let mut result = self.take(&mut accounts, &mut moved, (operation, now));
            if let (Ok(()), Operation::CloseAccount { account }) = (&result, operation) {
                let key = AccountKey { home: home.clone(), account: account.clone() };
                result = self.close(engine, &mut accounts, key).await?;
            }
            opened = opened.saturating_add(u64::from(matches!(operation, Operation::OpenAccount { .. })));
            let result = result.and_then(|()| self.check_room(room, opened));
            match result {
                Ok(()) => {}
                Err(Refusal::Error(error)) => return Ok(Err(error(place))),
                Err(Refusal::Invalid(why)) => {
                    return Ok(Err(WriteError::Invalid(InvalidWrite::Operation { operation: place, why })));
                }
                Err(Refusal::InDoubt) => return Ok(Ok(Verdict::in_doubt())),
            }
        }
        Ok(Ok(Verdict::of(home, accounts, moved)))
    }

    /// Checks that there is room for the accounts opened and the assets added so far.
    fn check_room(&self, room: &Room, opened: u64) -> Result<(), Refusal> {
        if opened > room.accounts_left {
            return Err(ACCOUNTS_QUOTA);
        }
        let added = self.asset_names.intersection(&room.new_assets).count() as u64;
        if added > room.assets_left {
            return Err(Refusal::Invalid(InvalidOperation::TooManyAssets));
        }
        Ok(())
    }

    /// Applies one operation. The caller checks that an account to close is empty.
    fn take(
        &mut self,
        accounts: &mut BTreeMap<AccountName, Drafted>,
        moved: &mut BTreeMap<AccountName, bool>,
        (operation, now): (&Operation, UnixMs),
    ) -> Result<(), Refusal> {
        match operation {
            Operation::OpenAccount { account, overdraft, plan } => {
                check_plan(plan.as_ref())?;
                accounts.get_mut(account).ok_or(NOT_FOUND)?.open(*overdraft)?;
            }
            Operation::SetPlan { account, plan } => {
                check_plan(plan.as_ref())?;
                find(accounts, account)?;
            }
            Operation::FreezeAccount { account } => change(accounts, account, AccountStatus::Frozen)?,
            Operation::UnfreezeAccount { account } => change(accounts, account, AccountStatus::Open)?,
            Operation::CloseAccount { account } => {
                find(accounts, account)?.claim()?;
                if account.as_str() == AccountName::REVENUE {
                    return Err(CONFLICT);
                }
            }
            Operation::Issue { account, amount, memo, terms, .. } => {
                checked(*amount, memo)?;
                find(accounts, account)?;
                if terms.is_expired(now) {
                    return Err(Refusal::Invalid(InvalidOperation::ExpiryPast));
                }
                moved.entry(account.clone()).or_insert(false);
            }
            Operation::Transfer { from, to, amount, memo, .. } => {
                checked(*amount, memo)?;
                if from == to {
                    return Err(Refusal::Invalid(InvalidOperation::ToItself));
                }
                find(accounts, from)?.spend()?;
                find(accounts, to)?;
                moved.insert(from.clone(), true);
                moved.entry(to.clone()).or_insert(false);
            }
            Operation::Retire { account, amount, memo, .. } => {
                checked(*amount, memo)?;
                find(accounts, account)?.spend()?;
                moved.insert(account.clone(), true);
            }
            Operation::PutLimit { .. }
            | Operation::DeleteLimit { .. }
            | Operation::OpenVault { .. }
            | Operation::DeleteVault { .. }
            | Operation::RetireClient { .. } => {}
        }
        self.add(operation)
    }

    /// Closes an account if the operations so far leave it empty.
    async fn close(
        &self,
        engine: &Engine,
        accounts: &mut BTreeMap<AccountName, Drafted>,
        key: AccountKey,
    ) -> Result<Result<(), Refusal>, TaskError> {
        let as_of = engine.time.as_of();
        let mut net: BTreeMap<&AssetName, i128> = BTreeMap::new();
        for ((account, asset), change) in &self.net {
            if *account == key.account {
                net.insert(asset, *change);
            }
        }
        let funds = engine.call(engine.store.funds(key.clone(), as_of)).await?;
        if funds.iter().any(|funds| funds.due > 0) {
            engine.sweep_account(key).await?;
            return Ok(Err(Refusal::InDoubt));
        }
        if funds.iter().any(|funds| funds.expired != 0) {
            engine.apply_due(key).await?;
            return Ok(Err(Refusal::InDoubt));
        }
        for funds in &funds {
            let change = net.remove(&funds.asset).unwrap_or(0);
            if funds.pending != 0 {
                return Ok(Err(Refusal::InDoubt));
            }
            if funds.held != 0 || funds.active.checked_add(change) != Some(0) {
                return Ok(Err(CONFLICT));
            }
        }
        if net.values().any(|change| *change != 0) {
            return Ok(Err(CONFLICT));
        }
        if let Some(account) = accounts.get_mut(&key.account) {
            account.standing = AccountStatus::Closed;
            account.is_changed = true;
        }
        Ok(Ok(()))
    }
}

impl Drafted {
    fn new(row: Option<Account>) -> Drafted {
        let is_being_opened = row.is_some_and(|row| matches!(row.claim, Some((_, ClaimKind::Opening))));
        let found = account_view(row);
        let there = match found {
            AccountView::Present(account) => Some(account),
            AccountView::Missing | AccountView::InDoubt => None,
        };
        Drafted {
            row: there,
            is_in_doubt: matches!(found, AccountView::InDoubt),
            is_being_opened,
            is_claimed: row.is_some_and(|row| row.claim.is_some()),
            standing: there.map_or(AccountStatus::Open, |account| account.standing),
            overdraft: there.map_or(Overdraft::Deny, |account| account.overdraft),
            is_changed: false,
        }
    }

    fn is_there(&self) -> bool {
        self.row.is_some() || self.is_changed
    }

    fn open(&mut self, overdraft: Overdraft) -> Result<(), Refusal> {
        if self.is_in_doubt || self.is_being_opened {
            return Err(Refusal::InDoubt);
        }
        if self.is_there() {
            return Err(CONFLICT);
        }
        (self.overdraft, self.standing, self.is_changed) = (overdraft, AccountStatus::Open, true);
        Ok(())
    }

    /// Whether no other saga claims the account.
    fn claim(&self) -> Result<(), Refusal> {
        if self.is_claimed { Err(Refusal::InDoubt) } else { Ok(()) }
    }

    fn spend(&self) -> Result<(), Refusal> {
        if self.standing == AccountStatus::Frozen { Err(FROZEN) } else { Ok(()) }
    }
}

/// Finds an account that accepts deposits.
fn find<'a>(accounts: &'a mut BTreeMap<AccountName, Drafted>, name: &AccountName) -> Result<&'a mut Drafted, Refusal> {
    let account = accounts.get_mut(name).ok_or(NOT_FOUND)?;
    if account.is_in_doubt {
        return Err(Refusal::InDoubt);
    }
    if !account.is_there() {
        return Err(NOT_FOUND);
    }
    match account.standing {
        AccountStatus::Open | AccountStatus::Frozen => Ok(account),
        AccountStatus::Closed => Err(CLOSED),
    }
}

fn change(
    accounts: &mut BTreeMap<AccountName, Drafted>,
    name: &AccountName,
    standing: AccountStatus,
) -> Result<(), Refusal> {
    let account = find(accounts, name)?;
    account.claim()?;
    (account.standing, account.is_changed) = (standing, true);
    Ok(())
}

fn check_plan(plan: Option<&earmark_core::Plan>) -> Result<(), Refusal> {
    plan.map_or(Ok(()), |plan| plan.check().map_err(Refusal::Invalid))
}

/// Checks the amount and the memo of an operation.
fn checked(amount: u128, memo: &str) -> Result<(), Refusal> {
    if memo.len() > MEMO_BYTES_MAX {
        return Err(Refusal::Invalid(InvalidOperation::MemoTooLong { found: memo.len() }));
    }
    match i128::try_from(amount) {
        Ok(0) => Err(Refusal::Invalid(InvalidOperation::AmountZero)),
        Ok(_) => Ok(()),
        Err(_) => Err(Refusal::Invalid(InvalidOperation::OutOfRange)),
    }
}

impl Verdict {
    fn in_doubt() -> Verdict {
        Verdict { claims: Vec::new(), moved: BTreeMap::new(), is_in_doubt: true, overdrafts: BTreeMap::new() }
    }

    fn of(home: &VaultKey, accounts: BTreeMap<AccountName, Drafted>, moved: BTreeMap<AccountName, bool>) -> Verdict {
        let overdrafts = accounts.iter().map(|(name, account)| (name.clone(), account.overdraft)).collect();
        let changed = accounts.into_iter().filter(|(_, account)| account.is_changed);
        let claim = |(name, account): (AccountName, Drafted)| {
            let kind = match (account.row, account.standing) {
                (None, _) => ClaimKind::Opening,
                (Some(_), AccountStatus::Closed) => ClaimKind::Closing,
                (Some(_), AccountStatus::Open | AccountStatus::Frozen) => ClaimKind::Changing,
            };
            Claim {
                account: AccountKey { home: home.clone(), account: name },
                kind,
                from: account.row.map_or(AccountStatus::Open, |row| row.standing),
                to: account.standing,
                overdraft: account.overdraft,
            }
        };
        Verdict { claims: changed.map(claim).collect(), moved, is_in_doubt: false, overdrafts }
    }
}
