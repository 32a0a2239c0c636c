//! Opens a journal as of a position: checks what is before it, and cuts what is behind.
//!
//! The last two segments are read in full. Of older ones, whose bytes were on disk long ago, the length, the
//! header and the head of the index are looked at; their records are checked when they are read.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::error::JournalError;
use super::format::{self, HEADER_BYTES, HeaderFault, JournalPosition};
use super::index::{IndexFault, IndexFile, MemoryIndex, RecordLocation, Span};
use super::state::{Sealed, State, Tail, relative};
use super::walk::Walk;
use super::{FOLDER, index_path, segment_path};
use crate::disk::{Disk, DiskFile};

/// So many segments are read in full when the journal is opened.
const SEGMENTS_READ: usize = 2;

pub(super) struct Opening<'a> {
    pub(super) disk: &'a dyn Disk,
    pub(super) cluster: u128,
    pub(super) segment_bytes: u64,
    pub(super) to: JournalPosition,
}

/// The files of the folder.
#[derive(Default)]
struct Names {
    /// The segments, by the numbers of the last records before them.
    segments: Vec<u64>,
    indexes: Vec<u64>,
    /// What was being written when the node stopped.
    unfinished: Vec<String>,
}

/// What reading a segment gave.
struct Walked {
    index: MemoryIndex,
    last_log_index: u64,
}

