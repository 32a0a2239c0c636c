//! The authenticated caller, and what its role allows.

mod attributes;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use earmark_core::{
    Actor, ClientId, KeyId, KeyInfo, Labels, LimitKey, MaySet, NamespaceName, Operation, Principal, Role, VaultName,
    WriteId,
};

use crate::auth::{CLIENT_KEY, CallerQueue, WaitBounds, WorkPermit};
use crate::budget::BytesUsed;
pub(crate) use attributes::AttributeRefusal;

/// The permission that a route or gRPC method needs. Every row of both tables names one, so none can be forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// No credentials: health checks and API descriptions.
    Public,
    /// Reserve.
    Call,
    /// Extend and complete.
    Settle,
    /// Reserve and settle for the requests of a proxy.
    Proxy,
    /// Explain a call.
    Explain,
    /// Pause a limit.
    Pause,
    /// Sequenced writes and changes of limits.
    Write,
    Read,
    /// Read the definitions of limits and templates. A gateway warns of those that release what is not settled.
    ReadLimits,
    /// Read who the caller is.
    Identify,
    /// Administer one namespace: its keys and its change log.
    Manage,
    /// Administer the server and its cluster.
    Operate,
}

impl Access {
    /// Whether a role has this permission. Only an admin of the namespace `default` administers the server.
    pub(crate) fn allows(self, role: Role, is_of_default: bool) -> bool {
        match (self, role) {
            (Access::Public, _) => true,
            // A client calls through a gateway only.
            (_, Role::Client) => false,
            (Access::Call | Access::Settle, Role::Admin | Role::Caller | Role::Gateway) => true,
            (Access::Call | Access::Settle, Role::Writer | Role::Reader) => false,
            (Access::Proxy, Role::Gateway) => true,
            (Access::Proxy, Role::Admin | Role::Writer | Role::Caller | Role::Reader) => false,
            (Access::Explain, Role::Admin | Role::Writer | Role::Reader | Role::Gateway) => true,
            (Access::Explain, Role::Caller) => false,
            (Access::Pause, Role::Admin | Role::Writer | Role::Gateway) => true,
            (Access::Pause, Role::Caller | Role::Reader) => false,
            (Access::Write, Role::Admin | Role::Writer) => true,
            (Access::Write, Role::Caller | Role::Reader | Role::Gateway) => false,
            (Access::Read, Role::Admin | Role::Writer | Role::Reader) => true,
            (Access::Read, Role::Caller | Role::Gateway) => false,
            (Access::ReadLimits, Role::Admin | Role::Writer | Role::Reader | Role::Gateway) => true,
            (Access::ReadLimits, Role::Caller) => false,
            (Access::Identify, _) => true,
            (Access::Manage, Role::Admin) => true,
            (Access::Operate, Role::Admin) => is_of_default,
            (Access::Manage | Access::Operate, Role::Writer | Role::Caller | Role::Reader | Role::Gateway) => false,
        }
    }

    /// The roles that have this permission, for messages and `/openapi.json`.
    pub(crate) fn roles(self) -> &'static str {
        match self {
            Access::Public => "any",
            Access::Call | Access::Settle => "caller, gateway or admin",
            Access::Proxy => "gateway",
            Access::Explain | Access::ReadLimits => "reader, writer, gateway or admin",
            Access::Pause => "writer, gateway or admin",
            Access::Identify => "admin, writer, caller, reader or gateway",
            Access::Write => "writer or admin",
            Access::Read => "reader, writer or admin",
            Access::Manage => "admin",
            Access::Operate => "admin in namespace default",
        }
    }
}

/// How many permits of its caller's queue a request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueCost {
    One,
    /// By the number of items in the batch. The handler takes them once it has parsed the body.
    PerItem,
}

