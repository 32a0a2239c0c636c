//! `earmark serve --data`: a durable node behind the HTTP server.

use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use earmark_admission::{
    Backend, Cluster, ClusterStatus, Keys as _, LimitError, LimitsFileError, NamespacedLimits, PlacementError,
    PutLimitRequest, PutTemplateRequest, read_limits,
};
use earmark_core::{Actor, Definition, LimitStatus, NamespaceName, Principal, Template};
use earmark_node::{Node, NodeBookHost, NodeOptions, RealDisk, Timing};
use earmark_server::BoundAddress;
use tokio::time::{sleep, timeout};

use super::beside::Beside;
use super::callers::bootstrap;
use super::settings::configure;
use super::storage::{Service, Storage};
use super::{ServeArgs, Signals, banner, credit_line};
use crate::failure::Failure;
use crate::output;

/// How long the startup message waits for a leader. Health and metrics are served meanwhile.
const BANNER_TIMEOUT: Duration = Duration::from_secs(10);
/// Poll interval for keys that unauthenticated peers could bypass.
const KEYS_POLL: Duration = Duration::from_millis(250);
const OPEN_PEERS: &str = "any process on this machine can connect there as a node, so keys protect nothing. Give nodes \
     certificates with --peer-cert, --peer-key and --peer-ca, or confirm with --insecure-peers that only nodes can connect";
const POLL: Duration = Duration::from_millis(10);
/// Pause before limits are put again after the backend was unavailable.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(500);

pub(super) async fn serve(args: &ServeArgs, storage: &Storage, mut signals: Signals) -> Result<(), Failure> {
    let definitions = args.limits.as_deref().map(read_limits).transpose()?;
    let beside = Beside::read(args)?;
    // Before the first write to disk: a failed start leaves no trace.
    let options = args.node_options()?;
    let address = BoundAddress::bind(args.server_options()?)?;
    // A founder waits for the others, and a new node for its cluster, until they answer or a signal comes.
    let opened = tokio::select! {
        opened = Node::open(options) => opened?,
        () = signals.any() => return output::print("stopped\n"),
    };
    let node = Arc::new(opened);
    let served = tokio::select! {
        served = run(args, storage, (address, &node), definitions.unwrap_or_default(), (signals, &beside)) => served,
        () = keys_behind_open_peers(args, &node) => {
            Err(Failure::Usage(format!("--peer-listen: this server has keys, but {OPEN_PEERS}")))
        }
    };
    node.shut_down().await;
    // A disk failure hides the errors that follow from it.
    if let Some(message) = node.failure().get() {
        return Err(Failure::NodeStopped(message.to_owned()));
    }
    served?;
    beside.ended()?;
    output::print("stopped\n")
}

async fn run(
    args: &ServeArgs,
    storage: &Storage,
    (address, node): (BoundAddress, &Arc<Node>),
    definitions: NamespacedLimits,
    (signals, beside): (Signals, &Beside),
) -> Result<(), Failure> {
    if !callers(args, node).await? {
        return Ok(());
    }
    let service = storage.open(&node.backend(), args.queue_max as usize).await?;
    let decisions = args.decisions.open(args.data_disk()?, node.identity())?;
    let server = address.with_decisions(decisions).serve(service.backend())?;
    let address = server.local_addr();
    let server = server.with_cluster(Arc::clone(node) as Arc<dyn Cluster>);
    let path = args.limits.as_deref().unwrap_or(Path::new(""));
    let mut putting = pin!(prepare(&service, path, &definitions));
    let mut stop = pin!(async {
        tokio::select! {
            () = signals.first() => {}
            _ = node.failure().wait() => {}
        }
    });
    let start = timeout(BANNER_TIMEOUT, async {
        while node.status().leader.is_none() {
            sleep(POLL).await;
        }
        (&mut putting).await
    });
    let put = tokio::select! {
        put = start => put.ok().transpose()?,
        () = &mut stop => return Ok(()),
    };
    let endpoint = args.endpoint(address, node.backend().has_keys());
    output::print(&banner(&endpoint, &banner_lines(args, storage, node, put)))?;
    tracing::info!(%address, node = node.identity().node, "listening");
    let (book, wanted) = (node.backend(), args.settings.changes());
    let mut refused = Ok(());
    let put_later = async {
        match put {
            Some(_) => std::future::pending().await,
            None => match putting.await {
                Ok(put) => {
                    tracing::info!(put, "the limits of the file are in force");
                    std::future::pending().await
                }
                Err(error) => refused = Err(error),
            },
        }
    };
    let own = server.in_process();
    server
        .run(async {
            tokio::select! {
                () = beside.until(own, stop) => {}
                () = put_later => {}
                () = configure(&book, node.identity().node, &wanted) => {}
            }
        })
        .await?;
    refused
}

