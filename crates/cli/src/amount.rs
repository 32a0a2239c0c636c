//! Parses `KEY=AMOUNT`, the syntax of requirements and actuals on the command line. A shared limit of another namespace
//! is `!NAMESPACE:KEY=AMOUNT`, as answers name it.

use earmark_core::{LimitKey, REQUIREMENTS_MAX};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::quantity;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyAmount {
    pub(crate) key: LimitKey,
    amount: u64,
}

impl KeyAmount {
    /// The JSON of a request, whose amount is in `field`.
    pub(crate) fn json(&self, field: &str) -> Value {
        match self.key.foreign() {
            Some((namespace, key)) => {
                json!({"namespace": namespace.as_str(), "key": key.as_str(), field: self.amount})
            }
            None => json!({"key": self.key.as_str(), field: self.amount}),
        }
    }
}

/// Parses a requirement of a reserve: at least 1.
pub(crate) fn requirement(text: &str) -> Result<KeyAmount, String> {
    parse(text, 1)
}

/// Parses an actual usage, which may be 0.
pub(crate) fn actual(text: &str) -> Result<KeyAmount, String> {
    parse(text, 0)
}

fn parse(text: &str, least: u64) -> Result<KeyAmount, String> {
    let Some((key, amount)) = text.rsplit_once('=') else {
        return Err(format!("found {text:?}, allowed is KEY=AMOUNT, such as gpt-4o:tpm=1500"));
    };
    let key = LimitKey::parse_qualified(key).map_err(|error| error.to_string())?;
    let amount = quantity::amount(amount, least).map_err(|error| format!("amount: {error}"))?;
    Ok(KeyAmount { key, amount })
}

/// Rejects too many keys and duplicate keys before a request is sent.
pub(crate) fn check_keys<'a>(flag: &str, keys: impl ExactSizeIterator<Item = &'a LimitKey>) -> Result<(), Failure> {
    let found = keys.len();
    if found > REQUIREMENTS_MAX {
        return Err(Failure::Usage(format!("{flag}: found {found}, allowed are up to {REQUIREMENTS_MAX}")));
    }
    let mut sorted: Vec<&LimitKey> = keys.collect();
    sorted.sort();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Failure::Usage(format!("{flag}: found {} twice, allowed is each key once", pair[0]))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_and_an_amount_are_split_at_the_last_equals_sign() {
        let key = LimitKey::new("openai:gpt-4o:tpm").unwrap();
        let parsed = |amount| Ok(KeyAmount { key: key.clone(), amount });
        assert_eq!(requirement("openai:gpt-4o:tpm=1500"), parsed(1_500));
        assert_eq!(requirement("openai:gpt-4o:tpm=6k"), parsed(6_000));
        assert_eq!(actual(&format!("openai:gpt-4o:tpm={}", u64::MAX)), parsed(u64::MAX));
        assert_eq!(actual("openai:gpt-4o:tpm=0"), parsed(0));
        let key = LimitKey::new("model=gpt-4o/tpm").unwrap();
        assert_eq!(requirement("model=gpt-4o/tpm=2"), Ok(KeyAmount { key, amount: 2 }));
        let shared = requirement("!default:gpt-4o:rpm=1").unwrap();
        assert_eq!(shared.json("amount"), json!({"namespace": "default", "key": "gpt-4o:rpm", "amount": 1}));
    }

    #[test]
    fn a_wrong_argument_is_named_with_the_allowed_values() {
        for (text, message) in [
            ("rpm", "found \"rpm\", allowed is KEY=AMOUNT, such as gpt-4o:tpm=1500"),
            ("=1", "limit key: found 0 bytes, allowed are 1 to 256 bytes of letters, digits and :._@+-/|=~%"),
            ("a b=1", "limit key: found ' ' at byte 1, allowed are 1 to 256 bytes of letters, digits and :._@+-/|=~%"),
            ("a=0", "amount: found \"0\", allowed are whole numbers from 1, such as 1500, 60k or 1.5m"),
            ("a=-1", "amount: found \"-1\", allowed are whole numbers from 1, such as 1500, 60k or 1.5m"),
        ] {
            assert_eq!(requirement(text), Err(message.to_owned()), "{text}");
        }
    }

    #[test]
    fn too_many_keys_and_a_key_twice_are_refused_before_anything_is_sent() {
        let keys: Vec<LimitKey> = (0..33).map(|i| LimitKey::new(&format!("k{i}")).unwrap()).collect();
        assert!(check_keys("--key", keys[..32].iter()).is_ok());
        let message = |keys: &[LimitKey]| check_keys("--key", keys.iter()).unwrap_err().to_string();
        assert_eq!(message(&keys), "--key: found 33, allowed are up to 32");
        let twice = [keys[1].clone(), keys[0].clone(), keys[1].clone()];
        assert_eq!(message(&twice), "--key: found k1 twice, allowed is each key once");
    }
}
