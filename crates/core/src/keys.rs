//! API keys: roles, expiry and revocation. Only the hash of a secret is kept.

mod client_owner;
mod labels;
mod secret;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

pub use client_owner::{ClientClaim, ClientOwner};
pub use labels::{
    ATTRIBUTE_NAME_BYTES_MAX, ATTRIBUTE_VALUE_BYTES_MAX, ATTRIBUTES_MAX, KEY_ATTRIBUTE, LabelError, Labels, MaySet,
    check_attribute_name, check_attribute_value, quoted,
};
pub(crate) use labels::{check_distinct, check_text};
pub use secret::SecretHash;

use crate::book::{KeyChange, KeyEntry, KeyOutcome};
use crate::id::{Actor, ClientId, KeyId, KeyName, NamespaceName};
use crate::quota::QuotaKind;
use crate::time::{Moment, UnixMs};

/// The maximum number of keys. When it is reached, a new key replaces the key that expired or was revoked first.
pub const KEYS_MAX: usize = 10_000;
/// The maximum number of keys in all namespaces other than `default`. The rest is reserved for keys of `default`, so
/// that a server admin can always create one.
const KEYS_OF_OTHERS_MAX: usize = 9_000;
/// The longest validity of a key that expires, in seconds: 10 years.
pub const KEY_SECONDS_MAX: u32 = 10 * 366 * 24 * 60 * 60;

/// The number of a key in the Book. Never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyNumber(pub u32);

/// The permissions of a key or a session token in its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Role {
    /// Everything; in the namespace `default` also server administration.
    Admin = 1,
    /// Sequenced writes, limits, and all reads.
    Writer = 2,
    /// Reserve and complete only.
    Caller = 3,
    /// All reads.
    Reader = 4,
    /// Calls for the holders of other keys; in the namespace `default` for those of every namespace.
    Gateway = 5,
    /// Calls through a gateway only.
    Client = 6,
}

impl Role {
    /// All roles.
    pub const ALL: [Role; 6] = [Role::Admin, Role::Writer, Role::Caller, Role::Reader, Role::Gateway, Role::Client];

    /// The role as text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Role::Admin => "admin",
            Role::Writer => "writer",
            Role::Caller => "caller",
            Role::Reader => "reader",
            Role::Gateway => "gateway",
            Role::Client => "client",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A text that names no role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("role: found {0:?}, allowed are admin, writer, caller, reader, gateway and client")]
pub struct RoleError(pub String);

impl FromStr for Role {
    type Err = RoleError;

    fn from_str(text: &str) -> Result<Role, RoleError> {
        let role = Role::ALL.into_iter().find(|role| role.as_str() == text);
        role.ok_or_else(|| RoleError(text.to_owned()))
    }
}

/// The right by which a command was sent. The Book checks it when it applies the command, so that a revocation takes
/// effect even if the node that took the request has not seen it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Principal {
    /// Earmark itself.
    #[default]
    System,
    /// An anonymous caller. Allowed only while there are no keys.
    Anonymous,
    /// The holder of a key. Allowed while the key is valid.
    Key(KeyNumber),
    /// A component of Earmark, already checked; only its name is recorded.
    Actor(Actor),
    /// The user of a session token, already checked.
    Session {
        /// The user.
        actor: Actor,
        /// The role that the token grants.
        role: Role,
    },
}

/// A key without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyInfo {
    /// Its number.
    pub number: KeyNumber,
    /// The public part.
    pub id: KeyId,
    /// The display name.
    pub name: KeyName,
    /// The role.
    pub role: Role,
    /// The namespace in which the role applies.
    pub namespace: NamespaceName,
    /// The only client id it may write as; `None` for any.
    pub client: Option<ClientId>,
    /// The attributes of each of its calls.
    pub labels: Labels,
    /// The attributes that its calls may set.
    pub may_set: MaySet,
    /// Creation time.
    pub created_at: UnixMs,
    /// The actor that created it.
    pub created_by: Actor,
    /// The time from which it is invalid.
    pub expires_at: Option<UnixMs>,
    /// Revocation time.
    pub revoked_at: Option<UnixMs>,
}

impl KeyInfo {
    /// The actor recorded in transactions and logs: the client id the key is bound to, else the key id.
    #[must_use]
    pub fn actor(&self) -> Option<Actor> {
        let name = self.client.as_ref().map_or(self.id.as_str(), ClientId::as_str);
        Actor::new(&format!("client:{name}")).ok()
    }

