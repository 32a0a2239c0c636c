//! The mixing function of hash tables and fingerprints. It is fast and not cryptographic.

/// Multiplies to 128 bits and folds the halves, so that every input bit affects every output bit.
pub(crate) const fn fold(a: u64, b: u64) -> u64 {
    let product = (a as u128).wrapping_mul(b as u128);
    product as u64 ^ (product >> 64) as u64
}
