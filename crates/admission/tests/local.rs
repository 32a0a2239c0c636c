//! The in-memory Book behind the submitter passes the conformance suite.

use std::sync::Arc;

use earmark_admission::conformance::Harness;
use earmark_admission::{Answer, Backend, Clock, LocalBook, LocalOptions, ManualClock};

struct Local {
    book: LocalBook,
    clock: Arc<ManualClock>,
}

impl Harness for Local {
    fn backend(&self) -> &dyn Backend {
        &self.book
    }

    fn now_ms(&self) -> u64 {
        self.clock.now().wall.get()
    }

    fn advance_ms(&self, ms: u64) -> Answer<'_, ()> {
        self.clock.advance_ms(ms);
        Box::pin(async {})
    }
}

async fn local() -> Local {
    let clock = ManualClock::at(1_700_000_000_000);
    let options = LocalOptions { clock: Arc::clone(&clock) as _, ..LocalOptions::default() };
    let book = LocalBook::open(options).await.unwrap_or_else(|error| panic!("{error}"));
    Local { book, clock }
}

earmark_admission::conformance!(local);
