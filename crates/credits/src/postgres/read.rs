//! Reads of entries, postings and records.

use std::sync::Arc;

use earmark_core::{AssetName, UnixMs};
use sqlx::postgres::PgRow;
use sqlx::{Postgres, Row};

use super::Inner;
use super::error::unread;
use crate::document;
use crate::id::{GateId, OwnerId, ReservationId};
use crate::model::{
    AccountChange, AccountKey, Entry, LeaseKey, Posting, PostingState, StoredEntry, StoredRecord, VaultKey,
};
use crate::sql::{PostingRow, RecordRow, count, home, limit, naming, parse, records, signed, time};
use crate::store::{
    CHANGES_SEEN_MAX, DueQuery, Filter, FindRecord, RecordPage, Records, StaleOwners, StoreError,
};

/// What a column of a row holds.
pub(super) fn get<T>(row: &PgRow, column: &'static str) -> Result<T, StoreError>
where
    T: for<'a> sqlx::Decode<'a, Postgres> + sqlx::Type<Postgres>,
{
    row.try_get(column).map_err(unread)
}

macro_rules! entry_sql {
    ($from:literal) => {
        concat!(
            "select e.namespace, e.vault, e.number, e.gate, (extract(epoch from e.at) * 1000)::bigint as at_ms,
                e.body::text as body, c.account, c.asset, c.amount::text as amount, c.held::text as held ",
            $from
        )
    };
}

macro_rules! posting_sql {
    ($rest:literal) => {
        concat!(
            "select id, namespace, vault, account, asset, amount::text as amount, lease, limit_key,
                (extract(epoch from ends_at) * 1000)::bigint as ends_at_ms, state, reservation_id from postings ",
            $rest
        )
    };
}

macro_rules! record_sql {
    ($rest:literal) => {
        concat!(
            "select gate, reservation_id, owner, phase, lease_namespace, lease,
                (extract(epoch from begun_at) * 1000)::bigint as begun_at_ms, plan::text as plan from sagas ",
            $rest
        )
    };
}

pub(super) const ENTRIES: &str = entry_sql!(
    "from entries e left join changes c using (namespace, vault, number)
     where e.gate = $1 order by e.place, c.account, c.asset"
);
pub(super) const LEASE: &str = entry_sql!(
    "from entries e left join changes c using (namespace, vault, number)
     where e.namespace = $1 and e.lease = $2 order by e.vault, e.number, c.account, c.asset"
);
// Numbers first, then each by itself: a join of the whole may be planned as one of everything with everything, while the
// tables are new and nobody has analyzed them.
pub(super) const HISTORY: &str = entry_sql!(
    "from (select distinct number from changes
         where namespace = $1 and vault = $2 and account = $3 and number > $4 order by number limit $5) page
     cross join lateral (select * from entries
         where namespace = $1 and vault = $2 and number = page.number offset 0) e
     cross join lateral (select * from changes
         where namespace = $1 and vault = $2 and number = page.number offset 0) c
     order by e.number, c.account, c.asset"
);
pub(super) const ASSETS_OF: &str = "select distinct asset from (
         (select asset from changes where namespace = $1 and vault = $2 and account = $3 order by number limit $4)
         union all
         (select asset from changes where namespace = $1 and vault = $2 and account = $3
          order by number desc limit $4)) ends order by asset";
pub(super) const HELD: &str =
    posting_sql!("where namespace = $1 and lease = $2 and lease is not null and state <> 'inactive'");
pub(super) const DUE: &str = posting_sql!(
    "where lease is not null and state = 'active' and ends_at <= 'epoch'::timestamptz + $1 * interval '1 millisecond'
     and (ends_at, id) > ('epoch'::timestamptz + $3 * interval '1 millisecond', $4) order by ends_at, id limit $2"
);
pub(super) const DUE_OF: &str = posting_sql!(
    "where namespace = $5 and vault = $6 and account = $7 and lease is not null and state <> 'inactive'
     and state = 'active' and ends_at <= 'epoch'::timestamptz + $1 * interval '1 millisecond'
     and (ends_at, id) > ('epoch'::timestamptz + $3 * interval '1 millisecond', $4)
     order by ends_at, id limit $2"
);

