//! What is found on disk: the log, a write that a power cut tore, or damage. Everything is looked at before anything
//! is changed.

use std::sync::{Arc, Mutex};

use bytes::Bytes;

use super::Options;
use super::files::{FOLDER, Files, UNFINISHED, sync_file, sync_folder};
use super::mark::{Mark, MarkFile};
use super::memory::{Memory, Segment};
use super::segment::{self, Defect, FORMAT, HEADER_BYTES, Header, Scan};
use crate::disk::{Disk, DiskFile};
use crate::fault::{Fault, IoContext, Operation};
use crate::types::{LogId, Vote};
use crate::vote::VoteFile;

/// A segment, before its records are read.
struct SegmentFile {
    header: Header,
    file: Arc<dyn DiskFile>,
}

/// The log as it was found.
struct ScannedLog {
    segments: Vec<Segment>,
    ids: Vec<LogId>,
    before: Option<LogId>,
    /// What stands behind the mark, and was perhaps never synced.
    unsure: Bytes,
    /// Segments that are no part of the log any more.
    leftovers: Vec<u64>,
}

/// Opens the log of a folder, and cuts off what a power cut left of the last write.
pub(crate) fn open(
    disk: Arc<dyn Disk>,
    cluster: u128,
    options: Options,
) -> Result<(Files, Option<Vote>), Fault> {
    let (mark_file, mark) = MarkFile::open(&*disk, cluster)?;
    let found = look(&*disk, cluster, mark)?;
    let (vote_file, vote) = VoteFile::open(&*disk, cluster)?;

    let last = found.ids.last().copied().or(found.before);
    let memory = Memory::new(found.before, found.segments.clone(), &found.ids, options.cache_bytes);
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
    // A killed process may have named a segment and not synced the folder; the mark is about to rely on that name.
    sync_folder(&*files.disk)?;
    settle(&*files.disk, &found)?;
    files.close()?;
    remove_leftovers(&*files.disk, &found.leftovers)?;
    files.count_bytes();
    Ok((files, vote))
}

fn look(disk: &dyn Disk, cluster: u128, mark: Mark) -> Result<ScannedLog, Fault> {
    let names = disk.list(FOLDER).at(Operation::List, || disk.show(FOLDER))?;
    let firsts = names.iter().filter_map(|name| segment::first_of(name)).collect::<Vec<_>>();
    let (chain, start) = chain(disk, cluster, mark, &firsts)?;
    let leftovers = firsts.into_iter().filter(|&first| first < start).collect();
    // A log that began anew after the mark was written owes nothing to it.
    let mark =
        if mark.segment < start { Mark { first: start, segment: start, offset: HEADER_BYTES } } else { mark };
    if !chain.iter().any(|segment_file| segment_file.header.first == mark.segment) {
        return Err(Fault::Missing { path: disk.show(&segment::path(mark.segment)) });
    }

    let before = chain.first().and_then(|segment_file| segment_file.header.before);
    let mut found =
        ScannedLog { segments: Vec::new(), ids: Vec::new(), before, unsure: Bytes::new(), leftovers };
    for (at, segment_file) in chain.iter().enumerate() {
        let first = segment_file.header.first;
        let bytes = read(disk, segment_file)?;
        let scan = segment::scan(&segment_file.header, &bytes);
        match chain.get(at.wrapping_add(1)) {
            Some(next) => check_sealed(disk, segment_file, &scan, next)?,
            None => {
                let marked = if first == mark.segment { mark.offset } else { HEADER_BYTES };
                check_tail(disk, segment_file, &scan, &bytes, marked)?;
                found.unsure = part(&bytes, marked, scan.end);
            }
        }
        found.ids.extend(scan.ids);
        found.segments.push(Segment {
            first,
            seed: segment_file.header.seed(),
            file: Arc::clone(&segment_file.file),
            positions: scan.positions,
            end: scan.end,
        });
    }
    Ok(found)
}

/// The segments that are the log, oldest first, and the index that the first of them begins with.
fn chain(
    disk: &dyn Disk,
    cluster: u128,
    mark: Mark,
    firsts: &[u64],
) -> Result<(Vec<SegmentFile>, u64), Fault> {
    let mut chain = Vec::new();
    for &first in firsts.iter().rev().filter(|&&first| first >= mark.first) {
        let path = segment::path(first);
        let file = disk.open(&path, false).at(Operation::Open, || disk.show(&path))?;
        let len = file.len().at(Operation::Read, || disk.show(&path))?;
        let mut bytes = vec![0; usize::try_from(len.min(HEADER_BYTES)).unwrap_or_default()];
        file.read_at(&mut bytes, 0).at(Operation::Read, || disk.show(&path))?;
        let header = Header::decode(&bytes, cluster, first)
            .map_err(|defect| fault(disk, first, 0, defect, cluster))?;
        chain.push(SegmentFile { header, file });
        if header.beginning {
            break;
        }
    }
    chain.reverse();
    match chain.first() {
        Some(start) if start.header.beginning || start.header.first == mark.first => {
            let first = start.header.first;
            Ok((chain, first))
        }
        _ => Err(Fault::Missing { path: disk.show(&segment::path(mark.first)) }),
    }
}

