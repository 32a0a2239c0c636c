//! Bootstrap of a node: finds or creates its data folder, checks its certificate and opens its listener.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use earmark_proto::peer::JoinRequest;
use tokio::time::Instant;

use crate::auth::Vouched;
use crate::disk::Disk;
use crate::fault::Fault;
use crate::founding::{FOUNDERS_MAX, Founded, Founders, Founding, check_promise, first_entry, open_file};
use crate::identity::{Expected, Folder, FolderLock, Identity};
use crate::members::MembersError;
use crate::net::{Listener, PeerIdentity, host, normal_name};
use crate::node::{NodeError, NodeOptions, ask_to_join};
use crate::peers::{CallError, Peers, Sender, Target};
use crate::raft_log::LogStore;
use crate::runtime::random_id;

/// How long a restarted node looks for the cluster named by `--join`. It starts without an answer, since all other
/// nodes may be down.
const CLUSTER_LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a new node with an id waits to learn whether it may join, before it creates its folder. Without an answer it
/// starts, and asks again until it is a member or refused.
const JOIN_CHECK_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a new node with `--join` waits for its id.
const GIVE_ID_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two questions for the cluster or for an id.
const RETRY: Duration = Duration::from_millis(200);

/// Everything a node needs before Raft starts.
pub(crate) struct Bootstrap {
    pub(crate) identity: Identity,
    pub(crate) lock: FolderLock,
    pub(crate) listener: Option<Box<dyn Listener>>,
    pub(crate) peers: Peers,
    /// Address at which other nodes reach this one.
    pub(crate) address: Option<String>,
}

impl Bootstrap {
    /// Reads the identity of the folder, or creates the folder. Nothing is written before all other checks have
    /// passed.
    pub(crate) async fn prepare(options: &NodeOptions) -> Result<Bootstrap, NodeError> {
        check_options(options)?;
        let disk = Arc::clone(&options.disk);
        let expected = Expected { cluster: None, node: options.id };
        let disk_handle = Arc::clone(&disk);
        let found = disk.run(move || Folder::inspect(&*disk_handle, expected)).await?;
        let founders = Founders::of(&options.bootstrap, &own_address(options));
        if let (Folder::New, Some(founders)) = (found, founders) {
            return found_or_rejoin(options, founders).await;
        }
        let planned = plan(options, found).await?;
        check_certificate(options, Some(planned.node))?;
        let listener = listen(options).await?;
        let (folder, lock) = take(&disk, expected).await?;
        let identity = match folder {
            Folder::Made(identity) => identity,
            Folder::New => format(&disk, planned).await?,
        };
        Ok(Bootstrap::of(options, identity, lock, listener))
    }

    fn of(options: &NodeOptions, identity: Identity, lock: FolderLock, listener: Option<Box<dyn Listener>>) -> Self {
        let address = listener.as_ref().map(|listener| listening_address(options, &**listener));
        let Identity { cluster, node: id, incarnation, .. } = identity;
        let sender = Sender { cluster: Some(cluster), id, incarnation, ..sender(options) };
        let sender = Sender { address: address.clone().unwrap_or_default(), ..sender };
        Bootstrap { identity, lock, listener, peers: peers(options, sender), address }
    }
}

/// Addresses of other nodes of the cluster, as this node was told.
pub(crate) fn contacts(options: &NodeOptions) -> Vec<String> {
    let own = normal_name(&own_address(options));
    let others = options.bootstrap.iter().filter(|address| normal_name(address) != own);
    options.join.iter().chain(others).cloned().collect()
}

/// The address of this node, as far as it is known before the node listens.
fn own_address(options: &NodeOptions) -> String {
    options.peer_advertise.clone().or_else(|| options.peer_listen.clone()).unwrap_or_default()
}

fn listening_address(options: &NodeOptions, listener: &dyn Listener) -> String {
    options.peer_advertise.clone().unwrap_or_else(|| listener.address())
}

fn sender(options: &NodeOptions) -> Sender {
    let invitation = options.invitation.clone().unwrap_or_default();
    Sender { address: own_address(options), invitation, ..Sender::default() }
}

fn peers(options: &NodeOptions, sender: Sender) -> Peers {
    Peers::new(sender, Arc::clone(&options.net), options.timing.deadline)
}

fn check_options(options: &NodeOptions) -> Result<(), NodeError> {
    let invalid = |message: String| Err(NodeError::Invalid(message));
    if options.peer_listen.is_none() && !options.join.is_empty() {
        return invalid("--join needs --peer-listen, so that the other nodes can reach this one".into());
    }
    if options.peer_listen.is_none() && !options.bootstrap.is_empty() {
        return invalid("--bootstrap needs --peer-listen, so that the other founders can reach this one".into());
    }
    let mut names: Vec<String> = options.bootstrap.iter().map(|address| normal_name(address)).collect();
    names.sort_unstable();
    names.dedup();
    if names.len() < options.bootstrap.len() {
        return invalid("--bootstrap: a founder is named twice; name each founder once".into());
    }
    if names.len() > FOUNDERS_MAX {
        let found = names.len();
        return invalid(format!("--bootstrap: found {found} founders, allowed are up to {FOUNDERS_MAX}"));
    }
    Ok(())
}

