//! Vault operations: account operations in order, credit operations as one entry.

use std::collections::BTreeMap;

use earmark_core::{
    ASSETS_MAX, AccountId, AccountName, AccountStatus, AssetName, CarryOver, GrantTerms, InvalidOperation,
    InvalidWrite, MEMO_BYTES_MAX, Operation, OperationResult, Plan, QuotaKind, VaultId, WriteError,
};

use super::Model;

/// Net changes of an entry, by account and asset index.
type Net = BTreeMap<(AccountId, usize), i128>;

type Refusal = fn(usize) -> WriteError;

fn invalid(operation: usize, why: InvalidOperation) -> WriteError {
    WriteError::Invalid(InvalidWrite::Operation { operation, why })
}

const OUT_OF_RANGE: Refusal = |place| invalid(place, InvalidOperation::OutOfRange);

impl Model {
    /// Applies the operations of a vault. After a failure the caller restores the copy.
    pub fn write_vault(
        &mut self,
        vault: VaultId,
        operations: &[Operation],
    ) -> Result<Vec<OperationResult>, WriteError> {
        let (mut net, mut issued, mut retired) = (Net::new(), BTreeMap::new(), BTreeMap::new());
        self.added_balances.clear();
        let mut results = Vec::new();
        for (place, operation) in operations.iter().enumerate() {
            let done = match operation {
                Operation::Issue { account, asset, amount, memo, terms } => {
                    let amount = checked(place, *amount, memo)?;
                    let account = self.taking(place, vault, account)?;
                    if terms.is_expired(self.time()) {
                        return Err(invalid(place, InvalidOperation::ExpiryPast));
                    }
                    let asset = self.asset(place, vault, asset)?;
                    add(&mut net, (account, asset), amount)
                        .and_then(|()| add(&mut issued, asset, amount))
                        .map(|()| OperationResult::Entry)
                }
                Operation::Transfer { from, to, asset, amount, memo } => {
                    let amount = checked(place, *amount, memo)?;
                    if from == to {
                        return Err(invalid(place, InvalidOperation::ToItself));
                    }
                    let from = self.giving(place, vault, from)?;
                    let to = self.taking(place, vault, to)?;
                    let asset = self.asset(place, vault, asset)?;
                    add(&mut net, (from, asset), -amount)
                        .and_then(|()| add(&mut net, (to, asset), amount))
                        .map(|()| OperationResult::Entry)
                }
                Operation::Retire { account, asset, amount, memo } => {
                    let amount = checked(place, *amount, memo)?;
                    let account = self.giving(place, vault, account)?;
                    let asset = self.asset(place, vault, asset)?;
                    add(&mut net, (account, asset), -amount)
                        .and_then(|()| add(&mut retired, asset, amount))
                        .map(|()| OperationResult::Entry)
                }
                Operation::RetireClient { .. } => Ok(OperationResult::Client),
                other => Ok(OperationResult::Account(self.change_account(place, vault, other, &net)?)),
            };
            results.push(done.map_err(|refusal| refusal(place))?);
        }
        self.touch(vault, &net);
        let had_grants = self.moves_grants(vault, operations, &net);
        self.check_ranges(vault, operations, &net)?;
        self.count_all(vault, operations, &issued, &retired)?;
        self.check_overdrafts(vault, operations, &net)?;
        self.move_all(vault, operations, &net)?;
        self.add_balances(vault, operations, &net, had_grants)?;
        Ok(results)
    }

    /// Adds the balances that did not exist: those that change, and all of an entry with grants.
    fn add_balances(
        &mut self,
        vault: VaultId,
        operations: &[Operation],
        net: &Net,
        has_grants: bool,
    ) -> Result<(), WriteError> {
        for (&(id, asset), _) in net.iter().filter(|(_, change)| has_grants || **change != 0) {
            let asset = self.vaults[vault.0 as usize].assets[asset].name.clone();
            if !self.add_balance(id, &asset) {
                let operation = Some(last(operations, |o| moves(o, &self.account(id).name, &asset)));
                return Err(WriteError::QuotaExceeded { operation, kind: QuotaKind::Accounts });
            }
            self.balances.insert((id, asset));
        }
        Ok(())
    }

