//! The schema.

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection, Executor, Row};

use super::error::read_error;
use crate::sql::{SCHEMA_VERSION, check_version, count};
use crate::store::StoreError;

const SCHEMA: &str = include_str!("../../migrations/postgres/0001_schema.sql");

/// The advisory lock of Earmark: "earmark" in ASCII, a number that other programs are unlikely to use.
const LOCK: i64 = 0x0065_6172_6d61_726b;

/// Creates the schema if it is missing. Processes that start at once wait for each other. A role without the right to
/// create tables can start on an existing schema.
pub(super) async fn migrate(connection: &mut PgConnection, schema: &str) -> Result<(), StoreError> {
    let mut transaction = connection.begin().await.map_err(read_error)?;
    let connection = &mut *transaction;
    // A process that started earlier may hold the lock for a whole statement timeout.
    connection.execute("set local lock_timeout to 0").await.map_err(read_error)?;
    let lock = sqlx::query("select pg_advisory_xact_lock($1)").bind(LOCK);
    lock.execute(&mut *connection).await.map_err(read_error)?;
    let found = version(connection, schema).await?;
    check_version(found)?;
    if found == 0 {
        let create = format!(
            "create schema if not exists \"{schema}\";
             create table earmark_schema (version integer primary key, applied_at timestamptz not null default now());
             comment on table earmark_schema is 'The version of this schema.';
             {SCHEMA}
             insert into earmark_schema (version) values ({SCHEMA_VERSION})"
        );
        sqlx::raw_sql(AssertSqlSafe(create)).execute(&mut *connection).await.map_err(read_error)?;
    }
    order_transactions(connection).await?;
    transaction.commit().await.map_err(read_error)
}

/// The version of the schema; 0 if it does not exist.
async fn version(connection: &mut PgConnection, schema: &str) -> Result<u64, StoreError> {
    let exists = sqlx::query("select to_regclass($1)::text is not null")
        .bind(format!("\"{schema}\".earmark_schema"))
        .fetch_one(&mut *connection)
        .await
        .map_err(read_error)?;
    if !exists.try_get::<bool, _>(0).map_err(read_error)? {
        return Ok(0);
    }
    let version = "select coalesce(max(version), 0)::bigint from earmark_schema";
    let row = sqlx::query(version).fetch_one(&mut *connection).await.map_err(read_error)?;
    count("version", row.try_get(0).map_err(read_error)?)
}

/// Renumbers the transactions if their numbers are ahead of this server, because the tables were copied from another
/// server. Otherwise they would not be listed until this server reaches those numbers, and new transactions would be
/// listed before them.
async fn order_transactions(connection: &mut PgConnection) -> Result<(), StoreError> {
    let sql = "select exists (select from entries where kind = 'transaction'
        and tx >= pg_snapshot_xmax(pg_current_snapshot()))";
    let row = sqlx::query(sql).fetch_one(&mut *connection).await.map_err(read_error)?;
    if row.try_get::<bool, _>(0).map_err(read_error)? {
        tracing::info!("the tables come from another server; renumbering their transactions");
        // Rewriting a long history takes longer than a statement may.
        connection.execute("set local statement_timeout to 0").await.map_err(read_error)?;
        let failed = |error| match read_error(error) {
            StoreError::Refused(why) => StoreError::Refused(format!(
                "the tables come from another server, and order_transactions() failed: {why}; start Earmark once as \
                 their owner"
            )),
            other => other,
        };
        connection.execute("select order_transactions()").await.map_err(failed)?;
    }
    Ok(())
}
