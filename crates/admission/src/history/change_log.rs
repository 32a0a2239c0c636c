//! The change log: the journal records that are changes by an actor.

use earmark_core::{Actor, Book, Definition, JournalRecord, LimitKey, Operation, Transaction};

use crate::callers::{ChangeCursor, ChangeEntry, ChangeKind, ChangePage, ChangeQuery, ChangedLimit};

/// Most changes examined for one page, so that a filter that matches nothing does not read the whole journal.
const RECORDS_MAX: usize = 5_000;
/// Bytes of operation summaries and definitions after which a page ends.
const TEXT_BYTES: usize = 1 << 20;
/// Bytes of a definition as JSON without its texts: field names, numbers and kind.
const DEFINITION_BYTES: usize = 192;

/// Builds a page of the change log.
#[derive(Debug)]
pub struct ChangePager {
    query: ChangeQuery,
    page: ChangePage,
    looked_at: usize,
    bytes: usize,
    last: ChangeCursor,
    is_cut: bool,
}

impl ChangePager {
    /// An empty page.
    #[must_use]
    pub fn new(query: ChangeQuery) -> ChangePager {
        let (page, last) = (ChangePage::default(), ChangeCursor::default());
        ChangePager { query, page, looked_at: 0, bytes: 0, last, is_cut: false }
    }

    /// Adds a journal record if the query asks for it. Returns false, without reading the record, if the page is full.
    pub fn take(&mut self, book: &Book, number: u64, record: &JournalRecord) -> bool {
        if self.is_full() {
            self.is_cut = true;
            return false;
        }
        self.pass(ChangeCursor::of_book(number));
        if !self.is_meant(record) {
            return true;
        }
        let is_here = |entry: &ChangeEntry| self.query.namespace.as_ref().is_none_or(|name| *name == entry.namespace);
        if let Some(entry) = entry(book, number, record).filter(is_here) {
            self.push(entry);
        }
        true
    }

    /// Whether the record has the key and the actor of the query.
    fn is_meant(&self, record: &JournalRecord) -> bool {
        let is_key = |key: &LimitKey| {
            let is_same = |operation: &Operation| operation.limit() == Some(key);
            match record {
                JournalRecord::Transaction(record) => record.operations.iter().any(is_same),
                JournalRecord::Limit(limit) | JournalRecord::Template(limit) => limit.edit.change().key == key,
                JournalRecord::Pause(pause) => pause.key == *key,
                _ => false,
            }
        };
        let is_actor = |actor: &Actor| match record {
            JournalRecord::Transaction(record) => record.receipt.actor == *actor,
            JournalRecord::Key(key) => key.actor == *actor,
            JournalRecord::Limit(limit) | JournalRecord::Template(limit) => limit.actor == *actor,
            JournalRecord::Pause(pause) => pause.actor == *actor,
            JournalRecord::Quotas(quotas) => quotas.actor == *actor,
            JournalRecord::Policy(policy) => policy.actor == *actor,
            JournalRecord::Hold(_)
            | JournalRecord::Settle(_)
            | JournalRecord::Release(_)
            | JournalRecord::Expire(_)
            | JournalRecord::Plan(_) => false,
        };
        self.query.actor.as_ref().is_none_or(is_actor) && self.query.key.as_ref().is_none_or(is_key)
    }

