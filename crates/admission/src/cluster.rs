//! Cluster administration: members, status and backups.

use earmark_core::{Actor, Config, NameError, NameRule, UnixMs};

use crate::backend::Answer;
use crate::clock::utc;

/// A cluster, seen from one of its nodes.
pub trait Cluster: Send + Sync + 'static {
    /// The status of the cluster and of this node.
    fn status(&self) -> ClusterStatus;

    /// Adds a node as a learner and promotes it to voter once it has caught up.
    fn add(&self, node: u64, address: String) -> Answer<'_, Result<(), ClusterError>>;

    /// Makes an invitation, with which new nodes may join, and returns its secret. `by` makes it.
    fn invite(&self, by: Actor, wanted: NewInvitation) -> Answer<'_, Result<String, ClusterError>>;

    /// The invitations that nodes may still join with.
    fn invitations(&self) -> Answer<'_, Result<Vec<InvitationInfo>, ClusterError>>;

    /// Revokes an invitation. [`ClusterError::Refused`] if no invitation has this id.
    fn revoke_invitation(&self, id: InvitationId) -> Answer<'_, Result<(), ClusterError>>;

    /// Removes a node from the cluster.
    fn remove(&self, node: u64) -> Answer<'_, Result<(), ClusterError>>;

    /// Writes a backup of everything acknowledged so far. The name must be unused; the default is the current time.
    fn backup(&self, name: Option<BackupName>) -> Answer<'_, Result<BackupMade, ClusterError>>;

    /// Makes a backup of everything acknowledged so far, as one archive for the caller.
    fn archive(&self) -> Answer<'_, Result<Box<dyn FileStream>, ClusterError>>;

    /// Makes an audit export of everything acknowledged so far: the whole journal, the balances and a signature.
    /// [`ClusterError::Refused`] if another system keeps the credit.
    fn export_audit(&self) -> Answer<'_, Result<Box<dyn FileStream>, ClusterError>>;

    /// The public keys with which nodes sign exports, oldest first. A node publishes its key before its first export, and
    /// the key stays when the node is removed.
    fn signing_keys(&self) -> Answer<'_, Result<Vec<SigningKeyInfo>, ClusterError>>;
}

/// A file for the caller, which is read in pieces. Dropping it frees what it takes on the node.
pub trait FileStream: Send + Sync {
    /// The next bytes; `None` at the end. Blocks on the disk.
    ///
    /// # Errors
    /// If a file of the node cannot be read.
    fn next(&mut self) -> std::io::Result<Option<Vec<u8>>>;
}

/// The most nodes that one invitation admits.
pub const INVITATION_USES_MAX: u32 = 64;
/// The longest validity of an invitation that expires, in seconds: 366 days.
pub const INVITATION_SECONDS_MAX: u32 = 366 * 24 * 60 * 60;

/// The public id of an invitation: the first 8 bytes of the hash of its secret. Displayed as 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InvitationId(pub u64);

impl InvitationId {
    /// The id of the invitation with this hash.
    #[must_use]
    pub fn of(hash: &[u8; 32]) -> InvitationId {
        InvitationId(hash.first_chunk().copied().map_or(0, u64::from_be_bytes))
    }
}

impl std::fmt::Display for InvitationId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl std::str::FromStr for InvitationId {
    type Err = String;

    fn from_str(text: &str) -> Result<InvitationId, String> {
        let is_id = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = is_id.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        number.map(InvitationId).ok_or_else(|| "allowed are the 16 hexadecimal digits of an invitation".to_owned())
    }
}

/// An invitation without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvitationInfo {
    /// Its id.
    pub id: InvitationId,
    /// Nodes that it still admits.
    pub uses_left: u32,
    /// The end of its validity by log time; `None` if it does not expire.
    pub expires_at: Option<UnixMs>,
    /// The admin that made it.
    pub invited_by: Actor,
    /// The nodes that joined with it.
    pub nodes: Vec<u64>,
}

/// The public key with which a node signs exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SigningKeyInfo {
    /// 64 hexadecimal digits.
    pub public_key: String,
    /// The cluster of the node. After a restore also that of the backup.
    pub cluster: u128,
    /// The node.
    pub node: u64,
    /// When it was published, by log time.
    pub published_at: UnixMs,
    /// Whether the node is a member now.
    pub is_member: bool,
}

/// An invitation to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewInvitation {
    /// How many nodes it admits, from 1 to [`INVITATION_USES_MAX`].
    pub uses: u32,
    /// Seconds until it expires; `None` if it does not.
    pub expires_seconds: Option<u32>,
}

