//! The owners of client ids.

use std::fmt;
use std::str::FromStr;

use super::{Keys, Principal, Role};
use crate::id::{Actor, ClientId, KeyId, NameError};
use crate::time::UnixMs;

/// The owner of a client id in one scope: the first key or user that wrote with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientOwner {
    /// An API key. It owns nothing once it is revoked or has expired.
    Key(KeyId),
    /// The user of a session token.
    User(Actor),
}

/// `key:<key id>` or the actor, whose text never begins with `key:`.
impl fmt::Display for ClientOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientOwner::Key(id) => write!(f, "key:{id}"),
            ClientOwner::User(actor) => actor.fmt(f),
        }
    }
}

impl FromStr for ClientOwner {
    type Err = NameError;

    fn from_str(text: &str) -> Result<ClientOwner, NameError> {
        match text.strip_prefix("key:") {
            Some(id) => KeyId::new(id).map(ClientOwner::Key),
            None => Actor::new(text).map(ClientOwner::User),
        }
    }
}

/// The claim of a writer to a client id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientClaim {
    /// The owner of the client id once the write is committed.
    pub owner: ClientOwner,
    /// Whether the writer's key is bound to the client id. It then takes the client id over from any owner.
    pub is_bound: bool,
}

impl ClientClaim {
    /// Whether the client id belongs to somebody else. `is_valid` tells whether the current owner still counts.
    #[must_use]
    pub fn is_taken(&self, current: Option<&ClientOwner>, is_valid: impl FnOnce(&ClientOwner) -> bool) -> bool {
        !self.is_bound && current.is_some_and(|current| *current != self.owner && is_valid(current))
    }
}

impl Keys {
    /// The claim of a writer to the client id of its write, if that has one. `None` for admins and for Earmark itself, which may write with any client
    /// id and own none, and for anonymous callers, which exist only while there are no keys.
    pub(crate) fn client_claim(&self, by: &Principal, client: Option<&ClientId>) -> Option<ClientClaim> {
        match by {
            Principal::System | Principal::Anonymous | Principal::Actor(_) => None,
            Principal::Session { role: Role::Admin, .. } => None,
            Principal::Session { actor, .. } => {
                Some(ClientClaim { owner: ClientOwner::User(actor.clone()), is_bound: false })
            }
            Principal::Key(number) => {
                let info = self.get(*number).filter(|info| info.role != Role::Admin)?;
                let is_bound = client.is_some() && info.client.as_ref() == client;
                Some(ClientClaim { owner: ClientOwner::Key(info.id.clone()), is_bound })
            }
        }
    }

    /// Whether an owner still owns its client ids.
    pub(crate) fn is_owner_valid(&self, now: UnixMs, owner: &ClientOwner) -> bool {
        match owner {
            ClientOwner::Key(id) => self.find(id).is_some_and(|key| key.info.is_valid(now)),
            ClientOwner::User(_) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_comes_back_from_its_text() {
        for text in ["key:4m8qk2v7d1xz", "user:7", "user:key:7"] {
            assert_eq!(text.parse::<ClientOwner>().unwrap().to_string(), text);
        }
        assert_eq!("key:a".parse(), Ok(ClientOwner::Key("a".parse().unwrap())));
        for text in ["", "key:", "nobody"] {
            assert!(text.parse::<ClientOwner>().is_err(), "{text}");
        }
    }
}
