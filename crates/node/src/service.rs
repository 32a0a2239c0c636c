//! Server side of the peer protocol.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use earmark_admission::InvitationId;
use earmark_proto::peer::peer_service_server::PeerService;
use earmark_proto::peer::{
    AddRequest, AppendReply, AppendRequest, Ballot, Empty, HelloReply, HelloRequest, InviteRequest, JoinRequest,
    JournalStateReply, JournalStateRequest, LastOnDisk, MembersReply, Peer, PublishKeyRequest, ReadIndex,
    ReadIndexReply, ReadIndexRequest, RemoveRequest, RevokeInvitationRequest, SnapshotPart, SnapshotReply, SubmitReply,
    SubmitRequest, VoteReply, VoteRequest, append_reply, members_reply, read_index_reply, snapshot_part, submit_reply,
};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse};
use openraft::{CommittedLeaderId, EntryPayload, Snapshot};
use tokio::time::Instant;
use tonic::{Request, Response, Status, Streaming};

use crate::auth::Caller;
use crate::batch::BatchReader;
use crate::entry::{take_payload, validate};
use crate::fault::Fault;
use crate::members::{Members, MembersError};
use crate::network::{ballot, entry_id, log_id, vote_of};
use crate::node::Timing;
use crate::peers::{Target, encode_outcomes};
use crate::proposer::{ProposeError, Proposer};
use crate::published_keys::NodeKey;
use crate::reads::Reads;
use crate::signing_key::PublicKey;
use crate::snapshot::{INCOMING, INCOMING_JOURNAL, SnapshotData};
use crate::storage::StoredFile;
use crate::traces;
use crate::types::{Batch, Entry, LogId, Vote};
use earmark_core::{Actor, SecretHash, UnixMs};

/// How long to wait for the next part of a snapshot. A closed connection ends the wait sooner.
const PART_DEADLINE: Duration = Duration::from_secs(30);

/// Election attempts of a node whose log is ahead of a candidate's.
const ELECTION_ATTEMPTS: usize = 2;

#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) cluster: u128,
    pub(crate) incarnation: u128,
    /// Address at which other nodes reach this one.
    pub(crate) address: String,
    pub(crate) proposer: Proposer,
    pub(crate) reads: Reads,
    pub(crate) members: Members,
    /// Held while a snapshot is received: all of them use the same file.
    pub(crate) receiving: Arc<tokio::sync::Mutex<()>>,
    pub(crate) timing: Timing,
    pub(crate) last_leader_contact: LeaderContact,
}

/// The last message of a leader.
#[derive(Clone)]
pub(crate) struct LeaderContact(Arc<Mutex<Contact>>);

struct Contact {
    at: Instant,
    /// The leader said that it has no quorum.
    lacks_quorum: bool,
}

impl Default for LeaderContact {
    fn default() -> LeaderContact {
        LeaderContact(Arc::new(Mutex::new(Contact { at: Instant::now(), lacks_quorum: false })))
    }
}

impl LeaderContact {
    pub(crate) fn elapsed(&self) -> Duration {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).at.elapsed()
    }

    /// Why a follower cannot expect its leader to commit. `silence_max` is the longest time without a message.
    pub(crate) fn problem(&self, silence_max: Duration) -> Option<String> {
        let contact = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match contact.at.elapsed() {
            silence if silence > silence_max => {
                Some(format!("the leader has not called this node for {:.1} s", silence.as_secs_f64()))
            }
            _ if contact.lacks_quorum => Some("no majority of the nodes answers the leader".into()),
            _ => None,
        }
    }

    fn record(&self, lacks_quorum: bool) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Contact { at: Instant::now(), lacks_quorum };
    }
}

