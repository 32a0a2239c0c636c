//! Opening the log: distinguishes the log, a torn write at its end, and damage. Nothing is changed before everything
//! is checked.

use std::sync::{Arc, Mutex};

use bytes::Bytes;

use super::Options;
use super::files::{FOLDER, Files, UNFINISHED, sync_file};
use super::mark::{Mark, MarkFile};
use super::memory::{Memory, Segment};
use super::segment::{self, HEADER_BYTES, Scan, SegmentHeader};
use crate::disk::Disk;
use crate::fault::Fault;
use crate::storage::StoredFile;
use crate::types::{LogId, Vote};
use crate::vote::VoteFile;

/// The result of reading all segments at the start.
struct ScannedLog {
    segments: Vec<Segment>,
    ids: Vec<LogId>,
    before: Option<LogId>,
    /// Bytes after the mark, possibly never synced.
    unsynced: Bytes,
    /// Segments that are no longer part of the log.
    leftovers: Vec<u64>,
}

/// Opens the log of a folder and drops a torn write at its end.
pub(crate) fn open(disk: Arc<dyn Disk>, cluster: u128, options: Options) -> Result<(Files, Option<Vote>), Fault> {
    let (mark_file, mark) = MarkFile::open(&*disk, cluster)?;
    let log = scan_log(&*disk, cluster, mark)?;
    let (vote_file, vote) = VoteFile::open(&*disk, cluster)?;

    let last = log.ids.last().copied().or(log.before);
    let memory = Memory::new(log.before, log.segments.clone(), &log.ids, options.cache_bytes);
    let mut files = Files {
        disk,
        cluster,
        segment_bytes: options.segment_bytes,
        mark: mark_file,
        vote: vote_file,
        memory: Arc::new(Mutex::new(memory)),
        last,
        buffer: Vec::new(),
    };
    // A killed process may have renamed a segment without a folder sync; the mark will rely on that name.
    files.disk.sync_folder(FOLDER)?;
    settle(&log)?;
    files.close()?;
    remove_leftovers(&*files.disk, &log.leftovers)?;
    files.count_bytes();
    Ok((files, vote))
}

fn scan_log(disk: &dyn Disk, cluster: u128, mark: Mark) -> Result<ScannedLog, Fault> {
    let names = disk.list_folder(FOLDER)?;
    let firsts = names.iter().filter_map(|name| segment::first_of(name)).collect::<Vec<_>>();
    let chain = chain(disk, cluster, mark, &firsts)?;
    let start = chain.first().map_or(mark.first, |(header, _)| header.first);
    let leftovers = firsts.into_iter().filter(|&first| first < start).collect();
    // A restart of the log after the mark was written supersedes the mark.
    let mark = if mark.segment < start { Mark { first: start, segment: start, offset: HEADER_BYTES } } else { mark };
    if !chain.iter().any(|(header, _)| header.first == mark.segment) {
        return Err(Fault::Missing { path: disk.show(&segment::path(mark.segment)) });
    }

    let before = chain.first().and_then(|(header, _)| header.before);
    let mut log = ScannedLog { segments: Vec::new(), ids: Vec::new(), before, unsynced: Bytes::new(), leftovers };
    for (at, (header, file)) in chain.iter().enumerate() {
        let scan = segment::scan(header, file)?;
        match chain.get(at.wrapping_add(1)) {
            Some((next, _)) => check_sealed(disk, (header, file), &scan, next)?,
            None => {
                let marked = if header.first == mark.segment { mark.offset } else { HEADER_BYTES };
                check_tail(header, file, &scan, marked)?;
                let len = usize::try_from(scan.end.saturating_sub(marked)).unwrap_or(usize::MAX);
                log.unsynced = file.read(marked, len)?;
            }
        }
        log.ids.extend(scan.ids);
        log.segments.push(Segment {
            first: header.first,
            seed: header.seed(),
            file: file.clone(),
            positions: scan.positions,
            end: scan.end,
        });
    }
    Ok(log)
}

/// The segments of the log, oldest first.
fn chain(
    disk: &dyn Disk,
    cluster: u128,
    mark: Mark,
    firsts: &[u64],
) -> Result<Vec<(SegmentHeader, StoredFile)>, Fault> {
    let mut chain = Vec::new();
    for &first in firsts.iter().rev().filter(|&&first| first >= mark.first) {
        let (header, file) = SegmentHeader::open(disk, cluster, first)?;
        chain.push((header, file));
        if header.beginning {
            break;
        }
    }
    chain.reverse();
    match chain.first() {
        Some((start, _)) if start.beginning || start.first == mark.first => Ok(chain),
        _ => Err(Fault::Missing { path: disk.show(&segment::path(mark.first)) }),
    }
}

/// Checks a segment with a successor: it was synced before the successor was created.
fn check_sealed(
    disk: &dyn Disk,
    (header, file): (&SegmentHeader, &StoredFile),
    scan: &Scan,
    next: &SegmentHeader,
) -> Result<(), Fault> {
    if let Some(defect) = &scan.defect {
        return Err(file.damaged(scan.end, defect));
    }
    let last = scan.ids.last().copied().or(header.before);
    let end = header.first.wrapping_add(scan.ids.len() as u64);
    if last == next.before && end == next.first {
        return Ok(());
    }
    let show = |id: Option<LogId>| id.map_or("none".to_owned(), |id| id.to_string());
    let found = format!(
        "the file ends with entry {}, but {} continues after entry {}; the rest of this file or {} is missing",
        show(last),
        disk.show(&segment::path(next.first)),
        show(next.before),
        disk.show(&segment::path(end)),
    );
    Err(file.damaged(scan.end, found))
}

/// Checks the last segment. Its last write may be torn if it is after the mark and no later write follows.
fn check_tail(header: &SegmentHeader, file: &StoredFile, scan: &Scan, marked: u64) -> Result<(), Fault> {
    if scan.end < marked {
        return Err(match &scan.defect {
            Some(defect) => file.damaged(scan.end, defect),
            None => file.damaged(scan.end, format!("the file ends here, but was synced up to byte {marked}")),
        });
    }
    let Some(defect) = &scan.defect else { return Ok(()) };
    let bytes = file.read(0, usize::MAX)?;
    if let Some(later) = segment::later_write(header, &bytes, scan.end) {
        return Err(file.damaged(scan.end, format!("{defect}, but a later write exists at byte {later}")));
    }
    let torn = (bytes.len() as u64).saturating_sub(scan.end);
    tracing::warn!(
        "{}: dropping the last {torn} bytes, from byte {}: a torn write that was never acknowledged ({defect})",
        file.path(),
        scan.end
    );
    Ok(())
}

/// Removes a torn write, and syncs the length and the bytes after the mark. They are written again, because after a
/// failed sync the system may show data that it will not write back.
fn settle(log: &ScannedLog) -> Result<(), Fault> {
    let Some(segment) = log.segments.last() else { return Ok(()) };
    segment.file.set_len(segment.end)?;
    if !log.unsynced.is_empty() {
        segment.file.write(&log.unsynced, segment.end.saturating_sub(log.unsynced.len() as u64))?;
    }
    sync_file(&segment.file)
}

fn remove_leftovers(disk: &dyn Disk, leftovers: &[u64]) -> Result<(), Fault> {
    leftovers.iter().try_for_each(|&first| disk.remove_file(&segment::path(first)))?;
    match disk.remove(UNFINISHED) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        other => disk.check(crate::fault::Operation::Remove, UNFINISHED, other)?,
    }
    disk.sync_folder(FOLDER)
}
