pub(crate) mod mirror;

use std::sync::Arc;

use earmark_admission::conformance::Harness;
use earmark_admission::{
    Answer, Backend, BookCredits, BookLimits, Clock, Composed, Credits, Limits, Local, LocalBook,
    LocalOptions, ManualClock,
};
use earmark_core::Elsewhere;

use mirror::{MirroredCredits, MirroredLimits};

/// A backend of two Books, and their time.
pub(crate) struct Pair {
    pub(crate) backend: Composed<Local>,
    pub(crate) clock: Arc<ManualClock>,
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
}

async fn book(clock: &Arc<ManualClock>) -> LocalBook {
    let options = LocalOptions { clock: Arc::clone(clock) as _, ..LocalOptions::default() };
    LocalBook::open(options).await.unwrap()
}

/// A registry that keeps credit, and limits in a Book of their own.
pub(crate) async fn limits_elsewhere(
    limits: impl FnOnce(Arc<dyn Limits>) -> Arc<dyn Limits>,
    credits: impl FnOnce(Arc<dyn Credits>) -> Arc<dyn Credits>,
) -> Pair {
    let clock = ManualClock::at(1_700_000_000_000);
    let (registry, other) = (book(&clock).await, book(&clock).await);
    other.keep(Elsewhere { limits: false, credit: true }).await.unwrap();
    let mirrored = limits(Arc::new(MirroredLimits::new(registry.clone(), other)));
    let credits = credits(Arc::new(BookCredits::new(registry.clone())));
    let elsewhere = Elsewhere { limits: true, credit: false };
    Pair { backend: Composed::new(registry, mirrored, credits, elsewhere), clock }
}

/// A registry that enforces limits, and credit in a Book of its own.
pub(crate) async fn credit_elsewhere(
    limits: impl FnOnce(Arc<dyn Limits>) -> Arc<dyn Limits>,
    credits: impl FnOnce(Arc<dyn Credits>) -> Arc<dyn Credits>,
) -> Pair {
    let clock = ManualClock::at(1_700_000_000_000);
    let (registry, other) = (book(&clock).await, book(&clock).await);
    let limits = limits(Arc::new(BookLimits::new(registry.clone())));
    let mirrored = credits(Arc::new(MirroredCredits::new(other)));
    let elsewhere = Elsewhere { limits: false, credit: true };
    Pair { backend: Composed::new(registry, limits, mirrored, elsewhere), clock }
}
