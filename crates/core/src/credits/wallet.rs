//! Wallets: the credit of one owner in one asset by terms, while the movements of a transaction are tried out. Books and
//! databases share this rule.

use std::collections::BTreeMap;

use super::grant::{GRANTS_MAX, GrantTerms};
use crate::book::Operation;
use crate::id::{AccountName, AssetName};

/// Plain credit and grants of one balance.
#[derive(Clone, Debug, Default)]
pub struct Wallet {
    /// Plain credit, held amounts included; negative if owed.
    pub plain: i128,
    /// The held part of plain credit.
    pub plain_held: i128,
    /// The grants in spending order.
    pub grants: Vec<WalletGrant>,
}

/// A grant of a wallet.
#[derive(Clone, Copy, Debug)]
pub struct WalletGrant {
    /// The priority and the expiry.
    pub terms: GrantTerms,
    /// The free amount before the transaction.
    pub before: i128,
    /// The free amount.
    pub free: i128,
    /// Whether holds took from it or a plan will carry it over, so that it stays even when nothing is free.
    pub is_held: bool,
}

/// Why a movement is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalletError {
    /// A sum does not fit an `i128`.
    OutOfRange,
    /// The owner would have more grants than [`GRANTS_MAX`].
    TooManyGrants,
}

impl From<WalletError> for super::CreditRefusal {
    fn from(error: WalletError) -> super::CreditRefusal {
        match error {
            WalletError::OutOfRange => super::CreditRefusal::OutOfRange,
            WalletError::TooManyGrants => super::CreditRefusal::TooManyGrants,
        }
    }
}

impl Wallet {
    /// Adds credit. It covers debt first.
    ///
    /// # Errors
    /// A sum is out of range.
    pub fn deposit(&mut self, terms: GrantTerms, amount: i128) -> Result<(), WalletError> {
        let covered = self.plain.min(0).saturating_neg().min(amount);
        self.plain = self.plain.checked_add(covered).ok_or(WalletError::OutOfRange)?;
        let rest = amount.saturating_sub(covered);
        if rest == 0 {
            return Ok(());
        }
        if terms == GrantTerms::PLAIN {
            self.plain = self.plain.checked_add(rest).ok_or(WalletError::OutOfRange)?;
            return Ok(());
        }
        match self.grants.binary_search_by(|grant| grant.terms.cmp(&terms)) {
            Ok(position) => {
                let free = &mut self.grants[position].free;
                *free = free.checked_add(rest).ok_or(WalletError::OutOfRange)?;
            }
            Err(position) => {
                self.grants.insert(position, WalletGrant { terms, before: 0, free: rest, is_held: false });
            }
        }
        Ok(())
    }

    /// Takes credit in spending order, and says what was taken. Plain credit owes the amount that is missing.
    ///
    /// # Errors
    /// A sum is out of range.
    pub fn withdraw(&mut self, amount: i128) -> Result<Vec<(GrantTerms, i128)>, WalletError> {
        let mut left = amount;
        let mut taken = Vec::new();
        let mut take = |terms, free: i128| {
            let share = free.clamp(0, left);
            left = left.saturating_sub(share);
            if share > 0 {
                taken.push((terms, share));
            }
            share
        };
        let later = self.grants.partition_point(|grant| grant.terms < GrantTerms::PLAIN);
        let (first, last) = self.grants.split_at_mut(later);
        for grant in first {
            grant.free = grant.free.saturating_sub(take(grant.terms, grant.free));
        }
        let share = take(GrantTerms::PLAIN, self.plain.saturating_sub(self.plain_held));
        self.plain = self.plain.saturating_sub(share);
        for grant in last {
            grant.free = grant.free.saturating_sub(take(grant.terms, grant.free));
        }
        if left > 0 {
            self.plain = self.plain.checked_sub(left).ok_or(WalletError::OutOfRange)?;
            taken.push((GrantTerms::PLAIN, left));
        }
        Ok(taken)
    }

    /// Moves free credit of grants to plain credit that is owed, in spending order.
    pub fn cover_debt(&mut self) {
        for grant in &mut self.grants {
            let share = self.plain.min(0).saturating_neg().min(grant.free.max(0));
            self.plain = self.plain.saturating_add(share);
            grant.free = grant.free.saturating_sub(share);
        }
    }

    /// The spendable amount; negative if owed.
    #[must_use]
    pub fn available(&self) -> i128 {
        let plain = self.plain.saturating_sub(self.plain_held);
        self.grants.iter().fold(plain, |sum, grant| sum.saturating_add(grant.free))
    }

    /// The number of grants, those included of which something is held.
    #[must_use]
    pub fn live_grants(&self) -> usize {
        self.grants.iter().filter(|grant| grant.is_held || grant.free > 0).count()
    }

    /// Checks the number of grants after the transaction.
    ///
    /// # Errors
    /// There are too many.
    pub fn check(&self) -> Result<(), WalletError> {
        if self.live_grants() > GRANTS_MAX { Err(WalletError::TooManyGrants) } else { Ok(()) }
    }
}

/// Makes the movements of a transaction in the wallets of its accounts, which `key_of` names. Deposits come first, since
/// an operation may spend the deposit of a later one; transfers carry the terms of the credit that they take.
///
/// # Errors
/// A movement is impossible; with the wallet.
pub fn try_moves<K: Copy + Ord>(
    wallets: &mut BTreeMap<K, Wallet>,
    operations: &[Operation],
    key_of: impl Fn(&AccountName, &AssetName) -> Option<K>,
) -> Result<(), (WalletError, K)> {
    let mut moved = |key: Option<K>, step: &mut dyn FnMut(&mut Wallet) -> Result<(), WalletError>| {
        let Some((key, wallet)) = key.and_then(|key| Some((key, wallets.get_mut(&key)?))) else { return Ok(()) };
        step(wallet).map_err(|error| (error, key))
    };
    for operation in operations {
        if let Operation::Issue { account, asset, amount, terms, .. } = operation {
            moved(key_of(account, asset), &mut |wallet| wallet.deposit(*terms, signed(*amount)))?;
        }
    }
    for operation in operations {
        let (from, to, asset, amount) = match operation {
            Operation::Transfer { from, to, asset, amount, .. } => (from, Some(to), asset, *amount),
            Operation::Retire { account, asset, amount, .. } => (account, None, asset, *amount),
            _ => continue,
        };
        let mut taken = Vec::new();
        moved(key_of(from, asset), &mut |wallet| {
            taken = wallet.withdraw(signed(amount))?;
            Ok(())
        })?;
        for (terms, amount) in taken {
            let to = to.and_then(|to| key_of(to, asset));
            moved(to, &mut |wallet| wallet.deposit(terms, amount))?;
        }
    }
    Ok(())
}

/// An amount that was checked before.
fn signed(amount: u128) -> i128 {
    i128::try_from(amount).unwrap_or(i128::MAX)
}

#[cfg(test)]
mod tests;
