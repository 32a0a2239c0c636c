//! Bounded sets of leases that this process reserved.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use earmark_core::{LeaseId, NamespaceName};

/// Leases per generation. Two generations are kept, so a set is bounded at 262,144 leases.
const GENERATION_MAX: usize = 1 << 17;

type Leases = HashSet<(NamespaceName, LeaseId)>;

/// The latest leases of a kind. A lease that was evicted only costs a lookup.
#[derive(Default)]
pub(super) struct LeaseSet(Mutex<Generations>);

/// Two generations of leases. When the young one is full, the old one is dropped.
#[derive(Default)]
struct Generations {
    young: Leases,
    old: Leases,
}

impl LeaseSet {
    pub(super) fn add(&self, namespace: &NamespaceName, lease: LeaseId) {
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if generations.young.len() >= GENERATION_MAX {
            generations.old = std::mem::take(&mut generations.young);
        }
        generations.young.insert((namespace.clone(), lease));
    }

    pub(super) fn remove(&self, namespace: &NamespaceName, lease: LeaseId) {
        let key = (namespace.clone(), lease);
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        generations.young.remove(&key);
        generations.old.remove(&key);
    }

    pub(super) fn has(&self, namespace: &NamespaceName, lease: LeaseId) -> bool {
        let key = (namespace.clone(), lease);
        let generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        generations.young.contains(&key) || generations.old.contains(&key)
    }
}

#[cfg(test)]
mod tests {
    use earmark_core::UnixMs;

    use super::*;

    #[test]
    fn the_latest_leases_are_remembered_and_the_oldest_make_room() {
        let namespace = NamespaceName::new(NamespaceName::DEFAULT).unwrap();
        let lease = |number: usize| LeaseId::from_parts(UnixMs::new(7), number as u128);
        let known = LeaseSet::default();
        for number in 0..3 * GENERATION_MAX {
            known.add(&namespace, lease(number));
        }
        assert!(!known.has(&namespace, lease(0)));
        assert!(known.has(&namespace, lease(2 * GENERATION_MAX)));
        assert!(known.has(&namespace, lease(3 * GENERATION_MAX - 1)));
        assert!(!known.has(&NamespaceName::new("team").unwrap(), lease(3 * GENERATION_MAX - 1)));
        for number in [2 * GENERATION_MAX, 3 * GENERATION_MAX - 1] {
            known.remove(&namespace, lease(number));
            assert!(!known.has(&namespace, lease(number)));
        }
    }
}
