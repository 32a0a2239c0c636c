//! Binary encoding of log entries, on disk and between nodes. Little-endian; every kind has a permanent tag. The
//! decoder accepts only what the encoder writes.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Buf, Bytes};
use openraft::{CommittedLeaderId, EntryPayload, LeaderId, Membership};

use crate::batch::{BatchError, BatchReader};
use crate::roster::RosterChange;
use crate::types::{LogId, Member, Types, Vote};

/// Maximum address length in bytes: the longest host name and a port. Every snapshot header holds all addresses.
pub(crate) const ADDRESS_BYTES_MAX: usize = 260;
/// Maximum number of members, voters or not.
const MEMBERS_MAX: usize = 256;

/// Tags of payload kinds. A changed encoding gets a new tag; tags are never reused.
mod tag {
    pub(super) const BLANK: u8 = 1;
    pub(super) const NORMAL: u8 = 2;
    pub(super) const MEMBERSHIP: u8 = 3;
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CodecError {
    #[error("{wanted} bytes expected, {left} left")]
    Short { wanted: usize, left: usize },
    #[error("{left} trailing bytes")]
    Long { left: usize },
    #[error("unknown entry kind {found}")]
    Tag { found: u8 },
    #[error("flag is {found}, expected 0 or 1")]
    Flag { found: u8 },
    #[error("the members are not in ascending order")]
    Order,
    #[error("voter {id} is not a member")]
    Voter { id: u64 },
    #[error("an address is not UTF-8")]
    Address,
    #[error("an address has {found} bytes, allowed are up to {ADDRESS_BYTES_MAX}")]
    LongAddress { found: usize },
    #[error("{found} members, allowed are up to {MEMBERS_MAX}")]
    Members { found: usize },
    #[error("the membership has no voters, or more than two sets of them")]
    Voters,
    #[error("an actor is invalid")]
    Actor,
    #[error("the commands are malformed: {0}")]
    Batch(#[from] BatchError),
}

/// Reader that consumes bytes from the front.
#[derive(Debug)]
pub(crate) struct Input(Bytes);

impl Input {
    pub(crate) fn new(bytes: Bytes) -> Input {
        Input(bytes)
    }

    fn need(&self, wanted: usize) -> Result<(), CodecError> {
        let left = self.0.len();
        if left < wanted { Err(CodecError::Short { wanted, left }) } else { Ok(()) }
    }

    pub(crate) fn u8(&mut self) -> Result<u8, CodecError> {
        self.need(1)?;
        Ok(self.0.get_u8())
    }

    pub(crate) fn u32(&mut self) -> Result<u32, CodecError> {
        self.need(4)?;
        Ok(self.0.get_u32_le())
    }

    pub(crate) fn u64(&mut self) -> Result<u64, CodecError> {
        self.need(8)?;
        Ok(self.0.get_u64_le())
    }

    pub(crate) fn u128(&mut self) -> Result<u128, CodecError> {
        self.need(16)?;
        Ok(self.0.get_u128_le())
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        self.need(N)?;
        let mut array = [0; N];
        self.0.copy_to_slice(&mut array);
        Ok(array)
    }

    pub(crate) fn flag(&mut self) -> Result<bool, CodecError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            found => Err(CodecError::Flag { found }),
        }
    }