    /// Whether the key is neither revoked nor expired at `now`.
    #[must_use]
    pub fn is_valid(&self, now: UnixMs) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|end| now < end)
    }

    /// When it expired or was revoked, if it has.
    fn ended_at(&self, now: UnixMs) -> Option<UnixMs> {
        let expired = self.expires_at.filter(|end| *end <= now);
        [self.revoked_at, expired].into_iter().flatten().min()
    }
}

/// Creates a key. The caller generates the id and the secret, since the Book has no randomness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateKey {
    /// The public part.
    pub id: KeyId,
    /// The hash of the secret part.
    pub secret: SecretHash,
    /// The display name.
    pub name: KeyName,
    /// The role.
    pub role: Role,
    /// The namespace in which the role applies. It is opened if it does not exist.
    pub namespace: NamespaceName,
    /// The only client id it may write as.
    pub client: Option<ClientId>,
    /// The attributes of each of its calls.
    pub labels: Labels,
    /// The attributes that its calls may set. A label of the same name wins.
    pub may_set: MaySet,
    /// Validity in seconds from creation; at most [`KEY_SECONDS_MAX`].
    pub valid_seconds: Option<u32>,
    /// Refuse the command if any key exists. Set for the first key, which the operator creates when the server
    /// starts.
    pub is_first: bool,
    /// The actor that creates it.
    pub actor: Actor,
}

/// Revokes a key for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevokeKey {
    /// The public part.
    pub id: KeyId,
    /// The namespace the key must belong to; `None` for any.
    pub namespace: Option<NamespaceName>,
    /// The actor that revokes it.
    pub actor: Actor,
}

/// A key with the hash of its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) info: Arc<KeyInfo>,
    pub(crate) secret: SecretHash,
    actor: Option<Actor>,
}

impl Key {
    pub(crate) fn new(info: KeyInfo, secret: SecretHash) -> Key {
        let actor = info.actor();
        Key { info: Arc::new(info), secret, actor }
    }
}

/// A group of keys that shares one maximum.
#[derive(Clone, Copy, Debug)]
enum Share<'a> {
    /// The keys of one namespace, with its quota.
    Own(&'a NamespaceName, u64),
    /// The keys of all namespaces but `default`.
    OfOthers,
    /// All keys.
    All,
}

impl Share<'_> {
    fn max(self) -> usize {
        match self {
            Share::Own(_, quota) => usize::try_from(quota).unwrap_or(usize::MAX),
            Share::OfOthers => KEYS_OF_OTHERS_MAX,
            Share::All => KEYS_MAX,
        }
    }

    fn has(self, key: &KeyInfo) -> bool {
        match self {
            Share::Own(namespace, _) => key.namespace == *namespace,
            Share::OfOthers => !key.namespace.is_default(),
            Share::All => true,
        }
    }
}

/// Whether there is room for another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Free,
    /// There is room once this ended key is removed.
    After(KeyNumber),
    /// The table is full.
    None,
    /// The namespace has as many keys as its quota allows.
    NoneOfQuota,
}

/// All keys.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    /// By number. A key that was replaced is removed.
    pub(crate) all: BTreeMap<KeyNumber, Key>,
    numbers: BTreeMap<KeyId, KeyNumber>,
    /// The number of keys by namespace.
    counts: BTreeMap<NamespaceName, usize>,
    /// The number of keys ever created.
    pub(crate) created: u32,
    /// The actor of anonymous callers, allowed while there are no keys.
    local: Option<Actor>,
}

impl Default for Keys {
    fn default() -> Keys {
        let local = Actor::new(Actor::LOCAL).ok();
        Keys { all: BTreeMap::new(), numbers: BTreeMap::new(), counts: BTreeMap::new(), created: 0, local }
    }
}

impl Keys {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn get(&self, number: KeyNumber) -> Option<&Arc<KeyInfo>> {
        self.all.get(&number).map(|key| &key.info)
    }

    fn find(&self, id: &KeyId) -> Option<&Key> {
        self.all.get(self.numbers.get(id)?)
    }

