//! Invalid messages, from a faulty program or corrupted on the way, are refused without damage.

use bytes::Bytes;
use earmark_admission::{BackendError, Cluster as _, KeyError, Keys as _, Token};
use earmark_core::{Command, CreateKey, Principal, Role, put_principal};
use earmark_node::{Node, NodeOptions};
use earmark_proto::peer::peer_service_client::PeerServiceClient;
use earmark_proto::peer::{
    AppendRequest, Ballot, Entry, HelloRequest, JoinRequest, LogEntryId, Route, SubmitRequest, VoteRequest,
    members_reply, submit_reply,
};
use tonic::transport::Channel;

use crate::support::disk::SimDisk;
use crate::support::sim_cluster::until;

const BLANK: &[u8] = &[1];
const LEADER: Ballot = Ballot { term: 5, node: 9, committed: true };

/// A single node, and a client that poses as another member.
struct Victim {
    node: Node,
    client: PeerServiceClient<Channel>,
    route: Route,
}

impl Victim {
    async fn on(disk: &SimDisk) -> Victim {
        let options = NodeOptions { peer_listen: Some("127.0.0.1:0".into()), ..NodeOptions::new(disk.mount()) };
        let node = Node::open(options).await.unwrap();
        let url = format!("http://{}", node.peer_address().unwrap());
        let channel = Channel::from_shared(url).unwrap().connect().await.unwrap();
        let mut client = PeerServiceClient::new(channel);
        let hello = client.hello(HelloRequest::default()).await.unwrap().into_inner();
        let route = Route { cluster: hello.cluster, from: 9, to: hello.node, incarnation: hello.incarnation };
        until("it leads", || node.status().leader == Some(1)).await;
        Victim { node, client, route }
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
        let entry = |id: &LogEntryId| Entry { id: Some(*id), payload: Bytes::from_static(BLANK) };
        let request = AppendRequest {
            route: Some(victim.route.clone()),
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
        let request = SubmitRequest { route: Some(victim.route.clone()), batch: batch.into() };
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
    let route = Some(victim.route.clone());
    let append = AppendRequest { route: route.clone(), vote, ..AppendRequest::default() };
    assert_eq!(victim.client.append(append).await.unwrap_err().code(), tonic::Code::InvalidArgument);
    let ask = VoteRequest { route, vote, last: Some(entry_id(5, u64::MAX)) };
    assert_eq!(victim.client.vote(ask).await.unwrap_err().code(), tonic::Code::InvalidArgument);
    victim.leads_on().await;
}

/// Any request made its sender a learner, with any id and address. It never caught up, stayed a member, and used up
/// the id.
#[tokio::test]
async fn nobody_is_made_a_member_who_does_not_answer_where_it_says_it_is() {
    let mut victim = Victim::on(&SimDisk::new()).await;
    let own = victim.node.peer_address().unwrap().to_owned();
    for address in ["127.0.0.1:1".to_owned(), own] {
        let Route { cluster, incarnation, .. } = victim.route.clone();
        let join = victim.client.join(JoinRequest { cluster, node: 7, address, incarnation, is_met: false }).await;
        let joined = join.unwrap().into_inner().result;
        assert!(matches!(joined, Some(members_reply::Result::Unavailable(_))), "{joined:?}");
    }
    assert_eq!(victim.node.status().members.len(), 1);
    victim.leads_on().await;
}

/// A member with an address of one megabyte made the next snapshot header too long to read, after the log was purged.
/// No node could start again.
#[tokio::test]
async fn an_address_that_is_too_long_is_refused_and_snapshots_can_be_read() {
    let disk = SimDisk::new();
    let mut victim = Victim::on(&disk).await;
    for address in [String::new(), "x".repeat(1 << 20)] {
        let Route { cluster, incarnation, .. } = victim.route.clone();
        let join = victim.client.join(JoinRequest { cluster, node: 7, address, incarnation, is_met: false }).await;
        let joined = join.unwrap().into_inner().result;
        assert!(matches!(joined, Some(members_reply::Result::Refused(_))), "{joined:?}");
    }
    victim.leads_on().await;
    victim.node.shut_down().await;
    drop(victim);
    disk.kill();
    Victim::on(&disk).await.leads_on().await;
}