async fn take(disk: &Arc<dyn Disk>, expected: Expected) -> Result<(Folder, FolderLock), Fault> {
    let handle = Arc::clone(disk);
    disk.run(move || Folder::take(&*handle, expected)).await
}

async fn format(disk: &Arc<dyn Disk>, planned: Identity) -> Result<Identity, Fault> {
    let handle = Arc::clone(disk);
    let make = move || planned.format(&*handle, |disk| LogStore::create(disk, planned.cluster));
    disk.run(make).await.map(|()| planned)
}

/// Begins a cluster together with the other founders. If one of them has a cluster already, joins it: this node has lost
/// its folder, or was away when the cluster began.
async fn found_or_rejoin(options: &NodeOptions, founders: Founders) -> Result<Bootstrap, NodeError> {
    let id = founders.id();
    if let Some(found) = options.id.filter(|found| *found != id) {
        let message = format!("--node-id: found {found}, but this node is number {id} of --bootstrap; leave it out");
        return Err(NodeError::Invalid(message));
    }
    check_certificate(options, Some(id))?;
    let Some(mut listener) = listen(options).await? else {
        return Err(NodeError::Invalid("--bootstrap needs --peer-listen".into()));
    };
    let founders = founders.listening_at(&listening_address(options, &*listener));
    let disk = Arc::clone(&options.disk);
    let (_, lock) = take(&disk, Expected::default()).await?;
    let file = open_file(&disk).await?;
    check_promise(&founders, &file)?;
    let incarnation = file.incarnation;
    let identity = match Founding::new(options, founders, file).wait(&mut *listener).await? {
        Founded::Begin(promise) => {
            let planned = Identity { cluster: promise.cluster(), node: id, incarnation, is_founder: true };
            let handle = Arc::clone(&disk);
            let make = move || {
                let first = first_entry(&promise);
                planned.format(&*handle, |_| LogStore::create_with(&handle, planned.cluster, first))
            };
            disk.run(make).await?;
            tracing::info!("the cluster {:032x} begins", planned.cluster);
            planned
        }
        Founded::Join => {
            tracing::info!("another founder has a cluster; this node joins it");
            check_certificate(options, None)?;
            let joining = Joiner { options, incarnation, patience: None };
            let (cluster, node) = joining.ask_for_id().await?;
            format(&disk, Identity { cluster, node, incarnation, is_founder: false }).await?
        }
    };
    Ok(Bootstrap::of(options, identity, lock, Some(listener)))
}

async fn plan(options: &NodeOptions, found: Folder) -> Result<Identity, NodeError> {
    let contacts = contacts(options);
    match found {
        Folder::Made(identity) if contacts.is_empty() => Ok(identity),
        Folder::Made(identity) => {
            let Identity { cluster, node: id, incarnation, .. } = identity;
            let peers = peers(options, Sender { cluster: Some(cluster), id, incarnation, ..sender(options) });
            let asked = tokio::time::timeout(CLUSTER_LOOKUP_TIMEOUT, find_cluster(&peers, &contacts)).await;
            match asked {
                Ok(Ok((expected, _))) if expected != identity.cluster => {
                    let path = options.disk.show("");
                    Err(Fault::OtherCluster { path, found: identity.cluster, expected }.into())
                }
                _ => Ok(identity),
            }
        }
        Folder::New if contacts.is_empty() && options.peer_listen.is_none() => {
            let (cluster, incarnation, node) = (random_id(), random_id(), options.id.unwrap_or(1));
            Ok(Identity { cluster, node, incarnation, is_founder: true })
        }
        Folder::New if contacts.is_empty() => {
            let address = own_address(options);
            let message = format!(
                "--peer-listen: this data folder is new and belongs to no cluster. Name the founders of a new cluster \
                 with --bootstrap, the same list on each of them, or --bootstrap {address} for this node alone; or \
                 name nodes of a cluster with --join"
            );
            Err(NodeError::Invalid(message))
        }
        Folder::New => {
            let incarnation = random_id();
            // The certificate is checked first: with a wrong one the answers would mislead.
            let wanted = wanted_id(options);
            check_certificate(options, wanted)?;
            // Founders may still wait for each other.
            let patience = (!options.join.is_empty()).then_some(GIVE_ID_TIMEOUT);
            let joining = Joiner { options, incarnation, patience };
            let (cluster, node) = match wanted {
                Some(id) => (joining.may_join(id).await?, id),
                None => joining.ask_for_id().await?,
            };
            Ok(Identity { cluster, node, incarnation, is_founder: false })
        }
    }
}

/// The id of a new node that joins, unless the cluster gives it one: that of `--node-id`, or of a certificate that proves
/// an id and no name.
fn wanted_id(options: &NodeOptions) -> Option<u64> {
    let identity = options.net.local_identity();
    let of_certificate = match &identity {
        PeerIdentity::Certificate { nodes, .. } if !identity.proves_name(&own_address(options)) => match **nodes {
            [node] => Some(node),
            _ => None,
        },
        _ => None,
    };
    options.id.or(of_certificate)
}