/// Why a request is rejected before it is executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AuthError {
    /// The credentials are missing, malformed, unknown, expired or revoked. The message does not say which.
    Unauthenticated,
    /// The credentials of the client that a gateway names are malformed, unknown, expired or revoked.
    ClientUnauthenticated,
    /// The certificate of the client has no valid key. Holds the message.
    Certificate(String),
    /// The credentials are valid but lack a permission. Holds the message.
    Forbidden(String),
    /// The server has no keys, and the request does not come from a program on this machine.
    NotLocal,
    RateLimited {
        retry_after_ms: u64,
    },
}

impl AuthError {
    pub(crate) fn message(&self) -> Cow<'static, str> {
        match self {
            AuthError::Unauthenticated => "the credentials are missing or not valid".into(),
            AuthError::ClientUnauthenticated => format!("{CLIENT_KEY}: the credentials are not valid").into(),
            AuthError::Certificate(message) | AuthError::Forbidden(message) => message.clone().into(),
            AuthError::NotLocal => {
                "this server has no keys, so it serves only programs on its own machine that call it localhost or by a \
                 loopback address, and no web pages; create a key to call it by another name"
                    .into()
            }
            AuthError::RateLimited { .. } => "too many requests by this caller; retry later".into(),
        }
    }
}

/// One caller's use of what all callers share. All its credentials and connections refer to it.
#[derive(Debug, Default)]
pub(crate) struct CallerShares {
    /// Memory.
    pub(crate) bytes: BytesUsed,
    /// Refusals that are delayed now.
    pub(crate) delayed_refusals: AtomicUsize,
    /// Connections that keep their place.
    pub(crate) connections: AtomicUsize,
    /// Open event streams.
    pub(crate) event_streams: AtomicUsize,
    pub(crate) namespace: Arc<NamespaceShares>,
}

impl CallerShares {
    pub(crate) fn of(namespace: Arc<NamespaceShares>) -> CallerShares {
        CallerShares { namespace, ..CallerShares::default() }
    }
}

/// The use of what all callers share by one namespace.
#[derive(Debug, Default)]
pub(crate) struct NamespaceShares {
    /// Connections that keep their place.
    pub(crate) connections: AtomicUsize,
}

/// An authenticated caller.
#[derive(Debug)]
pub(crate) struct Caller {
    /// The name in transactions and logs.
    pub(crate) actor: Actor,
    /// The only namespace it acts in, unless it is local.
    pub(crate) namespace: NamespaceName,
    pub(crate) role: Role,
    /// The only client id it may write as, if its key is bound to one.
    client: Option<ClientId>,
    /// The right that every command carries, so that the state machine checks it again.
    pub(crate) by: Principal,
    /// Any program on this machine, while the server has no keys. It may name any namespace.
    is_local: bool,
    /// The attributes that its credentials fix.
    pub(crate) labels: Labels,
    /// The attributes that its calls may set.
    pub(crate) may_set: MaySet,
    /// The API key, if it has one.
    pub(crate) key_id: Option<KeyId>,
    /// A gateway sent the request, for itself or for a client.
    pub(crate) by_gateway: bool,
    /// The right of the gateway that sent the request for this client.
    gateway: Option<Principal>,
    /// The key of its request rate and its queue: one per API key, and one per user and namespace.
    pub(crate) rate_key: Option<LimitKey>,
    /// Its queue, if concurrent requests per caller are limited.
    pub(crate) queue: Option<Arc<CallerQueue>>,
    /// Its use of what all callers share.
    pub(crate) shares: Option<Arc<CallerShares>>,
    /// It sent no credentials, for a route that needs none.
    pub(crate) is_anonymous: bool,
}

impl Caller {
    /// The holder of an API key.
    pub(crate) fn from_key(info: &KeyInfo) -> Option<Caller> {
        Some(Caller {
            actor: info.actor()?,
            namespace: info.namespace.clone(),
            role: info.role,
            client: info.client.clone(),
            by: Principal::Key(info.number),
            is_local: false,
            labels: info.labels.clone(),
            may_set: info.may_set.clone(),
            key_id: Some(info.id.clone()),
            by_gateway: info.role == Role::Gateway,
            gateway: None,
            rate_key: LimitKey::new(&format!("key:{}", info.number.0)).ok(),
            queue: None,
            shares: None,
            is_anonymous: false,
        })
    }

