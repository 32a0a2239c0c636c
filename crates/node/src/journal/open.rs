//! Opening the journal at a position: checks everything before it and removes everything after it.
//!
//! The last two segments are read in full. Older ones were synced long ago: only their length, header and index header
//! are checked, and their records when they are read.

use super::format::{self, JournalPosition};
use super::index::{IndexFile, MemoryIndex, Span};
use super::state::{Sealed, State, Tail};
use super::walk::Walk;
use super::{FOLDER, index_path, segment_path};
use crate::disk::Disk;
use crate::fault::Fault;
use crate::storage::StoredFile;

/// Segments read in full on open: a crash can only have hit the last writes.
const SEGMENTS_READ: usize = 2;

/// Opens the journal up to the position of the snapshot; later records are removed.
pub(super) struct Opening<'a> {
    pub(super) disk: &'a dyn Disk,
    pub(super) cluster: u128,
    pub(super) segment_bytes: u64,
    pub(super) to: JournalPosition,
}

/// The files in the journal folder.
#[derive(Default)]
struct Names {
    /// Segments, by the number of the record before them.
    segments: Vec<u64>,
    indexes: Vec<u64>,
    /// Unfinished index files.
    unfinished: Vec<String>,
}

/// The result of reading a whole segment.
struct Walked {
    index: MemoryIndex,
    last_log_index: u64,
}

