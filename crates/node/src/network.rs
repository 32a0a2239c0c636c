//! Raft messages from this node to its peers.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use earmark_core::UnixMs;
use earmark_proto::peer::{
    AppendRequest, Ballot, Empty, Entry as WireEntry, JournalStateRequest, LogEntryId, SnapshotPart, SnapshotStart,
    VoteRequest as WireVote, append_reply, snapshot_part,
};
use openraft::error::{
    Fatal, NetworkError, RPCError, RaftError, ReplicationClosed, StreamingError, Timeout, Unreachable,
};
use openraft::network::{RPCOption, RPCTypes};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse};
use openraft::{AnyError, CommittedLeaderId, RaftMetrics, RaftNetwork, RaftNetworkFactory, Snapshot};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::ReceiverStream;

use crate::clock::NodeClock;
use crate::entry::put_payload;
use crate::fault::Fault;
use crate::peers::{CallError, Peers, Target, answered};
use crate::snapshot::SnapshotData;
use crate::state_machine::AppliedState;
use crate::traces;
use crate::types::{LogId, Member, Types, Vote};

/// Snapshot part size in bytes.
const PART_BYTES: usize = 256 << 10;
/// Snapshot parts queued for the network.
const PARTS_WAITING: usize = 8;
/// How long the network may take to accept one part.
const PART_DEADLINE: Duration = Duration::from_secs(60);
/// Slowest disk supported, in bytes per second. Bounds the installation time of a received snapshot.
const INSTALL_BYTES_PER_SECOND: u64 = 4 << 20;

/// Highest accepted term. Thousands of elections a second would need millennia to reach it.
const TERM_MAX: u64 = 1 << 48;
const NO_ANSWER: &str = "the reply is incomplete";

type RpcError = RPCError<u64, Member, RaftError<u64>>;

/// Makes the connections that Raft asks for, one per peer.
pub(crate) struct Network {
    pub(crate) id: u64,
    pub(crate) peers: Peers,
    pub(crate) clock: Arc<NodeClock>,
    pub(crate) applied_state: Arc<AppliedState>,
    pub(crate) quorum: QuorumWatch,
}

/// Whether this node, as a leader, has a quorum. The metrics of Raft exist once Raft has its network.
#[derive(Clone)]
pub(crate) struct QuorumWatch {
    pub(crate) lease: Duration,
    pub(crate) metrics: Arc<OnceLock<watch::Receiver<RaftMetrics<u64, Member>>>>,
}

impl QuorumWatch {
    pub(crate) fn new(lease: Duration) -> QuorumWatch {
        QuorumWatch { lease, metrics: Arc::default() }
    }

    /// Whether no quorum has answered this leader for longer than its lease. A new leader has not been answered yet.
    fn is_lacking(&self) -> bool {
        let silence = self.metrics.get().and_then(|metrics| metrics.borrow().millis_since_quorum_ack);
        silence.is_some_and(|ms| Duration::from_millis(ms) > self.lease)
    }
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Link;

    async fn new_client(&mut self, target: u64, member: &Member) -> Link {
        Link {
            id: self.id,
            target: Target { id: target, address: member.address.clone(), incarnation: member.incarnation },
            peers: self.peers.clone(),
            clock: Arc::clone(&self.clock),
            applied_state: Arc::clone(&self.applied_state),
            quorum: self.quorum.clone(),
        }
    }
}

/// The connection of Raft to one peer.
pub(crate) struct Link {
    id: u64,
    target: Target,
    peers: Peers,
    clock: Arc<NodeClock>,
    applied_state: Arc<AppliedState>,
    quorum: QuorumWatch,
}

impl Link {
    fn failed<E: std::error::Error>(&self, action: RPCTypes, error: CallError) -> RPCError<u64, Member, E> {
        match error {
            CallError::Failed { .. } => RPCError::Unreachable(Unreachable::new(&error)),
            CallError::Excluded { .. } => {
                self.applied_state.failure().set(&error);
                RPCError::Unreachable(Unreachable::new(&error))
            }
            CallError::TimedOut { deadline, .. } => {
                let Link { id, target, .. } = self;
                RPCError::Timeout(Timeout { action, id: *id, target: target.id, timeout: deadline })
            }
        }
    }

