//! What must be there before a node runs: its folder, its place among the others, and where it listens.

use std::sync::Arc;
use std::time::Duration;

use crate::fault::Fault;
use crate::identity::{Expected, Folder, FolderLock, Identity};
use crate::log::LogStore;
use crate::machine::offload;
use crate::net::Listener;
use crate::node::{NodeError, NodeOptions};
use crate::peers::Peers;
use crate::runtime::random_id;

/// So long a node that has its folder looks for the cluster it is told to join. It need not find it: all the others
/// may be down.
const LOOK_FOR_CLUSTER: Duration = Duration::from_secs(1);

/// What is there before anything runs.
pub(crate) struct Ground {
    pub(crate) identity: Identity,
    pub(crate) lock: FolderLock,
    pub(crate) listener: Option<Box<dyn Listener>>,
    pub(crate) peers: Peers,
}

impl Ground {
    /// Finds out whose folder this is, or makes it. Nothing is written before everything else is known to be there.
    pub(crate) async fn prepare(options: &NodeOptions) -> Result<Ground, NodeError> {
        let disk = Arc::clone(&options.disk);
        let expected = Expected { cluster: None, node: options.id };
        let its_disk = Arc::clone(&disk);
        let found = offload(&*disk, move || Folder::look(&*its_disk, expected)).await?;
        if options.peer_listen.is_none() && !options.join.is_empty() {
            let message = "a node that joins a cluster needs --peer-listen, so that the others can reach it";
            return Err(NodeError::Invalid(message.into()));
        }
        let planned = plan(options, found).await?;
        check_certificate(options, planned.node)?;
        let listener = listen(options).await?;
        let its_disk = Arc::clone(&disk);
        let taken = offload(&*disk, move || Folder::take(&*its_disk, expected)).await;
        let (folder, lock) = taken?;
        let identity = match folder {
            Folder::Made(identity) => identity,
            Folder::New => {
                let its_disk = Arc::clone(&disk);
                let make = move || planned.format(&*its_disk, |disk| LogStore::create(disk, planned.cluster));
                offload(&*disk, make).await?;
                planned
            }
        };
        let peers = peers(options, identity.cluster, identity.node);
        Ok(Ground { identity, lock, listener, peers })
    }
}

fn peers(options: &NodeOptions, cluster: u128, id: u64) -> Peers {
    Peers::new(cluster, id, Arc::clone(&options.net), options.timing.deadline)
}

/// Which node this is, or is to be.
async fn plan(options: &NodeOptions, found: Folder) -> Result<Identity, NodeError> {
    let is_founder = options.join.is_empty();
    match found {
        Folder::Made(identity) if is_founder => Ok(identity),
        Folder::Made(identity) => {
            let peers = peers(options, identity.cluster, identity.node);
            let asked = tokio::time::timeout(LOOK_FOR_CLUSTER, cluster_of(&peers, &options.join, None)).await;
            match asked {
                Ok(Ok(expected)) if expected != identity.cluster => {
                    let path = options.disk.show("");
                    Err(Fault::OtherCluster { path, found: identity.cluster, expected }.into())
                }
                _ => Ok(identity),
            }
        }
        Folder::New => {
            let node = match options.id {
                Some(id) => id,
                None if is_founder => 1,
                None => {
                    let message = "a node that joins a cluster needs --node-id, one that no other ever had";
                    return Err(NodeError::Invalid(message.into()));
                }
            };
            let cluster = match is_founder {
                true => random_id(),
                false => cluster_of(&peers(options, 0, node), &options.join, Some(node)).await?,
            };
            Ok(Identity { cluster, node, incarnation: random_id(), is_founder })
        }
    }
}

/// A node whose certificate names another would be refused by all the others, one message at a time.
fn check_certificate(options: &NodeOptions, node: u64) -> Result<(), NodeError> {
    if options.net.shows().is_good_for(node) {
        return Ok(());
    }
    let message = format!(
        "this is node {node}, and its certificate names another: give it one with the URI earmark://node/{node}, or \
         with none"
    );
    Err(NodeError::Invalid(message))
}

async fn listen(options: &NodeOptions) -> Result<Option<Box<dyn Listener>>, NodeError> {
    let Some(address) = &options.peer_listen else { return Ok(None) };
    let listener = options.net.listen(address.clone()).await;
    listener.map(Some).map_err(|source| NodeError::Listen { address: address.clone(), source })
}

/// Asks the nodes to join which cluster they belong to, and whether it has a place for a new node of this id.
async fn cluster_of(peers: &Peers, addresses: &[String], wanted: Option<u64>) -> Result<u128, NodeError> {
    let mut why = Vec::new();
    for address in addresses {
        match peers.hello(address, wanted).await {
            Ok(hello) if !hello.refused.is_empty() => {
                return Err(NodeError::Invalid(format!("cannot join the cluster: {}", hello.refused)));
            }
            Ok(hello) => match hello.cluster.first_chunk::<16>() {
                Some(cluster) => return Ok(u128::from_le_bytes(*cluster)),
                None => why.push(format!("{address} is no node of Earmark")),
            },
            Err(error) => why.push(error.to_string()),
        }
    }
    Err(NodeError::Unreachable(why.join("; ")))
}