/// Creates the first key, or waits until the node knows whether keys exist, before clients can connect. Returns false if
/// the node failed meanwhile.
async fn callers(args: &ServeArgs, node: &Arc<Node>) -> Result<bool, Failure> {
    let backend = node.backend();
    let is_known = args.listen.ip().is_loopback() || args.issuer.is_some() || backend.has_keys();
    if is_known && args.bootstrap_key.is_none() {
        return Ok(true);
    }
    let settled = async {
        while backend.list(None).await.is_err() {
            sleep(POLL).await;
        }
        match &args.bootstrap_key {
            Some(file) => bootstrap(&*backend, file.as_deref()).await,
            None => Ok(()),
        }
    };
    tokio::select! {
        settled = settled => settled.map(|()| true),
        _ = node.failure().wait() => Ok(false),
    }
}

/// Waits until keys exist that unauthenticated peers could bypass.
async fn keys_behind_open_peers(args: &ServeArgs, node: &Arc<Node>) {
    if !args.has_open_peers() {
        return std::future::pending().await;
    }
    let backend = node.backend();
    while !backend.has_keys() {
        sleep(KEYS_POLL).await;
    }
}

impl ServeArgs {
    /// Whether any process on this machine can connect as a node.
    fn has_open_peers(&self) -> bool {
        self.peers.peer_listen.is_some() && self.peer_cert.is_none() && !self.insecure_peers
    }

    fn data_disk(&self) -> Result<RealDisk, Failure> {
        RealDisk::new(&self.data)
            .map_err(|error| Failure::Usage(format!("--data: cannot use {}: {error}", self.data.display())))
    }

    pub(super) fn node_options(&self) -> Result<NodeOptions, Failure> {
        let peers = &self.peers;
        if let Some(found) = peers.peer_listen.filter(|found| !found.ip().is_loopback())
            && self.peer_cert.is_none()
        {
            return Err(Failure::Usage(format!(
                "--peer-listen: found {found}, allowed are loopback addresses such as 127.0.0.1:7101. Other \
                 addresses need certificates: --peer-cert, --peer-key and --peer-ca"
            )));
        }
        peers.check()?;
        if self.has_open_peers() && (self.bootstrap_key.is_some() || self.issuer.is_some()) {
            return Err(Failure::Usage(format!("--peer-listen: {OPEN_PEERS}")));
        }
        let disk = self.data_disk()?;
        Ok(NodeOptions {
            disk_reserve: self.disk_reserve.unwrap_or_default(),
            id: peers.node_id,
            peer_listen: peers.peer_listen.map(|address| address.to_string()),
            peer_advertise: peers.advertised(),
            bootstrap: peers.all_with_port(&peers.bootstrap),
            join: peers.all_with_port(&peers.join),
            invitation: peers.invitation()?,
            queue_max: self.queue_max as usize,
            net: self.peer_net()?,
            trusts_peers: !self.has_open_peers(),
            accept_time: self.accept_time,
            backups: Some(self.data.join("backups")),
            timing: Timing::with_election(Duration::from_millis(self.election_ms.into())),
            ..NodeOptions::new(Arc::new(disk.waiting_for_space()))
        })
    }
}

/// Checks that the data folder matches `--ledger` and `--credits`, then puts every limit of the file that is missing or
/// differs. Retries until the backend is available. Returns the number of limits put.
async fn prepare(
    service: &Service<NodeBookHost>,
    path: &Path,
    definitions: &[(NamespaceName, Definition)],
) -> Result<usize, Failure> {
    loop {
        match service.start().await {
            Ok(()) => break,
            Err(PlacementError::Backend(why)) => {
                tracing::debug!(%why, "cannot check the storage settings of the data folder yet")
            }
            Err(error) => return Err(Failure::Usage(format!("--data: {error}"))),
        }
        sleep(RETRY_PAUSE).await;
    }
    let backend = service.backend();
    let mut put = 0;
    loop {
        match put_missing(&*backend, path, definitions, &mut put).await? {
            Ok(()) => return Ok(put),
            Err(why) => tracing::warn!(%why, "cannot put the limits of the file yet"),
        }
        sleep(RETRY_PAUSE).await;
    }
}

