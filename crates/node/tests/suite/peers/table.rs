//! The table of peer calls: every call, with every kind of certificate, to a node in every state.

use std::sync::Arc;

use bytes::Bytes;
use earmark_admission::{Cluster as _, NewInvitation};
use earmark_node::{Net, Node, RealNet, TlsNet};
use earmark_proto::PEER_METHODS;
use earmark_proto::peer::{
    AddRequest, AppendRequest, Ballot, HelloRequest, InviteRequest, JoinRequest, JournalStateRequest,
    PublishKeyRequest, ReadIndexRequest, RemoveRequest, RevokeInvitationRequest, Route, SnapshotPart, SnapshotStart,
    SubmitRequest, VoteRequest, snapshot_part,
};
use tonic::{Code, Status};

use crate::support::raw_peer::{self, RawClient};
use crate::support::real_cluster::{folder, until};
use crate::tls::{Named, authority, invite, named};

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// There is no connection.
    Cut,
    /// The certificate does not name the sender.
    Unnamed,
    /// The sender is refused for good.
    Excluded,
    /// The sender is not a member.
    Stranger,
    /// The call is authorised.
    Heard,
}
use Answer::{Cut, Excluded, Heard, Stranger, Unnamed};

/// The certificate of a caller, and what it says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Certificate {
    None,
    ForeignAuthority,
    Member,
    OtherMember,
    /// The certificate of a member, in a call that says it is from another member.
    NodeForAnother,
    /// The certificate of a member, in a call from another data folder.
    OtherFolder,
    Removed,
    NeverMember,
    Invited,
}

const CERTIFICATES: [Certificate; 9] = [
    Certificate::None,
    Certificate::ForeignAuthority,
    Certificate::Member,
    Certificate::OtherMember,
    Certificate::NodeForAnother,
    Certificate::OtherFolder,
    Certificate::Removed,
    Certificate::NeverMember,
    Certificate::Invited,
];

/// One call: its answers by certificate at a member (leader or follower), and at a node that waits to be added and knows
/// node 1 from its `--join`.
struct Row {
    call: &'static str,
    member: [Answer; CERTIFICATES.len()],
    waiting: [Answer; CERTIFICATES.len()],
}

const fn members_only(call: &'static str) -> Row {
    Row {
        call,
        member: [Cut, Cut, Heard, Heard, Unnamed, Excluded, Excluded, Stranger, Stranger],
        waiting: [Cut, Cut, Heard, Stranger, Unnamed, Stranger, Stranger, Stranger, Stranger],
    }
}

/// A call without a row does not compile.
const TABLE: [Row; PEER_METHODS.len()] = [
    members_only("Append"),
    members_only("Vote"),
    members_only("JournalState"),
    members_only("InstallSnapshot"),
    members_only("Submit"),
    members_only("ReadIndex"),
    Row {
        call: "Hello",
        member: [Cut, Cut, Heard, Heard, Unnamed, Excluded, Excluded, Heard, Heard],
        waiting: [Cut, Cut, Heard, Heard, Unnamed, Heard, Heard, Heard, Heard],
    },
    Row {
        call: "Join",
        member: [Cut, Cut, Heard, Heard, Unnamed, Excluded, Excluded, Stranger, Heard],
        waiting: [Cut, Cut, Heard, Stranger, Unnamed, Stranger, Stranger, Stranger, Stranger],
    },
    members_only("Add"),
    members_only("Invite"),
    members_only("RevokeInvitation"),
    members_only("PublishKey"),
    members_only("Remove"),
];

/// Makes a call that changes nothing, even if it is heard.
async fn call(client: &mut RawClient, call: &str, from: u64) -> Result<(), Status> {
    // The vote of a leader whose term has passed.
    let vote = Some(Ballot { term: 0, node: from, committed: true });
    let candidate = Some(Ballot { term: 0, node: from, committed: false });
    match call {
        "Append" => client.append(AppendRequest { vote, ..AppendRequest::default() }).await.map(drop),
        "Vote" => client.vote(VoteRequest { vote: candidate, last: None }).await.map(drop),
        "JournalState" => client.journal_state(JournalStateRequest {}).await.map(drop),
        "InstallSnapshot" => {
            let start = snapshot_part::Part::Start(SnapshotStart { vote });
            client.install_snapshot(tokio_stream::iter([SnapshotPart { part: Some(start) }])).await.map(drop)
        }
        "Submit" => client.submit(SubmitRequest { batch: vec![0].into(), traces: Vec::new() }).await.map(drop),
        "ReadIndex" => client.read_index(ReadIndexRequest {}).await.map(drop),
        "Hello" => client.hello(HelloRequest {}).await.map(drop),
        "Join" => client.join(JoinRequest { check_only: true }).await.map(drop),
        "Add" => client.add(AddRequest { node: 66, address: "127.0.0.1:1".into() }).await.map(drop),
        "Invite" => client.invite(InviteRequest::default()).await.map(drop),
        "RevokeInvitation" => client.revoke_invitation(RevokeInvitationRequest { id: 7 }).await.map(drop),
        // A key of no bytes is refused.
        "PublishKey" => client.publish_key(PublishKeyRequest::default()).await.map(drop),
        "Remove" => client.remove(RemoveRequest { node: 999 }).await.map(drop),
        other => panic!("{other} has no request here"),
    }
}

