//! Values that few leases have, in tables of their own, so that a lease without one costs nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::book::NamespaceId;
use crate::id::LeaseId;

/// Values in one chunk. A chunk that a snapshot shares is copied before a write, so this bounds the copy.
const CHUNK_MAX: usize = 256;

type Key = (LeaseId, NamespaceId);
type Chunk<T> = Vec<(Key, T)>;

/// Values by lease, in sorted chunks. Each chunk is filed under a lower bound of its leases.
#[derive(Clone)]
pub(crate) struct ByLease<T>(BTreeMap<Key, Arc<Chunk<T>>>);

impl<T> Default for ByLease<T> {
    fn default() -> ByLease<T> {
        ByLease(BTreeMap::new())
    }
}

impl<T: Clone> ByLease<T> {
    pub(crate) fn get(&self, namespace: NamespaceId, lease: LeaseId) -> Option<&T> {
        let (_, chunk) = self.0.range(..=(lease, namespace)).next_back()?;
        let position = find(chunk, (lease, namespace)).ok()?;
        chunk.get(position).map(|(_, value)| value)
    }

    /// Adds the value of a lease that has none.
    pub(crate) fn insert(&mut self, namespace: NamespaceId, lease: LeaseId, value: T) {
        let key = (lease, namespace);
        if self.0.range(..=key).next_back().is_none() {
            self.0.insert(Key::default(), Arc::new(Vec::new()));
        }
        let Some((_, chunk)) = self.0.range_mut(..=key).next_back() else { return };
        let chunk = Arc::make_mut(chunk);
        let Err(position) = find(chunk, key) else { return };
        chunk.insert(position, (key, value));
        if chunk.len() > CHUNK_MAX {
            let rest = chunk.split_off(CHUNK_MAX / 2);
            if let Some(&(first, _)) = rest.first() {
                self.0.insert(first, Arc::new(rest));
            }
        }
    }

    pub(crate) fn remove(&mut self, namespace: NamespaceId, lease: LeaseId) {
        let key = (lease, namespace);
        let Some((&bound, chunk)) = self.0.range_mut(..=key).next_back() else { return };
        let Ok(position) = find(chunk, key) else { return };
        let chunk = Arc::make_mut(chunk);
        chunk.remove(position);
        if chunk.is_empty() {
            self.0.remove(&bound);
        }
    }

    /// All values, ordered by lease.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (NamespaceId, LeaseId, &T)> {
        let all = self.0.values().flat_map(|chunk| chunk.iter());
        all.map(|((lease, namespace), value)| (*namespace, *lease, value))
    }

    pub(crate) fn last(&self) -> Option<(NamespaceId, LeaseId)> {
        let ((lease, namespace), _) = self.0.values().next_back()?.last()?;
        Some((*namespace, *lease))
    }
}

fn find<T>(chunk: &Chunk<T>, key: Key) -> Result<usize, usize> {
    chunk.binary_search_by(|(found, _)| found.cmp(&key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::JobId;

    type Jobs = ByLease<JobId>;

    use crate::time::UnixMs;

    fn lease(number: u64) -> LeaseId {
        LeaseId::from_parts(UnixMs::new(number % 7), number.into())
    }

    fn job(number: u64) -> JobId {
        JobId::new(&format!("job-{number}")).unwrap()
    }

    #[test]
    fn jobs_are_found_in_any_order_of_insertion_and_removal_and_a_copy_keeps_its_own() {
        let mut jobs = Jobs::default();
        let numbers: Vec<u64> = (0..5_000).map(|number| number * 2_654_435_761 % 5_003).collect();
        for &number in &numbers {
            jobs.insert(NamespaceId(1), lease(number), job(number));
        }
        let copy = jobs.clone();
        assert!(jobs.0.values().all(|chunk| !chunk.is_empty() && chunk.len() <= CHUNK_MAX));
        for &number in numbers.iter().step_by(2) {
            jobs.remove(NamespaceId(1), lease(number));
            jobs.remove(NamespaceId(1), lease(number));
        }
        for (place, &number) in numbers.iter().enumerate() {
            let expected = (place % 2 == 1).then(|| job(number));
            assert_eq!(jobs.get(NamespaceId(1), lease(number)), expected.as_ref());
            assert_eq!(copy.get(NamespaceId(1), lease(number)), Some(&job(number)));
            assert_eq!(copy.get(NamespaceId(0), lease(number)), None);
        }
        let all: Vec<LeaseId> = copy.iter().map(|(_, lease, _)| lease).collect();
        assert!(all.is_sorted());
        assert_eq!((all.len(), copy.last()), (5_000, all.last().map(|lease| (NamespaceId(1), *lease))));
        for &number in &numbers {
            jobs.remove(NamespaceId(1), lease(number));
        }
        assert!(jobs.0.is_empty());
    }

    #[test]
    fn the_first_job_of_a_lease_stays() {
        let mut jobs = Jobs::default();
        jobs.insert(NamespaceId(0), lease(1), job(1));
        jobs.insert(NamespaceId(0), lease(1), job(2));
        assert_eq!(jobs.get(NamespaceId(0), lease(1)), Some(&job(1)));
    }
}
