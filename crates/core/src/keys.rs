//! Keys: who may call, as what, and until when. Secrets never come in here; what is kept is their hash.

mod secret;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

pub use secret::SecretHash;

use crate::book::{KeyChange, KeyEntry, KeyOutcome};
use crate::id::{Actor, ClientId, KeyId, KeyName, NamespaceName};
use crate::time::UnixMs;

/// The most keys. Beyond it a new key takes the place of the one that ended first, if any has ended.
pub const KEYS_MAX: usize = 10_000;
/// Of one namespace other than `default` so many: whoever looks after one does not take all places of the others.
pub const KEYS_OF_NAMESPACE_MAX: usize = 2_500;
/// Of all namespaces other than `default` together so many, so that whoever looks after the server can always make a key.
const KEYS_OF_OTHERS_MAX: usize = 9_000;
/// The longest that a key may be valid, if it is not valid for ever.
pub const KEY_SECONDS_MAX: u32 = 10 * 366 * 24 * 60 * 60;

/// A key the Book knows. Never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyNumber(pub u32);

/// What the holder of a key, or of a session token, may do in its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Role {
    /// Everything; in the namespace `default`, also what concerns the server as a whole.
    Admin = 1,
    /// Sequenced writes, limits, and all reads.
    Writer = 2,
    /// Reserve and complete, and nothing else.
    Caller = 3,
    /// All reads.
    Reader = 4,
}

impl Role {
    /// All roles.
    pub const ALL: [Role; 4] = [Role::Admin, Role::Writer, Role::Caller, Role::Reader];

    /// The role as text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Role::Admin => "admin",
            Role::Writer => "writer",
            Role::Caller => "caller",
            Role::Reader => "reader",
        }
    }

    pub(crate) fn of(byte: u8) -> Option<Role> {
        Role::ALL.into_iter().find(|role| *role as u8 == byte)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A text that is no role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("role: found {0:?}, allowed are admin, writer, caller and reader")]
pub struct RoleError(pub String);

impl FromStr for Role {
    type Err = RoleError;

    fn from_str(text: &str) -> Result<Role, RoleError> {
        let role = Role::ALL.into_iter().find(|role| role.as_str() == text);
        role.ok_or_else(|| RoleError(text.to_owned()))
    }
}

/// By what right a command comes. The Book judges it when the command is applied, so that a node which has not
/// heard of a revocation cannot carry out what it forbids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum By {
    /// Of Earmark itself, and of no part of it in particular.
    #[default]
    Itself,
    /// Of anyone who can connect, which is enough only as long as there are no keys.
    Anyone,
    /// Of the holder of a key, as long as the key is valid.
    Key(KeyNumber),
    /// Of a user whose session was found good, or of a part of Earmark: there is nothing to look up but the name.
    Named(Actor),
}

/// What is known of a key. Its secret is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyInfo {
    /// Its number.
    pub number: KeyNumber,
    /// Its public part.
    pub id: KeyId,
    /// What people call it.
    pub name: KeyName,
    /// What it may do,
    pub role: Role,
    /// and where.
    pub namespace: NamespaceName,
    /// The one client it may write as; any if there is none.
    pub client: Option<ClientId>,
    /// When it was made,
    pub created_at: UnixMs,
    /// and by whom.
    pub created_by: Actor,
    /// From when on it is no longer valid.
    pub expires_at: Option<UnixMs>,
    /// When it was revoked.
    pub revoked_at: Option<UnixMs>,
}

impl KeyInfo {
    /// As its holder is named in transactions and logs: by the client that it is bound to, or by its id.
    #[must_use]
    pub fn actor(&self) -> Option<Actor> {
        let name = self.client.as_ref().map_or(self.id.as_str(), ClientId::as_str);
        Actor::new(&format!("client:{name}")).ok()
    }

    /// Whether whoever holds it may come in at `now`.
    #[must_use]
    pub fn is_valid(&self, now: UnixMs) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|end| now < end)
    }

    /// When it ended, if it has.
    fn ended_at(&self, now: UnixMs) -> Option<UnixMs> {
        let expired = self.expires_at.filter(|end| *end <= now);
        [self.revoked_at, expired].into_iter().flatten().min()
    }
}

