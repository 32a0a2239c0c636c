//! The ids of rows.

use std::fmt;
use std::str::FromStr;

use earmark_core::{Id128, LeaseId};

/// A text that is not an id of its kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: found {found:?}, allowed are {allowed}")]
pub struct IdError {
    kind: &'static str,
    found: String,
    allowed: &'static str,
}

macro_rules! ulids {
    ($($(#[$doc:meta])* $name:ident: $kind:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u128);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                LeaseId::from_u128(self.0).fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<$name, IdError> {
                let refuse = |_| IdError { kind: $kind, found: text.to_owned(), allowed: "ULIDs" };
                text.parse::<LeaseId>().map(|id| $name(id.to_u128())).map_err(refuse)
            }
        }
    )*};
}

ulids! {
    /// One attempt of one saga, as a ULID. Never reused.
    ReservationId: "reservation id";
    /// A running process, as a ULID. A restarted process is a new owner.
    OwnerId: "owner";
    /// A posting, as a ULID. The plan assigns it, so creating it twice has one effect.
    PostingId: "posting";
}

impl ReservationId {
    /// The id of the output at an index of the plan. It sorts by the time of the attempt, and no other attempt has it.
    #[must_use]
    pub const fn posting(self, place: u16) -> PostingId {
        PostingId(self.0.wrapping_add(1).wrapping_add(place as u128))
    }
}

/// An idempotency key: the hash of the label of an entry or of a lease, as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GateId(pub u128);

impl From<Id128> for GateId {
    fn from(id: Id128) -> GateId {
        GateId(id.to_u128())
    }
}

impl fmt::Display for GateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for GateId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<GateId, IdError> {
        let refuse =
            || IdError { kind: "gate", found: text.to_owned(), allowed: "32 hexadecimal digits in lower case" };
        let is_plain = text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        is_plain.then(|| u128::from_str_radix(text, 16).ok()).flatten().map(GateId).ok_or_else(refuse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_back_from_how_they_are_written() {
        let posting = PostingId(u128::MAX / 3);
        assert_eq!(posting.to_string().parse(), Ok(posting));
        let gate = GateId(0xabc);
        assert_eq!(gate.to_string(), "00000000000000000000000000000abc");
        assert_eq!(gate.to_string().parse(), Ok(gate));
        for text in ["", "abc", "0000000000000000000000000000ABCD", "+0000000000000000000000000000abc"] {
            assert!(text.parse::<GateId>().is_err(), "{text}");
        }
        assert!("xyz".parse::<PostingId>().is_err());
    }
}
