//! Rows of the database as the types of the model.

use std::sync::Arc;

use earmark_admission::CreditCursor;
use earmark_core::{AccountStatus, GrantTerms, LeaseId, Moment, Overdraft};

use super::database::Row;
use super::{corrupt, parse, time};
use crate::document;
use crate::id::{GateId, ReservationId};
use crate::model::{
    Account, AccountChange, AccountKey, ClaimKind, Client, Entry, EntryBody, GrantShare, LeaseKey, LivePosting, Phase,
    Plan, Posting, PostingHold, PostingState, Record, SagaToken, StoredEntry, StoredRecord, VaultKey,
};
use crate::store::{
    AssetSums, LoggedTransaction, PostingSet, RecordCursor, Records, StoreError, Surveyed, Transactions, UnreadRecord,
};

fn home(row: &impl Row) -> Result<VaultKey, StoreError> {
    Ok(VaultKey { namespace: row.parse("namespace")?, vault: row.parse("vault")? })
}

/// Entries, each with a row per effect, or a single row if it has none.
pub(super) fn entries(rows: &[impl Row]) -> Result<Vec<StoredEntry>, StoreError> {
    let mut found: Vec<(u64, GateId, Entry)> = Vec::new();
    for row in rows {
        let (number, home) = (row.count("number")?, home(row)?);
        let is_next = found.last().is_none_or(|(last, _, entry)| *last != number || entry.home != home);
        if is_next {
            let (log, wall) = (time("at_ms", row.int("at_ms")?)?, time("wall_ms", row.int("wall_ms")?)?);
            let at = Moment { log, wall };
            let body = document::from_json(&row.text("body")?)?;
            found.push((number, row.parse("gate")?, Entry { home, at, body, changes: Vec::new() }));
        }
        let account = row.text_or_null("account")?;
        if let (Some(account), Some((_, _, entry))) = (account, found.last_mut()) {
            entry.changes.push(AccountChange {
                account: parse("account", &account)?,
                asset: row.parse("asset")?,
                amount: row.parse("amount")?,
                held: row.parse("held")?,
            });
        }
    }
    let found = found.into_iter();
    Ok(found.map(|(number, gate, entry)| StoredEntry { number, gate, entry: Arc::new(entry) }).collect())
}

pub(super) fn posting(row: &impl Row) -> Result<(Posting, PostingState), StoreError> {
    let hold = match (row.text_or_null("lease")?, row.text_or_null("limit_key")?, row.int_or_null("ends_at_ms")?) {
        (None, None, None) => None,
        (Some(lease), Some(limit), Some(ends_at_ms)) => Some(PostingHold {
            lease: parse("lease", &lease)?,
            limit: parse("limit_key", &limit)?,
            ends_at: time("ends_at_ms", ends_at_ms)?,
            used: row.parse("used")?,
            kept: row.parse("kept")?,
            extension: u32::try_from(row.count("extension")?).map_err(|_| corrupt("extension", "too large"))?,
            shares: shares(row)?,
        }),
        _ => return Err(corrupt("lease", "half a hold")),
    };
    let posting = Posting {
        id: row.parse("id")?,
        account: AccountKey { home: home(row)?, account: row.parse("account")? },
        asset: row.parse("asset")?,
        amount: row.parse("amount")?,
        terms: terms(row, ["priority", "expires_at_ms"])?,
        hold,
        plan: row.text_or_null("plan")?.map(|plan| document::from_json(&plan)).transpose()?,
    };
    let rid = || row.parse::<ReservationId>("reservation_id");
    let state = match row.text("state")?.as_str() {
        "active" => PostingState::Active,
        "pending" => PostingState::Pending(rid()?),
        "inactive" => PostingState::Inactive(rid()?),
        other => return Err(corrupt("state", other)),
    };
    Ok((posting, state))
}

