//! The schema, version by version.

use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection, Row};

use super::error::refused;
use crate::sql::count;
use crate::store::StoreError;

/// What each version adds, the first one first.
pub(super) const VERSIONS: [(&str, &str); 3] = [
    ("rows", include_str!("../../migrations/sqlite/0001_rows.sql")),
    ("views", include_str!("../../migrations/sqlite/0002_views.sql")),
    ("transactions", include_str!("../../migrations/sqlite/0003_transactions.sql")),
];

/// Brings a file up to a version, unless it is there. Two processes that start at once wait for each other.
pub(super) async fn migrate(connection: &mut SqliteConnection, to: usize) -> Result<(), StoreError> {
    let mut transaction = connection.begin_with("begin immediate").await.map_err(refused)?;
    let begin = "create table if not exists earmark_schema (
        version integer primary key,
        what text not null,
        applied_at text not null default (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
    ) strict";
    sqlx::query(begin).execute(&mut *transaction).await.map_err(refused)?;
    let row = sqlx::query("select coalesce(max(version), 0) from earmark_schema")
        .fetch_one(&mut *transaction)
        .await
        .map_err(refused)?;
    let found = count("version", row.try_get(0).map_err(refused)?)?;
    let known = VERSIONS.len() as u64;
    if found > known {
        return Err(StoreError::Corrupt(format!(
            "its schema has version {found}, and this Earmark knows up to {known}: use the Earmark that wrote it, \
             or a later one"
        )));
    }
    for ((what, sql), version) in VERSIONS.into_iter().zip(1_u64..).take(to) {
        if version <= found {
            continue;
        }
        sqlx::raw_sql(sql).execute(&mut *transaction).await.map_err(refused)?;
        sqlx::query("insert into earmark_schema (version, what) values (?, ?)")
            .bind(crate::sql::signed(version))
            .bind(what)
            .execute(&mut *transaction)
            .await
            .map_err(refused)?;
    }
    transaction.commit().await.map_err(refused)
}
