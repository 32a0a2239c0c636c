//! Account index of a segment: in memory while the segment grows, then in a sorted file beside it. A lookup reads one
//! or two pages. A lost index is rebuilt from its segment.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use earmark_core::AccountId;

use super::format::{Input, JournalPosition};
use crate::disk::{Disk, DiskFile};

const MAGIC: [u8; 8] = *b"EMJINDEX";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 8 + 4 + 16 + 2 * JournalPosition::BYTES + 3 * 4 + 4;
const PAGE_BYTES: usize = 4096;
const ENTRY_BYTES: usize = 12;
const PAGE_ENTRIES: usize = (PAGE_BYTES - 4) / ENTRY_BYTES;
const FENCE_BYTES: usize = 8;

/// Location of a record in its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordLocation {
    /// Record number minus the segment's start, so 1 for the first record.
    pub(super) relative: u32,
    /// File offset.
    pub(super) offset: u32,
}

/// Begin and end of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: JournalPosition,
    pub(super) end: JournalPosition,
}

/// Lowest and highest account of an index.
pub(super) type Accounts = Option<(AccountId, AccountId)>;

/// Index in memory.
#[derive(Debug, Default)]
pub(super) struct MemoryIndex(HashMap<AccountId, Vec<RecordLocation>>);

impl MemoryIndex {
    pub(super) fn add(&mut self, account: AccountId, location: RecordLocation) {
        self.0.entry(account).or_default().push(location);
    }

    /// Locations of an account after a relative number, at most `most`.
    pub(super) fn after(&self, account: AccountId, after: u32, most: usize) -> Vec<RecordLocation> {
        let Some(locations) = self.0.get(&account) else { return Vec::new() };
        let first = locations.partition_point(|location| location.relative <= after);
        locations[first..].iter().take(most).copied().collect()
    }

    pub(super) fn accounts(&self) -> Accounts {
        Some((*self.0.keys().min()?, *self.0.keys().max()?))
    }

    /// Encodes the index file.
    pub(super) fn encode(&self, cluster: u128, span: Span) -> Vec<u8> {
        let each = |(account, locations): (&AccountId, &Vec<RecordLocation>)| {
            let account = account.0;
            locations
                .iter()
                .map(move |location| (account, location.relative, location.offset))
                .collect::<Vec<_>>()
        };
        let mut entries: Vec<(u32, u32, u32)> = self.0.iter().flat_map(each).collect();
        entries.sort_unstable();
        let mut fences = Vec::new();
        let mut pages = Vec::new();
        for page in entries.chunks(PAGE_ENTRIES) {
            let first = page.first().copied().unwrap_or_default();
            fences.extend_from_slice(&first.0.to_le_bytes());
            fences.extend_from_slice(&first.1.to_le_bytes());
            let start = pages.len();
            for (account, relative, offset) in page {
                pages.extend_from_slice(&account.to_le_bytes());
                pages.extend_from_slice(&relative.to_le_bytes());
                pages.extend_from_slice(&offset.to_le_bytes());
            }
            pages.resize(start + PAGE_BYTES - 4, 0);
            let crc = crc32fast::hash(&pages[start..]);
            pages.extend_from_slice(&crc.to_le_bytes());
        }
        let crc = crc32fast::hash(&fences);
        let head = Head { span, entries: entries.len() as u32, accounts: self.accounts() };
        [&head.encode(cluster)[..], &fences, &crc.to_le_bytes(), &pages].concat()
    }
}

#[derive(Clone, Copy, Debug)]
struct Head {
    span: Span,
    entries: u32,
    accounts: Accounts,
}

impl Head {
    fn encode(&self, cluster: u128) -> Vec<u8> {
        let (low, high) = self.accounts.unwrap_or((AccountId(1), AccountId(0)));
        let mut bytes = Vec::with_capacity(HEAD_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&cluster.to_le_bytes());
        bytes.extend_from_slice(&self.span.start.to_bytes());
        bytes.extend_from_slice(&self.span.end.to_bytes());
        bytes.extend_from_slice(&self.entries.to_le_bytes());
        bytes.extend_from_slice(&low.0.to_le_bytes());
        bytes.extend_from_slice(&high.0.to_le_bytes());
        bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
        bytes
    }

