//! Transactions of all vaults, in an order in which nothing ever appears before what was read.

use earmark_admission::CreditCursor;
use earmark_core::NamespaceName;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Executor, Row};

use super::Inner;
use super::error::unread;
use super::read::get;
use crate::sql::{PlacedRow, count, limit, parse, placed, signed};
use crate::store::{StoreError, Transactions};

/// What was committed by transactions of PostgreSQL that are all over, so that nobody can come before it any more. The rest of
/// those with the number of the place, then those with larger ones, as many as it takes and all that share the last number:
/// the order within one, by time, is not in the index.
pub(super) const TRANSACTIONS: &str =
    "select page.tx::text as tx, namespace, vault, number, (extract(epoch from at) * 1000)::bigint as at_ms,
        case when $4::text is null or namespace = $4 then body::text end as body
     from (
        (select tx, namespace, vault, number, at, body from entries
         where kind = 'transaction' and tx = $1::text::xid8 and tx < pg_snapshot_xmin(pg_current_snapshot())
         order by at, namespace, vault, number offset $2)
        union all
        (select tx, namespace, vault, number, at, body from entries
         where kind = 'transaction' and tx > $1::text::xid8 and tx < pg_snapshot_xmin(pg_current_snapshot())
         order by tx fetch first ($3) rows with ties)) page
     order by page.tx, page.at, page.namespace, page.vault, page.number limit $3";

impl Inner {
    pub(super) async fn transactions(
        &self,
        namespace: Option<&NamespaceName>,
        after: CreditCursor,
        max: usize,
    ) -> Result<Transactions, StoreError> {
        let query = sqlx::query(TRANSACTIONS)
            .bind(after.commit.to_string())
            .bind(signed(after.given))
            .bind(limit(max))
            .bind(namespace.map(NamespaceName::as_str));
        let rows = self.rows(query).await?;
        let mut place = after;
        let rows = rows.iter().map(|row| {
            let commit = parse("tx", &get::<String>(row, "tx")?)?;
            let given = if commit == place.commit { place.given.saturating_add(1) } else { 1 };
            place = CreditCursor { commit, given };
            placed_row(place, row)
        });
        placed(rows.collect::<Result<_, _>>()?, max)
    }
}

fn placed_row(place: CreditCursor, row: &PgRow) -> Result<PlacedRow, StoreError> {
    Ok(PlacedRow {
        place,
        namespace: get(row, "namespace")?,
        vault: get(row, "vault")?,
        number: count("number", get(row, "number")?)?,
        at_ms: get(row, "at_ms")?,
        body: get(row, "body")?,
    })
}

/// Numbers the transactions anew if they have numbers that this server has not reached: the tables were copied from another.
/// They would not be listed until it has, and what comes now would be listed before them.
pub(super) async fn put_in_order(connection: &mut PgConnection) -> Result<(), StoreError> {
    let sql = "select exists (select from entries where kind = 'transaction'
        and tx >= pg_snapshot_xmax(pg_current_snapshot()))";
    let row = sqlx::query(sql).fetch_one(&mut *connection).await.map_err(unread)?;
    if row.try_get::<bool, _>(0).map_err(unread)? {
        tracing::info!("the tables come from another server: its transactions are numbered anew");
        connection.execute("select order_transactions()").await.map_err(unordered)?;
    }
    Ok(())
}

fn unordered(error: sqlx::Error) -> StoreError {
    match unread(error) {
        StoreError::Refused(why) => StoreError::Refused(format!(
            "the tables come from another server, and order_transactions() failed: {why}; start Earmark once as their owner"
        )),
        other => other,
    }
}