    /// The user of a session token.
    pub(crate) fn from_session(actor: Actor, role: Role, namespace: NamespaceName, labels: Labels) -> Caller {
        let by = Principal::Session { actor: actor.clone(), role };
        // Namespace and actor together may exceed the length of a key; the actor alone never does.
        let rate_key = LimitKey::new(&format!("{namespace}:{actor}")).or_else(|_| LimitKey::new(actor.as_str()));
        let rate_key = rate_key.ok();
        Caller {
            actor,
            namespace,
            role,
            client: None,
            by,
            is_local: false,
            labels,
            may_set: MaySet::default(),
            key_id: None,
            by_gateway: role == Role::Gateway,
            gateway: None,
            rate_key,
            queue: None,
            shares: None,
            is_anonymous: false,
        }
    }

    /// A client for which a gateway asks. Namespace, labels, rate and queue are the client's.
    pub(crate) fn through(client: &Caller, gateway: &Caller) -> Caller {
        Caller {
            actor: client.actor.clone(),
            namespace: client.namespace.clone(),
            role: client.role,
            client: client.client.clone(),
            by: client.by.clone(),
            is_local: false,
            labels: client.labels.clone(),
            may_set: client.may_set.clone(),
            key_id: client.key_id.clone(),
            by_gateway: true,
            gateway: Some(gateway.by.clone()),
            rate_key: client.rate_key.clone(),
            queue: client.queue.clone(),
            shares: client.shares.clone(),
            is_anonymous: false,
        }
    }

    /// The gateway in the process of the server. It has no rate of its own: its clients have theirs.
    pub(crate) fn own_gateway(actor: Actor, namespace: NamespaceName) -> Caller {
        Caller { rate_key: None, ..Caller::from_session(actor, Role::Gateway, namespace, Labels::default()) }
    }

    /// The sender of a request that needs no credentials.
    pub(crate) fn anonymous(actor: Actor, namespace: NamespaceName) -> Caller {
        Caller { is_anonymous: true, ..Caller::from_session(actor, Role::Reader, namespace, Labels::default()) }
    }

    /// Any program on this machine.
    pub(crate) fn local(actor: Actor, namespace: NamespaceName) -> Caller {
        Caller {
            actor,
            namespace,
            role: Role::Admin,
            client: None,
            by: Principal::Anonymous,
            is_local: true,
            labels: Labels::default(),
            may_set: MaySet::default(),
            key_id: None,
            by_gateway: false,
            gateway: None,
            rate_key: None,
            queue: None,
            shares: None,
            is_anonymous: false,
        }
    }