/// A new node that joins a cluster.
struct Joiner<'a> {
    options: &'a NodeOptions,
    incarnation: u128,
    /// How long the cluster may take to answer; `None` without end.
    patience: Option<Duration>,
}

impl Joiner<'_> {
    fn peers(&self, cluster: Option<u128>, id: u64) -> Peers {
        peers(self.options, Sender { cluster, id, incarnation: self.incarnation, ..sender(self.options) })
    }

    /// Finds the cluster, and checks as far as is quickly possible that a node with an id may join it. The join itself is
    /// checked again.
    async fn may_join(&self, id: u64) -> Result<u128, NodeError> {
        let (cluster, member) = self.find(id).await?;
        let (peers, vouched) = (self.peers(Some(cluster), id), Vouched::default());
        let asking = async {
            loop {
                match ask_to_join(&peers, &vouched, &member, JoinRequest { check_only: true }).await {
                    Ok(_) => return Ok(cluster),
                    Err(MembersError::Refused(why)) => {
                        return Err(NodeError::Invalid(format!("cannot join the cluster: {why}")));
                    }
                    // The leader changes, for example.
                    Err(_) => tokio::time::sleep(RETRY).await,
                }
            }
        };
        tokio::time::timeout(JOIN_CHECK_TIMEOUT, asking).await.unwrap_or(Ok(cluster))
    }

    /// Finds the cluster, and asks it for an id until it gives one.
    async fn ask_for_id(&self) -> Result<(u128, u64), NodeError> {
        let (started, waiting) = (Instant::now(), Waiting::default());
        loop {
            let (cluster, member) = self.find(0).await?;
            let (peers, vouched) = (self.peers(Some(cluster), 0), Vouched::default());
            let why = match ask_to_join(&peers, &vouched, &member, JoinRequest { check_only: true }).await {
                Ok(0) => "the cluster gave no id; its nodes may run another version".to_owned(),
                Ok(id) => return Ok((cluster, id)),
                Err(MembersError::Refused(why)) => {
                    return Err(NodeError::Invalid(format!("cannot join the cluster: {why}")));
                }
                Err(error) => error.to_string(),
            };
            if self.patience.is_some_and(|patience| started.elapsed() > patience) {
                return Err(NodeError::Unreachable(why));
            }
            waiting.pause(&why).await;
        }
    }

    /// Finds the cluster, and the first node of it that answers. With `--bootstrap` it may not have begun yet.
    async fn find(&self, id: u64) -> Result<(u128, Target), NodeError> {
        let (peers, contacts, waiting) = (self.peers(None, id), contacts(self.options), Waiting::default());
        loop {
            match find_cluster(&peers, &contacts).await {
                Err(NodeError::Unreachable(why)) if self.patience.is_none() => waiting.pause(&why).await,
                found => return found,
            }
        }
    }
}

/// Pauses between attempts, and logs each new reason for them.
#[derive(Default)]
struct Waiting(Mutex<String>);

impl Waiting {
    async fn pause(&self, why: &str) {
        {
            let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if *last != why {
                tracing::info!("waiting to join the cluster: {why}");
                *last = why.to_owned();
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Refuses a certificate that does not name this node. Peers would reject every message of such a node. Without an id, it
/// has to prove the name.
fn check_certificate(options: &NodeOptions, node: Option<u64>) -> Result<(), NodeError> {
    let (identity, address) = (options.net.local_identity(), own_address(options));
    let is_named = match node {
        _ if identity == PeerIdentity::Unproven => true,
        Some(node) => identity.may_act_as(node, &address),
        None => identity.proves_name(&address),
    };
    if is_named {
        return Ok(());
    }
    let host = host(&address);
    let message = match node {
        Some(node) => format!(
            "the certificate of this node does not name node {node}: use one with the DNS name {host}, which is the host of \
             --peer-advertise, or with the URI earmark://node/{node}"
        ),
        None => format!(
            "the certificate of this node does not have the DNS name {host}, the host of --peer-advertise: use one that has, \
             or one with the URI earmark://node/N and --node-id N"
        ),
    };
    Err(NodeError::Invalid(message))
}

async fn listen(options: &NodeOptions) -> Result<Option<Box<dyn Listener>>, NodeError> {
    let Some(address) = &options.peer_listen else { return Ok(None) };
    let listener = options.net.listen(address.clone()).await;
    listener.map(Some).map_err(|source| NodeError::Listen { address: address.clone(), source })
}

/// Asks nodes for their cluster. Returns it, and the first node that answered.
async fn find_cluster(peers: &Peers, addresses: &[String]) -> Result<(u128, Target), NodeError> {
    let mut why = Vec::new();
    for address in addresses {
        match peers.identify(address).await {
            Ok(found) => return Ok(found),
            Err(CallError::Excluded { message }) => {
                return Err(NodeError::Invalid(format!("cannot join the cluster: {message}")));
            }
            Err(error) => why.push(error.to_string()),
        }
    }
    Err(NodeError::Unreachable(why.join("; ")))
}
