//! Leases that are known to hold no credit, so that completing them asks nobody about it.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use earmark_core::{LeaseId, NamespaceName};

/// So many leases make a generation, of which two are remembered.
const GENERATION_MAX: usize = 1 << 17;

type Leases = HashSet<(NamespaceName, LeaseId)>;

/// What a lease asks for never changes, so that what is remembered stays right. What is forgotten is only slower.
#[derive(Default)]
pub(super) struct Creditless(Mutex<Generations>);

#[derive(Default)]
struct Generations {
    young: Leases,
    old: Leases,
}

impl Creditless {
    /// Remembers a lease that was allowed and asks for limits only.
    pub(super) fn add(&self, namespace: &NamespaceName, lease: LeaseId) {
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if generations.young.len() >= GENERATION_MAX {
            generations.old = std::mem::take(&mut generations.young);
        }
        generations.young.insert((namespace.clone(), lease));
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
        let known = Creditless::default();
        for number in 0..3 * GENERATION_MAX {
            known.add(&namespace, lease(number));
        }
        assert!(!known.has(&namespace, lease(0)));
        assert!(known.has(&namespace, lease(2 * GENERATION_MAX)));
        assert!(known.has(&namespace, lease(3 * GENERATION_MAX - 1)));
        assert!(!known.has(&NamespaceName::new("team").unwrap(), lease(3 * GENERATION_MAX - 1)));
    }
}
