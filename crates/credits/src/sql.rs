//! The common part of the SQLite and PostgreSQL stores.

pub(crate) mod database;
pub(crate) mod pool;
pub(crate) mod queue;
mod rows;
pub(crate) mod store;
pub(crate) mod surveys;
mod worker;

use std::str::FromStr;

use earmark_core::{GrantTerms, Overdraft, UnixMs};

use crate::document;
use crate::model::{AccountPlan, ClaimKind, PostingHold};
use crate::store::StoreError;

/// The schema version that this Earmark creates and reads.
pub(crate) const SCHEMA_VERSION: u64 = 1;

/// Refuses a schema of another version than [`SCHEMA_VERSION`].
pub(crate) fn check_version(found: u64) -> Result<(), StoreError> {
    if found <= SCHEMA_VERSION {
        return Ok(());
    }
    Err(StoreError::Corrupt(format!(
        "its schema has version {found}, and this Earmark knows up to {SCHEMA_VERSION}: use the Earmark that wrote it, \
         or a later one"
    )))
}

/// A column has a value that Earmark never writes.
pub(crate) fn corrupt(column: &str, found: &str) -> StoreError {
    let start: String = found.chars().take(100).collect();
    StoreError::Corrupt(format!("column {column} has {start:?}"))
}

pub(crate) fn parse<T: FromStr>(column: &'static str, text: &str) -> Result<T, StoreError> {
    text.parse().map_err(|_| corrupt(column, text))
}

pub(crate) fn count(column: &'static str, number: i64) -> Result<u64, StoreError> {
    u64::try_from(number).map_err(|_| corrupt(column, &number.to_string()))
}

pub(crate) fn time(column: &'static str, ms: i64) -> Result<UnixMs, StoreError> {
    count(column, ms).map(UnixMs::new)
}

/// A time or a sequence as a column value. Neither reaches 63 bits.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A row limit as a parameter.
pub(crate) fn limit(max: usize) -> i64 {
    i64::try_from(max).unwrap_or(i64::MAX)
}

/// The priority and the expiry of a posting as column values. Plain credit has neither.
pub(crate) fn terms_values(terms: GrantTerms) -> (Option<u8>, Option<i64>) {
    match terms {
        GrantTerms::PLAIN => (None, None),
        terms => (Some(terms.priority()), terms.expires_at().map(|at| signed(at.get()))),
    }
}

/// The plan on a plan mark as a column value.
pub(crate) fn plan_text(plan: Option<&AccountPlan>) -> Option<String> {
    plan.map(document::to_json)
}

/// The shares of a hold as a column value, if it took from grants.
pub(crate) fn shares_text(hold: Option<&PostingHold>) -> Option<String> {
    let shares = hold.map(|hold| &hold.shares).filter(|shares| !shares.is_empty())?;
    serde_json::to_string(shares).ok()
}

/// An overdraft as a column value: a word, or the cap.
pub(crate) fn overdraft_text(overdraft: Overdraft) -> String {
    match overdraft {
        Overdraft::Deny => "deny".to_owned(),
        Overdraft::Allow => "allow".to_owned(),
        Overdraft::Limit(limit) => limit.to_string(),
    }
}

pub(crate) const fn claim_word(kind: ClaimKind) -> &'static str {
    match kind {
        ClaimKind::Opening => "opening",
        ClaimKind::Changing => "changing",
        ClaimKind::Closing => "closing",
    }
}
