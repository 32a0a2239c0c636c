//! Verification of an export, without a server: the chain, every balance, every total and the signature.

use std::collections::BTreeMap;
use std::io::{self, Read};

use bytes::Bytes;
use earmark_admission::{AccountSum, Sums};
use earmark_core::{AccountId, AssetId, AssetName, JournalRecord, VaultId};

use super::format::{
    self, ACCOUNT, AccountFrame, END, EndFrame, ExportHeader, HEADER_BYTES, KIND, Signed, VAULT, VaultFrame,
};
use crate::journal::{ChainHead, JOURNAL_FRAMING, JournalPosition};
use crate::signing_key::PublicKey;
use crate::storage::frame::{FrameDefect, Framing, Seed, meta_number};
use crate::storage::header::{HeaderDefect, OVERHEAD_BYTES};

/// Bytes read from the file at once.
const READ_BYTES: usize = 256 << 10;

/// The first defect of an export.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportDefect {
    /// The file cannot be read.
    #[error("the file cannot be read: {0}")]
    File(#[from] io::Error),
    /// The header is not that of an export.
    #[error("header: {0}")]
    Header(String),
    /// Another key signed it.
    #[error("header: signed by node {node} of cluster {cluster:032x} with the key {found}, which is not a given key")]
    OtherKey {
        /// The cluster that the file names.
        cluster: u128,
        /// The node that the file names.
        node: u64,
        /// The key that the file names.
        found: PublicKey,
    },
    /// A record is damaged, missing or not in its place.
    #[error("record {number} (log index {log_index}): {why}")]
    Record {
        /// The record number.
        number: u64,
        /// Its log index, or that of the record before it if its own cannot be read.
        log_index: u64,
        /// The difference.
        why: String,
    },
    /// The balances of an account are not the sums of the records.
    #[error("account {number}: {why}")]
    Account {
        /// The account number.
        number: u64,
        /// The difference.
        why: String,
    },
    /// The totals of a vault are not the sums of the records.
    #[error("vault {number}: {why}")]
    Vault {
        /// The vault number.
        number: u64,
        /// The difference.
        why: String,
    },
    /// The end is damaged, or something follows it.
    #[error("end: {0}")]
    End(String),
    /// The signature is not by the key that the file names.
    #[error("signature: not by the key {key}, or the head or a balance was changed after it was signed")]
    Signature {
        /// The key that the file names.
        key: PublicKey,
    },
}

/// A key that may have signed an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectedKey {
    /// The key.
    pub key: PublicKey,
    /// The cluster and the node that it belongs to, if they are known.
    pub origin: Option<(u128, u64)>,
}

impl ExpectedKey {
    /// Whether an export with this header is said to be signed by this key and its node.
    fn is_of(&self, header: &ExportHeader) -> bool {
        self.key == header.public_key && self.origin.is_none_or(|origin| origin == (header.cluster, header.node))
    }
}

/// Facts about an export that the caller has from elsewhere.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExportExpected<'a> {
    /// The keys of which one must have signed it; `None` for the key that the file names.
    pub keys: Option<&'a [ExpectedKey]>,
    /// The head that the chain must have after a record.
    pub head: Option<(u64, ChainHead)>,
}

/// An export without a defect.
#[derive(Clone, Debug)]
pub struct Verified {
    /// The header: origin, key and end of the journal.
    pub header: ExportHeader,
    /// The number of accounts.
    pub accounts: u64,
    /// The totals by vault and asset.
    pub assets: Vec<VerifiedAsset>,
}

/// The totals of an asset, as the records and the accounts give them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedAsset {
    /// The namespace of its vault.
    pub namespace: String,
    /// Its vault.
    pub vault: String,
    /// Its name.
    pub asset: String,
    /// The amount ever issued.
    pub issued: i128,
    /// The amount ever retired.
    pub retired: i128,
    /// The amount that ever expired.
    pub expired: i128,
    /// The sum of all accounts.
    pub live: i128,
}