    /// Waits for permits for a request of `items` items. They are held until the response is built.
    pub(crate) async fn acquire(&self, items: usize, bounds: WaitBounds<'_>) -> Result<WorkPermit<'_>, AuthError> {
        let Some(queue) = &self.queue else { return Ok(WorkPermit::unlimited()) };
        let log =
            || tracing::warn!(actor = %self.actor, "requests are queued: this caller is at its concurrency limit");
        queue.acquire(items, bounds, log).await
    }

    pub(crate) fn check_access(&self, access: Access) -> Result<(), AuthError> {
        if self.is_local || access.allows(self.role, self.namespace.is_default()) {
            return Ok(());
        }
        let needed = access.roles();
        let place = match access {
            _ if self.role == Role::Client => ", which calls through a gateway only".to_owned(),
            Access::Operate => format!(" in namespace {}", self.namespace),
            _ => String::new(),
        };
        let message = format!("needs role {needed}; this {} has role {}{place}", self.kind(), self.role);
        Err(AuthError::Forbidden(message))
    }

    /// The right by which it extends and completes: the gateway's, so that the calls of a client whose key was revoked
    /// still settle.
    pub(crate) fn settles_by(&self) -> &Principal {
        self.gateway.as_ref().unwrap_or(&self.by)
    }

    /// Whether a gateway sent the request for this client.
    pub(crate) fn is_client(&self) -> bool {
        self.gateway.is_some()
    }

    /// Whether it is any program on this machine, while the server has no keys.
    pub(crate) fn is_local(&self) -> bool {
        self.is_local
    }

    /// Whether it administers the server, and so sees every namespace.
    pub(crate) fn is_server_admin(&self) -> bool {
        self.check_access(Access::Operate).is_ok()
    }

    /// Rejects a request for another namespace, whether or not that namespace exists. A gateway of `default` acts for every
    /// namespace.
    pub(crate) fn check_namespace(&self, namespace: &NamespaceName) -> Result<(), AuthError> {
        let acts_for_all = self.role == Role::Gateway && self.namespace.is_default();
        if self.is_local || acts_for_all || *namespace == self.namespace {
            return Ok(());
        }
        let (kind, own) = (self.kind(), &self.namespace);
        Err(AuthError::Forbidden(format!("namespace: found {namespace}, this {kind} belongs to namespace {own}")))
    }

    /// Rejects a request about the limits of another namespace, unless the caller administers the server.
    pub(crate) fn check_limits_of(&self, namespace: &NamespaceName) -> Result<(), AuthError> {
        if self.is_server_admin() { Ok(()) } else { self.check_namespace(namespace) }
    }

    /// Rejects a write to another namespace. An admin of the server may put and delete limits there, and nothing else.
    pub(crate) fn check_write_to(
        &self,
        namespace: &NamespaceName,
        vault: Option<&VaultName>,
        operations: &[Operation],
    ) -> Result<(), AuthError> {
        let is_of_limits = vault.is_none() && operations.iter().all(|operation| operation.limit().is_some());
        if is_of_limits { self.check_limits_of(namespace) } else { self.check_namespace(namespace) }
    }

    /// Rejects operations that need a higher role than writes do.
    pub(crate) fn check_operations(&self, operations: &[Operation]) -> Result<(), AuthError> {
        let is_retirement = |operation: &Operation| matches!(operation, Operation::RetireClient { .. });
        match operations.iter().position(is_retirement) {
            Some(_) => self.check_access(Access::Manage),
            None => Ok(()),
        }
    }

    /// Rejects a client id other than the one that its key is bound to.
    /// Checks the client id of a write. A write with an idempotency key has none.
    pub(crate) fn check_write_id(&self, id: &WriteId) -> Result<(), AuthError> {
        id.client().map_or(Ok(()), |client| self.check_client(client))
    }

    pub(crate) fn check_client(&self, client: &ClientId) -> Result<(), AuthError> {
        match &self.client {
            Some(bound) if bound != client => {
                Err(AuthError::Forbidden(format!("client_id: found {client}, this key is bound to client id {bound}")))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// The kind of credentials, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self.by {
            Principal::Key(_) => "key",
            _ => "session",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forbidden_request_names_the_role_that_is_needed_and_the_one_that_the_caller_has() {
        let caller = |role, namespace: &str| {
            Caller::from_session("user:1".parse().unwrap(), role, namespace.parse().unwrap(), Labels::default())
        };
        for (role, namespace, access, message) in [
            (Role::Caller, "team", Access::Manage, "needs role admin; this session has role caller"),
            (Role::Reader, "team", Access::Call, "needs role caller, gateway or admin; this session has role reader"),
            (
                Role::Admin,
                "team",
                Access::Operate,
                "needs role admin in namespace default; this session has role admin in namespace team",
            ),
        ] {
            let error = caller(role, namespace).check_access(access).unwrap_err();
            assert_eq!(error.message(), message);
        }
        assert!(caller(Role::Admin, "default").is_server_admin());
    }
}