struct World {
    named: Named,
    /// Node 4, removed.
    removed: (u64, u128),
    /// Node 5, which waits to be added.
    waiting: Node,
    /// An invitation that nobody has used.
    invitation: String,
    foreign: TlsNet,
}

/// The leader, and a node that follows it.
fn leader_and_follower(nodes: &[Node]) -> [&Node; 2] {
    let leader = nodes.iter().find(|node| node.status().leader == Some(node.status().node)).unwrap();
    [leader, nodes.iter().find(|node| node.status().node != leader.status().node).unwrap()]
}

/// Two members other than this node.
fn others(node: &Node) -> [u64; 2] {
    let id = node.status().node;
    let mut others = (1..=3).filter(|other| *other != id);
    [others.next().unwrap(), others.next().unwrap()]
}

impl World {
    async fn start() -> World {
        let mut named = Named::of(4).await;
        let gone = named.nodes.pop().unwrap();
        let removed = (4, gone.identity().incarnation);
        named.nodes[0].remove(4).await.unwrap();
        gone.shut_down().await;
        for node in &named.nodes {
            until(|| node.status().members.len() == 3 && node.status().leader.is_some()).await;
        }
        let waiting_folder = folder();
        let waiting = Node::open(named.joining(5, &waiting_folder, None)).await.unwrap();
        named.folders.push(waiting_folder);
        let invitation = invite(&named.nodes[0], NewInvitation::default()).await;
        for node in &named.nodes {
            let last = named.nodes[0].status().last_log_index;
            until(|| node.status().applied_index >= last).await;
        }
        let foreign = self::named(named.pems.path(), "foreign", &["earmark://node/2"], &authority(), &named.ours);
        let foreign = TlsNet::open(foreign).unwrap();
        World { named, removed, waiting, invitation, foreign }
    }

    /// The network of a caller, and what it says about itself. `members` are two members other than the receiver.
    fn caller(&self, certificate: Certificate, members: [u64; 2]) -> (Arc<dyn Net>, u64, u128) {
        let [member, other] = members;
        let tls = |id| Arc::new(self.named.net(id)) as Arc<dyn Net>;
        let incarnation = |id: u64| self.named.nodes[id as usize - 1].identity().incarnation;
        match certificate {
            Certificate::None => (Arc::new(RealNet), member, incarnation(member)),
            Certificate::ForeignAuthority => (Arc::new(self.foreign.clone()), member, incarnation(member)),
            Certificate::Member => (tls(member), member, incarnation(member)),
            Certificate::OtherMember => (tls(other), other, incarnation(other)),
            Certificate::NodeForAnother => (tls(other), member, incarnation(member)),
            Certificate::OtherFolder => (tls(member), member, 1),
            Certificate::Removed => (tls(self.removed.0), self.removed.0, self.removed.1),
            Certificate::NeverMember => (tls(66), 66, 66),
            Certificate::Invited => (tls(7), 7, 70),
        }
    }

    async fn ask(&self, to: &Node, path: &str, certificate: Certificate, members: [u64; 2]) -> Answer {
        let (net, from, incarnation) = self.caller(certificate, members);
        let bytes = |number: u128| Bytes::copy_from_slice(&number.to_le_bytes());
        let identity = to.identity();
        let route = Route {
            cluster: bytes(identity.cluster),
            from,
            from_incarnation: bytes(incarnation),
            to: identity.node,
            to_incarnation: bytes(identity.incarnation),
            invitation: if certificate == Certificate::Invited { self.invitation.clone() } else { String::new() },
            address: "127.0.0.1:1".into(),
        };
        let Ok(channel) = raw_peer::channel(net, to.peer_address().unwrap()).await else { return Cut };
        match call(&mut raw_peer::client(&channel, Some(&route)), path, from).await {
            Ok(()) => Heard,
            // The connection broke: the status is not from the node.
            Err(status) if std::error::Error::source(&status).is_some() => Cut,
            Err(status) => match status.code() {
                Code::Unauthenticated => Unnamed,
                Code::PermissionDenied => Excluded,
                Code::FailedPrecondition => Stranger,
                Code::InvalidArgument | Code::Aborted => Heard,
                _ => panic!("{path} by {certificate:?}: {status:?}"),
            },
        }
    }
}

