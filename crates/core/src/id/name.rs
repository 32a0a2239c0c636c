//! Names that people choose. Each kind has an alphabet and a maximum length, checked on construction.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::api_key::{LOOKS_LIKE_API_KEY, contains_api_key};
use super::pattern;

/// Why a text is not a valid name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: {mistake}")]
pub struct NameError {
    /// The kind of name, for example `limit key`.
    pub kind: &'static str,
    /// The mistake: what was found and what is allowed. It does not repeat a text that looks like an API key.
    pub mistake: String,
}

/// The rule of a kind of name.
#[derive(Clone, Copy, Debug)]
pub struct NameRule {
    /// The kind of name, for example `limit key`.
    pub kind: &'static str,
    /// The maximum length in bytes.
    pub bytes_max: usize,
    /// The allowed characters, for people.
    pub alphabet: &'static str,
    /// Whether a character is allowed at this position.
    pub allows: fn(usize, char) -> bool,
}

impl NameRule {
    /// Checks the length and the characters of `text`, and that it is not an API key.
    ///
    /// # Errors
    /// The first mistake.
    pub fn check(&self, text: &str) -> Result<(), NameError> {
        if contains_api_key(text) {
            return Err(NameError { kind: self.kind, mistake: LOOKS_LIKE_API_KEY.to_owned() });
        }
        if text.is_empty() || text.len() > self.bytes_max {
            return Err(self.mistake(&format!("{} bytes", text.len())));
        }
        match text.char_indices().find(|(position, character)| !(self.allows)(*position, *character)) {
            Some((position, character)) => Err(self.mistake(&format!("{character:?} at byte {position}"))),
            None => Ok(()),
        }
    }

    /// The error for a text in which `found` is not allowed.
    pub(super) fn mistake(&self, found: &str) -> NameError {
        let (bytes_max, alphabet) = (self.bytes_max, self.alphabet);
        let mistake = format!("found {found}, allowed are 1 to {bytes_max} bytes of {alphabet}");
        NameError { kind: self.kind, mistake }
    }
}

const fn is_plain(_: usize, character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '.' | '_' | '@' | '+' | '-')
}

pub(super) const fn is_reference(position: usize, character: char) -> bool {
    is_plain(position, character) || character == ':'
}

pub(super) const fn is_key(position: usize, character: char) -> bool {
    is_reference(position, character) || matches!(character, '/' | '|' | '=' | '~' | '%')
}

const fn is_asset(_: usize, character: char) -> bool {
    character.is_ascii_lowercase() || character.is_ascii_digit() || character == '_'
}

/// Everything that a header can carry without quotes or ambiguity: no space, no control character.
const fn is_visible(_: usize, character: char) -> bool {
    character.is_ascii_graphic()
}

const fn is_key_id(_: usize, character: char) -> bool {
    character.is_ascii_lowercase() || character.is_ascii_digit()
}

const KEY_ALPHABET: &str = "letters, digits and :._@+-/|=~%";
const REFERENCE_ALPHABET: &str = "letters, digits and :._@+-";
const PLAIN_ALPHABET: &str = "letters, digits and ._@+-";
const ASSET_ALPHABET: &str = "lower-case letters, digits and _";
const VISIBLE_ALPHABET: &str = "visible ASCII without spaces";
const KEY_ID_ALPHABET: &str = "lower-case letters and digits";

/// The byte is in the alphabet.
const IS_ALLOWED: u8 = 1;
/// The byte occurs in every API key and invitation, plain or encoded.
const MAY_BE_SECRET: u8 = 2;

