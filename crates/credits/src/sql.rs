//! What SQLite and PostgreSQL have in common: the words in the columns, the queues before those who write and survey, and the audit.

pub(crate) mod census;
pub(crate) mod pool;
pub(crate) mod queue;
pub(crate) mod surveys;
pub(crate) mod whole;

use std::str::FromStr;

use earmark_admission::CreditCursor;
use earmark_core::{
    AccountName, AccountStatus, AssetName, LeaseId, NamespaceName, Overdraft, UnixMs, VaultName,
};

use crate::id::ReservationId;
use crate::model::{
    Account, AccountKey, ClaimKind, EntryBody, LeaseKey, Phase, Plan, Posting, PostingHold, PostingState,
    Record, SagaToken, StoredRecord, VaultKey,
};
use crate::store::{LoggedTransaction, RecordCursor, Records, StoreError, Transactions, UnreadRecord};

/// A column holds what Earmark never writes.
pub(crate) fn corrupt(column: &str, found: &str) -> StoreError {
    let start: String = found.chars().take(100).collect();
    StoreError::Corrupt(format!("column {column} has {start:?}"))
}

/// What a column holds.
pub(crate) fn parse<T: FromStr>(column: &'static str, text: &str) -> Result<T, StoreError> {
    text.parse().map_err(|_| corrupt(column, text))
}

/// The count that a column holds.
pub(crate) fn count(column: &'static str, number: i64) -> Result<u64, StoreError> {
    u64::try_from(number).map_err(|_| corrupt(column, &number.to_string()))
}

pub(crate) fn time(column: &'static str, ms: i64) -> Result<UnixMs, StoreError> {
    count(column, ms).map(UnixMs::new)
}

/// A time or a number as a column holds it. Times end long before, and nobody can count that far.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// How many rows to ask for.
pub(crate) fn limit(max: usize) -> i64 {
    i64::try_from(max).unwrap_or(i64::MAX)
}

pub(crate) fn home(namespace: &str, vault: &str) -> Result<VaultKey, StoreError> {
    let namespace: NamespaceName = parse("namespace", namespace)?;
    let vault: VaultName = parse("vault", vault)?;
    Ok(VaultKey { namespace, vault })
}

pub(crate) const fn standing_word(standing: AccountStatus) -> &'static str {
    match standing {
        AccountStatus::Open => "open",
        AccountStatus::Frozen => "frozen",
        AccountStatus::Closed => "closed",
    }
}

pub(crate) const fn overdraft_word(overdraft: Overdraft) -> &'static str {
    match overdraft {
        Overdraft::Deny => "deny",
        Overdraft::Allow => "allow",
    }
}

pub(crate) const fn claim_word(kind: ClaimKind) -> &'static str {
    match kind {
        ClaimKind::Opening => "opening",
        ClaimKind::Changing => "changing",
        ClaimKind::Closing => "closing",
    }
}

/// The columns of an account.
pub(crate) struct AccountRow {
    pub(crate) standing: String,
    pub(crate) overdraft: String,
    pub(crate) claimed_by: Option<String>,
    pub(crate) claim: Option<String>,
}

impl AccountRow {
    pub(crate) fn account(&self) -> Result<Account, StoreError> {
        let standing = match self.standing.as_str() {
            "open" => AccountStatus::Open,
            "frozen" => AccountStatus::Frozen,
            "closed" => AccountStatus::Closed,
            other => return Err(corrupt("standing", other)),
        };
        let overdraft = match self.overdraft.as_str() {
            "deny" => Overdraft::Deny,
            "allow" => Overdraft::Allow,
            other => return Err(corrupt("overdraft", other)),
        };
        let claim = match (&self.claimed_by, self.claim.as_deref()) {
            (None, None) => None,
            (Some(rid), Some("opening")) => Some((parse("claimed_by", rid)?, ClaimKind::Opening)),
            (Some(rid), Some("changing")) => Some((parse("claimed_by", rid)?, ClaimKind::Changing)),
            (Some(rid), Some("closing")) => Some((parse("claimed_by", rid)?, ClaimKind::Closing)),
            (_, other) => return Err(corrupt("claim", other.unwrap_or("nothing"))),
        };
        Ok(Account { standing, overdraft, claim })
    }
}

/// The columns of a posting.
pub(crate) struct PostingRow {
    pub(crate) id: String,
    pub(crate) namespace: String,
    pub(crate) vault: String,
    pub(crate) account: String,
    pub(crate) asset: String,
    pub(crate) amount: String,
    pub(crate) lease: Option<String>,
    pub(crate) limit_key: Option<String>,
    pub(crate) ends_at_ms: Option<i64>,
    pub(crate) state: String,
    pub(crate) reservation_id: Option<String>,
}

impl PostingRow {
    pub(crate) fn posting(&self) -> Result<(Posting, PostingState), StoreError> {
        let account: AccountName = parse("account", &self.account)?;
        let asset: AssetName = parse("asset", &self.asset)?;
        let hold = match (&self.lease, &self.limit_key, self.ends_at_ms) {
            (None, None, None) => None,
            (Some(lease), Some(limit), Some(ends_at_ms)) => Some(PostingHold {
                lease: parse("lease", lease)?,
                limit: parse("limit_key", limit)?,
                ends_at: time("ends_at", ends_at_ms)?,
            }),
            _ => return Err(corrupt("lease", "half a hold")),
        };
        let posting = Posting {
            id: parse("id", &self.id)?,
            account: AccountKey { home: home(&self.namespace, &self.vault)?, account },
            asset,
            amount: parse("amount", &self.amount)?,
            hold,
        };
        let rid = || -> Result<ReservationId, StoreError> {
            parse("reservation_id", self.reservation_id.as_deref().unwrap_or_default())
        };
        let state = match self.state.as_str() {
            "active" => PostingState::Active,
            "pending" => PostingState::Pending(rid()?),
            "inactive" => PostingState::Inactive(rid()?),
            other => return Err(corrupt("state", other)),
        };
        Ok((posting, state))
    }
}

