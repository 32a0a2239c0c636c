//! A node: everything above, put together.

mod backup;
mod cluster;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use earmark_admission::{BookBackend, Submitter, SystemTimeSource, TimeSource};
use earmark_proto::peer::JoinRequest;
use earmark_proto::peer::peer_service_server::PeerServiceServer;
use openraft::storage::RaftLogStorage;
use openraft::{Config, Membership, ServerState, SnapshotPolicy, StorageError};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::clock::NodeClock;
use crate::disk::Disk;
use crate::failure::Failure;
use crate::fault::Fault;
use crate::ground::Ground;
use crate::identity::Identity;
use crate::journal::{JournalOptions, SEGMENT_BYTES};
use crate::keeper::NodeKeeper;
use crate::ledger::{NodeLedger, Proposer};
use crate::log::{LogStore, Options as LogOptions};
use crate::machine::{Machine, Shelf, offload};
use crate::members::{Members, MembersError};
use crate::net::{Connection, Listener, Net, RealNet};
use crate::network::Network;
use crate::peers::{MESSAGE_BYTES_MAX, Peers};
use crate::reads::{Led, Reads};
use crate::service::Service;
use crate::types::{Member, Raft};

/// How often what needs no hurry is looked at: snapshots, metrics, and where this node is.
const HOUSEKEEPING: Duration = Duration::from_millis(500);
/// A connection on which nothing is heard for so long is asked whether it still is one.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// How long a node that was not let in waits before it asks again.
const JOIN_AGAIN: Duration = Duration::from_millis(500);

/// How nodes agree, in time.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// How often a leader shows that it is there, and how long one message of it may take.
    pub heartbeat: Duration,
    /// How long a candidate waits for votes, before it or another one tries again; up to twice as long, as each node
    /// draws it. A follower trusts its leader for twice as long first, so that it wants to lead after three to four
    /// times this without a word. It must be far above the slowest sync of any disk, for a node that waits for its disk
    /// is silent.
    pub election: Duration,
    /// How long a caller waits for a majority.
    pub deadline: Duration,
}

impl Timing {
    /// The usual, with another time for elections: three signs of life for each.
    #[must_use]
    pub fn with_election(election: Duration) -> Timing {
        Timing { heartbeat: election / 3, election, deadline: Duration::from_secs(5) }
    }

    /// After so long without a majority another node may lead.
    pub(crate) const fn lease(&self) -> Duration {
        self.election.saturating_mul(2)
    }
}

impl Default for Timing {
    fn default() -> Timing {
        Timing::with_election(Duration::from_millis(300))
    }
}

/// How a node is set up.
pub struct NodeOptions {
    /// Its data folder.
    pub disk: Arc<dyn Disk>,
    /// Its id; that of the folder if there is one, else 1.
    pub id: Option<u64>,
    /// Where it listens for its peers, `host:port`. Without it there can be no others.
    pub peer_listen: Option<String>,
    /// Where they reach it, if that is somewhere else: what stands there passes everything on to where it listens.
    pub peer_advertise: Option<String>,
    /// Nodes of the cluster that it is to join. Without any, a new folder begins a cluster of its own.
    pub join: Vec<String>,
    /// How nodes agree, in time.
    pub timing: Timing,
    /// Where time comes from.
    pub time: Arc<dyn TimeSource>,
    /// How nodes reach each other.
    pub net: Arc<dyn Net>,
    /// Whoever reaches `peer_listen` is a node, since they prove it or are alone there. Else no keys are made there.
    pub trusts_peers: bool,
    /// How the log is kept.
    pub log: LogOptions,
    /// A snapshot is made once the log has grown by so much, or by half the size of the last snapshot if that is more.
    pub snapshot_bytes: u64,
    /// So many entries stay in the log behind a snapshot, for followers that are a little behind.
    pub keep_entries: u64,
    /// A segment of the journal is complete once its records take so many bytes. All nodes of a cluster have to use
    /// the same, or their files differ.
    pub journal_segment_bytes: u64,
    /// The most reserves that wait. For completes a quarter more may.
    pub queue_max: usize,
    /// The folder of backups that are asked for by name.
    pub backups: Option<PathBuf>,
}