    /// The key with this id, if the secret matches and it is valid. Unknown ids also compare a secret, so that the
    /// time taken does not tell whether the id exists.
    pub(crate) fn authenticate(&self, now: UnixMs, id: &KeyId, secret: &SecretHash) -> Option<&Arc<KeyInfo>> {
        let found = self.find(id);
        let is_right = found.map_or(&SecretHash::UNKNOWN_KEY, |key| &key.secret).is(secret);
        found.map(|key| &key.info).filter(|info| is_right && info.is_valid(now))
    }

    /// The key with this id, if it is valid.
    pub(crate) fn valid(&self, now: UnixMs, id: &KeyId) -> Option<&Arc<KeyInfo>> {
        self.find(id).map(|key| &key.info).filter(|info| info.is_valid(now))
    }

    /// Whether a command with this right may be applied.
    pub(crate) fn permit(&self, now: UnixMs, by: &Principal) -> bool {
        match by {
            Principal::System | Principal::Actor(_) | Principal::Session { .. } => true,
            Principal::Anonymous => self.is_empty(),
            Principal::Key(number) => self.get(*number).is_some_and(|info| info.is_valid(now)),
        }
    }

    /// The actor of a right; `None` for Earmark itself.
    pub(crate) fn actor(&self, by: &Principal) -> Option<Actor> {
        match by {
            Principal::System => None,
            Principal::Anonymous => self.local.clone(),
            Principal::Key(number) => self.all.get(number).and_then(|key| key.actor.clone()),
            Principal::Actor(actor) | Principal::Session { actor, .. } => Some(actor.clone()),
        }
    }

    /// The key that an identical command created before.
    pub(crate) fn created_before(&self, command: &CreateKey) -> Option<KeyNumber> {
        let is_same = |key: &&Key| key.secret.is(&command.secret) && key.info.name == command.name;
        self.find(&command.id).filter(is_same).map(|key| key.info.number)
    }

    /// Whether the client id could be mistaken for a key id. Both name actors as `client:<id>`.
    fn is_named_like_a_key(&self, client: &ClientId) -> bool {
        KeyId::new(client.as_str()).is_ok_and(|id| id.is_random() || self.numbers.contains_key(&id))
    }

    /// The number of keys of a namespace, ended ones included until a new key takes their place.
    pub(crate) fn count_of(&self, namespace: &NamespaceName) -> usize {
        self.counts.get(namespace).copied().unwrap_or(0)
    }

    /// The number of keys in a share.
    fn count(&self, share: Share<'_>) -> usize {
        let all = self.all.len();
        match share {
            Share::Own(namespace, _) => self.count_of(namespace),
            Share::OfOthers => {
                let of_default = self.counts.iter().find(|(namespace, _)| namespace.is_default());
                all.saturating_sub(of_default.map_or(0, |(_, count)| *count))
            }
            Share::All => all,
        }
    }

    /// The answer to a repeated command, or the reason to refuse a new one. `quota` is that of the key's namespace.
    pub(crate) fn judge(&self, now: UnixMs, command: &CreateKey, quota: u64) -> Option<KeyOutcome> {
        if self.find(&command.id).is_some() {
            return Some(self.created_before(command).map_or(KeyOutcome::IdTaken, KeyOutcome::Exists));
        }
        if command.is_first && !self.is_empty() {
            return Some(KeyOutcome::NotTheFirst);
        }
        // The first key ends anonymous access, so its holder must be able to create more keys at any time.
        let is_lasting_admin =
            command.role == Role::Admin && command.namespace.is_default() && command.valid_seconds.is_none();
        if self.is_empty() && !is_lasting_admin {
            return Some(KeyOutcome::NotAnAdmin);
        }
        if command.client.as_ref().is_some_and(|client| self.is_named_like_a_key(client)) {
            return Some(KeyOutcome::ClientIsKey);
        }
        if command.valid_seconds.is_some_and(|seconds| seconds == 0 || seconds > KEY_SECONDS_MAX) {
            return Some(KeyOutcome::InvalidExpiry);
        }
        match self.room(now, &command.namespace, quota) {
            Room::NoneOfQuota => Some(KeyOutcome::QuotaExceeded(QuotaKind::Keys)),
            Room::None => Some(KeyOutcome::TooMany),
            Room::Free | Room::After(_) => (self.created == u32::MAX).then_some(KeyOutcome::TooMany),
        }
    }

    fn of<'a>(&'a self, share: Share<'a>) -> impl Iterator<Item = &'a KeyInfo> {
        self.all.values().map(|key| &*key.info).filter(move |info| share.has(info))
    }