    /// Reads a count of items with at least `each` bytes. A count larger than the input is refused before anything is
    /// allocated.
    fn count(&mut self, each: usize) -> Result<usize, CodecError> {
        let count = self.u32()? as usize;
        self.need(count.saturating_mul(each))?;
        Ok(count)
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<Bytes, CodecError> {
        self.need(len)?;
        Ok(self.0.split_to(len))
    }

    /// Takes all remaining bytes without copying.
    pub(crate) fn rest(&mut self) -> Bytes {
        std::mem::take(&mut self.0)
    }

    /// # Errors
    /// If bytes are left.
    pub(crate) fn end(&self) -> Result<(), CodecError> {
        if self.0.is_empty() { Ok(()) } else { Err(CodecError::Long { left: self.0.len() }) }
    }
}

pub(crate) fn put_log_id(id: LogId, out: &mut Vec<u8>) {
    out.extend_from_slice(&id.leader_id.term.to_le_bytes());
    out.extend_from_slice(&id.leader_id.node_id.to_le_bytes());
    out.extend_from_slice(&id.index.to_le_bytes());
}

pub(crate) fn take_log_id(input: &mut Input) -> Result<LogId, CodecError> {
    let leader = CommittedLeaderId::new(input.u64()?, input.u64()?);
    Ok(LogId::new(leader, input.u64()?))
}

pub(crate) fn put_vote(vote: Vote, out: &mut Vec<u8>) {
    out.extend_from_slice(&vote.leader_id.term.to_le_bytes());
    out.extend_from_slice(&vote.leader_id.node_id.to_le_bytes());
    out.push(u8::from(vote.committed));
}

pub(crate) fn take_vote(input: &mut Input) -> Result<Vote, CodecError> {
    let leader_id = LeaderId::new(input.u64()?, input.u64()?);
    Ok(Vote { leader_id, committed: input.flag()? })
}

/// Encodes a payload. The caller stores its length.
pub(crate) fn put_payload(payload: &EntryPayload<Types>, out: &mut Vec<u8>) {
    match payload {
        EntryPayload::Blank => out.push(tag::BLANK),
        EntryPayload::Normal(batch) => {
            out.push(tag::NORMAL);
            out.extend_from_slice(&batch.bytes);
        }
        EntryPayload::Membership(membership) => {
            out.push(tag::MEMBERSHIP);
            put_membership(membership, out);
        }
    }
}

pub(crate) fn take_payload(bytes: Bytes) -> Result<EntryPayload<Types>, CodecError> {
    let mut input = Input::new(bytes);
    let payload = match input.u8()? {
        tag::BLANK => EntryPayload::Blank,
        tag::NORMAL => EntryPayload::Normal(input.rest().into()),
        tag::MEMBERSHIP => EntryPayload::Membership(take_membership(&mut input)?),
        found => return Err(CodecError::Tag { found }),
    };
    input.end()?;
    Ok(payload)
}

/// Validates a payload that another node sent, down to its last command. An entry that cannot be applied would stop
/// every node that has it in its log.
pub(crate) fn validate(payload: &EntryPayload<Types>, reader: &mut BatchReader) -> Result<(), CodecError> {
    match payload {
        EntryPayload::Blank => Ok(()),
        EntryPayload::Normal(batch) => match RosterChange::decode(batch) {
            Some(change) => change.map(drop),
            None => Ok(reader.each(batch, |_, _| {}).map(drop)?),
        },
        EntryPayload::Membership(membership) => {
            let configs = membership.get_joint_config();
            if !(1..=2).contains(&configs.len()) || configs.iter().any(BTreeSet::is_empty) {
                return Err(CodecError::Voters);
            }
            let found = membership.nodes().count();
            if found > MEMBERS_MAX {
                return Err(CodecError::Members { found });
            }
            let mut lengths = membership.nodes().map(|(_, member)| member.address.len());
            let long = lengths.find(|len| *len > ADDRESS_BYTES_MAX);
            long.map_or(Ok(()), |found| Err(CodecError::LongAddress { found }))
        }
    }
}

/// Upper bound of the encoded size, for memory accounting.
pub(crate) fn payload_bytes(payload: &EntryPayload<Types>) -> usize {
    match payload {
        EntryPayload::Blank => 1,
        EntryPayload::Normal(batch) => batch.bytes.len().saturating_add(1),
        EntryPayload::Membership(membership) => {
            let members = membership.nodes().map(|(_, member)| member.address.len().saturating_add(64));
            members.fold(64, usize::saturating_add)
        }
    }
}

pub(crate) fn put_membership(membership: &Membership<u64, Member>, out: &mut Vec<u8>) {
    put_count(membership.get_joint_config().len(), out);
    for config in membership.get_joint_config() {
        put_count(config.len(), out);
        for id in config {
            out.extend_from_slice(&id.to_le_bytes());
        }
    }
    put_count(membership.nodes().count(), out);
    for (id, member) in membership.nodes() {
        out.extend_from_slice(&id.to_le_bytes());
        out.extend_from_slice(&member.incarnation.to_le_bytes());
        put_count(member.address.len(), out);
        out.extend_from_slice(member.address.as_bytes());
    }
}

pub(crate) fn take_membership(input: &mut Input) -> Result<Membership<u64, Member>, CodecError> {
    let mut configs = Vec::new();
    for _ in 0..input.count(4)? {
        let mut config = BTreeSet::new();
        for _ in 0..input.count(8)? {
            let id = input.u64()?;
            ascending(config.last(), id)?;
            config.insert(id);
        }
        configs.push(config);
    }
    let mut members = BTreeMap::new();
    for _ in 0..input.count(28)? {
        let id = input.u64()?;
        ascending(members.keys().next_back(), id)?;
        let incarnation = input.u128()?;
        let len = input.u32()? as usize;
        let address = String::from_utf8(input.take(len)?.into()).map_err(|_| CodecError::Address)?;
        members.insert(id, Member { address, incarnation });
    }
    // openraft would invent a member for a voter without one.
    match configs.iter().flatten().find(|id| !members.contains_key(id)) {
        Some(&id) => Err(CodecError::Voter { id }),
        None => Ok(Membership::new(configs, members)),
    }
}

fn ascending(last: Option<&u64>, id: u64) -> Result<(), CodecError> {
    if last.is_none_or(|&last| last < id) { Ok(()) } else { Err(CodecError::Order) }
}

fn put_count(count: usize, out: &mut Vec<u8>) {
    // No request can carry four billion members or address bytes.
    out.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
}

#[cfg(test)]
mod tests;
