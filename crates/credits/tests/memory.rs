//! The rows in memory.

use earmark_credits::MemoryStore;
use earmark_credits::conformance::{CreditsHarness, FreshStore};

async fn fresh() -> FreshStore {
    FreshStore::new(MemoryStore::new())
}

async fn harness() -> CreditsHarness {
    CreditsHarness::on(fresh().await).await
}

earmark_credits::conformance!(fresh);
earmark_credits::saga_conformance!(fresh);
earmark_admission::conformance!(harness);
