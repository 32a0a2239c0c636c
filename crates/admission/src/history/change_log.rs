//! The change log: the journal records that are changes by an actor.

use earmark_core::{Book, JournalRecord, NamespaceName, Operation, Transaction};

use crate::callers::{ChangeCursor, ChangeEntry, ChangeKind, ChangePage};

/// Most records scanned for one page. Most records may be holds, which are not changes.
const RECORDS_MAX: usize = 20_000;
/// Bytes of operation summaries after which a page ends.
const SUMMARY_BYTES: usize = 1 << 20;

/// Builds a page of the change log.
#[derive(Debug)]
pub struct ChangePager {
    namespace: Option<NamespaceName>,
    page_size: usize,
    page: ChangePage,
    looked_at: usize,
    bytes: usize,
    last: ChangeCursor,
    is_cut: bool,
}

impl ChangePager {
    /// An empty page, of one namespace or of all.
    #[must_use]
    pub fn new(namespace: Option<NamespaceName>, page_size: usize) -> ChangePager {
        let page = ChangePage::default();
        ChangePager { namespace, page_size, page, looked_at: 0, bytes: 0, last: ChangeCursor::default(), is_cut: false }
    }

    /// Adds a journal record if it is a change. Returns false, without reading the record, if the page is full.
    pub fn take(&mut self, book: &Book, number: u64, record: &JournalRecord) -> bool {
        if self.is_full() {
            self.is_cut = true;
            return false;
        }
        self.pass(ChangeCursor::of_book(number));
        let is_meant = |entry: &ChangeEntry| self.namespace.as_ref().is_none_or(|name| *name == entry.namespace);
        if let Some(entry) = entry(book, number, record).filter(is_meant) {
            self.push(entry);
        }
        true
    }

    /// Adds a change of the requested namespace. Returns false, without adding it, if the page is full.
    pub fn add(&mut self, entry: ChangeEntry) -> bool {
        if self.is_full() {
            self.is_cut = true;
            return false;
        }
        self.pass(entry.place);
        self.push(entry);
        true
    }

    /// Moves the cursor past a scanned record.
    pub fn pass(&mut self, place: ChangeCursor) {
        self.looked_at = self.looked_at.saturating_add(1);
        self.last = place;
    }

    /// Whether the page accepts no more records.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.page.entries.len() >= self.page_size || self.looked_at >= RECORDS_MAX || self.bytes >= SUMMARY_BYTES
    }

    fn push(&mut self, entry: ChangeEntry) {
        self.bytes = self.bytes.saturating_add(entry.bytes());
        self.page.entries.push(entry);
    }

    /// The page, with a cursor for the next one.
    #[must_use]
    pub fn cut(self) -> ChangePage {
        ChangePage { next: Some(self.last), ..self.page }
    }

    /// The page, with a cursor if a record was rejected.
    #[must_use]
    pub fn finish(self) -> ChangePage {
        ChangePage { next: self.is_cut.then_some(self.last), ..self.page }
    }
}

impl ChangeEntry {
    fn bytes(&self) -> usize {
        match &self.what {
            ChangeKind::Transaction { operations, .. } => operations.iter().map(String::len).sum(),
            ChangeKind::Key { .. } | ChangeKind::Limit { .. } | ChangeKind::Quotas { .. } => 0,
        }
    }
}

/// A journal record as a change. Holds and settlements are not changes by an actor; they appear in account history.
fn entry(book: &Book, number: u64, record: &JournalRecord) -> Option<ChangeEntry> {
    match record {
        JournalRecord::Transaction(record) => transaction(book, number, record),
        JournalRecord::Key(key) => Some(ChangeEntry {
            place: ChangeCursor::of_book(number),
            at: key.at.wall,
            actor: key.actor.clone(),
            namespace: key.namespace.clone(),
            vault: None,
            what: ChangeKind::Key { change: key.change, id: key.id.clone(), name: key.name.clone(), role: key.role },
        }),
        JournalRecord::Limit(limit) => Some(ChangeEntry {
            place: ChangeCursor::of_book(number),
            at: limit.at.wall,
            actor: limit.actor.clone(),
            namespace: book.namespace_name(limit.namespace)?.clone(),
            vault: None,
            what: ChangeKind::Limit { edit: limit.change, key: limit.key.clone(), revision: limit.revision },
        }),
        JournalRecord::Quotas(quotas) => Some(ChangeEntry {
            place: ChangeCursor::of_book(number),
            at: quotas.at.wall,
            actor: quotas.actor.clone(),
            namespace: book.namespace_name(quotas.namespace)?.clone(),
            vault: None,
            what: ChangeKind::Quotas { changes: quotas.changes.clone() },
        }),
        JournalRecord::Hold(_) | JournalRecord::Settle(_) | JournalRecord::Release(_) => None,
    }
}

fn transaction(book: &Book, number: u64, record: &Transaction) -> Option<ChangeEntry> {
    let receipt = &record.receipt;
    let vault = match record.vault {
        Some(vault) => Some(book.vault_name(vault)?.1.clone()),
        None => None,
    };
    Some(ChangeEntry {
        place: ChangeCursor::of_book(number),
        at: receipt.committed_at.wall,
        actor: receipt.actor.clone(),
        namespace: book.namespace_name(record.namespace)?.clone(),
        vault,
        what: ChangeKind::Transaction {
            tx_id: receipt.tx_id,
            log_index: receipt.log_index,
            client: record.client.clone(),
            sequence: receipt.sequence,
            operations: record.operations.iter().map(summary).collect(),
        },
    })
}

/// A short description of an operation.
#[must_use]
pub fn summary(operation: &Operation) -> String {
    match operation {
        Operation::PutLimit { definition, .. } => format!("put_limit {}", definition.key),
        Operation::DeleteLimit { key, .. } => format!("delete_limit {key}"),
        Operation::OpenVault { vault } => format!("open_vault {vault}"),
        Operation::RetireClient { client } => format!("retire_client {client}"),
        Operation::OpenAccount { account, .. } => format!("open_account {account}"),
        Operation::FreezeAccount { account } => format!("freeze_account {account}"),
        Operation::UnfreezeAccount { account } => format!("unfreeze_account {account}"),
        Operation::CloseAccount { account } => format!("close_account {account}"),
        Operation::Issue { account, asset, amount, .. } => format!("issue {amount} {asset} to {account}"),
        Operation::Transfer { from, to, asset, amount, .. } => {
            format!("transfer {amount} {asset} from {from} to {to}")
        }
        Operation::Retire { account, asset, amount, .. } => format!("retire {amount} {asset} of {account}"),
    }
}
