//! Who is calling, and what that lets them do.

use std::sync::Arc;

use earmark_core::{Actor, By, ClientId, KeyInfo, LimitKey, NamespaceName, Role};

use crate::door::{Line, Patience, Place};

/// What an endpoint or a method asks of whoever calls it. Every route and every method has one in its table, so that a
/// new one cannot be forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Nothing: whether the server lives, and what it offers.
    Public,
    /// To reserve and to complete.
    Call,
    /// To write, and to change limits.
    Write,
    /// To read.
    Read,
    /// To look after a namespace: its keys, and who changed what.
    Manage,
    /// To look after the server as a whole.
    Operate,
}

impl Access {
    /// The table: which role may do what. An admin of the namespace `default` looks after the server.
    pub(crate) fn allows(self, role: Role, is_of_default: bool) -> bool {
        match (self, role) {
            (Access::Public, _) => true,
            (Access::Call, Role::Admin | Role::Caller) => true,
            (Access::Call, Role::Writer | Role::Reader) => false,
            (Access::Write, Role::Admin | Role::Writer) => true,
            (Access::Write, Role::Caller | Role::Reader) => false,
            (Access::Read, Role::Admin | Role::Writer | Role::Reader) => true,
            (Access::Read, Role::Caller) => false,
            (Access::Manage, Role::Admin) => true,
            (Access::Operate, Role::Admin) => is_of_default,
            (Access::Manage | Access::Operate, Role::Writer | Role::Caller | Role::Reader) => false,
        }
    }
}

/// How many places of its caller a request takes while it is worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    One,
    /// One for each of its items, which are counted once it was read.
    Items,
}

/// Why somebody is not let in. The words are the same whatever it was that is wrong with credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The credentials are missing, malformed, unknown, over or revoked.
    Unauthenticated,
    /// The credentials are good, and not good for this.
    Forbidden,
    /// There are no keys, and this is not sent by a program on this machine, or not by a name that only such a one uses.
    NotFromHere,
    /// Too many requests.
    TooMany {
        /// When to come back.
        retry_after_ms: u64,
    },
}

impl Refused {
    pub(crate) fn message(self) -> &'static str {
        match self {
            Refused::Unauthenticated => "the credentials are missing or not valid",
            Refused::Forbidden => "the credentials do not allow this",
            Refused::NotFromHere => {
                "this server has no keys, so that it is for programs on its own machine that call it localhost or by a \
                 loopback address, and not for web pages of others; make a key to call it by another name"
            }
            Refused::TooMany { .. } => "too many requests by these credentials; come back later",
        }
    }
}

/// Somebody who was let in.
#[derive(Debug)]
pub(crate) struct Caller {
    /// As they are named in transactions and logs.
    pub(crate) actor: Actor,
    /// Where everything they do happens.
    pub(crate) namespace: NamespaceName,
    pub(crate) role: Role,
    /// The one client they may write as.
    client: Option<ClientId>,
    /// The right that goes with their commands.
    pub(crate) by: By,
    /// Anyone on this machine, while there are no keys: may name any namespace.
    is_local: bool,
    /// What their requests are counted by: each key by itself, and each user in each namespace, so that nobody pays for
    /// somebody of the same name elsewhere.
    pub(crate) counted_as: Option<LimitKey>,
    /// Where their requests wait for their turn; nowhere if there is no end of places.
    pub(crate) line: Option<Arc<Line>>,
}

impl Caller {
    /// Whoever holds a key. One that is bound to a client is called by it.
    pub(crate) fn of_key(info: &KeyInfo) -> Option<Caller> {
        Some(Caller {
            actor: info.actor()?,
            namespace: info.namespace.clone(),
            role: info.role,
            client: info.client.clone(),
            by: By::Key(info.number),
            is_local: false,
            counted_as: LimitKey::new(&format!("key:{}", info.number.0)).ok(),
            line: None,
        })
    }

    /// Whoever has a session.
    pub(crate) fn of_user(actor: Actor, role: Role, namespace: NamespaceName) -> Caller {
        let by = By::Named(actor.clone());
        // Together they may be too long for a key, and either is short enough.
        let counted_as =
            LimitKey::new(&format!("{namespace}:{actor}")).or_else(|_| LimitKey::new(actor.as_str()));
        Caller {
            actor,
            namespace,
            role,
            client: None,
            by,
            is_local: false,
            counted_as: counted_as.ok(),
            line: None,
        }
    }

    /// Anyone on this machine.
    pub(crate) fn local(actor: Actor, namespace: NamespaceName) -> Caller {
        Caller {
            actor,
            namespace,
            role: Role::Admin,
            client: None,
            by: By::Anyone,
            is_local: true,
            counted_as: None,
            line: None,
        }
    }

    /// Waits until it is the turn of a request of so many items, which keeps its place until its answer is made.
    pub(crate) async fn turn(&self, items: usize, patience: Patience<'_>) -> Result<Place<'_>, Refused> {
        let Some(line) = &self.line else { return Ok(Place::boundless()) };
        let say = || tracing::warn!(actor = %self.actor, "requests wait, since others of the same caller are worked on");
        line.enter(items, patience, say).await
    }

    /// Whether they may do what is asked.
    pub(crate) fn may(&self, access: Access) -> bool {
        access.allows(self.role, self.namespace.is_default())
    }

    /// Whether they look after the server, and so see all its namespaces.
    pub(crate) fn operates(&self) -> bool {
        self.may(Access::Operate)
    }

    /// Whether what they ask happens where they belong. Whether there is such a namespace is not said.
    pub(crate) fn check_namespace(&self, namespace: &NamespaceName) -> Result<(), Refused> {
        let is_theirs = self.is_local || *namespace == self.namespace;
        if is_theirs { Ok(()) } else { Err(Refused::Forbidden) }
    }

    /// Whether they may write as a client, or read how far it has counted.
    pub(crate) fn check_client(&self, client: &ClientId) -> Result<(), Refused> {
        let is_theirs = self.client.as_ref().is_none_or(|bound| bound == client);
        if is_theirs { Ok(()) } else { Err(Refused::Forbidden) }
    }
}
