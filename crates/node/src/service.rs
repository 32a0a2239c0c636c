//! Server side of the peer protocol.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use earmark_proto::peer::peer_service_server::PeerService;
use earmark_proto::peer::{
    AppendReply, AppendRequest, Ballot, Empty, HelloReply, HelloRequest, JoinRequest, JournalStateReply,
    JournalStateRequest, LastOnDisk, MembersReply, ReadIndex, ReadIndexReply, ReadIndexRequest, RemoveRequest, Route,
    SnapshotPart, SnapshotReply, SubmitReply, SubmitRequest, VoteReply, VoteRequest, append_reply, members_reply,
    read_index_reply, snapshot_part, submit_reply,
};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse};
use openraft::{CommittedLeaderId, Snapshot};
use tokio::time::Instant;
use tonic::{Request, Response, Status, Streaming};

use crate::entry::take_payload;
use crate::fault::Fault;
use crate::members::{Members, MembersError};
use crate::net::PeerIdentity;
use crate::network::{ballot, entry_id, log_id, vote_of};
use crate::node::Timing;
use crate::peers::{REMOVED, encode_outcomes};
use crate::proposer::{ProposeError, Proposer};
use crate::reads::Reads;
use crate::snapshot::{INCOMING, INCOMING_JOURNAL, SnapshotData};
use crate::storage::StoredFile;
use crate::types::{Batch, Entry, LogId, Member, Vote};
use earmark_core::UnixMs;

/// How long to wait for the next part of a snapshot. A closed connection ends the wait sooner.
const PART_DEADLINE: Duration = Duration::from_secs(30);

/// How long to look for a reason to refuse a node id.
const ID_CHECK_TIMEOUT: Duration = Duration::from_secs(1);
/// Election attempts of a node whose log is ahead of a candidate's.
const ELECTION_ATTEMPTS: usize = 2;

#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) cluster: u128,
    pub(crate) incarnation: u128,
    pub(crate) proposer: Proposer,
    pub(crate) reads: Reads,
    pub(crate) members: Members,
    /// Held while a snapshot is received: all of them use the same file.
    pub(crate) receiving: Arc<tokio::sync::Mutex<()>>,
    pub(crate) timing: Timing,
    /// When the last valid leader message arrived.
    pub(crate) last_leader_contact: Arc<Mutex<Instant>>,
}

impl Service {
    /// Whether the leader's lease has expired, so that another node may lead.
    fn is_lease_expired(&self) -> bool {
        self.last_leader_contact.lock().unwrap_or_else(PoisonError::into_inner).elapsed() > self.timing.lease()
    }

    /// Starts an election at once. A candidate with a shorter log gets no votes and waits long before its next
    /// attempt; this node would wait for its own timeout too.
    fn start_election(&self) {
        let (raft, pause) = (self.proposer.raft.clone(), self.timing.heartbeat);
        earmark_admission::spawn(async move {
            // The first attempt may be in the term in which the candidate voted for itself.
            for _ in 0..ELECTION_ATTEMPTS {
                if raft.trigger().elect().await.is_err() {
                    return;
                }
                tokio::time::sleep(pause).await;
                if raft.metrics().borrow().current_leader.is_some() {
                    return;
                }
            }
        });
    }

    /// Validates the sender and receiver of a message and returns the sender. Refuses messages for another node or
    /// cluster, with a foreign certificate, or from a removed node.
    fn check(&self, identity: &PeerIdentity, route: Option<Route>) -> Result<u64, Status> {
        let route = route.ok_or_else(|| Status::invalid_argument("route is missing"))?;
        if route.cluster != self.cluster.to_le_bytes().as_slice() {
            return Err(Status::failed_precondition("this node belongs to another cluster"));
        }
        if route.to != self.proposer.id {
            let id = self.proposer.id;
            return Err(Status::failed_precondition(format!("this is node {id}, not node {}", route.to)));
        }
        if route.incarnation != self.incarnation.to_le_bytes().as_slice() {
            let message = "this node runs on another data folder";
            return Err(Status::failed_precondition(message));
        }
        if !identity.may_act_as(route.from) {
            return Err(wrong_certificate(route.from));
        }
        // The metrics hold the membership too, without the contended state lock.
        let is_member = {
            let metrics = self.proposer.raft.metrics();
            let metrics = metrics.borrow();
            metrics.membership_config.membership().get_node(&route.from).is_some()
        };
        // A node that has just removed itself is told so elsewhere.
        if !is_member && self.check_voter(route.from).is_err() {
            let message = format!("node {} was removed from the cluster", route.from);
            return Err(Status::failed_precondition(message));
        }
        Ok(route.from)
    }

