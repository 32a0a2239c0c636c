//! The header `x-earmark-client-key`, in which a gateway passes the credentials of its client.

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName};
use earmark_admission::Backend;
use earmark_core::Role;

use super::{Auth, TOKEN_BYTES_MAX};
use crate::caller::{Access, AuthError, Caller};

/// The header, and the gRPC metadata key.
pub(crate) const CLIENT_KEY: HeaderName = HeaderName::from_static("x-earmark-client-key");

impl Auth {
    /// The caller that a request counts for, if it has the permission: the client that a gateway names, else the sender.
    pub(super) fn acting(
        &self,
        backend: &dyn Backend,
        sender: &Arc<Caller>,
        headers: &HeaderMap,
        access: Access,
    ) -> Result<Arc<Caller>, AuthError> {
        // A server without keys reads no credentials at all.
        if sender.is_local() {
            return sender.check_access(access).map(|()| Arc::clone(sender));
        }
        let mut passed = headers.get_all(CLIENT_KEY).iter();
        let Some(first) = passed.next() else {
            return sender.check_access(access).map(|()| Arc::clone(sender));
        };
        if sender.role != Role::Gateway {
            return Err(forbidden(&format!("needs role gateway; this {} has role {}", sender.kind(), sender.role)));
        }
        sender.check_access(access)?;
        match access {
            Access::Call | Access::Settle | Access::Proxy | Access::Explain | Access::Identify => {}
            Access::Public
            | Access::Pause
            | Access::Read
            | Access::ReadLimits
            | Access::Write
            | Access::Manage
            | Access::Operate => {
                return Err(forbidden("not accepted here; a gateway does this by its own right"));
            }
        }
        let is_fit = |text: &&str| (1..=TOKEN_BYTES_MAX).contains(&text.len());
        let only = if passed.next().is_none() { first.to_str().ok().filter(is_fit) } else { None };
        let client = only.and_then(|text| self.find(backend, text)).ok_or_else(|| {
            self.failed.increment(1);
            AuthError::ClientUnauthenticated
        })?;
        check_client(sender, &client)?;
        Ok(Arc::new(Caller::through(&client, sender)))
    }
}

/// Whether the gateway may act for the client.
fn check_client(gateway: &Caller, client: &Caller) -> Result<(), AuthError> {
    match client.role {
        Role::Client | Role::Caller | Role::Admin => {}
        Role::Gateway if client.by == gateway.by => {
            return Err(forbidden("found the gateway's own key; send the key of its client"));
        }
        Role::Gateway | Role::Writer | Role::Reader => {
            return Err(forbidden(&format!("needs role client, caller or admin; it has role {}", client.role)));
        }
    }
    if gateway.namespace.is_default() || gateway.namespace == client.namespace {
        return Ok(());
    }
    let own = &gateway.namespace;
    Err(forbidden(&format!("it belongs to another namespace; this gateway acts for the clients of namespace {own}")))
}

fn forbidden(why: &str) -> AuthError {
    AuthError::Forbidden(format!("{CLIENT_KEY}: {why}"))
}
