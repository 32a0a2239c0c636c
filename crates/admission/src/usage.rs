//! Lists of limits with their usage: pages ordered by key, or the first limits by fullness or debt.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use earmark_core::{LimitKey, LimitUsage, UsageSort};

use crate::backend::BackendError;
use crate::writes::PAGE_MAX;

/// Which limits to list with their usage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageQuery {
    /// Only limits whose key begins like this.
    pub prefix: Option<LimitKey>,
    /// The order.
    pub sort: UsageSort,
    /// Only limits after this key: `next` of the previous page. Only where the order is by key.
    pub after: Option<LimitKey>,
    /// Limits on the page, 1 to [`PAGE_MAX`].
    pub page_size: usize,
}

impl Default for UsageQuery {
    fn default() -> UsageQuery {
        UsageQuery { prefix: None, sort: UsageSort::Key, after: None, page_size: PAGE_MAX }
    }
}

impl UsageQuery {
    /// Whether the whole list must be read, because any limit may be among the first.
    #[must_use]
    pub fn reads_all(&self) -> bool {
        self.sort != UsageSort::Key
    }

    /// Refuses a position in a list that has no pages.
    ///
    /// # Errors
    /// When it has `after`, and another order than by key.
    pub fn check(&self) -> Result<(), UsageError> {
        match (self.sort, &self.after) {
            (UsageSort::Key, _) | (_, None) => Ok(()),
            (sort, Some(after)) => Err(UsageError::AfterSorted { after: after.clone(), sort: sort.name() }),
        }
    }
}

/// Why there is no list of limits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UsageError {
    /// A position in a list without pages.
    #[error("after: found {after}, but a list sorted by {sort} has only one page; leave it out, or sort by key")]
    AfterSorted {
        /// The position.
        after: LimitKey,
        /// The order.
        sort: &'static str,
    },
    /// The usage of too many limits would have to be read from another system.
    #[error("sort: more than {max} limits match, too many to sort where usage is kept outside the Book; give a prefix")]
    TooManyToSort {
        /// The most limits that are sorted.
        max: usize,
    },
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// A list of limits with their usage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsagePage {
    /// The limits, in the order of the query.
    pub usage: Vec<LimitUsage>,
    /// `after` of the next page; `None` on the last one, and in another order than by key.
    pub next: Option<LimitKey>,
}

/// Collects a page from pieces of a list that is ordered by key. It keeps no more than the page.
pub(crate) struct UsageCollector {
    sort: UsageSort,
    page_size: usize,
    by_key: Vec<LimitUsage>,
    /// The first limits of another order. The greatest is the last of them.
    first: BinaryHeap<Ranked>,
}

impl UsageCollector {
    pub(crate) fn new(query: &UsageQuery) -> UsageCollector {
        let page_size = query.page_size.clamp(1, PAGE_MAX);
        UsageCollector { sort: query.sort, page_size, by_key: Vec::new(), first: BinaryHeap::new() }
    }

    /// The most limits of the next piece, at most `most`.
    pub(crate) fn piece(&self, most: usize) -> usize {
        match self.sort {
            UsageSort::Key => most.min(self.page_size.saturating_sub(self.by_key.len())),
            UsageSort::Fullness | UsageSort::Debt => most,
        }
    }

    pub(crate) fn add(&mut self, piece: Vec<LimitUsage>) {
        let rank: fn(&LimitUsage) -> Rank = match self.sort {
            UsageSort::Key => return self.by_key.extend(piece),
            UsageSort::Fullness => |limit| Rank::fullness(limit.usage.reserved, limit.usage.capacity),
            UsageSort::Debt => |limit| Rank { amount: limit.usage.debt, of: 1 },
        };
        for limit in piece {
            let ranked = Ranked { rank: Reverse(rank(&limit)), limit };
            if self.first.len() < self.page_size {
                self.first.push(ranked);
            } else if self.first.peek().is_some_and(|last| ranked < *last) {
                self.first.pop();
                self.first.push(ranked);
            }
        }
    }

