//! A node behind the HTTP server.

use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use earmark_admission::{
    Backend, Cluster, ClusterStatus, KeepError, Keys as _, LimitError, LimitsFileError, PutLimitRequest,
    read_limits,
};
use earmark_core::{Actor, By, Definition, LimitStatus, NamespaceName};
use earmark_node::{Node, NodeBookHost, NodeOptions, RealDisk, Timing};
use earmark_server::Address;
use tokio::time::{sleep, timeout};

use super::callers::bootstrap;
use super::parts::{Places, Service};
use super::{ServeArgs, Signals, credit, framed};
use crate::failure::Failure;
use crate::output;

/// So long the greeting waits for a leader. Without one, health and metrics are served all the same.
const GREETING_PATIENCE: Duration = Duration::from_secs(10);
/// How often a node looks whether it has got keys that its peers could pass by.
const LOOK: Duration = Duration::from_millis(250);
const OPEN_PEERS: &str = "everyone on this machine who can connect there passes for a node, so that credentials protect \
     nothing. Let nodes prove who they are, with --peer-cert, --peer-key and --peer-ca, or say with --insecure-peers that \
     nobody else can connect";
const POLL: Duration = Duration::from_millis(10);
/// How long to wait before limits are put again that nobody could take.
const PUT_AGAIN: Duration = Duration::from_millis(500);

pub(super) async fn serve(args: &ServeArgs, places: &Places, signals: Signals) -> Result<(), Failure> {
    let wanted = args.limits.as_deref().map(read_limits).transpose()?;
    // Before anything is written: a start that fails leaves no trace.
    let options = args.node_options()?;
    let address = Address::take(args.server_options()?)?;
    let node = Arc::new(Node::open(options).await?);
    let served = tokio::select! {
        served = run(args, places, (address, &node), wanted.unwrap_or_default(), signals) => served,
        () = keys_behind_open_peers(args, &node) => {
            Err(Failure::Usage(format!("--peer-listen: there are keys, and {OPEN_PEERS}")))
        }
    };
    node.shut_down().await;
    // What follows from a failure of the disk is not worth a word beside it.
    if let Some(message) = node.failure().get() {
        return Err(Failure::NodeStopped(message.to_owned()));
    }
    served?;
    output::print("stopped\n")
}

async fn run(
    args: &ServeArgs,
    places: &Places,
    (address, node): (Address, &Arc<Node>),
    wanted: Vec<Definition>,
    signals: Signals,
) -> Result<(), Failure> {
    if !callers(args, node).await? {
        return Ok(());
    }
    let service = places.open(&node.backend(), args.bounds()).await?;
    let server = address.serve(service.backend())?;
    let address = server.local_addr();
    let server = server.with_cluster(Arc::clone(node) as Arc<dyn Cluster>);
    let path = args.limits.as_deref().unwrap_or(Path::new(""));
    let mut putting = pin!(prepare(&service, path, &wanted));
    let mut stop = pin!(async {
        tokio::select! {
            () = signals.first() => {}
            _ = node.failure().wait() => {}
        }
    });
    let start = timeout(GREETING_PATIENCE, async {
        while node.status().leader.is_none() {
            sleep(POLL).await;
        }
        (&mut putting).await
    });
    let put = tokio::select! {
        put = start => put.ok().transpose()?,
        () = &mut stop => return Ok(()),
    };
    output::print(&framed(&args.front(address, node.backend().has_keys()), &about(args, places, node, put)))?;
    tracing::info!(%address, node = node.identity().node, "listening");
    let mut refused = Ok(());
    let late = async {
        match put {
            Some(_) => std::future::pending().await,
            None => match putting.await {
                Ok(put) => {
                    tracing::info!(put, "there is a leader, and the limits of the file are in force");
                    std::future::pending().await
                }
                Err(error) => refused = Err(error),
            },
        }
    };
    server
        .run(async {
            tokio::select! {
                () = stop => {}
                () = late => {}
            }
        })
        .await?;
    refused
}

