//! Reads of entries, postings and records.

use std::sync::Arc;

use earmark_core::AssetName;
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::error::refused;
use super::script::{Script, Value, values};
use crate::document;
use crate::id::{GateId, OwnerId, ReservationId};
use crate::model::{
    AccountChange, AccountKey, Entry, LeaseKey, Posting, PostingState, StoredEntry, StoredRecord, VaultKey,
};
use crate::sql::{PostingRow, RecordRow, count, home, limit, naming, parse, signed, time};
use crate::store::{
    CHANGES_SEEN_MAX, DueQuery, Filter, FindRecord, RecordPage, Records, StaleOwners, StoreError,
};

const ENTRIES: &str =
    "select e.namespace, e.vault, e.number, e.gate, e.at_ms, e.body, c.account, c.asset, c.amount, c.held
    from entries e left join changes c using (namespace, vault, number)
    where e.gate = ? order by e.place, c.account, c.asset";

// SQLite, left to itself, goes through all entries of the namespace, which stand in the order that is asked for.
const LEASE: &str =
    "select e.namespace, e.vault, e.number, e.gate, e.at_ms, e.body, c.account, c.asset, c.amount, c.held
    from entries e indexed by entries_lease left join changes c using (namespace, vault, number)
    where e.namespace = ? and e.lease = ? order by e.vault, e.number, c.account, c.asset";

const HISTORY: &str = "with page as (
    select distinct namespace, vault, number from changes
    where namespace = ? and vault = ? and account = ? and number > ? order by number limit ?)
    select e.namespace, e.vault, e.number, e.gate, e.at_ms, e.body, c.account, c.asset, c.amount, c.held
    from page join entries e using (namespace, vault, number) join changes c using (namespace, vault, number)
    order by e.number, c.account, c.asset";

const ASSETS_OF: &str = "select distinct asset from (
    select * from (select asset from changes where namespace = ? and vault = ? and account = ?
        order by number limit ?)
    union all
    select * from (select asset from changes where namespace = ? and vault = ? and account = ?
        order by number desc limit ?)) order by asset";

const HELD: &str =
    "select * from postings where namespace = ? and lease = ? and lease is not null and state <> 'inactive'";

const DUE: &str = "select * from postings where lease is not null and state = 'active' and ends_at_ms <= ?
    and (ends_at_ms, id) > (?, ?) order by ends_at_ms, id limit ?";

const DUE_OF: &str =
    "select * from postings where namespace = ? and vault = ? and account = ? and ends_at_ms <= ?
    and (ends_at_ms, id) > (?, ?) and lease is not null and state <> 'inactive' and state = 'active'
    order by ends_at_ms, id limit ?";

const ORPHANS: &str = "with taken (rid) as (
    select reservation_id from postings where state = 'pending'
    union select claimed_by from accounts where claimed_by is not null)
    select rid from taken where not exists (select 1 from sagas where reservation_id = rid)
    order by rid limit ?";

/// What reads the tables that grow for ever.
#[cfg(test)]
pub(super) const QUERIES: [&str; 8] = [ENTRIES, LEASE, HISTORY, ASSETS_OF, HELD, DUE, DUE_OF, ORPHANS];

/// Runs one statement.
pub(super) async fn rows<const N: usize>(
    connection: &mut SqliteConnection,
    sql: &'static str,
    values: [Value; N],
) -> Result<Vec<SqliteRow>, StoreError> {
    let mut script = Script::default();
    script.push(sql, values);
    script.run(connection).await.map_err(refused)
}

