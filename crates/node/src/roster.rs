//! The members of the cluster, the ids and public keys of nodes, and the invitations to join: replicated state beside the
//! Book.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use earmark_core::UnixMs;
use openraft::{Membership, StoredMembership};

use crate::entry::{CodecError, Input};
use crate::invitations::{InvitationEdit, Invitations};
use crate::net::normal_name;
use crate::published_keys::{NodeKey, PublishedKeys};
use crate::types::{Batch, Member};

/// Ids given to nodes that have not joined yet. Every snapshot header holds them; beyond it the oldest is forgotten, and
/// its node may still join with it.
const GIVEN_MAX: usize = 256;
/// First byte of a log entry that changes the roster. Entries with commands for the Book begin with their format.
const FORMAT: u8 = 2;
/// Tag of [`RosterEdit::GiveId`]. Invitations have 1 to 3.
const GIVE_ID: u8 = 4;
/// Tag of [`RosterEdit::PublishKey`].
const PUBLISH_KEY: u8 = 5;

/// The members of the cluster, the ids and public keys of nodes, and the invitations to join.
#[derive(Clone, Debug, Default)]
pub(crate) struct Roster {
    pub(crate) membership: StoredMembership<u64, Member>,
    pub(crate) ids: NodeIds,
    pub(crate) invitations: Invitations,
    pub(crate) keys: PublishedKeys,
}

/// Node ids. An id is never used for two nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeIds {
    /// Every id that was ever a member.
    used: BTreeSet<u64>,
    /// The highest id that was given to a node.
    last_given: u64,
    /// Ids given to nodes that are not members yet, by the incarnation of their data folder.
    given: BTreeMap<u128, u64>,
}

impl FromIterator<u64> for NodeIds {
    /// Ids of members.
    fn from_iter<I: IntoIterator<Item = u64>>(used: I) -> NodeIds {
        NodeIds { used: used.into_iter().collect(), ..NodeIds::default() }
    }
}

impl NodeIds {
    /// Whether an id was ever a member.
    pub(crate) fn is_used(&self, id: u64) -> bool {
        self.used.contains(&id)
    }

    /// The id that was given to a node.
    pub(crate) fn given_to(&self, incarnation: u128) -> Option<u64> {
        self.given.get(&incarnation).copied()
    }

    /// Whether an id was given to another node, which has not joined yet.
    pub(crate) fn is_given_to_another(&self, id: u64, incarnation: u128) -> bool {
        self.given.iter().any(|(of, given)| *given == id && *of != incarnation)
    }

    /// Records the members of a membership. Their ids are used from now on.
    pub(crate) fn record(&mut self, membership: &Membership<u64, Member>) {
        self.used.extend(membership.nodes().map(|(id, _)| *id));
        self.given.retain(|_, id| !self.used.contains(id));
    }

    /// Gives a node an id that no node ever had. A node that has one keeps it.
    pub(crate) fn give(&mut self, incarnation: u128) {
        if self.given.contains_key(&incarnation) {
            return;
        }
        let last = self.used.last().copied().unwrap_or(0).max(self.last_given);
        let Some(id) = last.checked_add(1) else { return };
        if self.given.len() >= GIVEN_MAX
            && let Some(oldest) = self.given.iter().min_by_key(|(_, id)| **id).map(|(incarnation, _)| *incarnation)
        {
            self.given.remove(&oldest);
        }
        self.last_given = id;
        self.given.insert(incarnation, id);
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        put_count(self.used.len(), out);
        self.used.iter().for_each(|id| out.extend_from_slice(&id.to_le_bytes()));
        out.extend_from_slice(&self.last_given.to_le_bytes());
        put_count(self.given.len(), out);
        for (incarnation, id) in &self.given {
            out.extend_from_slice(&incarnation.to_le_bytes());
            out.extend_from_slice(&id.to_le_bytes());
        }
    }

    pub(crate) fn take(input: &mut Input) -> Result<NodeIds, CodecError> {
        let mut ids = NodeIds::default();
        for _ in 0..input.u32()? {
            ids.used.insert(input.u64()?);
        }
        ids.last_given = input.u64()?;
        for _ in 0..input.u32()? {
            ids.given.insert(input.u128()?, input.u64()?);
        }
        Ok(ids)
    }
}

fn put_count(count: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
}

/// The members with the name of a node, which is its address, except the node itself.
pub(crate) fn namesakes(membership: &Membership<u64, Member>, id: u64, address: &str) -> BTreeSet<u64> {
    let name = normal_name(address);
    let same = |(other, member): &(&u64, &Member)| **other != id && normal_name(&member.address) == name;
    membership.nodes().filter(same).map(|(other, _)| *other).collect()
}