/// Makes sure of the callers before anyone can connect: makes the first key, or waits until it is known whether there are
/// any. Says no if the node failed meanwhile.
async fn callers(args: &ServeArgs, node: &Arc<Node>) -> Result<bool, Failure> {
    let backend = node.backend();
    let is_known = args.listen.ip().is_loopback() || args.issuer.is_some() || backend.has_keys();
    if is_known && !args.bootstrap_key {
        return Ok(true);
    }
    let settled = async {
        while backend.list(None).await.is_err() {
            sleep(POLL).await;
        }
        if args.bootstrap_key { bootstrap(&*backend).await } else { Ok(()) }
    };
    tokio::select! {
        settled = settled => settled.map(|()| true),
        _ = node.failure().wait() => Ok(false),
    }
}

/// Waits until there are keys where they protect nothing.
async fn keys_behind_open_peers(args: &ServeArgs, node: &Arc<Node>) {
    if !args.has_open_peers() {
        return std::future::pending().await;
    }
    let backend = node.backend();
    while !backend.has_keys() {
        sleep(LOOK).await;
    }
}

impl ServeArgs {
    /// Whether every process on this machine could pass for a node.
    fn has_open_peers(&self) -> bool {
        self.peer_listen.is_some() && self.peer_cert.is_none() && !self.insecure_peers
    }

    fn node_options(&self) -> Result<NodeOptions, Failure> {
        if let Some(found) = self.peer_listen.filter(|found| !found.ip().is_loopback())
            && self.peer_cert.is_none()
        {
            return Err(Failure::Usage(format!(
                "--peer-listen: found {found}, allowed are loopback addresses such as 127.0.0.1:7101, since \
                 everyone who can connect could change everything. For others let nodes prove who they are, with \
                 --peer-cert, --peer-key and --peer-ca"
            )));
        }
        for (flag, found) in [("--peer-listen", self.peer_listen), ("--peer-advertise", self.peer_advertise)]
        {
            if let Some(found) = found.filter(|found| found.port() == 0) {
                return Err(Failure::Usage(format!(
                    "{flag}: found {found}, allowed is a port from 1 on, since the other nodes keep the address"
                )));
            }
        }
        if self.has_open_peers() && (self.bootstrap_key || self.issuer.is_some()) {
            return Err(Failure::Usage(format!("--peer-listen: {OPEN_PEERS}")));
        }
        let disk = RealDisk::new(&self.data).map_err(|error| {
            Failure::Usage(format!("--data: cannot use {}: {error}", self.data.display()))
        })?;
        Ok(NodeOptions {
            id: self.node_id,
            peer_listen: self.peer_listen.map(|address| address.to_string()),
            peer_advertise: self.peer_advertise.map(|address| address.to_string()),
            join: self.join.iter().map(ToString::to_string).collect(),
            queue_max: self.queue_max as usize,
            net: self.peer_net()?,
            trusts_peers: !self.has_open_peers(),
            backups: Some(self.data.join("backups")),
            timing: Timing::with_election(Duration::from_millis(self.election_ms.into())),
            ..NodeOptions::new(Arc::new(disk))
        })
    }
}

/// Makes sure that the folder is for what is kept where, and puts every limit that is not there or differs, as soon as
/// somebody can take it; says how many.
async fn prepare(
    service: &Service<NodeBookHost>,
    path: &Path,
    wanted: &[Definition],
) -> Result<usize, Failure> {
    loop {
        match service.start().await {
            Ok(()) => break,
            Err(KeepError::Backend(why)) => tracing::debug!(%why, "nobody can say what is kept where yet"),
            Err(error) => return Err(Failure::Usage(format!("--data: {error}"))),
        }
        sleep(PUT_AGAIN).await;
    }
    let backend = service.backend();
    let mut put = 0;
    loop {
        match put_missing(&*backend, path, wanted, &mut put).await? {
            Ok(()) => return Ok(put),
            Err(why) => tracing::warn!(%why, "the limits of the file are not in force yet"),
        }
        sleep(PUT_AGAIN).await;
    }
}

