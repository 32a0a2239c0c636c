//! Calendar limits on the stand-in and on a real server, across the end of a period.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

#[path = "../support/mod.rs"]
mod support;

use std::sync::Arc;
use std::time::Duration;

use earmark_admission::{CompleteAnswer, EnforcedStatus, Limits, LimitsComplete, LimitsReserve, ReserveAnswer};
use earmark_core::{Kind, LeaseId, Period, UnixMs};
use earmark_tigerbeetle::{TigerBeetleLimits, TigerBeetleOptions};
use support::gate::Gate;
use support::ledger::Ledger;
use support::registry::TestRegistry;
use support::{amounts, definition, key, lease, namespace, wall_ms};

/// Limits behind a gate, with one calendar limit whose period ends at `ends_at_ms`.
struct AtTheEnd {
    limits: Arc<TigerBeetleLimits>,
    registry: Arc<TestRegistry>,
    gate: Gate,
    ends_at_ms: u64,
    /// By how much the clock of the ledger is ahead of the wall.
    ahead_ms: u64,
    ledger: Ledger,
}

/// The end of a period must be farther away when a test begins.
const LEFT_MIN_MS: u64 = 8_000;

impl AtTheEnd {
    /// Hours that end with the next minute which is far enough away.
    async fn new(ledger: Ledger) -> AtTheEnd {
        let ahead_ms = ledger.end_a_minute_in(LEFT_MIN_MS + 100);
        let minute = (wall_ms() + ahead_ms + LEFT_MIN_MS).div_ceil(60_000);
        let utc_offset_minutes = i16::try_from((60 - minute % 60) % 60).unwrap();
        let kind = Kind::Calendar { period: Period::Hour, utc_offset_minutes };
        assert_eq!(kind.period_end(UnixMs::new(minute * 60_000 - 1)), Some(UnixMs::new(minute * 60_000)));
        let registry = Arc::new(TestRegistry::default());
        registry.put(&namespace(), definition("tph", kind, 100));
        let (gate, options) = Gate::before(ledger.options());
        let options = TigerBeetleOptions { deadline: Duration::from_secs(30), ..options };
        let limits = Arc::new(TigerBeetleLimits::open(options, registry.clone()).await.unwrap());
        assert_eq!(limits.apply_definition(namespace(), key("tph")).await, Ok(EnforcedStatus::InForce));
        AtTheEnd { limits, registry, gate, ends_at_ms: minute * 60_000, ahead_ms, ledger }
    }

    /// The time of the ledger.
    fn now_ms(&self) -> u64 {
        wall_ms() + self.ahead_ms
    }

    /// Sleeps until a time before (negative) or after the end of the period.
    async fn sleep_until(&self, ms: i64) {
        let at = self.ends_at_ms.checked_add_signed(ms).unwrap();
        tokio::time::sleep(Duration::from_millis(at.saturating_sub(self.now_ms()))).await;
    }

    async fn reserve(&self, lease: LeaseId, amount: u64) -> ReserveAnswer {
        let requirements = amounts(&[("tph", amount)]);
        let request =
            LimitsReserve { namespace: namespace(), lease, job: None, call: None, by_gateway: false, requirements };
        self.limits.reserve(vec![request]).await.remove(0).unwrap()
    }

    async fn complete(&self, lease: LeaseId, amount: u64) -> CompleteAnswer {
        let complete = LimitsComplete {
            namespace: namespace(),
            lease,
            claim: earmark_core::LeaseClaim::default(),
            actuals: amounts(&[("tph", amount)]),
        };
        self.limits.complete(vec![complete]).await.remove(0).unwrap()
    }

    async fn reserved(&self) -> u64 {
        let info = self.registry.get(&namespace(), &key("tph")).unwrap();
        self.limits.usage(namespace(), info).await.unwrap().reserved
    }
}

fn is_allowed(answer: &ReserveAnswer) -> bool {
    matches!(answer, ReserveAnswer::Allowed { .. })
}

/// A reserve that was sent before the end of the period and reached the ledger after it counts in the new period. A
/// complete after the end adds only its overage.
async fn a_reserve_that_arrives_in_the_next_period_is_taken_to_its_end(ledger: Ledger) {
    let test = AtTheEnd::new(ledger).await;
    let (before, late) = (lease(), lease());
    test.sleep_until(-2_500).await;
    assert!(is_allowed(&test.reserve(before, 60).await));
    let denied = test.reserve(lease(), 60).await;
    let ReserveAnswer::Denied { retry_after_ms, .. } = denied else { panic!("{denied:?}") };
    assert!(retry_after_ms <= test.ends_at_ms - test.now_ms() + 1_000, "{retry_after_ms}");
    test.sleep_until(-400).await;
    test.gate.close();
    // The limits never saw a time after the end, so this is sent for the period before it.
    let (reserving, release) = tokio::join!(test.reserve(late, 30), async {
        test.sleep_until(400).await;
        test.gate.open();
    });
    let () = release;
    assert!(is_allowed(&reserving), "{reserving:?}");
    test.sleep_until(2_600).await;
    assert_eq!(test.reserved().await, 30);
    assert!(is_allowed(&test.reserve(late, 30).await));
    let answer = test.complete(before, 75).await;
    assert_eq!((answer.reconciled, answer.overage_reserved), (true, 15));
    let answer = test.complete(late, 20).await;
    assert!(answer.reconciled);
    test.sleep_until(5_000).await;
    assert_eq!(test.reserved().await, 15 + 20);
    assert!(is_allowed(&test.reserve(lease(), 65).await));
}

/// The process stops after the ledger made a late reserve. The retry in another process takes it to the end of the
/// period; so does a complete.
async fn a_late_reserve_whose_process_stopped_is_taken_again_by_its_retry(ledger: Ledger) {
    let test = AtTheEnd::new(ledger).await;
    let leases = [lease(), lease()];
    test.sleep_until(-400).await;
    test.gate.close();
    for lease in leases {
        let limits = Arc::clone(&test.limits);
        let requirements = amounts(&[("tph", 30)]);
        let request =
            LimitsReserve { namespace: namespace(), lease, job: None, call: None, by_gateway: false, requirements };
        tokio::spawn(async move { limits.reserve(vec![request]).await });
    }
    test.sleep_until(400).await;
    test.gate.open();
    // Stops before it can act on the answer, or after: both must hold.
    tokio::time::sleep(Duration::from_millis(2)).await;
    test.gate.close();
    let other = TigerBeetleLimits::open(test.ledger.options(), test.registry.clone()).await.unwrap();
    let requirements = amounts(&[("tph", 30)]);
    let request = LimitsReserve {
        namespace: namespace(),
        lease: leases[0],
        job: None,
        call: None,
        by_gateway: false,
        requirements,
    };
    let retried = other.reserve(vec![request]).await.remove(0).unwrap();
    assert!(is_allowed(&retried), "{retried:?}");
    let actuals = amounts(&[("tph", 30)]);
    let complete = LimitsComplete {
        namespace: namespace(),
        lease: leases[1],
        claim: earmark_core::LeaseClaim::default(),
        actuals,
    };
    let is_known = other.complete(vec![complete]).await.remove(0).unwrap().reconciled;
    test.sleep_until(3_000).await;
    let info = test.registry.get(&namespace(), &key("tph")).unwrap();
    let expected = if is_known { 60 } else { 30 };
    assert_eq!(other.usage(namespace(), info).await.unwrap().reserved, expected);
    test.gate.open();
}

on_ledgers!(
    a_reserve_that_arrives_in_the_next_period_is_taken_to_its_end,
    a_late_reserve_whose_process_stopped_is_taken_again_by_its_retry,
);
