//! The Book as a Raft state machine.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use earmark_admission::{count_expired, watch_expiry};
use earmark_core::{Book, Config, Frozen};
use earmark_trace::record_each;
use openraft::storage::RaftStateMachine;
use openraft::{
    EntryPayload, RaftSnapshotBuilder, Snapshot, SnapshotMeta, StorageError, StorageIOError, StoredMembership,
};
use tokio::sync::watch;

use crate::batch::BatchReader;
use crate::disk::Disk;
use crate::failure::Failure;
use crate::fault::Fault;
use crate::invitations::Invitations;
use crate::journal::{Journal, JournalOptions, JournalPosition};
use crate::published_keys::PublishedKeys;
use crate::roster::{NodeIds, Roster, RosterChange, RosterEdit};
use crate::snapshot::{Header, INCOMING_JOURNAL, SnapshotData, Snapshots};
use crate::storage::StoredFile;
use crate::traces;
use crate::types::{Applied, Entry, LogId, Member, Types};

/// Section of the operating manual about an entry that cannot be applied.
const NOT_APPLIED: &str = "\"A log entry that cannot be applied\"";

/// State that results from the applied log entries.
pub(crate) struct ReplicatedState {
    pub(crate) book: Book,
    pub(crate) applied: Option<LogId>,
    pub(crate) membership: StoredMembership<u64, Member>,
    pub(crate) ids: NodeIds,
    pub(crate) invitations: Invitations,
    pub(crate) keys: PublishedKeys,
    /// Journal position of this state. While a snapshot is installed the journal itself is ahead, because its records
    /// are imported first.
    pub(crate) journal: JournalPosition,
}

impl ReplicatedState {
    fn roster(&self) -> Roster {
        let (membership, ids, invitations) = (self.membership.clone(), self.ids.clone(), self.invitations.clone());
        Roster { membership, ids, invitations, keys: self.keys.clone() }
    }
}

/// The applied state with its journal and its snapshots.
pub(crate) struct AppliedState {
    state: Mutex<ReplicatedState>,
    pub(crate) journal: Journal,
    pub(crate) snapshots: Snapshots,
    pub(crate) disk: Arc<dyn Disk>,
    failure: Failure,
    /// Index of the last applied entry, for waiters.
    applied: watch::Sender<Option<u64>>,
    /// Bytes of entries applied since the last snapshot.
    since_snapshot: AtomicU64,
    /// Copy of the Book's limits version, readable without the lock.
    limits_version: AtomicU64,
    /// Copy of the members, readable without the lock.
    roster: watch::Sender<Arc<Roster>>,
}

