//! The rows in a file of SQLite.

#![allow(clippy::expect_used, clippy::panic, reason = "these are tests")]

use earmark_credits::conformance::{Fresh, Office};
use earmark_credits::{SqliteOptions, SqliteStore};

async fn fresh() -> Fresh {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("credits.db");
    // The suites move the time themselves.
    let options = SqliteOptions { keeps_time: false, ..SqliteOptions::default() };
    let open = async || SqliteStore::open(&path, options.clone()).await.expect("a store");
    Fresh::on([open().await, open().await], folder)
}

async fn office() -> Office {
    Office::on(fresh().await).await
}

earmark_credits::conformance!(fresh);
earmark_credits::saga_conformance!(fresh);
earmark_admission::conformance!(office);
