//! How a node becomes and stays a member: it asks to join, reports a new address, and learns of members that it does
//! not know.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use earmark_proto::peer::JoinRequest;
use openraft::Membership;

use super::Node;
use crate::auth::Vouched;
use crate::members::MembersError;
use crate::peers::{Peers, Target};
use crate::proposer::Proposer;
use crate::types::Member;

/// Pause between attempts to join the cluster.
const JOIN_RETRY: Duration = Duration::from_millis(500);

/// Asks a member, and then the leader that it names, to add or move this node, and returns its id. The members that they
/// name may send messages to this node from then on.
pub(crate) async fn ask_to_join(
    peers: &Peers,
    vouched: &Vouched,
    member: &Target,
    request: JoinRequest,
) -> Result<u64, MembersError> {
    // The leader sends its first entries before it replies.
    vouched.add(member);
    let (asked, members) = peers.join(member, request).await;
    members.iter().for_each(|member| vouched.add(member));
    let Err(MembersError::NotLeader(leader)) = asked else { return asked };
    vouched.add(&leader);
    let (asked, members) = peers.join(&leader, request).await;
    members.iter().for_each(|member| vouched.add(member));
    match asked {
        Err(MembersError::NotLeader(_)) => Err(MembersError::Unavailable("the leader changes".into())),
        asked => asked,
    }
}

/// Background task of a node.
struct Joining {
    proposer: Proposer,
    vouched: Arc<Vouched>,
    cluster: u128,
    is_founder: bool,
    /// Addresses of `--join`.
    addresses: Vec<String>,
    /// Address at which other nodes reach this one.
    address: String,
    /// The last reason that was logged for not being a member.
    logged: Mutex<String>,
}

impl Node {
    /// Asks for membership until this node is a voter, and reports its new address after a move.
    pub(super) fn join(&self, addresses: Vec<String>, address: String) {
        let joining = Joining {
            proposer: self.proposer.clone(),
            vouched: Arc::clone(&self.vouched),
            cluster: self.identity.cluster,
            is_founder: self.identity.is_founder,
            addresses,
            address,
            logged: Mutex::default(),
        };
        let last_leader_contact = self.last_leader_contact.clone();
        let lease = self.timing.lease();
        self.spawn(async move {
            loop {
                let is_lost = last_leader_contact.elapsed() > lease && !joining.proposer.is_leader();
                if let Err(message) = joining.attempt(is_lost).await {
                    joining.proposer.applied_state.failure().set(&format!("cannot join the cluster: {message}"));
                    return;
                }
                tokio::time::sleep(JOIN_RETRY).await;
            }
        });
    }
}

impl Joining {
    /// One attempt, if there is a reason for it. `is_lost`: no leader has sent a message for a while.
    ///
    /// # Errors
    /// If this node can never be a member.
    async fn attempt(&self, is_lost: bool) -> Result<(), String> {
        let id = self.proposer.id;
        let metrics = self.proposer.raft.metrics().borrow().clone();
        let members = metrics.membership_config.membership();
        let is_voter = members.voter_ids().any(|voter| voter == id);
        let is_elsewhere = members.get_node(&id).is_some_and(|known| known.address != self.address);
        // A member that this node has not heard of may lead by now.
        let is_outdated = is_lost && self.vouched.take_stranger();
        // A leader updates its own address.
        let is_moved = is_elsewhere && !self.proposer.is_leader();
        if is_voter && !is_moved && !is_outdated {
            if metrics.current_leader.is_some_and(|leader| members.get_node(&leader).is_some()) {
                self.vouched.clear();
            }
            return Ok(());
        }
        if is_voter && is_elsewhere {
            self.find_moved(members).await;
        }
        // A founder was the first voter. If it does not vote now, it was removed; a member will tell it.
        let asks_others_only = !is_outdated && (is_voter || self.is_founder);
        let addresses = if asks_others_only { &[][..] } else { &self.addresses };
        let others = members.nodes().filter(|(other, _)| **other != id);
        let others = others.map(|(id, Member { address, incarnation })| Target {
            id: *id,
            address: address.clone(),
            incarnation: *incarnation,
        });
        let mut whom = Vec::new();
        for address in addresses {
            match self.proposer.peers.identify(address).await {
                Ok((cluster, target)) if cluster == self.cluster && target.id != id => whom.push(target),
                Ok(_) => {}
                Err(error) => self.log(error.to_string()),
            }
        }
        for member in whom.into_iter().chain(others) {
            match ask_to_join(&self.proposer.peers, &self.vouched, &member, JoinRequest { check_only: false }).await {
                Ok(_) => {
                    tracing::info!("node {id} joined the cluster");
                    break;
                }
                // A stranger at an address of --join cannot stop a voter.
                Err(MembersError::Refused(message)) if !is_voter || members.get_node(&member.id).is_some() => {
                    return Err(message);
                }
                Err(error) => self.log(error.to_string()),
            }
        }
        Ok(())
    }

    /// Logs why this node is not a member. A waiting node asks twice a second, so a reason is logged once.
    fn log(&self, reason: String) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if *logged != reason {
            tracing::info!("not a member yet: {reason}");
            *logged = reason;
        }
    }

    /// Finds members at the addresses of `--join`. If a majority has moved, no leader can be elected to update the
    /// membership.
    async fn find_moved(&self, members: &Membership<u64, Member>) {
        for address in &self.addresses {
            let Ok((cluster, found)) = self.proposer.peers.identify(address).await else { continue };
            let known = members.get_node(&found.id);
            let known = known.filter(|known| cluster == self.cluster && found.incarnation == known.incarnation);
            if let Some(known) = known.filter(|known| known.address != *address) {
                self.proposer.peers.moved(known.address.clone(), address.clone());
            }
        }
    }
}