impl NodeOptions {
    /// The usual, on a data folder.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>) -> NodeOptions {
        NodeOptions {
            disk,
            id: None,
            peer_listen: None,
            peer_advertise: None,
            join: Vec::new(),
            timing: Timing::default(),
            time: Arc::new(SystemTimeSource::new()),
            net: Arc::new(RealNet),
            trusts_peers: false,
            log: LogOptions::default(),
            snapshot_bytes: 256 << 20,
            keep_entries: 1_000,
            journal_segment_bytes: SEGMENT_BYTES,
            queue_max: 65_536,
            backups: None,
        }
    }
}

/// Why a node cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// Its data folder cannot be used.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// It cannot listen.
    #[error("cannot listen for other nodes at {address}: {source}. Choose another --peer-listen")]
    Listen {
        /// Where.
        address: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// None of the nodes to join can be reached.
    #[error("cannot join a cluster: {0}. Check --join, and that one of these nodes runs")]
    Unreachable(String),
    /// What was asked for makes no sense together.
    #[error("{0}")]
    Invalid(String),
    /// The log cannot be started.
    #[error("cannot start: {0}")]
    Raft(String),
}

/// A backend on a replicated Book.
pub type NodeBackend = BookBackend<NodeKeeper>;

/// A node that runs.
pub struct Node {
    identity: Identity,
    proposer: Proposer,
    members: Members,
    keeper: Arc<NodeKeeper>,
    backend: Arc<NodeBackend>,
    log: LogStore,
    address: Option<String>,
    stop: watch::Sender<bool>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    timing: Timing,
    journal_segment_bytes: u64,
    backups: Option<PathBuf>,
    backing_up: tokio::sync::Mutex<()>,
}

impl Node {
    /// Opens or makes the data folder, and starts. A node that joins asks to be made a member in the background.
    ///
    /// # Errors
    /// When the folder cannot be used, or what it needs cannot be reached; then nothing was written.
    pub async fn open(options: NodeOptions) -> Result<Node, NodeError> {
        let Ground { identity, lock, listener, peers } = Ground::prepare(&options).await?;
        let Identity { cluster, node: id, incarnation, is_founder } = identity;
        let failure = Failure::default();
        let disk = Arc::clone(&options.disk);
        let log = LogStore::open(Arc::clone(&disk), cluster, options.log, failure.clone()).await?;
        let (its_disk, purged) = (Arc::clone(&disk), log.purged());
        let journal =
            JournalOptions { segment_bytes: options.journal_segment_bytes, ..JournalOptions::new(cluster) };
        let shelf = offload(&*disk, move || Shelf::open(its_disk, journal, purged, failure)).await?;
        let shelf = Arc::new(shelf);
        log.attach(shelf.snapshots.covered(), lock);
        let led = led(id, log.clone()).await.map_err(|error| NodeError::Raft(error.to_string()))?;
        let clock = Arc::new(NodeClock::new(Arc::clone(&options.time)));
        let network =
            Network { id, peers: peers.clone(), clock: Arc::clone(&clock), shelf: Arc::clone(&shelf) };
        let config = Arc::new(config(&options)?);
        let machine = Machine::new(Arc::clone(&shelf));
        let raft = Raft::new(id, config, network, log.clone(), machine).await;
        let raft = raft.map_err(|error| NodeError::Raft(error.to_string()))?;
        if listener.is_none()
            && let Some(lacking) = lacks_listener(id, &raft).await
        {
            _ = raft.shutdown().await;
            return Err(NodeError::Invalid(lacking));
        }
        let Timing { deadline, .. } = options.timing;
        let lease = options.timing.lease();
        let takes_keys = options.trusts_peers || options.peer_listen.is_none();
        let proposer = Proposer { id, raft, shelf, clock, peers, deadline, lease, takes_keys };
        let address = listener.as_ref().map(|listener| listener.address());
        let address = address.map(|address| options.peer_advertise.clone().unwrap_or(address));
        let member = Member { address: address.clone().unwrap_or_default(), incarnation };
        if is_founder
            && !proposer.raft.is_initialized().await.map_err(|error| NodeError::Raft(error.to_string()))?
        {
            let members = BTreeMap::from([(id, member.clone())]);
            let begun = proposer.raft.initialize(members).await;
            begun.map_err(|error| NodeError::Raft(error.to_string()))?;
        }
        let node = Node::assemble((identity, led), proposer, log, address, &options);
        node.serve(listener);
        node.keep_house(options.snapshot_bytes);
        node.join(options.join, member);
        Ok(node)
    }

