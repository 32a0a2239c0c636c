//! Log files, as the writer changes them. A crash during any change leaves a folder that [`open`](super::open) reads
//! as the log before or after that change.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::mark::{Mark, MarkFile};
use super::memory::{Memory, Segment};
use super::segment::{self, HEADER_BYTES, SegmentHeader};
use crate::disk::Disk;
use crate::fault::{Fault, Operation};
use crate::storage::StoredFile;
use crate::storage::frame::Seed;
use crate::types::{Entry, LogId, Vote};
use crate::vote::VoteFile;

pub(crate) const FOLDER: &str = "log";
/// Segment under construction. It is renamed after its sync, so a named segment always has a header.
pub(crate) const UNFINISHED: &str = "log/unfinished";

/// The files of the Raft log: segments, the mark of what is synced, and the vote. Only the writer thread uses it.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) cluster: u128,
    pub(crate) segment_bytes: u64,
    pub(crate) mark: MarkFile,
    pub(crate) vote: VoteFile,
    pub(crate) memory: Arc<Mutex<Memory>>,
    pub(crate) last: Option<LogId>,
    /// Write buffer, kept to reuse its memory.
    pub(crate) buffer: Vec<u8>,
}

/// Locks the in-memory log. No code panics while it holds the lock.
pub(crate) fn lock(memory: &Mutex<Memory>) -> MutexGuard<'_, Memory> {
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn create(disk: &dyn Disk, cluster: u128) -> Result<(), Fault> {
    disk.make_folder(FOLDER)?;
    create_segment(disk, &SegmentHeader { cluster, first: 0, before: None, beginning: true })?;
    MarkFile::create(disk, cluster, Mark { first: 0, segment: 0, offset: HEADER_BYTES })?;
    VoteFile::create(disk, cluster)?;
    disk.sync_folder(FOLDER)?;
    disk.sync_folder("")
}

fn create_segment(disk: &dyn Disk, header: &SegmentHeader) -> Result<Segment, Fault> {
    let mut file = disk.create_file(UNFINISHED)?;
    file.write(&header.encode(), 0)?;
    file.sync()?;
    disk.rename_file(&mut file, UNFINISHED, &segment::path(header.first))?;
    disk.sync_folder(FOLDER)?;
    let seed = header.seed();
    Ok(Segment { first: header.first, seed, file, positions: Vec::new(), end: HEADER_BYTES })
}

pub(crate) fn sync_file(file: &StoredFile) -> Result<(), Fault> {
    let started = Instant::now();
    file.sync()?;
    metrics::histogram!("earmark_node_fsync_seconds").record(started.elapsed().as_secs_f64());
    Ok(())
}

/// The end of the last segment, where the next record is written.
struct Tail {
    next: u64,
    end: u64,
    seed: Seed,
    file: StoredFile,
}

impl Files {
    fn tail(&self) -> Option<Tail> {
        lock(&self.memory).segments.last().map(|segment| Tail {
            next: segment.next(),
            end: segment.end,
            seed: segment.seed.clone(),
            file: segment.file.clone(),
        })
    }

    fn mark(&self) -> Option<Mark> {
        let memory = lock(&self.memory);
        let (first, last) = (memory.segments.first()?, memory.segments.last()?);
        Some(Mark { first: first.first, segment: last.first, offset: last.end })
    }

    fn set_mark(&mut self) -> Result<(), Fault> {
        self.mark().map_or(Ok(()), |mark| self.mark.set(mark))
    }

    /// Writes and syncs entries. The caller then calls [`advance_mark`](Files::advance_mark).
    pub(crate) fn append(&mut self, entries: &[Entry]) -> Result<(), Fault> {
        let Some(first) = entries.first().map(|entry| entry.log_id.index) else { return Ok(()) };
        let Some(mut tail) = self.tail() else { return Ok(()) };
        if tail.next != first {
            // Only the first entry ever may leave a gap.
            self.begin(first, None)?;
        } else if tail.end >= self.segment_bytes && tail.end > HEADER_BYTES {
            self.roll(first)?;
        }
        tail = self.tail().unwrap_or(tail);

        self.buffer.clear();
        let mut positions = Vec::with_capacity(entries.len());
        for entry in entries {
            positions.push(tail.end.wrapping_add(self.buffer.len() as u64));
            segment::put_record(&tail.seed, entry, tail.end, &mut self.buffer).map_err(|bytes| Fault::Io {
                operation: Operation::Write,
                path: tail.file.path().to_owned(),
                source: std::io::Error::other(format!("entry {} is too long: {bytes} bytes", entry.log_id.index)),
            })?;
        }
        tail.file.write(&self.buffer, tail.end)?;
        sync_file(&tail.file)?;

        self.last = entries.last().map(|entry| entry.log_id);
        let mut memory = lock(&self.memory);
        if let Some(segment) = memory.segments.last_mut() {
            segment.positions.append(&mut positions);
            segment.end = tail.end.wrapping_add(self.buffer.len() as u64);
        }
        memory.evict();
        drop(memory);
        self.count_bytes();
        Ok(())
    }