/// `Join` with `is_met` skipped every check: with the certificate of a removed node, an invented node became a learner
/// and a living one was moved to a dead address. A certificate of a node that was never a member could append.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_peer_call_is_heard_from_the_nodes_that_may_make_it_and_no_others() {
    let world = World::start().await;
    let nodes = &world.named.nodes;
    let [leader, follower] = leader_and_follower(nodes);
    let term = leader.status().term;
    let mut wrong = Vec::new();
    for row in &TABLE {
        for (place, certificate) in CERTIFICATES.into_iter().enumerate() {
            for (state, node) in [("leader", leader), ("follower", follower), ("waiting", &world.waiting)] {
                let expected = if state == "waiting" { row.waiting[place] } else { row.member[place] };
                let found = world.ask(node, row.call, certificate, others(node)).await;
                if found != expected {
                    wrong.push(format!("{} to {state} by {certificate:?}: {found:?}, not {expected:?}", row.call));
                }
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    let names: Vec<&str> = PEER_METHODS.iter().filter_map(|path| path.rsplit('/').next()).collect();
    assert_eq!(names, TABLE.map(|row| row.call));
    for node in nodes {
        let status = node.status();
        assert_eq!((status.term, status.members.len()), (term, 3));
        assert_eq!(node.failure().get(), None);
    }
    assert_eq!(world.waiting.status().last_log_index, None);
}

/// A follower may not have applied an invitation yet. It refused the node for good, which then stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_leader_refuses_an_unknown_invitation_for_good() {
    let world = World { invitation: "emi_guess".into(), ..World::start().await };
    let [leader, follower] = leader_and_follower(&world.named.nodes);
    for (node, expected) in [(leader, Excluded), (follower, Stranger)] {
        assert_eq!(world.ask(node, "Join", Certificate::Invited, others(node)).await, expected);
    }
}

/// The calls of the penetration test, as they were made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_appends_nothing_at_any_term_and_moves_nobody() {
    let world = World::start().await;
    let term = world.named.nodes[0].status().term;
    let bytes = |number: u128| Bytes::copy_from_slice(&number.to_le_bytes());
    let append = |from| AppendRequest {
        vote: Some(Ballot { term: 50, node: from, committed: true }),
        ..AppendRequest::default()
    };
    for to in world.named.nodes.iter().chain([&world.waiting]) {
        let own = to.identity();
        for (from, incarnation) in [(66, 66), world.removed] {
            let net = Arc::new(world.named.net(from));
            let channel = raw_peer::channel(net, to.peer_address().unwrap()).await.unwrap();
            let route = Route {
                cluster: bytes(own.cluster),
                from,
                from_incarnation: bytes(incarnation),
                to: own.node,
                to_incarnation: bytes(own.incarnation),
                ..Route::default()
            };
            let appended = raw_peer::client(&channel, Some(&route)).append(append(from)).await;
            assert!(appended.is_err(), "node {from} to node {}", own.node);
            // As an invented node, and as a living one at a dead address.
            for from in [66, 2] {
                let route = Route { from, address: "127.0.0.1:1".into(), ..route.clone() };
                let join = JoinRequest { check_only: false };
                assert!(raw_peer::client(&channel, Some(&route)).join(join).await.is_err(), "node {from}");
            }
        }
    }
    for node in &world.named.nodes {
        let status = node.status();
        assert_eq!((status.term, status.members.len()), (term, 3));
        assert!(status.members.iter().all(|member| member.address != "127.0.0.1:1"));
    }
    assert_ne!(world.waiting.status().term, 50);
}

/// Without a route, with two of them, or with one that is garbage, a call is refused before its message is read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_without_a_valid_route_is_refused() {
    let named = Named::of(1).await;
    let channel = raw_peer::channel(Arc::new(named.net(2)), named.nodes[0].peer_address().unwrap()).await.unwrap();
    let refusal = raw_peer::client(&channel, None).hello(HelloRequest {}).await.unwrap_err();
    assert_eq!(refusal.code(), Code::InvalidArgument, "{refusal}");
    let nobody = Route::default();
    let refusal = raw_peer::client(&channel, Some(&nobody)).hello(HelloRequest {}).await.unwrap_err();
    assert_eq!(refusal.code(), Code::Unauthenticated, "{refusal}");
}