    fn moves_grants(&self, vault: VaultId, operations: &[Operation], net: &Net) -> bool {
        let assets = &self.vaults[vault.0 as usize].assets;
        let has_terms = |o: &Operation| matches!(o, Operation::Issue { terms, .. } if *terms != GrantTerms::PLAIN);
        let has_grants = net.keys().any(|(id, asset)| self.has_grants(*id, &assets[*asset].name));
        has_grants || operations.iter().any(has_terms)
    }

    fn change_account(
        &mut self,
        place: usize,
        vault: VaultId,
        operation: &Operation,
        net: &Net,
    ) -> Result<AccountId, WriteError> {
        let (name, standing) = match operation {
            Operation::OpenAccount { account, overdraft, plan } => {
                check_plan(place, plan.as_ref())?;
                let opened = match self.find_account(vault, account) {
                    Some(_) => Err(WriteError::Conflict { operation: place }),
                    None if !self.has_room_for_account(vault) => {
                        Err(WriteError::QuotaExceeded { operation: Some(place), kind: QuotaKind::Accounts })
                    }
                    None => Ok(self.add_account(vault, account, *overdraft)),
                }?;
                self.add_plan_balance(place, vault, opened, plan.as_ref())?;
                return Ok(opened);
            }
            Operation::SetPlan { account, plan } => {
                check_plan(place, plan.as_ref())?;
                let account = self.taking(place, vault, account)?;
                self.add_plan_balance(place, vault, account, plan.as_ref())?;
                return Ok(account);
            }
            Operation::FreezeAccount { account } => (account, AccountStatus::Frozen),
            Operation::UnfreezeAccount { account } => (account, AccountStatus::Open),
            Operation::CloseAccount { account } => (account, AccountStatus::Closed),
            other => panic!("{other:?} is not about an account"),
        };
        let id = self.taking(place, vault, name)?;
        if standing == AccountStatus::Closed {
            for asset in self.vaults[vault.0 as usize].assets.clone() {
                self.apply_due(id, &asset.name);
            }
            let is_empty = self.vaults[vault.0 as usize].assets.iter().enumerate().all(|(asset, known)| {
                let change = net.get(&(id, asset)).copied().unwrap_or(0);
                self.held(self.time(), id, &known.name) == 0
                    && self.amount(id, &known.name).checked_add(change) == Some(0)
            });
            if !is_empty || name.as_str() == AccountName::REVENUE {
                return Err(WriteError::Conflict { operation: place });
            }
        }
        self.accounts[id.0 as usize].standing = standing;
        Ok(id)
    }

    fn has_room_for_account(&self, vault: VaultId) -> bool {
        let namespace = self.vaults[vault.0 as usize].namespace;
        let used = self.used(self.time(), namespace, QuotaKind::Accounts) + self.added_further() as u64;
        used < self.quota(namespace, QuotaKind::Accounts)
    }

    /// Adds the asset of a plan, and the balance that the account gets when the plan is set.
    fn add_plan_balance(
        &mut self,
        place: usize,
        vault: VaultId,
        account: AccountId,
        plan: Option<&Plan>,
    ) -> Result<(), WriteError> {
        let Some(plan) = plan else { return Ok(()) };
        self.asset(place, vault, &plan.asset)?;
        let has_room = self.add_balance(account, &plan.asset);
        let error = WriteError::QuotaExceeded { operation: Some(place), kind: QuotaKind::Accounts };
        if has_room { Ok(()) } else { Err(error) }
    }

    /// An account that accepts deposits.
    fn taking(&self, operation: usize, vault: VaultId, name: &AccountName) -> Result<AccountId, WriteError> {
        let id = self.find_account(vault, name).ok_or(WriteError::AccountNotFound { operation })?;
        match self.account(id).standing {
            AccountStatus::Closed => Err(WriteError::AccountClosed { operation }),
            AccountStatus::Open | AccountStatus::Frozen => Ok(id),
        }
    }