impl Opening<'_> {
    pub(super) fn open(&self) -> Result<State, JournalError> {
        self.disk.create_dir(FOLDER).map_err(|source| self.io(FOLDER, "making the folder", source))?;
        self.disk.sync_dir("").map_err(|source| self.io("", "a sync", source))?;
        let names = self.names()?;
        let starts = self.starts(&names)?;
        let spans = self.spans(&starts)?;
        let from = spans.len().saturating_sub(SEGMENTS_READ);
        for span in &spans[..from] {
            self.check_length(*span)?;
        }
        let walked: Vec<Walked> =
            spans[from..].iter().map(|span| self.walk(*span)).collect::<Result<_, JournalError>>()?;
        // Up to here nothing was written: a folder that is refused stays as it is.
        self.cut(&names, &spans)?;
        self.assemble(&spans, walked)
    }

    fn names(&self) -> Result<Names, JournalError> {
        let mut names = Names::default();
        let list = self.disk.list(FOLDER).map_err(|source| self.io(FOLDER, "listing the folder", source))?;
        let number = |name: &str, suffix| {
            let first = name.strip_suffix(suffix).filter(|digits| digits.len() == 20)?;
            first.parse::<u64>().ok()?.checked_sub(1)
        };
        for name in list {
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

    /// Where the segments start that have something before the position, as their headers say.
    fn starts(&self, names: &Names) -> Result<Vec<JournalPosition>, JournalError> {
        let mut starts = Vec::new();
        for start in &names.segments {
            let path = segment_path(*start);
            let header = self.header(&path);
            if *start < self.to.records {
                let found = header?;
                if found.records != *start {
                    return Err(self.damaged(&path, 0, "its name and its header disagree"));
                }
                starts.push(found);
            } else if let Err(error @ (JournalError::OtherCluster { .. } | JournalError::Newer { .. })) =
                header
            {
                // What is behind the position goes, and may be damaged; but not if it is somebody else's.
                return Err(error);
            }
        }
        Ok(starts)
    }

    fn header(&self, path: &str) -> Result<JournalPosition, JournalError> {
        let file = self.file(path)?;
        let len = self.len(path, &*file)?.min(HEADER_BYTES as u64);
        let mut bytes = vec![0; len as usize];
        file.read_at(&mut bytes, 0).map_err(|source| self.io(path, "a read", source))?;
        format::read_header(&bytes, self.cluster).map_err(|fault| match fault {
            HeaderFault::Damaged(what) => self.damaged(path, 0, what),
            HeaderFault::Newer(found) => {
                JournalError::Newer { file: self.disk.show(path), found, expected: format::VERSION }
            }
            HeaderFault::OtherCluster(found) => {
                JournalError::OtherCluster { file: self.disk.show(path), found, expected: self.cluster }
            }
        })
    }

    /// The segments that lead up to the position without a gap.
    fn spans(&self, starts: &[JournalPosition]) -> Result<Vec<Span>, JournalError> {
        let mut spans = Vec::new();
        if self.to.records == 0 {
            return Ok(spans);
        }
        if starts.first() != Some(&JournalPosition::START) {
            let file = self.disk.show(&segment_path(0));
            return Err(JournalError::Short { file, found: 0, needed: self.to.records });
        }
        for (at, start) in starts.iter().enumerate() {
            let end = starts.get(at + 1).copied().unwrap_or(self.to);
            if end.records <= start.records || end.bytes <= start.bytes {
                let path = segment_path(start.records);
                return Err(self.damaged(&path, 0, "it starts behind what should follow it"));
            }
            spans.push(Span { start: *start, end });
        }
        Ok(spans)
    }

    /// Makes sure of an older segment's length.
    fn check_length(&self, span: Span) -> Result<(), JournalError> {
        let path = segment_path(span.start.records);
        let found = self.len(&path, &*self.file(&path)?)?;
        let needed = HEADER_BYTES as u64 + (span.end.bytes - span.start.bytes);
        if found == needed {
            return Ok(());
        }
        let what = format!("it has {found} bytes instead of {needed}, or the file after it is missing");
        Err(self.damaged(&path, found.min(needed), &what))
    }

    /// Reads a segment up to where it should end.
    fn walk(&self, span: Span) -> Result<Walked, JournalError> {
        let path = segment_path(span.start.records);
        let file = self.file(&path)?;
        let len = self.len(&path, &*file)?;
        let read = |offset: u64, most: usize| {
            let mut bytes = vec![0; len.saturating_sub(offset).min(most as u64) as usize];
            file.read_at(&mut bytes, offset).map_err(|source| self.io(&path, "a read", source))?;
            Ok(Bytes::from(bytes))
        };
        let mut walk = Walk::new(self.disk.show(&path), span.start, 0);
        let mut index = MemoryIndex::default();
        while walk.at.records < span.end.records {
            let Some(step) = walk.next(read)? else {
                let (file, found) = (self.disk.show(&path), walk.at.records);
                return Err(JournalError::Short { file, found, needed: span.end.records });
            };
            let location =
                RecordLocation { relative: relative(span.start, step.number), offset: step.offset as u32 };
            for account in walk.record(&step)?.accounts() {
                index.add(account, location);
            }
        }
        walk.expect(span.end)?;
        if span.end != self.to {
            self.check_length(span)?;
        }
        Ok(Walked { index, last_log_index: walk.last_log_index })
    }

    /// Removes what is behind the position, the last first, so that a crash in between leaves no gap.
    fn cut(&self, names: &Names, spans: &[Span]) -> Result<(), JournalError> {
        let is_behind = |start: &&u64| **start >= self.to.records;
        let segments = names.segments.iter().filter(is_behind).rev().map(|start| segment_path(*start));
        let is_sealed =
            |start: u64| spans.iter().any(|span| span.start.records == start && self.is_sealed(*span));
        let indexes =
            names.indexes.iter().filter(|start| !is_sealed(**start)).map(|start| index_path(*start));
        let unfinished = names.unfinished.iter().map(|name| format!("{FOLDER}/{name}"));
        let doomed: Vec<String> = indexes.chain(unfinished).chain(segments).collect();
        for path in &doomed {
            self.disk.remove(path).map_err(|source| self.io(path, "removing it", source))?;
        }
        if !doomed.is_empty() {
            self.sync_folder()?;
        }
        if let Some(span) = spans.last() {
            let path = segment_path(span.start.records);
            let file = self.file(&path)?;
            let len = HEADER_BYTES as u64 + (span.end.bytes - span.start.bytes);
            if self.len(&path, &*file)? != len {
                file.set_len(len).map_err(|source| self.io(&path, "cutting it", source))?;
            }
            // What was read back may never have reached the disk, if the node stopped before a flush.
            file.sync().map_err(|source| self.io(&path, "a sync", source))?;
        }
        Ok(())
    }

    /// Whether a segment is complete: it is followed by another, or as long as the rule says.
    fn is_sealed(&self, span: Span) -> bool {
        span.end != self.to || span.end.bytes - span.start.bytes >= self.segment_bytes
    }

    fn assemble(&self, spans: &[Span], walked: Vec<Walked>) -> Result<State, JournalError> {
        let last_log_index = walked.last().map_or(0, |walked| walked.last_log_index);
        let older = spans.len() - walked.len();
        let walked = std::iter::repeat_with(|| None).take(older).chain(walked.into_iter().map(Some));
        let (mut sealed, mut tail) = (Vec::new(), None);
        let mut has_new = false;
        for (span, walked) in spans.iter().zip(walked) {
            let written = HEADER_BYTES as u64 + (span.end.bytes - span.start.bytes);
            if !self.is_sealed(*span) {
                let index = walked.map(|walked| walked.index).unwrap_or_default();
                tail =
                    Some(Tail { start: span.start, written, index, open: Vec::new(), open_offset: written });
                continue;
            }
            let path = index_path(span.start.records);
            let accounts = match IndexFile::open(self.disk, &path, self.cluster, *span) {
                Ok(index) => index.accounts(),
                Err(IndexFault::Io(source)) => return Err(self.io(&path, "a read", source)),
                Err(IndexFault::Useless) => {
                    let walked = walked.map_or_else(|| self.walk(*span), Ok)?;
                    let file = write_index(self.disk, self.cluster, *span, &walked.index)?;
                    file.sync().map_err(|source| self.io(&path, "a sync", source))?;
                    has_new = true;
                    walked.index.accounts()
                }
            };
            sealed.push(Sealed { span: *span, written, accounts, index: None });
        }
        if has_new {
            self.sync_folder()?;
        }
        Ok(State::new(self.cluster, self.segment_bytes, (sealed, tail), (self.to, last_log_index)))
    }

    fn file(&self, path: &str) -> Result<Arc<dyn DiskFile>, JournalError> {
        self.disk.open(path, false).map_err(|source| self.io(path, "opening it", source))
    }

    fn len(&self, path: &str, file: &dyn DiskFile) -> Result<u64, JournalError> {
        file.len().map_err(|source| self.io(path, "asking for its length", source))
    }

    fn sync_folder(&self) -> Result<(), JournalError> {
        self.disk.sync_dir(FOLDER).map_err(|source| self.io(FOLDER, "a sync", source))
    }

    fn io(&self, path: &str, operation: &'static str, source: io::Error) -> JournalError {
        JournalError::Io { file: self.disk.show(path), operation, source }
    }

    fn damaged(&self, path: &str, offset: u64, what: &str) -> JournalError {
        JournalError::Damaged { file: self.disk.show(path), offset, what: what.to_owned() }
    }
}

/// Writes the index of a segment aside and gives it its name, so that nobody reads half of one.
pub(super) fn write_index(
    disk: &dyn Disk,
    cluster: u128,
    span: Span,
    index: &MemoryIndex,
) -> Result<Arc<dyn DiskFile>, JournalError> {
    let path = index_path(span.start.records);
    let aside = format!("{path}.new");
    let io = |operation| {
        let file = disk.show(&path);
        move |source| JournalError::Io { file, operation, source }
    };
    let bytes = index.encode(cluster, span);
    let file = disk.open(&aside, true).map_err(io("making it"))?;
    file.set_len(0).map_err(io("emptying it"))?;
    file.write_at(&bytes, 0).map_err(io("a write"))?;
    disk.rename(&aside, &path).map_err(io("renaming it"))?;
    Ok(file)
}