/// Makes a key. Its id and its secret come from whoever asks: there is no randomness in here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateKey {
    /// Its public part.
    pub id: KeyId,
    /// The hash of its secret part.
    pub secret: SecretHash,
    /// What people call it.
    pub name: KeyName,
    /// What it may do,
    pub role: Role,
    /// and where. A namespace that nobody has opened is opened.
    pub namespace: NamespaceName,
    /// The one client it may write as.
    pub client: Option<ClientId>,
    /// For how long it is valid, from when it is made; up to [`KEY_SECONDS_MAX`].
    pub valid_seconds: Option<u32>,
    /// It is refused if there is any key already: the first key is made by whoever starts a server.
    pub is_first: bool,
    /// Who makes it.
    pub actor: Actor,
}

/// Ends a key, for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevokeKey {
    /// Its public part.
    pub id: KeyId,
    /// Where it must belong; anywhere if there is none.
    pub namespace: Option<NamespaceName>,
    /// Who revokes it.
    pub actor: Actor,
}

/// A key, and what its secret is compared with.
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

/// Keys that are counted together.
#[derive(Clone, Copy, Debug)]
enum Share<'a> {
    /// Those of one namespace,
    Own(&'a NamespaceName),
    /// of all but `default`,
    OfOthers,
    /// and of all.
    All,
}

impl Share<'_> {
    fn max(self) -> usize {
        match self {
            Share::Own(_) => KEYS_OF_NAMESPACE_MAX,
            Share::OfOthers => KEYS_OF_OTHERS_MAX,
            Share::All => KEYS_MAX,
        }
    }

    fn has(self, key: &KeyInfo) -> bool {
        match self {
            Share::Own(namespace) => key.namespace == *namespace,
            Share::OfOthers => !key.namespace.is_default(),
            Share::All => true,
        }
    }
}

/// Whether there is room for another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Free,
    /// Once this key, which has ended, is gone.
    After(KeyNumber),
    None,
}

/// All keys.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    /// By number; a key that gave its place to another is gone.
    pub(crate) all: BTreeMap<KeyNumber, Key>,
    numbers: BTreeMap<KeyId, KeyNumber>,
    /// How many there ever were.
    pub(crate) made: u32,
    /// Whoever comes without a key while there is none.
    local: Option<Actor>,
}

