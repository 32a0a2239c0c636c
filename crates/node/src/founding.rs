//! The beginning of a cluster by several founders.
//!
//! A founder with an empty data folder answers only Hello, and asks all other founders until it knows enough:
//!
//! 1. All are empty and name the same founders. It promises, on disk, to found the cluster of exactly these data folders.
//! 2. All have made the same promise. It begins: the first entry of its log has all founders as voters.
//! 3. Or another founder already has a cluster. It joins that cluster.
//!
//! A data folder makes one promise at most, and a cluster begins only if the folders of all founders have promised it. So
//! two clusters cannot share a founder's folder, and a founder that lost its folder finds no others that are still empty.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use earmark_proto::peer::peer_service_server::{PeerService, PeerServiceServer};
use earmark_proto::peer::{HelloReply, HelloRequest};
use openraft::{EntryPayload, Membership};
use tokio::sync::{mpsc, oneshot};
use tonic::{Request, Response, Status};

use crate::disk::Disk;
use crate::fault::Fault;
use crate::founder_file::{FounderFile, Promise};
use crate::net::{Listener, PeerIdentity, normal_name};
use crate::node::{NodeError, NodeOptions};
use crate::peer_server::{CONNECTIONS_WAITING, accept, serve};
use crate::peers::{CallError, Peers, Sender};
use crate::runtime::random_id;
use crate::types::{Entry, LogId, Member};

/// Founders of one cluster. Each of them asks all others.
pub(crate) const FOUNDERS_MAX: usize = 16;
/// Pause between two questions to the other founders.
const POLL: Duration = Duration::from_millis(50);
/// How long another founder may take to answer.
const ASK_TIMEOUT: Duration = Duration::from_secs(1);

/// The founders as this node was told, one of which it is.
#[derive(Clone, Debug)]
pub(crate) struct Founders {
    /// Addresses, in the order of the ids.
    pub(crate) addresses: Vec<String>,
    /// Position of this node.
    own: usize,
}

impl Founders {
    /// The founders, if the node at an address is one of them.
    pub(crate) fn of(addresses: &[String], own: &str) -> Option<Founders> {
        let place = addresses.iter().position(|address| normal_name(address) == normal_name(own))?;
        Some(Founders { addresses: addresses.to_vec(), own: place })
    }

    /// Node id of this founder.
    pub(crate) fn id(&self) -> u64 {
        id_at(self.own)
    }

    /// The founders, with the address at which this node is reached. It may be known only once the node listens.
    pub(crate) fn listening_at(mut self, address: &str) -> Founders {
        if let Some(own) = self.addresses.get_mut(self.own) {
            *own = address.to_owned();
        }
        self
    }

    fn others(&self) -> impl Iterator<Item = (usize, &String)> {
        self.addresses.iter().enumerate().filter(|(place, _)| *place != self.own)
    }
}

/// Founders have the ids 1, 2, 3 and so on.
fn id_at(place: usize) -> u64 {
    u64::try_from(place).unwrap_or(u64::MAX).saturating_add(1)
}

/// The result of the wait for the other founders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Founded {
    /// The cluster begins.
    Begin(Promise),
    /// Another founder has a cluster already.
    Join,
}

/// The first entry of a cluster: its founders are the voters.
pub(crate) fn first_entry(promise: &Promise) -> Entry {
    let founders = promise.founders.iter().enumerate();
    let member = |(place, (address, incarnation)): (usize, &(String, u128))| {
        (id_at(place), Member { address: address.clone(), incarnation: *incarnation })
    };
    let members: BTreeMap<u64, Member> = founders.map(member).collect();
    let voters: BTreeSet<u64> = members.keys().copied().collect();
    Entry { log_id: LogId::default(), payload: EntryPayload::Membership(Membership::new(vec![voters], members)) }
}

/// Reads the state of a founder, or creates it.
pub(crate) async fn open_file(disk: &Arc<dyn Disk>) -> Result<FounderFile, Fault> {
    let (handle, incarnation) = (Arc::clone(disk), random_id());
    let open = move || match FounderFile::read(&*handle)? {
        Some(file) => Ok(file),
        None => {
            let file = FounderFile { incarnation, promise: None };
            file.write(&*handle).map(|()| file)
        }
    };
    disk.run(open).await
}

