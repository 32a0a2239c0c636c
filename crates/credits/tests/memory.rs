//! The rows in memory.

use earmark_credits::MemoryStore;
use earmark_credits::conformance::{Fresh, Office};

async fn fresh() -> Fresh {
    Fresh::new(MemoryStore::new())
}

async fn office() -> Office {
    Office::on(fresh().await).await
}

earmark_credits::conformance!(fresh);
earmark_credits::saga_conformance!(fresh);
earmark_admission::conformance!(office);
