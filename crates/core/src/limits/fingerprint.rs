//! Fingerprints: hashes of a lease's requirements, by which a retry is compared with its first attempt.
//!
//! They hash names, not slots, because a slot may have another owner when the retry arrives. They are stored, so they
//! must never change.

use crate::book::NamespaceId;
use crate::hash::fold;
use crate::id::LimitKey;

/// The hash of a limit's name. Not seeded: it is part of snapshots through the fingerprints. Half of the hash is kept,
/// because every limit stores it.
pub(crate) fn key_hash(namespace: NamespaceId, key: &LimitKey) -> u32 {
    (name_hash(namespace, key) >> 32) as u32
}

fn name_hash(namespace: NamespaceId, key: &LimitKey) -> u64 {
    let key = key.as_str();
    let start = u64::from(namespace.0) ^ 0x243f_6a88_85a3_08d3;
    let mut hash = fold(start, key.len() as u64 ^ 0x9e37_79b9_7f4a_7c15);
    for bytes in key.as_bytes().chunks(8) {
        let mut word = [0_u8; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        hash = fold(hash ^ u64::from_le_bytes(word), 0xa076_1d64_78bd_642f) ^ hash.rotate_left(23);
    }
    fold(hash, 0xe703_7ed1_a0b4_28db)
}

/// The fingerprint of requirements, each as [`key_hash`] and amount, in any order.
pub(crate) fn fingerprint(parts: impl Iterator<Item = (u32, u64)>) -> u64 {
    parts.fold(FINGERPRINT_OF_NONE, |sum, (hash, amount)| sum.wrapping_add(fingerprint_of_part(hash, amount)))
}

/// The fingerprint of no requirements.
pub(crate) const FINGERPRINT_OF_NONE: u64 = 0x13198a2e_03707344;

/// The share of one requirement in a [`fingerprint`].
#[inline]
pub(crate) fn fingerprint_of_part(hash: u32, amount: u64) -> u64 {
    let mixed = fold(u64::from(hash) ^ 0x4528_21e6_38d0_1377, 0xbe54_66cf_34e9_0c6c);
    fold(mixed ^ amount, 0x9fb2_1c65_1e98_df25)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn hash(namespace: u16, key: &str) -> u64 {
        name_hash(NamespaceId(namespace), &LimitKey::new(key).unwrap())
    }

    #[test]
    fn names_of_any_length_and_namespace_have_different_hashes() {
        let mut seen = BTreeSet::new();
        for number in 0..20_000 {
            for key in [format!("u:{number}"), format!("user:{number:022}:tpm")] {
                for namespace in [0, 1, 256] {
                    assert!(seen.insert(hash(namespace, &key)), "{namespace} {key}");
                }
            }
        }
        for len in 1..40 {
            assert!(seen.insert(hash(0, &"a".repeat(len))), "{len}");
        }
    }

    #[test]
    fn a_fingerprint_does_not_depend_on_the_order_and_depends_on_every_amount() {
        let hash = |namespace, key| key_hash(NamespaceId(namespace), &LimitKey::new(key).unwrap());
        let parts = [(hash(0, "rpm"), 1), (hash(0, "tpm"), 500), (hash(1, "rpm"), 1)];
        let of = |parts: &[(u32, u64)]| fingerprint(parts.iter().copied());
        let mut seen: BTreeSet<u64> = [of(&parts)].into();
        let mut turned = parts;
        turned.reverse();
        assert!(!seen.insert(of(&turned)));
        assert!(seen.insert(of(&parts[..2])));
        for place in 0..parts.len() {
            for amount in [0, 2, 501, u64::MAX] {
                let mut other = parts;
                other[place].1 = amount;
                assert!(seen.insert(of(&other)), "{place} {amount}");
            }
        }
        // Amounts exchanged between limits.
        assert!(seen.insert(of(&[(parts[0].0, 500), (parts[1].0, 1), parts[2]])));
    }
}