    fn assemble(
        (identity, led): (Identity, Option<Led>),
        proposer: Proposer,
        log: LogStore,
        address: Option<String>,
        options: &NodeOptions,
    ) -> Node {
        let changing = Arc::default();
        let members = Members { proposer: proposer.clone(), cluster: identity.cluster, changing };
        let keeper = Arc::new(NodeKeeper {
            proposer: proposer.clone(),
            reads: Reads::start(proposer.clone(), led),
            submitter: Submitter::start(NodeLedger::new(proposer.clone()), options.queue_max),
            is_stopped: AtomicBool::new(false),
        });
        let backend = Arc::new(BookBackend::new(Arc::clone(&keeper)));
        let (stop, _) = watch::channel(false);
        let (tasks, journal_segment_bytes) = (Mutex::default(), options.journal_segment_bytes);
        Node {
            identity,
            proposer,
            members,
            keeper,
            backend,
            log,
            address,
            stop,
            tasks,
            timing: options.timing,
            journal_segment_bytes,
            backups: options.backups.clone(),
            backing_up: tokio::sync::Mutex::default(),
        }
    }

    /// The backend to serve from.
    #[must_use]
    pub fn backend(&self) -> Arc<NodeBackend> {
        Arc::clone(&self.backend)
    }

    /// Whose data folder it runs on.
    #[must_use]
    pub const fn identity(&self) -> Identity {
        self.identity
    }

    /// Where its peers reach it.
    #[must_use]
    pub fn peer_address(&self) -> Option<&str> {
        self.address.as_deref()
    }

    /// Whether it has heard the time of the log since its start. A majority that has not goes by a wall clock.
    #[must_use]
    pub fn knows_time(&self) -> bool {
        self.proposer.clock.is_known()
    }

    /// What stopped it, once something did.
    #[must_use]
    pub fn failure(&self) -> &Failure {
        self.proposer.shelf.failure()
    }

