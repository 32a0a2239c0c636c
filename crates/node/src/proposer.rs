//! Proposing commands: the leader appends batches to its log, a follower forwards them to the leader.

use std::sync::Arc;
use std::time::Duration;

use earmark_admission::{Applied, BackendError, BatchTarget, Submission};
use earmark_core::{Command, LeaseId, Moment, Outcome, TxId, UnixMs, Write};
use openraft::error::{ClientWriteError, RaftError};
use openraft::{EntryPayload, ServerState};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::batch::{BatchBuilder, BatchReader};
use crate::clock::{Lead, NodeClock};
use crate::entry::validate;
use crate::peers::{Peers, Target};
use crate::runtime::random;
use crate::space::{NO_SPACE, SpaceMonitor, needs_space};
use crate::state_machine::AppliedState;
use crate::traces;
use crate::types::{Batch, Raft};

/// Pause between attempts that had no effect. A leader change ends the wait early.
const RETRY: Duration = Duration::from_millis(20);
/// Estimated bytes per command, used to size buffers: about one reserve of four limits.
const COMMAND_BYTES: usize = 112;

/// Ticks per proposal. Each tick expires a bounded number of items, so a backlog needs several.
const TICKS: usize = 64;

/// Executes batches: appends them to the log on the leader, or forwards them to it.
#[derive(Clone)]
pub(crate) struct Proposer {
    pub(crate) id: u64,
    pub(crate) raft: Raft,
    pub(crate) applied_state: Arc<AppliedState>,
    pub(crate) clock: Arc<NodeClock>,
    pub(crate) peers: Peers,
    pub(crate) deadline: Duration,
    /// How long a leader keeps its lease without a quorum. After that another node may lead.
    pub(crate) lease: Duration,
    /// Whether keys may be created and revoked. False where any client can pose as a node, because keys protect
    /// nothing there.
    pub(crate) takes_keys: bool,
    /// Free space on the data disk.
    pub(crate) space: Arc<SpaceMonitor>,
}

/// Refusal of key commands on a cluster with unauthenticated peers.
pub(crate) const NO_KEYS: &str = "keys are disabled because every client of --peer-listen is accepted as a node; start \
     all nodes with --peer-cert, --peer-key and --peer-ca, or with --insecure-peers";

/// Why commands were not executed, as far as this node knows.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProposeError {
    /// In no log; a retry is always safe.
    #[error("{0}")]
    NotTaken(String),
    /// Possibly in the log.
    #[error("{0}")]
    Unknown(String),
    /// In no log, because the leader's disk is short of space.
    #[error("{NO_SPACE}")]
    NoSpace,
}

impl Proposer {
    /// The leader's time. A leader that has just started asks its followers first.
    pub(crate) fn now(&self) -> Result<Moment, ProposeError> {
        let last = self.applied_state.lock().book.time();
        let unknown = || ProposeError::NotTaken("this leader has not learned the log time yet".into());
        self.clock.now(last).or_else(|| self.clock.begin(last, &self.lead()?)).ok_or_else(unknown)
    }

    /// The time to which log time may move forward now: the wall clocks of a majority agree and nothing is reserved.
    fn jump(&self, now: UnixMs) -> Option<UnixMs> {
        let to = self.clock.jump(now, &self.lead()?)?;
        self.applied_state.lock().book.is_nothing_reserved(now).then_some(to)
    }