fn read(disk: &dyn Disk, segment_file: &SegmentFile) -> Result<Bytes, Fault> {
    let show = || disk.show(&segment::path(segment_file.header.first));
    let len = segment_file.file.len().at(Operation::Read, show)?;
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
    segment_file.file.read_at(&mut bytes, 0).at(Operation::Read, show)?;
    Ok(bytes.into())
}

/// A segment that another follows was on disk before that one was made.
fn check_sealed(
    disk: &dyn Disk,
    segment_file: &SegmentFile,
    scan: &Scan,
    next: &SegmentFile,
) -> Result<(), Fault> {
    let first = segment_file.header.first;
    if let Some(defect) = &scan.defect {
        return Err(fault(disk, first, scan.end, defect.clone(), segment_file.header.cluster));
    }
    let last = scan.ids.last().copied().or(segment_file.header.before);
    let end = first.wrapping_add(scan.ids.len() as u64);
    if last == next.header.before && end == next.header.first {
        return Ok(());
    }
    let show = |id: Option<LogId>| id.map_or("none".to_owned(), |id| id.to_string());
    let found = format!(
        "the file ends with entry {}, and {} goes on after entry {}, so the rest of this file or {} is missing",
        show(last),
        disk.show(&segment::path(next.header.first)),
        show(next.header.before),
        disk.show(&segment::path(end)),
    );
    Err(Fault::Damaged { path: disk.show(&segment::path(first)), offset: scan.end, found })
}

/// At the end of the last segment the last write may be torn, if it was not acknowledged.
fn check_tail(
    disk: &dyn Disk,
    last: &SegmentFile,
    scan: &Scan,
    bytes: &Bytes,
    marked: u64,
) -> Result<(), Fault> {
    let (first, cluster) = (last.header.first, last.header.cluster);
    let path = disk.show(&segment::path(first));
    if scan.end < marked {
        return Err(match &scan.defect {
            Some(defect) => fault(disk, first, scan.end, defect.clone(), cluster),
            None => {
                let found = format!("the file ends here, and was on disk up to byte {marked}");
                Fault::Damaged { path, offset: scan.end, found }
            }
        });
    }
    let Some(defect) = &scan.defect else { return Ok(()) };
    if let Some(later) = segment::later_write(&last.header, bytes, scan.end) {
        let found = format!("{defect}, and a record that was written later stands at byte {later}");
        return Err(Fault::Damaged { path, offset: scan.end, found });
    }
    let bytes = (bytes.len() as u64).saturating_sub(scan.end);
    tracing::warn!(
        "{path}: the last {bytes} bytes, from byte {}, are of a write that was cut off: {defect}; \
         they were never acknowledged, and are dropped",
        scan.end
    );
    Ok(())
}

fn fault(disk: &dyn Disk, first: u64, offset: u64, defect: Defect, cluster: u128) -> Fault {
    let path = disk.show(&segment::path(first));
    match defect {
        Defect::NewerFormat { found } => Fault::NewerFormat { path, found, known: FORMAT },
        Defect::OtherCluster { found } => Fault::OtherCluster { path, found, expected: cluster },
        defect => Fault::Damaged { path, offset, found: defect.to_string() },
    }
}

fn part(bytes: &Bytes, from: u64, to: u64) -> Bytes {
    let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
    bytes.slice(place(from).min(place(to))..place(to))
}

/// Cuts off what was torn, and brings to the disk what will now be relied upon: the length, and what stands behind the
/// mark. Both are written anew, because after a failed sync the system may show what it will not try to write again.
fn settle(disk: &dyn Disk, found: &ScannedLog) -> Result<(), Fault> {
    let Some(segment) = found.segments.last() else { return Ok(()) };
    let show = || disk.show(&segment::path(segment.first));
    segment.file.set_len(segment.end).at(Operation::Shorten, show)?;
    if !found.unsure.is_empty() {
        let at = segment.end.saturating_sub(found.unsure.len() as u64);
        segment.file.write_at(&found.unsure, at).at(Operation::Write, show)?;
    }
    sync_file(disk, &*segment.file, segment.first)
}

fn remove_leftovers(disk: &dyn Disk, leftovers: &[u64]) -> Result<(), Fault> {
    for &first in leftovers {
        let path = segment::path(first);
        disk.remove(&path).at(Operation::Remove, || disk.show(&path))?;
    }
    match disk.remove(UNFINISHED) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        other => other.at(Operation::Remove, || disk.show(UNFINISHED))?,
    }
    sync_folder(disk)
}
