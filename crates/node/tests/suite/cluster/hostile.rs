//! Invalid messages, from a faulty program or corrupted on the way, are refused without damage.

use bytes::Bytes;
use earmark_admission::{BackendError, Cluster as _, KeyError, Keys as _, Token};
use earmark_core::{Command, CreateKey, Principal, Role, put_principal};
use earmark_node::{Node, NodeOptions, RealNet};
use earmark_proto::peer::{
    AppendRequest, Ballot, Entry, JoinRequest, LogEntryId, Route, SubmitRequest, VoteRequest, members_reply,
    submit_reply,
};
use std::sync::Arc;
use tonic::transport::Channel;

use crate::support::disk::SimDisk;
use crate::support::raw_peer::{self, RawClient};
use crate::support::sim_cluster::until;

const BLANK: &[u8] = &[1];
const LEADER: Ballot = Ballot { term: 5, node: 9, committed: true };

/// A leader with one follower, node 9, and a client that poses as that follower.
struct Victim {
    node: Node,
    _other: Option<Node>,
    channel: Channel,
    client: RawClient,
    route: Route,
}

impl Victim {
    async fn on(disk: &SimDisk) -> Victim {
        let listen = || Some("127.0.0.1:0".to_owned());
        let bootstrap = listen().into_iter().collect();
        let options = NodeOptions { peer_listen: listen(), bootstrap, ..NodeOptions::new(disk.mount()) };
        let node = Node::open(options).await.unwrap();
        let address = node.peer_address().unwrap().to_owned();
        until("it leads", || node.status().leader == Some(1)).await;
        let mut other = None;
        if node.status().members.len() == 1 {
            let options = NodeOptions::new(SimDisk::new().mount());
            let options = NodeOptions { id: Some(9), peer_listen: listen(), join: vec![address.clone()], ..options };
            other = Some(Node::open(options).await.unwrap());
            let is_voter = || node.status().members.iter().any(|member| member.node == 9 && member.is_voter);
            until("node 9 is a voter", is_voter).await;
        }
        let channel = raw_peer::channel(Arc::new(RealNet), &address).await.unwrap();
        let incarnation = other.as_ref().map_or(0, |other| other.identity().incarnation);
        // After a restart nobody knows the incarnation of node 9 here, and nobody needs it.
        let from = if other.is_some() { 9 } else { 8 };
        let route = raw_peer::route(&channel, from, incarnation).await;
        let client = raw_peer::client(&channel, Some(&route));
        Victim { node, _other: other, channel, client, route }
    }

    /// Asks to join as node 7.
    async fn join(&self, address: String) -> Option<members_reply::Result> {
        let mut client = raw_peer::client(&self.channel, Some(&Route { from: 7, address, ..self.route.clone() }));
        client.join(JoinRequest { check_only: false }).await.unwrap().into_inner().result
    }

    /// Raft handles messages in order, so a new snapshot proves that it survived all earlier ones.
    async fn leads_on(&self) {
        self.node.snapshot().await.unwrap();
        assert_eq!(self.node.failure().get(), None);
        let status = self.node.status();
        assert_eq!((status.leader, status.term), (Some(1), 1));
    }
}

fn entry_id(term: u64, index: u64) -> LogEntryId {
    LogEntryId { term, node: 9, index }
}

/// openraft assumes contiguous entries. It panicked or stopped on anything else.
#[tokio::test]
async fn entries_that_do_not_follow_on_each_other_are_refused_and_stop_nobody() {
    let mut victim = Victim::on(&SimDisk::new()).await;
    let first = Some(LogEntryId { term: 0, node: 0, index: 0 });
    let cases = [
        (None, vec![entry_id(5, 7)]),
        (first, vec![entry_id(5, 7)]),
        (first, vec![entry_id(5, u64::MAX)]),
        (first, vec![entry_id(5, 1), entry_id(5, 3)]),
        (first, vec![entry_id(5, 1), entry_id(5, 1)]),
        (first, vec![entry_id(5, 1), entry_id(4, 2)]),
        (first, vec![entry_id(6, 1)]),
        (Some(entry_id(5, u64::MAX)), vec![entry_id(5, 0)]),
    ];
    for (before, places) in cases {
        let entry = |id: &LogEntryId| Entry { id: Some(*id), payload: Bytes::from_static(BLANK), traces: Vec::new() };
        let request = AppendRequest {
            vote: Some(LEADER),
            before,
            entries: places.iter().map(entry).collect(),
            ..AppendRequest::default()
        };
        let refused = victim.client.append(request).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{places:?}: {refused}");
    }
    victim.leads_on().await;
}

/// An append with the vote of a candidate made openraft panic.
#[tokio::test]
async fn a_candidate_appends_nothing_and_a_leader_asks_for_no_votes() {
    let mut victim = Victim::on(&SimDisk::new()).await;
    let vote = Some(Ballot { committed: false, ..LEADER });
    let append = AppendRequest { vote, ..AppendRequest::default() };
    assert_eq!(victim.client.append(append).await.unwrap_err().code(), tonic::Code::InvalidArgument);
    let ask = VoteRequest { vote: Some(LEADER), last: Some(entry_id(5, 1_000)) };
    assert_eq!(victim.client.vote(ask).await.unwrap_err().code(), tonic::Code::InvalidArgument);
    victim.leads_on().await;
}

