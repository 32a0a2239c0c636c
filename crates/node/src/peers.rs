//! Client side of the peer protocol, the gRPC service between nodes. Every call has a deadline.
//!
//! [`Peers`] keeps one lazy connection per node. With TLS, the certificate of a node must name its id.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use earmark_core::{Outcome, UnixMs};
use earmark_proto::peer::peer_service_client::PeerServiceClient;
use earmark_proto::peer::{
    AddRequest, HelloReply, HelloRequest, InviteRequest, JoinRequest, MembersReply, Peer, PublishKeyRequest,
    ReadIndexRequest, RemoveRequest, RevokeInvitationRequest, Route, SubmitRequest, members_reply, read_index_reply,
    submit_reply,
};
use hyper_util::rt::TokioIo;
use prost::Message as _;
use tonic::metadata::{Binary, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint, Uri};

use crate::auth::{EXCLUDED, ROUTE, WRONG_RECEIVER};
use crate::members::MembersError;
use crate::net::{Connection, Net};
use crate::proposer::ProposeError;
use crate::traces;
use crate::types::Batch;

/// Maximum message size between nodes, in bytes: several times the largest batch.
pub(crate) const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Timeout of one connection attempt. A node that is up accepts well within it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How often a connection without traffic is checked, and how long the answer may take. A node that moved to another
/// address leaves its old one silent, so requests to it fail for up to the sum of both.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(1);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(3);
/// Retention of reset HTTP/2 streams: longer than any call takes.
const RESET_STREAM_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

pub(crate) type Client = PeerServiceClient<InterceptedService<Channel, RouteHeader>>;

/// Adds the route to the metadata of a call.
#[derive(Clone)]
pub(crate) struct RouteHeader(MetadataValue<Binary>);

impl Interceptor for RouteHeader {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, tonic::Status> {
        request.metadata_mut().insert_bin(ROUTE, self.0.clone());
        Ok(request)
    }
}

/// The node that a call is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) id: u64,
    /// Its address in the membership; see [`Peers::moved`].
    pub(crate) address: String,
    /// Random id of its data folder. A node that lost its folder refuses calls for the old one.
    pub(crate) incarnation: u128,
}

impl Target {
    /// The address of the node, and the id that its certificate has to name.
    pub(crate) fn place(&self) -> (&str, Option<u64>) {
        (&self.address, Some(self.id))
    }
}

/// The clients of all other nodes.
#[derive(Clone)]
pub(crate) struct Peers(Arc<Inner>);

/// The node that makes the calls, as it names itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sender {
    /// Its cluster; unknown before the first Hello.
    pub(crate) cluster: Option<u128>,
    /// Its id; 0 before the cluster has given it one.
    pub(crate) id: u64,
    /// Random id of its data folder.
    pub(crate) incarnation: u128,
    /// Address at which it is reached.
    pub(crate) address: String,
    /// Secret of an invitation; empty without one.
    pub(crate) invitation: String,
}

struct Inner {
    sender: Sender,
    net: Arc<dyn Net>,
    /// Timeout of the calls made here. Calls of Raft have their own.
    deadline: Duration,
    /// One channel per address and node that the certificate must name.
    channels: Mutex<BTreeMap<(String, Option<u64>), Channel>>,
    moved: MovedAddresses,
}

/// Current addresses of nodes that have moved, by their outdated address in the membership.
type MovedAddresses = Arc<Mutex<BTreeMap<String, String>>>;

/// Why a call has no reply. After `Failed` and `TimedOut` the node may still have executed it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// The connection failed, or the node answered with an error status.
    #[error("{address} cannot be reached: {message}")]
    Failed { address: String, message: String },
    /// The node refuses this node for good.
    #[error("{message}")]
    Excluded { message: String },
    #[error("{address} did not answer within {deadline:?}")]
    TimedOut { address: String, deadline: Duration },
}

impl Peers {
    pub(crate) fn new(sender: Sender, net: Arc<dyn Net>, deadline: Duration) -> Peers {
        let (channels, moved) = (Mutex::default(), MovedAddresses::default());
        Peers(Arc::new(Inner { sender, net, deadline, channels, moved }))
    }

