//! Snapshots on disk: the Book at one log index, with the membership and the journal position.
//!
//! A snapshot is written under a temporary name and renamed, so a named snapshot is always complete.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use earmark_core::{Book, Frozen, Restore};
use openraft::{SnapshotMeta, StoredMembership};
use tokio::sync::watch;

use crate::disk::Disk;
use crate::entry::{CodecError, Input, put_log_id, put_membership, take_log_id, take_membership};
use crate::fault::Fault;
use crate::invitations::Invitations;
use crate::journal::JournalPosition;
use crate::published_keys::PublishedKeys;
use crate::roster::NodeIds;
use crate::storage::StoredFile;
use crate::storage::header::{BODY_BYTES_MAX, FileKind};
use crate::types::{LogId, Member};

const FOLDER: &str = "snapshot";
const WRITING: &str = "snapshot/writing";
/// Snapshot being received.
pub(crate) const INCOMING: &str = "snapshot/incoming";
/// Journal records received with it.
pub(crate) const INCOMING_JOURNAL: &str = "snapshot/incoming-journal";
const KIND: FileKind = FileKind { magic: *b"EMsn", format: 1 };
const CHUNK_BYTES: usize = 1 << 20;
/// Bytes written between syncs. A sync of the log would otherwise wait for the whole snapshot.
const SYNC_BYTES: u64 = 16 << 20;

/// The state of the node beside the Book at the position of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) applied: Option<LogId>,
    pub(crate) membership: StoredMembership<u64, Member>,
    pub(crate) ids: NodeIds,
    pub(crate) invitations: Invitations,
    pub(crate) journal: JournalPosition,
    pub(crate) keys: PublishedKeys,
}

impl Header {
    pub(crate) fn meta(&self) -> SnapshotMeta<u64, Member> {
        let (term, index) = self.applied.map_or((0, 0), |id| (id.leader_id.term, id.index));
        SnapshotMeta {
            last_log_id: self.applied,
            last_membership: self.membership.clone(),
            snapshot_id: format!("{term}-{index}"),
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        put_place(self.applied, &mut body);
        put_place(*self.membership.log_id(), &mut body);
        put_membership(self.membership.membership(), &mut body);
        self.ids.put(&mut body);
        self.invitations.put(&mut body);
        self.journal.put(&mut body);
        // A node that never published a key ends its header here.
        if !self.keys.is_empty() {
            self.keys.put(&mut body);
        }
        body
    }

    fn decode(body: Bytes) -> Result<Header, CodecError> {
        let mut input = Input::new(body);
        let applied = take_place(&mut input)?;
        let members_at = take_place(&mut input)?;
        let membership = StoredMembership::new(members_at, take_membership(&mut input)?);
        let ids = NodeIds::take(&mut input)?;
        let invitations = Invitations::take(&mut input)?;
        let journal = JournalPosition::take(&mut input)?;
        let keys = if input.end().is_ok() { PublishedKeys::default() } else { PublishedKeys::take(&mut input)? };
        input.end()?;
        Ok(Header { applied, membership, ids, invitations, journal, keys })
    }
}

fn put_place(place: Option<LogId>, out: &mut Vec<u8>) {
    out.push(u8::from(place.is_some()));
    put_log_id(place.unwrap_or_default(), out);
}

fn take_place(input: &mut Input) -> Result<Option<LogId>, CodecError> {
    let is_some = input.flag()?;
    let place = take_log_id(input)?;
    Ok(is_some.then_some(place))
}

/// A complete snapshot on disk. Its file stays readable after a newer snapshot replaced it.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotFile {
    pub(crate) header: Header,
    pub(crate) file: StoredFile,
    path: String,
    /// Length of the encoded header, where the Book begins.
    header_len: u64,
    pub(crate) len: u64,
}

/// A snapshot as openraft passes it around: written here or received.
#[derive(Clone)]
pub struct SnapshotData {
    pub(crate) saved: SnapshotFile,
    /// Received journal records; `None` for a local snapshot.
    pub(crate) journal: Option<StoredFile>,
    /// Book of a received snapshot, kept from its check, because decoding it twice takes too long.
    pub(crate) checked: Arc<Mutex<Option<Book>>>,
}

impl std::fmt::Debug for SnapshotData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SnapshotData").field(&self.saved).finish()
    }
}

impl SnapshotData {
    pub(crate) fn of(saved: SnapshotFile) -> SnapshotData {
        SnapshotData { saved, journal: None, checked: Arc::default() }
    }
}

