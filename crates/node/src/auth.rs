//! Authorisation of peer calls.
//!
//! [`PeerAuth::authorize`] decides about every call from its path, its [`Route`] and the certificate of its connection.
//! It runs before a message is read and before any lock of the node is taken. The certificate has to name the node that
//! the call is from, by its id or by the host of its address, and that node has to be a member. Hello and Join are also
//! open to others; see [`Audience`].

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use earmark_core::{SecretHash, UnixMs};
use earmark_proto::peer::Route;
use openraft::{RaftMetrics, ServerState};
use prost::Message as _;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::metadata::MetadataMap;
use tonic::server::NamedService;
use tonic::{Code, Status};

use crate::clock::NodeClock;
use crate::net::PeerIdentity;
use crate::peers::Target;
use crate::roster::{Roster, namesakes};
use crate::state_machine::AppliedState;
use crate::types::Member;

/// Metadata key of the route of a call.
pub(crate) const ROUTE: &str = "earmark-route-bin";
/// Status code of a permanent refusal: the sender was removed, or runs on another data folder than the member.
pub(crate) const EXCLUDED: Code = Code::PermissionDenied;
/// Status code of a call that reached another node than it is for: a name resolves to a wrong address.
pub(crate) const WRONG_RECEIVER: Code = Code::NotFound;
/// Time between two log lines about refused calls.
const WARNING_INTERVAL: Duration = Duration::from_secs(1);
/// Members that this node remembers from a reply to its Join.
const VOUCHED_MAX: usize = 256;

/// The authorised sender of a call. Handlers find it in the extensions of their request.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// Its id; 0 if the cluster has not given it one yet.
    pub(crate) node: u64,
    pub(crate) incarnation: u128,
    /// Address at which it is reached.
    pub(crate) address: String,
    pub(crate) admission: Admission,
}

/// The permission of a node to join.
#[derive(Clone, Debug)]
pub(crate) enum Admission {
    /// Nothing. Only a member that moves needs nothing.
    None,
    /// The network has no certificates. It is on loopback then.
    OpenNetwork,
    /// An admin adds the node.
    Admin,
    /// The certificate has the name of a member: the node lost its data folder.
    SameName,
    /// An invitation.
    Invitation(SecretHash),
}

/// The nodes that may make a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Audience {
    /// Every node that the authority has signed and that was not removed. The reply tells the id of the node, its
    /// data folder and its cluster, and nothing else.
    Nodes,
    /// Members, and nodes that an admin has invited. Without certificates, every node.
    Joining,
    /// Members.
    Members,
}

impl Audience {
    /// The audience of a method. A method that is not listed is refused.
    fn of(path: &str) -> Option<Audience> {
        match path.strip_prefix("/earmark.peer.v1.PeerService/")? {
            "Hello" => Some(Audience::Nodes),
            "Join" => Some(Audience::Joining),
            "Append" | "Vote" | "JournalState" | "InstallSnapshot" | "Submit" | "ReadIndex" | "Add" | "Invite"
            | "RevokeInvitation" | "PublishKey" | "Remove" => Some(Audience::Members),
            _ => None,
        }
    }
}

/// Members that this node has learned of from another member, because its own membership is empty or outdated.
#[derive(Default)]
pub(crate) struct Vouched {
    nodes: Mutex<BTreeMap<u64, Member>>,
    has_stranger: AtomicBool,
}

impl Vouched {
    pub(crate) fn add(&self, node: &Target) {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if nodes.len() < VOUCHED_MAX {
            nodes.insert(node.id, Member { address: node.address.clone(), incarnation: node.incarnation });
        }
    }

    pub(crate) fn clear(&self) {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn get(&self, node: u64) -> Option<Member> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).get(&node).cloned()
    }

    /// Whether a node that is not known as a member has called since the last question. It may be a member that this
    /// node has not heard of.
    pub(crate) fn take_stranger(&self) -> bool {
        self.has_stranger.swap(false, Ordering::Relaxed)
    }
}

pub(crate) struct PeerAuth {
    pub(crate) cluster: u128,
    pub(crate) id: u64,
    pub(crate) incarnation: u128,
    pub(crate) metrics: watch::Receiver<RaftMetrics<u64, Member>>,
    pub(crate) applied_state: Arc<AppliedState>,
    pub(crate) clock: Arc<NodeClock>,
    pub(crate) vouched: Arc<Vouched>,
    pub(crate) last_warning: Mutex<Option<Instant>>,
}

