//! Bootstrap of a node: finds or creates its data folder, checks its certificate and opens its listener.

use std::sync::Arc;
use std::time::Duration;

use earmark_proto::peer::JoinRequest;

use crate::auth::Vouched;
use crate::fault::Fault;
use crate::identity::{Expected, Folder, FolderLock, Identity};
use crate::members::MembersError;
use crate::net::Listener;
use crate::node::{NodeError, NodeOptions, ask_to_join};
use crate::peers::{CallError, Peers, Target};
use crate::raft_log::LogStore;
use crate::runtime::random_id;

/// How long a restarted node looks for the cluster named by `--join`. It starts without an answer, since all other
/// nodes may be down.
const CLUSTER_LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a new node waits to learn whether it may join, before it creates its folder.
const JOIN_CHECK_TIMEOUT: Duration = Duration::from_secs(1);

/// Everything a node needs before Raft starts.
pub(crate) struct Bootstrap {
    pub(crate) identity: Identity,
    pub(crate) lock: FolderLock,
    pub(crate) listener: Option<Box<dyn Listener>>,
    pub(crate) peers: Peers,
}

impl Bootstrap {
    /// Reads the identity of the folder, or creates the folder. Nothing is written before all other checks have
    /// passed.
    pub(crate) async fn prepare(options: &NodeOptions) -> Result<Bootstrap, NodeError> {
        let disk = Arc::clone(&options.disk);
        let expected = Expected { cluster: None, node: options.id };
        let disk_handle = Arc::clone(&disk);
        let found = disk.run(move || Folder::inspect(&*disk_handle, expected)).await?;
        if options.peer_listen.is_none() && !options.join.is_empty() {
            let message = "--join needs --peer-listen, so that the other nodes can reach this one";
            return Err(NodeError::Invalid(message.into()));
        }
        let planned = plan(options, found).await?;
        check_certificate(options, planned.node)?;
        let listener = listen(options).await?;
        let disk_handle = Arc::clone(&disk);
        let taken = disk.run(move || Folder::take(&*disk_handle, expected)).await;
        let (folder, lock) = taken?;
        let identity = match folder {
            Folder::Made(identity) => identity,
            Folder::New => {
                let disk_handle = Arc::clone(&disk);
                let make = move || planned.format(&*disk_handle, |disk| LogStore::create(disk, planned.cluster));
                disk.run(make).await?;
                planned
            }
        };
        let peers = peers(options, Some(identity.cluster), (identity.node, identity.incarnation));
        Ok(Bootstrap { identity, lock, listener, peers })
    }
}

fn peers(options: &NodeOptions, cluster: Option<u128>, id: (u64, u128)) -> Peers {
    let invitation = options.invitation.clone().unwrap_or_default();
    Peers::new(cluster, id, invitation, Arc::clone(&options.net), options.timing.deadline)
}

async fn plan(options: &NodeOptions, found: Folder) -> Result<Identity, NodeError> {
    let is_founder = options.join.is_empty();
    match found {
        Folder::Made(identity) if is_founder => Ok(identity),
        Folder::Made(identity) => {
            let peers = peers(options, Some(identity.cluster), (identity.node, identity.incarnation));
            let asked = tokio::time::timeout(CLUSTER_LOOKUP_TIMEOUT, find_cluster(&peers, &options.join)).await;
            match asked {
                Ok(Ok((expected, _))) if expected != identity.cluster => {
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
                    let message = "--join needs --node-id with an id that the cluster has never used";
                    return Err(NodeError::Invalid(message.into()));
                }
            };
            let incarnation = random_id();
            let cluster = match is_founder {
                true => random_id(),
                false => {
                    // The certificate is checked first: with a wrong one the answers would mislead.
                    check_certificate(options, node)?;
                    may_join(options, (node, incarnation)).await?
                }
            };
            Ok(Identity { cluster, node, incarnation, is_founder })
        }
    }
}

/// Finds the cluster of `--join`, and checks as far as is quickly possible that this node may join it. The join itself
/// is checked again.
async fn may_join(options: &NodeOptions, id: (u64, u128)) -> Result<u128, NodeError> {
    let (cluster, member) = find_cluster(&peers(options, None, id), &options.join).await?;
    let address = options.peer_advertise.clone().or_else(|| options.peer_listen.clone()).unwrap_or_default();
    let request = JoinRequest { address, check_only: true };
    let (peers, vouched) = (peers(options, Some(cluster), id), Vouched::default());
    let asked = tokio::time::timeout(JOIN_CHECK_TIMEOUT, ask_to_join(&peers, &vouched, &member, &request)).await;
    match asked {
        Ok(Err(MembersError::Refused(why))) => Err(NodeError::Invalid(format!("cannot join the cluster: {why}"))),
        _ => Ok(cluster),
    }
}

/// Refuses a certificate that names another node. Peers would reject every message of such a node.
fn check_certificate(options: &NodeOptions, node: u64) -> Result<(), NodeError> {
    if options.net.local_identity().may_act_as(node) {
        return Ok(());
    }
    let message =
        format!("the certificate of this node does not name node {node}: use one with the URI earmark://node/{node}");
    Err(NodeError::Invalid(message))
}

async fn listen(options: &NodeOptions) -> Result<Option<Box<dyn Listener>>, NodeError> {
    let Some(address) = &options.peer_listen else { return Ok(None) };
    let listener = options.net.listen(address.clone()).await;
    listener.map(Some).map_err(|source| NodeError::Listen { address: address.clone(), source })
}

/// Asks the nodes of `--join` for their cluster. Returns it, and the first node that answered.
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