    /// Adds a change that matches the query. Returns false, without adding it, if the page is full.
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
        self.page.entries.len() >= self.query.page_size || self.looked_at >= RECORDS_MAX || self.bytes >= TEXT_BYTES
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
        let text = |definition: &Definition| {
            let texts = [definition.key.as_str(), &definition.unit, &definition.description];
            texts.into_iter().map(str::len).fold(DEFINITION_BYTES, usize::saturating_add)
        };
        let of_limit = |limit: &ChangedLimit| [&limit.old, &limit.new].into_iter().flatten().map(text).sum::<usize>();
        match &self.what {
            ChangeKind::Transaction { operations, limits, .. } => {
                let summaries = operations.iter().map(String::len).sum::<usize>();
                limits.iter().map(of_limit).fold(summaries, usize::saturating_add)
            }
            ChangeKind::Limit { limit, .. } | ChangeKind::Template { template: limit, .. } => of_limit(limit),
            ChangeKind::Pause { reason, .. } => reason.len(),
            ChangeKind::Key { labels, may_set, .. } => {
                let labels = labels.iter().map(|(name, value)| name.len().saturating_add(value.len()));
                labels.chain(may_set.iter().map(str::len)).sum()
            }
            ChangeKind::Quotas { .. } | ChangeKind::Policy { .. } => 0,
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
            what: ChangeKind::Key {
                change: key.change,
                id: key.id.clone(),
                name: key.name.clone(),
                role: key.role,
                labels: key.labels.clone(),
                may_set: key.may_set.clone(),
            },
        }),
        JournalRecord::Limit(limit) => Some(ChangeEntry {
            place: ChangeCursor::of_book(number),
            at: limit.at.wall,
            actor: limit.actor.clone(),
            namespace: book.namespace_name(limit.namespace)?.clone(),
            vault: None,
            what: ChangeKind::Limit { limit: Box::new(limit.edit.change().into()), revision: limit.revision },
        }),
        JournalRecord::Template(template) => Some(ChangeEntry {
            place: ChangeCursor::of_book(number),
            at: template.at.wall,
            actor: template.actor.clone(),
            namespace: book.namespace_name(template.namespace)?.clone(),
            vault: None,
            what: ChangeKind::Template {
                template: Box::new(template.edit.change().into()),
                revision: template.revision,
            },
        }),
        JournalRecord::Pause(pause) => Some(ChangeEntry {
            place: ChangeCursor::of_book(number),
            at: pause.at.wall,
            actor: pause.actor.clone(),
            namespace: book.namespace_name(pause.namespace)?.clone(),
            vault: None,
            what: ChangeKind::Pause { key: pause.key.clone(), until: pause.until, reason: pause.reason.clone() },
        }),
        JournalRecord::Quotas(quotas) => Some(ChangeEntry {
            place: ChangeCursor::of_book(number),
            at: quotas.at.wall,
            actor: quotas.actor.clone(),
            namespace: book.namespace_name(quotas.namespace)?.clone(),
            vault: None,
            what: ChangeKind::Quotas { changes: quotas.changes.clone() },
        }),
        JournalRecord::Policy(policy) => Some(ChangeEntry {
            place: ChangeCursor::of_book(number),
            at: policy.at.wall,
            actor: policy.actor.clone(),
            namespace: book.namespace_name(policy.namespace)?.clone(),
            vault: None,
            what: ChangeKind::Policy { old: policy.old, revision: policy.revision, bytes: policy.bytes },
        }),
        JournalRecord::Hold(_)
        | JournalRecord::Settle(_)
        | JournalRecord::Release(_)
        | JournalRecord::Expire(_)
        | JournalRecord::Plan(_) => None,
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
            id: record.id.clone(),
            operations: record.operations.iter().map(summary).collect(),
            limits: record.limit_changes().map(ChangedLimit::from).collect(),
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
        Operation::DeleteVault { vault } => format!("delete_vault {vault}"),
        Operation::RetireClient { client } => format!("retire_client {client}"),
        Operation::OpenAccount { account, plan: None, .. } => format!("open_account {account}"),
        Operation::OpenAccount { account, plan: Some(plan), .. } => {
            format!("open_account {account}, plan of {} {} a {}", plan.amount, plan.asset, plan.period)
        }
        Operation::SetPlan { account, plan: Some(plan) } => {
            format!("set_plan of {account}: {} {} a {}", plan.amount, plan.asset, plan.period)
        }
        Operation::SetPlan { account, plan: None } => format!("set_plan of {account}: none"),
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
