//! Who may call: what a server asks of whoever keeps the keys, and what a key looks like to its holder.

mod cursor;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use earmark_core::{
    Actor, By, CreateKey, KEY_SECONDS_MAX, KEYS_MAX, KEYS_OF_NAMESPACE_MAX, KeyChange, KeyId, KeyInfo,
    KeyName, LimitEdit, LimitKey, NamespaceName, RevokeKey, Role, SecretHash, TxId, UnixMs, VaultName,
};

use crate::backend::{Answer, BackendError};
pub use cursor::{ChangeCursor, ChangeCursorError, CreditCursor};

/// What every key begins with, so that one that leaked is found by whoever looks for it.
const PREFIX: &str = "emk_";
/// The alphabet of ids and secrets: no letter that is taken for another.
const ALPHABET: &[u8; 32] = KeyId::ALPHABET;
const ID_CHARS: usize = KeyId::CHARS;
/// 52 characters of 5 bits have room for 256.
const SECRET_CHARS: usize = 52;

/// Whoever keeps the keys, which is whoever keeps the Book.
pub trait Keys: Send + Sync {
    /// Whether there is any key, valid or not, as far as is known here.
    fn has_keys(&self) -> bool;

    /// The key of an id, if the secret is its own and it is valid, as far as is known here. To be sure,
    /// [`Keys::check`] it, or have it go with a command.
    fn authenticate(&self, id: &KeyId, secret: &SecretHash) -> Option<Arc<KeyInfo>>;

    /// Whether what comes by this right may be done, as far as is known here.
    fn permits(&self, by: &By) -> bool;

    /// Whether what comes by this right may still be done, whatever is known here.
    fn check(&self, by: By) -> Answer<'_, Result<(), BackendError>>;

    /// The keys of a namespace, or of all, in the order in which they were made.
    fn list(&self, namespace: Option<NamespaceName>) -> Answer<'_, Result<Vec<Arc<KeyInfo>>, BackendError>>;

    /// Makes a key.
    fn create(&self, by: By, command: CreateKey) -> Answer<'_, Result<Arc<KeyInfo>, KeyError>>;

    /// Ends a key, for good.
    fn revoke(&self, by: By, command: RevokeKey) -> Answer<'_, Result<Arc<KeyInfo>, KeyError>>;

    /// What was changed after a place (the first: from the oldest that is kept) in a namespace, or in all of them, so many
    /// changes at most.
    fn log(
        &self,
        namespace: Option<NamespaceName>,
        after: ChangeCursor,
        page_size: usize,
    ) -> Answer<'_, Result<ChangePage, BackendError>>;
}

/// Why a key was not made or revoked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// It was to be the first, and is not.
    #[error("there are keys already, so that one of an admin is needed to make another")]
    NotTheFirst,
    /// It would be the first, and could not look after the server for good.
    #[error(
        "the first key closes the server to everyone who has none, so that it must be one of role admin in the namespace \
         default that does not expire"
    )]
    NotAnAdmin,
    /// It would be called like another key.
    #[error(
        "client_id: it has the form of the id of a key, so that the two could be mistaken for each other"
    )]
    ClientIsKey,
    /// It is to be valid for too short or too long.
    #[error("expires_in_seconds: allowed are integers from 1 to {KEY_SECONDS_MAX}")]
    InvalidExpiry,
    /// There are as many as there may be.
    #[error(
        "there are as many keys as there may be, {KEYS_OF_NAMESPACE_MAX} of one namespace other than default and {KEYS_MAX} in \
         all, and none of them has ended; revoke some"
    )]
    TooMany,
    /// There are as many namespaces as there may be.
    #[error("namespace: there are as many namespaces as there can be")]
    TooManyNamespaces,
    /// No such key.
    #[error("key_id: no key has this id")]
    NotFound,
    /// Nobody could look after the server.
    #[error(
        "this is the last key that can look after the server; make another of role admin, that does not expire, first"
    )]
    LastAdmin,
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// A part of what was changed, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangePage {
    /// The changes.
    pub entries: Vec<ChangeEntry>,
    /// What to ask for changes after; none if there are no more. A page may be empty and still have it.
    pub next: Option<ChangeCursor>,
}

/// One change, who made it, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeEntry {
    /// Its place, after which pages may be asked for.
    pub place: ChangeCursor,
    /// When.
    pub at: UnixMs,
    /// Who.
    pub actor: Actor,
    /// Where.
    pub namespace: NamespaceName,
    /// The vault, if it was about one.
    pub vault: Option<VaultName>,
    /// What.
    pub what: ChangeKind,
}

