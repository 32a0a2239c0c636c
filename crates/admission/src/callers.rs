//! API keys and the change log.

mod cursor;

use std::fmt;
use std::sync::Arc;

use earmark_core::{
    API_KEY_PREFIX, Actor, CreateKey, Definition, DefinitionChange, INVITATION_PREFIX, KEY_SECONDS_MAX, KEYS_MAX,
    KeyChange, KeyId, KeyInfo, KeyName, Labels, LimitKey, MaySet, NamespaceName, Principal, QuotaChange, QuotaKind,
    RevokeKey, Role, SecretHash, TxId, UnixMs, VaultName,
};

use crate::backend::{Answer, BackendError};
use crate::quotas::describe_quota;
pub use cursor::{ChangeCursor, ChangeCursorError, CreditCursor};

/// The alphabet of ids and secrets, without letters that look alike.
const ALPHABET: &[u8; 32] = KeyId::ALPHABET;
const ID_CHARS: usize = KeyId::CHARS;
/// 52 characters of 5 bits hold 256 bits of secret.
const SECRET_CHARS: usize = 52;

/// The API key store. It is part of the Book.
pub trait Keys: Send + Sync {
    /// Whether any key exists, valid or not, as this process knows.
    fn has_keys(&self) -> bool;

    /// The key with this id if the secret matches and the key is valid, as this process knows. [`Keys::check`] and
    /// commands are authoritative.
    fn authenticate(&self, id: &KeyId, secret: &SecretHash) -> Option<Arc<KeyInfo>>;

    /// The key with this id if it is valid, as this process knows. For a caller that has proved who it is without the
    /// secret.
    fn valid(&self, id: &KeyId) -> Option<Arc<KeyInfo>>;

    /// Whether `by` is authorized, as this process knows.
    fn permits(&self, by: &Principal) -> bool;

    /// Checks with a linearizable read that `by` is authorized.
    fn check(&self, by: Principal) -> Answer<'_, Result<(), BackendError>>;

    /// The keys of one namespace or of all, oldest first.
    fn list(&self, namespace: Option<NamespaceName>) -> Answer<'_, Result<Vec<Arc<KeyInfo>>, BackendError>>;

    /// Creates a key.
    fn create(&self, by: Principal, command: CreateKey) -> Answer<'_, Result<Arc<KeyInfo>, KeyError>>;

    /// Revokes a key. This is final.
    fn revoke(&self, by: Principal, command: RevokeKey) -> Answer<'_, Result<Arc<KeyInfo>, KeyError>>;

    /// A page of the change log.
    fn log(&self, query: ChangeQuery) -> Answer<'_, Result<ChangePage, BackendError>>;
}

/// Why a key was not created or revoked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// A first key was requested, but keys exist.
    #[error("keys exist already; creating another needs an admin key")]
    NotTheFirst,
    /// The first key must be a permanent admin key.
    #[error(
        "the first key must have role admin in namespace default and must not expire, because callers without a key are \
         refused from then on"
    )]
    NotAnAdmin,
    /// The client id looks like a key id.
    #[error("client_id: it has the form of a key id; choose another")]
    ClientIsKey,
    /// The lifetime is out of range.
    #[error("expires_in_seconds: allowed are integers from 1 to {KEY_SECONDS_MAX}")]
    InvalidExpiry,
    /// The key count is at its maximum.
    #[error("key count reached {KEYS_MAX} in all namespaces; revoke unused keys")]
    TooMany,
    /// The namespace has used up a quota.
    #[error("{}", describe_quota(*.0))]
    QuotaExceeded(QuotaKind),
    /// The namespace count is at its maximum.
    #[error("namespace: the namespace count is at its maximum")]
    TooManyNamespaces,
    /// No key has this id.
    #[error("key_id: no key has this id")]
    NotFound,
    /// The key is the last permanent admin key.
    #[error("this is the last admin key of namespace default without expiry; create another one first")]
    LastAdmin,
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// Which changes to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeQuery {
    /// Changes of this namespace only; `None` for all.
    pub namespace: Option<NamespaceName>,
    /// Changes of the limit with exactly this key, also those by transactions.
    pub key: Option<LimitKey>,
    /// Changes by this actor only.
    pub actor: Option<Actor>,
    /// Changes older than this position. The default starts at the newest change.
    pub after: ChangeCursor,
    /// Most changes on the page.
    pub page_size: usize,
}

impl ChangeQuery {
    /// The newest changes of all namespaces.
    #[must_use]
    pub fn all(page_size: usize) -> ChangeQuery {
        ChangeQuery { namespace: None, key: None, actor: None, after: ChangeCursor::default(), page_size }
    }
}

/// A page of the change log, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangePage {
    /// The entries.
    pub entries: Vec<ChangeEntry>,
    /// The cursor of the next page; `None` on the last page. An empty page may have one.
    pub next: Option<ChangeCursor>,
}