/// The columns of a record.
pub(crate) struct RecordRow {
    pub(crate) gate: String,
    pub(crate) reservation_id: String,
    pub(crate) owner: String,
    pub(crate) phase: String,
    pub(crate) lease_namespace: Option<String>,
    pub(crate) lease: Option<String>,
    pub(crate) begun_at_ms: i64,
    pub(crate) plan: String,
}

impl RecordRow {
    pub(crate) fn record(&self) -> Result<StoredRecord, StoreError> {
        let phase = match self.phase.as_str() {
            "reserving" => Phase::Reserving,
            "finalizing" => Phase::Finalizing,
            "releasing" => Phase::Releasing,
            other => return Err(corrupt("phase", other)),
        };
        let token = SagaToken {
            gate: parse("gate", &self.gate)?,
            rid: parse("reservation_id", &self.reservation_id)?,
            owner: parse("owner", &self.owner)?,
        };
        let lease = match (&self.lease_namespace, &self.lease) {
            (Some(namespace), Some(lease)) => {
                let lease: LeaseId = parse("lease", lease)?;
                Some(LeaseKey { namespace: parse("lease_namespace", namespace)?, lease })
            }
            _ => None,
        };
        let begun_at = time("begun_at", self.begun_at_ms)?;
        let plan: Plan = crate::document::plan_from_json(&self.plan)?;
        Ok(StoredRecord { record: Record { token, lease, begun_at, plan: plan.into() }, phase })
    }
}

/// The columns of a transaction, and its place among all.
pub(crate) struct PlacedRow {
    pub(crate) place: CreditCursor,
    pub(crate) namespace: String,
    pub(crate) vault: String,
    pub(crate) number: u64,
    pub(crate) at_ms: i64,
    /// None if it is of a namespace that was not asked for.
    pub(crate) body: Option<String>,
}

impl PlacedRow {
    fn transaction(&self) -> Result<Option<LoggedTransaction>, StoreError> {
        let Some(body) = &self.body else { return Ok(None) };
        let EntryBody::Transaction(transaction) = crate::document::body_from_json(body)? else {
            return Err(corrupt("body", body));
        };
        let home = home(&self.namespace, &self.vault)?;
        let at = time("at", self.at_ms)?;
        Ok(Some(LoggedTransaction { place: self.place, home, number: self.number, at, transaction }))
    }
}

/// Rows of transactions, as many as were to be looked at or all that are there.
pub(crate) fn placed(rows: Vec<PlacedRow>, max: usize) -> Result<Transactions, StoreError> {
    let next = rows.last().filter(|_| rows.len() >= max).map(|row| row.place);
    let found = rows.iter().filter_map(|row| row.transaction().transpose()).collect::<Result<_, _>>()?;
    Ok(Transactions { found, next })
}

/// Rows of records, those that can be read and those that cannot.
pub(crate) fn records(rows: impl IntoIterator<Item = RecordRow>, max: usize) -> Records {
    let mut records = Records::default();
    let (mut count, mut last) = (0_usize, None);
    for row in rows {
        count = count.saturating_add(1);
        last = Some(RecordCursor { begun_at_ms: row.begun_at_ms, rid: row.reservation_id.clone() });
        match row.record() {
            Ok(stored) => records.found.push(stored),
            Err(why) => records.unread.push(UnreadRecord { gate: row.gate, why }),
        }
    }
    records.next = last.filter(|_| count >= max);
    records
}

/// Of these records those that touch an account, so many at most. What the others touch cannot be told.
pub(crate) fn naming(records: Records, account: &AccountKey, max: usize) -> Records {
    let Records { mut found, unread, .. } = records;
    found.retain(|stored| stored.record.plan.accounts().contains(&account));
    found.truncate(max);
    Records { found, unread, next: None }
}

/// Of each entry of a plan, how many entries of the same vault come after it in the plan.
pub(crate) fn entries_behind(plan: &Plan) -> Vec<u64> {
    let later = |place: usize| {
        let home = &plan.entries.get(place)?.home;
        Some(plan.entries.iter().skip(place.saturating_add(1)).filter(|entry| entry.home == *home).count())
    };
    (0..plan.entries.len()).map(|place| later(place).unwrap_or(0) as u64).collect()
}

/// The vaults that a plan writes entries in, each once, with how many.
pub(crate) fn entries_by_vault(plan: &Plan) -> Vec<(&VaultKey, u64)> {
    let mut vaults: std::collections::BTreeMap<&VaultKey, u64> = std::collections::BTreeMap::new();
    for entry in &plan.entries {
        let count = vaults.entry(&entry.home).or_default();
        *count = count.saturating_add(1);
    }
    vaults.into_iter().collect()
}

/// FNV-1a, by which tests tell whether a text was changed.
#[cfg(test)]
pub(crate) fn checksum(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
