//! Invitations: an admin's permission for nodes to join the cluster. They are replicated. Only the hash of the secret is
//! kept.

use std::collections::BTreeMap;

use earmark_admission::{InvitationId, InvitationInfo};
use earmark_core::{Actor, SecretHash, UnixMs};

use crate::entry::{CodecError, Input};

/// Open invitations at once. Every snapshot header holds all of them.
pub(crate) const INVITATIONS_MAX: usize = 64;
/// How long a used-up invitation is kept: one hour. Meanwhile its nodes may repeat their Join.
const USED_UP_MS: u64 = 60 * 60 * 1000;
/// Tags of [`RosterChange`](crate::roster::RosterChange); 4 and 5 are in use there.
mod tag {
    pub(super) const CREATE: u8 = 1;
    pub(super) const REDEEM: u8 = 2;
    pub(super) const REVOKE: u8 = 3;
}

/// Why a node may not join by an invitation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvitationError {
    #[error("the invitation is unknown or has expired; make another with earmark cluster invite")]
    Unknown,
    #[error("the invitation is used up; make another with earmark cluster invite")]
    UsedUp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Invitation {
    uses_left: u32,
    expires_at: Option<UnixMs>,
    invited_by: Actor,
    /// Nodes and their incarnations that have used it.
    redeemed: Vec<(u64, u128)>,
}

/// All invitations, by the hash of their secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Invitations(BTreeMap<[u8; 32], Invitation>);

/// A change of the invitations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InvitationEdit {
    Create { hash: SecretHash, uses: u32, expires_at: Option<UnixMs>, invited_by: Actor },
    Redeem { hash: SecretHash, node: u64, incarnation: u128 },
    Revoke { id: InvitationId },
}

impl Invitations {
    /// Checks whether a node may join by an invitation, and returns who made it. A node that has used it may repeat its
    /// Join.
    pub(crate) fn check(
        &self,
        hash: &SecretHash,
        (node, incarnation): (u64, u128),
        now: UnixMs,
    ) -> Result<&Actor, InvitationError> {
        let invitation = self.0.get(hash.as_bytes()).filter(|invitation| !invitation.is_expired(now));
        let invitation = invitation.ok_or(InvitationError::Unknown)?;
        match invitation.uses_left > 0 || invitation.redeemed.contains(&(node, incarnation)) {
            true => Ok(&invitation.invited_by),
            false => Err(InvitationError::UsedUp),
        }
    }

    /// The actor that invited a node, if the node has used the invitation.
    pub(crate) fn inviter(&self, hash: &SecretHash, node: (u64, u128)) -> Option<&Actor> {
        let invitation = self.0.get(hash.as_bytes())?;
        invitation.redeemed.contains(&node).then_some(&invitation.invited_by)
    }

    pub(crate) fn contains(&self, hash: &SecretHash) -> bool {
        self.0.contains_key(hash.as_bytes())
    }

    /// The invitations that have not expired at `now`, in the order of their ids.
    pub(crate) fn list(&self, now: UnixMs) -> Vec<InvitationInfo> {
        let open = self.0.iter().filter(|(_, invitation)| !invitation.is_expired(now));
        let info = |(hash, invitation): (&[u8; 32], &Invitation)| InvitationInfo {
            id: InvitationId::of(hash),
            uses_left: invitation.uses_left,
            expires_at: invitation.expires_at,
            invited_by: invitation.invited_by.clone(),
            nodes: invitation.redeemed.iter().map(|(node, _)| *node).collect(),
        };
        open.map(info).collect()
    }

    /// Applies a log entry. A change that is not possible has no effect, so that its sender finds none.
    pub(crate) fn apply(&mut self, at: UnixMs, edit: InvitationEdit) {
        self.0.retain(|_, invitation| !invitation.is_expired(at));
        match edit {
            InvitationEdit::Create { hash, uses, expires_at, invited_by } => {
                if self.0.len() < INVITATIONS_MAX {
                    let invitation = Invitation { uses_left: uses, expires_at, invited_by, redeemed: Vec::new() };
                    self.0.entry(*hash.as_bytes()).or_insert(invitation);
                }
            }
            InvitationEdit::Revoke { id } => self.0.retain(|hash, _| InvitationId::of(hash) != id),
            InvitationEdit::Redeem { hash, node, incarnation } => {
                if let Some(invitation) = self.0.get_mut(hash.as_bytes()) {
                    invitation.redeem((node, incarnation), at);
                }
            }
        }
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        put_count(self.0.len(), out);
        for (hash, invitation) in &self.0 {
            out.extend_from_slice(hash);
            out.extend_from_slice(&invitation.uses_left.to_le_bytes());
            put_time(invitation.expires_at, out);
            put_text(invitation.invited_by.as_str(), out);
            put_count(invitation.redeemed.len(), out);
            for (node, incarnation) in &invitation.redeemed {
                out.extend_from_slice(&node.to_le_bytes());
                out.extend_from_slice(&incarnation.to_le_bytes());
            }
        }
    }