/// The terms of a posting. Plain credit has no priority.
fn terms(row: &impl Row, [priority, expires_at]: [&'static str; 2]) -> Result<GrantTerms, StoreError> {
    let Some(found) = row.int_or_null(priority)? else { return Ok(GrantTerms::PLAIN) };
    let expires_at = row.int_or_null(expires_at)?.map(|ms| time(expires_at, ms)).transpose()?;
    let found = u8::try_from(found).map_err(|_| corrupt(priority, &found.to_string()))?;
    Ok(GrantTerms::new(found, expires_at))
}

fn shares(row: &impl Row) -> Result<Vec<GrantShare>, StoreError> {
    let Some(shares) = row.text_or_null("shares")? else { return Ok(Vec::new()) };
    serde_json::from_str(&shares).map_err(|_| corrupt("shares", &shares))
}

pub(super) fn record(row: &impl Row) -> Result<StoredRecord, StoreError> {
    let phase = match row.text("phase")?.as_str() {
        "reserving" => Phase::Reserving,
        "finalizing" => Phase::Finalizing,
        "releasing" => Phase::Releasing,
        other => return Err(corrupt("phase", other)),
    };
    let token = SagaToken { gate: row.parse("gate")?, rid: row.parse("reservation_id")?, owner: row.parse("owner")? };
    let lease = match (row.text_or_null("lease_namespace")?, row.text_or_null("lease")?) {
        (Some(namespace), Some(lease)) => {
            let lease: LeaseId = parse("lease", &lease)?;
            Some(LeaseKey { namespace: parse("lease_namespace", &namespace)?, lease })
        }
        _ => None,
    };
    let begun_at = time("begun_at_ms", row.int("begun_at_ms")?)?;
    let plan = document::from_json::<Plan>(&row.text("plan")?)?;
    Ok(StoredRecord { record: Record { token, lease, begun_at, plan: plan.into() }, phase })
}

/// A page of saga records, with the unreadable ones apart.
pub(super) fn records(rows: &[impl Row], max: usize) -> Result<Records, StoreError> {
    let mut records = Records::default();
    for row in rows {
        match record(row) {
            Ok(stored) => records.found.push(stored),
            Err(why) => records.unread.push(UnreadRecord { gate: row.text("gate")?, why }),
        }
    }
    if let Some(last) = rows.last().filter(|_| rows.len() >= max) {
        let (begun_at_ms, rid) = (last.int("begun_at_ms")?, last.text("reservation_id")?);
        records.next = Some(RecordCursor { begun_at_ms, rid });
    }
    Ok(records)
}

/// A page of transactions behind a cursor. Rows of other namespaces have no body.
pub(super) fn transactions(rows: &[impl Row], after: CreditCursor, max: usize) -> Result<Transactions, StoreError> {
    let (mut place, mut found) = (after, Vec::new());
    for row in rows {
        let commit = row.parse("commit_id")?;
        let given = if commit == place.commit { place.given.saturating_add(1) } else { 1 };
        place = CreditCursor { commit, given };
        let Some(body) = row.text_or_null("body")? else { continue };
        let EntryBody::Transaction(transaction) = document::from_json(&body)? else {
            return Err(corrupt("body", &body));
        };
        let (home, number, at) = (home(row)?, row.count("number")?, time("wall_ms", row.int("wall_ms")?)?);
        found.push(LoggedTransaction { place, home, number, at, transaction });
    }
    Ok(Transactions { found, next: (rows.len() >= max).then_some(place) })
}

/// Adds a row of a survey to its result.
pub(super) fn add_surveyed(found: &mut Surveyed, row: &impl Row) -> Result<(), StoreError> {
    let place = usize::try_from(row.int("place")?).unwrap_or(usize::MAX);
    match row.text("part")?.as_str() {
        "account" => {
            if let Some(slot) = found.accounts.get_mut(place) {
                *slot = Some(account(row)?);
            }
        }
        "client" => {
            let owner = row.text_or_null("b")?.map(|owner| parse("owner", &owner)).transpose()?;
            found.client = Some(Client { last_sequence: row.parse("a")?, owner });
        }
        "asset" => {
            if let Some(slot) = found.assets.get_mut(place) {
                *slot = Some(AssetSums { issued: row.parse("a")?, retired: row.parse("b")?, expired: row.parse("c")? });
            }
        }
        _ => {
            if let Some(slot) = found.posting_sets.get_mut(place) {
                *slot = posting_set(row)?;
            }
        }
    }
    Ok(())
}

/// A posting set: debts, grants, the largest and the smallest postings as lists, and the number of active ones.
fn posting_set(row: &impl Row) -> Result<PostingSet, StoreError> {
    let mut set = PostingSet { active: row.parse("e")?, ..PostingSet::default() };
    live_postings(row, "a", |posting| set.add_owed(posting))?;
    live_postings(row, "b", |posting| set.add_grant(posting))?;
    live_postings(row, "c", |posting| set.large.push(posting))?;
    live_postings(row, "d", |posting| set.small.push(posting))?;
    // A database may join the items of a list in any order.
    set.grants.sort_by_key(|posting| (posting.terms, posting.id));
    set.large.sort_by_key(|posting| std::cmp::Reverse((posting.amount, posting.id)));
    set.small.sort_by_key(|posting| (posting.amount, posting.id));
    Ok(set)
}

/// The postings of a list, with a comma between two. Each has its id and amount, the saga that reserved it, its priority
/// and its expiry, with a blank between two. The last three may be empty or missing.
fn live_postings(row: &impl Row, column: &'static str, mut add: impl FnMut(LivePosting)) -> Result<(), StoreError> {
    let Some(list) = row.text_or_null(column)? else { return Ok(()) };
    for item in list.split(',') {
        let mut fields = item.split(' ');
        let mut field = || fields.next().filter(|field| !field.is_empty());
        let (Some(id), Some(amount)) = (field(), field()) else { return Err(corrupt(column, item)) };
        let (rid, priority, expires_at) = (field(), field(), field());
        let terms = match priority {
            None => GrantTerms::PLAIN,
            Some(priority) => {
                let expires_at = expires_at.map(|ms| parse("expires_at_ms", ms)).transpose()?;
                let expires_at = expires_at.map(|ms| time("expires_at_ms", ms)).transpose()?;
                GrantTerms::new(parse("priority", priority)?, expires_at)
            }
        };
        let reserved_by = rid.map(|rid| parse("reservation_id", rid)).transpose()?;
        add(LivePosting { id: parse("id", id)?, amount: parse("amount", amount)?, terms, reserved_by });
    }
    Ok(())
}

pub(super) fn standing(word: &str) -> Result<AccountStatus, StoreError> {
    match word {
        "open" => Ok(AccountStatus::Open),
        "frozen" => Ok(AccountStatus::Frozen),
        "closed" => Ok(AccountStatus::Closed),
        other => Err(corrupt("standing", other)),
    }
}

/// An account in a survey: standing, overdraft, claimed by, claim.
fn account(row: &impl Row) -> Result<Account, StoreError> {
    let standing = standing(&row.text("a")?)?;
    let overdraft = match row.text("b")?.as_str() {
        "deny" => Overdraft::Deny,
        "allow" => Overdraft::Allow,
        limit => Overdraft::Limit(parse("overdraft", limit)?),
    };
    let claim = match (row.text_or_null("c")?, row.text_or_null("d")?.as_deref()) {
        (None, None) => None,
        (Some(rid), Some("opening")) => Some((parse("claimed_by", &rid)?, ClaimKind::Opening)),
        (Some(rid), Some("changing")) => Some((parse("claimed_by", &rid)?, ClaimKind::Changing)),
        (Some(rid), Some("closing")) => Some((parse("claimed_by", &rid)?, ClaimKind::Closing)),
        (_, other) => return Err(corrupt("claim", other.unwrap_or("null"))),
    };
    Ok(Account { standing, overdraft, claim })
}

/// A sum, saturated at 128 bits.
pub(super) fn saturated(text: &str) -> i128 {
    let bound = if text.starts_with('-') { i128::MIN } else { i128::MAX };
    text.parse().unwrap_or(bound)
}