    /// Makes a snapshot now, and waits until it is on disk; gives the last index in it.
    ///
    /// # Errors
    /// When the node has stopped.
    pub async fn snapshot(&self) -> Result<Option<u64>, String> {
        let raft = &self.proposer.raft;
        let applied = raft.metrics().borrow().last_applied.map(|id| id.index);
        raft.trigger().snapshot().await.map_err(|error| error.to_string())?;
        let mut metrics = raft.metrics();
        let made = metrics.wait_for(|metrics| {
            metrics.snapshot.map(|id| id.index) >= applied || metrics.running_state.is_err()
        });
        let metrics = made.await.map_err(|error| error.to_string())?;
        if metrics.running_state.is_err() {
            let why = self.failure().get().unwrap_or("it was shut down");
            return Err(format!("this node has stopped: {why}"));
        }
        Ok(metrics.snapshot.map(|id| id.index))
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut stop = self.stop.subscribe();
        let handle = tokio::spawn(async move {
            tokio::select! {
                // First, for a task that is to stop must not take the end of what it watches for a failure.
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
            proposer: self.proposer.clone(),
            reads: self.keeper.reads.clone(),
            members: self.members.clone(),
            receiving: Arc::default(),
            timing: self.timing,
            heard: Arc::new(Mutex::new(Instant::now())),
        };
        let (sender, incoming) = tokio::sync::mpsc::channel::<std::io::Result<Connection>>(16);
        self.spawn(async move {
            loop {
                match listener.accept().await {
                    Ok(connection) => {
                        if sender.send(Ok(connection)).await.is_err() {
                            return;
                        }
                    }
                    // Too many open files, say: the next connection may fare better.
                    Err(error) => {
                        tracing::warn!("a connection of another node failed: {error}");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                }
            }
        });
        self.spawn(async move {
            let service = PeerServiceServer::new(service)
                .max_decoding_message_size(MESSAGE_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX);
            let incoming = tokio_stream::wrappers::ReceiverStream::new(incoming);
            // Ends with this task: connections that are open are told to end, and not only new ones refused.
            let never = std::future::pending();
            let served = tonic::transport::Server::builder()
                .http2_keepalive_interval(Some(KEEP_ALIVE))
                .http2_keepalive_timeout(Some(KEEP_ALIVE))
                .initial_stream_window_size(4 << 20)
                .initial_connection_window_size(8 << 20)
                .add_service(service)
                .serve_with_incoming_shutdown(incoming, never)
                .await;
            if let Err(error) = served {
                tracing::error!("this node no longer serves the others: {error}");
            }
        });
    }

    /// Asks to be made a member until it is one, and to be found where it is whenever it is somewhere else.
    fn join(&self, addresses: Vec<String>, member: Member) {
        let (proposer, Identity { node: id, is_founder, .. }) = (self.proposer.clone(), self.identity);
        let bytes = |number: u128| Bytes::copy_from_slice(&number.to_le_bytes());
        let request = JoinRequest {
            cluster: bytes(self.identity.cluster),
            node: id,
            address: member.address.clone(),
            incarnation: bytes(member.incarnation),
            is_met: false,
        };
        self.spawn(async move {
            loop {
                let metrics = proposer.raft.metrics().borrow().clone();
                let members = metrics.membership_config.membership();
                let is_voter = members.voter_ids().any(|voter| voter == id);
                let is_elsewhere = members.get_node(&id).is_some_and(|known| known.address != member.address);
                let others =
                    members.nodes().filter(|(other, _)| **other != id).map(|(_, it)| it.address.clone());
                let whom: Vec<String> = match (is_voter, is_founder) {
                    // A leader moves by itself.
                    (true, _) if is_elsewhere && !proposer.is_leader() => others.collect(),
                    (true, _) => Vec::new(),
                    // Whoever began the cluster was its first voter: it was removed, and is to hear that.
                    (false, true) => others.collect(),
                    (false, false) => addresses.iter().cloned().chain(others).collect(),
                };
                if is_voter && is_elsewhere {
                    find_moved(&proposer.peers, &addresses, &request.cluster, members).await;
                }
                for address in &whom {
                    match proposer.peers.join(address, request.clone()).await {
                        Ok(()) => {
                            tracing::info!("node {id} is a member of the cluster");
                            break;
                        }
                        Err(MembersError::Unavailable(message)) => {
                            tracing::info!("not a member yet: {message}")
                        }
                        Err(MembersError::Refused(message)) => {
                            proposer.shelf.failure().set(&format!("cannot join the cluster: {message}"));
                            return;
                        }
                    }
                }
                tokio::time::sleep(JOIN_AGAIN).await;
            }
        });
    }

    /// What is done now and then.
    fn keep_house(&self, snapshot_bytes: u64) {
        let (proposer, members) = (self.proposer.clone(), self.members.clone());
        let address = self.address.clone().unwrap_or_default();
        self.spawn(async move {
            loop {
                tokio::time::sleep(HOUSEKEEPING).await;
                let last = proposer.shelf.snapshots.current().map_or(0, |saved| saved.len);
                if proposer.shelf.since_snapshot() > snapshot_bytes.max(last / 2) {
                    // Nothing is lost if it fails: the log is still there, and the next try comes soon.
                    _ = proposer.raft.trigger().snapshot().await;
                }
                measure(&proposer).await;
                if !proposer.is_leader() {
                    continue;
                }
                if let Err(error) = members.finish().await {
                    tracing::warn!("a change of the voters is not complete yet: {error}");
                }
                if let Err(error) = members.move_here(&address).await {
                    tracing::warn!("the members still have the former address of this node: {error}");
                }
            }
        });
        let (raft, failure) = (self.proposer.raft.clone(), self.proposer.shelf.failure().clone());
        self.spawn(async move {
            let mut metrics = raft.metrics();
            loop {
                if let Err(fatal) = &metrics.borrow_and_update().running_state {
                    failure.set(&format!("the log has stopped: {fatal}"));
                    return;
                }
                if metrics.changed().await.is_err() {
                    // It was not told to stop, and says nothing any more: it panicked.
                    let stopped = "the log has stopped without a word, which should not happen: the messages before \
                                   this one say where. Start this node again, and report it. If another node was \
                                   put back to an earlier state, replace that one: see docs/operating.md";
                    failure.set(&stopped);
                    return;
                }
            }
        });
    }

    /// Finishes what is under way, and leaves the folder as it should be left.
    pub async fn shut_down(&self) {
        earmark_admission::BookHost::shut_down(&self.keeper).await;
        // The log's own tasks are told by its metrics that it has stopped on purpose.
        self.stop.send_replace(true);
        _ = self.proposer.raft.shutdown().await;
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        for task in tasks {
            _ = task.await;
        }
        _ = self.proposer.shelf.journal.flush().await;
        match tokio::time::timeout(self.proposer.deadline, self.log.close()).await {
            Ok(Ok(())) => {}
            // Of a failure that stopped the node its log says nothing new.
            Ok(Err(_)) if self.failure().get().is_some() => {}
            Ok(Err(error)) => tracing::error!("the log was not closed: {error}"),
            Err(_) => tracing::error!("the log was not closed in time"),
        }
    }
}

impl Drop for Node {
    /// Without [`shut_down`](Node::shut_down) this is like a crash, but nothing goes on in the background either.
    fn drop(&mut self) {
        let raft = self.proposer.raft.clone();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { _ = raft.shutdown().await });
        }
    }
}

/// What openraft stores things in, on a folder that has a log: for tests of stores.
///
/// # Errors
/// When the folder cannot be used.
pub async fn stores(
    disk: Arc<dyn Disk>,
    cluster: u128,
    log: LogOptions,
) -> Result<(LogStore, Machine), Fault> {
    let failure = Failure::default();
    let log = LogStore::open(Arc::clone(&disk), cluster, log, failure.clone()).await?;
    let shelf = Shelf::open(disk, JournalOptions::new(cluster), log.purged(), failure)?;
    Ok((log, Machine::new(Arc::new(shelf))))
}

fn config(options: &NodeOptions) -> Result<Config, NodeError> {
    let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let Timing { heartbeat, election, .. } = options.timing;
    Config {
        cluster_name: "earmark".into(),
        heartbeat_interval: ms(heartbeat),
        election_timeout_min: ms(election),
        // For so long, too, a follower trusts a leader that it hears nothing of.
        election_timeout_max: ms(options.timing.lease()),
        // A snapshot of ten million leases takes a while to install, once it has arrived.
        install_snapshot_timeout: 600_000,
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: options.keep_entries,
        replication_lag_threshold: options.keep_entries.saturating_mul(4).max(1_000),
        ..Config::default()
    }
    .validate()
    .map_err(|error| NodeError::Invalid(error.to_string()))
}

/// What this node led when it last stopped, if it did.
async fn led(id: u64, mut log: LogStore) -> Result<Option<Led>, StorageError<u64>> {
    let vote = log.read_vote().await?.filter(|vote| vote.committed && vote.leader_id.node_id == id);
    let last = log.get_log_state().await?.last_log_id;
    Ok(vote.zip(last).map(|(vote, last)| Led { vote, last: last.index }))
}

/// Finds out which members are at the addresses that this node was told of. Where a majority has moved nobody could lead,
/// and so nobody could write down where they are.
async fn find_moved(peers: &Peers, addresses: &[String], cluster: &Bytes, members: &Membership<u64, Member>) {
    for address in addresses {
        let Ok(hello) = peers.hello(address, None).await else { continue };
        let known = members.get_node(&hello.node).filter(|known| {
            hello.cluster == *cluster && hello.incarnation == known.incarnation.to_le_bytes().as_slice()
        });
        if let Some(known) = known.filter(|known| known.address != *address) {
            peers.moved(known.address.clone(), address.clone());
        }
    }
}

/// What is wrong with a node that the others cannot reach, if there are others. It would lead without being followed.
async fn lacks_listener(id: u64, raft: &Raft) -> Option<String> {
    let members =
        raft.with_raft_state(|state| state.membership_state.effective().membership().clone()).await.ok()?;
    let others = members.nodes().filter(|(other, _)| **other != id).count();
    let address = members.get_node(&id).map(|member| member.address.clone()).unwrap_or_default();
    (others > 0).then(|| {
        format!(
            "node {id} belongs to a cluster of {} nodes, which must reach it: start it with --peer-listen, last it \
             was {address:?}",
            others.saturating_add(1)
        )
    })
}

async fn measure(proposer: &Proposer) {
    let metrics = proposer.raft.metrics().borrow().clone();
    let gauge = |name: &'static str, value: f64| metrics::gauge!(name).set(value);
    // Not by whom it takes for the leader: a leader that was removed takes itself for it.
    gauge("earmark_node_is_leader", f64::from(u8::from(metrics.state == ServerState::Leader)));
    gauge("earmark_node_term", metrics.current_term as f64);
    gauge("earmark_node_last_log_index", metrics.last_log_index.unwrap_or(0) as f64);
    let committed = proposer.raft.with_raft_state(|state| state.committed.map_or(0, |id| id.index)).await;
    if let Ok(index) = committed {
        gauge("earmark_node_committed_index", index as f64);
    }
    gauge("earmark_node_applied_index", metrics.last_applied.map_or(0, |id| id.index) as f64);
    gauge("earmark_node_snapshot_index", metrics.snapshot.map_or(0, |id| id.index) as f64);
    let snapshot = proposer.shelf.snapshots.current().map_or(0, |saved| saved.len);
    gauge("earmark_node_snapshot_bytes", snapshot as f64);
}