    pub(crate) fn take(input: &mut Input) -> Result<Invitations, CodecError> {
        let mut all = BTreeMap::new();
        for _ in 0..input.u32()? {
            let hash = take_hash(input)?;
            let (uses_left, expires_at, invited_by) = (input.u32()?, take_time(input)?, take_actor(input)?);
            let mut redeemed = Vec::new();
            for _ in 0..input.u32()? {
                redeemed.push((input.u64()?, input.u128()?));
            }
            all.insert(*hash.as_bytes(), Invitation { uses_left, expires_at, invited_by, redeemed });
        }
        Ok(Invitations(all))
    }
}

impl Invitation {
    fn is_expired(&self, now: UnixMs) -> bool {
        self.expires_at.is_some_and(|end| end <= now)
    }

    fn redeem(&mut self, node: (u64, u128), at: UnixMs) {
        if self.uses_left == 0 || self.redeemed.contains(&node) {
            return;
        }
        self.redeemed.push(node);
        self.uses_left = self.uses_left.saturating_sub(1);
        if self.uses_left == 0 {
            let end = at.plus_ms(USED_UP_MS);
            self.expires_at = Some(self.expires_at.map_or(end, |expires_at| expires_at.min(end)));
        }
    }
}

impl InvitationEdit {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        match self {
            InvitationEdit::Create { hash, uses, expires_at, invited_by } => {
                out.push(tag::CREATE);
                out.extend_from_slice(hash.as_bytes());
                out.extend_from_slice(&uses.to_le_bytes());
                put_time(*expires_at, out);
                put_text(invited_by.as_str(), out);
            }
            InvitationEdit::Redeem { hash, node, incarnation } => {
                out.push(tag::REDEEM);
                out.extend_from_slice(hash.as_bytes());
                out.extend_from_slice(&node.to_le_bytes());
                out.extend_from_slice(&incarnation.to_le_bytes());
            }
            InvitationEdit::Revoke { id } => {
                out.push(tag::REVOKE);
                out.extend_from_slice(&id.0.to_le_bytes());
            }
        }
    }

    /// Decodes an edit after its tag.
    pub(crate) fn take(tag: u8, input: &mut Input) -> Result<InvitationEdit, CodecError> {
        match tag {
            tag::CREATE => Ok(InvitationEdit::Create {
                hash: take_hash(input)?,
                uses: input.u32()?,
                expires_at: take_time(input)?,
                invited_by: take_actor(input)?,
            }),
            tag::REDEEM => {
                Ok(InvitationEdit::Redeem { hash: take_hash(input)?, node: input.u64()?, incarnation: input.u128()? })
            }
            tag::REVOKE => Ok(InvitationEdit::Revoke { id: InvitationId(input.u64()?) }),
            found => Err(CodecError::Tag { found }),
        }
    }
}

fn put_count(count: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
}

fn put_text(text: &str, out: &mut Vec<u8>) {
    put_count(text.len(), out);
    out.extend_from_slice(text.as_bytes());
}

fn put_time(time: Option<UnixMs>, out: &mut Vec<u8>) {
    out.push(u8::from(time.is_some()));
    out.extend_from_slice(&time.map_or(0, UnixMs::get).to_le_bytes());
}

fn take_time(input: &mut Input) -> Result<Option<UnixMs>, CodecError> {
    let (is_some, ms) = (input.flag()?, input.u64()?);
    Ok(is_some.then_some(UnixMs::new(ms)))
}

fn take_hash(input: &mut Input) -> Result<SecretHash, CodecError> {
    let bytes = input.take(32)?;
    let bytes = bytes.first_chunk::<32>().copied().ok_or(CodecError::Short { wanted: 32, left: bytes.len() })?;
    Ok(SecretHash::from_bytes(bytes))
}

