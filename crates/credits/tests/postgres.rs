//! The rows in a PostgreSQL database.

use earmark_credits::conformance::{CreditsHarness, FreshStore, server};
use earmark_credits::{PostgresOptions, PostgresStore};

async fn fresh() -> FreshStore {
    let url = server::shared().expect("a server");
    let schema = format!("t{}", ulid::Ulid::generate()).to_ascii_lowercase();
    // The suites control the time.
    let options = PostgresOptions { schema, keeps_time: false, ..PostgresOptions::default() };
    let open = async || PostgresStore::open(&url, options.clone()).await.expect("a store");
    FreshStore::on([open().await, open().await], ())
}

async fn harness() -> CreditsHarness {
    CreditsHarness::on(fresh().await).await
}

earmark_credits::conformance!(fresh);
earmark_credits::saga_conformance!(fresh);
earmark_admission::conformance!(harness);
