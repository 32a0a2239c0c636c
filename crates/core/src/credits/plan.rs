//! Planning: which postings an entry consumes, and which it creates.
//!
//! Nothing here knows where postings are kept. An entry is planned per owner and asset: what all its
//! movements together add or take away is one change, and the change has one posting as its result.

/// The smallest positive postings that an entry sweeps up besides those it needs, so that they do not pile up.
pub const SWEEP_MAX: usize = 3;

/// Whether an account may go below zero by what is taken from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Overdraft {
    /// It may not.
    #[default]
    Deny = 1,
    /// It may.
    Allow = 2,
}

/// Why an entry cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// A sum is beyond what an `i128` can count.
    OutOfRange,
    /// The owner has too little.
    Insufficient {
        /// How much is missing.
        missing: u128,
    },
}

/// A live posting of one owner and asset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posting<I> {
    /// What its keeper knows it by.
    pub id: I,
    /// How much; below zero if it is owed.
    pub amount: i128,
}

/// What becomes of one owner's postings of one asset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice<I> {
    /// The postings that are consumed.
    pub inputs: Vec<I>,
    /// The posting that is created, if it is not zero: what is left, what is owed, or what was added.
    pub output: Option<i128>,
}

/// What an entry changes, by key, in order of key: sums that no order of its movements can alter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Net<K> {
    changes: Vec<(K, i128)>,
}

impl<K: Ord + Copy> Net<K> {
    /// Adds to the change of one key.
    ///
    /// # Errors
    /// When the sum is out of range.
    pub fn add(&mut self, key: K, amount: i128) -> Result<(), PlanError> {
        match self.changes.binary_search_by(|(known, _)| known.cmp(&key)) {
            Ok(place) => {
                let sum = &mut self.changes[place].1;
                *sum = sum.checked_add(amount).ok_or(PlanError::OutOfRange)?;
            }
            Err(place) => self.changes.insert(place, (key, amount)),
        }
        Ok(())
    }

    /// The change of one key.
    #[must_use]
    pub fn get(&self, key: K) -> i128 {
        self.changes.binary_search_by(|(known, _)| known.cmp(&key)).map_or(0, |place| self.changes[place].1)
    }

    /// All changes that are not zero, in order of key.
    pub fn iter(&self) -> impl Iterator<Item = (K, i128)> + '_ {
        self.changes.iter().copied().filter(|(_, amount)| *amount != 0)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.changes.clear();
    }
}

/// What an owner of `balance` has after a change, if it may have that.
///
/// # Errors
/// When the change takes more than there is, or the result is out of range.
pub fn after(balance: i128, change: i128, overdraft: Overdraft) -> Result<i128, PlanError> {
    let after = balance.checked_add(change).ok_or(PlanError::OutOfRange)?;
    if change < 0 && after < 0 && overdraft == Overdraft::Deny {
        return Err(PlanError::Insufficient { missing: after.unsigned_abs() });
    }
    Ok(after)
}

/// Chooses the postings that a change consumes: all that are owed, then, if it takes something away, enough of
/// the largest others, and then a few of the smallest.
///
/// # Errors
/// When the owner has too little, or a sum is out of range.
pub fn choose<I: Copy>(
    postings: &[Posting<I>],
    change: i128,
    overdraft: Overdraft,
) -> Result<Choice<I>, PlanError> {
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
        if sum < 0 && overdraft == Overdraft::Deny {
            return Err(PlanError::Insufficient { missing: sum.unsigned_abs() });
        }
    }
    Ok(Choice { inputs, output: Some(sum).filter(|sum| *sum != 0) })
}

#[cfg(test)]
mod tests;