    /// Sends a whole snapshot with the journal records that the peer lacks. There is no overall deadline, only one
    /// per part: a journal may hold years of history.
    async fn send(&self, vote: Vote, snapshot: Snapshot<Types>, option: &RPCOption) -> Result<Vote, CallError> {
        let address = &self.target.address;
        let failed = |message: String| CallError::Failed { address: address.clone(), message };
        let mut client = self.peers.client(&self.target);
        let state = client.journal_state(JournalStateRequest {});
        let has = self.peers.call(self.target.place(), option.hard_ttl(), state).await?.records;

        let (sender, receiver) = mpsc::channel(PARTS_WAITING);
        let start = SnapshotStart { vote: Some(ballot(vote)) };
        let saved = &snapshot.snapshot.saved;
        let bytes = saved.len.saturating_add(saved.header.journal.bytes);
        let deadline = option.hard_ttl() + Duration::from_secs(bytes / INSTALL_BYTES_PER_SECOND);
        let reading =
            earmark_admission::spawn(read_out(Arc::clone(&self.applied_state), *snapshot.snapshot, has, start, sender));
        let late = async {
            match reading.await {
                Err(error) => failed(error.to_string()),
                Ok(Err(fault)) => failed(fault.to_string()),
                Ok(Ok(())) => {
                    tokio::time::sleep(deadline).await;
                    CallError::TimedOut { address: address.clone(), deadline }
                }
            }
        };
        let reply = tokio::select! {
            // A local read error is checked first, because it explains any reply of the peer.
            biased;
            error = late => Err(error),
            answer = client.install_snapshot(ReceiverStream::new(receiver)) => answered(address, answer),
        };
        reply?.vote.and_then(vote_of).ok_or_else(|| failed(NO_ANSWER.into()))
    }
}

/// Reads a snapshot and the rest of its journal part by part. Stops when the receiver is gone.
async fn read_out(
    applied_state: Arc<AppliedState>,
    data: SnapshotData,
    has: u64,
    start: SnapshotStart,
    parts: mpsc::Sender<SnapshotPart>,
) -> Result<(), Fault> {
    let send = async |part: snapshot_part::Part| {
        let sent = timeout(PART_DEADLINE, parts.send(SnapshotPart { part: Some(part) })).await;
        let why = || format!("the receiver accepted no part of the snapshot for {PART_DEADLINE:?}");
        sent.map(|sent| sent.is_ok()).map_err(|_| Fault::Stopped { why: why() })
    };
    if !send(snapshot_part::Part::Start(start)).await? {
        return Ok(());
    }
    let saved = data.saved;
    let mut offset = 0;
    while offset < saved.len {
        let len = usize::try_from(saved.len - offset).unwrap_or(PART_BYTES).min(PART_BYTES);
        let file = saved.file.clone();
        let part = applied_state.disk.run(move || {
            let mut part = vec![0; len];
            file.read_into(&mut part, offset)?;
            Ok(Bytes::from(part))
        });
        if !send(snapshot_part::Part::Snapshot(part.await?)).await? {
            return Ok(());
        }
        offset += len as u64;
    }
    let mut stream = applied_state.journal.read_stream(has.saturating_add(1), saved.header.journal);
    loop {
        let (rest, chunk) = applied_state
            .disk
            .run(move || {
                let chunk = stream.next().transpose()?;
                Ok((stream, chunk))
            })
            .await?;
        stream = rest;
        let Some(chunk) = chunk else { break };
        if !send(snapshot_part::Part::Journal(chunk)).await? {
            return Ok(());
        }
    }
    send(snapshot_part::Part::End(Empty {})).await.map(|_| ())
}