impl AppliedState {
    /// Restores the newest snapshot and opens the journal at its position. `purged` is the last entry that the log
    /// has dropped. Without a snapshot that covers it nothing is changed; otherwise the journal would be truncated.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        options: JournalOptions,
        purged: Option<LogId>,
        failure: Failure,
    ) -> Result<AppliedState, Fault> {
        let table_seed = table_seed();
        let (snapshots, found) = Snapshots::open(Arc::clone(&disk), options.cluster, table_seed)?;
        let (header, book) = found.unwrap_or_else(|| (Header::default(), Book::new(Config::default(), table_seed)));
        if let Some(purged) = purged.filter(|purged| header.applied.is_none_or(|id| id.index < purged.index)) {
            return Err(Fault::SnapshotMissing { path: snapshots.show(), wanted: purged.index });
        }
        let journal = Journal::open(Arc::clone(&disk), options, Some(header.journal))?;
        let Header { applied, membership, ids, invitations, journal: told, keys } = header;
        let (sender, _) = watch::channel(applied.map(|id| id.index));
        let limits_version = AtomicU64::new(book.limits_version());
        let state = ReplicatedState { book, applied, membership, ids, invitations, keys, journal: told };
        let (roster, _) = watch::channel(Arc::new(state.roster()));
        Ok(AppliedState {
            state: Mutex::new(state),
            journal,
            snapshots,
            disk,
            failure,
            applied: sender,
            since_snapshot: AtomicU64::new(0),
            limits_version,
            roster,
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ReplicatedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn failure(&self) -> &Failure {
        &self.failure
    }

    pub(crate) async fn applied(&self, index: u64) {
        let mut applied = self.applied.subscribe();
        // The sender lives in `self`, so the wait cannot fail.
        _ = applied.wait_for(|applied| applied.is_some_and(|applied| applied >= index)).await;
    }

    /// Bytes of entries applied since the last snapshot.
    pub(crate) fn since_snapshot(&self) -> u64 {
        self.since_snapshot.load(Ordering::Relaxed)
    }

    /// The Book's limits version, without taking the lock.
    pub(crate) fn limits_version(&self) -> u64 {
        self.limits_version.load(Ordering::Acquire)
    }

    /// The members, without taking the lock.
    pub(crate) fn roster(&self) -> Arc<Roster> {
        Arc::clone(&self.roster.borrow())
    }

    fn update_roster(&self, state: &ReplicatedState) {
        self.roster.send_replace(Arc::new(state.roster()));
    }

    /// Captures the state at one log index. Cheap: the Book is shared copy-on-write.
    pub(crate) fn freeze(&self) -> (Header, Frozen) {
        let mut state = self.lock();
        let header = Header {
            applied: state.applied,
            membership: state.membership.clone(),
            ids: state.ids.clone(),
            invitations: state.invitations.clone(),
            journal: state.journal,
            keys: state.keys.clone(),
        };
        (header, state.book.freeze())
    }

    /// Reads the journal records that arrived with a snapshot: chunks, each preceded by its length.
    fn each_chunk(file: &StoredFile, mut take: impl FnMut(&[u8]) -> Result<(), Fault>) -> Result<(), Fault> {
        let len = file.len()?;
        let mut offset = 0;
        while offset < len {
            let mut lead = [0; 4];
            file.read_into(&mut lead, offset)?;
            let chunk = file.read(offset + 4, u32::from_le_bytes(lead) as usize)?;
            offset += 4 + chunk.len() as u64;
            take(&chunk)?;
        }
        Ok(())
    }

    /// Reads a received snapshot completely without installing it. Damage found here is refused and the snapshot is
    /// sent again; damage found during installation would stop the node.
    pub(crate) fn check(&self, data: &SnapshotData) -> Result<(), Fault> {
        if data.saved.header.applied <= self.lock().applied {
            // A stale snapshot is not installed.
            return Ok(());
        }
        let book = self.snapshots.restore(&data.saved, table_seed())?;
        if let Some(file) = &data.journal {
            let mut arriving = self.journal.arriving();
            AppliedState::each_chunk(file, |chunk| arriving.check(chunk))?;
            arriving.finish(data.saved.header.journal)?;
        }
        *data.checked.lock().unwrap_or_else(PoisonError::into_inner) = Some(book);
        Ok(())
    }

    fn install(&self, data: &SnapshotData) -> Result<(), Fault> {
        let arrived = self.snapshots.adopt(&data.saved)?;
        let checked = data.checked.lock().unwrap_or_else(PoisonError::into_inner).take();
        let book = match checked {
            Some(book) => book,
            None => self.snapshots.restore(&arrived, table_seed())?,
        };
        if let Some(file) = &data.journal {
            AppliedState::each_chunk(file, |chunk| self.journal.import(chunk))?;
            self.journal.finish_import(data.saved.header.journal)?;
        }
        let saved = self.snapshots.publish(arrived)?;
        let Header { applied, membership, ids, invitations, journal, keys } = saved.header;
        let version = book.limits_version();
        let before = {
            let arrived = ReplicatedState { book, applied, membership, ids, invitations, keys, journal };
            let mut state = self.lock();
            let before = std::mem::replace(&mut *state, arrived);
            self.update_roster(&state);
            before
        };
        self.limits_version.store(version, Ordering::Release);
        // Dropping a large Book takes time, so it happens outside the lock.
        drop(before);
        self.since_snapshot.store(0, Ordering::Relaxed);
        self.applied.send_replace(applied.map(|id| id.index));
        if data.journal.is_some() {
            // The file may be as large as the journal and would stay until the next start.
            self.disk.remove_file(INCOMING_JOURNAL)?;
        }
        Ok(())
    }
}

fn table_seed() -> u64 {
    RandomState::new().hash_one(0)
}

/// Applies log entries to the Book.
pub struct BookStateMachine {
    applied_state: Arc<AppliedState>,
    reader: BatchReader,
}

impl BookStateMachine {
    pub(crate) fn new(applied_state: Arc<AppliedState>) -> BookStateMachine {
        BookStateMachine { applied_state, reader: BatchReader::default() }
    }

    fn apply_entry(&mut self, entry: Entry) -> Result<Applied, String> {
        let mut state = self.applied_state.lock();
        let index = entry.log_id.index;
        let traced = traces::of_payload(&entry.payload).to_vec();
        let since = (!traced.is_empty()).then(SystemTime::now);
        let outcomes = match entry.payload {
            EntryPayload::Blank => Vec::new(),
            EntryPayload::Normal(batch) => {
                let bytes = batch.bytes.len() as u64;
                self.applied_state.since_snapshot.fetch_add(bytes, Ordering::Relaxed);
                let failed = |error: &dyn std::fmt::Display| {
                    format!("entry {index} of the log cannot be applied: {error}. See docs/operating.md, {NOT_APPLIED}")
                };
                match RosterChange::decode(&batch) {
                    Some(change) => {
                        let RosterChange { at, edit } = change.map_err(|error| failed(&error))?;
                        match edit {
                            RosterEdit::Invitations(edit) => state.invitations.apply(at, edit),
                            RosterEdit::GiveId { incarnation } => state.ids.give(incarnation),
                            RosterEdit::PublishKey(key) => state.keys.publish(at, key),
                        }
                        self.applied_state.update_roster(&state);
                        Vec::new()
                    }
                    None => self.reader.apply(&mut state.book, index, &batch).map_err(|error| failed(&error))?,
                }
            }
            EntryPayload::Membership(membership) => {
                state.ids.record(&membership);
                state.membership = StoredMembership::new(Some(entry.log_id), membership);
                self.applied_state.update_roster(&state);
                Vec::new()
            }
        };
        self.applied_state.limits_version.store(state.book.limits_version(), Ordering::Release);
        watch_expiry(&state.book);
        let records = state.book.drain_journal();
        if !records.is_empty() {
            count_expired(&records);
            self.applied_state.journal.append(index, &records).map_err(|fault| fault.to_string())?;
            state.journal = self.applied_state.journal.position();
        }
        state.applied = Some(entry.log_id);
        drop(state);
        if let Some(since) = since {
            record_each("apply", traced, since, &[("earmark.log_index", index)]);
        }
        Ok(Applied(outcomes))
    }
}

impl RaftStateMachine<Types> for BookStateMachine {
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership<u64, Member>), StorageError<u64>> {
        let state = self.applied_state.lock();
        Ok((state.applied, state.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Applied>, StorageError<u64>>
    where
        I: IntoIterator<Item = Entry> + Send,
        I::IntoIter: Send,
    {
        let started = Instant::now();
        let mut results = Vec::new();
        let mut last = None;
        for entry in entries {
            let log_id = entry.log_id;
            let applied = self.apply_entry(entry).map_err(|message| {
                self.applied_state.failure.set(&message);
                StorageError::IO { source: StorageIOError::apply(log_id, openraft::AnyError::error(message)) }
            })?;
            results.push(applied);
            last = Some(log_id.index);
        }
        if last.is_some() {
            self.applied_state.applied.send_replace(last);
        }
        metrics::histogram!("earmark_node_apply_seconds").record(started.elapsed().as_secs_f64());
        Ok(results)
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        let (header, frozen) = self.applied_state.freeze();
        self.applied_state.since_snapshot.store(0, Ordering::Relaxed);
        SnapshotBuilder { applied_state: Arc::clone(&self.applied_state), frozen: Some((header, frozen)) }
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<SnapshotData>, StorageError<u64>> {
        let applied_state = Arc::clone(&self.applied_state);
        let begun = self.applied_state.disk.run(move || applied_state.snapshots.receive()).await;
        let saved = begun.map_err(|fault| {
            let error = openraft::AnyError::error(fault);
            StorageError::IO { source: StorageIOError::write_snapshot(None, error) }
        })?;
        Ok(Box::new(SnapshotData::of(saved)))
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<u64, Member>,
        snapshot: Box<SnapshotData>,
    ) -> Result<(), StorageError<u64>> {
        let applied_state = Arc::clone(&self.applied_state);
        let failed = |fault: Fault| {
            self.applied_state.failure.set(&fault);
            let signature = Some(meta.signature());
            StorageError::IO { source: StorageIOError::write_snapshot(signature, openraft::AnyError::error(fault)) }
        };
        self.applied_state.disk.run(move || applied_state.install(&snapshot)).await.map_err(failed)
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>, StorageError<u64>> {
        Ok(self
            .applied_state
            .snapshots
            .current()
            .map(|saved| Snapshot { meta: saved.header.meta(), snapshot: Box::new(SnapshotData::of(saved)) }))
    }
}

/// Writes one snapshot while commands continue.
pub struct SnapshotBuilder {
    applied_state: Arc<AppliedState>,
    frozen: Option<(Header, Frozen)>,
}

impl SnapshotBuilder {
    async fn build(&mut self) -> Result<Snapshot<Types>, Fault> {
        let (header, frozen) = self.frozen.take().unwrap_or_else(|| self.applied_state.freeze());
        self.applied_state.journal.flush().await?;
        let applied_state = Arc::clone(&self.applied_state);
        let saved = self.applied_state.disk.run(move || applied_state.snapshots.write(header, &frozen)).await?;
        let meta = saved.header.meta();
        Ok(Snapshot { meta, snapshot: Box::new(SnapshotData::of(saved)) })
    }
}

impl RaftSnapshotBuilder<Types> for SnapshotBuilder {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>, StorageError<u64>> {
        self.build().await.map_err(|fault| {
            self.applied_state.failure.set(&fault);
            let error = openraft::AnyError::error(fault);
            StorageError::IO { source: StorageIOError::write_snapshot(None, error) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;
    use crate::snapshot::INCOMING;
    use earmark_core::{AccountId, AssetId, HoldEntry, JournalRecord, LeaseId, NamespaceId, UnixMs};

    fn applied_state() -> Result<(tempfile::TempDir, AppliedState), Box<dyn std::error::Error>> {
        let folder = tempfile::TempDir::new()?;
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(folder.path())?);
        let applied_state = AppliedState::open(disk, JournalOptions::new(7), None, Failure::default())?;
        Ok((folder, applied_state))
    }

    fn record(lease: u128) -> JournalRecord {
        JournalRecord::Hold(HoldEntry {
            at: UnixMs::new(1).into(),
            namespace: NamespaceId::DEFAULT,
            lease: LeaseId::from_u128(lease),
            limit: "usd".parse().expect("a key"),
            account: AccountId(1),
            asset: AssetId(0),
            amount: 1,
            extension: 0,
            actor: None,
        })
    }

    /// During the installation of a snapshot its journal records were imported first. A backup taken then combined
    /// the old state with the new journal.
    #[test]
    fn what_is_frozen_has_no_more_of_the_journal_than_its_state_tells_of() -> Result<(), Box<dyn std::error::Error>> {
        let (_folder, applied_state) = applied_state()?;
        applied_state.journal.append(1, &[record(1)])?;
        assert_eq!(applied_state.freeze().0.journal, JournalPosition::START);
        Ok(())
    }

    /// Writes a snapshot where received snapshots are stored.
    fn arrived(applied_state: &AppliedState, snapshot: &[u8], journal: &[u8]) -> Result<SnapshotData, Fault> {
        let put = |path: &str, bytes: &[u8]| {
            let file = applied_state.disk.create_file(path)?;
            file.write(bytes, 0)?;
            Ok::<_, Fault>(file)
        };
        put(INCOMING, snapshot)?;
        let journal = Some(put(INCOMING_JOURNAL, journal)?);
        Ok(SnapshotData { journal, ..SnapshotData::of(applied_state.snapshots.read_header(INCOMING)?) })
    }

    /// Only the header of a received snapshot was checked before its installation. Damage elsewhere was found during
    /// the installation, which stopped the node and every other node that received the same snapshot.
    #[test]
    fn a_snapshot_with_any_damage_is_refused_and_nothing_of_it_is_taken() -> Result<(), Box<dyn std::error::Error>> {
        let (_folder, sender) = applied_state()?;
        sender.journal.append(1, &[record(1), record(2)])?;
        sender.journal.append(2, &[record(3)])?;
        let journal = sender.journal.flush_blocking()?;
        let applied = Some(LogId::new(openraft::CommittedLeaderId::new(1, 1), 5));
        let header = Header { applied, journal, ..Header::default() };
        let saved = sender.snapshots.write(header, &sender.freeze().1)?;
        let snapshot = saved.file.read(0, usize::MAX)?.to_vec();
        let chunk = sender.journal.read_stream(1, journal).collect::<Result<Vec<_>, _>>()?.concat();
        let in_chunks = |chunk: &[u8]| [&u32::try_from(chunk.len()).unwrap_or(0).to_le_bytes(), chunk].concat();

        let (_folder, applied_state) = applied_state()?;
        let is_refused = |snapshot: &[u8], chunk: &[u8]| {
            let checked = match arrived(&applied_state, snapshot, &in_chunks(chunk)) {
                Ok(data) => applied_state.check(&data),
                Err(fault) => Err(fault),
            };
            checked.is_err() && applied_state.journal.position() == JournalPosition::START
        };
        for place in 0..snapshot.len() {
            let mut damaged = snapshot.clone();
            damaged[place] ^= 1;
            assert!(is_refused(&damaged, &chunk), "byte {place} of the snapshot");
        }
        for place in 0..chunk.len() {
            let mut damaged = chunk.clone();
            damaged[place] ^= 1;
            assert!(is_refused(&snapshot, &damaged), "byte {place} of the journal");
        }
        assert!(is_refused(&snapshot, &[]), "without a journal");
        let (_folder, forger) = self::applied_state()?;
        forger.journal.append(1, &[record(1), record(4)])?;
        forger.journal.append(2, &[record(3)])?;
        let forged = forger.journal.read_stream(1, forger.journal.position()).collect::<Result<Vec<_>, _>>()?.concat();
        assert_eq!(forged.len(), chunk.len());
        assert!(is_refused(&snapshot, &forged), "other records with valid checksums");
        assert_eq!(applied_state.failure().get(), None);
        let whole = arrived(&applied_state, &snapshot, &in_chunks(&chunk))?;
        applied_state.check(&whole)?;
        applied_state.install(&whole)?;
        assert_eq!(applied_state.freeze().0.journal, journal);
        Ok(())
    }
}