/// The flags of every byte, for an alphabet of ASCII that is the same at every position.
macro_rules! flags {
    ($allows:ident) => {{
        let mut flags = [0; 256];
        let mut byte = 0_u8;
        while byte.is_ascii() {
            if $allows(0, byte as char) {
                flags[byte as usize] |= IS_ALLOWED;
            }
            if matches!(byte, b'_' | b'%' | b'\\') {
                flags[byte as usize] |= MAY_BE_SECRET;
            }
            byte = byte.saturating_add(1);
        }
        flags
    }};
}

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
            /// It is empty, too long, has a character outside its alphabet, or looks like an API key.
            pub fn new(text: &str) -> Result<$name, NameError> {
                const FLAGS: [u8; 256] = flags!($allows);
                // The common case, by a table: every reserve checks all its keys. The rule explains a mistake.
                let (all, any) = text.bytes().fold((IS_ALLOWED, 0), |(all, any), byte| {
                    let flags = FLAGS[usize::from(byte)];
                    (all & flags, any | flags)
                });
                let is_allowed = (1..=$bytes_max).contains(&text.len()) && all == IS_ALLOWED;
                if !is_allowed || (any & MAY_BE_SECRET != 0 && contains_api_key(text)) {
                    let rule =
                        NameRule { kind: $kind, bytes_max: $bytes_max, alphabet: $alphabet, allows: $allows };
                    rule.check(text)?;
                }
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
    /// The name of a limit within its namespace. Contains no `!`, except where a lease names a limit of another
    /// namespace: see [`LimitKey::in_namespace`].
    LimitKey: "limit key", 256, KEY_ALPHABET, is_key;
    /// The name of an account within its vault.
    AccountName: "account", 256, KEY_ALPHABET, is_key;
    /// The caller's id of the logical work behind one or more leases, for logs and traces.
    JobId: "job_id", 128, REFERENCE_ALPHABET, is_reference;
    /// The caller's key of a write that must happen once, for example the id of a webhook event.
    IdempotencyKey: "idempotency_key", 255, VISIBLE_ALPHABET, is_visible;
    /// The name of a namespace: the scope of limits and leases. Contains neither `:` nor `!`.
    NamespaceName: "namespace", 64, PLAIN_ALPHABET, is_plain;
    /// The name of a vault: the scope of credit. Contains neither `:` nor `!`.
    VaultName: "vault", 64, PLAIN_ALPHABET, is_plain;
    /// The id of a writer with its own sequence. Contains neither `:` nor `!`.
    ClientId: "client_id", 64, PLAIN_ALPHABET, is_plain;
    /// The display name of an API key.
    KeyName: "name", 64, PLAIN_ALPHABET, is_plain;
    /// The public part of an API key.
    KeyId: "key id", 32, KEY_ID_ALPHABET, is_key_id;
    /// The name of an asset of a vault, for example a currency.
    AssetName: "asset", 32, ASSET_ALPHABET, is_asset;
}

impl LimitKey {
    /// Parses the key of a template, which has placeholders: `user:{user}:rpm`. Only a
    /// [`Template`](crate::Template) may have it; everything else refuses it.
    ///
    /// # Errors
    /// It is too long, has a character outside its alphabet, or looks like an API key. A placeholder is missing,
    /// misspelled, beside other text, or there twice, or there are too many.
    pub fn pattern(text: &str) -> Result<LimitKey, NameError> {
        let kind = "template key";
        pattern::check(kind, LimitKey::BYTES_MAX, text)?;
        pattern::check_key(kind, text)?;
        Ok(LimitKey(Arc::from(text)))
    }

    /// Whether it is the key of a template.
    #[must_use]
    pub fn has_placeholders(&self) -> bool {
        pattern::has_placeholder(self.as_str())
    }
}

impl AccountName {
    /// Parses the account of a credit template, which may have placeholders of the template's key.
    ///
    /// # Errors
    /// It is too long, has a character outside its alphabet, looks like an API key, or a placeholder is misspelled or
    /// beside other text.
    pub fn pattern(text: &str) -> Result<AccountName, NameError> {
        pattern::check("account", AccountName::BYTES_MAX, text)?;
        Ok(AccountName(Arc::from(text)))
    }
}

/// The mark before the namespace of a limit that is not in the namespace of the lease. No name contains it.
const FOREIGN: char = '!';

impl LimitKey {
    /// A limit of another namespace, as requirements, actuals and answers of a lease name it: `!<namespace>:<key>`.
    /// No limit has such a key, so a system that does not know shared limits finds none.
    #[must_use]
    pub fn in_namespace(namespace: &NamespaceName, key: &LimitKey) -> LimitKey {
        LimitKey(Arc::from(format!("{FOREIGN}{namespace}:{key}")))
    }