impl NewInvitation {
    /// Checks what a caller asked for. 0 seconds is no expiry; the default is [`NewInvitation::default`].
    ///
    /// # Errors
    /// A number is out of bounds; the message names the field.
    pub fn new(uses: Option<u32>, expires_seconds: Option<u32>) -> Result<NewInvitation, String> {
        let default = NewInvitation::default();
        let uses = uses.unwrap_or(default.uses);
        if !(1..=INVITATION_USES_MAX).contains(&uses) {
            return Err(format!("uses: found {uses}, allowed are integers from 1 to {INVITATION_USES_MAX}"));
        }
        match expires_seconds {
            None => Ok(NewInvitation { uses, ..default }),
            Some(seconds) if seconds > INVITATION_SECONDS_MAX => Err(format!(
                "expires_seconds: found {seconds}, allowed are integers from 0 to {INVITATION_SECONDS_MAX}"
            )),
            Some(seconds) => Ok(NewInvitation { uses, expires_seconds: (seconds > 0).then_some(seconds) }),
        }
    }
}

impl std::fmt::Display for NewInvitation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let nodes = if self.uses == 1 { "node" } else { "nodes" };
        write!(f, "invite {} {nodes}, ", self.uses)?;
        match self.expires_seconds {
            Some(seconds) => write!(f, "valid for {seconds} s"),
            None => write!(f, "valid until used"),
        }
    }
}

impl Default for NewInvitation {
    /// One node, within an hour.
    fn default() -> NewInvitation {
        NewInvitation { uses: 1, expires_seconds: Some(60 * 60) }
    }
}

/// The name of a backup and of its folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupName(String);

impl std::str::FromStr for BackupName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<BackupName, NameError> {
        BackupName::new(text)
    }
}

impl BackupName {
    /// Longest name, in bytes. Every file system allows it.
    pub const BYTES_MAX: usize = 64;

    /// Checks that the name is a portable file name and not a path.
    ///
    /// # Errors
    /// When it is empty, too long, starts with a dot or hyphen, or has another character than listed.
    pub fn new(text: &str) -> Result<BackupName, NameError> {
        let rule = NameRule {
            kind: "backup",
            bytes_max: BackupName::BYTES_MAX,
            alphabet: "A-Z a-z 0-9 . _ -, the first one no dot or hyphen",
            allows: |position, character| {
                character.is_ascii_alphanumeric()
                    || character == '_'
                    || (position > 0 && matches!(character, '.' | '-'))
            },
        };
        rule.check(text).map(|()| BackupName(text.to_owned()))
    }

    /// A time in UTC as a name: `20261115T093000Z`.
    #[must_use]
    pub fn of_time(time: UnixMs) -> BackupName {
        BackupName(utc(time).replace(['-', ':'], ""))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A finished backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupMade {
    /// The name.
    pub name: BackupName,
    /// The folder, on the node's machine.
    pub path: String,
    /// The total size of its files, in bytes.
    pub bytes: u64,
    /// The last log index in the backup.
    pub index: Option<u64>,
    /// The number of journal records in the backup.
    pub journal_records: u64,
    /// The cluster id that a restore of this backup gets.
    pub cluster: u128,
}

/// Why an administrative request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// The request can never succeed as it is.
    #[error("{0}")]
    Refused(String),
    /// The request may succeed later.
    #[error("{0}")]
    Unavailable(String),
}

/// How a cluster is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterStatus {
    /// The cluster id.
    pub cluster: u128,
    /// The node that answered.
    pub node: u64,
    /// The leader, as far as this node knows.
    pub leader: Option<u64>,
    /// The current Raft term.
    pub term: u64,
    /// The last index of this node's log.
    pub last_log_index: Option<u64>,
    /// The last index that this node has applied.
    pub applied_index: Option<u64>,
    /// The last index in this node's newest snapshot.
    pub snapshot_index: Option<u64>,
    /// Milliseconds since a quorum last answered the leader; set on the leader only.
    pub quorum_ack_ms: Option<u64>,
    /// The members, ordered by id.
    pub members: Vec<MemberStatus>,
    /// The settings in force, as far as this node knows.
    pub settings: Config,
}

/// One member of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberStatus {
    /// The node id.
    pub node: u64,
    /// The peer address; empty for a single node.
    pub address: String,
    /// Whether it votes. A learner does not.
    pub is_voter: bool,
    /// Log entries that it is behind; set on the leader only.
    pub lag: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_is_named_after_the_time() {
        for (ms, name) in [
            (0, "19700101T000000Z"),
            (951_827_696_999, "20000229T123456Z"),
            (1_709_251_199_000, "20240229T235959Z"),
            (1_709_251_200_000, "20240301T000000Z"),
            (1_794_740_400_000, "20261115T110000Z"),
            (4_107_542_399_000, "21000228T235959Z"),
            (4_107_542_400_000, "21000301T000000Z"),
        ] {
            assert_eq!(BackupName::of_time(UnixMs::new(ms)).as_str(), name);
            assert!(BackupName::new(name).is_ok());
        }
    }

    #[test]
    fn a_backup_has_no_name_that_leads_elsewhere() {
        for name in ["", ".", "..", ".hidden", "-rf", "a/b", "../a", "a b", "\u{e4}", "a\0", &"a".repeat(65)] {
            assert!(BackupName::new(name).is_err(), "{name:?}");
        }
        for name in ["a", "_", "before-upgrade_2.0", &"a".repeat(64)] {
            assert_eq!(BackupName::new(name).unwrap().as_str(), name);
        }
    }
}