impl RaftNetwork<Types> for Link {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, RpcError> {
        let entries = rpc.entries.iter().map(|entry| {
            let mut payload = Vec::new();
            put_payload(&entry.payload, &mut payload);
            let traces = traces::to_wire(traces::of_payload(&entry.payload));
            WireEntry { id: Some(entry_id(entry.log_id)), payload: Bytes::from(payload), traces }
        });
        let last = self.applied_state.lock().book.time();
        let request = AppendRequest {
            vote: Some(ballot(rpc.vote)),
            before: rpc.prev_log_id.map(entry_id),
            entries: entries.collect(),
            committed: rpc.leader_commit.map(entry_id),
            log_time_unix_ms: self.clock.now(last).map(|now| now.log.get()),
            lacks_quorum: self.quorum.is_lacking(),
        };
        let (asked, is_asking) = (Instant::now(), request.log_time_unix_ms.is_none());
        let mut client = self.peers.client(&self.target);
        let reply = self.peers.call(self.target.place(), option.hard_ttl(), client.append(request)).await;
        let reply = reply.map_err(|error| self.failed(RPCTypes::AppendEntries, error))?;
        self.clock.record_wall(self.target.id, asked, UnixMs::new(reply.wall_time_unix_ms));
        // A peer that knows a newer leader has not answered the question for log time.
        if is_asking && !matches!(reply.result, None | Some(append_reply::Result::HigherVote(_))) {
            let time = reply.log_time_unix_ms.map(UnixMs::new);
            self.clock.record_reply(rpc.vote.leader_id.term, self.target.id, asked, time);
        }
        match reply.result {
            Some(append_reply::Result::Success(_)) => Ok(AppendEntriesResponse::Success),
            Some(append_reply::Result::Partial(partial)) => {
                Ok(AppendEntriesResponse::PartialSuccess(partial.id.map(log_id)))
            }
            Some(append_reply::Result::Conflict(_)) => Ok(AppendEntriesResponse::Conflict),
            Some(append_reply::Result::HigherVote(vote)) => {
                vote_of(vote).map(AppendEntriesResponse::HigherVote).ok_or_else(no_answer)
            }
            None => Err(no_answer()),
        }
    }

    async fn vote(&mut self, rpc: VoteRequest<u64>, option: RPCOption) -> Result<VoteResponse<u64>, RpcError> {
        let request = WireVote { vote: Some(ballot(rpc.vote)), last: rpc.last_log_id.map(entry_id) };
        let mut client = self.peers.client(&self.target);
        let reply = self.peers.call(self.target.place(), option.hard_ttl(), client.vote(request)).await;
        let reply = reply.map_err(|error| self.failed(RPCTypes::Vote, error))?;
        Ok(VoteResponse {
            vote: reply.vote.and_then(vote_of).ok_or_else(no_answer)?,
            vote_granted: reply.granted,
            last_log_id: reply.last.map(log_id),
        })
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot<Types>,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<u64>, StreamingError<Types, Fatal<u64>>> {
        let sent = tokio::select! {
            closed = cancel => return Err(StreamingError::Closed(closed)),
            sent = self.send(vote, snapshot, &option) => sent,
        };
        match sent {
            Ok(vote) => Ok(SnapshotResponse::new(vote)),
            Err(error @ (CallError::Failed { .. } | CallError::Excluded { .. })) => {
                Err(StreamingError::Unreachable(Unreachable::new(&error)))
            }
            Err(CallError::TimedOut { deadline, .. }) => Err(StreamingError::Timeout(Timeout {
                action: RPCTypes::InstallSnapshot,
                id: self.id,
                target: self.target.id,
                timeout: deadline,
            })),
        }
    }
}

pub(crate) fn ballot(vote: Vote) -> Ballot {
    Ballot { term: vote.leader_id.term, node: vote.leader_id.node_id, committed: vote.committed }
}

/// Decodes a vote. Refuses terms that no cluster can reach: once stored, no later election would be possible.
pub(crate) fn vote_of(ballot: Ballot) -> Option<Vote> {
    let vote = match ballot.committed {
        true => Vote::new_committed(ballot.term, ballot.node),
        false => Vote::new(ballot.term, ballot.node),
    };
    (ballot.term <= TERM_MAX).then_some(vote)
}

fn no_answer() -> RpcError {
    RPCError::Network(NetworkError::new(&AnyError::error(NO_ANSWER)))
}

pub(crate) fn entry_id(id: LogId) -> LogEntryId {
    LogEntryId { term: id.leader_id.term, node: id.leader_id.node_id, index: id.index }
}

pub(crate) fn log_id(id: LogEntryId) -> LogId {
    LogId::new(CommittedLeaderId::new(id.term, id.node), id.index)
}