    /// Refuses a removed node. It may not know of its removal and would disturb the cluster with elections. Ids are
    /// never reused, so a removal is permanent.
    fn check_voter(&self, id: u64) -> Result<(), Status> {
        let state = self.proposer.applied_state.lock();
        if state.ids.contains(&id) && state.membership.membership().get_node(&id).is_none() {
            let message = format!(
                "node {id} was removed from the cluster: shut it down. To add it again, start it with a new data \
                 folder and an id that was never used"
            );
            return Err(Status::new(REMOVED, message));
        }
        Ok(())
    }

    /// Why a new node cannot use an id, as far as this node can tell quickly. Asked before the node creates its
    /// folder; a join is checked again.
    async fn id_refusal(&self, wanted: u64) -> Option<String> {
        tokio::time::timeout(ID_CHECK_TIMEOUT, self.reads.barrier()).await.ok()?.ok()?;
        self.members.refusal(wanted)
    }

    async fn receive(
        &self,
        identity: &PeerIdentity,
        parts: &mut Streaming<SnapshotPart>,
    ) -> Result<(Vote, SnapshotData), Status> {
        let cut = || Status::aborted("the snapshot stream ended early");
        let Some(snapshot_part::Part::Start(start)) = next(parts).await?.ok_or_else(cut)?.part else {
            return Err(Status::invalid_argument("the first part of a snapshot must be its start"));
        };
        let from = self.check(identity, start.route)?;
        let vote = own_vote(from, start.vote)?;
        let mut snapshot = self.incoming(INCOMING).await?;
        let mut journal = self.incoming(INCOMING_JOURNAL).await?;
        loop {
            match next(parts).await?.ok_or_else(cut)?.part {
                Some(snapshot_part::Part::Snapshot(bytes)) => snapshot.write(self, bytes).await?,
                Some(snapshot_part::Part::Journal(bytes)) => {
                    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes();
                    journal.write(self, Bytes::copy_from_slice(&len)).await?;
                    journal.write(self, bytes).await?;
                }
                Some(snapshot_part::Part::End(_)) => break,
                Some(snapshot_part::Part::Start(_)) | None => {
                    return Err(Status::invalid_argument("a part of the snapshot is invalid"));
                }
            }
        }
        let applied_state = Arc::clone(&self.proposer.applied_state);
        let checked = self.proposer.applied_state.disk.run(move || {
            let saved = applied_state.snapshots.read_header(INCOMING)?;
            let data = SnapshotData { journal: Some(journal.file), ..SnapshotData::of(saved) };
            applied_state.check(&data)?;
            Ok(data)
        });
        let data = checked.await.map_err(|fault| match fault {
            Fault::Io { .. } => self.stop_node(fault),
            Fault::Damaged { offset, found, .. } => {
                Status::data_loss(format!("the received snapshot is damaged at byte {offset}: {found}"))
            }
            other => internal(other),
        })?;
        Ok((vote, data))
    }

    /// Stops this node after a failed write of a snapshot. Otherwise the leader would send the snapshot forever and
    /// nobody would learn why this node never catches up.
    fn stop_node(&self, fault: Fault) -> Status {
        self.proposer.applied_state.failure().set(&fault);
        internal(fault)
    }

    async fn incoming(&self, path: &'static str) -> Result<Incoming, Status> {
        let disk = Arc::clone(&self.proposer.applied_state.disk);
        let handle = Arc::clone(&disk);
        let file = disk.run(move || handle.create_file(path)).await.map_err(|fault| self.stop_node(fault))?;
        Ok(Incoming { file, len: 0 })
    }
}

/// A file that receives data from another node.
struct Incoming {
    file: StoredFile,
    len: u64,
}

impl Incoming {
    async fn write(&mut self, service: &Service, bytes: Bytes) -> Result<(), Status> {
        let (file, offset) = (self.file.clone(), self.len);
        self.len = self.len.saturating_add(bytes.len() as u64);
        let written = service.proposer.applied_state.disk.run(move || file.write(&bytes, offset));
        written.await.map_err(|fault| service.stop_node(fault))
    }
}

/// The next part. The deadline frees the receiver after a sender has vanished.
async fn next(parts: &mut Streaming<SnapshotPart>) -> Result<Option<SnapshotPart>, Status> {
    let late = |_| Status::deadline_exceeded("the next part of the snapshot did not arrive in time");
    tokio::time::timeout(PART_DEADLINE, parts.message()).await.map_err(late)?
}

/// Splits a request into the sender's certificate identity and the message.
fn split_request<T>(request: Request<T>) -> Result<(PeerIdentity, T), Status> {
    let identity = request.extensions().get().cloned();
    let identity = identity.ok_or_else(|| Status::internal("the call has no connection information"))?;
    Ok((identity, request.into_inner()))
}