    /// An account that can pay.
    fn giving(&self, operation: usize, vault: VaultId, name: &AccountName) -> Result<AccountId, WriteError> {
        let id = self.taking(operation, vault, name)?;
        match self.account(id).standing {
            AccountStatus::Frozen => Err(WriteError::AccountFrozen { operation }),
            AccountStatus::Open | AccountStatus::Closed => Ok(id),
        }
    }

    fn asset(&mut self, place: usize, vault: VaultId, name: &AssetName) -> Result<usize, WriteError> {
        self.see_asset(vault, name);
        let assets = &self.vaults[vault.0 as usize].assets;
        if assets.len() > ASSETS_MAX {
            return Err(invalid(place, InvalidOperation::TooManyAssets));
        }
        Ok(assets.iter().position(|asset| asset.name == *name).unwrap())
    }

    /// Applies what is due on all balances of an entry.
    fn touch(&mut self, vault: VaultId, net: &Net) {
        for &(id, asset) in net.keys() {
            let asset = self.vaults[vault.0 as usize].assets[asset].name.clone();
            self.apply_due(id, &asset);
        }
    }

    fn check_ranges(&self, vault: VaultId, operations: &[Operation], net: &Net) -> Result<(), WriteError> {
        for (&(id, asset), &change) in net.iter().filter(|(_, change)| **change != 0) {
            let asset = &self.vaults[vault.0 as usize].assets[asset].name;
            let name = &self.account(id).name;
            let is_in_range = self.amount(id, asset).checked_add(change).is_some();
            let blame = || OUT_OF_RANGE(last(operations, |o| moves(o, name, asset)));
            is_in_range.then_some(()).ok_or_else(blame)?;
        }
        Ok(())
    }

    /// Moves credit: net changes where all credit is plain, else every operation, deposits first.
    fn move_all(&mut self, vault: VaultId, operations: &[Operation], net: &Net) -> Result<(), WriteError> {
        let names: Vec<AssetName> =
            self.vaults[vault.0 as usize].assets.iter().map(|asset| asset.name.clone()).collect();
        if !self.moves_grants(vault, operations, net) {
            for (&(id, asset), &change) in net.iter().filter(|(_, change)| **change != 0) {
                *self.accounts[id.0 as usize].amounts.entry(names[asset].clone()).or_default() += change;
            }
            return Ok(());
        }
        let blame = |operations: &[Operation], name: &AccountName, asset: &AssetName, why: InvalidOperation| {
            invalid(last(operations, |o| moves(o, name, asset)), why)
        };
        for operation in operations {
            if let Operation::Issue { account, asset, amount, terms, .. } = operation {
                let id = self.find_account(vault, account).unwrap();
                let amount = i128::try_from(*amount).unwrap();
                self.deposit(id, asset, (*terms, amount)).map_err(|why| blame(operations, account, asset, why))?;
            }
        }
        for operation in operations {
            let (from, to, asset, amount) = match operation {
                Operation::Transfer { from, to, asset, amount, .. } => (from, Some(to), asset, *amount),
                Operation::Retire { account, asset, amount, .. } => (account, None, asset, *amount),
                _ => continue,
            };
            let (id, amount) = (self.find_account(vault, from).unwrap(), i128::try_from(amount).unwrap());
            let taken = self.withdraw(id, asset, amount).map_err(|why| blame(operations, from, asset, why))?;
            for piece in taken {
                let Some(to) = to else { continue };
                let id = self.find_account(vault, to).unwrap();
                self.deposit(id, asset, piece).map_err(|why| blame(operations, to, asset, why))?;
            }
        }
        for &(id, asset) in net.keys() {
            if self.has_too_many_grants(id, &names[asset]) {
                let name = self.account(id).name.clone();
                return Err(blame(operations, &name, &names[asset], InvalidOperation::TooManyGrants));
            }
        }
        for &(id, asset) in net.keys() {
            self.apply_due(id, &names[asset]);
        }
        Ok(())
    }