    /// Term and voters of this node's leadership, if it leads.
    fn lead(&self) -> Option<Lead> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        (metrics.state == ServerState::Leader).then(|| Lead {
            term: metrics.current_term,
            id: self.id,
            voters: metrics.membership_config.membership().get_joint_config().clone(),
            lease: self.lease,
        })
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.raft.metrics().borrow().state == ServerState::Leader
    }

    /// Why this node, if it leads, has no quorum. A leader that restarts leads again at once, before any node has
    /// answered it.
    pub(crate) fn lacks_quorum(&self) -> Option<String> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        if metrics.state != ServerState::Leader {
            return None;
        }
        match metrics.millis_since_quorum_ack.map(Duration::from_millis) {
            None => Some("no majority of the nodes has answered this leader yet".into()),
            Some(silence) if silence > self.lease => {
                let seconds = silence.as_secs_f64();
                Some(format!("no majority of the nodes has answered this leader for {seconds:.1} s"))
            }
            Some(_) => None,
        }
    }

    pub(crate) fn leader(&self) -> Option<Target> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        let id = metrics.current_leader?;
        let member = metrics.membership_config.membership().get_node(&id)?;
        Some(Target { id, address: member.address.clone(), incarnation: member.incarnation })
    }

    /// Waits until another node leads. A leader that cannot be reached may never reply.
    pub(crate) async fn leader_changed(&self, leader: u64) {
        let is_another = |now: Option<u64>| now.is_some_and(|now| now != leader);
        // A stopped node sees no further leader, which also ends the wait.
        _ = self.raft.metrics().wait_for(|metrics| is_another(metrics.current_leader)).await;
    }

    pub(crate) fn has_stopped(&self) -> bool {
        self.raft.metrics().borrow().running_state.is_err()
    }

    /// Leader: appends commands and waits until they are applied. Returns their log index and outcomes.
    pub(crate) async fn propose(&self, batch: Batch) -> Result<(u64, Vec<Outcome>), ProposeError> {
        // Batches are encoded from commands, here or in `propose_for_peer`, so the check of a follower cannot fail.
        debug_assert_eq!(validate(&EntryPayload::Normal(batch.clone()), &mut BatchReader::default()), Ok(()));
        match self.raft.client_write(batch).await {
            Ok(response) => Ok((response.log_id.index, response.data.0)),
            // The appending leader may have lost its leadership, so the fate of the entry is unknown.
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(forward))) => {
                let unknown = "this node lost its leadership before the commands were committed";
                match forward.leader_id {
                    Some(leader) if leader != self.id => {
                        Err(ProposeError::Unknown(format!("{unknown}; node {leader} leads now")))
                    }
                    _ => Err(ProposeError::Unknown(unknown.into())),
                }
            }
            Err(error) => Err(ProposeError::Unknown(format!("this node has stopped: {error}"))),
        }
    }

    /// Proposes commands that another node forwarded. They are validated like any external input, and their writes
    /// get transaction ids here.
    pub(crate) async fn propose_for_peer(&self, batch: &Batch) -> Result<(u64, Vec<Outcome>), ProposeError> {
        if !self.is_leader() {
            return Err(ProposeError::NotTaken("this node is not the leader".into()));
        }
        let now = self.now()?;
        let mut builder = BatchBuilder::new(batch.bytes.len());
        let (mut is_about_keys, mut is_growing) = (false, false);
        let read = BatchReader::default().each(batch, |by, command| match command {
            _ if needs_space(command) && self.space.is_short() => is_growing = true,
            Command::CreateKey(_) | Command::RevokeKey(_) if !self.takes_keys => is_about_keys = true,
            Command::Write(write) => {
                let write = Write { tx_id: self.tx_id(now.log), ..(*write).clone() };
                builder.push_by(by, &Command::Write(&write));
            }
            // Only the leader decides about log time.
            Command::AdvanceTime(_) => builder.push_by(by, &Command::Tick),
            other => builder.push_by(by, other),
        });
        read.map_err(|error| ProposeError::NotTaken(format!("the commands are malformed: {error}")))?;
        if is_growing {
            return Err(ProposeError::NoSpace);
        }
        if is_about_keys {
            return Err(ProposeError::NotTaken(NO_KEYS.into()));
        }
        let parents = batch.traces.as_deref().unwrap_or_default();
        let spans = traces::spans("consensus", parents.iter().copied());
        self.propose(Batch { traces: traces::of_spans(&spans), ..builder.finish(now) }).await
    }

    /// Transaction id of a write: a ULID.
    fn tx_id(&self, now: UnixMs) -> TxId {
        let low = (u128::from(random()) << 64) | u128::from(random());
        TxId(LeaseId::from_parts(now, low).to_u128())
    }
}

/// Why a batch was not executed, as far as this node knows.
enum ExecuteError {
    /// The leader's disk is short of space. Commands that need none may be tried again.
    NoSpace,
    Failed(String),
}

