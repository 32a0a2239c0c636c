//! The tables.

use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection, Row};

use super::error::refused;
use crate::sql::{SCHEMA_VERSION, check_version, count, signed};
use crate::store::StoreError;

const SCHEMA: &str = include_str!("../../migrations/sqlite/0001_schema.sql");

/// Creates the tables if they are missing. Processes that start at once wait for each other.
pub(super) async fn migrate(connection: &mut SqliteConnection) -> Result<(), StoreError> {
    let mut transaction = connection.begin_with("begin immediate").await.map_err(refused)?;
    let begin = "create table if not exists earmark_schema (
        version integer primary key,
        applied_at text not null default (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
    ) strict";
    sqlx::query(begin).execute(&mut *transaction).await.map_err(refused)?;
    let row = sqlx::query("select coalesce(max(version), 0) from earmark_schema")
        .fetch_one(&mut *transaction)
        .await
        .map_err(refused)?;
    let found = count("version", row.try_get(0).map_err(refused)?)?;
    check_version(found)?;
    if found == 0 {
        sqlx::raw_sql(SCHEMA).execute(&mut *transaction).await.map_err(refused)?;
        sqlx::query("insert into earmark_schema (version) values (?)")
            .bind(signed(SCHEMA_VERSION))
            .execute(&mut *transaction)
            .await
            .map_err(refused)?;
    }
    transaction.commit().await.map_err(refused)
}
