//! Which leases are forgotten in which second.

use std::collections::BTreeMap;
use std::sync::Arc;

const SECONDS: u64 = 3_600;

/// The first and the last lease of a second, by slot.
#[derive(Clone, Copy)]
pub(crate) struct Bucket {
    pub(crate) first: u32,
    pub(crate) last: u32,
}

type Hour = BTreeMap<u64, Bucket>;

/// Buckets by second, an hour together. A snapshot shares the hours; whoever writes to a shared one copies
/// it first.
#[derive(Clone, Default)]
pub(crate) struct Buckets(BTreeMap<u64, Arc<Hour>>);

impl Buckets {
    pub(crate) fn get_mut(&mut self, second: u64) -> Option<&mut Bucket> {
        Arc::make_mut(self.0.get_mut(&(second / SECONDS))?).get_mut(&second)
    }

    pub(crate) fn insert(&mut self, second: u64, bucket: Bucket) {
        Arc::make_mut(self.0.entry(second / SECONDS).or_default()).insert(second, bucket);
    }

    pub(crate) fn remove(&mut self, second: u64) {
        let Some(hour) = self.0.get_mut(&(second / SECONDS)) else { return };
        let hour = Arc::make_mut(hour);
        hour.remove(&second);
        if hour.is_empty() {
            self.0.remove(&(second / SECONDS));
        }
    }

    pub(crate) fn first(&self) -> Option<(u64, Bucket)> {
        let (_, hour) = self.0.first_key_value()?;
        hour.first_key_value().map(|(second, bucket)| (*second, *bucket))
    }

    /// All buckets, in order of time.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Bucket> {
        self.0.values().flat_map(|hour| hour.values())
    }
}
