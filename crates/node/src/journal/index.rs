//! Index of a segment by account, and of its changes: in memory while the segment grows, then in a sorted file beside it. A lookup reads one
//! or two pages. A lost index is rebuilt from its segment.

use std::collections::HashMap;

use earmark_core::{ACCOUNTS_MAX, AccountId, JournalRecord};

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

/// The key of the records in the change log. No account has this number.
pub(super) const CHANGES: AccountId = AccountId(u32::MAX);
const _: () = assert!(ACCOUNTS_MAX < CHANGES.0, "an account would have the key of the changes");

/// The keys under which a record is indexed: its accounts, and [`CHANGES`].
pub(super) fn keys(record: &JournalRecord) -> Vec<AccountId> {
    let mut keys = record.accounts();
    keys.extend(record.is_change().then_some(CHANGES));
    keys
}

/// A range of record numbers, in the journal or relative to the start of a segment.
#[derive(Clone, Copy, Debug)]
pub(super) enum Numbers {
    /// Larger numbers, in ascending order.
    After(u64),
    /// Smaller numbers, in descending order.
    Before(u64),
}

impl Numbers {
    pub(super) fn relative_to(self, start: JournalPosition) -> Numbers {
        match self {
            Numbers::After(number) => Numbers::After(number.saturating_sub(start.records)),
            Numbers::Before(number) => Numbers::Before(number.saturating_sub(start.records)),
        }
    }
}

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

    /// Locations of an account with these relative numbers, at most `most`.
    pub(super) fn find(&self, account: AccountId, numbers: Numbers, most: usize) -> Vec<RecordLocation> {
        let Some(locations) = self.0.get(&account) else { return Vec::new() };
        match numbers {
            Numbers::After(after) => {
                let first = locations.partition_point(|location| u64::from(location.relative) <= after);
                locations[first..].iter().take(most).copied().collect()
            }
            Numbers::Before(before) => {
                let end = locations.partition_point(|location| u64::from(location.relative) < before);
                locations[..end].iter().rev().take(most).copied().collect()
            }
        }
    }

    pub(super) fn accounts(&self) -> Accounts {
        let accounts = || self.0.keys().filter(|key| **key != CHANGES);
        Some((*accounts().min()?, *accounts().max()?))
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

    /// Locations of an account with these relative numbers, at most `most`; `None` if the index is damaged.
    pub(super) fn find(
        &self,
        account: AccountId,
        numbers: Numbers,
        most: usize,
    ) -> Result<Option<Vec<RecordLocation>>, Fault> {
        if most == 0 || self.head.entries == 0 {
            return Ok(Some(Vec::new()));
        }
        let Some(fences) = self.fences()? else { return Ok(None) };
        let relative = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        match numbers {
            Numbers::After(after) => self.after(&fences, (account.0, relative(after)), most),
            Numbers::Before(before) => self.before(&fences, (account.0, relative(before)), most),
        }
    }

    fn after(
        &self,
        fences: &[(u32, u32)],
        wanted: (u32, u32),
        most: usize,
    ) -> Result<Option<Vec<RecordLocation>>, Fault> {
        let mut found = Vec::new();
        // The page before the first larger fence may still end with matching entries.
        let first = fences.partition_point(|fence| *fence <= wanted).saturating_sub(1);
        for page in first..self.head.pages() {
            let Some(entries) = self.page(page)? else { return Ok(None) };
            for (owner, location) in entries {
                if owner > wanted.0 || found.len() == most {
                    return Ok(Some(found));
                }
                if (owner, location.relative) > wanted {
                    found.push(location);
                }
            }
        }
        Ok(Some(found))
    }

    fn before(
        &self,
        fences: &[(u32, u32)],
        wanted: (u32, u32),
        most: usize,
    ) -> Result<Option<Vec<RecordLocation>>, Fault> {
        let mut found = Vec::new();
        let pages = fences.partition_point(|fence| *fence < wanted);
        for page in (0..pages).rev() {
            let Some(entries) = self.page(page)? else { return Ok(None) };
            for (owner, location) in entries.into_iter().rev() {
                if owner < wanted.0 || found.len() == most {
                    return Ok(Some(found));
                }
                if (owner, location.relative) < wanted {
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