impl Service {
    /// Whether the leader's lease has expired, so that another node may lead.
    fn is_lease_expired(&self) -> bool {
        self.last_leader_contact.elapsed() > self.timing.lease()
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

    async fn receive(&self, from: u64, parts: &mut Streaming<SnapshotPart>) -> Result<(Vote, SnapshotData), Status> {
        let cut = || Status::aborted("the snapshot stream ended early");
        let Some(snapshot_part::Part::Start(start)) = next(parts).await?.ok_or_else(cut)?.part else {
            return Err(Status::invalid_argument("the first part of a snapshot must be its start"));
        };
        let vote = leader_vote(from, start.vote)?;
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

/// Splits a request into its authorised sender and its message.
fn split_request<T>(request: Request<T>) -> Result<(Caller, T), Status> {
    let caller = request.extensions().get().cloned();
    let caller = caller.ok_or_else(|| Status::internal("the call was not authorised"))?;
    Ok((caller, request.into_inner()))
}

fn parse_vote(ballot: Option<Ballot>) -> Result<Vote, Status> {
    ballot.and_then(vote_of).ok_or_else(|| Status::invalid_argument("vote is missing or invalid"))
}

/// The vote of a leader, which has to be the sender's own. openraft assumes that a leader's vote is committed, and
/// panics otherwise.
fn leader_vote(from: u64, ballot: Option<Ballot>) -> Result<Vote, Status> {
    let vote = own_vote(from, ballot)?;
    vote.committed.then_some(vote).ok_or_else(|| Status::invalid_argument("the vote is not that of a leader"))
}

/// The vote of a candidate, which has to be the sender's own.
fn candidate_vote(from: u64, ballot: Option<Ballot>) -> Result<Vote, Status> {
    let vote = own_vote(from, ballot)?;
    (!vote.committed).then_some(vote).ok_or_else(|| Status::invalid_argument("the vote is not that of a candidate"))
}

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
        let (caller, request) = split_request(request)?;
        let vote = leader_vote(caller.node, request.vote)?;
        let mut entries = Vec::with_capacity(request.entries.len());
        let mut reader = BatchReader::default();
        for entry in request.entries {
            let id = entry.id.ok_or_else(|| Status::invalid_argument("an entry has no log id"))?;
            let payload = take_payload(entry.payload);
            let payload = payload.and_then(|payload| validate(&payload, &mut reader).map(|()| payload));
            let payload = payload.map_err(|error| Status::invalid_argument(format!("entry {}: {error}", id.index)))?;
            let payload = match payload {
                EntryPayload::Normal(batch) => {
                    EntryPayload::Normal(Batch { traces: traces::from_wire(&entry.traces), ..batch })
                }
                other => other,
            };
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
            self.last_leader_contact.record(request.lacks_quorum);
            match request.log_time_unix_ms {
                Some(now) => clock.learn(UnixMs::new(now)),
                None => log_time_unix_ms = clock.now(UnixMs::new(0)).map(|now| now.log.get()),
            }
        }
        Ok(Response::new(AppendReply { result: Some(result), log_time_unix_ms, wall_time_unix_ms: clock.wall().get() }))
    }

    async fn vote(&self, request: Request<VoteRequest>) -> Result<Response<VoteReply>, Status> {
        let (caller, request) = split_request(request)?;
        let vote = candidate_vote(caller.node, request.vote)?;
        let last = request.last.map(log_id);
        let rpc = openraft::raft::VoteRequest { vote, last_log_id: last };
        let voted = self.proposer.raft.vote(rpc).await;
        let reply = voted.map_err(|error| Status::unavailable(error.to_string()))?;
        let is_behind = !reply.vote_granted && last < reply.last_log_id;
        if is_behind && self.is_lease_expired() && !self.proposer.is_leader() {
            self.start_election();
        }
        Ok(Response::new(VoteReply {
            vote: Some(ballot(reply.vote)),
            granted: reply.vote_granted,
            last: reply.last_log_id.map(entry_id),
        }))
    }

    async fn journal_state(&self, _: Request<JournalStateRequest>) -> Result<Response<JournalStateReply>, Status> {
        let records = self.proposer.applied_state.journal.position().records;
        Ok(Response::new(JournalStateReply { records }))
    }

    async fn install_snapshot(
        &self,
        request: Request<Streaming<SnapshotPart>>,
    ) -> Result<Response<SnapshotReply>, Status> {
        let (caller, mut parts) = split_request(request)?;
        let one_at_a_time = Arc::clone(&self.receiving).lock_owned().await;
        let (vote, data) = self.receive(caller.node, &mut parts).await?;
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
        let SubmitRequest { batch, traces } = request.into_inner();
        let batch = Batch { bytes: batch, traces: traces::from_wire(&traces) };
        let (index, result) = match self.proposer.propose_for_peer(&batch).await {
            Ok((index, outcomes)) => (index, submit_reply::Result::Outcomes(encode_outcomes(&outcomes))),
            Err(ProposeError::NotTaken(message)) => (0, submit_reply::Result::NotTaken(message)),
            Err(ProposeError::Unknown(message)) => (0, submit_reply::Result::Unknown(message)),
            Err(ProposeError::NoSpace) => (0, submit_reply::Result::NoSpace(true)),
        };
        Ok(Response::new(SubmitReply { result: Some(result), index }))
    }

    async fn read_index(&self, _: Request<ReadIndexRequest>) -> Result<Response<ReadIndexReply>, Status> {
        let result = match self.reads.confirm().await {
            Ok((index, now)) => read_index_reply::Result::Read(ReadIndex { index, log_time_unix_ms: now.get() }),
            Err(message) => read_index_reply::Result::Unavailable(message),
        };
        Ok(Response::new(ReadIndexReply { result: Some(result) }))
    }

    async fn hello(&self, _: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        let (cluster, incarnation) = (bytes(self.cluster), bytes(self.incarnation));
        let (node, address) = (self.proposer.id, self.address.clone());
        Ok(Response::new(HelloReply { cluster, node, incarnation, address, ..HelloReply::default() }))
    }

    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<MembersReply>, Status> {
        let (caller, JoinRequest { check_only }) = split_request(request)?;
        let joined = self.members.join(&caller, check_only).await;
        let node = joined.as_ref().copied().unwrap_or(0);
        let members = self.members.list().into_iter().map(peer).collect();
        Ok(Response::new(MembersReply { members, node, ..members_reply(joined.map(drop)) }))
    }

    async fn add(&self, request: Request<AddRequest>) -> Result<Response<MembersReply>, Status> {
        let AddRequest { node, address } = request.into_inner();
        // Only the leader is asked. Forwarding again could go round in circles.
        let added = match self.proposer.is_leader() {
            true => self.members.add(node, address).await,
            false => Err(MembersError::Unavailable("this node is not the leader".into())),
        };
        Ok(Response::new(members_reply(added)))
    }

    async fn invite(&self, request: Request<InviteRequest>) -> Result<Response<MembersReply>, Status> {
        let InviteRequest { secret_hash, uses, expires_seconds, actor } = request.into_inner();
        let invalid = |what: &str| Status::invalid_argument(format!("{what} is invalid"));
        let hash = secret_hash.first_chunk::<32>().copied().ok_or_else(|| invalid("secret_hash"))?;
        let by = Actor::new(&actor).map_err(|_| invalid("actor"))?;
        let made = match self.proposer.is_leader() {
            true => self.members.invite(SecretHash::from_bytes(hash), by, uses, expires_seconds).await,
            false => Err(MembersError::Unavailable("this node is not the leader".into())),
        };
        Ok(Response::new(members_reply(made)))
    }

    async fn revoke_invitation(
        &self,
        request: Request<RevokeInvitationRequest>,
    ) -> Result<Response<MembersReply>, Status> {
        let RevokeInvitationRequest { id } = request.into_inner();
        let revoked = match self.proposer.is_leader() {
            true => self.members.revoke_invitation(InvitationId(id)).await,
            false => Err(MembersError::Unavailable("this node is not the leader".into())),
        };
        Ok(Response::new(members_reply(revoked)))
    }

    async fn publish_key(&self, request: Request<PublishKeyRequest>) -> Result<Response<MembersReply>, Status> {
        let (Caller { node, .. }, PublishKeyRequest { public_key }) = split_request(request)?;
        let bytes = <[u8; PublicKey::BYTES]>::try_from(&public_key[..]);
        let bytes = bytes.map_err(|_| Status::invalid_argument("public_key is invalid"))?;
        // A node publishes its own key only.
        let key = NodeKey { key: PublicKey(bytes), cluster: self.members.cluster, node };
        let published = match self.proposer.is_leader() {
            true => self.members.publish_key(key).await,
            false => Err(MembersError::Unavailable("this node is not the leader".into())),
        };
        Ok(Response::new(members_reply(published)))
    }

    async fn remove(&self, request: Request<RemoveRequest>) -> Result<Response<MembersReply>, Status> {
        let RemoveRequest { node } = request.into_inner();
        let removed = match self.proposer.is_leader() {
            true => self.members.remove(node).await,
            false => Err(MembersError::Unavailable("this node is not the leader".into())),
        };
        Ok(Response::new(members_reply(removed)))
    }
}

fn bytes(number: u128) -> Bytes {
    Bytes::copy_from_slice(&number.to_le_bytes())
}

fn peer(member: Target) -> Peer {
    Peer { node: member.id, incarnation: bytes(member.incarnation), address: member.address }
}

fn members_reply(done: Result<(), MembersError>) -> MembersReply {
    let result = match done {
        Ok(()) => members_reply::Result::Done(Empty {}),
        Err(MembersError::Refused(message)) => members_reply::Result::Refused(message),
        Err(MembersError::Unavailable(message)) => members_reply::Result::Unavailable(message),
        Err(MembersError::NotLeader(leader)) => members_reply::Result::Leader(peer(leader)),
    };
    MembersReply { result: Some(result), ..MembersReply::default() }
}
