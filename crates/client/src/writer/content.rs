//! The hash of a transaction's operations.

use std::fmt;

use earmark_core::Operation;
use earmark_proto::convert::operation_of;
use earmark_proto::v1;
use prost::Message;
use sha2::{Digest, Sha256};

/// The hash of the operations of a transaction. It is the same in all versions.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ContentHash([u8; 32]);

impl ContentHash {
    /// The hash of these operations.
    #[must_use]
    pub fn of(operations: &[Operation]) -> ContentHash {
        // The protobuf encoding has fields in the order of their numbers, which never change.
        let operations = operations.iter().map(operation_of).collect();
        let bytes = v1::WritePart { operations }.encode_to_vec();
        ContentHash(Sha256::digest(bytes).into())
    }

    /// Whether it is the hash of no operations, as in a fence.
    pub(super) fn is_empty(self) -> bool {
        self == ContentHash::of(&[])
    }

    /// Stands for operations that are not known.
    pub(super) const fn unknown() -> ContentHash {
        ContentHash([0; 32])
    }

    pub(super) fn is_unknown(self) -> bool {
        self == ContentHash::unknown()
    }

    pub(super) fn parse(text: &str) -> Option<ContentHash> {
        let mut bytes = [0; 32];
        if text.len() != 2 * bytes.len() || !text.is_ascii() {
            return None;
        }
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
        }
        Some(ContentHash(bytes))
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContentHash({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issue(amount: u128) -> Operation {
        Operation::Issue {
            account: "acme".parse().unwrap(),
            asset: "usd".parse().unwrap(),
            amount,
            memo: "m".into(),
            terms: earmark_core::GrantTerms::PLAIN,
        }
    }

    /// Sequence files of earlier versions contain these hashes.
    #[test]
    fn the_hash_of_an_operation_never_changes() {
        assert_eq!(
            ContentHash::of(&[issue(5)]).to_string(),
            "c8d9cf76d5ada1256d5e2f1ea13a7603d49591f548859bd62cad3fa45890ed80"
        );
        assert_ne!(ContentHash::of(&[issue(5)]), ContentHash::of(&[issue(6)]));
        assert_ne!(ContentHash::of(&[issue(5)]), ContentHash::of(&[issue(5), issue(5)]));
        assert!(ContentHash::of(&[]).is_empty());
    }

    #[test]
    fn a_hash_is_read_as_it_is_shown() {
        let hash = ContentHash::of(&[issue(5)]);
        assert_eq!(ContentHash::parse(&hash.to_string()), Some(hash));
        for text in ["", "00", &"g".repeat(64), &"é".repeat(32), &hash.to_string()[1..]] {
            assert_eq!(ContentHash::parse(text), None, "{text}");
        }
    }
}