/// What was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// A transaction was committed.
    Transaction {
        /// Its id.
        tx_id: TxId,
        /// Its place in the log.
        log_index: u64,
        /// The client that counts.
        client: earmark_core::ClientId,
        /// Its number.
        sequence: u64,
        /// What its operations are and what they are about, in their order.
        operations: Vec<String>,
    },
    /// A key was made or revoked.
    Key {
        /// Which of the two.
        change: KeyChange,
        /// Its public part.
        id: KeyId,
        /// What people call it.
        name: KeyName,
        /// What it may do.
        role: Role,
    },
    /// A limit was put or deleted, outside of any transaction.
    Limit {
        /// Which of the two.
        edit: LimitEdit,
        /// Its key.
        key: LimitKey,
        /// Its revision from then on.
        revision: u64,
    },
}

/// A key as its holder has it. Whoever prints it sees the id only.
#[derive(Clone)]
pub struct Token {
    id: KeyId,
    secret: String,
}

/// The system gave no random bits, so that there is no key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system gives no random bits: {0}")]
pub struct NoRandomness(String);

impl Token {
    /// A new one, from the random bits of the system.
    ///
    /// # Errors
    /// When the system has none.
    pub fn random() -> Result<Token, NoRandomness> {
        let mut bytes = [0_u8; ID_CHARS + SECRET_CHARS];
        getrandom::fill(&mut bytes).map_err(|error| NoRandomness(error.to_string()))?;
        let text: String = bytes.iter().map(|byte| char::from(ALPHABET[usize::from(byte & 31)])).collect();
        let (id, secret) = text.split_at(ID_CHARS);
        let id = KeyId::new(id).map_err(|error| NoRandomness(error.to_string()))?;
        Ok(Token { id, secret: secret.to_owned() })
    }

    /// Takes `text` apart. What is wrong with it is nobody's business.
    #[must_use]
    pub fn parse(text: &str) -> Option<Token> {
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
        let is_right = secret.len() == SECRET_CHARS && secret.bytes().all(|byte| ALPHABET.contains(&byte));
        let id = KeyId::new(id).ok()?;
        is_right.then(|| Token { id, secret: secret.to_owned() })
    }

    /// Whether `text` is meant to be a key, and not a session token.
    #[must_use]
    pub fn is_meant(text: &str) -> bool {
        text.starts_with(PREFIX)
    }

    /// `text`, with nothing left of any key in it. People paste keys where only ids belong.
    #[must_use]
    pub fn redact(text: &str) -> Cow<'_, str> {
        if !text.contains(PREFIX) {
            return Cow::Borrowed(text);
        }
        let mut parts = text.split(PREFIX);
        let mut shown = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let is_of_key = |char: char| char.is_ascii_alphanumeric() || char == '_';
            let rest = part.trim_start_matches(is_of_key);
            shown.extend([PREFIX, "***", rest]);
        }
        Cow::Owned(shown)
    }

    /// The public part.
    #[must_use]
    pub fn id(&self) -> &KeyId {
        &self.id
    }

    /// What is kept of the secret part.
    #[must_use]
    pub fn hash(&self) -> SecretHash {
        SecretHash::of(self.secret.as_bytes())
    }

    /// All of it, for its holder and nobody else.
    #[must_use]
    pub fn reveal(&self) -> String {
        format!("{PREFIX}{}_{}", self.id, self.secret)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_comes_back_from_its_text_and_shows_its_id_only() {
        let token = Token::random().unwrap();
        let text = token.reveal();
        assert_eq!(text.len(), 4 + 12 + 1 + 52);
        let again = Token::parse(&text).unwrap();
        assert_eq!((again.id(), again.hash()), (token.id(), token.hash()));
        assert_eq!(format!("{token:?}"), format!("Token({})", token.id()));
        assert_ne!(Token::random().unwrap().reveal(), text);
    }

    #[test]
    fn nothing_of_a_key_is_left_in_a_text() {
        let (key, other) = (Token::random().unwrap().reveal(), Token::random().unwrap().reveal());
        for (text, shown) in [
            (format!("/v1/admin/keys/{key}"), "/v1/admin/keys/emk_***"),
            (format!("found \"{key}\", and {other}!"), "found \"emk_***\", and emk_***!"),
            (format!("{key}{other}"), "emk_***emk_***"),
            ("/v1/admin/keys/4m8qk2v7d1xz".into(), "/v1/admin/keys/4m8qk2v7d1xz"),
            (String::new(), ""),
        ] {
            assert_eq!(Token::redact(&text), shown);
        }
    }

    #[test]
    fn what_is_cut_short_too_long_or_foreign_is_no_key() {
        let text = Token::random().unwrap().reveal();
        for wrong in [
            "",
            "emk_",
            &text[..text.len() - 1],
            &format!("{text}0"),
            &text.replace("emk_", "emk-"),
            &text.to_uppercase(),
            &format!("{}!", &text[..text.len() - 1]),
        ] {
            assert!(Token::parse(wrong).is_none(), "{wrong}");
        }
    }
}