/// One try. What the backend cannot say now may come later, and is the inner error.
async fn put_missing(
    backend: &dyn Backend,
    path: &Path,
    wanted: &[Definition],
    put: &mut usize,
) -> Result<Result<(), String>, LimitsFileError> {
    if wanted.is_empty() {
        return Ok(Ok(()));
    }
    let namespace = match NamespaceName::new(NamespaceName::DEFAULT) {
        Ok(namespace) => namespace,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let by = match Actor::new("system:limits-file") {
        Ok(actor) => By::Named(actor),
        Err(error) => return Ok(Err(error.to_string())),
    };
    let known = match backend.limits(namespace.clone()).await {
        Ok(known) => known,
        Err(error) => return Ok(Err(error.to_string())),
    };
    for definition in wanted {
        let is_there = known.iter().any(|limit| {
            let is_going = matches!(limit.status, LimitStatus::Deleted | LimitStatus::Decreasing { to: 0 });
            limit.definition == *definition && !is_going
        });
        if is_there {
            continue;
        }
        let (namespace, definition) = (namespace.clone(), definition.clone());
        let key = definition.key.clone();
        let request = PutLimitRequest { namespace, definition, expected_revision: None };
        match backend.put_limit_by(by.clone(), request).await {
            Ok(_) => *put += 1,
            Err(LimitError::Backend(error)) => return Ok(Err(error.to_string())),
            Err(source) => return Err(LimitsFileError::Refused { path: path.to_owned(), key, source }),
        }
    }
    Ok(Ok(()))
}

/// Whose data is where, who leads, and what became of the limits file.
fn about(args: &ServeArgs, places: &Places, node: &Node, put: Option<usize>) -> String {
    let status = node.status();
    let limits = match (&args.limits, put) {
        (None, _) => "with the data".to_owned(),
        (Some(path), Some(put)) => format!("with the data; {put} put from {}", path.display()),
        (Some(path), None) => {
            format!("with the data; those of {} are put once there is a leader", path.display())
        }
    };
    let peers = match node.peer_address() {
        Some(address) => format!("other nodes reach it at {address}"),
        None => "alone; for more nodes start it with --peer-listen".to_owned(),
    };
    let leases = places.limits().map(|ledger| format!("leases: on {ledger}, which enforces the limits\n"));
    let leases = leases.unwrap_or_default();
    format!(
        "data:   {}\nnode:   {} of cluster {:032x}, {}\npeers:  {peers}\nlimits: {limits}\n{leases}{}",
        args.data.display(),
        status.node,
        status.cluster,
        role(&status),
        credit(places)
    )
}

fn role(status: &ClusterStatus) -> String {
    let is_voter = status.members.iter().any(|member| member.node == status.node && member.is_voter);
    match status.leader {
        Some(leader) if leader == status.node => "leader".to_owned(),
        Some(leader) if is_voter => format!("follower of node {leader}"),
        Some(leader) => format!("learner of node {leader}"),
        None => "no leader yet: nothing is served until a majority of the nodes runs".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use earmark_admission::MemberStatus;

    use super::*;

    #[test]
    fn the_role_of_a_node_is_told_in_words() {
        let member = |node, is_voter| MemberStatus { node, is_voter, ..MemberStatus::default() };
        let members = vec![member(1, true), member(2, true), member(3, false)];
        let status =
            |node, leader| ClusterStatus { node, leader, members: members.clone(), ..Default::default() };
        assert_eq!(role(&status(1, Some(1))), "leader");
        assert_eq!(role(&status(2, Some(1))), "follower of node 1");
        assert_eq!(role(&status(3, Some(1))), "learner of node 1");
        assert!(role(&status(1, None)).starts_with("no leader yet"));
    }
}