    /// Client of one node, whose certificate has to name it. It connects lazily and reconnects.
    pub(crate) fn client(&self, node: &Target) -> Client {
        self.client_at(&node.address, Some(node.id), self.route(Some(node)))
    }

    /// Client of an address; with `node`, the certificate there has to name that node.
    fn client_at(&self, address: &str, node: Option<u64>, route: Route) -> Client {
        let mut channels = self.0.channels.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (address.to_owned(), node);
        let channel = channels.entry(key).or_insert_with(|| channel(&self.0, address, node));
        let header = RouteHeader(MetadataValue::from_bytes(&route.encode_to_vec()));
        PeerServiceClient::with_interceptor(channel.clone(), header)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Redirects connections for an address in the membership to the current address of that node. The start calls it
    /// for members found at another address, because the membership changes only once there is a leader.
    pub(crate) fn moved(&self, from: String, to: String) {
        self.0.moved.lock().unwrap_or_else(PoisonError::into_inner).insert(from, to);
    }

    /// The sender and receiver of a call. A receiver with another cluster, id or incarnation refuses it.
    fn route(&self, to: Option<&Target>) -> Route {
        let bytes = |number: u128| Bytes::copy_from_slice(&number.to_le_bytes());
        let sender = &self.0.sender;
        let route = Route {
            cluster: sender.cluster.map(bytes).unwrap_or_default(),
            from: sender.id,
            from_incarnation: bytes(sender.incarnation),
            address: sender.address.clone(),
            ..Route::default()
        };
        match to {
            Some(to) => Route { to: to.id, to_incarnation: bytes(to.incarnation), ..route },
            None => Route { cluster: Bytes::new(), ..route },
        }
    }

    /// Waits for the reply of a call to a node until its deadline.
    pub(crate) async fn call<T>(
        &self,
        (address, node): (&str, Option<u64>),
        deadline: Duration,
        call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    ) -> Result<T, CallError> {
        match tokio::time::timeout(deadline, call).await {
            Ok(answer) => {
                if answer.as_ref().is_err_and(|status| status.code() == WRONG_RECEIVER) {
                    // The next call connects again, and resolves the name again.
                    let mut channels = self.0.channels.lock().unwrap_or_else(PoisonError::into_inner);
                    channels.remove(&(address.to_owned(), node));
                }
                answered(address, answer)
            }
            Err(_) => Err(CallError::TimedOut { address: address.to_owned(), deadline }),
        }
    }

    /// Sends commands to the leader, and returns their log index and outcomes.
    pub(crate) async fn submit(&self, leader: &Target, batch: Batch) -> Result<(u64, Vec<Outcome>), ProposeError> {
        let traces = traces::to_wire(batch.traces.as_deref().unwrap_or_default());
        let request = SubmitRequest { batch: batch.bytes, traces };
        let mut client = self.client(leader);
        let reply = self.call(leader.place(), self.0.deadline, client.submit(request)).await;
        let malformed = || {
            let address = &leader.address;
            ProposeError::Unknown(format!("{address} sent a reply that cannot be read; it may run another version"))
        };
        let reply = reply.map_err(|error| ProposeError::Unknown(error.to_string()))?;
        match reply.result.ok_or_else(malformed)? {
            submit_reply::Result::Outcomes(bytes) => Ok((reply.index, decode_outcomes(&bytes).ok_or_else(malformed)?)),
            submit_reply::Result::NotTaken(message) => Err(ProposeError::NotTaken(message)),
            submit_reply::Result::Unknown(message) => Err(ProposeError::Unknown(message)),
            submit_reply::Result::NoSpace(_) => Err(ProposeError::NoSpace),
        }
    }

    /// Asks the leader for the log index to wait for before a read, and for its log time. There is no index while the
    /// log is empty.
    pub(crate) async fn read_index(&self, leader: &Target) -> Result<(Option<u64>, UnixMs), String> {
        let mut client = self.client(leader);
        let reply = self.call(leader.place(), self.0.deadline, client.read_index(ReadIndexRequest {})).await;
        match reply.map_err(|error| error.to_string())?.result {
            Some(read_index_reply::Result::Read(read)) => Ok((read.index, UnixMs::new(read.log_time_unix_ms))),
            Some(read_index_reply::Result::Unavailable(message)) => Err(message),
            None => Err(format!("{} sent a reply without a result; it may run another version", leader.address)),
        }
    }

    /// Asks a member to add this node to the cluster, or to move it. Returns the id of this node, and the members that
    /// the member knows.
    pub(crate) async fn join(&self, member: &Target, request: JoinRequest) -> (Result<u64, MembersError>, Vec<Target>) {
        let route = Route { invitation: self.0.sender.invitation.clone(), ..self.route(Some(member)) };
        let mut client = self.client_at(&member.address, Some(member.id), route);
        let reply = self.call(member.place(), self.0.deadline, client.join(request)).await;
        match reply {
            Ok(mut reply) => {
                let members = std::mem::take(&mut reply.members).into_iter().filter_map(target).collect();
                let id = reply.node;
                (members_result(Ok(reply)).map(|()| id), members)
            }
            Err(error) => (members_result(Err(error)).map(|()| 0), Vec::new()),
        }
    }

    /// Asks the leader to add another node to the cluster.
    pub(crate) async fn add(&self, leader: &Target, node: u64, address: String) -> Result<(), MembersError> {
        let mut client = self.client(leader);
        let added = client.add(AddRequest { node, address });
        members_result(self.call(leader.place(), self.0.deadline, added).await)
    }

    /// Asks the leader to make an invitation.
    pub(crate) async fn invite(&self, leader: &Target, request: InviteRequest) -> Result<(), MembersError> {
        let mut client = self.client(leader);
        members_result(self.call(leader.place(), self.0.deadline, client.invite(request)).await)
    }

    /// Asks the leader to revoke an invitation.
    pub(crate) async fn revoke_invitation(
        &self,
        leader: &Target,
        request: RevokeInvitationRequest,
    ) -> Result<(), MembersError> {
        let mut client = self.client(leader);
        members_result(self.call(leader.place(), self.0.deadline, client.revoke_invitation(request)).await)
    }

    /// Asks the leader to publish the key with which this node signs.
    pub(crate) async fn publish_key(&self, leader: &Target, request: PublishKeyRequest) -> Result<(), MembersError> {
        let mut client = self.client(leader);
        members_result(self.call(leader.place(), self.0.deadline, client.publish_key(request)).await)
    }

    /// Asks the leader to remove a node from the cluster.
    pub(crate) async fn remove(&self, leader: &Target, node: u64) -> Result<(), MembersError> {
        let request = RemoveRequest { node };
        let mut client = self.client(leader);
        members_result(self.call(leader.place(), self.0.deadline, client.remove(request)).await)
    }

    /// Asks the node at an address for its cluster and identity. With `node`, its certificate has to name that node.
    pub(crate) async fn hello(&self, address: &str, node: Option<u64>) -> Result<HelloReply, CallError> {
        let mut client = self.client_at(address, node, self.route(None));
        self.call((address, node), self.0.deadline, client.hello(HelloRequest {})).await
    }

    /// Finds out which node answers at an address, and that its certificate names it. Returns its cluster too.
    pub(crate) async fn identify(&self, address: &str) -> Result<(u128, Target), CallError> {
        let failed = |message: &str| CallError::Failed { address: address.to_owned(), message: message.to_owned() };
        let strange = || failed("it is not an Earmark node");
        let hello = self.hello(address, None).await?;
        let node = hello.node;
        if hello.cluster.is_empty() {
            return Err(failed("its cluster has not begun"));
        }
        let hello = self.hello(address, Some(node)).await?;
        let number = |bytes: &Bytes| bytes.first_chunk::<16>().copied().map(u128::from_le_bytes);
        let (cluster, incarnation) = number(&hello.cluster).zip(number(&hello.incarnation)).ok_or_else(strange)?;
        if hello.node != node {
            return Err(strange());
        }
        Ok((cluster, Target { id: node, address: address.to_owned(), incarnation }))
    }
}

/// A member named in a reply.
fn target(peer: Peer) -> Option<Target> {
    let incarnation = peer.incarnation.first_chunk::<16>().copied().map(u128::from_le_bytes)?;
    Some(Target { id: peer.node, address: peer.address, incarnation })
}

pub(crate) fn answered<T>(address: &str, answer: Result<tonic::Response<T>, tonic::Status>) -> Result<T, CallError> {
    answer.map(tonic::Response::into_inner).map_err(|status| {
        let message = status.message().to_owned();
        match status.code() {
            EXCLUDED => CallError::Excluded { message },
            _ => CallError::Failed { address: address.to_owned(), message },
        }
    })
}

fn members_result(reply: Result<MembersReply, CallError>) -> Result<(), MembersError> {
    let reply = reply.map_err(|error| match error {
        CallError::Excluded { message } => MembersError::Refused(message),
        error => MembersError::Unavailable(error.to_string()),
    })?;
    match reply.result {
        Some(members_reply::Result::Done(_)) => Ok(()),
        Some(members_reply::Result::Refused(message)) => Err(MembersError::Refused(message)),
        Some(members_reply::Result::Unavailable(message)) => Err(MembersError::Unavailable(message)),
        Some(members_reply::Result::Leader(leader)) => match target(leader) {
            Some(leader) => Err(MembersError::NotLeader(leader)),
            None => Err(MembersError::Unavailable("the member named no valid leader".into())),
        },
        None => Err(MembersError::Unavailable(
            "the member sent a reply without a result; it may run another version".into(),
        )),
    }
}

pub(crate) fn encode_outcomes(outcomes: &[Outcome]) -> Bytes {
    let mut bytes = Vec::with_capacity(outcomes.len().saturating_mul(16));
    outcomes.iter().for_each(|outcome| outcome.encode(&mut bytes));
    Bytes::from(bytes)
}

fn decode_outcomes(mut bytes: &[u8]) -> Option<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    while !bytes.is_empty() {
        let (outcome, used) = Outcome::decode(bytes).ok()?;
        outcomes.push(outcome);
        bytes = bytes.get(used..)?;
    }
    Some(outcomes)
}

