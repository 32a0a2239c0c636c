//! The hash of a secret, and how it is compared.

use std::fmt;
use std::hint::black_box;

use sha2::{Digest, Sha256};

/// The SHA-256 of the secret part of a key. A secret is 256 random bits, so that no salt and no slow hash is
/// needed to keep it from being guessed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SecretHash([u8; 32]);

impl SecretHash {
    /// What a secret is compared with whose key is not known. It is the hash of nothing that could be sent.
    pub(crate) const OF_NOBODY: SecretHash = SecretHash([0; 32]);

    /// The hash of a secret.
    #[must_use]
    pub fn of(secret: &[u8]) -> SecretHash {
        SecretHash(Sha256::digest(secret).into())
    }

    /// A hash that was kept.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> SecretHash {
        SecretHash(bytes)
    }

    /// The hash, to be kept.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Whether both are the same, in a time that does not depend on where they differ.
    #[must_use]
    pub fn is(&self, other: &SecretHash) -> bool {
        let differ = self.0.iter().zip(&other.0).fold(0_u8, |differ, (a, b)| black_box(differ | (a ^ b)));
        black_box(differ) == 0
    }
}

/// A hash is no secret, but nobody needs to see it either.
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
        for place in 0..32 {
            for bit in 0..8 {
                let mut other = *hash.as_bytes();
                other[place] ^= 1 << bit;
                assert!(!hash.is(&SecretHash::from_bytes(other)));
            }
        }
    }

    #[test]
    fn nothing_of_a_hash_shows_when_it_is_printed() {
        assert_eq!(format!("{:?}", SecretHash::of(b"secret")), "SecretHash(..)");
    }
}