    /// Whether another key of this namespace fits. At the maximum, a key that has ended is replaced.
    fn room(&self, now: UnixMs, namespace: &NamespaceName, quota: u64) -> Room {
        let own = Share::Own(namespace, quota);
        // The own share comes first, because room in another share does not raise a quota. The quota of `default` is the
        // whole table unless an admin sets another one.
        let shares: &[Share<'_>] = match namespace.is_default() {
            true if own.max() >= KEYS_MAX => &[Share::All],
            true => &[own, Share::All],
            false => &[own, Share::OfOthers, Share::All],
        };
        let Some(full) = shares.iter().find(|share| self.count(**share) >= share.max()) else {
            return Room::Free;
        };
        let ended = self.of(*full).filter_map(|info| Some((info.ended_at(now)?, info.number)));
        let none = if matches!(full, Share::Own(..)) { Room::NoneOfQuota } else { Room::None };
        ended.min().map_or(none, |(_, number)| Room::After(number))
    }

    /// Creates a key that [`Keys::judge`] did not refuse.
    pub(crate) fn create(&mut self, at: Moment, command: &CreateKey, quota: u64) -> (KeyNumber, KeyEntry) {
        let now = at.log;
        if let Room::After(ended) = self.room(now, &command.namespace, quota)
            && let Some(gone) = self.all.remove(&ended)
        {
            self.numbers.remove(&gone.info.id);
            if let Some(count) = self.counts.get_mut(&gone.info.namespace) {
                *count = count.saturating_sub(1);
            }
        }
        let number = KeyNumber(self.created);
        let lasts = command.valid_seconds.map(crate::time::seconds_to_ms);
        let info = KeyInfo {
            number,
            id: command.id.clone(),
            name: command.name.clone(),
            role: command.role,
            namespace: command.namespace.clone(),
            client: command.client.clone(),
            labels: command.labels.clone(),
            may_set: command.may_set.clone(),
            created_at: now,
            created_by: command.actor.clone(),
            expires_at: lasts.map(|ms| now.plus_ms(ms)),
            revoked_at: None,
        };
        let entry = KeyEntry::of(at, KeyChange::Created, &info, command.actor.clone());
        self.insert(Key::new(info, command.secret));
        self.created = self.created.saturating_add(1);
        (number, entry)
    }

    /// Adds a key. Returns false if its id or number is taken.
    pub(crate) fn insert(&mut self, key: Key) -> bool {
        let (number, id) = (key.info.number, key.info.id.clone());
        if self.all.contains_key(&number) || self.numbers.contains_key(&id) {
            return false;
        }
        self.numbers.insert(id, number);
        let count = self.counts.entry(key.info.namespace.clone()).or_default();
        *count = count.saturating_add(1);
        self.all.insert(number, key);
        true
    }

    /// Revokes a key. Revoking it again changes nothing.
    pub(crate) fn revoke(&mut self, at: Moment, command: &RevokeKey) -> (KeyOutcome, Option<KeyEntry>) {
        let now = at.log;
        let is_meant = |key: &&Key| command.namespace.as_ref().is_none_or(|name| *name == key.info.namespace);
        let Some(info) = self.find(&command.id).filter(is_meant).map(|key| Arc::clone(&key.info)) else {
            return (KeyOutcome::NotFound, None);
        };
        if info.revoked_at.is_some() {
            return (KeyOutcome::Revoked(info.number), None);
        }
        if self.is_last_admin(now, &info) {
            return (KeyOutcome::LastAdmin, None);
        }
        let entry = KeyEntry::of(at, KeyChange::Revoked, &info, command.actor.clone());
        if let Some(key) = self.all.get_mut(&info.number) {
            key.info = Arc::new(KeyInfo { revoked_at: Some(now), ..(*info).clone() });
        }
        (KeyOutcome::Revoked(info.number), Some(entry))
    }

    /// Whether revoking this key would leave no valid, unexpiring admin key of `default`.
    fn is_last_admin(&self, now: UnixMs, info: &KeyInfo) -> bool {
        let looks_after =
            |info: &KeyInfo| info.role == Role::Admin && info.namespace.is_default() && info.is_valid(now);
        let mut others = self.all.values().filter(|key| key.info.number != info.number);
        let succeeds = |key: &Key| looks_after(&key.info) && key.info.expires_at.is_none();
        looks_after(info) && !others.any(succeeds)
    }
}
