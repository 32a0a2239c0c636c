//! A running node: log, state machine, peer service and background tasks.

mod backup;
mod cluster;
mod export;
mod join;

pub(crate) use join::ask_to_join;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use earmark_admission::{Answer, BookBackend, Submitter, SystemTimeSource, TimeSource};
use earmark_proto::peer::peer_service_server::PeerServiceServer;
use openraft::storage::RaftLogStorage;
use openraft::{Config, ServerState, SnapshotPolicy, StorageError};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::auth::{Authorized, PeerAuth, Vouched};
use crate::book_host::NodeBookHost;
use crate::bootstrap::{Bootstrap, contacts};
use crate::clock::NodeClock;
use crate::disk::Disk;
use crate::failure::Failure;
use crate::fault::Fault;
use crate::identity::Identity;
use crate::journal::{JournalOptions, SEGMENT_BYTES};
use crate::members::Members;
use crate::net::{Listener, Net, RealNet};
use crate::network::{Network, QuorumWatch};
use crate::peer_server::{CONNECTIONS_WAITING, accept, serve};
use crate::peers::MESSAGE_BYTES_MAX;
use crate::proposer::{Proposer, RaftBatchTarget};
use crate::raft_log::{LogStore, Options as LogOptions};
use crate::reads::{LastLeadership, Reads};
use crate::service::{LeaderContact, Service};
use crate::space::{DiskReserve, SpaceMonitor};
use crate::state_machine::{AppliedState, BookStateMachine};
use crate::types::{Member, Raft};

/// Interval of background checks: snapshots, metrics and the node's address.
const MAINTENANCE_INTERVAL: Duration = Duration::from_millis(500);

/// Raft timing.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Heartbeat interval of a leader, and deadline of one of its messages.
    pub heartbeat: Duration,
    /// How long a candidate waits for votes before the next attempt; each node draws one to two times this. A
    /// follower first trusts its leader for twice as long, so it starts an election after three to four times this
    /// without a message. It must be far above the slowest disk sync, because a node that waits for its disk is
    /// silent.
    pub election: Duration,
    /// How long a caller waits for a quorum.
    pub deadline: Duration,
}

impl Timing {
    /// Default timing with another election timeout. A heartbeat is a third of it.
    #[must_use]
    pub fn with_election(election: Duration) -> Timing {
        Timing { heartbeat: election / 3, election, deadline: Duration::from_secs(5) }
    }

    /// How long a leader keeps its lease without a quorum.
    pub(crate) const fn lease(&self) -> Duration {
        self.election.saturating_mul(2)
    }
}

impl Default for Timing {
    fn default() -> Timing {
        Timing::with_election(Duration::from_millis(300))
    }
}

/// Node configuration.
pub struct NodeOptions {
    /// Data folder.
    pub disk: Arc<dyn Disk>,
    /// Node id. Default: the id of the folder, or the one that the cluster gives.
    pub id: Option<u64>,
    /// Peer listening address, `host:port`. Without it the node stays alone, and a new folder starts its own cluster.
    pub peer_listen: Option<String>,
    /// Address that peers use, `host:port`, if it differs from `peer_listen`. It is the name of the node.
    pub peer_advertise: Option<String>,
    /// Founders of the cluster: the addresses that their peers use. If this node is one of them and its folder is new,
    /// it begins the cluster together with all others. Otherwise it joins the cluster of these nodes.
    pub bootstrap: Vec<String>,
    /// Addresses of a cluster to join.
    pub join: Vec<String>,
    /// Secret of an invitation to the cluster. A new node needs one if the network has certificates.
    pub invitation: Option<String>,
    /// Raft timing.
    pub timing: Timing,
    /// Clock.
    pub time: Arc<dyn TimeSource>,
    /// Whether a node without peers may move log time forward to its own wall clock while nothing is reserved.
    pub accept_time: bool,
    /// Network between nodes.
    pub net: Arc<dyn Net>,
    /// Whether every client of `peer_listen` is a node, because it proves so or nobody else can connect. Otherwise
    /// keys are disabled.
    pub trusts_peers: bool,
    /// Log options.
    pub log: LogOptions,
    /// Log growth in bytes that triggers a snapshot, or half the size of the last snapshot if that is more.
    pub snapshot_bytes: u64,
    /// Log entries kept behind a snapshot, so that slightly lagging followers need no snapshot.
    pub keep_entries: u64,
    /// Journal segment size in bytes. All nodes of a cluster must use the same value, or their files differ.
    pub journal_segment_bytes: u64,
    /// Maximum queued reserves. Completes may use a quarter more.
    pub queue_max: usize,
    /// Folder for named backups.
    pub backups: Option<PathBuf>,
    /// Space that the node keeps free on its data disk while it leads.
    pub disk_reserve: DiskReserve,
}