/// The snapshot files of a data folder.
#[derive(Debug)]
pub(crate) struct Snapshots {
    disk: Arc<dyn Disk>,
    cluster: u128,
    current: Mutex<Option<SnapshotFile>>,
    /// Last index of the newest snapshot, for the log's purge.
    covered: watch::Sender<Option<u64>>,
}

impl Snapshots {
    /// Opens the folder and restores the newest snapshot, if any. Unfinished files are removed.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        cluster: u128,
        table_seed: u64,
    ) -> Result<(Snapshots, Option<(Header, Book)>), Fault> {
        disk.make_folder(FOLDER)?;
        let names = disk.list_folder(FOLDER)?;
        let (whole, rest): (Vec<String>, Vec<String>) = names.into_iter().partition(|name| name.ends_with(".snapshot"));
        let mut whole: Vec<String> = whole.into_iter().map(|name| format!("{FOLDER}/{name}")).collect();
        let newest = whole.pop();
        let (covered, _) = watch::channel(None);
        let snapshots = Snapshots { disk, cluster, current: Mutex::new(None), covered };
        let found = match newest {
            None => None,
            Some(path) => {
                let saved = snapshots.read_header(&path)?;
                let book = snapshots.restore(&saved, table_seed)?;
                let header = saved.header.clone();
                snapshots.covered.send_replace(header.applied.map(|id| id.index));
                *snapshots.lock() = Some(saved);
                Some((header, book))
            }
        };
        let unfinished = rest.into_iter().map(|name| format!("{FOLDER}/{name}"));
        for path in whole.into_iter().chain(unfinished) {
            snapshots.disk.remove_file(&path)?;
        }
        Ok((snapshots, found))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<SnapshotFile>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn current(&self) -> Option<SnapshotFile> {
        self.lock().clone()
    }

    /// The folder as shown to users.
    pub(crate) fn show(&self) -> String {
        self.disk.show(FOLDER)
    }

    /// Watches the last index of the newest snapshot.
    pub(crate) fn covered(&self) -> watch::Receiver<Option<u64>> {
        self.covered.subscribe()
    }

    /// Reads and checks the header of a file.
    pub(crate) fn read_header(&self, path: &str) -> Result<SnapshotFile, Fault> {
        let file = self.disk.open_file(path)?;
        let stored = KIND.read(&file, self.cluster)?;
        let (header_len, len) = (stored.len(), file.len()?);
        let header = Header::decode(stored.body).map_err(|error| file.damaged(0, error))?;
        if path != INCOMING && path != WRITING && path != name(&header) {
            return Err(file.damaged(0, format!("this snapshot belongs under the name {}", name(&header))));
        }
        Ok(SnapshotFile { header, file, path: path.to_owned(), header_len, len })
    }

    pub(crate) fn restore(&self, saved: &SnapshotFile, table_seed: u64) -> Result<Book, Fault> {
        let mut offset = saved.header_len;
        let mut restore = Restore::new(table_seed);
        each_chunk(saved, offset, |chunk, at| {
            offset = at;
            restore.feed(chunk).map_err(|error| saved.file.damaged(at, error))
        })?;
        restore.finish().map_err(|error| saved.file.damaged(offset, error))
    }

    /// Writes a snapshot and makes it the newest. The journal must be synced up to the snapshot's position.
    pub(crate) fn write(&self, header: Header, frozen: &Frozen) -> Result<SnapshotFile, Fault> {
        let started = Instant::now();
        let body = header.encode();
        if body.len() > BODY_BYTES_MAX {
            let why = format!(
                "the member list, the used node ids and the published keys take {} bytes of a snapshot header, the maximum is \
                 {BODY_BYTES_MAX}. Nothing is lost; start a new cluster from a backup: see docs/operating.md",
                body.len()
            );
            return Err(Fault::Stopped { why });
        }
        let mut buffer = KIND.encode(self.cluster, &body);
        let header_len = buffer.len() as u64;
        let file = self.disk.create_file(WRITING)?;
        let (mut len, mut synced) = (0_u64, 0);
        for piece in frozen.encode() {
            buffer.extend_from_slice(&piece);
            if buffer.len() >= CHUNK_BYTES {
                file.write(&buffer, len)?;
                len += buffer.len() as u64;
                buffer.clear();
            }
            if len - synced >= SYNC_BYTES {
                file.sync()?;
                synced = len;
            }
        }
        file.write(&buffer, len)?;
        len += buffer.len() as u64;
        let saved = self.publish(SnapshotFile { header, file, path: WRITING.into(), header_len, len })?;
        metrics::gauge!("earmark_node_snapshot_bytes").set(len as f64);
        metrics::histogram!("earmark_node_snapshot_seconds").record(started.elapsed().as_secs_f64());
        Ok(saved)
    }

    pub(crate) fn receive(&self) -> Result<SnapshotFile, Fault> {
        let file = self.disk.create_file(INCOMING)?;
        Ok(SnapshotFile { header: Header::default(), file, path: INCOMING.into(), header_len: 0, len: 0 })
    }

    /// Returns a received snapshot, or copies a local one into this folder.
    pub(crate) fn adopt(&self, from: &SnapshotFile) -> Result<SnapshotFile, Fault> {
        if from.path == INCOMING {
            return Ok(from.clone());
        }
        let file = self.receive()?.file;
        each_chunk(from, 0, |chunk, offset| file.write(chunk, offset))?;
        Ok(SnapshotFile { file, path: INCOMING.into(), ..from.clone() })
    }

    /// Renames a complete snapshot and removes the previous one. An older snapshot is dropped instead: a newer one may
    /// have arrived meanwhile, and the log holds nothing before it.
    pub(crate) fn publish(&self, mut saved: SnapshotFile) -> Result<SnapshotFile, Fault> {
        saved.file.sync()?;
        let mut current = self.lock();
        if let Some(newer) = current.as_ref().filter(|current| current.header.applied > saved.header.applied) {
            self.disk.remove_file(&saved.path)?;
            return Ok(newer.clone());
        }
        let to = name(&saved.header);
        self.disk.rename_file(&mut saved.file, &saved.path, &to)?;
        self.disk.sync_folder(FOLDER)?;
        saved.path = to;
        let before = current.replace(saved.clone());
        drop(current);
        self.covered.send_replace(saved.header.applied.map(|id| id.index));
        if let Some(before) = before.filter(|before| before.path != saved.path) {
            self.disk.remove_file(&before.path)?;
        }
        Ok(saved)
    }
}