/// One entry of the change log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeEntry {
    /// The cursor of the page that starts behind this entry.
    pub place: ChangeCursor,
    /// When the change was made.
    pub at: UnixMs,
    /// The actor of the change.
    pub actor: Actor,
    /// The namespace.
    pub namespace: NamespaceName,
    /// The vault, for a transaction of a vault.
    pub vault: Option<VaultName>,
    /// The change.
    pub what: ChangeKind,
}

/// A change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// A transaction was committed.
    Transaction {
        /// The transaction id.
        tx_id: TxId,
        /// The log index.
        log_index: u64,
        /// Its identity.
        id: earmark_core::WriteId,
        /// A summary of each operation, in order.
        operations: Vec<String>,
        /// The limits that it put or deleted, in order.
        limits: Vec<ChangedLimit>,
    },
    /// A key was created or revoked.
    Key {
        /// Created or revoked.
        change: KeyChange,
        /// The key id.
        id: KeyId,
        /// The key's display name.
        name: KeyName,
        /// The key's role.
        role: Role,
        /// The attributes of each of its calls.
        labels: Labels,
        /// The attributes that its calls may set.
        may_set: MaySet,
    },
    /// A limit was put or deleted outside a transaction.
    Limit {
        /// The limit.
        limit: Box<ChangedLimit>,
        /// The revision after the change.
        revision: u64,
    },
    /// A template was put or deleted.
    Template {
        /// The template.
        template: Box<ChangedLimit>,
        /// The revision after the change.
        revision: u64,
    },
    /// A limit was paused or resumed.
    Pause {
        /// The key.
        key: LimitKey,
        /// When the pause ends; `None` if the limit was resumed.
        until: Option<UnixMs>,
        /// The reason; may be empty.
        reason: String,
    },
    /// Quotas of the namespace were set.
    Quotas {
        /// The quotas before and after.
        changes: Vec<QuotaChange>,
    },
    /// The policy of the namespace was replaced.
    Policy {
        /// The revision before; 0 for the first policy.
        old: u64,
        /// The revision after.
        revision: u64,
        /// The length of the document.
        bytes: u64,
    },
}

/// A limit before and after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedLimit {
    /// The key.
    pub key: LimitKey,
    /// The definition before; `None` for a new limit. While the limit was decreasing, its capacity is the target.
    pub old: Option<Definition>,
    /// The definition after; `None` if the limit was deleted.
    pub new: Option<Definition>,
}

impl From<DefinitionChange<'_>> for ChangedLimit {
    fn from(change: DefinitionChange<'_>) -> ChangedLimit {
        ChangedLimit { key: change.key.clone(), old: change.old.cloned(), new: change.new.cloned() }
    }
}

/// A complete API key. `Debug` shows the id only.
#[derive(Clone)]
pub struct Token {
    id: KeyId,
    secret: String,
}

/// The system has no random bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system has no random bytes: {0}")]
pub struct NoRandomness(String);

impl Token {
    /// A new key from the system's random bytes.
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

    /// The secret of a new invitation to the cluster, from the system's random bytes.
    ///
    /// # Errors
    /// When the system has none.
    pub fn random_invitation() -> Result<String, NoRandomness> {
        let mut bytes = [0_u8; SECRET_CHARS];
        getrandom::fill(&mut bytes).map_err(|error| NoRandomness(error.to_string()))?;
        let secret: String = bytes.iter().map(|byte| char::from(ALPHABET[usize::from(byte & 31)])).collect();
        Ok(format!("{INVITATION_PREFIX}{secret}"))
    }

    /// Parses a key. `None` for anything else, without a reason that would help to guess.
    #[must_use]
    pub fn parse(text: &str) -> Option<Token> {
        let (id, secret) = text.strip_prefix(API_KEY_PREFIX)?.split_once('_')?;
        let is_right = secret.len() == SECRET_CHARS && secret.bytes().all(|byte| ALPHABET.contains(&byte));
        let id = KeyId::new(id).ok()?;
        is_right.then(|| Token { id, secret: secret.to_owned() })
    }

    /// Whether `text` looks like a key rather than a session token.
    #[must_use]
    pub fn is_meant(text: &str) -> bool {
        text.starts_with(API_KEY_PREFIX)
    }

    /// The public part.
    #[must_use]
    pub fn id(&self) -> &KeyId {
        &self.id
    }

    /// The hash of the secret part, which is stored.
    #[must_use]
    pub fn hash(&self) -> SecretHash {
        SecretHash::of(self.secret.as_bytes())
    }

    /// The complete key. Show it to its holder only.
    #[must_use]
    pub fn reveal(&self) -> String {
        format!("{API_KEY_PREFIX}{}_{}", self.id, self.secret)
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