impl NodeOptions {
    /// Default options on a data folder.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>) -> NodeOptions {
        NodeOptions {
            disk,
            id: None,
            peer_listen: None,
            peer_advertise: None,
            bootstrap: Vec::new(),
            join: Vec::new(),
            invitation: None,
            timing: Timing::default(),
            time: Arc::new(SystemTimeSource::new()),
            accept_time: false,
            net: Arc::new(RealNet),
            trusts_peers: false,
            log: LogOptions::default(),
            snapshot_bytes: 256 << 20,
            keep_entries: 1_000,
            journal_segment_bytes: SEGMENT_BYTES,
            queue_max: 65_536,
            backups: None,
            disk_reserve: DiskReserve::default(),
        }
    }
}

/// Why a node cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum NodeError {
    /// The data folder cannot be used.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The peer listener cannot be opened.
    #[error("cannot listen for other nodes at {address}: {source}. Choose another --peer-listen")]
    Listen { address: String, source: std::io::Error },
    /// No node of `--join` can be reached.
    #[error("cannot join a cluster: {0}. Check --join, and that at least one of these nodes runs")]
    Unreachable(String),
    /// The options contradict each other.
    #[error("{0}")]
    Invalid(String),
    /// Raft cannot start.
    #[error("cannot start: {0}")]
    Raft(String),
}

/// Backend on a replicated Book.
pub type NodeBackend = BookBackend<NodeBookHost>;

/// A running node.
pub struct Node {
    identity: Identity,
    proposer: Proposer,
    members: Members,
    vouched: Arc<Vouched>,
    last_leader_contact: LeaderContact,
    host: Arc<NodeBookHost>,
    backend: Arc<NodeBackend>,
    log: LogStore,
    address: Option<String>,
    stop: watch::Sender<bool>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    timing: Timing,
    journal_segment_bytes: u64,
    backups: Option<PathBuf>,
    backing_up: Arc<tokio::sync::Mutex<()>>,
    exporting: Arc<tokio::sync::Mutex<()>>,
}

