//! Backups: a node's state and journal, written as the data folder of a new one-node cluster.
//!
//! A plain copy of a node's files is not a backup. Put back into its cluster, it would have forgotten votes and
//! entries that the other nodes rely on. So a backup starts a cluster of its own. It holds the state at one log index
//! and the journal up to that index, and no log.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use earmark_core::Frozen;
use openraft::storage::RaftStateMachine;
use openraft::{Membership, RaftLogReader, StoredMembership, Vote};

use crate::disk::Disk;
use crate::failure::Failure;
use crate::fault::Fault;
use crate::identity::{Expected, Folder, Identity};
use crate::invitations::Invitations;
use crate::journal::{Journal, JournalOptions, JournalPosition};
use crate::raft_log::{LogStore, Options as LogOptions};
use crate::roster::NodeIds;
use crate::runtime::random_id;
use crate::snapshot::{Header, Snapshots};
use crate::state_machine::{AppliedState, BookStateMachine};
use crate::types::Member;
use crate::vote::VoteFile;

const NODE: u64 = 1;
/// Log entries replayed per batch during recovery. Bounds the memory that a replay needs.
const ENTRIES: u64 = 256;

/// A finished backup.
#[derive(Clone, Copy, Debug)]
pub struct Backup {
    /// Identity of the new data folder.
    pub identity: Identity,
    /// Index of the last log entry that the backup contains.
    pub index: Option<u64>,
    /// Journal position of the backup.
    pub journal: JournalPosition,
}

/// Writes the data folder. The folder becomes valid with its last write, so an interrupted backup can be repeated.
pub(crate) fn write_out(
    applied_state: &AppliedState,
    (header, frozen): (Header, Frozen),
    target: &Arc<dyn Disk>,
    journal_segment_bytes: u64,
) -> Result<Backup, Fault> {
    let (folder, _lock) = Folder::take(&**target, Expected::default())?;
    if let Folder::Made(_) = folder {
        return Err(Fault::Occupied { path: target.show("") });
    }
    let (cluster, incarnation) = (random_id(), random_id());
    let identity = Identity { cluster, node: NODE, incarnation, is_founder: true };
    let alone = BTreeMap::from([(NODE, Member { address: String::new(), incarnation })]);
    let membership = Membership::new(vec![BTreeSet::from([NODE])], alone);
    let at = (*header.membership.log_id()).or(header.applied);
    let term = header.applied.map_or(0, |id| id.leader_id.term);
    let index = header.applied.map(|id| id.index);
    let journal = header.journal;
    let ids = NodeIds::from_iter([NODE]);
    let invitations = Invitations::default();
    let header = Header { membership: StoredMembership::new(at, membership), ids, invitations, ..header };
    identity.format(&**target, |disk| {
        LogStore::create(disk, cluster)?;
        // The new node has to vote in a later term than any entry of the snapshot.
        VoteFile::open(disk, cluster)?.0.save(Vote::new(term, NODE))?;
        let options = JournalOptions { segment_bytes: journal_segment_bytes, ..JournalOptions::new(cluster) };
        let copy = Journal::open(Arc::clone(target), options, None)?;
        for chunk in applied_state.journal.read_stream(1, journal) {
            copy.import(&chunk?)?;
        }
        copy.finish_import(journal)?;
        Snapshots::open(Arc::clone(target), cluster, 0)?.0.write(header, &frozen)?;
        Ok(())
    })?;
    Ok(Backup { identity, index, journal })
}

/// Builds the data folder of a new cluster from the folder of a stopped node, including its whole log. Use it when
/// the majority of a cluster is lost, or to restore a copied folder.
///
/// With `up_to`, entries after that index are left out: the way out if a later entry cannot be applied.
///
/// # Errors
/// If a folder cannot be used, a log entry cannot be applied, or the snapshot is newer than `up_to`.
pub async fn recover(source: Arc<dyn Disk>, target: Arc<dyn Disk>, up_to: Option<u64>) -> Result<Backup, Fault> {
    let (folder, _lock) = Folder::take(&*source, Expected::default())?;
    let Folder::Made(Identity { cluster, .. }) = folder else {
        return Err(Fault::Missing { path: source.show("identity") });
    };
    let failure = Failure::default();
    let mut log = LogStore::open(Arc::clone(&source), cluster, LogOptions::default(), failure.clone()).await?;
    let options = JournalOptions::new(cluster);
    let applied_state = Arc::new(AppliedState::open(source, options, log.purged(), failure.clone())?);
    let mut machine = BookStateMachine::new(Arc::clone(&applied_state));
    let stopped = |error: &dyn std::fmt::Display| Fault::Stopped {
        why: failure.get().map_or_else(|| error.to_string(), str::to_owned),
    };
    let end = up_to.map_or(u64::MAX, |up_to| up_to.saturating_add(1));
    let covered = applied_state.lock().applied.map_or(0, |id| id.index);
    if covered >= end {
        let why = format!("the snapshot contains entry {covered}, so --up-to must be at least {covered}");
        return Err(Fault::Stopped { why });
    }
    loop {
        let next = applied_state.lock().applied.map_or(0, |id| id.index.saturating_add(1));
        let entries = log.try_get_log_entries(next..next.saturating_add(ENTRIES).min(end)).await;
        let entries = entries.map_err(|error| stopped(&error))?;
        if entries.is_empty() {
            break;
        }
        machine.apply(entries).await.map_err(|error| stopped(&error))?;
    }
    let frozen = applied_state.freeze();
    write_out(&applied_state, frozen, &target, options.segment_bytes)
}