/// An entry was accepted with any bytes as its commands. It stopped the node when it was applied, and the node then
/// refused to start.
#[tokio::test]
async fn an_entry_that_cannot_be_applied_is_refused_and_stops_nobody() {
    let disk = SimDisk::new();
    let mut victim = Victim::on(&disk).await;
    let last = victim.node.status().last_log_index;
    let first = Some(LogEntryId { term: 0, node: 0, index: 0 });
    // A tag of commands, of invitations, of a membership, and of nothing, each followed by garbage.
    let mut header = vec![2, 1];
    header.extend([0; 16]);
    let no_voters = [3_u8, 0, 0, 0, 0, 0, 0, 0, 0];
    let long_address = [&[3_u8, 1, 0, 0, 0, 1, 0, 0, 0][..], &9_u64.to_le_bytes(), &1_u32.to_le_bytes()].concat();
    let member = [&9_u64.to_le_bytes()[..], &[0; 16], &1_000_u32.to_le_bytes(), &[b'x'; 1_000]].concat();
    let cases: [Vec<u8>; 8] = [
        vec![2],
        vec![2, 1, 0xff, 0xff],
        [&header[..], &1_u32.to_le_bytes(), &[0xee; 40]].concat(),
        [&header[..], &u32::MAX.to_le_bytes()].concat(),
        vec![2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 9],
        no_voters.to_vec(),
        [long_address, member].concat(),
        vec![9, 9, 9],
    ];
    for payload in cases {
        let entry = Entry { id: Some(entry_id(5, 1)), payload: payload.clone().into(), traces: Vec::new() };
        let request = AppendRequest {
            vote: Some(LEADER),
            before: first,
            entries: vec![entry],
            committed: Some(entry_id(5, 1)),
            ..AppendRequest::default()
        };
        let refused = victim.client.append(request).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{payload:?}: {refused}");
        assert!(refused.message().starts_with("entry 1: "), "{payload:?}: {refused}");
    }
    victim.leads_on().await;
    assert_eq!(victim.node.status().last_log_index, last);
    victim.node.shut_down().await;
    drop(victim);
    disk.kill();
    Victim::on(&disk).await.leads_on().await;
}

/// Without certificates, any local process could connect to the peer port and create an admin key in any name. So
/// such a cluster creates no keys.
#[tokio::test]
async fn whoever_reaches_the_port_of_nodes_without_a_certificate_makes_no_keys() {
    let mut victim = Victim::on(&SimDisk::new()).await;
    let token = Token::random().unwrap();
    let create = CreateKey {
        id: token.id().clone(),
        secret: token.hash(),
        name: "stranger".parse().unwrap(),
        role: Role::Admin,
        namespace: "default".parse().unwrap(),
        client: None,
        labels: earmark_core::Labels::default(),
        may_set: earmark_core::MaySet::default(),
        valid_seconds: None,
        is_first: false,
        actor: "client:root".parse().unwrap(),
    };
    for by in [Principal::System, Principal::Anonymous, Principal::Actor("user:7".parse().unwrap())] {
        let mut batch = vec![1];
        batch.extend([0; 16]);
        batch.extend(1_u32.to_le_bytes());
        put_principal(&mut batch, &by);
        Command::CreateKey(&create).encode(&mut batch);
        let request = SubmitRequest { batch: batch.into(), traces: Vec::new() };
        let answer = victim.client.submit(request).await.unwrap().into_inner().result;
        let Some(submit_reply::Result::NotTaken(why)) = answer else { panic!("{by:?}: {answer:?}") };
        assert!(why.contains("--peer-cert"), "{why}");
    }
    let asked = victim.node.backend().create(Principal::Anonymous, create).await;
    assert!(matches!(asked, Err(KeyError::Backend(BackendError::Failed(_)))), "{asked:?}");
    assert!(!victim.node.backend().has_keys());
    victim.leads_on().await;
}

/// The highest possible term was stored as a vote. Every later election panicked, on every node, after every start.
#[tokio::test]
async fn a_term_that_nothing_can_come_after_is_refused() {
    let mut victim = Victim::on(&SimDisk::new()).await;
    let vote = Some(Ballot { term: u64::MAX, ..LEADER });
    let append = AppendRequest { vote, ..AppendRequest::default() };
    assert_eq!(victim.client.append(append).await.unwrap_err().code(), tonic::Code::InvalidArgument);
    let ask = VoteRequest { vote, last: Some(entry_id(5, u64::MAX)) };
    assert_eq!(victim.client.vote(ask).await.unwrap_err().code(), tonic::Code::InvalidArgument);
    victim.leads_on().await;
}

/// Any request made its sender a learner, with any id and address. It never caught up, stayed a member, and used up
/// the id.
#[tokio::test]
async fn nobody_is_made_a_member_who_does_not_answer_where_it_says_it_is() {
    let victim = Victim::on(&SimDisk::new()).await;
    let own = victim.node.peer_address().unwrap().to_owned();
    for address in ["127.0.0.1:1".to_owned(), own] {
        let joined = victim.join(address).await;
        assert!(matches!(joined, Some(members_reply::Result::Unavailable(_))), "{joined:?}");
    }
    assert_eq!(victim.node.status().members.len(), 2);
    victim.leads_on().await;
}

/// A member with an address of one megabyte made the next snapshot header too long to read, after the log was purged.
/// No node could start again.
#[tokio::test]
async fn an_address_that_is_too_long_is_refused_and_snapshots_can_be_read() {
    let disk = SimDisk::new();
    let victim = Victim::on(&disk).await;
    for address in [String::new(), "x".repeat(4_000)] {
        let joined = victim.join(address).await;
        assert!(matches!(joined, Some(members_reply::Result::Refused(_))), "{joined:?}");
    }
    victim.leads_on().await;
    victim.node.shut_down().await;
    drop(victim);
    disk.kill();
    Victim::on(&disk).await.leads_on().await;
}