impl Node {
    /// Opens or creates the data folder and starts the node. A joining node asks for membership in the background.
    ///
    /// # Errors
    /// If the folder cannot be used or the cluster cannot be reached; nothing is written then.
    pub fn open(options: NodeOptions) -> Answer<'static, Result<Node, NodeError>> {
        Box::pin(Node::start(options))
    }

    async fn start(options: NodeOptions) -> Result<Node, NodeError> {
        let Bootstrap { identity, lock, listener, peers, address } = Bootstrap::prepare(&options).await?;
        let Identity { cluster, node: id, incarnation, is_founder } = identity;
        let failure = Failure::default();
        let disk = Arc::clone(&options.disk);
        let log = LogStore::open(Arc::clone(&disk), cluster, options.log, failure.clone()).await?;
        let (disk_handle, purged) = (Arc::clone(&disk), log.purged());
        let journal = JournalOptions { segment_bytes: options.journal_segment_bytes, ..JournalOptions::new(cluster) };
        let applied_state = disk.run(move || AppliedState::open(disk_handle, journal, purged, failure)).await?;
        let applied_state = Arc::new(applied_state);
        log.attach(applied_state.snapshots.covered(), lock);
        let last_leadership =
            last_leadership(id, log.clone()).await.map_err(|error| NodeError::Raft(error.to_string()))?;
        let clock = Arc::new(NodeClock::new(Arc::clone(&options.time), options.accept_time));
        let quorum = QuorumWatch::new(options.timing.lease());
        let network = Network {
            id,
            peers: peers.clone(),
            clock: Arc::clone(&clock),
            applied_state: Arc::clone(&applied_state),
            quorum: quorum.clone(),
        };
        let config = Arc::new(config(&options)?);
        let machine = BookStateMachine::new(Arc::clone(&applied_state));
        let raft = Raft::new(id, config, network, log.clone(), machine).await;
        let raft = raft.map_err(|error| NodeError::Raft(error.to_string()))?;
        _ = quorum.metrics.set(raft.metrics());
        if listener.is_none()
            && let Some(lacking) = lacks_listener(id, &raft).await
        {
            _ = raft.shutdown().await;
            return Err(NodeError::Invalid(lacking));
        }
        let Timing { deadline, .. } = options.timing;
        let lease = options.timing.lease();
        let takes_keys = options.trusts_peers || options.peer_listen.is_none();
        let space = Arc::new(SpaceMonitor::open(options.disk_reserve, disk)?);
        let proposer = Proposer { id, raft, applied_state, clock, peers, deadline, lease, takes_keys, space };
        let peer_address = address.clone().unwrap_or_default();
        let failed = |error: &dyn std::fmt::Display| NodeError::Raft(error.to_string());
        if is_founder && !proposer.raft.is_initialized().await.map_err(|error| failed(&error))? {
            let members = BTreeMap::from([(id, Member { address: peer_address.clone(), incarnation })]);
            proposer.raft.initialize(members).await.map_err(|error| failed(&error))?;
        }
        if is_founder && is_first_of_new_cluster(id, &proposer.raft) {
            // The other founders elect a leader after their timeout; this one need not wait for it.
            proposer.raft.trigger().elect().await.map_err(|error| failed(&error))?;
        }
        let node = Node::assemble((identity, last_leadership), proposer, log, address, &options);
        node.serve(listener);
        node.run_maintenance(options.snapshot_bytes);
        node.join(contacts(&options), peer_address);
        Ok(node)
    }

    fn assemble(
        (identity, last_leadership): (Identity, Option<LastLeadership>),
        proposer: Proposer,
        log: LogStore,
        address: Option<String>,
        options: &NodeOptions,
    ) -> Node {
        let changing = Arc::default();
        let members = Members { proposer: proposer.clone(), cluster: identity.cluster, changing };
        let last_leader_contact = LeaderContact::default();
        let host = Arc::new(NodeBookHost {
            proposer: proposer.clone(),
            last_leader_contact: last_leader_contact.clone(),
            reads: Reads::start(proposer.clone(), last_leadership),
            submitter: Submitter::start(RaftBatchTarget::new(proposer.clone()), options.queue_max),
            is_stopped: AtomicBool::new(false),
        });
        let backend = Arc::new(BookBackend::new(Arc::clone(&host)));
        let (stop, _) = watch::channel(false);
        let (tasks, journal_segment_bytes) = (Mutex::default(), options.journal_segment_bytes);
        Node {
            identity,
            proposer,
            members,
            vouched: Arc::default(),
            last_leader_contact,
            host,
            backend,
            log,
            address,
            stop,
            tasks,
            timing: options.timing,
            journal_segment_bytes,
            backups: options.backups.clone(),
            backing_up: Arc::default(),
            exporting: Arc::default(),
        }
    }

    /// The backend to serve requests from.
    #[must_use]
    pub fn backend(&self) -> Arc<NodeBackend> {
        Arc::clone(&self.backend)
    }

    /// Identity of the data folder.
    #[must_use]
    pub const fn identity(&self) -> Identity {
        self.identity
    }

    /// Address that peers use.
    #[must_use]
    pub fn peer_address(&self) -> Option<&str> {
        self.address.as_deref()
    }

    /// Whether the node has log time since its start. Without a majority that has it, a leader uses its wall clock.
    #[must_use]
    pub fn knows_time(&self) -> bool {
        self.proposer.clock.is_known()
    }

    /// The failure that stopped the node, if any.
    #[must_use]
    pub fn failure(&self) -> &Failure {
        self.proposer.applied_state.failure()
    }

    /// Writes a snapshot now and returns its last log index.
    pub async fn snapshot(&self) -> Result<Option<u64>, String> {
        let raft = &self.proposer.raft;
        let applied = raft.metrics().borrow().last_applied.map(|id| id.index);
        raft.trigger().snapshot().await.map_err(|error| error.to_string())?;
        let mut metrics = raft.metrics();
        let made = metrics
            .wait_for(|metrics| metrics.snapshot.map(|id| id.index) >= applied || metrics.running_state.is_err());
        let metrics = made.await.map_err(|error| error.to_string())?;
        if metrics.running_state.is_err() {
            let why = self.failure().get().unwrap_or("it was shut down");
            return Err(format!("this node has stopped: {why}"));
        }
        Ok(metrics.snapshot.map(|id| id.index))
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut stop = self.stop.subscribe();
        let handle = earmark_admission::spawn(async move {
            tokio::select! {
                // Stop is checked first, so that a stopping task does not take its closed channel for a failure.
                biased;
                _ = stop.wait_for(|stop| *stop) => {}
                () = task => {}
            }
        });
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).push(handle);
    }

    fn serve(&self, listener: Option<Box<dyn Listener>>) {
        let Some(mut listener) = listener else { return };
        let service = Service {
            cluster: self.identity.cluster,
            incarnation: self.identity.incarnation,
            address: self.address.clone().unwrap_or_default(),
            proposer: self.proposer.clone(),
            reads: self.host.reads.clone(),
            members: self.members.clone(),
            receiving: Arc::default(),
            timing: self.timing,
            last_leader_contact: self.last_leader_contact.clone(),
        };
        let auth = Arc::new(PeerAuth {
            cluster: self.identity.cluster,
            id: self.identity.node,
            incarnation: self.identity.incarnation,
            metrics: self.proposer.raft.metrics(),
            applied_state: Arc::clone(&self.proposer.applied_state),
            clock: Arc::clone(&self.proposer.clock),
            vouched: Arc::clone(&self.vouched),
            last_warning: Mutex::default(),
        });
        let (sender, incoming) = tokio::sync::mpsc::channel(CONNECTIONS_WAITING);
        self.spawn(async move { accept(&mut *listener, sender).await });
        let service = PeerServiceServer::new(service)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        // Ends with its task, which also closes open connections.
        self.spawn(serve(incoming, Authorized { service, auth }, std::future::pending()));
    }

    fn run_maintenance(&self, snapshot_bytes: u64) {
        let (proposer, members) = (self.proposer.clone(), self.members.clone());
        let address = self.address.clone().unwrap_or_default();
        self.spawn(async move {
            loop {
                tokio::time::sleep(MAINTENANCE_INTERVAL).await;
                proposer.space.check().await;
                let last = proposer.applied_state.snapshots.current().map_or(0, |saved| saved.len);
                let since = proposer.applied_state.since_snapshot();
                // A snapshot is at most the last one and the log since. Without room for it the log stays.
                if since > snapshot_bytes.max(last / 2) && proposer.space.has_room(last.saturating_add(since)) {
                    // A failed attempt loses nothing: the log is still there, and the next attempt is soon.
                    _ = proposer.raft.trigger().snapshot().await;
                }
                measure(&proposer).await;
                if !proposer.is_leader() {
                    continue;
                }
                if let Err(error) = members.finish().await {
                    tracing::warn!("completing a voter change failed: {error}");
                }
                if let Err(error) = members.move_here(&address).await {
                    tracing::warn!("updating the address of this node failed: {error}");
                }
            }
        });
        let (raft, failure) = (self.proposer.raft.clone(), self.proposer.applied_state.failure().clone());
        self.spawn(async move {
            let mut metrics = raft.metrics();
            loop {
                if let Err(fatal) = &metrics.borrow_and_update().running_state {
                    failure.set(&format!("the log has stopped: {fatal}"));
                    return;
                }
                if metrics.changed().await.is_err() {
                    // Raft ended without a shutdown: it panicked.
                    let stopped = "the log has stopped unexpectedly; earlier messages say where. Start this node again \
                                   and report the messages. If another node was restored to an earlier state, \
                                   replace that node: see docs/operating.md";
                    failure.set(&stopped);
                    return;
                }
            }
        });
    }

    /// Finishes pending work and closes the data folder cleanly.
    pub async fn shut_down(&self) {
        earmark_admission::BookHost::shut_down(&self.host).await;
        // Raft's own tasks learn from the metrics that the stop is intended.
        self.stop.send_replace(true);
        self.proposer.space.stop_waiting();
        _ = self.proposer.raft.shutdown().await;
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        for task in tasks {
            _ = task.await;
        }
        _ = self.proposer.applied_state.journal.flush().await;
        match tokio::time::timeout(self.proposer.deadline, self.log.close()).await {
            Ok(Ok(())) => {}
            // The log repeats the failure that stopped the node.
            Ok(Err(_)) if self.failure().get().is_some() => {}
            Ok(Err(error)) => tracing::error!("closing the log failed: {error}"),
            Err(_) => tracing::error!("closing the log timed out"),
        }
    }
}