fn wrong_certificate(node: u64) -> Status {
    tracing::warn!(node, "message refused: the sender's certificate does not name this node");
    Status::unauthenticated(format!("the certificate does not name node {node}"))
}

fn parse_vote(ballot: Option<Ballot>) -> Result<Vote, Status> {
    ballot.and_then(vote_of).ok_or_else(|| Status::invalid_argument("vote is missing or invalid"))
}

/// The vote of a candidate or leader, which has to be the sender's own.
fn own_vote(from: u64, ballot: Option<Ballot>) -> Result<Vote, Status> {
    let vote = parse_vote(ballot)?;
    if vote.leader_id.node_id != from {
        let message = format!("node {from} sent the vote of node {}", vote.leader_id.node_id);
        return Err(Status::invalid_argument(message));
    }
    Ok(vote)
}

/// Checks that entries are contiguous and not newer than the sending leader. openraft assumes both and panics
/// otherwise.
fn check_entries(vote: Vote, before: Option<LogId>, entries: &[Entry]) -> Result<(), Status> {
    let leader = CommittedLeaderId::new(vote.leader_id.term, vote.leader_id.node_id);
    let mut last = before;
    for Entry { log_id, .. } in entries {
        let follows = match last {
            Some(last) => last.index.checked_add(1) == Some(log_id.index) && last.leader_id <= log_id.leader_id,
            None => log_id.index == 0,
        };
        if !follows || log_id.leader_id > leader {
            let message = format!("entry {log_id} does not follow the entry before it");
            return Err(Status::invalid_argument(message));
        }
        last = Some(*log_id);
    }
    Ok(())
}

fn internal(fault: Fault) -> Status {
    Status::internal(fault.to_string())
}

#[tonic::async_trait]
impl PeerService for Service {
    async fn append(&self, request: Request<AppendRequest>) -> Result<Response<AppendReply>, Status> {
        let (identity, request) = split_request(request)?;
        let from = self.check(&identity, request.route)?;
        let vote = own_vote(from, request.vote)?;
        let mut entries = Vec::with_capacity(request.entries.len());
        for entry in request.entries {
            let id = entry.id.ok_or_else(|| Status::invalid_argument("an entry has no log id"))?;
            let payload = take_payload(entry.payload).map_err(|error| Status::invalid_argument(error.to_string()))?;
            entries.push(Entry { log_id: log_id(id), payload });
        }
        let prev_log_id = request.before.map(log_id);
        check_entries(vote, prev_log_id, &entries)?;
        let rpc = AppendEntriesRequest { vote, prev_log_id, entries, leader_commit: request.committed.map(log_id) };
        let appended = self.proposer.raft.append_entries(rpc).await;
        let result = match appended.map_err(|error| Status::unavailable(error.to_string()))? {
            AppendEntriesResponse::Success => append_reply::Result::Success(Empty {}),
            AppendEntriesResponse::PartialSuccess(upto) => {
                append_reply::Result::Partial(LastOnDisk { id: upto.map(entry_id) })
            }
            AppendEntriesResponse::Conflict => append_reply::Result::Conflict(Empty {}),
            AppendEntriesResponse::HigherVote(vote) => append_reply::Result::HigherVote(ballot(vote)),
        };
        let clock = &self.proposer.clock;
        let mut log_time_unix_ms = None;
        // A sender that may append leads: it sends log time, or asks for it.
        if !matches!(result, append_reply::Result::HigherVote(_)) {
            *self.last_leader_contact.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            match request.log_time_unix_ms {
                Some(now) => clock.learn(UnixMs::new(now)),
                None => log_time_unix_ms = clock.now(UnixMs::new(0)).map(|now| now.log.get()),
            }
        }
        Ok(Response::new(AppendReply { result: Some(result), log_time_unix_ms, wall_time_unix_ms: clock.wall().get() }))
    }

    async fn vote(&self, request: Request<VoteRequest>) -> Result<Response<VoteReply>, Status> {
        let (identity, request) = split_request(request)?;
        let from = request.route.as_ref().map_or(0, |route| route.from);
        if !identity.may_act_as(from) {
            return Err(wrong_certificate(from));
        }
        self.check_voter(from)?;
        self.check(&identity, request.route)?;
        let vote = own_vote(from, request.vote)?;
        let last = request.last.map(log_id);
        let rpc = openraft::raft::VoteRequest { vote, last_log_id: last };
        let voted = self.proposer.raft.vote(rpc).await;
        let reply = voted.map_err(|error| Status::unavailable(error.to_string()))?;
        if !reply.vote_granted && last < reply.last_log_id && self.is_lease_expired() {
            self.start_election();
        }
        Ok(Response::new(VoteReply {
            vote: Some(ballot(reply.vote)),
            granted: reply.vote_granted,
            last: reply.last_log_id.map(entry_id),
        }))
    }

