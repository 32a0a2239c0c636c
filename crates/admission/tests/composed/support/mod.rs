#[macro_use]
mod pass_on;

pub(crate) mod counter;
pub(crate) mod flaky;
pub(crate) mod mirror;

use std::sync::Arc;

use earmark_admission::conformance::Harness;
use earmark_admission::{
    Answer, Backend, BookCredits, BookLimits, Clock, Composed, Credits, Limits, Local, LocalBook, LocalOptions,
    ManualClock,
};
use earmark_core::ExternalParts;

use flaky::{Faults, FlakyCredits, FlakyLimits};
use mirror::{MirroredCredits, MirroredLimits};

/// A composed backend of two Books, and their clock.
pub(crate) struct Pair {
    pub(crate) backend: Composed<Local>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) faults: Arc<Faults>,
    registry: LocalBook,
    limits: Arc<dyn Limits>,
    credits: Arc<dyn Credits>,
    external: ExternalParts,
}

impl Harness for Pair {
    fn backend(&self) -> &dyn Backend {
        &self.backend
    }

    fn now_ms(&self) -> u64 {
        self.clock.now().wall.get()
    }

    fn advance_ms(&self, ms: u64) -> Answer<'_, ()> {
        self.clock.advance_ms(ms);
        Box::pin(async {})
    }

    fn enforces_credit_quotas(&self) -> bool {
        !self.external.credit
    }
}

impl Pair {
    fn new(
        clock: Arc<ManualClock>,
        registry: LocalBook,
        limits: Arc<dyn Limits>,
        credits: Arc<dyn Credits>,
        external: ExternalParts,
    ) -> Pair {
        let faults = Faults::new();
        let limits: Arc<dyn Limits> = Arc::new(FlakyLimits(limits, Arc::clone(&faults)));
        let credits: Arc<dyn Credits> = Arc::new(FlakyCredits(credits, Arc::clone(&faults)));
        let backend = Composed::new(registry.clone(), Arc::clone(&limits), Arc::clone(&credits), external);
        Pair { backend, clock, faults, registry, limits, credits, external }
    }

    /// Replaces the backend by a new process on the same parts, without in-memory state.
    pub(crate) fn start_again(&mut self) {
        let (limits, credits) = (Arc::clone(&self.limits), Arc::clone(&self.credits));
        self.backend = Composed::new(self.registry.clone(), limits, credits, self.external);
    }

    pub(crate) fn registry(&self) -> &LocalBook {
        &self.registry
    }
}

async fn book(clock: &Arc<ManualClock>) -> LocalBook {
    let options = LocalOptions { clock: Arc::clone(clock) as _, ..LocalOptions::default() };
    LocalBook::open(options).await.unwrap()
}

/// A registry that keeps credit, with limits in another Book.
pub(crate) async fn limits_elsewhere() -> Pair {
    let clock = ManualClock::at(1_700_000_000_000);
    let (registry, other) = (book(&clock).await, book(&clock).await);
    other.record_placement(ExternalParts { limits: false, credit: true }).await.unwrap();
    let limits = Arc::new(MirroredLimits::new(registry.clone(), other));
    let credits = Arc::new(BookCredits::new(registry.clone()));
    Pair::new(clock, registry, limits, credits, ExternalParts { limits: true, credit: false })
}

/// A registry that enforces limits, with credit in another Book.
pub(crate) async fn credit_elsewhere() -> Pair {
    let clock = ManualClock::at(1_700_000_000_000);
    let (registry, other) = (book(&clock).await, book(&clock).await);
    other.record_placement(ExternalParts { limits: true, credit: false }).await.unwrap();
    let limits = Arc::new(BookLimits::new(registry.clone()));
    let credits = Arc::new(MirroredCredits::new(other));
    Pair::new(clock, registry, limits, credits, ExternalParts { limits: false, credit: true })
}