/// Verifies an export and stops at its first defect. Memory is bounded by the accounts, not by the records. `progress` gets
/// the number of each verified record.
///
/// # Errors
/// The first defect.
pub fn verify_export(
    input: impl Read,
    expected: ExportExpected<'_>,
    mut progress: impl FnMut(u64, &ExportHeader),
) -> Result<Verified, ExportDefect> {
    let mut source = Source { input, buffer: Vec::new(), at: 0 };
    let (header, raw) = read_header(&mut source)?;
    if expected.keys.is_some_and(|keys| keys.iter().all(|key| !key.is_of(&header))) {
        let ExportHeader { cluster, node, public_key: found, .. } = header;
        return Err(ExportDefect::OtherKey { cluster, node, found });
    }
    let records = header.journal.records;
    if let Some((number, _)) = expected.head.filter(|(number, _)| *number > records) {
        return Err(ExportDefect::Header(format!("it has {records} records, the given head is of record {number}")));
    }
    let mut records = Records::default();
    records.expect(expected.head)?;
    while records.at.records < header.journal.records {
        records.read(&mut source)?;
        records.expect(expected.head)?;
        progress(records.at.records, &header);
    }
    if records.at != header.journal {
        let (number, log_index) = (records.at.records, records.log_index);
        let why = format!("the chain ends with {}, the header names {}", records.at.head, header.journal.head);
        return Err(ExportDefect::Record { number, log_index, why });
    }
    let mut ledger = Ledger {
        sums: records.sums,
        signed: Signed::new(&raw),
        accounts: 0,
        vaults: 0,
        next: (0, 0),
        totals: BTreeMap::new(),
        assets: Vec::new(),
    };
    let end = ledger.read(&mut source)?;
    if !header.public_key.has_signed(&ledger.signed.message(), &end.signature) {
        return Err(ExportDefect::Signature { key: header.public_key });
    }
    if source.fill(1)? {
        return Err(ExportDefect::End("something follows it".to_owned()));
    }
    Ok(Verified { header, accounts: ledger.accounts, assets: ledger.assets })
}

/// The bytes of the file from the current position.
struct Source<R> {
    input: R,
    buffer: Vec<u8>,
    at: usize,
}

impl<R: Read> Source<R> {
    /// Whether the buffer has the needed bytes, after reading more of the file.
    fn fill(&mut self, needed: usize) -> io::Result<bool> {
        if self.buffer.len() - self.at >= needed {
            return Ok(true);
        }
        self.buffer.drain(..self.at);
        self.at = 0;
        while self.buffer.len() < needed {
            let has = self.buffer.len();
            self.buffer.resize(has + READ_BYTES.max(needed - has), 0);
            let read = self.input.read(&mut self.buffer[has..]);
            self.buffer.truncate(has + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => return Ok(false),
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
        Ok(true)
    }

    /// The next bytes; `None` if the file ends before.
    fn take(&mut self, len: usize) -> io::Result<Option<&[u8]>> {
        if !self.fill(len)? {
            return Ok(None);
        }
        self.at += len;
        Ok(Some(&self.buffer[self.at - len..self.at]))
    }

    /// The next frame.
    fn frame(&mut self, framing: Framing) -> io::Result<Result<SourceFrame<'_>, FrameDefect>> {
        let len = loop {
            match framing.read(&Seed::default(), &self.buffer[self.at..]) {
                Ok(frame) => break frame.raw.len(),
                Err(FrameDefect::Truncated { needed }) => {
                    if !self.fill(needed)? {
                        return Ok(Err(FrameDefect::Truncated { needed }));
                    }
                }
                Err(defect) => return Ok(Err(defect)),
            }
        };
        self.at += len;
        let frame = framing.read(&Seed::default(), &self.buffer[self.at - len..self.at]);
        Ok(frame.map(|frame| SourceFrame {
            numbers: (meta_number(frame.meta, 0), meta_number(frame.meta, 1)),
            payload: frame.payload,
            raw: frame.raw,
        }))
    }
}

/// A frame with a valid checksum.
struct SourceFrame<'a> {
    numbers: (u64, u64),
    payload: &'a [u8],
    raw: &'a [u8],
}