/// The result of a batch.
struct Executed {
    outcomes: Vec<Outcome>,
    /// Wall clock time of the successful attempt.
    wall: UnixMs,
    /// Whether an earlier attempt with an unknown outcome may have executed the batch.
    is_repeated: bool,
}

/// Requests of one caller, and when they were queued.
pub(crate) struct QueuedRequests {
    pub(crate) submission: Submission,
    pub(crate) since: Instant,
}

/// Takes batches from the submitter, one at a time.
pub(crate) struct RaftBatchTarget {
    node: Proposer,
    is_stalled: bool,
}

impl RaftBatchTarget {
    pub(crate) const fn new(node: Proposer) -> RaftBatchTarget {
        RaftBatchTarget { node, is_stalled: false }
    }

    /// Deadline of a batch. After a failed batch the queue time counts too. Otherwise the last request of a long
    /// queue would wait many deadlines.
    fn deadline(&self, batch: &[QueuedRequests]) -> Instant {
        let now = Instant::now();
        let oldest = batch.iter().map(|waiting| waiting.since).min().unwrap_or(now);
        match self.is_stalled {
            true => (oldest + self.node.deadline).max(now + RETRY * 2),
            false => now + self.node.deadline,
        }
    }

    /// One attempt, here or through the leader.
    async fn attempt(&self, batch: &mut [QueuedRequests]) -> Result<(Vec<Outcome>, UnixMs), ProposeError> {
        let node = &self.node;
        let leader = node.leader().ok_or_else(|| ProposeError::NotTaken("no leader is known".into()))?;
        let moment = match leader.id == node.id {
            true => node.now()?,
            // The leader uses its own time.
            false => node.clock.wall().into(),
        };
        let mut commands = 0_usize;
        let mut builder = BatchBuilder::new(batch.len().saturating_mul(COMMAND_BYTES));
        for QueuedRequests { submission, .. } in batch.iter_mut() {
            if let Some(write) = submission.write_mut() {
                write.tx_id = node.tx_id(moment.log);
            }
            submission.each_command(&mut |by, command| {
                commands = commands.saturating_add(1);
                builder.push_by(by, &command);
            });
        }
        // The spans end with the attempt. Those of the entry stand below them, on every node.
        let name = if leader.id == node.id { "consensus" } else { "forward" };
        let spans = traces::spans(name, batch.iter().filter_map(|queued| queued.submission.trace()));
        let batch = Batch { traces: traces::of_spans(&spans), ..builder.finish(moment) };
        let outcomes = match leader.id == node.id {
            true => node.propose(batch).await?.1,
            false => {
                let submitted = tokio::select! {
                    submitted = node.peers.submit(&leader, batch) => submitted,
                    () = node.leader_changed(leader.id) => {
                        return Err(ProposeError::Unknown("the leader changed".into()));
                    }
                };
                let (index, outcomes) = submitted?;
                // The reply is built from this node's Book, so the entry has to be applied here.
                node.applied_state.applied(index).await;
                outcomes
            }
        };
        if outcomes.len() == commands {
            return Ok((outcomes, moment.wall));
        }
        Err(ProposeError::Unknown(format!("{commands} commands got {} outcomes", outcomes.len())))
    }

