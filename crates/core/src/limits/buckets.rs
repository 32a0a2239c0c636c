//! Queues of leases or holds by the second in which they are due.

use std::collections::BTreeMap;
use std::sync::Arc;

const SECONDS: u64 = 3_600;

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
    /// An empty bucket that is still in the map, because the next lease probably needs it again. It counts as
    /// removed.
    spare: Option<u64>,
}

impl Buckets {
    pub(crate) fn get_mut(&mut self, second: u64) -> Option<&mut Bucket> {
        if self.spare == Some(second) {
            return None;
        }
        Arc::make_mut(self.hours.get_mut(&(second / SECONDS))?).get_mut(&second)
    }

    pub(crate) fn insert(&mut self, second: u64, bucket: Bucket) {
        self.spare = self.spare.filter(|spare| *spare != second);
        Arc::make_mut(self.hours.entry(second / SECONDS).or_default()).insert(second, bucket);
    }

    pub(crate) fn remove(&mut self, second: u64) {
        let Some(second) = self.spare.replace(second).filter(|spare| *spare != second) else { return };
        let Some(hour) = self.hours.get_mut(&(second / SECONDS)) else { return };
        let hour = Arc::make_mut(hour);
        hour.remove(&second);
        if hour.is_empty() {
            self.hours.remove(&(second / SECONDS));
        }
    }

    /// The earliest bucket. Every command asks for it, so the common case does not iterate.
    pub(crate) fn first(&self) -> Option<(u64, Bucket)> {
        let (_, hour) = self.hours.first_key_value()?;
        let first = hour.first_key_value().filter(|(second, _)| self.spare != Some(**second));
        first.or_else(|| self.seconds().next()).map(|(second, bucket)| (*second, *bucket))
    }

    /// All buckets, ordered by second.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Bucket> {
        self.seconds().map(|(_, bucket)| bucket)
    }

    fn seconds(&self) -> impl Iterator<Item = (&u64, &Bucket)> {
        let all = self.hours.values().flat_map(|hour| hour.iter());
        all.filter(|(second, _)| self.spare != Some(**second))
    }
}