impl Inner {
    pub(super) async fn entries(&self, gate: GateId) -> Result<Vec<StoredEntry>, StoreError> {
        stored(self.rows(sqlx::query(ENTRIES).bind(gate.to_string())).await?)
    }

    pub(super) async fn lease(&self, lease: &LeaseKey) -> Result<Vec<StoredEntry>, StoreError> {
        let query = sqlx::query(LEASE).bind(lease.namespace.as_str()).bind(lease.lease.to_string());
        stored(self.rows(query).await?)
    }

    pub(super) async fn history(
        &self,
        account: &AccountKey,
        after: u64,
        max: usize,
    ) -> Result<Vec<StoredEntry>, StoreError> {
        let query = sqlx::query(HISTORY)
            .bind(account.home.namespace.as_str())
            .bind(account.home.vault.as_str())
            .bind(account.account.as_str())
            .bind(signed(after))
            .bind(limit(max));
        stored(self.rows(query).await?)
    }

    pub(super) async fn assets_of(&self, account: &AccountKey) -> Result<Vec<AssetName>, StoreError> {
        let query = sqlx::query(ASSETS_OF)
            .bind(account.home.namespace.as_str())
            .bind(account.home.vault.as_str())
            .bind(account.account.as_str())
            .bind(limit(CHANGES_SEEN_MAX));
        let found = self.rows(query).await?;
        found.iter().map(|row| parse("asset", &get::<String>(row, "asset")?)).collect()
    }

    pub(super) async fn held(&self, lease: &LeaseKey) -> Result<Vec<(Posting, PostingState)>, StoreError> {
        let query = sqlx::query(HELD).bind(lease.namespace.as_str()).bind(lease.lease.to_string());
        self.rows(query).await?.iter().map(posting).collect()
    }

    pub(super) async fn due(&self, due: &DueQuery, max: usize) -> Result<Vec<Posting>, StoreError> {
        let now = signed(due.now.get());
        let (ends_at, id) = (signed(due.after.ends_at.get()), due.after.id.to_string());
        let bound = |sql: &'static str| sqlx::query(sql).bind(now).bind(limit(max)).bind(ends_at).bind(id);
        let found = match &due.account {
            None => self.rows(bound(DUE)).await?,
            Some(key) => {
                let query = bound(DUE_OF);
                let (namespace, vault) = (key.home.namespace.as_str(), key.home.vault.as_str());
                self.rows(query.bind(namespace).bind(vault).bind(key.account.as_str())).await?
            }
        };
        found.iter().map(|row| posting(row).map(|(posting, _)| posting)).collect()
    }

    pub(super) async fn record(&self, find: &FindRecord) -> Result<Option<StoredRecord>, StoreError> {
        let found = match find {
            FindRecord::Gate(gate) => {
                let sql = record_sql!("where gate = $1");
                self.rows(sqlx::query(sql).bind(gate.to_string())).await?
            }
            FindRecord::Client(key) => {
                let sql = record_sql!("where client_namespace = $1 and client_vault = $2 and client = $3");
                let (namespace, vault) = (key.home.namespace.as_str(), key.home.vault.as_str());
                self.rows(sqlx::query(sql).bind(namespace).bind(vault).bind(key.client.as_str())).await?
            }
        };
        found.first().map(stored_record).transpose()
    }

