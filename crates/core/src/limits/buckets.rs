//! Queues of leases or holds by the second in which they are due.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::slab::NONE;

const SECONDS: u64 = 3_600;
/// Buckets that are kept outside of the map. Leases that are added together end in few different seconds.
const RECENT: usize = 8;

/// The first and last slot of the linked list of one second.
#[derive(Clone, Copy)]
pub(crate) struct Bucket {
    pub(crate) first: u32,
    pub(crate) last: u32,
}

/// The buckets of one hour, by second.
type Hour = BTreeMap<u64, Bucket>;

/// Buckets by second, grouped by hour. A snapshot shares the hours; a write to a shared hour copies it first.
#[derive(Clone, Default)]
pub(crate) struct Buckets {
    hours: BTreeMap<u64, Arc<Hour>>,
    /// Buckets that were used lately, by second modulo their number. They replace those of the map.
    recent: [Option<(u64, Bucket)>; RECENT],
    /// An empty bucket that is still in the map, because the next lease probably needs it again. It counts as
    /// removed.
    spare: Option<u64>,
    /// No bucket is earlier. Most commands need no more to know that nothing is due.
    earliest: u64,
}

impl Buckets {
    fn recent(&self, second: u64) -> Option<&Bucket> {
        let (found, bucket) = self.recent[second as usize % RECENT].as_ref()?;
        (*found == second).then_some(bucket)
    }

    fn in_map(&mut self, second: u64) -> Option<&mut Bucket> {
        Arc::make_mut(self.hours.get_mut(&(second / SECONDS))?).get_mut(&second)
    }

    pub(crate) fn get_mut(&mut self, second: u64) -> Option<&mut Bucket> {
        if self.recent(second).is_none() {
            if self.spare == Some(second) {
                return None;
            }
            let bucket = *self.hours.get(&(second / SECONDS))?.get(&second)?;
            self.set_recent(second, bucket);
        }
        self.recent[second as usize % RECENT].as_mut().map(|(_, bucket)| bucket)
    }

    /// Keeps a bucket that is in the map outside of it.
    fn set_recent(&mut self, second: u64, bucket: Bucket) {
        let before = self.recent[second as usize % RECENT].replace((second, bucket));
        if let Some((before, bucket)) = before.filter(|(before, _)| *before != second)
            && let Some(found) = self.in_map(before)
        {
            *found = bucket;
        }
    }

    /// Appends a slot to the list of a second. Returns the slot that was the last one.
    #[inline]
    pub(crate) fn append(&mut self, second: u64, slot: u32) -> u32 {
        if let Some((found, bucket)) = &mut self.recent[second as usize % RECENT]
            && *found == second
        {
            return std::mem::replace(&mut bucket.last, slot);
        }
        self.append_to_any(second, slot)
    }

    #[inline(never)]
    fn append_to_any(&mut self, second: u64, slot: u32) -> u32 {
        match self.get_mut(second) {
            Some(bucket) => std::mem::replace(&mut bucket.last, slot),
            None => {
                self.insert(second, Bucket { first: slot, last: slot });
                NONE
            }
        }
    }

    fn insert(&mut self, second: u64, bucket: Bucket) {
        self.spare = self.spare.filter(|spare| *spare != second);
        self.earliest = self.earliest.min(second);
        Arc::make_mut(self.hours.entry(second / SECONDS).or_default()).insert(second, bucket);
        self.set_recent(second, bucket);
    }

    pub(crate) fn remove(&mut self, second: u64) {
        if self.recent(second).is_some() {
            self.recent[second as usize % RECENT] = None;
        }
        let Some(second) = self.spare.replace(second).filter(|spare| *spare != second) else { return };
        let Some(hour) = self.hours.get_mut(&(second / SECONDS)) else { return };
        let hour = Arc::make_mut(hour);
        hour.remove(&second);
        if hour.is_empty() {
            self.hours.remove(&(second / SECONDS));
        }
    }

    /// The earliest bucket, if its second is due. Every command asks for it, so it remembers when to look again.
    #[inline]
    pub(crate) fn first_due(&mut self, is_due: impl Fn(u64) -> bool) -> Option<Bucket> {
        if is_due(self.earliest) { self.first_of_any(is_due) } else { None }
    }

    #[inline(never)]
    fn first_of_any(&mut self, is_due: impl Fn(u64) -> bool) -> Option<Bucket> {
        let first = self.first();
        self.earliest = first.map_or(u64::MAX, |(second, _)| second);
        first.filter(|(second, _)| is_due(*second)).map(|(_, bucket)| bucket)
    }

    /// The earliest bucket.
    pub(crate) fn first(&self) -> Option<(u64, Bucket)> {
        let (_, hour) = self.hours.first_key_value()?;
        let first = hour.first_key_value().filter(|(second, _)| self.spare != Some(**second));
        let (second, bucket) = first.or_else(|| self.seconds().next())?;
        Some((*second, *self.recent(*second).unwrap_or(bucket)))
    }

    /// All buckets, ordered by second.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Bucket> {
        self.seconds().map(|(second, bucket)| self.recent(*second).unwrap_or(bucket))
    }

    fn seconds(&self) -> impl Iterator<Item = (&u64, &Bucket)> {
        let all = self.hours.values().flat_map(|hour| hour.iter());
        all.filter(|(second, _)| self.spare != Some(**second))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(buckets: &Buckets) -> Vec<(u32, u32)> {
        buckets.iter().map(|bucket| (bucket.first, bucket.last)).collect()
    }

    #[test]
    fn buckets_are_those_of_a_plain_map_whatever_was_used_last_and_a_copy_keeps_its_own() {
        let (mut buckets, mut model) = (Buckets::default(), BTreeMap::new());
        let (mut random, mut copies) = (7_u64, Vec::new());
        for slot in 0..30_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let second = SECONDS - 10 + (random >> 33) % [3, 20, 9_000][slot as usize % 3];
            if (random >> 20) % 4 == 0 && model.contains_key(&second) {
                model.remove(&second);
                buckets.remove(second);
            } else {
                let before = model.get(&second).map(|(_, last)| *last);
                let first = model.get(&second).map_or(slot, |(first, _)| *first);
                model.insert(second, (first, slot));
                assert_eq!(buckets.append(second, slot), before.unwrap_or(NONE));
            }
            let due = SECONDS - 10 + (random >> 45) % 9_000;
            let first = model.first_key_value().filter(|(second, _)| **second <= due).map(|(_, (first, _))| *first);
            assert_eq!(buckets.first_due(|second| second <= due).map(|bucket| bucket.first), first);
            if slot % 1_000 == 0 {
                assert_eq!(content(&buckets), model.values().copied().collect::<Vec<_>>());
                copies.push((buckets.clone(), content(&buckets)));
            }
        }
        assert!(copies.iter().all(|(copy, expected)| content(copy) == *expected));
    }

    #[test]
    fn a_bucket_is_changed_where_it_is() {
        let mut buckets = Buckets::default();
        (0..100).for_each(|second| _ = buckets.append(second, second as u32));
        for second in 0..100 {
            buckets.get_mut(second).unwrap().first = 1_000;
        }
        assert!(content(&buckets).iter().zip(0..).all(|(bucket, last)| *bucket == (1_000, last)));
        assert!(buckets.get_mut(100).is_none());
    }
}