    async fn journal_state(
        &self,
        request: Request<JournalStateRequest>,
    ) -> Result<Response<JournalStateReply>, Status> {
        let (identity, request) = split_request(request)?;
        self.check(&identity, request.route)?;
        let records = self.proposer.applied_state.journal.position().records;
        Ok(Response::new(JournalStateReply { records }))
    }

    async fn install_snapshot(
        &self,
        request: Request<Streaming<SnapshotPart>>,
    ) -> Result<Response<SnapshotReply>, Status> {
        let one_at_a_time = Arc::clone(&self.receiving).lock_owned().await;
        let (identity, mut parts) = split_request(request)?;
        let (vote, data) = self.receive(&identity, &mut parts).await?;
        let snapshot = Snapshot { meta: data.saved.header.meta(), snapshot: Box::new(data) };
        let raft = self.proposer.raft.clone();
        // The file is in use until the installation ends, even if the sender gives up.
        let installing = earmark_admission::spawn(async move {
            let _one_at_a_time = one_at_a_time;
            raft.install_full_snapshot(vote, snapshot).await
        });
        let installed = installing.await.map_err(|error| Status::aborted(error.to_string()))?;
        let reply = installed.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(Response::new(SnapshotReply { vote: Some(ballot(reply.vote)) }))
    }

    async fn submit(&self, request: Request<SubmitRequest>) -> Result<Response<SubmitReply>, Status> {
        let (identity, request) = split_request(request)?;
        self.check(&identity, request.route)?;
        let (index, result) = match self.proposer.propose_for_peer(&Batch(request.batch)).await {
            Ok((index, outcomes)) => (index, submit_reply::Result::Outcomes(encode_outcomes(&outcomes))),
            Err(ProposeError::NotTaken(message)) => (0, submit_reply::Result::NotTaken(message)),
            Err(ProposeError::Unknown(message)) => (0, submit_reply::Result::Unknown(message)),
        };
        Ok(Response::new(SubmitReply { result: Some(result), index }))
    }

    async fn read_index(&self, request: Request<ReadIndexRequest>) -> Result<Response<ReadIndexReply>, Status> {
        let (identity, request) = split_request(request)?;
        self.check(&identity, request.route)?;
        let result = match self.reads.confirm().await {
            Ok((index, now)) => read_index_reply::Result::Read(ReadIndex { index, log_time_unix_ms: now.get() }),
            Err(message) => read_index_reply::Result::Unavailable(message),
        };
        Ok(Response::new(ReadIndexReply { result: Some(result) }))
    }

    async fn hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        let wanted = request.into_inner().wanted;
        let refused = if wanted == 0 { None } else { self.id_refusal(wanted).await };
        let bytes = |number: u128| Bytes::copy_from_slice(&number.to_le_bytes());
        Ok(Response::new(HelloReply {
            cluster: bytes(self.cluster),
            node: self.proposer.id,
            incarnation: bytes(self.incarnation),
            refused: refused.unwrap_or_default(),
        }))
    }

    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<MembersReply>, Status> {
        let (identity, request) = split_request(request)?;
        let JoinRequest { cluster, node, address, incarnation, is_met } = request;
        let incarnation = incarnation.first_chunk::<16>().copied().map(u128::from_le_bytes);
        let joined = match incarnation {
            _ if cluster != self.cluster.to_le_bytes().as_slice() => {
                Err(MembersError::Refused("this node belongs to another cluster".into()))
            }
            // A member that forwards a join request has verified the joining node itself.
            _ if !is_met && !identity.may_act_as(node) => {
                Err(MembersError::Refused(wrong_certificate(node).message().to_owned()))
            }
            None => Err(MembersError::Refused("incarnation is missing".into())),
            Some(incarnation) => {
                let member = Member { address, incarnation };
                let met = if is_met { Ok(()) } else { self.members.verify_member(node, &member).await };
                match met {
                    Ok(()) => self.members.add(node, member).await,
                    Err(error) => Err(error),
                }
            }
        };
        Ok(Response::new(members_reply(joined)))
    }

    async fn remove(&self, request: Request<RemoveRequest>) -> Result<Response<MembersReply>, Status> {
        let (identity, RemoveRequest { route, node }) = split_request(request)?;
        self.check(&identity, route)?;
        Ok(Response::new(members_reply(self.members.remove(node).await)))
    }
}

fn members_reply(done: Result<(), MembersError>) -> MembersReply {
    let result = match done {
        Ok(()) => members_reply::Result::Done(Empty {}),
        Err(MembersError::Refused(message)) => members_reply::Result::Refused(message),
        Err(MembersError::Unavailable(message)) => members_reply::Result::Unavailable(message),
    };
    MembersReply { result: Some(result) }
}