/// Reads a snapshot from an offset to its end, in chunks with their offsets.
fn each_chunk(
    saved: &SnapshotFile,
    mut offset: u64,
    mut take: impl FnMut(&[u8], u64) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let mut chunk = vec![0; CHUNK_BYTES];
    while offset < saved.len {
        let len = usize::try_from(saved.len - offset).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
        saved.file.read_into(&mut chunk[..len], offset)?;
        take(&chunk[..len], offset)?;
        offset += len as u64;
    }
    Ok(())
}

/// File name of a snapshot. Names sort by log index.
fn name(header: &Header) -> String {
    let (term, index) = header.applied.map_or((0, 0), |id| (id.leader_id.term, id.index));
    format!("{FOLDER}/{index:020}-{term:020}.snapshot")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;
    use earmark_core::Config;
    use openraft::CommittedLeaderId;

    fn header(index: u64) -> Header {
        let applied = Some(LogId::new(CommittedLeaderId::new(1, 1), index));
        Header { applied, ..Header::default() }
    }

    /// A header longer than the read limit was written anyway, and the log before it was purged.
    #[test]
    fn a_snapshot_that_could_not_be_read_again_is_not_written() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::TempDir::new()?;
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(folder.path())?);
        let (snapshots, _) = Snapshots::open(Arc::clone(&disk), 7, 0)?;
        let frozen = Book::new(Config::default(), 0).freeze();
        snapshots.write(header(100), &frozen)?;
        let long = Header { ids: (0..200_000).collect(), ..header(500) };
        assert!(matches!(snapshots.write(long, &frozen), Err(Fault::Stopped { .. })));
        let (_, found) = Snapshots::open(disk, 7, 0)?;
        assert_eq!(found.map(|(header, _)| header), Some(header(100)));
        Ok(())
    }

    /// A node was writing a snapshot when a newer one arrived. It then replaced the newer one with its own, although
    /// the log between them was purged.
    #[test]
    fn a_snapshot_that_was_overtaken_does_not_replace_the_newer_one() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::TempDir::new()?;
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(folder.path())?);
        let (snapshots, _) = Snapshots::open(Arc::clone(&disk), 7, 0)?;
        let frozen = Book::new(Config::default(), 0).freeze();
        snapshots.write(header(500), &frozen)?;
        snapshots.write(header(100), &frozen)?;
        assert_eq!(snapshots.current().map(|saved| saved.header), Some(header(500)));
        assert_eq!(*snapshots.covered().borrow(), Some(500));
        let (_, found) = Snapshots::open(disk, 7, 0)?;
        assert_eq!(found.map(|(header, _)| header), Some(header(500)));
        Ok(())
    }
}
