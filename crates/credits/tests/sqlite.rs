//! The rows in a SQLite file.

use earmark_credits::conformance::{CreditsHarness, FreshStore};
use earmark_credits::{SqliteOptions, SqliteStore};

async fn fresh() -> FreshStore {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("credits.db");
    // The suites control the time.
    let options = SqliteOptions { keeps_time: false, ..SqliteOptions::default() };
    let open = async || SqliteStore::open(&path, options.clone()).await.expect("a store");
    FreshStore::on([open().await, open().await], folder)
}

async fn harness() -> CreditsHarness {
    CreditsHarness::on(fresh().await).await
}

earmark_credits::conformance!(fresh);
earmark_credits::saga_conformance!(fresh);
earmark_admission::conformance!(harness);
