//! Names that people choose. Each kind has an alphabet and a maximum length, checked on construction.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Why a text is not a valid name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: found {found}, allowed are 1 to {bytes_max} bytes of {alphabet}")]
pub struct NameError {
    /// The kind of name, for example `limit key`.
    pub kind: &'static str,
    /// The invalid length or character.
    pub found: String,
    /// The maximum length in bytes.
    pub bytes_max: usize,
    /// The allowed characters.
    pub alphabet: &'static str,
}

struct Rule {
    kind: &'static str,
    bytes_max: usize,
    alphabet: &'static str,
    allows: fn(u8) -> bool,
}

impl Rule {
    fn check(&self, text: &str) -> Result<(), NameError> {
        let refuse = |found| {
            let (kind, bytes_max, alphabet) = (self.kind, self.bytes_max, self.alphabet);
            Err(NameError { kind, found, bytes_max, alphabet })
        };
        if text.is_empty() || text.len() > self.bytes_max {
            return refuse(format!("{} bytes", text.len()));
        }
        match text.char_indices().find(|(_, c)| !u8::try_from(*c).is_ok_and(self.allows)) {
            Some((position, character)) => refuse(format!("{character:?} at byte {position}")),
            None => Ok(()),
        }
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._@+-".contains(&byte)
}

pub(super) fn is_key(byte: u8) -> bool {
    is_plain(byte) || byte == b':'
}

fn is_asset(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_'
}

fn is_key_id(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

const KEY_ALPHABET: &str = "letters, digits and :._@+-";
const PLAIN_ALPHABET: &str = "letters, digits and ._@+-";
const ASSET_ALPHABET: &str = "lower-case letters, digits and _";
const KEY_ID_ALPHABET: &str = "lower-case letters and digits";

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident: $kind:literal, $bytes_max:literal, $alphabet:ident, $allows:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The maximum length in bytes.
            pub const BYTES_MAX: usize = $bytes_max;

            /// Parses `text`.
            ///
            /// # Errors
            /// It is empty, too long, or has a character outside its alphabet.
            pub fn new(text: &str) -> Result<$name, NameError> {
                let rule =
                    Rule { kind: $kind, bytes_max: $bytes_max, alphabet: $alphabet, allows: $allows };
                rule.check(text)?;
                Ok($name(Arc::from(text)))
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<$name, NameError> {
                $name::new(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
    )*};
}

names! {
    /// The name of a limit within its namespace. Contains no `/`.
    LimitKey: "limit key", 256, KEY_ALPHABET, is_key;
    /// The name of an account within its vault.
    AccountName: "account", 256, KEY_ALPHABET, is_key;
    /// The caller's id of the logical work behind one or more leases, for logs and traces.
    JobId: "job_id", 128, KEY_ALPHABET, is_key;
    /// The caller's key of a write that must happen once.
    IdempotencyKey: "idempotency key", 128, KEY_ALPHABET, is_key;
    /// The name of a namespace: the scope of limits and leases. Contains neither `:` nor `/`.
    NamespaceName: "namespace", 64, PLAIN_ALPHABET, is_plain;
    /// The name of a vault: the scope of credit. Contains neither `:` nor `/`.
    VaultName: "vault", 64, PLAIN_ALPHABET, is_plain;
    /// The id of a writer with its own sequence. Contains neither `:` nor `/`.
    ClientId: "client_id", 64, PLAIN_ALPHABET, is_plain;
    /// The display name of an API key.
    KeyName: "name", 64, PLAIN_ALPHABET, is_plain;
    /// The public part of an API key.
    KeyId: "key id", 32, KEY_ID_ALPHABET, is_key_id;
    /// The name of an asset of a vault, for example a currency.
    AssetName: "asset", 32, ASSET_ALPHABET, is_asset;
}

impl KeyId {
    /// The alphabet of generated key ids: 5 random bits a character.
    pub const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
    /// The length of a generated key id.
    pub const CHARS: usize = 12;

    /// Whether this has the form of a generated key id.
    #[must_use]
    pub fn is_random(&self) -> bool {
        let is_made_of = |byte: &u8| KeyId::ALPHABET.contains(byte);
        self.as_str().len() == KeyId::CHARS && self.as_str().as_bytes().iter().all(is_made_of)
    }
}

impl VaultName {
    /// The vault of `default` that exists from the start.
    pub const MAIN: &str = "main";
}

impl AccountName {
    /// The account that exists in every vault and receives the cost of leases.
    pub const REVENUE: &str = "revenue";
}

impl NamespaceName {
    /// The namespace that exists from the start.
    pub const DEFAULT: &str = "default";

    /// Whether this is `default`, which labels omit.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.as_str() == NamespaceName::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_take_their_alphabet_up_to_their_length() {
        assert!(LimitKey::new("global:llm:openai:gpt-4o:rpm").is_ok());
        assert!(LimitKey::new(&"k".repeat(256)).is_ok());
        assert!(AccountName::new("tenant:acme+eu@1_").is_ok());
        assert!(NamespaceName::new("team-a.prod@eu+1").is_ok());
        assert!(AssetName::new("usd_micro").is_ok());
        assert!(NamespaceName::new("default").unwrap().is_default());
    }

    #[test]
    fn a_refusal_names_what_was_found_and_what_is_allowed() {
        for (result, message) in [
            (
                LimitKey::new("").map(drop),
                "limit key: found 0 bytes, allowed are 1 to 256 bytes of letters, digits and :._@+-",
            ),
            (
                LimitKey::new(&"k".repeat(257)).map(drop),
                "limit key: found 257 bytes, allowed are 1 to 256 bytes of letters, digits and :._@+-",
            ),
            (
                LimitKey::new("a/b").map(drop),
                "limit key: found '/' at byte 1, allowed are 1 to 256 bytes of letters, digits and :._@+-",
            ),
            (
                VaultName::new("a:b").map(drop),
                "vault: found ':' at byte 1, allowed are 1 to 64 bytes of letters, digits and ._@+-",
            ),
            (
                AssetName::new("USD").map(drop),
                "asset: found 'U' at byte 0, allowed are 1 to 32 bytes of lower-case letters, digits and _",
            ),
            (
                JobId::new("日").map(drop),
                "job_id: found '日' at byte 0, allowed are 1 to 128 bytes of letters, digits and :._@+-",
            ),
        ] {
            assert_eq!(result.unwrap_err().to_string(), message);
        }
    }
}