    /// Retries until a reply arrives or the deadline passes. Leases and sequences make a retry safe. A change of
    /// limits, templates, quotas, policies or settings has neither, so it is retried only if it was not taken.
    async fn execute(&self, batch: &mut [QueuedRequests], deadline: Instant) -> Result<Executed, ExecuteError> {
        let mut is_repeatable = true;
        for waiting in batch.iter_mut() {
            waiting.submission.each_command(&mut |_, command| {
                is_repeatable &= !matches!(
                    command,
                    Command::PutLimit(_)
                        | Command::DeleteLimit(_)
                        | Command::PutTemplate(_)
                        | Command::DeleteTemplate(_)
                        | Command::SetQuotas(_)
                        | Command::PutPolicy(_)
                        | Command::Configure(_)
                );
            });
        }
        let mut metrics = self.node.raft.metrics();
        let mut why = "no leader is known".to_owned();
        let mut is_repeated = false;
        loop {
            match timeout_at(deadline, self.attempt(batch)).await {
                Ok(Ok((outcomes, wall))) => return Ok(Executed { outcomes, wall, is_repeated }),
                Ok(Err(ProposeError::NotTaken(message))) => why = message,
                Ok(Err(ProposeError::Unknown(message))) if is_repeatable => {
                    is_repeated = true;
                    why = message;
                }
                Ok(Err(ProposeError::Unknown(message))) => return Err(ExecuteError::Failed(message)),
                Ok(Err(ProposeError::NoSpace)) => return Err(ExecuteError::NoSpace),
                Err(_) => {
                    let why = format!("no majority of the nodes answered in time ({why})");
                    return Err(ExecuteError::Failed(why));
                }
            }
            let next = Instant::now() + RETRY;
            if next >= deadline {
                return Err(ExecuteError::Failed(why));
            }
            let leader = metrics.borrow_and_update().current_leader;
            // The metrics channel of a stopped node is closed.
            _ = timeout_at(next, metrics.wait_for(|metrics| metrics.current_leader != leader)).await;
            if self.node.has_stopped() {
                return Err(ExecuteError::Failed("this node has stopped".into()));
            }
            sleep_until(next).await;
        }
    }
}

/// Refuses the requests that need space, and returns the others.
fn refuse_growth(batch: Vec<QueuedRequests>) -> Vec<QueuedRequests> {
    let mut rest = Vec::with_capacity(batch.len());
    for item in batch {
        let mut is_growing = false;
        item.submission.each_command(&mut |_, command| is_growing |= needs_space(&command));
        match is_growing {
            true => item.submission.fail(&BackendError::Overloaded(NO_SPACE)),
            false => rest.push(item),
        }
    }
    rest
}

impl BatchTarget for RaftBatchTarget {
    type Item = QueuedRequests;

    /// Commands per log entry.
    const BATCH_EVENTS_MAX: usize = 2_048;

    async fn submit(&mut self, mut batch: Vec<QueuedRequests>) {
        let deadline = self.deadline(&batch);
        batch.iter().for_each(|queued| queued.submission.dequeued());
        let mut done = self.execute(&mut batch, deadline).await;
        if matches!(done, Err(ExecuteError::NoSpace)) {
            self.node.space.set_leader_short();
            batch = refuse_growth(batch);
            if batch.is_empty() {
                return;
            }
            done = self.execute(&mut batch, deadline).await;
        }
        self.is_stalled = done.is_err();
        match done {
            Ok(Executed { outcomes, wall, is_repeated }) => {
                let mut outcomes = outcomes.into_iter();
                {
                    let state = self.node.applied_state.lock();
                    let applied = Applied { book: &state.book, wall, is_repeated };
                    batch.iter_mut().for_each(|item| item.submission.answer(&applied, &mut outcomes));
                }
                batch.into_iter().for_each(|item| item.submission.send());
            }
            Err(error) => {
                let message = match error {
                    ExecuteError::NoSpace => NO_SPACE.to_owned(),
                    ExecuteError::Failed(message) => message,
                };
                // How to retry depends on the operation, so the caller adds that advice.
                let error = BackendError::Failed(format!("{message}; the request may still be executed"));
                batch.into_iter().for_each(|item| item.submission.fail(&error));
            }
        }
    }

    /// Leader: expires what is due while the queue is idle.
    async fn idle(&mut self) {
        if !self.node.is_leader() {
            return;
        }
        let Ok(now) = self.node.now() else { return };
        let jump = self.node.jump(now.log);
        if jump.is_none() && !self.node.applied_state.lock().book.is_due(now.log) {
            return;
        }
        let mut builder = BatchBuilder::new(TICKS);
        (0..TICKS).for_each(|_| builder.push(&Command::Tick));
        if let Some(to) = jump {
            tracing::info!("log time is {} s behind the wall clocks and moves forward", to.ms_since(now.log) / 1_000);
            builder.push(&Command::AdvanceTime(to));
        }
        let tick = self.node.propose(builder.finish(now));
        _ = tokio::time::timeout(self.node.deadline, tick).await;
    }
}