/// What a column of a row holds.
pub(super) fn get<T>(row: &SqliteRow, column: &'static str) -> Result<T, StoreError>
where
    T: for<'a> sqlx::Decode<'a, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
{
    row.try_get(column).map_err(refused)
}

pub(super) async fn entries(
    connection: &mut SqliteConnection,
    gate: GateId,
) -> Result<Vec<StoredEntry>, StoreError> {
    stored(rows(connection, ENTRIES, values![gate.to_string()]).await?)
}

pub(super) async fn lease(
    connection: &mut SqliteConnection,
    lease: &LeaseKey,
) -> Result<Vec<StoredEntry>, StoreError> {
    stored(rows(connection, LEASE, values![lease.namespace.as_str(), lease.lease.to_string()]).await?)
}

pub(super) async fn history(
    connection: &mut SqliteConnection,
    account: &AccountKey,
    after: u64,
    max: usize,
) -> Result<Vec<StoredEntry>, StoreError> {
    let (namespace, vault) = (account.home.namespace.as_str(), account.home.vault.as_str());
    let values = values![namespace, vault, account.account.as_str(), signed(after), limit(max)];
    stored(rows(connection, HISTORY, values).await?)
}

pub(super) async fn assets_of(
    connection: &mut SqliteConnection,
    account: &AccountKey,
) -> Result<Vec<AssetName>, StoreError> {
    let (namespace, vault) = (account.home.namespace.as_str(), account.home.vault.as_str());
    let (name, max) = (account.account.as_str(), limit(CHANGES_SEEN_MAX));
    let values = values![namespace, vault, name, max, namespace, vault, name, max];
    let found = rows(connection, ASSETS_OF, values).await?;
    found.iter().map(|row| parse("asset", &get::<String>(row, "asset")?)).collect()
}

/// Entries, of which each has a row per change, or one row if it has no change.
fn stored(rows: Vec<SqliteRow>) -> Result<Vec<StoredEntry>, StoreError> {
    let mut found: Vec<(u64, GateId, Entry)> = Vec::new();
    for row in rows {
        let (namespace, vault): (String, String) = (get(&row, "namespace")?, get(&row, "vault")?);
        let (number, home): (u64, VaultKey) =
            (count("number", get(&row, "number")?)?, home(&namespace, &vault)?);
        let is_next = found.last().is_none_or(|(last, _, entry)| *last != number || entry.home != home);
        if is_next {
            let (gate, body): (String, String) = (get(&row, "gate")?, get(&row, "body")?);
            let at = time("at_ms", get(&row, "at_ms")?)?;
            let body = document::body_from_json(&body)?;
            found.push((number, parse("gate", &gate)?, Entry { home, at, body, changes: Vec::new() }));
        }
        let account: Option<String> = get(&row, "account")?;
        if let (Some(account), Some((_, _, entry))) = (account, found.last_mut()) {
            let asset: String = get(&row, "asset")?;
            let (amount, held): (String, String) = (get(&row, "amount")?, get(&row, "held")?);
            entry.changes.push(AccountChange {
                account: parse("account", &account)?,
                asset: parse("asset", &asset)?,
                amount: parse("amount", &amount)?,
                held: parse("held", &held)?,
            });
        }
    }
    let found = found.into_iter();
    Ok(found.map(|(number, gate, entry)| StoredEntry { number, gate, entry: Arc::new(entry) }).collect())
}

fn posting(row: &SqliteRow) -> Result<(Posting, PostingState), StoreError> {
    let row = PostingRow {
        id: get(row, "id")?,
        namespace: get(row, "namespace")?,
        vault: get(row, "vault")?,
        account: get(row, "account")?,
        asset: get(row, "asset")?,
        amount: get(row, "amount")?,
        lease: get(row, "lease")?,
        limit_key: get(row, "limit_key")?,
        ends_at_ms: get(row, "ends_at_ms")?,
        state: get(row, "state")?,
        reservation_id: get(row, "reservation_id")?,
    };
    row.posting()
}

pub(super) async fn held(
    connection: &mut SqliteConnection,
    lease: &LeaseKey,
) -> Result<Vec<(Posting, PostingState)>, StoreError> {
    let values = values![lease.namespace.as_str(), lease.lease.to_string()];
    rows(connection, HELD, values).await?.iter().map(posting).collect()
}

pub(super) async fn due(
    connection: &mut SqliteConnection,
    due: &DueQuery,
    max: usize,
) -> Result<Vec<Posting>, StoreError> {
    let now = signed(due.now.get());
    let (ends_at, id) = (signed(due.after.ends_at.get()), due.after.id.to_string());
    let found = match &due.account {
        None => rows(connection, DUE, values![now, ends_at, id, limit(max)]).await?,
        Some(key) => {
            let (namespace, vault) = (key.home.namespace.as_str(), key.home.vault.as_str());
            let values = values![namespace, vault, key.account.as_str(), now, ends_at, id, limit(max)];
            rows(connection, DUE_OF, values).await?
        }
    };
    found.iter().map(|row| posting(row).map(|(posting, _)| posting)).collect()
}

fn stored_record(row: &SqliteRow) -> Result<StoredRecord, StoreError> {
    record_row(row)?.record()
}

fn record_rows(rows: &[SqliteRow], max: usize) -> Result<Records, StoreError> {
    let rows: Result<Vec<RecordRow>, StoreError> = rows.iter().map(record_row).collect();
    Ok(crate::sql::records(rows?, max))
}

fn record_row(row: &SqliteRow) -> Result<RecordRow, StoreError> {
    Ok(RecordRow {
        gate: get(row, "gate")?,
        reservation_id: get(row, "reservation_id")?,
        owner: get(row, "owner")?,
        phase: get(row, "phase")?,
        lease_namespace: get(row, "lease_namespace")?,
        lease: get(row, "lease")?,
        begun_at_ms: get(row, "begun_at_ms")?,
        plan: get(row, "plan")?,
    })
}

pub(super) async fn record(
    connection: &mut SqliteConnection,
    find: &FindRecord,
) -> Result<Option<StoredRecord>, StoreError> {
    let found = match find {
        FindRecord::Gate(gate) => {
            rows(connection, "select * from sagas where gate = ?", values![gate.to_string()]).await?
        }
        FindRecord::Client(key) => {
            let sql = "select * from sagas where client_namespace = ? and client_vault = ? and client = ?";
            let (namespace, vault) = (key.home.namespace.as_str(), key.home.vault.as_str());
            rows(connection, sql, values![namespace, vault, key.client.as_str()]).await?
        }
    };
    found.first().map(stored_record).transpose()
}

pub(super) async fn records(
    connection: &mut SqliteConnection,
    filter: &Filter,
    page: &RecordPage,
) -> Result<Records, StoreError> {
    let RecordPage { after, max } = page;
    match filter {
        Filter::OwnedBy(owner) => {
            let sql = "select * from sagas where owner = ? and (begun_at_ms, reservation_id) > (?, ?)
                order by begun_at_ms, reservation_id limit ?";
            let values = values![owner.to_string(), after.begun_at_ms, after.rid.clone(), limit(*max)];
            record_rows(&rows(connection, sql, values).await?, *max)
        }
        Filter::Expired { except, since } => {
            let sql = "select * from sagas where owner <> ? and not exists (
                    select 1 from owners where owners.owner = sagas.owner and heard_at_ms >= ?)
                and (begun_at_ms, reservation_id) > (?, ?)
                order by begun_at_ms, reservation_id limit ?";
            let (except, since) = (except.to_string(), signed(since.get()));
            let values = values![except, since, after.begun_at_ms, after.rid.clone(), limit(*max)];
            record_rows(&rows(connection, sql, values).await?, *max)
        }
        Filter::Touching(account) => {
            // The name as it stands in the JSON finds all that touch it, and others that are left out then.
            let sql = "select * from sagas where instr(plan, ?) order by begun_at_ms, reservation_id";
            let word = format!("\"{}\"", account.account);
            let found = rows(connection, sql, values![word]).await?;
            Ok(naming(record_rows(&found, usize::MAX)?, account, *max))
        }
    }
}

pub(super) async fn stale_owners(
    connection: &mut SqliteConnection,
    gone: StaleOwners,
    max: usize,
) -> Result<Vec<OwnerId>, StoreError> {
    let sql = "select owner from owners where heard_at_ms > ?
            or (heard_at_ms < ? and not exists (select 1 from sagas where sagas.owner = owners.owner))
        order by owner limit ?";
    let (ahead_of, expired_since) = (signed(gone.ahead_of.get()), signed(gone.expired_since.get()));
    let found = rows(connection, sql, values![ahead_of, expired_since, limit(max)]).await?;
    found.iter().map(|row| parse("owner", &get::<String>(row, "owner")?)).collect()
}

pub(super) async fn orphans(
    connection: &mut SqliteConnection,
    max: usize,
) -> Result<Vec<ReservationId>, StoreError> {
    let found = rows(connection, ORPHANS, values![limit(max)]).await?;
    found.iter().map(|row| parse("reservation_id", &get::<String>(row, "rid")?)).collect()
}

pub(super) async fn clients(connection: &mut SqliteConnection) -> Result<u64, StoreError> {
    let found = rows(connection, "select count(*) as found from clients", values![]).await?;
    found.first().map_or(Ok(0), |row| count("clients", get(row, "found")?))
}