fn read_header<R: Read>(source: &mut Source<R>) -> Result<(ExportHeader, Bytes), ExportDefect> {
    let wrong = |why: &dyn std::fmt::Display| ExportDefect::Header(why.to_string());
    source.fill(HEADER_BYTES)?;
    let bytes = Bytes::copy_from_slice(&source.buffer[..source.buffer.len().min(HEADER_BYTES)]);
    let stored = KIND.decode(&bytes).map_err(|defect| match defect {
        HeaderDefect::Damaged(why) => wrong(&format!("{why}, or this is not a file of `earmark audit export`")),
        HeaderDefect::NewerFormat { found } => wrong(&format!("format {found} is unknown; use a newer Earmark")),
    })?;
    let len = OVERHEAD_BYTES + stored.body.len();
    let header = ExportHeader::decode(stored.cluster, stored.body).map_err(|error| wrong(&error))?;
    source.at = len;
    Ok((header, bytes.slice(..len)))
}

/// The records up to the current one.
#[derive(Default)]
struct Records {
    at: JournalPosition,
    log_index: u64,
    sums: Sums,
}

impl Records {
    fn read<R: Read>(&mut self, source: &mut Source<R>) -> Result<(), ExportDefect> {
        let (number, before) = (self.at.records.saturating_add(1), self.log_index);
        let wrong = |log_index: u64, why: String| ExportDefect::Record { number, log_index, why };
        let frame = source.frame(JOURNAL_FRAMING)?.map_err(|defect| wrong(before, truncated(defect)))?;
        let (found, log_index) = frame.numbers;
        if found != number {
            return Err(wrong(before, format!("found record {found} instead")));
        }
        if log_index < before {
            return Err(wrong(before, format!("the log index {log_index} is lower than that of the record before")));
        }
        let record = JournalRecord::decode(frame.payload).map_err(|error| wrong(log_index, error.to_string()))?;
        self.at = self.at.after(frame.raw);
        self.log_index = log_index;
        let head = source.take(ChainHead::BYTES)?.ok_or_else(|| wrong(log_index, "its hash is missing".to_owned()))?;
        if head != self.at.head.0 {
            return Err(wrong(log_index, format!("it has the hash {}, the file names another", self.at.head)));
        }
        self.sums.add(&record);
        Ok(())
    }
}

impl Records {
    /// Compares the chain with a head that is known from elsewhere.
    fn expect(&self, head: Option<(u64, ChainHead)>) -> Result<(), ExportDefect> {
        let JournalPosition { records: number, head: found, .. } = self.at;
        match head {
            Some((at, needed)) if at == number && needed != found => {
                let why =
                    format!("the chain has the head {found}, the given one is {needed}: the history was rewritten");
                Err(ExportDefect::Record { number, log_index: self.log_index, why })
            }
            _ => Ok(()),
        }
    }
}

fn truncated(defect: FrameDefect) -> String {
    match defect {
        FrameDefect::Truncated { .. } => "the file ends here".to_owned(),
        FrameDefect::HeaderChecksum | FrameDefect::TooLong | FrameDefect::Checksum => defect.to_string(),
    }
}

/// The accounts and vaults, compared with the sums of the records.
struct Ledger {
    sums: Sums,
    signed: Signed,
    accounts: u64,
    vaults: u64,
    /// The lowest numbers that the next account and the next vault may have. Numbers of deleted vaults are missing.
    next: (u64, u64),
    /// The sums of all accounts by vault and asset.
    totals: BTreeMap<(VaultId, AssetId), AccountSum>,
    assets: Vec<VerifiedAsset>,
}

impl Ledger {
    /// Reads all frames up to the end.
    fn read<R: Read>(&mut self, source: &mut Source<R>) -> Result<EndFrame, ExportDefect> {
        loop {
            let (accounts, vaults) = self.next;
            let frame = source.frame(format::FRAMING)?;
            let frame = frame.map_err(|defect| at(accounts, vaults, truncated(defect)))?;
            let (kind, number) = frame.numbers;
            let payload = Bytes::copy_from_slice(frame.payload);
            let malformed = |error: crate::entry::CodecError| at(accounts, vaults, error.to_string());
            match kind {
                ACCOUNT if vaults == 0 && number >= accounts => {
                    self.account(number, &AccountFrame::decode(payload).map_err(malformed)?)?;
                    self.accounts += 1;
                    self.next.0 = number.saturating_add(1);
                }
                VAULT if number >= vaults => {
                    self.vault(number, VaultFrame::decode(payload).map_err(malformed)?)?;
                    self.vaults += 1;
                    self.next.1 = number.saturating_add(1);
                }
                END if number == 0 => {
                    let end = EndFrame::decode(payload).map_err(|error| ExportDefect::End(error.to_string()))?;
                    return self.finish(end);
                }
                _ => return Err(at(accounts, vaults, format!("found part {number} of kind {kind} instead"))),
            }
            self.signed.add(frame.raw);
        }
    }

