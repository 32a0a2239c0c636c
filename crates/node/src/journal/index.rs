//! Account index of a segment: in memory while the segment grows, then in a sorted file beside it. A lookup reads one
//! or two pages. A lost index is rebuilt from its segment.

use std::collections::HashMap;

use earmark_core::AccountId;

use super::format::{HEADER_BYTES, JournalPosition};
use crate::disk::Disk;
use crate::entry::{CodecError, Input};
use crate::fault::Fault;
use crate::storage::StoredFile;
use crate::storage::header::{FileKind, OVERHEAD_BYTES};

const KIND: FileKind = FileKind { magic: *b"EMjx", format: 1 };
const HEAD_BYTES: usize = OVERHEAD_BYTES + 2 * JournalPosition::BYTES + 3 * 4;
const PAGE_BYTES: usize = 4096;
const ENTRY_BYTES: usize = 12;
const PAGE_ENTRIES: usize = (PAGE_BYTES - 4) / ENTRY_BYTES;
const FENCE_BYTES: usize = 8;

/// Location of a record in its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordLocation {
    /// Record number minus the segment's start, so 1 for the first record.
    pub(super) relative: u32,
    pub(super) offset: u32,
}

/// Begin and end of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: JournalPosition,
    pub(super) end: JournalPosition,
}

impl Span {
    pub(super) fn file_bytes(self) -> u64 {
        HEADER_BYTES as u64 + (self.end.bytes - self.start.bytes)
    }
}

/// Lowest and highest account of an index.
pub(super) type Accounts = Option<(AccountId, AccountId)>;

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

    pub(super) fn encode(&self, cluster: u128, span: Span) -> Vec<u8> {
        let each = |(account, locations): (&AccountId, &Vec<RecordLocation>)| {
            let account = account.0;
            locations.iter().map(move |location| (account, location.relative, location.offset)).collect::<Vec<_>>()
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

/// The header of an index file: the segment it belongs to, and the accounts it has.
#[derive(Clone, Copy, Debug)]
struct Head {
    span: Span,
    entries: u32,
    accounts: Accounts,
}

impl Head {
    fn encode(&self, cluster: u128) -> Vec<u8> {
        let (low, high) = self.accounts.unwrap_or((AccountId(1), AccountId(0)));
        let mut body = Vec::with_capacity(HEAD_BYTES);
        self.span.start.put(&mut body);
        self.span.end.put(&mut body);
        for number in [self.entries, low.0, high.0] {
            body.extend_from_slice(&number.to_le_bytes());
        }
        KIND.encode(cluster, &body)
    }

    fn decode(input: &mut Input) -> Result<Head, CodecError> {
        let span = Span { start: JournalPosition::take(input)?, end: JournalPosition::take(input)? };
        let (entries, low, high) = (input.u32()?, input.u32()?, input.u32()?);
        input.end()?;
        Ok(Head { span, entries, accounts: (low <= high).then_some((AccountId(low), AccountId(high))) })
    }

    fn pages(&self) -> usize {
        (self.entries as usize).div_ceil(PAGE_ENTRIES)
    }

    fn body(&self) -> u64 {
        (HEAD_BYTES + self.pages() * FENCE_BYTES + 4) as u64
    }
}

/// The index of a full segment: the positions of each account's records.
#[derive(Debug)]
pub(super) struct IndexFile {
    file: StoredFile,
    head: Head,
}

impl IndexFile {
    /// Opens the index of a segment; `None` if it is missing or damaged and has to be rebuilt.
    pub(super) fn open(disk: &dyn Disk, path: &str, cluster: u128, span: Span) -> Result<Option<IndexFile>, Fault> {
        let file = match disk.open_file(path) {
            Err(Fault::Missing { .. }) => return Ok(None),
            other => other?,
        };
        let header = KIND.decode(&file.read(0, HEAD_BYTES)?).ok().filter(|header| header.cluster == cluster);
        let head = header.and_then(|header| Head::decode(&mut Input::new(header.body)).ok());
        let Some(head) = head.filter(|head| head.span == span) else { return Ok(None) };
        let len = head.body() + (head.pages() * PAGE_BYTES) as u64;
        Ok((file.len()? == len).then_some(IndexFile { file, head }))
    }

    pub(super) fn accounts(&self) -> Accounts {
        self.head.accounts
    }

    /// Locations of an account after a relative number, at most `most`; `None` if the index is damaged.
    pub(super) fn after(
        &self,
        account: AccountId,
        after: u32,
        most: usize,
    ) -> Result<Option<Vec<RecordLocation>>, Fault> {
        let mut found = Vec::new();
        if most == 0 || self.head.entries == 0 {
            return Ok(Some(found));
        }
        let wanted = (account.0, after);
        let Some(fences) = self.fences()? else { return Ok(None) };
        // The page before the first larger fence may still end with matching entries.
        let first = fences.partition_point(|fence| *fence <= wanted).saturating_sub(1);
        for page in first..self.head.pages() {
            let Some(entries) = self.page(page)? else { return Ok(None) };
            for (owner, location) in entries {
                if owner > account.0 || found.len() == most {
                    return Ok(Some(found));
                }
                if (owner, location.relative) > wanted {
                    found.push(location);
                }
            }
        }
        Ok(Some(found))
    }

    fn fences(&self) -> Result<Option<Vec<(u32, u32)>>, Fault> {
        let bytes = self.checked(HEAD_BYTES as u64, self.head.pages() * FENCE_BYTES + 4)?;
        let fence = |bytes: &[u8]| (u32_at(bytes, 0), u32_at(bytes, 4));
        Ok(bytes.map(|bytes| bytes.chunks_exact(FENCE_BYTES).map(fence).collect()))
    }

    fn page(&self, page: usize) -> Result<Option<Vec<(u32, RecordLocation)>>, Fault> {
        let bytes = self.checked(self.head.body() + (page * PAGE_BYTES) as u64, PAGE_BYTES)?;
        let count = (self.head.entries as usize).saturating_sub(page * PAGE_ENTRIES).min(PAGE_ENTRIES);
        let entry =
            |bytes: &[u8]| (u32_at(bytes, 0), RecordLocation { relative: u32_at(bytes, 4), offset: u32_at(bytes, 8) });
        Ok(bytes.map(|bytes| bytes.chunks_exact(ENTRY_BYTES).take(count).map(entry).collect()))
    }

    /// Reads bytes with a trailing checksum; `None` if it is wrong.
    fn checked(&self, offset: u64, len: usize) -> Result<Option<Vec<u8>>, Fault> {
        let mut bytes = vec![0; len];
        self.file.read_into(&mut bytes, offset)?;
        let sum = bytes.split_off(len - 4);
        Ok((crc32fast::hash(&bytes).to_le_bytes() == sum[..]).then_some(bytes))
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}