fn channel(peers: &Inner, address: &str, node: Option<u64>) -> Channel {
    let (net, moved) = (Arc::clone(&peers.net), Arc::clone(&peers.moved));
    let connector = Connector { net, moved, address: address.to_owned(), node };
    // The connector chooses the real address; this one only has to be well-formed.
    Endpoint::from_static("http://peer")
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        // hyper remembers reset streams until late replies arrive. Their number is bounded, so time need not be. A
        // timeout would use the system clock and make simulations irreproducible.
        .http2_reset_stream_duration(RESET_STREAM_RETENTION)
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(8 << 20)
        .connect_with_connector_lazy(connector)
}

/// Connects to one address and ignores the requested URI.
struct Connector {
    net: Arc<dyn Net>,
    moved: MovedAddresses,
    address: String,
    /// Node that the certificate has to name.
    node: Option<u64>,
}

impl tower_service::Service<Uri> for Connector {
    type Response = TokioIo<Connection>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = std::io::Result<TokioIo<Connection>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner).get(&self.address).cloned();
        let connecting = self.net.connect(moved.unwrap_or_else(|| self.address.clone()));
        // The name of a node is its address in the membership, also while it is found elsewhere.
        let (node, name) = (self.node, self.address.clone());
        Box::pin(async move {
            let connection = connecting.await?;
            match node.filter(|node| !connection.peer_identity().may_act_as(*node, &name)) {
                None => Ok(TokioIo::new(connection)),
                Some(node) => {
                    let message = format!("its certificate names neither node {node} nor {name}");
                    // The caller only sees a failed connection, so the reason is logged here.
                    tracing::warn!(node, "connection refused: {message}");
                    Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, message))
                }
            }
        })
    }
}