    /// Moves the mark behind the appended entries.
    pub(crate) fn advance_mark(&mut self) -> Result<(), Fault> {
        self.mark().map_or(Ok(()), |mark| self.mark.advance(mark))
    }

    fn roll(&mut self, first: u64) -> Result<(), Fault> {
        let header = SegmentHeader { cluster: self.cluster, first, before: self.last, beginning: false };
        let segment = create_segment(&*self.disk, &header)?;
        lock(&self.memory).segments.push(segment);
        // Once marked, a missing segment counts as damage.
        self.set_mark()
    }

    /// Removes the entries from an index on; `last` is the entry before.
    pub(crate) fn truncate(&mut self, since: u64, last: Option<LogId>) -> Result<(), Fault> {
        self.last = last;
        let (cut, file, offset, later, first) = {
            let memory = lock(&self.memory);
            let keep = memory.segments.partition_point(|segment| segment.first <= since).max(1);
            let Some(segment) = keep.checked_sub(1).and_then(|at| memory.segments.get(at)) else {
                return Ok(());
            };
            let later = memory.segments.iter().skip(keep).map(|segment| segment.first).collect::<Vec<_>>();
            let first = memory.segments.first().map_or(0, |segment| segment.first);
            let offset = if since <= segment.first { HEADER_BYTES } else { segment.position(since) };
            if later.is_empty() && offset == segment.end {
                return Ok(());
            }
            (segment.first, segment.file.clone(), offset, later, first)
        };
        self.mark.set(Mark { first, segment: cut, offset })?;
        for first in later.into_iter().rev() {
            self.disk.remove_file(&segment::path(first))?;
            // Sync after each removal: a missing segment before an existing one would count as damage.
            self.disk.sync_folder(FOLDER)?;
        }
        file.set_len(offset)?;
        sync_file(&file)?;

        let mut memory = lock(&self.memory);
        memory.segments.retain(|segment| segment.first <= cut);
        if let Some(segment) = memory.segments.last_mut() {
            let kept = segment.positions.partition_point(|&position| position < offset);
            segment.positions.truncate(kept);
            segment.end = offset;
        }
        drop(memory);
        self.count_bytes();
        Ok(())
    }

    /// Removes the segments without entries after an index.
    pub(crate) fn purge(&mut self, upto: u64) -> Result<(), Fault> {
        let gone = {
            let mut memory = lock(&self.memory);
            let whole = memory.segments.partition_point(|segment| segment.next() <= upto.wrapping_add(1));
            let gone = whole.min(memory.segments.len().saturating_sub(1));
            memory.segments.drain(..gone).map(|segment| segment.first).collect::<Vec<_>>()
        };
        if gone.is_empty() { Ok(()) } else { self.forget(gone) }
    }

    /// Restarts the log after an id, in a new segment.
    pub(crate) fn begin(&mut self, first: u64, before: Option<LogId>) -> Result<(), Fault> {
        self.truncate(first, before)?;
        let header = SegmentHeader { cluster: self.cluster, first, before, beginning: true };
        let segment = create_segment(&*self.disk, &header)?;
        let old = std::mem::replace(&mut lock(&self.memory).segments, vec![segment]);
        self.forget(old.into_iter().map(|segment| segment.first).filter(|&old| old != first).collect())
    }

    /// Removes segments that left the log. The mark moves first, so that leftovers are not read as part of the log.
    fn forget(&mut self, gone: Vec<u64>) -> Result<(), Fault> {
        self.set_mark()?;
        for first in gone {
            self.disk.remove_file(&segment::path(first))?;
        }
        self.count_bytes();
        self.disk.sync_folder(FOLDER)
    }

    pub(crate) fn save_vote(&mut self, vote: Vote) -> Result<(), Fault> {
        self.vote.save(vote)
    }

    /// Syncs the mark, so that later damage is recognised.
    pub(crate) fn close(&mut self) -> Result<(), Fault> {
        self.set_mark()
    }

    pub(crate) fn count_bytes(&self) {
        let bytes = lock(&self.memory).segments.iter().map(|segment| segment.end).sum::<u64>();
        metrics::gauge!("earmark_node_log_bytes").set(bytes as f64);
    }
}
