//! Encoding of outcomes.

use earmark_core::Outcome;

pub fn encoded(outcome: &Outcome) -> Vec<u8> {
    let mut bytes = Vec::new();
    outcome.encode(&mut bytes);
    bytes
}

/// Checks that the outcome survives encoding, with trailing bytes ignored and every shorter prefix refused.
pub fn assert_comes_back(outcome: &Outcome, what: &str) {
    let mut bytes = encoded(outcome);
    let length = bytes.len();
    bytes.extend_from_slice(&[1, 2, 3]);
    assert_eq!(Outcome::decode(&bytes), Ok((outcome.clone(), length)), "{what}");
    for shorter in 0..length {
        assert!(Outcome::decode(&bytes[..shorter]).is_err(), "{what}: {shorter} bytes of {outcome:?}");
    }
}
