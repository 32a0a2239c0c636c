//! The nodes of a cluster, for those who look after them.

use earmark_core::{NameError, UnixMs};

use crate::backend::Answer;
use crate::clock::utc;

/// A cluster, as one of its nodes sees it.
pub trait Cluster: Send + Sync + 'static {
    /// How it is doing.
    fn status(&self) -> ClusterStatus;

    /// Makes the node at an address a member: first as a learner, and once it has caught up as a voter.
    fn add(&self, node: u64, address: String) -> Answer<'_, Result<(), ClusterError>>;

    /// Takes a node out of the cluster.
    fn remove(&self, node: u64) -> Answer<'_, Result<(), ClusterError>>;

    /// Writes all that was acknowledged so far to where this node keeps its backups, under a name that is not used yet;
    /// without one, under the time.
    fn backup(&self, name: Option<BackupName>) -> Answer<'_, Result<BackupMade, ClusterError>>;
}

/// The name of a backup, which is also that of its folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupName(String);

impl BackupName {
    /// The longest allowed.
    pub const BYTES_MAX: usize = 64;

    /// Takes a name that every file system takes, and that is no path.
    ///
    /// # Errors
    /// When it is empty, too long, hidden, or has another character.
    pub fn new(text: &str) -> Result<BackupName, NameError> {
        let refuse = |found: String| NameError {
            kind: "backup",
            found,
            bytes_max: BackupName::BYTES_MAX,
            alphabet: "A-Z a-z 0-9 . _ -, the first one no dot or hyphen",
        };
        if text.is_empty() || text.len() > BackupName::BYTES_MAX {
            return Err(refuse(format!("{} bytes", text.len())));
        }
        let allows = |place: usize, byte: char| {
            byte.is_ascii_alphanumeric() || byte == '_' || (place > 0 && matches!(byte, '.' | '-'))
        };
        match text.char_indices().find(|(place, byte)| !allows(*place, *byte)) {
            Some((_, byte)) => Err(refuse(format!("{byte:?}"))),
            None => Ok(BackupName(text.to_owned())),
        }
    }

    /// The time as a name, in UTC: `20261115T093000Z`.
    #[must_use]
    pub fn of_time(time: UnixMs) -> BackupName {
        BackupName(utc(time).replace(['-', ':'], ""))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A backup that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupMade {
    /// Its name.
    pub name: BackupName,
    /// Its folder, on the machine of the node.
    pub path: String,
    /// How large its files are together.
    pub bytes: u64,
    /// The last entry of the log that is in it.
    pub index: Option<u64>,
    /// How many records of history are in it.
    pub journal_records: u64,
    /// The cluster that begins with it.
    pub cluster: u128,
}

/// Why nothing was done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// It will never be done like this.
    #[error("{0}")]
    Refused(String),
    /// Not now, or not yet: ask again.
    #[error("{0}")]
    Unavailable(String),
}

/// How a cluster is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterStatus {
    /// Its id.
    pub cluster: u128,
    /// The node that was asked.
    pub node: u64,
    /// Who leads, as far as that node knows.
    pub leader: Option<u64>,
    /// The term of the latest vote.
    pub term: u64,
    /// The last entry of its log.
    pub last_log_index: Option<u64>,
    /// The last entry that it knows to be committed and has applied.
    pub applied_index: Option<u64>,
    /// The last entry in its newest snapshot.
    pub snapshot_index: Option<u64>,
    /// How long ago a majority last answered the leader; known to the leader only.
    pub quorum_ack_ms: Option<u64>,
    /// The members, in order of their ids.
    pub members: Vec<MemberStatus>,
}

/// One member of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its id.
    pub node: u64,
    /// Where its peers reach it; empty for a node that has none.
    pub address: String,
    /// Whether it votes, or only learns.
    pub is_voter: bool,
    /// By how many entries it is behind; known to the leader only.
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
        for name in ["", ".", "..", ".hidden", "-rf", "a/b", "../a", "a b", "\u{e4}", "a\0", &"a".repeat(65)]
        {
            assert!(BackupName::new(name).is_err(), "{name:?}");
        }
        for name in ["a", "_", "before-upgrade_2.0", &"a".repeat(64)] {
            assert_eq!(BackupName::new(name).unwrap().as_str(), name);
        }
    }
}