impl Drop for Node {
    /// Without [`shut_down`](Node::shut_down) this acts like a crash, but it also ends the background tasks.
    fn drop(&mut self) {
        self.proposer.space.stop_waiting();
        let raft = self.proposer.raft.clone();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { _ = raft.shutdown().await });
        }
    }
}

/// Log store and state machine on an existing folder, for storage tests.
pub async fn stores(
    disk: Arc<dyn Disk>,
    cluster: u128,
    log: LogOptions,
) -> Result<(LogStore, BookStateMachine), Fault> {
    let failure = Failure::default();
    let log = LogStore::open(Arc::clone(&disk), cluster, log, failure.clone()).await?;
    let applied_state = AppliedState::open(disk, JournalOptions::new(cluster), log.purged(), failure)?;
    Ok((log, BookStateMachine::new(Arc::new(applied_state))))
}

fn config(options: &NodeOptions) -> Result<Config, NodeError> {
    let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let Timing { heartbeat, election, .. } = options.timing;
    Config {
        cluster_name: "earmark".into(),
        heartbeat_interval: ms(heartbeat),
        election_timeout_min: ms(election),
        // Also the time a follower trusts a silent leader.
        election_timeout_max: ms(options.timing.lease()),
        // Installing a received snapshot of ten million leases takes minutes.
        install_snapshot_timeout: 600_000,
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: options.keep_entries,
        replication_lag_threshold: options.keep_entries.saturating_mul(4).max(1_000),
        ..Config::default()
    }
    .validate()
    .map_err(|error| NodeError::Invalid(error.to_string()))
}

