//! A hash for tables and fingerprints: fast, good enough where nobody gains from a collision.

/// Multiplies and folds the product, so that every bit of either reaches every bit of the result.
pub(crate) const fn fold(a: u64, b: u64) -> u64 {
    let product = (a as u128).wrapping_mul(b as u128);
    product as u64 ^ (product >> 64) as u64
}