impl Opening<'_> {
    pub(super) fn open(&self) -> Result<State, Fault> {
        self.disk.make_folder(FOLDER)?;
        self.disk.sync_folder("")?;
        let names = self.names()?;
        let starts = self.starts(&names)?;
        let spans = self.spans(&starts)?;
        let from = spans.len().saturating_sub(SEGMENTS_READ);
        for span in &spans[..from] {
            self.check_length(*span)?;
        }
        let walked: Vec<Walked> = spans[from..].iter().map(|span| self.walk(*span)).collect::<Result<_, Fault>>()?;
        // Nothing was written so far, so a refused folder stays unchanged.
        self.cut(&names, &spans)?;
        self.assemble(&spans, walked)
    }

    fn names(&self) -> Result<Names, Fault> {
        let mut names = Names::default();
        let number = |name: &str, suffix| {
            let first = name.strip_suffix(suffix).filter(|digits| digits.len() == 20)?;
            first.parse::<u64>().ok()?.checked_sub(1)
        };
        for name in self.disk.list_folder(FOLDER)? {
            if name.ends_with(".new") {
                names.unfinished.push(name);
            } else if let Some(start) = number(&name, ".journal") {
                names.segments.push(start);
            } else if let Some(start) = number(&name, ".index") {
                names.indexes.push(start);
            }
        }
        names.segments.sort_unstable();
        Ok(names)
    }

    /// Start positions of the segments before the position, from their headers.
    fn starts(&self, names: &Names) -> Result<Vec<JournalPosition>, Fault> {
        let mut starts = Vec::new();
        for start in &names.segments {
            let file = self.disk.open_file(&segment_path(*start))?;
            let header = format::read_header(&file, self.cluster);
            if *start < self.to.records {
                let found = header?;
                if found.records != *start {
                    return Err(file.damaged(0, "the file name and the header disagree"));
                }
                starts.push(found);
            } else if let Err(fault @ (Fault::OtherCluster { .. } | Fault::NewerFormat { .. })) = header {
                // Data after the position is removed even if damaged, unless another cluster or a newer version wrote it.
                return Err(fault);
            }
        }
        Ok(starts)
    }

    /// The segments that lead to the position without a gap.
    fn spans(&self, starts: &[JournalPosition]) -> Result<Vec<Span>, Fault> {
        let mut spans = Vec::new();
        if self.to.records == 0 {
            return Ok(spans);
        }
        if starts.first() != Some(&JournalPosition::START) {
            let path = self.disk.show(&segment_path(0));
            return Err(Fault::JournalShort { path, found: 0, needed: self.to.records });
        }
        for (at, start) in starts.iter().enumerate() {
            let end = starts.get(at + 1).copied().unwrap_or(self.to);
            if end.records <= start.records || end.bytes <= start.bytes {
                let file = self.disk.open_file(&segment_path(start.records))?;
                return Err(file.damaged(0, "the segment starts after its successor"));
            }
            spans.push(Span { start: *start, end });
        }
        Ok(spans)
    }

    fn check_length(&self, span: Span) -> Result<(), Fault> {
        let file = self.disk.open_file(&segment_path(span.start.records))?;
        let (found, needed) = (file.len()?, span.file_bytes());
        if found == needed {
            return Ok(());
        }
        let what = format!("the file has {found} bytes instead of {needed}, or the next file is missing");
        Err(file.damaged(found.min(needed), what))
    }

    /// Reads a segment up to its end.
    fn walk(&self, span: Span) -> Result<Walked, Fault> {
        let path = segment_path(span.start.records);
        let file = self.disk.open_file(&path)?;
        let mut walk = Walk::new(self.disk.show(&path), span.start, 0);
        let read = |offset: u64, most: usize| file.read(offset, most);
        let index = walk.index(span, read)?;
        if walk.at.records < span.end.records {
            let (path, found) = (self.disk.show(&path), walk.at.records);
            return Err(Fault::JournalShort { path, found, needed: span.end.records });
        }
        walk.expect(span.end)?;
        if span.end != self.to {
            self.check_length(span)?;
        }
        Ok(Walked { index, last_log_index: walk.last_log_index })
    }

    /// Removes everything after the position, last file first, so that a crash in between leaves no gap.
    fn cut(&self, names: &Names, spans: &[Span]) -> Result<(), Fault> {
        let is_after = |start: &&u64| **start >= self.to.records;
        let segments = names.segments.iter().filter(is_after).rev().map(|start| segment_path(*start));
        let is_sealed = |start: u64| spans.iter().any(|span| span.start.records == start && self.is_sealed(*span));
        let indexes = names.indexes.iter().filter(|start| !is_sealed(**start)).map(|start| index_path(*start));
        let unfinished = names.unfinished.iter().map(|name| format!("{FOLDER}/{name}"));
        let doomed: Vec<String> = indexes.chain(unfinished).chain(segments).collect();
        doomed.iter().try_for_each(|path| self.disk.remove_file(path))?;
        if !doomed.is_empty() {
            self.disk.sync_folder(FOLDER)?;
        }
        if let Some(span) = spans.last() {
            let file = self.disk.open_file(&segment_path(span.start.records))?;
            if file.len()? != span.file_bytes() {
                file.set_len(span.file_bytes())?;
            }
            // Data that was read back may never have been synced, if the node stopped before a flush.
            file.sync()?;
        }
        Ok(())
    }

    /// Whether a segment is complete: it has a successor or the full size.
    fn is_sealed(&self, span: Span) -> bool {
        span.end != self.to || span.end.bytes - span.start.bytes >= self.segment_bytes
    }

    /// The state of the journal at the position. Writes the indexes that sealed segments lack.
    fn assemble(&self, spans: &[Span], walked: Vec<Walked>) -> Result<State, Fault> {
        let last_log_index = walked.last().map_or(0, |walked| walked.last_log_index);
        let older = spans.len() - walked.len();
        let walked = std::iter::repeat_with(|| None).take(older).chain(walked.into_iter().map(Some));
        let (mut sealed, mut tail) = (Vec::new(), None);
        let mut has_new = false;
        for (span, walked) in spans.iter().zip(walked) {
            let written = span.file_bytes();
            if !self.is_sealed(*span) {
                let index = walked.map(|walked| walked.index).unwrap_or_default();
                tail = Some(Tail { start: span.start, written, index, open: Vec::new(), open_offset: written });
                continue;
            }
            let path = index_path(span.start.records);
            let accounts = match IndexFile::open(self.disk, &path, self.cluster, *span)? {
                Some(index) => index.accounts(),
                None => {
                    let walked = walked.map_or_else(|| self.walk(*span), Ok)?;
                    write_index(self.disk, self.cluster, *span, &walked.index)?.sync()?;
                    has_new = true;
                    walked.index.accounts()
                }
            };
            sealed.push(Sealed { span: *span, written, accounts, index: None });
        }
        if has_new {
            self.disk.sync_folder(FOLDER)?;
        }
        let (cluster, segment_bytes, end) = (self.cluster, self.segment_bytes, self.to);
        Ok(State { cluster, segment_bytes, sealed, tail, end, last_log_index, ..State::default() })
    }
}

/// Writes the index of a segment under a temporary name and renames it, so that nobody reads a partial one.
pub(super) fn write_index(
    disk: &dyn Disk,
    cluster: u128,
    span: Span,
    index: &MemoryIndex,
) -> Result<StoredFile, Fault> {
    let path = index_path(span.start.records);
    let unfinished = format!("{path}.new");
    let mut file = disk.create_file(&unfinished)?;
    file.write(&index.encode(cluster, span), 0)?;
    disk.rename_file(&mut file, &unfinished, &path)?;
    Ok(file)
}