    fn count_all(
        &mut self,
        vault: VaultId,
        operations: &[Operation],
        issued: &BTreeMap<usize, i128>,
        retired: &BTreeMap<usize, i128>,
    ) -> Result<(), WriteError> {
        let assets = &mut self.vaults[vault.0 as usize].assets;
        for (&asset, &more) in issued {
            let name = assets[asset].name.clone();
            let is_it = |o: &Operation| matches!(o, Operation::Issue { asset, .. } if *asset == name);
            let total = assets[asset].issued.checked_add(more);
            assets[asset].issued = total.ok_or_else(|| OUT_OF_RANGE(last(operations, is_it)))?;
        }
        for (&asset, &more) in retired {
            let name = assets[asset].name.clone();
            let is_it = |o: &Operation| matches!(o, Operation::Retire { asset, .. } if *asset == name);
            let total = assets[asset].retired.checked_add(more);
            assets[asset].retired = total.ok_or_else(|| OUT_OF_RANGE(last(operations, is_it)))?;
        }
        Ok(())
    }

    /// Only the net change of all operations must be covered.
    fn check_overdrafts(&self, vault: VaultId, operations: &[Operation], net: &Net) -> Result<(), WriteError> {
        for (&(id, asset), &change) in net.iter().filter(|(_, change)| **change != 0) {
            let asset = &self.vaults[vault.0 as usize].assets[asset].name;
            let account = self.account(id);
            let available = self.spendable(self.time(), id, asset);
            let after = available.checked_add(change);
            let after = after.ok_or_else(|| OUT_OF_RANGE(last(operations, |o| moves(o, &account.name, asset))))?;
            if change < 0 && after < account.overdraft.floor() {
                let operation = last(operations, |o| takes(o, &account.name, asset));
                return Err(WriteError::InsufficientCredit { operation });
            }
        }
        Ok(())
    }
}

fn check_plan(place: usize, plan: Option<&Plan>) -> Result<(), WriteError> {
    let Some(plan) = plan else { return Ok(()) };
    let found = plan.utc_offset_minutes;
    let why = match (plan.amount, plan.carry_over) {
        (0, _) => InvalidOperation::AmountZero,
        (_, CarryOver::Max(0)) => InvalidOperation::CarryOverZero,
        _ if !(-720..=840).contains(&found) => InvalidOperation::PlanUtcOffset { found },
        _ => return Ok(()),
    };
    Err(invalid(place, why))
}

fn checked(place: usize, amount: u128, memo: &str) -> Result<i128, WriteError> {
    if memo.len() > MEMO_BYTES_MAX {
        return Err(invalid(place, InvalidOperation::MemoTooLong { found: memo.len() }));
    }
    match i128::try_from(amount) {
        Ok(0) => Err(invalid(place, InvalidOperation::AmountZero)),
        Ok(amount) => Ok(amount),
        Err(_) => Err(invalid(place, InvalidOperation::OutOfRange)),
    }
}

fn add<K: Ord>(sums: &mut BTreeMap<K, i128>, key: K, amount: i128) -> Result<(), Refusal> {
    let sum = sums.entry(key).or_default();
    *sum = sum.checked_add(amount).ok_or(OUT_OF_RANGE)?;
    Ok(())
}

fn last(operations: &[Operation], is_it: impl Fn(&Operation) -> bool) -> usize {
    operations.iter().rposition(is_it).unwrap()
}

fn takes(operation: &Operation, name: &AccountName, what: &AssetName) -> bool {
    match operation {
        Operation::Transfer { from, asset, .. } => from == name && asset == what,
        Operation::Retire { account, asset, .. } => account == name && asset == what,
        _ => false,
    }
}

fn moves(operation: &Operation, name: &AccountName, what: &AssetName) -> bool {
    match operation {
        Operation::Transfer { to, asset, .. } if to == name => asset == what,
        Operation::Issue { account, asset, .. } => account == name && asset == what,
        other => takes(other, name, what),
    }
}
