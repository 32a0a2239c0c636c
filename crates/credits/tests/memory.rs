//! The rows in memory.

use earmark_credits::MemoryStore;
use earmark_credits::conformance::Fresh;

async fn fresh() -> Fresh {
    Fresh::new(MemoryStore::new())
}

earmark_credits::conformance!(fresh);
earmark_credits::saga_conformance!(fresh);