    fn read(bytes: &[u8; HEAD_BYTES], cluster: u128) -> Option<Head> {
        let mut input = Input(&bytes[8 + 4 + 16..]);
        let span = Span {
            start: JournalPosition::from_bytes(input.take()),
            end: JournalPosition::from_bytes(input.take()),
        };
        let entries = u32::from_le_bytes(input.take());
        let (low, high) = (u32::from_le_bytes(input.take()), u32::from_le_bytes(input.take()));
        let accounts = (low <= high).then_some((AccountId(low), AccountId(high)));
        let head = Head { span, entries, accounts };
        (head.encode(cluster)[..] == bytes[..]).then_some(head)
    }

    fn pages(&self) -> usize {
        (self.entries as usize).div_ceil(PAGE_ENTRIES)
    }

    /// Offset of the first page.
    fn body(&self) -> u64 {
        (HEAD_BYTES + self.pages() * FENCE_BYTES + 4) as u64
    }
}

/// Why an index cannot be read.
#[derive(Debug)]
pub(super) enum IndexFault {
    /// Missing or damaged; it has to be rebuilt.
    Useless,
    Io(io::Error),
}

impl From<io::Error> for IndexFault {
    fn from(error: io::Error) -> IndexFault {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof => IndexFault::Useless,
            _ => IndexFault::Io(error),
        }
    }
}

/// Index on disk.
#[derive(Debug)]
pub(super) struct IndexFile {
    file: Arc<dyn DiskFile>,
    head: Head,
}

impl IndexFile {
    /// Opens the index of a segment.
    pub(super) fn open(
        disk: &dyn Disk,
        path: &str,
        cluster: u128,
        span: Span,
    ) -> Result<IndexFile, IndexFault> {
        let file = disk.open(path, false)?;
        let mut bytes = [0; HEAD_BYTES];
        file.read_at(&mut bytes, 0)?;
        let head = Head::read(&bytes, cluster).filter(|head| head.span == span).ok_or(IndexFault::Useless)?;
        if file.len()? != head.body() + (head.pages() * PAGE_BYTES) as u64 {
            return Err(IndexFault::Useless);
        }
        Ok(IndexFile { file, head })
    }

    pub(super) fn accounts(&self) -> Accounts {
        self.head.accounts
    }

    /// Locations of an account after a relative number, at most `most`.
    pub(super) fn after(
        &self,
        account: AccountId,
        after: u32,
        most: usize,
    ) -> Result<Vec<RecordLocation>, IndexFault> {
        let mut found = Vec::new();
        if most == 0 || self.head.entries == 0 {
            return Ok(found);
        }
        let wanted = (account.0, after);
        // The page before the first larger fence may still end with matching entries.
        let first = self.fences()?.partition_point(|fence| *fence <= wanted).saturating_sub(1);
        for page in first..self.head.pages() {
            for (owner, location) in self.page(page)? {
                let key = (owner, location.relative);
                if owner > account.0 || found.len() == most {
                    return Ok(found);
                }
                if key > wanted {
                    found.push(location);
                }
            }
        }
        Ok(found)
    }

    fn fences(&self) -> Result<Vec<(u32, u32)>, IndexFault> {
        let mut bytes = vec![0; self.head.pages() * FENCE_BYTES + 4];
        self.file.read_at(&mut bytes, HEAD_BYTES as u64)?;
        let fences = checked(&bytes)?.chunks_exact(FENCE_BYTES).map(|bytes| {
            let mut input = Input(bytes);
            (u32::from_le_bytes(input.take()), u32::from_le_bytes(input.take()))
        });
        Ok(fences.collect())
    }

    fn page(&self, page: usize) -> Result<Vec<(u32, RecordLocation)>, IndexFault> {
        let mut bytes = vec![0; PAGE_BYTES];
        self.file.read_at(&mut bytes, self.head.body() + (page * PAGE_BYTES) as u64)?;
        let count = (self.head.entries as usize).saturating_sub(page * PAGE_ENTRIES).min(PAGE_ENTRIES);
        let entries = checked(&bytes)?.chunks_exact(ENTRY_BYTES).take(count).map(|bytes| {
            let mut input = Input(bytes);
            let account = u32::from_le_bytes(input.take());
            let (relative, offset) = (u32::from_le_bytes(input.take()), u32::from_le_bytes(input.take()));
            (account, RecordLocation { relative, offset })
        });
        Ok(entries.collect())
    }
}

/// Checks and removes a trailing checksum.
fn checked(bytes: &[u8]) -> Result<&[u8], IndexFault> {
    match bytes.split_last_chunk() {
        Some((body, crc)) if crc32fast::hash(body) == u32::from_le_bytes(*crc) => Ok(body),
        _ => Err(IndexFault::Useless),
    }
}