/// A change of the roster, as a log entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RosterChange {
    /// Log time.
    pub(crate) at: UnixMs,
    pub(crate) edit: RosterEdit,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RosterEdit {
    Invitations(InvitationEdit),
    /// Gives the node with this data folder an id.
    GiveId {
        incarnation: u128,
    },
    /// Publishes the key with which a node signs exports.
    PublishKey(NodeKey),
}

impl RosterChange {
    pub(crate) fn encode(&self) -> Batch {
        let mut out = vec![FORMAT];
        out.extend_from_slice(&self.at.get().to_le_bytes());
        match &self.edit {
            RosterEdit::Invitations(edit) => edit.put(&mut out),
            RosterEdit::GiveId { incarnation } => {
                out.push(GIVE_ID);
                out.extend_from_slice(&incarnation.to_le_bytes());
            }
            RosterEdit::PublishKey(key) => {
                out.push(PUBLISH_KEY);
                key.put(&mut out);
            }
        }
        Bytes::from(out).into()
    }

    /// Decodes a log entry. `None` if it has commands for the Book.
    pub(crate) fn decode(batch: &Batch) -> Option<Result<RosterChange, CodecError>> {
        let mut input = Input::new(batch.bytes.clone());
        let is_change = input.u8() == Ok(FORMAT);
        is_change.then(|| RosterChange::take(&mut input))
    }

    fn take(input: &mut Input) -> Result<RosterChange, CodecError> {
        let at = UnixMs::new(input.u64()?);
        let edit = match input.u8()? {
            GIVE_ID => RosterEdit::GiveId { incarnation: input.u128()? },
            PUBLISH_KEY => RosterEdit::PublishKey(NodeKey::take(input)?),
            tag => RosterEdit::Invitations(InvitationEdit::take(tag, input)?),
        };
        input.end()?;
        Ok(RosterChange { at, edit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn membership(ids: &[u64]) -> Membership<u64, Member> {
        let member = |id: &u64| (*id, Member { address: format!("n{id}.example:1"), incarnation: 0 });
        Membership::new(vec![ids.iter().copied().collect()], ids.iter().map(member).collect::<BTreeMap<_, _>>())
    }

    #[test]
    fn an_id_is_given_once_and_to_one_node() {
        let mut ids = NodeIds::default();
        ids.record(&membership(&[1, 2, 7]));
        ids.give(50);
        ids.give(50);
        ids.give(60);
        assert_eq!((ids.given_to(50), ids.given_to(60), ids.given_to(70)), (Some(8), Some(9), None));
        assert!(ids.is_given_to_another(8, 60) && !ids.is_given_to_another(8, 50));
        // The second has joined and was removed; the first never came.
        ids.record(&membership(&[1, 9]));
        ids.record(&membership(&[1]));
        assert!(ids.is_used(9) && ids.given_to(60).is_none());
        ids.give(70);
        assert_eq!(ids.given_to(70), Some(10));
        let mut bytes = Vec::new();
        ids.put(&mut bytes);
        assert_eq!(NodeIds::take(&mut Input::new(bytes.into())), Ok(ids));
    }

    #[test]
    fn nodes_that_never_join_take_bounded_memory_and_no_id_twice() {
        let mut ids = NodeIds::default();
        let count = GIVEN_MAX as u64 * 2;
        for incarnation in 0..count {
            ids.give(incarnation.into());
            assert_eq!(ids.given_to(incarnation.into()), Some(incarnation + 1));
        }
        assert_eq!(ids.given.len(), GIVEN_MAX);
    }

    #[test]
    fn a_change_of_the_ids_or_keys_is_read_back_from_the_log() {
        let key = NodeKey { key: crate::signing_key::PublicKey([3; 32]), cluster: 8, node: 2 };
        for edit in [RosterEdit::GiveId { incarnation: 9 }, RosterEdit::PublishKey(key)] {
            let change = RosterChange { at: UnixMs::new(7), edit };
            assert_eq!(RosterChange::decode(&change.encode()), Some(Ok(change)));
        }
    }

    #[test]
    fn the_name_of_a_node_is_its_address_in_any_case() {
        let members = membership(&[1, 2]);
        assert_eq!(namesakes(&members, 3, "N2.example.:1"), BTreeSet::from([2]));
        assert_eq!(namesakes(&members, 2, "n2.example:1"), BTreeSet::new());
        assert_eq!(namesakes(&members, 3, "n2.example:2"), BTreeSet::new());
    }
}
