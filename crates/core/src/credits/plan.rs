//! Planning: which postings an entry consumes and creates.
//!
//! Planning is independent of the store. An entry is planned per owner and asset: the sum of all its movements is one
//! change, which results in one posting.

/// The maximum number of small postings that an entry consumes beyond those it needs, so that they do not pile up.
pub const SWEEP_MAX: usize = 3;

/// Whether withdrawals may make a balance negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overdraft {
    /// No.
    #[default]
    Deny,
    /// Yes.
    Allow,
    /// Reserves, transfers and retirements may take it down to minus this amount. Settlements may take it lower.
    Limit(u64),
}

impl Overdraft {
    /// The lowest balance that a reserve, transfer or retirement may leave.
    #[must_use]
    pub fn floor(self) -> i128 {
        match self {
            Overdraft::Deny => 0,
            Overdraft::Allow => i128::MIN,
            Overdraft::Limit(limit) => i128::from(limit).saturating_neg(),
        }
    }

    /// Whether settlements may take a balance below zero. A cap does not bound them.
    #[must_use]
    pub const fn settles_below_zero(self) -> bool {
        match self {
            Overdraft::Deny => false,
            Overdraft::Allow | Overdraft::Limit(_) => true,
        }
    }
}

/// Why an entry is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// A sum does not fit an `i128`.
    OutOfRange,
    /// The owner has too little.
    Insufficient {
        /// The missing amount.
        missing: u128,
    },
}

/// A live posting of one owner and asset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posting<I> {
    /// The store's id of the posting.
    pub id: I,
    /// The amount; negative if owed.
    pub amount: i128,
}

/// The change of one owner's postings of one asset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice<I> {
    /// The postings that are consumed.
    pub inputs: Vec<I>,
    /// The posting that is created, unless its amount is 0.
    pub output: Option<i128>,
}

/// The net changes of an entry, ordered by key. Independent of the order of its movements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Net<K> {
    changes: Vec<(K, i128)>,
}

impl<K: Ord + Copy> Net<K> {
    /// Adds to the change of a key.
    ///
    /// # Errors
    /// The sum is out of range.
    pub fn add(&mut self, key: K, amount: i128) -> Result<(), PlanError> {
        match self.changes.binary_search_by(|(known, _)| known.cmp(&key)) {
            Ok(position) => {
                let sum = &mut self.changes[position].1;
                *sum = sum.checked_add(amount).ok_or(PlanError::OutOfRange)?;
            }
            Err(position) => self.changes.insert(position, (key, amount)),
        }
        Ok(())
    }

    /// The change of a key.
    #[must_use]
    pub fn get(&self, key: K) -> i128 {
        self.changes.binary_search_by(|(known, _)| known.cmp(&key)).map_or(0, |position| self.changes[position].1)
    }

    /// All keys, also those whose changes add up to zero, in order.
    pub fn keys(&self) -> impl Iterator<Item = K> + '_ {
        self.changes.iter().map(|(key, _)| *key)
    }

    /// All changes but zeros, ordered by key.
    pub fn iter(&self) -> impl Iterator<Item = (K, i128)> + '_ {
        self.changes.iter().copied().filter(|(_, amount)| *amount != 0)
    }

    /// Removes all changes.
    pub fn clear(&mut self) {
        self.changes.clear();
    }
}

/// The balance after a change, if the overdraft rule allows it.
///
/// # Errors
/// The balance is too low, or the result is out of range.
pub fn after(balance: i128, change: i128, overdraft: Overdraft) -> Result<i128, PlanError> {
    let after = balance.checked_add(change).ok_or(PlanError::OutOfRange)?;
    let floor = overdraft.floor();
    if change < 0 && after < floor {
        return Err(PlanError::Insufficient { missing: floor.abs_diff(after) });
    }
    Ok(after)
}

/// Chooses the postings to consume: all negative ones; for a withdrawal also enough of the largest others, then up to
/// [`SWEEP_MAX`] of the smallest.
///
/// # Errors
/// The owner has too little, or a sum is out of range.
pub fn choose<I: Copy>(postings: &[Posting<I>], change: i128, overdraft: Overdraft) -> Result<Choice<I>, PlanError> {
    let (owed, mut owned): (Vec<&Posting<I>>, Vec<&Posting<I>>) =
        postings.iter().partition(|posting| posting.amount < 0);
    let mut inputs: Vec<I> = owed.iter().map(|posting| posting.id).collect();
    let mut sum = change;
    for posting in owed {
        sum = sum.checked_add(posting.amount).ok_or(PlanError::OutOfRange)?;
    }
    if change < 0 {
        owned.sort_by_key(|posting| std::cmp::Reverse(posting.amount));
        let mut left = owned.iter();
        while sum < 0
            && let Some(posting) = left.next()
        {
            sum = sum.checked_add(posting.amount).ok_or(PlanError::OutOfRange)?;
            inputs.push(posting.id);
        }
        for posting in left.rev().take(SWEEP_MAX) {
            sum = sum.checked_add(posting.amount).ok_or(PlanError::OutOfRange)?;
            inputs.push(posting.id);
        }
        if sum < overdraft.floor() {
            return Err(PlanError::Insufficient { missing: overdraft.floor().abs_diff(sum) });
        }
    }
    Ok(Choice { inputs, output: Some(sum).filter(|sum| *sum != 0) })
}

#[cfg(test)]
mod tests;