/// A founder that waits for the others.
pub(crate) struct Founding {
    founders: Founders,
    disk: Arc<dyn Disk>,
    peers: Peers,
    /// Shared with the service, which answers from it.
    state: Arc<Mutex<FounderFile>>,
    /// Founders that have made the same promise. Promises are final.
    confirmed: BTreeSet<usize>,
    /// The last reason for waiting that was logged.
    logged: String,
}

impl Founding {
    pub(crate) fn new(options: &NodeOptions, founders: Founders, file: FounderFile) -> Founding {
        let address = founders.addresses.get(founders.own).cloned().unwrap_or_default();
        let identity = options.net.local_identity();
        // A founder that lost its folder is not the member with its id. Only a certificate without a name needs the id.
        let is_by_name = identity == PeerIdentity::Unproven || identity.proves_name(&address);
        let id = if is_by_name { 0 } else { founders.id() };
        let sender = Sender { id, incarnation: file.incarnation, address, ..Sender::default() };
        let peers = Peers::new(sender, Arc::clone(&options.net), ASK_TIMEOUT);
        let (disk, state) = (Arc::clone(&options.disk), Arc::new(Mutex::new(file)));
        Founding { founders, disk, peers, state, confirmed: BTreeSet::new(), logged: String::new() }
    }

    /// Answers the other founders and asks them until the cluster begins, or is found.
    pub(crate) async fn wait(mut self, listener: &mut dyn Listener) -> Result<Founded, NodeError> {
        let service = FounderService { founders: self.founders.clone(), state: Arc::clone(&self.state) };
        let (connections, incoming) = mpsc::channel(CONNECTIONS_WAITING);
        let (stop, stopped) = oneshot::channel::<()>();
        earmark_admission::spawn(serve(incoming, PeerServiceServer::new(service), async {
            _ = stopped.await;
        }));
        let founded = tokio::select! {
            founded = self.agree() => founded,
            () = accept(listener, connections) => Err(NodeError::Invalid("the peer service stopped".into())),
        };
        _ = stop.send(());
        founded
    }

    async fn agree(&mut self) -> Result<Founded, NodeError> {
        loop {
            let answers = self.ask().await;
            let file = self.state.lock().unwrap_or_else(PoisonError::into_inner).clone();
            match decide(&self.founders, &file, &answers, &mut self.confirmed) {
                Step::Begin(promise) => return Ok(Founded::Begin(promise)),
                Step::Join => return Ok(Founded::Join),
                Step::Refuse(why) => return Err(NodeError::Invalid(why)),
                Step::Promise(promise) => {
                    let file = FounderFile { promise: Some(promise), ..file };
                    let (disk, kept) = (Arc::clone(&self.disk), file.clone());
                    self.disk.run(move || kept.write(&*disk)).await?;
                    // Only a promise on disk is told to others.
                    *self.state.lock().unwrap_or_else(PoisonError::into_inner) = file;
                }
                Step::Wait(why) => {
                    if self.logged != why {
                        tracing::info!("the cluster has not begun: {why}");
                        self.logged = why;
                    }
                    tokio::time::sleep(POLL).await;
                }
            }
        }
    }

    /// Asks all other founders at once.
    async fn ask(&self) -> Vec<Answer> {
        let ask = |(place, address): (usize, &String)| {
            let (peers, address) = (self.peers.clone(), address.clone());
            earmark_admission::spawn(
                async move { Answer { place, said: peers.hello(&address, Some(id_at(place))).await } },
            )
        };
        let asked: Vec<_> = self.founders.others().map(ask).collect();
        let mut answers = Vec::new();
        for one in asked {
            // A task that panicked has no answer.
            answers.extend(one.await);
        }
        answers
    }
}

/// The answer of another founder.
struct Answer {
    place: usize,
    said: Result<HelloReply, CallError>,
}

/// The next step of a founder.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Promise(Promise),
    Begin(Promise),
    Join,
    Wait(String),
    /// The node cannot start.
    Refuse(String),
}

fn number(bytes: &Bytes) -> Option<u128> {
    bytes.first_chunk::<16>().copied().map(u128::from_le_bytes)
}

