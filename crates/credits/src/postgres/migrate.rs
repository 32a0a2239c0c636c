//! The schema, version by version.

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection, Row};

use super::error::unread;
use super::log::put_in_order;
use crate::sql::count;
use crate::store::StoreError;

/// What each version adds, the first one first.
pub(super) const VERSIONS: [(&str, &str); 6] = [
    ("rows", include_str!("../../migrations/postgres/0001_rows.sql")),
    ("write", include_str!("../../migrations/postgres/0002_write.sql")),
    ("views", include_str!("../../migrations/postgres/0003_views.sql")),
    ("write_4", include_str!("../../migrations/postgres/0004_write.sql")),
    ("transactions", include_str!("../../migrations/postgres/0005_transactions.sql")),
    ("commit", include_str!("../../migrations/postgres/0006_commit.sql")),
];

/// Any number that other programs are unlikely to lock: "earmark" in letters.
const LOCK: i64 = 0x0065_6172_6d61_726b;

/// Brings a schema up to a version, unless it is there. Two processes that start at once wait for each other. A role that may
/// not create tables can start on a schema that is up to date.
pub(super) async fn migrate(
    connection: &mut PgConnection,
    schema: &str,
    to: usize,
) -> Result<(), StoreError> {
    let mut transaction = connection.begin().await.map_err(unread)?;
    let connection = &mut *transaction;
    // Whoever starts at the same time may be at work for as long as a statement may take.
    sqlx::raw_sql("set local lock_timeout to 0").execute(&mut *connection).await.map_err(unread)?;
    sqlx::query("select pg_advisory_xact_lock($1)")
        .bind(LOCK)
        .execute(&mut *connection)
        .await
        .map_err(unread)?;
    let found = version(connection, schema).await?;
    let known = VERSIONS.len() as u64;
    if found > known {
        return Err(StoreError::Corrupt(format!(
            "its schema has version {found}, and this Earmark knows up to {known}: use the Earmark that wrote it, \
             or a later one"
        )));
    }
    if found == 0 {
        let begin = format!(
            "create schema if not exists \"{schema}\";
             create table if not exists earmark_schema (
                 version integer primary key, what text not null, applied_at timestamptz not null default now());
             comment on table earmark_schema is 'What was done to this schema, and when.'"
        );
        sqlx::raw_sql(AssertSqlSafe(begin)).execute(&mut *connection).await.map_err(unread)?;
    }
    if found < to as u64 {
        // A version may have to go through all that is there. It does not wait for others as long, since everybody else
        // waits behind it.
        let patience = "set local statement_timeout to 0; set local lock_timeout to '10s'";
        sqlx::raw_sql(patience).execute(&mut *connection).await.map_err(unread)?;
    }
    for ((what, sql), version) in VERSIONS.into_iter().zip(1_i32..).take(to) {
        if u64::from(version.unsigned_abs()) <= found {
            continue;
        }
        sqlx::raw_sql(sql).execute(&mut *connection).await.map_err(unread)?;
        sqlx::query("insert into earmark_schema (version, what) values ($1, $2)")
            .bind(version)
            .bind(what)
            .execute(&mut *connection)
            .await
            .map_err(unread)?;
    }
    if to == VERSIONS.len() {
        put_in_order(connection).await?;
    }
    transaction.commit().await.map_err(unread)
}

/// The version of a schema; 0 if there is none.
async fn version(connection: &mut PgConnection, schema: &str) -> Result<u64, StoreError> {
    let row = sqlx::query("select to_regclass($1)::text is not null")
        .bind(format!("\"{schema}\".earmark_schema"))
        .fetch_one(&mut *connection)
        .await
        .map_err(unread)?;
    if !row.try_get::<bool, _>(0).map_err(unread)? {
        return Ok(0);
    }
    let row = sqlx::query("select coalesce(max(version), 0)::bigint from earmark_schema")
        .fetch_one(&mut *connection)
        .await
        .map_err(unread)?;
    count("version", row.try_get(0).map_err(unread)?)
}
