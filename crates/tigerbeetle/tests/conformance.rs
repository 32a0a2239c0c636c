//! The conformance suite on limits in the stand-in for TigerBeetle, and in a real server where there is one.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use earmark_admission::conformance::Harness;
use earmark_admission::{Answer, Backend, BookCredits, Clock, Composed, LocalBook, LocalOptions, ManualClock};
use earmark_core::ExternalParts;
use earmark_tigerbeetle::TigerBeetleLimits;
use support::ledger::Ledger;
use support::wall_ms;

/// Limits on a ledger, credit and registry in a Book.
struct OnLedger {
    backend: Box<dyn Backend>,
    /// Without a ledger, the clock of the Book. A ledger has the time of the wall.
    clock: Option<Arc<ManualClock>>,
    /// By how much the clock of the ledger is ahead of the wall.
    ahead_ms: u64,
    _ledger: Option<Ledger>,
}

/// Without a ledger everything is in the Book, so the cases still run, and the skip is reported.
async fn on(ledger: Option<Ledger>) -> OnLedger {
    let Some(ledger) = ledger else {
        let clock = ManualClock::at(wall_ms());
        let book = LocalBook::open(LocalOptions { clock: Arc::clone(&clock) as _, ..LocalOptions::default() });
        return OnLedger { backend: Box::new(book.await.unwrap()), clock: Some(clock), ahead_ms: 0, _ledger: None };
    };
    let book = LocalBook::open(LocalOptions::default()).await.unwrap();
    // The case about periods needs at least 5 seconds.
    let ahead_ms = ledger.end_a_minute_in(6_000);
    let limits = TigerBeetleLimits::open(ledger.options(), Arc::new(book.clone())).await.unwrap();
    let credits = Arc::new(BookCredits::new(book.clone()));
    let external = ExternalParts { limits: true, credit: false };
    let backend = Composed::new(book, Arc::new(limits), credits, external);
    backend.start().await.unwrap();
    OnLedger { backend: Box::new(backend), clock: None, ahead_ms, _ledger: Some(ledger) }
}

impl Harness for OnLedger {
    fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    fn now_ms(&self) -> u64 {
        self.clock.as_ref().map_or_else(|| wall_ms() + self.ahead_ms, |clock| clock.now().wall.get())
    }

    fn advance_ms(&self, ms: u64) -> Answer<'_, ()> {
        match &self.clock {
            Some(clock) => {
                clock.advance_ms(ms);
                Box::pin(async {})
            }
            None => Box::pin(tokio::time::sleep(Duration::from_millis(ms))),
        }
    }
}

/// The cases, on the ledger that `$start` makes.
macro_rules! cases {
    ($start:expr) => {
        use super::*;

        async fn on_a_ledger() -> OnLedger {
            on($start).await
        }

        earmark_admission::conformance_of_limits!(on_a_ledger);
        earmark_admission::conformance_of_extensions!(on_a_ledger);
        earmark_admission::conformance_of_templates!(on_a_ledger);
        earmark_admission::conformance_of_extended_credit!(on_a_ledger);

        // Of the credit cases, only those that involve limits.
        earmark_admission::conformance!(on_a_ledger:
            credit_is_held_with_the_limits_or_not_at_all,
            too_little_credit_is_named_unless_a_limit_is_in_the_way_too,
            a_lease_denied_for_want_of_credit_stays_denied,
            copies_of_a_reserve_at_once_hold_once,
            a_missing_account_is_named_before_a_full_limit,
            a_client_id_belongs_to_its_first_writer,
        );
    };
}

mod stand_in {
    cases!(Ledger::stand_in());
}

mod real_server {
    cases!(Ledger::server());
}
