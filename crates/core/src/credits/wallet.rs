//! Wallets: the credit of one owner in one asset by terms, while the movements of a transaction are tried out.

use super::grant::{GRANTS_MAX, GrantTerms};

/// Plain credit and grants of one balance.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wallet {
    /// Plain credit, held amounts included; negative if owed.
    pub(crate) plain: i128,
    /// The held part of plain credit.
    pub(crate) plain_held: i128,
    /// The grants in spending order.
    pub(crate) grants: Vec<WalletGrant>,
}

/// A grant of a wallet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WalletGrant {
    pub(crate) terms: GrantTerms,
    /// The free amount before the transaction.
    pub(crate) before: i128,
    pub(crate) free: i128,
    /// Whether holds took from it or a plan will carry it over, so that it stays even when nothing is free.
    pub(crate) is_held: bool,
}

/// Why a movement is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WalletError {
    OutOfRange,
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
    pub(crate) fn deposit(&mut self, terms: GrantTerms, amount: i128) -> Result<(), WalletError> {
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
    pub(crate) fn withdraw(&mut self, amount: i128) -> Result<Vec<(GrantTerms, i128)>, WalletError> {
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

    /// Checks the number of grants after the transaction.
    pub(crate) fn check(&self) -> Result<(), WalletError> {
        let count = self.grants.iter().filter(|grant| grant.is_held || grant.free > 0).count();
        if count > GRANTS_MAX { Err(WalletError::TooManyGrants) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
