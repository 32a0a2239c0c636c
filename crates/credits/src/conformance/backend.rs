//! Credit on a store as part of a backend, for the conformance suite of backends.

use std::sync::Arc;

use earmark_admission::conformance::Harness;
use earmark_admission::{Answer, Backend, BookLimits, Clock, Composed, Local, LocalBook, LocalOptions, ManualClock};
use earmark_core::ExternalParts;

use super::FreshStore;
use crate::saga::Options;
use crate::saga_credits::SagaCredits;

/// Limits in a Book in memory, credit on a store.
pub struct CreditsHarness {
    backend: Composed<Local>,
    clock: Arc<ManualClock>,
    credits: Arc<SagaCredits>,
    fresh: FreshStore,
}

impl CreditsHarness {
    /// A backend with credit on this store.
    pub async fn on(fresh: FreshStore) -> CreditsHarness {
        let clock = ManualClock::at(1_700_000_000_000);
        let options = LocalOptions { clock: Arc::clone(&clock) as _, ..LocalOptions::default() };
        let registry = LocalBook::open(options).await.expect("a Book in memory");
        let time = Arc::clone(&clock) as Arc<dyn Clock>;
        let started = SagaCredits::start(Arc::clone(&fresh.store), time, Options::default()).await;
        let credits = Arc::new(started.expect("a store that answers"));
        let limits = Arc::new(BookLimits::new(registry.clone()));
        let elsewhere = ExternalParts { limits: false, credit: true };
        let backend = Composed::new(registry, limits, Arc::clone(&credits) as _, elsewhere);
        CreditsHarness { backend, clock, credits, fresh }
    }
}

impl Harness for CreditsHarness {
    fn backend(&self) -> &dyn Backend {
        &self.backend
    }

    fn now_ms(&self) -> u64 {
        self.clock.now().wall.get()
    }

    fn advance_ms(&self, ms: u64) -> Answer<'_, ()> {
        self.clock.advance_ms(ms);
        Box::pin(async { self.credits.maintain().await.expect("a store that answers") })
    }

    fn keeps_results(&self) -> bool {
        true
    }

    fn finish(&self) -> Answer<'_, ()> {
        Box::pin(async {
            assert_eq!(self.fresh.store.orphans(9).await, Ok(vec![]), "nothing is reserved by nobody");
        })
    }
}