    fn account(&mut self, number: u64, account: &AccountFrame) -> Result<(), ExportDefect> {
        let id = AccountId(u32::try_from(number).unwrap_or(u32::MAX));
        let wrong = |why: String| ExportDefect::Account { number, why: format!("{}: {why}", account.name) };
        let mut has: BTreeMap<AssetId, i128> = BTreeMap::new();
        for (asset, amount) in &account.amounts {
            if has.insert(*asset, *amount).is_some() {
                return Err(wrong(format!("asset {} is named twice", asset.0)));
            }
        }
        for AccountSum { asset, amount, expired, planned } in self.sums.take_account(id) {
            let found = has.remove(&asset).unwrap_or(0);
            if found != amount {
                return Err(wrong(format!("the records add up to {amount} of asset {}, it has {found}", asset.0)));
            }
            let total = self.totals.entry((account.vault, asset)).or_default();
            total.amount = total.amount.wrapping_add(amount);
            total.expired = total.expired.wrapping_add(expired);
            total.planned = total.planned.wrapping_add(planned);
        }
        match has.into_iter().find(|(_, amount)| *amount != 0) {
            Some((asset, found)) => Err(wrong(format!("no record gives it its {found} of asset {}", asset.0))),
            None => Ok(()),
        }
    }

    fn vault(&mut self, number: u64, vault: VaultFrame) -> Result<(), ExportDefect> {
        let id = VaultId(u32::try_from(number).unwrap_or(u32::MAX));
        let VaultFrame { namespace, name, assets } = vault;
        for (asset, place) in assets.into_iter().zip(0..) {
            let wrong =
                |why: String| ExportDefect::Vault { number, why: format!("{namespace}/{name}: {}: {why}", asset.name) };
            let known = AssetName::new(&asset.name).map_err(|error| wrong(error.to_string()))?;
            let (issued, retired) = self.sums.take_totals(id, &known);
            let total = self.totals.remove(&(id, AssetId(place))).unwrap_or_default();
            let AccountSum { amount: live, expired, planned, .. } = total;
            let issued = issued.wrapping_add(planned);
            let found = [asset.issued, asset.retired, asset.expired, asset.live];
            if found != [issued, retired, expired, live] {
                return Err(wrong(format!(
                    "the records give {issued} issued, {retired} retired, {expired} expired and {live} live, the file \
                     names {}, {}, {} and {}",
                    found[0], found[1], found[2], found[3]
                )));
            }
            let left = issued.checked_sub(retired).and_then(|left| left.checked_sub(expired));
            if left != Some(live) {
                return Err(wrong(format!(
                    "{issued} issued less {retired} retired and {expired} expired is not {live}"
                )));
            }
            let (namespace, vault) = (namespace.clone(), name.clone());
            self.assets.push(VerifiedAsset { namespace, vault, asset: asset.name, issued, retired, expired, live });
        }
        Ok(())
    }

    fn finish(&mut self, end: EndFrame) -> Result<EndFrame, ExportDefect> {
        if (end.accounts, end.vaults) != (self.accounts, self.vaults) {
            let why = format!("it counts {} accounts and {} vaults", end.accounts, end.vaults);
            return Err(ExportDefect::End(format!("{why}, the file has {} and {}", self.accounts, self.vaults)));
        }
        if let Some(account) = self.sums.account_left() {
            return Err(ExportDefect::Account { number: account.0.into(), why: "it has credit and is missing".into() });
        }
        let left = self.totals.iter().find(|(_, sum)| **sum != AccountSum::default()).map(|((vault, _), _)| *vault);
        if let Some(vault) = left.or_else(|| self.sums.asset_left().map(|(vault, _)| vault)) {
            return Err(ExportDefect::Vault { number: vault.0.into(), why: "one of its assets is missing".into() });
        }
        Ok(end)
    }
}

/// A defect of the next account, or of the next vault once there was one.
fn at(accounts: u64, vaults: u64, why: String) -> ExportDefect {
    match vaults {
        0 => ExportDefect::Account { number: accounts, why },
        number => ExportDefect::Vault { number, why },
    }
}
