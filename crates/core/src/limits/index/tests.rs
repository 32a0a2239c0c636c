use std::collections::BTreeMap;

use super::*;
use crate::time::UnixMs;

fn lease(number: u64) -> LeaseId {
    LeaseId::from_parts(UnixMs::new(1), u128::from(number))
}

fn position_of(index: &Index, number: u64) -> Option<CellPosition> {
    let hash = index.hash(NamespaceId::DEFAULT, lease(number));
    index.find(hash, |found| found == Reference::record(number as u32)).map(|(position, _)| position)
}

#[test]
fn what_was_put_in_is_found_until_it_is_taken_out() {
    let mut index = Index::new(7);
    let mut held = BTreeMap::new();
    let mut random = 1_u64;
    for _ in 0..300_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let number = (random >> 33) % 40_000;
        match position_of(&index, number) {
            Some(position) => {
                assert!(held.remove(&number).is_some());
                index.remove(position);
                assert!(position_of(&index, number).is_none());
            }
            None => {
                assert!(held.insert(number, ()).is_none());
                let hash = index.hash(NamespaceId::DEFAULT, lease(number));
                index.insert(hash, Reference::record(number as u32));
            }
        }
    }
    for number in 0..40_000 {
        assert_eq!(position_of(&index, number).is_some(), held.contains_key(&number), "{number}");
    }
    assert_eq!(index.segments.iter().map(|segment| segment.used).sum::<usize>(), held.len());
}

#[test]
fn one_lease_in_two_namespaces_is_two() {
    let index = Index::new(7);
    assert_ne!(index.hash(NamespaceId(0), lease(1)).0, index.hash(NamespaceId(1), lease(1)).0);
}

#[test]
fn a_reference_tells_a_record_from_a_tombstone() {
    assert_eq!(Reference::record(5).found(), Found::Record(5));
    assert_eq!(Reference::tombstone(5).found(), Found::Tombstone(5));
    let mut index = Index::new(7);
    let hash = index.hash(NamespaceId::DEFAULT, lease(5));
    index.insert(hash, Reference::record(5));
    let position = position_of(&index, 5).unwrap();
    index.replace(position, Reference::tombstone(9));
    assert_eq!(index.find(hash, |_| true).unwrap().1, Reference::tombstone(9));
}
