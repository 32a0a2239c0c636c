//! Lease ids: ULIDs.

use std::fmt;
use std::str::FromStr;

use super::api_key::{LOOKS_LIKE_API_KEY, contains_api_key};
use crate::time::UnixMs;

/// Crockford's base 32, which ULIDs use: no I, L, O or U.
const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
/// Length of a ULID as text: 26 characters of 5 bits hold 128 bits.
const TEXT_BYTES: usize = 26;

/// The id of a lease, which is one reserve attempt: a ULID of 48 bits of time and 80 random bits.
///
/// It is parsed in either case and written in upper case, so that equal ids have equal text and hash to the same
/// [`Label`](super::Label). The fields are two halves, because a `u128` is aligned to 16 bytes and would enlarge the
/// records that contain it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId {
    high: u64,
    low: u64,
}

/// Why a text is not a lease id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseIdError {
    /// Not 26 characters.
    #[error("lease_id: found {found} bytes, a ULID has 26 characters")]
    Length {
        /// The length found, in bytes.
        found: usize,
    },
    /// A character outside Crockford's alphabet.
    #[error("lease_id: found {found:?} at position {position}, allowed are 0-9 and A-Z without I, L, O and U")]
    Character {
        /// The character.
        found: char,
        /// Its position, counted from 0.
        position: usize,
    },
    /// The value exceeds 128 bits.
    #[error("lease_id: found {found:?} as its first character, a ULID starts with 0 to 7")]
    TooLarge {
        /// The first character.
        found: char,
    },
    /// An API key in place of a lease id.
    #[error("lease_id: {LOOKS_LIKE_API_KEY}")]
    ApiKey,
}

impl LeaseId {
    /// From 128 bits, the time in the upper 48.
    #[must_use]
    pub const fn from_u128(bits: u128) -> LeaseId {
        LeaseId { high: (bits >> 64) as u64, low: bits as u64 }
    }

    /// From a time and random bits, of which the lower 80 are used.
    #[must_use]
    pub const fn from_parts(time: UnixMs, random: u128) -> LeaseId {
        LeaseId::from_u128(((time.get() as u128) << 80) | (random & ((1 << 80) - 1)))
    }

    /// All 128 bits.
    #[must_use]
    pub const fn to_u128(self) -> u128 {
        ((self.high as u128) << 64) | self.low as u128
    }

    /// The time at which the caller made the id, by the caller's clock.
    #[must_use]
    pub const fn time(self) -> UnixMs {
        UnixMs::new(self.high >> 16)
    }

    /// The lower 64 of the 80 random bits. The jitter of retry hints is derived from them.
    #[must_use]
    pub const fn random_bits(self) -> u64 {
        self.low
    }
}

impl FromStr for LeaseId {
    type Err = LeaseIdError;

    fn from_str(text: &str) -> Result<LeaseId, LeaseIdError> {
        parse(text).map_err(|error| if contains_api_key(text) { LeaseIdError::ApiKey } else { error })
    }
}

fn parse(text: &str) -> Result<LeaseId, LeaseIdError> {
    if text.len() != TEXT_BYTES {
        return Err(LeaseIdError::Length { found: text.len() });
    }
    let mut bits = 0_u128;
    for (position, byte) in text.bytes().enumerate() {
        let value = VALUES[usize::from(byte)];
        if value == NO_DIGIT {
            // A byte outside ASCII begins a character: none before it did.
            let found = text.get(position..).and_then(|rest| rest.chars().next()).unwrap_or_default();
            return Err(LeaseIdError::Character { found, position });
        }
        if position == 0 && value > 7 {
            return Err(LeaseIdError::TooLarge { found: char::from(byte) });
        }
        bits = (bits << 5) | u128::from(value);
    }
    Ok(LeaseId::from_u128(bits))
}

/// Marks a byte that is not in the alphabet.
const NO_DIGIT: u8 = u8::MAX;
/// The value of each byte in the alphabet, in either case. Every reserve and complete looks up 26 of them.
const VALUES: [u8; 256] = values();

const fn values() -> [u8; 256] {
    let mut values = [NO_DIGIT; 256];
    let mut value = 0;
    while value < ALPHABET.len() {
        let letter = ALPHABET[value];
        values[letter as usize] = value as u8;
        values[letter.to_ascii_lowercase() as usize] = value as u8;
        value = value.saturating_add(1);
    }
    values
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0_u8; TEXT_BYTES];
        let mut rest = self.to_u128();
        for position in text.iter_mut().rev() {
            *position = ALPHABET[(rest & 31) as usize];
            rest >>= 5;
        }
        f.pad(std::str::from_utf8(&text).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips_in_upper_case() {
        let text = "01ARZ3NDEKTSV4RRFFQ69G5FAV";
        let lease: LeaseId = text.parse().unwrap();
        assert_eq!(lease.to_string(), text);
        assert_eq!(text.to_ascii_lowercase().parse(), Ok(lease));
        assert_eq!(lease.time(), UnixMs::new(1_469_922_850_259));
        assert_eq!(LeaseId::from_parts(lease.time(), lease.to_u128()), lease);
    }

    #[test]
    fn the_largest_ulid_is_the_largest_number() {
        assert_eq!("7ZZZZZZZZZZZZZZZZZZZZZZZZZ".parse(), Ok(LeaseId::from_u128(u128::MAX)));
    }

    #[test]
    fn an_invalid_ulid_is_refused_with_the_reason() {
        for (text, error) in [
            ("", LeaseIdError::Length { found: 0 }),
            ("01ARZ3NDEKTSV4RRFFQ69G5FA", LeaseIdError::Length { found: 25 }),
            ("01ARZ3NDEKTSV4RRFFQ69G5FAVX", LeaseIdError::Length { found: 27 }),
            ("8ZZZZZZZZZZZZZZZZZZZZZZZZZ", LeaseIdError::TooLarge { found: '8' }),
            ("01ARZ3NDEKTSV4RRFFQ69G5FAI", LeaseIdError::Character { found: 'I', position: 25 }),
            ("01ARZ3NDEKTSV4RRFFQ69G5FU1", LeaseIdError::Character { found: 'U', position: 24 }),
            ("01ARZ3NDEKTSV4RRFFQ69G5Fé", LeaseIdError::Character { found: 'é', position: 24 }),
            ("emk_4m8qk2v7d1xz_012345678", LeaseIdError::ApiKey),
            ("emk_4m8qk2v7d1xz", LeaseIdError::ApiKey),
        ] {
            assert_eq!(text.parse::<LeaseId>(), Err(error), "{text}");
        }
    }
}