    /// Whether it names a limit of another namespace than the lease's own.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.0.starts_with(FOREIGN)
    }

    /// The namespace and the key of a limit that [`LimitKey::in_namespace`] names. `None` for a limit of the lease's own
    /// namespace.
    #[must_use]
    pub fn foreign(&self) -> Option<(NamespaceName, LimitKey)> {
        let (namespace, key) = self.0.strip_prefix(FOREIGN)?.split_once(':')?;
        Some((NamespaceName(Arc::from(namespace)), LimitKey(Arc::from(key))))
    }

    /// The same limit as a lease of the namespace `own` names it: without a namespace that is its own.
    #[must_use]
    pub fn seen_from(self, own: &NamespaceName) -> LimitKey {
        match self.foreign() {
            Some((namespace, key)) if namespace == *own => key,
            _ => self,
        }
    }

    /// Parses a key as leases name limits: `rpm`, or `!default:rpm` for a limit of another namespace.
    ///
    /// # Errors
    /// The namespace or the key is not valid.
    pub fn parse_qualified(text: &str) -> Result<LimitKey, NameError> {
        match text.strip_prefix(FOREIGN) {
            None => LimitKey::new(text),
            Some(rest) => {
                let (namespace, key) = rest.split_once(':').unwrap_or((rest, ""));
                Ok(LimitKey::in_namespace(&NamespaceName::new(namespace)?, &LimitKey::new(key)?))
            }
        }
    }
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
        assert!(LimitKey::new("..").is_ok());
        assert!(AccountName::new("a//b/./c/../%2F%25|k=v~").is_ok());
        assert!(NamespaceName::new("team-a.prod@eu+1").is_ok());
        assert!(AssetName::new("usd_micro").is_ok());
        assert!(NamespaceName::new("default").unwrap().is_default());
    }

    #[test]
    fn a_refusal_names_what_was_found_and_what_is_allowed() {
        for (result, message) in [
            (
                LimitKey::new("").map(drop),
                "limit key: found 0 bytes, allowed are 1 to 256 bytes of letters, digits and :._@+-/|=~%",
            ),
            (
                LimitKey::new(&"k".repeat(257)).map(drop),
                "limit key: found 257 bytes, allowed are 1 to 256 bytes of letters, digits and :._@+-/|=~%",
            ),
            (
                LimitKey::new("a!b").map(drop),
                "limit key: found '!' at byte 1, allowed are 1 to 256 bytes of letters, digits and :._@+-/|=~%",
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

    #[test]
    fn a_key_of_another_namespace_is_marked_and_reads_back() {
        let parse = |text: &str| LimitKey::parse_qualified(text).map_err(|error| error.to_string());
        let (team, default): (NamespaceName, NamespaceName) = ("team".parse().unwrap(), "default".parse().unwrap());
        let key = parse("!team:gpt-4o:rpm").unwrap();
        assert_eq!(key.foreign(), Some((team.clone(), LimitKey::new("gpt-4o:rpm").unwrap())));
        assert_eq!(key.clone().seen_from(&team).as_str(), "gpt-4o:rpm");
        assert_eq!(key.clone().seen_from(&default), key);
        assert_eq!(parse("rpm").unwrap().foreign(), None);
        for (text, mistake) in [
            ("!", "namespace: found 0 bytes"),
            ("!team", "limit key: found 0 bytes"),
            ("!team:", "limit key: found 0 bytes"),
            ("!:rpm", "namespace: found 0 bytes"),
            ("!te am:rpm", "namespace: found ' ' at byte 2"),
            ("!team:a b", "limit key: found ' ' at byte 1"),
            ("!team:!rpm", "limit key: found '!' at byte 0"),
            ("a!b", "limit key: found '!' at byte 1"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(mistake), "{text}: {error}");
        }
        assert!(LimitKey::new("!team:rpm").is_err());
    }

    #[test]
    fn keys_and_accounts_allow_exactly_the_characters_of_the_contract() {
        for byte in 0..=u8::MAX {
            let text = char::from(byte).to_string();
            let plain = byte.is_ascii_alphanumeric() || b"._@+-".contains(&byte);
            let wide = plain || b":/|=~%".contains(&byte);
            assert_eq!(LimitKey::new(&text).is_ok(), wide, "{text:?}");
            assert_eq!(AccountName::new(&text).is_ok(), wide, "{text:?}");
            assert_eq!(JobId::new(&text).is_ok(), plain || byte == b':', "{text:?}");
            assert_eq!(IdempotencyKey::new(&text).is_ok(), byte.is_ascii_graphic(), "{text:?}");
            assert_eq!(NamespaceName::new(&text).is_ok(), plain, "{text:?}");
        }
    }

    /// A key that was pasted as a limit key went into the log, the journal and the metrics.
    #[test]
    fn an_api_key_is_not_a_name() {
        let key = "emk_4m8qk2v7d1xz_0123456789abcdefghjkmnpqrstv";
        let mistake = LOOKS_LIKE_API_KEY;
        let error = |error: NameError| error.to_string();
        assert_eq!(LimitKey::new(key).map_err(error), Err(format!("limit key: {mistake}")));
        assert_eq!(JobId::new(&format!("job:{key}")).map_err(error), Err(format!("job_id: {mistake}")));
        assert_eq!(KeyId::new(key).map_err(error), Err(format!("key id: {mistake}")));
        assert_eq!(ClientId::new(&key.to_uppercase()).map_err(error), Err(format!("client_id: {mistake}")));
        assert!(LimitKey::new("emk").is_ok());
    }
}