impl Default for Keys {
    fn default() -> Keys {
        let local = Actor::new(Actor::LOCAL).ok();
        Keys { all: BTreeMap::new(), numbers: BTreeMap::new(), made: 0, local }
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

    /// The key of this id, if the secret is its own and it is valid. Whether the id, the secret or the time is
    /// wrong shows neither in the answer nor in how long it takes: a secret is always compared with one.
    pub(crate) fn authenticate(&self, now: UnixMs, id: &KeyId, secret: &SecretHash) -> Option<&Arc<KeyInfo>> {
        let found = self.find(id);
        let is_right = found.map_or(&SecretHash::OF_NOBODY, |key| &key.secret).is(secret);
        found.map(|key| &key.info).filter(|info| is_right && info.is_valid(now))
    }

    /// Whether a command that comes by this right may be applied.
    pub(crate) fn permit(&self, now: UnixMs, by: &By) -> bool {
        match by {
            By::Itself | By::Named(_) => true,
            By::Anyone => self.is_empty(),
            By::Key(number) => self.get(*number).is_some_and(|info| info.is_valid(now)),
        }
    }

    /// Who is behind a right; nobody in particular if it is of Earmark itself.
    pub(crate) fn actor(&self, by: &By) -> Option<Actor> {
        match by {
            By::Itself => None,
            By::Anyone => self.local.clone(),
            By::Key(number) => self.all.get(number).and_then(|key| key.actor.clone()),
            By::Named(actor) => Some(actor.clone()),
        }
    }

    /// The key that this very command made before.
    pub(crate) fn made_before(&self, command: &CreateKey) -> Option<KeyNumber> {
        let is_same = |key: &&Key| key.secret.is(&command.secret) && key.info.name == command.name;
        self.find(&command.id).filter(is_same).map(|key| key.info.number)
    }

    /// Whether what a client does could be taken for what the holder of a key did: actors are called by either.
    fn is_named_like_a_key(&self, client: &ClientId) -> bool {
        KeyId::new(client.as_str()).is_ok_and(|id| id.is_random() || self.numbers.contains_key(&id))
    }

    /// What a key that was made before is answered, or a reason why it cannot be made.
    pub(crate) fn judge(&self, now: UnixMs, command: &CreateKey) -> Option<KeyOutcome> {
        if self.find(&command.id).is_some() {
            return Some(self.made_before(command).map_or(KeyOutcome::IdTaken, KeyOutcome::Exists));
        }
        if command.is_first && !self.is_empty() {
            return Some(KeyOutcome::NotTheFirst);
        }
        // It closes the server to all who have none, so that others must be able to follow it whenever they are needed.
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
        let is_full = self.room(now, &command.namespace) == Room::None;
        (is_full || self.made == u32::MAX).then_some(KeyOutcome::TooMany)
    }

    fn of<'a>(&'a self, share: Share<'a>) -> impl Iterator<Item = &'a KeyInfo> {
        self.all.values().map(|key| &*key.info).filter(move |info| share.has(info))
    }

    /// Whether there is room for a key of this namespace. Where it is full, one that has ended gives way.
    fn room(&self, now: UnixMs, namespace: &NamespaceName) -> Room {
        let shares = [Share::Own(namespace), Share::OfOthers, Share::All];
        // The namespace `default` is bounded by what there is alone.
        let shares = if namespace.is_default() { &shares[2..] } else { &shares[..] };
        let Some(full) = shares.iter().find(|share| self.of(**share).count() >= share.max()) else {
            return Room::Free;
        };
        let ended = self.of(*full).filter_map(|info| Some((info.ended_at(now)?, info.number)));
        ended.min().map_or(Room::None, |(_, number)| Room::After(number))
    }

    /// Makes a key that [`Keys::judge`] had nothing against.
    pub(crate) fn create(&mut self, now: UnixMs, command: &CreateKey) -> (KeyNumber, KeyEntry) {
        if let Room::After(ended) = self.room(now, &command.namespace)
            && let Some(gone) = self.all.remove(&ended)
        {
            self.numbers.remove(&gone.info.id);
        }
        let number = KeyNumber(self.made);
        let lasts = command.valid_seconds.map(crate::time::seconds_to_ms);
        let info = KeyInfo {
            number,
            id: command.id.clone(),
            name: command.name.clone(),
            role: command.role,
            namespace: command.namespace.clone(),
            client: command.client.clone(),
            created_at: now,
            created_by: command.actor.clone(),
            expires_at: lasts.map(|ms| now.plus_ms(ms)),
            revoked_at: None,
        };
        let entry = KeyEntry::of(now, KeyChange::Created, &info, command.actor.clone());
        self.insert(Key::new(info, command.secret));
        self.made = self.made.saturating_add(1);
        (number, entry)
    }

    /// Puts a key where it belongs. Says no if its id or its number is taken.
    pub(crate) fn insert(&mut self, key: Key) -> bool {
        let (number, id) = (key.info.number, key.info.id.clone());
        if self.all.contains_key(&number) || self.numbers.contains_key(&id) {
            return false;
        }
        self.numbers.insert(id, number);
        self.all.insert(number, key);
        true
    }

    /// Ends a key. One that was revoked before stays as it is.
    pub(crate) fn revoke(&mut self, now: UnixMs, command: &RevokeKey) -> (KeyOutcome, Option<KeyEntry>) {
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
        let entry = KeyEntry::of(now, KeyChange::Revoked, &info, command.actor.clone());
        if let Some(key) = self.all.get_mut(&info.number) {
            key.info = Arc::new(KeyInfo { revoked_at: Some(now), ..(*info).clone() });
        }
        (KeyOutcome::Revoked(info.number), Some(entry))
    }

    /// Whether nobody could look after the server, keys included, once this key is gone.
    fn is_last_admin(&self, now: UnixMs, info: &KeyInfo) -> bool {
        let looks_after =
            |info: &KeyInfo| info.role == Role::Admin && info.namespace.is_default() && info.is_valid(now);
        let mut others = self.all.values().filter(|key| key.info.number != info.number);
        let succeeds = |key: &Key| looks_after(&key.info) && key.info.expires_at.is_none();
        looks_after(info) && !others.any(succeeds)
    }
}
