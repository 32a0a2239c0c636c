//! Journal records from the point of view of one account.

use std::sync::Arc;

use earmark_core::{
    AccountId, AccountName, Actor, AssetId, Book, HoldEntry, JournalRecord, Operation, SettleEntry, Transaction,
};

use crate::writes::{EntryChange, EntryKind, EntryView, Flows, HoldView};

/// A journal record from the point of view of an account.
#[must_use]
pub fn entry_view(
    book: &Book,
    number: u64,
    record: &JournalRecord,
    (account, name): (AccountId, &AccountName),
) -> Option<EntryView> {
    let (at, what, changes) = match record {
        JournalRecord::Transaction(record) => {
            let mut changes: Vec<EntryChange> = (record.changes.iter())
                .filter(|change| change.account == account)
                .filter_map(|found| change(book, (account, found.asset), found.amount, 0))
                .map(|change| EntryChange { flows: Flows::of(&record.operations, name, &change.asset), ..change })
                .collect();
            changes.sort_unstable_by(|a, b| a.asset.cmp(&b.asset));
            (record.receipt.committed_at.wall, transaction(record, name), changes)
        }
        JournalRecord::Hold(entry) => {
            let amount = i128::from(entry.amount);
            let change = change(book, (account, entry.asset), amount.wrapping_neg(), amount)?;
            (entry.at.wall, EntryKind::Hold(hold(entry)), vec![change])
        }
        JournalRecord::Release(entry) => {
            let amount = i128::from(entry.amount);
            let change = change(book, (account, entry.asset), amount, amount.wrapping_neg())?;
            (entry.at.wall, EntryKind::Release(hold(entry)), vec![change])
        }
        JournalRecord::Settle(entry) => settle(book, entry, account)?,
        JournalRecord::Expire(entry) => {
            let change = change(book, (account, entry.asset), entry.amount.wrapping_neg(), 0)?;
            (entry.at.wall, EntryKind::Expire(entry.terms), vec![change])
        }
        JournalRecord::Plan(entry) => {
            let change = change(book, (account, entry.asset), entry.amount, 0)?;
            let what = EntryKind::Plan { carried: entry.carried, terms: entry.terms };
            (entry.at.wall, what, vec![change])
        }
        JournalRecord::Key(_)
        | JournalRecord::Limit(_)
        | JournalRecord::Template(_)
        | JournalRecord::Pause(_)
        | JournalRecord::Quotas(_)
        | JournalRecord::Policy(_) => {
            return None;
        }
    };
    Some(EntryView { number, at, what, changes })
}

fn change(book: &Book, (account, asset): (AccountId, AssetId), amount: i128, held: i128) -> Option<EntryChange> {
    let (vault, _) = book.account_name(account)?;
    let asset = book.asset_name(vault, asset)?.clone();
    Some(EntryChange { asset, amount, held, flows: Flows::default() })
}

fn hold(entry: &HoldEntry) -> HoldView {
    let actor = entry.actor.clone().or_else(|| Actor::new(Actor::ITSELF).ok());
    HoldView { lease: entry.lease, limit: entry.limit.clone(), amount: entry.amount, actor }
}

fn settle(
    book: &Book,
    entry: &SettleEntry,
    account: AccountId,
) -> Option<(earmark_core::UnixMs, EntryKind, Vec<EntryChange>)> {
    let SettleEntry { hold: ref held_for, held, revenue, paid, debt, uncollected, reason, ref labels } = *entry;
    // The payer may be the revenue account.
    let mut amount = 0_i128;
    let mut change_held = 0_i128;
    if account == held_for.account {
        amount = amount.wrapping_add(held.into()).wrapping_sub(paid.into());
        change_held = change_held.wrapping_sub(held.into());
    }
    if account == revenue {
        amount = amount.wrapping_add(paid.into());
    }
    let change = change(book, (account, held_for.asset), amount, change_held)?;
    let what = EntryKind::Settle { hold: hold(held_for), paid, debt, uncollected, reason, labels: labels.clone() };
    Some((held_for.at.wall, what, vec![change]))
}

fn transaction(record: &Transaction, name: &AccountName) -> EntryKind {
    let memos = record.operations.iter().filter_map(|operation| memo(operation, name));
    EntryKind::Transaction {
        id: record.id.clone(),
        receipt: Arc::clone(&record.receipt),
        memos: memos.filter(|memo| !memo.is_empty()).map(str::to_owned).collect(),
    }
}

/// The memo of an operation on this account, if it is one.
fn memo<'a>(operation: &'a Operation, name: &AccountName) -> Option<&'a str> {
    match operation {
        Operation::Issue { account, memo, .. } | Operation::Retire { account, memo, .. } => {
            (account == name).then_some(memo)
        }
        Operation::Transfer { from, to, memo, .. } => (from == name || to == name).then_some(memo),
        Operation::PutLimit { .. }
        | Operation::DeleteLimit { .. }
        | Operation::OpenVault { .. }
        | Operation::DeleteVault { .. }
        | Operation::RetireClient { .. }
        | Operation::OpenAccount { .. }
        | Operation::SetPlan { .. }
        | Operation::FreezeAccount { .. }
        | Operation::UnfreezeAccount { .. }
        | Operation::CloseAccount { .. } => None,
    }
}