impl PeerAuth {
    /// Decides whether a call may be made, and returns its sender.
    pub(crate) fn authorize(
        &self,
        path: &str,
        headers: &http::HeaderMap,
        identity: Option<&PeerIdentity>,
    ) -> Result<Caller, Status> {
        let audience = Audience::of(path).ok_or_else(|| Status::unimplemented("unknown peer call"))?;
        let identity = identity.ok_or_else(|| Status::internal("the call has no connection information"))?;
        let route = read_route(headers)?;
        let from = route.from;
        let authorized = || {
            if !self.is_named(audience, identity, &route) {
                let Route { address, .. } = &route;
                let message = format!("the certificate names neither node {from} nor the host of {address:?}");
                return Err(Status::unauthenticated(message));
            }
            self.check_receiver(audience, &route)?;
            let incarnation = number(&route.from_incarnation);
            let incarnation = incarnation.ok_or_else(|| Status::invalid_argument("from_incarnation is missing"))?;
            let admission = match audience {
                Audience::Joining => self.admission(identity, &route),
                Audience::Nodes | Audience::Members => Admission::None,
            };
            let caller = Caller { node: from, incarnation, address: route.address.clone(), admission };
            self.check_sender(audience, &caller)?;
            Ok(caller)
        };
        authorized().inspect_err(|status: &Status| self.warn(from, path, status))
    }

    /// Whether the certificate of a connection names the sender of a call. A member has the name in the membership and no
    /// other.
    fn is_named(&self, audience: Audience, identity: &PeerIdentity, route: &Route) -> bool {
        let Route { from, address, .. } = route;
        if *from == 0 && audience == Audience::Members {
            return false;
        }
        if *identity == PeerIdentity::Unproven {
            return *from != 0 || !address.is_empty();
        }
        if *from == 0 {
            return identity.proves_name(address);
        }
        let in_log = self.metrics.borrow().membership_config.membership().get_node(from).cloned();
        let applied = || self.applied_state.roster().membership.membership().get_node(from).cloned();
        let known = in_log.or_else(applied).or_else(|| self.vouched.get(*from));
        identity.may_act_as(*from, known.as_ref().map_or(address, |known| &known.address))
    }

    /// The permission of a sender to join.
    fn admission(&self, identity: &PeerIdentity, route: &Route) -> Admission {
        let Route { from, address, invitation, .. } = route;
        let has_namesake =
            || !namesakes(self.metrics.borrow().membership_config.membership(), *from, address).is_empty();
        match identity {
            PeerIdentity::Unproven => Admission::OpenNetwork,
            PeerIdentity::Certificate { .. } if identity.proves_name(address) && has_namesake() => Admission::SameName,
            PeerIdentity::Certificate { .. } if invitation.is_empty() => Admission::None,
            PeerIdentity::Certificate { .. } => Admission::Invitation(SecretHash::of(invitation.as_bytes())),
        }
    }

    /// Counts a refusal and logs it, at most one a second. Otherwise a node with a certificate could fill the log.
    fn warn(&self, node: u64, path: &str, status: &Status) {
        metrics::counter!("earmark_node_refused_peer_calls_total").increment(1);
        let mut last = self.last_warning.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| last.elapsed() >= WARNING_INTERVAL) {
            *last = Some(Instant::now());
            tracing::warn!(node, path, "peer call refused: {}", status.message());
        }
    }

    fn check_receiver(&self, audience: Audience, route: &Route) -> Result<(), Status> {
        let Route { cluster, to, to_incarnation, .. } = route;
        let is_hello = audience == Audience::Nodes;
        if number(cluster) != Some(self.cluster) && !(is_hello && cluster.is_empty()) {
            return Err(Status::new(WRONG_RECEIVER, "this node belongs to another cluster"));
        }
        if *to != self.id && !(is_hello && *to == 0) {
            return Err(Status::new(WRONG_RECEIVER, format!("this is node {}, not node {to}", self.id)));
        }
        if number(to_incarnation) != Some(self.incarnation) && !(is_hello && to_incarnation.is_empty()) {
            return Err(Status::new(WRONG_RECEIVER, "this node runs on another data folder"));
        }
        if route.from == self.id && !is_hello {
            return Err(Status::invalid_argument("a node does not call itself"));
        }
        Ok(())
    }

    /// Decides by the membership that this node knows, in its log or applied. A leader that has just removed itself
    /// is in one of them until the removal is applied here.
    fn check_sender(&self, audience: Audience, caller: &Caller) -> Result<(), Status> {
        let Caller { node: from, incarnation, .. } = *caller;
        let in_log = self.metrics.borrow().membership_config.membership().get_node(&from).map(|it| it.incarnation);
        let roster = self.applied_state.roster();
        let applied = || roster.membership.membership().get_node(&from).map(|it| it.incarnation);
        let is_removed = || roster.ids.is_used(from);
        match in_log.or_else(applied) {
            Some(known) if known == incarnation => return Ok(()),
            Some(_) => return Err(Status::new(EXCLUDED, other_folder(from))),
            None if is_removed() => return Err(Status::new(EXCLUDED, removed(from))),
            None => {}
        }
        if self.vouched.get(from).is_some_and(|known| known.incarnation == incarnation) {
            return Ok(());
        }
        match audience {
            Audience::Nodes => Ok(()),
            Audience::Joining => self.check_admission(&roster, caller),
            Audience::Members => {
                self.vouched.has_stranger.store(true, Ordering::Relaxed);
                Err(Status::failed_precondition(format!("node {from} is not a member of the cluster")))
            }
        }
    }
}

