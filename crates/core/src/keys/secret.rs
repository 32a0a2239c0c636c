//! The hash of an API key's secret.

use std::fmt;
use std::hint::black_box;

use sha2::{Digest, Sha256};

/// The SHA-256 of the secret part of a key. A secret has 256 random bits, so it needs neither salt nor a slow hash.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SecretHash([u8; 32]);

impl SecretHash {
    /// Compared with the secret of an unknown key id. No secret has this hash.
    pub(crate) const UNKNOWN_KEY: SecretHash = SecretHash([0; 32]);

    /// The hash of a secret.
    #[must_use]
    pub fn of(secret: &[u8]) -> SecretHash {
        SecretHash(Sha256::digest(secret).into())
    }

    /// Wraps a stored hash.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> SecretHash {
        SecretHash(bytes)
    }

    /// The hash bytes, for storage.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Compares in constant time.
    #[must_use]
    pub fn is(&self, other: &SecretHash) -> bool {
        let differ = self.0.iter().zip(&other.0).fold(0_u8, |differ, (a, b)| black_box(differ | (a ^ b)));
        black_box(differ) == 0
    }
}

/// Hides the hash from logs.
impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretHash(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_the_same_only_if_every_bit_is() {
        let hash = SecretHash::of(b"secret");
        assert!(hash.is(&SecretHash::of(b"secret")));
        for position in 0..32 {
            for bit in 0..8 {
                let mut other = *hash.as_bytes();
                other[position] ^= 1 << bit;
                assert!(!hash.is(&SecretHash::from_bytes(other)));
            }
        }
    }

    #[test]
    fn nothing_of_a_hash_shows_when_it_is_printed() {
        assert_eq!(format!("{:?}", SecretHash::of(b"secret")), "SecretHash(..)");
    }
}