/// The leadership that this node held when it stopped, if any.
async fn last_leadership(id: u64, mut log: LogStore) -> Result<Option<LastLeadership>, StorageError<u64>> {
    let vote = log.read_vote().await?.filter(|vote| vote.committed && vote.leader_id.node_id == id);
    let last = log.get_log_state().await?.last_log_id;
    Ok(vote.zip(last).map(|(vote, last)| LastLeadership { vote, last: last.index }))
}

/// Refuses to start a member of a larger cluster without a listener. It could become a leader that nobody can follow.
async fn lacks_listener(id: u64, raft: &Raft) -> Option<String> {
    let members = raft.with_raft_state(|state| state.membership_state.effective().membership().clone()).await.ok()?;
    let others = members.nodes().filter(|(other, _)| **other != id).count();
    let address = members.get_node(&id).map(|member| member.address.clone()).unwrap_or_default();
    (others > 0).then(|| {
        format!(
            "node {id} belongs to a cluster of {} nodes that must reach it; start it with --peer-listen (last address: \
             {address:?})",
            others.saturating_add(1)
        )
    })
}

/// Whether a node is the first founder of a cluster in which nobody has voted yet.
fn is_first_of_new_cluster(id: u64, raft: &Raft) -> bool {
    let metrics = raft.metrics().borrow().clone();
    let first = metrics.membership_config.membership().nodes().next().map(|(id, _)| *id);
    metrics.current_term == 0 && first == Some(id)
}

async fn measure(proposer: &Proposer) {
    let metrics = proposer.raft.metrics().borrow().clone();
    let gauge = |name: &'static str, value: f64| metrics::gauge!(name).set(value);
    // A removed leader still names itself as `current_leader`, so the role is used instead.
    gauge("earmark_node_is_leader", f64::from(u8::from(metrics.state == ServerState::Leader)));
    gauge("earmark_node_term", metrics.current_term as f64);
    gauge("earmark_node_last_log_index", metrics.last_log_index.unwrap_or(0) as f64);
    let committed = proposer.raft.with_raft_state(|state| state.committed.map_or(0, |id| id.index)).await;
    if let Ok(index) = committed {
        gauge("earmark_node_committed_index", index as f64);
    }
    gauge("earmark_node_applied_index", metrics.last_applied.map_or(0, |id| id.index) as f64);
    gauge("earmark_node_snapshot_index", metrics.snapshot.map_or(0, |id| id.index) as f64);
    let snapshot = proposer.applied_state.snapshots.current().map_or(0, |saved| saved.len);
    gauge("earmark_node_snapshot_bytes", snapshot as f64);
}