/// Decides by the state of this founder and the answers of the others.
fn decide(founders: &Founders, file: &FounderFile, answers: &[Answer], confirmed: &mut BTreeSet<usize>) -> Step {
    let mut waiting = Vec::new();
    let mut heard = BTreeMap::from([(founders.own, file.incarnation)]);
    let promised = file.promise.as_ref().map(Promise::cluster);
    let mut has_cluster = false;
    for Answer { place, said } in answers {
        let name = founders.addresses.get(*place).map_or("", String::as_str);
        match said {
            Err(CallError::Excluded { message }) => return Step::Refuse(message.clone()),
            Err(why) => waiting.push(why.to_string()),
            Ok(said) if normal_name(&said.address) != normal_name(name) => {
                waiting.push(format!("{:?} answers at {name}", said.address));
            }
            Ok(said) if !said.cluster.is_empty() => match promised {
                Some(promised) if number(&said.cluster) == Some(promised) => _ = confirmed.insert(*place),
                Some(_) => return Step::Refuse(format!("{name} belongs to another cluster. {START_OVER}")),
                None => has_cluster = true,
            },
            Ok(said) if !is_same_list(&said.founders, &founders.addresses) => {
                waiting.push(format!("{name} has another --bootstrap: {}", said.founders.join(",")));
            }
            Ok(said) => {
                let incarnation = number(&said.incarnation).unwrap_or_default();
                heard.insert(*place, incarnation);
                let expected = file.promise.as_ref().and_then(|promise| promise.founders.get(*place));
                if number(&said.promised) == promised && promised.is_some() {
                    confirmed.insert(*place);
                } else if expected.is_some_and(|(_, expected)| *expected != incarnation) || !said.promised.is_empty() {
                    waiting.push(format!("{name} lost its data folder, or another founder did. {START_OVER}"));
                } else {
                    waiting.push(format!("{name} has not promised yet"));
                }
            }
        }
    }
    match &file.promise {
        // Also without the other answers: a cluster exists, so none may begin.
        None if has_cluster => Step::Join,
        None if heard.len() == founders.addresses.len() => {
            let founder = |(address, (_, incarnation)): (&String, (usize, u128))| (address.clone(), incarnation);
            Step::Promise(Promise { founders: founders.addresses.iter().zip(heard).map(founder).collect() })
        }
        Some(promise) if founders.others().all(|(place, _)| confirmed.contains(&place)) => Step::Begin(promise.clone()),
        _ => Step::Wait(waiting.join("; ")),
    }
}

/// Advice if a founder lost its folder between its promise and the beginning.
const START_OVER: &str = "The data folders of founders whose cluster has not begun hold no data: delete them and start \
                          the founders again";

fn is_same_list(one: &[String], other: &[String]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| normal_name(one) == normal_name(other))
}

/// Refuses a promise to other founders than those of `--bootstrap`.
pub(crate) fn check_promise(founders: &Founders, file: &FounderFile) -> Result<(), NodeError> {
    let Some(promise) = &file.promise else { return Ok(()) };
    let promised: Vec<String> = promise.founders.iter().map(|(address, _)| address.clone()).collect();
    match is_same_list(&promised, &founders.addresses) {
        true => Ok(()),
        false => Err(NodeError::Invalid(format!(
            "this node has promised to found a cluster with --bootstrap {}; start it with that list. {START_OVER}",
            promised.join(",")
        ))),
    }
}

/// The peer service of a founder whose cluster has not begun.
struct FounderService {
    founders: Founders,
    state: Arc<Mutex<FounderFile>>,
}

#[tonic::async_trait]
impl PeerService for FounderService {
    async fn hello(&self, _: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        let file = self.state.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let bytes = |number: u128| Bytes::copy_from_slice(&number.to_le_bytes());
        let Founders { addresses, own } = &self.founders;
        Ok(Response::new(HelloReply {
            cluster: Bytes::new(),
            node: self.founders.id(),
            incarnation: bytes(file.incarnation),
            address: addresses.get(*own).cloned().unwrap_or_default(),
            founders: addresses.clone(),
            promised: file.promise.map(|promise| bytes(promise.cluster())).unwrap_or_default(),
        }))
    }
}

#[cfg(test)]
mod tests;