impl PeerAuth {
    /// Decides whether a node that never was a member may ask to join. The leader checks the invitation again when it
    /// is redeemed.
    fn check_admission(&self, roster: &Roster, caller: &Caller) -> Result<(), Status> {
        let hash = match &caller.admission {
            Admission::OpenNetwork | Admission::Admin | Admission::SameName => return Ok(()),
            Admission::None => return Err(Status::failed_precondition(not_invited(&caller.address))),
            Admission::Invitation(hash) => hash,
        };
        let now = self.clock.now(UnixMs::new(0)).map_or(UnixMs::new(0), |now| now.log);
        let check = |roster: &Roster| roster.invitations.check(hash, (caller.node, caller.incarnation), now).map(drop);
        let Err(error) = check(roster) else { return Ok(()) };
        let has_all = {
            let metrics = self.metrics.borrow();
            let applied = metrics.last_applied.map(|id| id.index);
            metrics.state == ServerState::Leader && applied >= metrics.last_log_index
        };
        // The refusal is final only from a leader that has applied its whole log. Another node, or a leader that has just
        // been elected, may not have applied the invitation yet.
        match has_all.then(|| check(&self.applied_state.roster())) {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(Status::new(EXCLUDED, error.to_string())),
            None => Err(Status::failed_precondition(error.to_string())),
        }
    }
}

pub(crate) fn not_invited(address: &str) -> String {
    format!(
        "the node at {address} is not a member and has no invitation: make one with earmark cluster invite and start the \
         node with --invitation-file, or start it with --node-id and add it with earmark cluster add"
    )
}

pub(crate) fn other_folder(node: u64) -> String {
    format!(
        "node {node} is a member with another data folder. If that folder is lost, start the node without --node-id: the \
         cluster gives it a new id and removes node {node}"
    )
}

/// Ids are never used again, so a removal is permanent.
pub(crate) fn removed(node: u64) -> String {
    format!(
        "node {node} was removed from the cluster, and node ids are never used again: shut it down. To add it again, \
         start it with a new data folder and without --node-id"
    )
}

fn read_route(headers: &http::HeaderMap) -> Result<Route, Status> {
    let missing = || Status::invalid_argument("the call has no valid route");
    let mut values = headers.get_all(ROUTE).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return Err(missing()) };
    let only =
        MetadataMap::from_headers(http::HeaderMap::from_iter([(http::HeaderName::from_static(ROUTE), value.clone())]));
    let bytes = only.get_bin(ROUTE).and_then(|value| value.to_bytes().ok()).ok_or_else(missing)?;
    Route::decode(bytes).map_err(|_| missing())
}

fn number(bytes: &[u8]) -> Option<u128> {
    bytes.try_into().ok().map(u128::from_le_bytes)
}

/// A gRPC service behind [`PeerAuth`].
#[derive(Clone)]
pub(crate) struct Authorized<S> {
    pub(crate) service: S,
    pub(crate) auth: Arc<PeerAuth>,
}

impl<S: NamedService> NamedService for Authorized<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> tower_service::Service<http::Request<Body>> for Authorized<S>
where
    S: tower_service::Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let identity = request.extensions().get::<PeerIdentity>();
        match self.auth.authorize(request.uri().path(), request.headers(), identity) {
            Ok(caller) => {
                request.extensions_mut().insert(caller);
                Box::pin(self.service.call(request))
            }
            Err(status) => Box::pin(async move { Ok(status.into_http()) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new peer call needs a decision about who may make it.
    #[test]
    fn every_peer_call_has_an_audience() {
        for path in earmark_proto::PEER_METHODS {
            assert!(Audience::of(path).is_some(), "{path}");
        }
        assert_eq!(Audience::of("/earmark.peer.v1.PeerService/Other"), None);
        assert_eq!(Audience::of("/earmark.v1.PeerService/Hello"), None);
    }
}
