//! A bounded sketch of the heaviest keys of a stream: space-saving, with evictions in batches.
//!
//! A sketch counts up to twice [`COUNTERS`] keys exactly. When there are more, it keeps the heavier half and remembers the
//! largest count that it dropped, the floor. A key that comes back begins at the floor, which is then its error. All kept
//! counts are at least the floor, so the floor is at most the sum of all amounts divided by [`COUNTERS`].

use std::cmp::Reverse;
use std::collections::HashMap;

use earmark_admission::NameHash;
use earmark_core::LimitKey;

/// Keys that survive an eviction. A key with more than this part of all amounts is always in the sketch.
pub(super) const COUNTERS: usize = 100;

/// A count and the largest amount by which it may be too high.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) amount: u64,
    pub(crate) error: u64,
}

impl Count {
    pub(super) fn plus(self, other: Count) -> Count {
        let (amount, error) = (self.amount.saturating_add(other.amount), self.error.saturating_add(other.error));
        Count { amount, error }
    }
}

/// The heaviest keys of a stream.
#[derive(Debug, Default)]
pub(super) struct Sketch {
    counts: HashMap<LimitKey, Count, NameHash>,
    /// The largest count of a key that is not in the sketch.
    floor: u64,
}

impl Sketch {
    pub(super) fn add(&mut self, key: &LimitKey, amount: u64) {
        if let Some(count) = self.counts.get_mut(key) {
            count.amount = count.amount.saturating_add(amount);
            return;
        }
        let amount = self.floor.saturating_add(amount);
        self.counts.insert(key.clone(), Count { amount, error: self.floor });
        if self.counts.len() > COUNTERS * 2 {
            self.evict();
        }
    }

    /// Drops all but the heaviest keys. Of equal counts the first keys stay.
    fn evict(&mut self) {
        // Numbers are selected first: comparing keys costs far more, and only those at the edge need it.
        let mut amounts: Vec<u64> = self.counts.values().map(|count| count.amount).collect();
        let (_, floor, _) = amounts.select_nth_unstable_by_key(COUNTERS, |amount| Reverse(*amount));
        let floor = *floor;
        let mut ties: Vec<LimitKey> =
            self.counts.iter().filter(|(_, count)| count.amount == floor).map(|(key, _)| key.clone()).collect();
        let heavier = self.counts.values().filter(|count| count.amount > floor).count();
        // At least one of the ties is dropped, because the key at the edge is one of them.
        let (_, last, _) = ties.select_nth_unstable(COUNTERS - heavier);
        self.counts.retain(|key, count| count.amount > floor || count.amount == floor && *key < *last);
        self.floor = floor;
    }

    /// The count of a key. For a key that is not in the sketch, the floor, all of which is its error.
    pub(super) fn get(&self, key: &LimitKey) -> Count {
        self.counts.get(key).copied().unwrap_or(Count { amount: self.floor, error: self.floor })
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &LimitKey> {
        self.counts.keys()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A generator of test values: splitmix64.
    fn random(state: &mut u64) -> u64 {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 16
    }

    #[test]
    fn few_keys_are_counted_exactly() {
        let mut sketch = Sketch::default();
        let keys: Vec<LimitKey> = (0..COUNTERS).map(|number| LimitKey::new(&format!("k{number}")).unwrap()).collect();
        for round in 1..=3 {
            keys.iter().for_each(|key| sketch.add(key, round));
        }
        assert!(keys.iter().all(|key| sketch.get(key) == Count { amount: 6, error: 0 }));
    }

    /// For any stream: a count is never too low, too high by at most its error, the error is at most the sum of all
    /// amounts divided by the counters, and every heavier key is in the sketch.
    #[test]
    fn the_error_bounds_every_count_and_heavy_keys_are_never_missed() {
        for seed in 0..20_u64 {
            let (mut state, mut sketch) = (seed, Sketch::default());
            let mut exact: HashMap<LimitKey, u64> = HashMap::new();
            let mut sum = 0_u64;
            for _ in 0..20_000 {
                // Skewed: half of the amounts go to a few keys, the others to thousands.
                let wide = if random(&mut state).is_multiple_of(2) { 12 } else { 4_000 };
                let key = LimitKey::new(&format!("k{}", random(&mut state) % wide)).unwrap();
                let amount = 1 + random(&mut state) % 50;
                sketch.add(&key, amount);
                *exact.entry(key).or_default() += amount;
                sum += amount;
                assert!(sketch.counts.len() <= 2 * COUNTERS);
            }
            for (key, amount) in &exact {
                let count = sketch.get(key);
                assert!(count.amount >= *amount, "{key}: {count:?} of {amount}");
                assert!(count.amount - count.error <= *amount, "{key}: {count:?} of {amount}");
                assert!(count.error <= sum / COUNTERS as u64, "{key}: {count:?} of {sum}");
                assert!(*amount <= sum / COUNTERS as u64 || sketch.counts.contains_key(key), "{key} is missing");
            }
        }
    }
}