fn take_actor(input: &mut Input) -> Result<Actor, CodecError> {
    let len = input.u32()? as usize;
    let bytes = input.take(len)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| CodecError::Actor)?;
    Actor::new(text).map_err(|_| CodecError::Actor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roster::{RosterChange, RosterEdit};

    const HOUR_MS: u64 = 60 * 60 * 1000;

    fn apply(all: &mut Invitations, ms: u64, edit: InvitationEdit) {
        let change = RosterChange { at: UnixMs::new(ms), edit: RosterEdit::Invitations(edit.clone()) };
        let decoded = RosterChange::decode(&change.encode()).unwrap().unwrap();
        assert_eq!(decoded, change, "it is not what it was after its way through the log");
        all.apply(UnixMs::new(ms), edit);
    }

    fn hash(number: u8) -> SecretHash {
        SecretHash::of(&[number])
    }

    fn create(number: u8, uses: u32, expires_at: Option<u64>) -> InvitationEdit {
        let invited_by = Actor::new("user:ann").unwrap();
        InvitationEdit::Create { hash: hash(number), uses, expires_at: expires_at.map(UnixMs::new), invited_by }
    }

    fn redeem(number: u8, node: u64, incarnation: u128) -> InvitationEdit {
        InvitationEdit::Redeem { hash: hash(number), node, incarnation }
    }

    #[test]
    fn one_use_admits_one_node_and_a_retry_uses_nothing() {
        let mut all = Invitations::default();
        apply(&mut all, 1, create(1, 2, Some(HOUR_MS)));
        for _ in 0..3 {
            apply(&mut all, 2, redeem(1, 4, 40));
        }
        assert_eq!(all.check(&hash(1), (5, 50), UnixMs::new(2)).unwrap().as_str(), "user:ann");
        apply(&mut all, 3, redeem(1, 5, 50));
        apply(&mut all, 3, redeem(1, 6, 60));
        assert_eq!(all.check(&hash(1), (6, 60), UnixMs::new(3)), Err(InvitationError::UsedUp));
        // The same id with another folder is another node.
        assert_eq!(all.check(&hash(1), (4, 41), UnixMs::new(3)), Err(InvitationError::UsedUp));
        for (node, has_joined) in [((4, 40), true), ((5, 50), true), ((6, 60), false)] {
            assert_eq!(all.inviter(&hash(1), node).is_some(), has_joined, "{node:?}");
            assert_eq!(all.check(&hash(1), node, UnixMs::new(3)).is_ok(), has_joined, "{node:?}");
        }
    }

    #[test]
    fn an_invitation_ends_by_log_time_and_a_used_up_one_after_an_hour() {
        let mut all = Invitations::default();
        apply(&mut all, 1, create(1, 1, Some(100)));
        apply(&mut all, 1, create(2, 1, None));
        assert!(all.check(&hash(1), (4, 40), UnixMs::new(99)).is_ok());
        assert_eq!(all.check(&hash(1), (4, 40), UnixMs::new(100)), Err(InvitationError::Unknown));
        apply(&mut all, 100, redeem(1, 4, 40));
        assert!(!all.contains(&hash(1)) && all.contains(&hash(2)));
        apply(&mut all, 200, redeem(2, 4, 40));
        assert!(all.check(&hash(2), (4, 40), UnixMs::new(HOUR_MS)).is_ok());
        apply(&mut all, 200 + HOUR_MS, create(3, 1, None));
        assert!(!all.contains(&hash(2)));
        assert_eq!(all.check(&hash(7), (4, 40), UnixMs::new(1)), Err(InvitationError::Unknown));
    }

    #[test]
    fn invitations_are_listed_and_a_revoked_one_admits_nobody_and_frees_its_place() {
        let mut all = Invitations::default();
        apply(&mut all, 1, create(1, 2, Some(100)));
        apply(&mut all, 1, create(2, 1, None));
        apply(&mut all, 2, redeem(1, 4, 40));
        let listed = all.list(UnixMs::new(99));
        let id = |number| InvitationId::of(hash(number).as_bytes());
        let one = listed.iter().find(|info| info.id == id(1)).unwrap();
        assert_eq!((one.uses_left, one.expires_at, &one.nodes[..]), (1, Some(UnixMs::new(100)), &[4][..]));
        assert_eq!(listed.len(), 2);
        assert_eq!(all.list(UnixMs::new(100)).len(), 1, "an expired one is not listed");
        apply(&mut all, 3, InvitationEdit::Revoke { id: id(1) });
        apply(&mut all, 3, InvitationEdit::Revoke { id: id(7) });
        for node in [(4, 40), (5, 50)] {
            assert_eq!(all.check(&hash(1), node, UnixMs::new(3)), Err(InvitationError::Unknown));
        }
        assert_eq!(all.list(UnixMs::new(3)).len(), 1);
        assert_eq!(id(1).to_string().parse::<InvitationId>(), Ok(id(1)));
    }

    #[test]
    fn there_are_so_many_at_most_and_a_snapshot_has_them_all() {
        let mut all = Invitations::default();
        for number in 0..=u8::try_from(INVITATIONS_MAX).unwrap() {
            apply(&mut all, 1, create(number, 3, Some(u64::from(number) + 1_000)));
            apply(&mut all, 1, redeem(number, u64::from(number) + 1, 9));
        }
        assert_eq!(all.0.len(), INVITATIONS_MAX);
        let mut bytes = Vec::new();
        all.put(&mut bytes);
        assert_eq!(Invitations::take(&mut Input::new(bytes.into())), Ok(all));
    }
}