    /// The page, if no further piece is needed. `next` is the position after the last piece.
    pub(crate) fn finish(&mut self, next: Option<&LimitKey>) -> Option<UsagePage> {
        let is_full = self.sort == UsageSort::Key && self.by_key.len() >= self.page_size;
        if next.is_some() && !is_full {
            return None;
        }
        let mut usage = std::mem::take(&mut self.by_key);
        let first = std::mem::take(&mut self.first).into_sorted_vec();
        usage.extend(first.into_iter().map(|ranked| ranked.limit));
        Some(UsagePage { usage, next: next.cloned() })
    }
}

/// An amount, or a share of a capacity.
#[derive(Clone, Copy, Debug)]
struct Rank {
    amount: u128,
    of: u64,
}

impl Rank {
    /// The reserved share. A limit without capacity, such as an empty account, is full: nothing can be reserved.
    fn fullness(reserved: u64, capacity: u64) -> Rank {
        match capacity {
            0 => Rank { amount: reserved.max(1).into(), of: 1 },
            capacity => Rank { amount: reserved.into(), of: capacity },
        }
    }
}

impl Ord for Rank {
    fn cmp(&self, other: &Rank) -> Ordering {
        if self.of == other.of {
            return self.amount.cmp(&other.amount);
        }
        // Shares have amounts of 64 bits, so the products fit.
        let product = |amount: u128, of: u64| amount.saturating_mul(of.into());
        product(self.amount, other.of).cmp(&product(other.amount, self.of))
    }
}

impl PartialOrd for Rank {
    fn partial_cmp(&self, other: &Rank) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Rank {
    fn eq(&self, other: &Rank) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Rank {}

/// A limit with its rank. A lower one comes earlier in the list; equal ranks are ordered by key.
struct Ranked {
    rank: Reverse<Rank>,
    limit: LimitUsage,
}

impl Ord for Ranked {
    fn cmp(&self, other: &Ranked) -> Ordering {
        self.rank.cmp(&other.rank).then_with(|| self.limit.key.cmp(&other.limit.key))
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Ranked) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ranked {
    fn eq(&self, other: &Ranked) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Ranked {}

#[cfg(test)]
mod tests {
    use earmark_core::{KindTag, LimitStatus, Usage};

    use super::*;

    fn limit(key: &str, reserved: u64, capacity: u64, debt: u128) -> LimitUsage {
        let available = capacity.saturating_sub(reserved);
        let usage = Usage { capacity, reserved, available, debt, status: LimitStatus::Active, paused_until: None };
        LimitUsage { key: key.parse().unwrap(), kind: KindTag::Rolling, usage }
    }

    fn keys(sort: UsageSort, page_size: usize, limits: &[LimitUsage]) -> Vec<String> {
        let mut collector = UsageCollector::new(&UsageQuery { sort, page_size, ..UsageQuery::default() });
        for limit in limits {
            collector.add(vec![limit.clone()]);
            assert!(collector.first.len() <= page_size);
        }
        let page = collector.finish(None).unwrap();
        page.usage.into_iter().map(|limit| limit.key.to_string()).collect()
    }

    #[test]
    fn a_list_has_the_fullest_first_and_equal_ones_by_key() {
        let limits = [
            limit("a", 0, 10, 7),
            limit("b", u64::MAX - 1, u64::MAX, 0),
            limit("c", 5, 10, u128::MAX),
            limit("d", 0, 0, 0),
            limit("e", 50, 100, 7),
            limit("f", u64::MAX, u64::MAX, 0),
        ];
        assert_eq!(keys(UsageSort::Fullness, 10, &limits), ["d", "f", "b", "c", "e", "a"]);
        assert_eq!(keys(UsageSort::Fullness, 3, &limits), ["d", "f", "b"]);
        assert_eq!(keys(UsageSort::Debt, 3, &limits), ["c", "a", "e"]);
        assert_eq!(keys(UsageSort::Debt, 1, &limits), ["c"]);
        assert_eq!(keys(UsageSort::Key, 10, &limits), ["a", "b", "c", "d", "e", "f"]);
    }

    #[test]
    fn only_a_list_by_key_has_further_pages() {
        let after = Some("a".parse().unwrap());
        for (sort, is_refused) in [(UsageSort::Key, false), (UsageSort::Fullness, true), (UsageSort::Debt, true)] {
            let query = UsageQuery { sort, after: after.clone(), ..UsageQuery::default() };
            assert_eq!(query.check().is_err(), is_refused, "{sort:?}");
            assert_eq!(UsageSort::from_name(sort.name()), Some(sort));
        }
    }
}
