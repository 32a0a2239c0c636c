//! Values that many requests share, found by key. A value lives as long as somebody refers to it.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Fewest values at which unused ones are swept. Later sweeps come when the number in use has doubled.
const SWEEP_MIN: usize = 1_024;

/// A map of shared values.
#[derive(Debug)]
pub(crate) struct SharedMap<K, V>(Mutex<Inner<K, V>>);

#[derive(Debug)]
struct Inner<K, V> {
    by_key: HashMap<K, Weak<V>>,
    in_use: usize,
}

impl<K, V> Default for SharedMap<K, V> {
    fn default() -> SharedMap<K, V> {
        SharedMap(Mutex::new(Inner { by_key: HashMap::new(), in_use: 0 }))
    }
}

impl<K: Eq + Hash, V> SharedMap<K, V> {
    /// The value of a key. `make` makes it if nobody refers to one.
    pub(crate) fn get<Q>(&self, key: &Q, make: impl FnOnce() -> V) -> Arc<V>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ToOwned<Owned = K> + ?Sized,
    {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = map.by_key.get(key).and_then(Weak::upgrade) {
            return value;
        }
        if map.by_key.len() >= SWEEP_MIN.max(map.in_use.saturating_mul(2)) {
            map.by_key.retain(|_, value| value.strong_count() > 0);
            map.in_use = map.by_key.len();
        }
        let value = Arc::new(make());
        map.by_key.insert(key.to_owned(), Arc::downgrade(&value));
        value
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().by_key.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_values_are_swept() {
        let map: SharedMap<u32, u32> = SharedMap::default();
        let kept = map.get(&0, || 7);
        (1..10 * SWEEP_MIN as u32).for_each(|number| drop(map.get(&number, || number)));
        assert!(map.len() <= 2 * SWEEP_MIN, "{}", map.len());
        assert!(Arc::ptr_eq(&kept, &map.get(&0, || 8)));
    }
}