    pub(super) async fn records(&self, filter: &Filter, page: &RecordPage) -> Result<Records, StoreError> {
        let RecordPage { after, max } = page;
        match filter {
            Filter::OwnedBy(owner) => {
                let sql = record_sql!(
                    "where owner = $4 and (begun_at, reservation_id)
                         > ('epoch'::timestamptz + $1 * interval '1 millisecond', $2)
                     order by begun_at, reservation_id limit $3"
                );
                let query = sqlx::query(sql).bind(after.begun_at_ms).bind(&after.rid).bind(limit(*max));
                record_rows(&self.rows(query.bind(owner.to_string())).await?, *max)
            }
            Filter::Expired { except, since } => {
                let sql = record_sql!(
                    "where owner <> $4 and not exists (
                         select from owners o where o.owner = sagas.owner
                         and o.heard_at >= 'epoch'::timestamptz + $5 * interval '1 millisecond')
                     and (begun_at, reservation_id)
                         > ('epoch'::timestamptz + $1 * interval '1 millisecond', $2)
                     order by begun_at, reservation_id limit $3"
                );
                let query = sqlx::query(sql).bind(after.begun_at_ms).bind(&after.rid).bind(limit(*max));
                let query = query.bind(except.to_string()).bind(signed(since.get()));
                record_rows(&self.rows(query).await?, *max)
            }
            Filter::Touching(account) => {
                // The name as it stands in the JSON finds all that touch it, and others that are left out then.
                let sql = record_sql!("where strpos(plan::text, $1) > 0 order by begun_at, reservation_id");
                let query = sqlx::query(sql).bind(format!("\"{}\"", account.account));
                Ok(naming(record_rows(&self.rows(query).await?, usize::MAX)?, account, *max))
            }
        }
    }

    pub(super) async fn stale_owners(
        &self,
        gone: StaleOwners,
        max: usize,
    ) -> Result<Vec<OwnerId>, StoreError> {
        let sql = "select owner from owners o
            where o.heard_at > 'epoch'::timestamptz + $1 * interval '1 millisecond'
                or (o.heard_at < 'epoch'::timestamptz + $2 * interval '1 millisecond'
                    and not exists (select from sagas s where s.owner = o.owner))
            order by owner limit $3";
        let (ahead_of, expired_since) = (signed(gone.ahead_of.get()), signed(gone.expired_since.get()));
        let found = self.rows(sqlx::query(sql).bind(ahead_of).bind(expired_since).bind(limit(max))).await?;
        found.iter().map(|row| parse("owner", &get::<String>(row, "owner")?)).collect()
    }

    pub(super) async fn orphans(&self, max: usize) -> Result<Vec<ReservationId>, StoreError> {
        let sql = "with taken (rid) as (
                select reservation_id from postings where state = 'pending'
                union select claimed_by from accounts where claimed_by is not null)
            select rid from taken where not exists (select from sagas where reservation_id = rid)
            order by rid limit $1";
        let found = self.rows(sqlx::query(sql).bind(limit(max))).await?;
        found.iter().map(|row| parse("reservation_id", &get::<String>(row, "rid")?)).collect()
    }

    pub(super) async fn clients(&self) -> Result<u64, StoreError> {
        let found = self.rows(sqlx::query("select count(*) as found from clients")).await?;
        found.first().map_or(Ok(0), |row| count("clients", get(row, "found")?))
    }

    pub(super) async fn time(&self) -> Result<Option<UnixMs>, StoreError> {
        let sql = "select (extract(epoch from clock_timestamp()) * 1000)::bigint as now_ms";
        // It is asked for with every sign of life.
        let found = self.rows_by(&self.writing, sqlx::query(sql)).await?;
        found.first().map(|row| time("now_ms", get(row, "now_ms")?)).transpose()
    }
}

/// Entries, of which each has a row per change, or one row if it has no change.
fn stored(rows: Vec<PgRow>) -> Result<Vec<StoredEntry>, StoreError> {
    let mut found: Vec<(u64, GateId, Entry)> = Vec::new();
    for row in rows {
        let (namespace, vault): (&str, &str) =
            (row.try_get("namespace").map_err(unread)?, row.try_get("vault").map_err(unread)?);
        let (number, home): (u64, VaultKey) =
            (count("number", get(&row, "number")?)?, home(namespace, vault)?);
        let is_next = found.last().is_none_or(|(last, _, entry)| *last != number || entry.home != home);
        if is_next {
            let (gate, body): (String, String) = (get(&row, "gate")?, get(&row, "body")?);
            let at = time("at", get(&row, "at_ms")?)?;
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

fn posting(row: &PgRow) -> Result<(Posting, PostingState), StoreError> {
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

fn stored_record(row: &PgRow) -> Result<StoredRecord, StoreError> {
    record_row(row)?.record()
}

fn record_rows(rows: &[PgRow], max: usize) -> Result<Records, StoreError> {
    let rows: Result<Vec<RecordRow>, StoreError> = rows.iter().map(record_row).collect();
    Ok(records(rows?, max))
}

fn record_row(row: &PgRow) -> Result<RecordRow, StoreError> {
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