/// Puts a template of the file unless it is there.
async fn put_template(
    backend: &dyn Backend,
    by: &Principal,
    (namespace, definition): (&NamespaceName, &Definition),
    put: &mut usize,
) -> Result<(), LimitError> {
    let known = backend.templates(namespace.clone()).await?;
    if !known.iter().any(|template| template.definition == *definition) {
        let template = Template::new(definition.clone())?;
        let request = PutTemplateRequest { namespace: namespace.clone(), template, expected_revision: None };
        backend.put_template(by.clone(), request).await?;
        *put += 1;
    }
    Ok(())
}

/// One attempt. The inner error is temporary.
async fn put_missing(
    backend: &dyn Backend,
    path: &Path,
    definitions: &[(NamespaceName, Definition)],
    put: &mut usize,
) -> Result<Result<(), String>, LimitsFileError> {
    if definitions.is_empty() {
        return Ok(Ok(()));
    }
    let by = match Actor::new("system:limits-file") {
        Ok(actor) => Principal::Actor(actor),
        Err(error) => return Ok(Err(error.to_string())),
    };
    for (namespace, definition) in definitions {
        let key = definition.key.clone();
        if key.has_placeholders() {
            match put_template(backend, &by, (namespace, definition), put).await {
                Ok(()) => continue,
                Err(LimitError::Backend(error)) => return Ok(Err(error.to_string())),
                Err(source) => return Err(LimitsFileError::Refused { path: path.to_owned(), key, source }),
            }
        }
        let known = match backend.limit(namespace.clone(), key.clone()).await {
            Ok(known) => known,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let is_there = known.is_some_and(|limit| {
            let is_going = matches!(limit.status, LimitStatus::Deleted | LimitStatus::Decreasing { to: 0 });
            limit.definition == *definition && !is_going
        });
        if is_there {
            continue;
        }
        let (namespace, definition) = (namespace.clone(), definition.clone());
        let request = PutLimitRequest { namespace, definition, expected_revision: None };
        match backend.put_limit(by.clone(), request).await {
            Ok(_) => *put += 1,
            Err(LimitError::Backend(error)) => return Ok(Err(error.to_string())),
            Err(source) => return Err(LimitsFileError::Refused { path: path.to_owned(), key, source }),
        }
    }
    Ok(Ok(()))
}

/// The lines of the startup message: data folder, node, peers, limits and storage.
fn banner_lines(args: &ServeArgs, storage: &Storage, node: &Node, put: Option<usize>) -> String {
    let status = node.status();
    let limits = match (&args.limits, put) {
        (None, _) => "with the data".to_owned(),
        (Some(path), Some(put)) => format!("with the data; {put} put from {}", path.display()),
        (Some(path), None) => {
            format!("with the data; those of {} follow once there is a leader", path.display())
        }
    };
    let peers = match node.peer_address() {
        Some(address) => format!("other nodes connect to {address}"),
        None => "none; for a cluster start with --peer-listen".to_owned(),
    };
    let leases = storage.limits().map(|ledger| format!("leases: on {ledger}, which enforces the limits\n"));
    let leases = leases.unwrap_or_default();
    format!(
        "data:   {}\nnode:   {} of cluster {:032x}, {}\npeers:  {peers}\nlimits: {limits}\n{leases}{}",
        args.data.display(),
        status.node,
        status.cluster,
        role(&status),
        credit_line(storage)
    )
}

fn role(status: &ClusterStatus) -> String {
    let is_voter = status.members.iter().any(|member| member.node == status.node && member.is_voter);
    match status.leader {
        Some(leader) if leader == status.node => "leader".to_owned(),
        Some(leader) if is_voter => format!("follower of node {leader}"),
        Some(leader) => format!("learner of node {leader}"),
        None => "no leader yet: requests fail until a majority of the nodes runs".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use earmark_admission::MemberStatus;

    use super::*;

    #[test]
    fn the_role_of_a_node_is_shown_in_words() {
        let member = |node, is_voter| MemberStatus { node, is_voter, ..MemberStatus::default() };
        let members = vec![member(1, true), member(2, true), member(3, false)];
        let status = |node, leader| ClusterStatus { node, leader, members: members.clone(), ..Default::default() };
        assert_eq!(role(&status(1, Some(1))), "leader");
        assert_eq!(role(&status(2, Some(1))), "follower of node 1");
        assert_eq!(role(&status(3, Some(1))), "learner of node 1");
        assert!(role(&status(1, None)).starts_with("no leader yet"));
    }
}
