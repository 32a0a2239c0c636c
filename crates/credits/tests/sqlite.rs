//! The rows in a file of SQLite.

#![allow(clippy::expect_used, clippy::panic, reason = "these are tests")]

use earmark_credits::conformance::Fresh;
use earmark_credits::{SqliteOptions, SqliteStore};

async fn fresh() -> Fresh {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("credits.db");
    let store = SqliteStore::open(&path, SqliteOptions::default()).await.expect("a store");
    Fresh::on(store, folder)
}

earmark_credits::conformance!(fresh);
