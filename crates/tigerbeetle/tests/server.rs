//! The rules of limits, on the stand-in and on a real server.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use earmark_admission::{
    CompleteAnswer, EnforcedStatus, Limits, LimitsComplete, LimitsReserve, Refusal, ReserveAnswer,
};
use earmark_core::{Kind, LeaseId, LeaseState, Usage};
use earmark_tigerbeetle::TigerBeetleLimits;
use earmark_trace::{SpanRecord, TraceContext, within};
use support::ledger::Ledger;
use support::registry::TestRegistry;
use support::{amounts, definition, key, lease, namespace};

const MINUTE: Kind = Kind::Rolling { window_seconds: 60 };
const SLOTS: Kind = Kind::Concurrency { timeout_seconds: 60 };

/// Limits on a server, and their registry.
struct TestLimits {
    limits: TigerBeetleLimits,
    registry: Arc<TestRegistry>,
}

impl TestLimits {
    async fn on(server: &Ledger) -> TestLimits {
        TestLimits::with(server, Arc::default()).await
    }

    async fn with(server: &Ledger, registry: Arc<TestRegistry>) -> TestLimits {
        let limits = TigerBeetleLimits::open(server.options(), registry.clone()).await.unwrap();
        TestLimits { limits, registry }
    }

    async fn put(&self, name: &str, kind: Kind, capacity: u64) -> EnforcedStatus {
        self.registry.put(&namespace(), definition(name, kind, capacity));
        self.limits.apply_definition(namespace(), key(name)).await.unwrap()
    }

    async fn delete(&self, name: &str) -> EnforcedStatus {
        self.registry.delete(&namespace(), &key(name));
        self.limits.apply_definition(namespace(), key(name)).await.unwrap()
    }

    async fn reserve(&self, lease: LeaseId, parts: &[(&str, u64)]) -> ReserveAnswer {
        let request = LimitsReserve {
            namespace: namespace(),
            lease,
            job: None,
            call: None,
            by_gateway: false,
            requirements: amounts(parts),
        };
        self.limits.reserve(vec![request]).await.remove(0).unwrap()
    }

    async fn admit(&self, parts: &[(&str, u64)]) -> LeaseId {
        let lease = lease();
        let answer = self.reserve(lease, parts).await;
        assert!(matches!(answer, ReserveAnswer::Allowed { .. }), "{answer:?}");
        lease
    }

    async fn complete(&self, lease: LeaseId, parts: &[(&str, u64)]) -> CompleteAnswer {
        let request = LimitsComplete {
            namespace: namespace(),
            lease,
            claim: earmark_core::LeaseClaim::default(),
            actuals: amounts(parts),
        };
        self.limits.complete(vec![request]).await.remove(0).unwrap()
    }

    async fn usage(&self, name: &str) -> Usage {
        self.limits.usage(namespace(), self.registry.get(&namespace(), &key(name)).unwrap()).await.unwrap()
    }

    async fn reserved(&self, name: &str) -> u64 {
        self.usage(name).await.reserved
    }
}

async fn a_call_is_admitted_settled_and_remembered(server: Ledger) {
    let bench = TestLimits::on(&server).await;
    assert_eq!(bench.put("tpm", MINUTE, 100).await, EnforcedStatus::InForce);
    assert_eq!(bench.put("slots", SLOTS, 1).await, EnforcedStatus::InForce);
    let lease = bench.admit(&[("tpm", 60), ("slots", 1)]).await;
    let denied = support::lease();
    let answer = bench.reserve(denied, &[("tpm", 1), ("slots", 1)]).await;
    assert!(matches!(&answer, ReserveAnswer::Denied { limited_by, never: false, .. } if *limited_by == [key("slots")]));
    assert_eq!((bench.reserved("tpm").await, bench.reserved("slots").await), (60, 1));

    let answer = bench.complete(lease, &[("tpm", 30)]).await;
    assert!(answer.reconciled, "{answer:?}");
    assert_eq!((bench.reserved("tpm").await, bench.reserved("slots").await), (30, 0));
    for actual in [0, 30, 90] {
        assert!(bench.complete(lease, &[("tpm", actual)]).await.reconciled);
        assert_eq!(bench.reserved("tpm").await, 30);
    }
    let answer = bench.reserve(lease, &[("tpm", 60), ("slots", 1)]).await;
    assert_eq!(answer, ReserveAnswer::Refused(Refusal::LeaseExpired));
    let answer = bench.reserve(denied, &[("tpm", 1), ("slots", 1)]).await;
    assert!(matches!(answer, ReserveAnswer::Denied { .. }), "{answer:?}");
}

/// The transfers are the record; memory is a cache.
async fn another_process_knows_what_became_of_a_lease(server: Ledger) {
    let first = TestLimits::on(&server).await;
    first.put("tpm", MINUTE, 100).await;
    first.put("slots", SLOTS, 2).await;
    let held = first.admit(&[("tpm", 60), ("slots", 1)]).await;
    let completed = first.admit(&[("tpm", 10)]).await;
    first.complete(completed, &[]).await;
    let denied = lease();
    let answer = first.reserve(denied, &[("tpm", 99)]).await;
    assert!(matches!(answer, ReserveAnswer::Denied { .. }), "{answer:?}");

    let second = TestLimits::with(&server, first.registry.clone()).await;
    let answer = second.reserve(held, &[("slots", 1), ("tpm", 60)]).await;
    assert!(matches!(answer, ReserveAnswer::Allowed { .. }), "{answer:?}");
    for other in [&[("tpm", 60)][..], &[("tpm", 61), ("slots", 1)], &[("slots", 1)]] {
        let answer = second.reserve(held, other).await;
        assert!(matches!(answer, ReserveAnswer::Refused(Refusal::InvalidRequest { .. })), "{answer:?}");
    }
    assert_eq!(second.reserve(completed, &[("tpm", 10)]).await, ReserveAnswer::Refused(Refusal::LeaseExpired));
    let answer = second.reserve(denied, &[("tpm", 99)]).await;
    assert!(matches!(answer, ReserveAnswer::Denied { .. }), "{answer:?}");
    let view = second.limits.lease(namespace(), held).await.unwrap().unwrap();
    assert_eq!((view.state, view.requirements), (LeaseState::Live, amounts(&[("slots", 1), ("tpm", 60)])));

    let answer = second.complete(held, &[("tpm", 130)]).await;
    assert_eq!((answer.reconciled, answer.overage_debt), (true, 70), "{answer:?}");
    let answer = first.complete(held, &[("tpm", 130)]).await;
    assert_eq!((answer.reconciled, answer.overage_debt), (true, 0), "{answer:?}");
    let usage = first.usage("tpm").await;
    assert_eq!((usage.reserved, usage.debt), (70, 70));
    assert_eq!(first.reserved("slots").await, 0);
}

/// Regression: a process read a lease on a limit that another process had put, and showed none of its reservations.
async fn a_lease_is_read_whoever_put_its_limits(server: Ledger) {
    let registry = Arc::new(TestRegistry::default());
    let (first, second) =
        (TestLimits::with(&server, registry.clone()).await, TestLimits::with(&server, registry).await);
    for round in 0..5 {
        let name = format!("limit:{round}");
        first.put(&name, SLOTS, 5).await;
        let lease = first.admit(&[(&name, 2)]).await;
        let view = second.limits.lease(namespace(), lease).await.unwrap().unwrap();
        assert_eq!(view.requirements, amounts(&[(&name, 2)]));
    }
}

/// Regression: one process denied a lease. On the retry, another process found no trace and answered
/// `limit_decreasing`, as if the lease could be tried again.
async fn a_lease_that_was_denied_elsewhere_is_denied_before_any_limit_is_named(server: Ledger) {
    let first = TestLimits::on(&server).await;
    first.put("slots", SLOTS, 3).await;
    first.put("tpm", MINUTE, 100).await;
    first.admit(&[("slots", 3), ("tpm", 10)]).await;
    let (denied, fresh) = (lease(), lease());
    let parts = [("slots", 1), ("tpm", 1)];
    assert!(matches!(first.reserve(denied, &parts).await, ReserveAnswer::Denied { .. }));
    assert_eq!(first.put("tpm", MINUTE, 5).await, EnforcedStatus::Decreasing);

    let second = TestLimits::with(&server, first.registry.clone()).await;
    let answer = second.reserve(denied, &parts).await;
    assert!(matches!(&answer, ReserveAnswer::Denied { limited_by, .. } if *limited_by == [key("slots")]), "{answer:?}");
    // The search for a denial leaves no trace: the refused lease may try again.
    let parts = [("tpm", 1)];
    for _ in 0..2 {
        let answer = second.reserve(fresh, &parts).await;
        assert!(matches!(answer, ReserveAnswer::Refused(Refusal::LimitDecreasing { .. })), "{answer:?}");
    }
    second.put("tpm", MINUTE, 100).await;
    let answer = second.reserve(fresh, &parts).await;
    assert!(matches!(answer, ReserveAnswer::Allowed { .. }), "{answer:?}");
}

async fn capacity_goes_up_at_once_and_down_when_it_is_free(server: Ledger) {
    let bench = TestLimits::on(&server).await;
    bench.put("slots", SLOTS, 3).await;
    let leases = [bench.admit(&[("slots", 1)]).await, bench.admit(&[("slots", 1)]).await];
    assert_eq!(bench.put("slots", SLOTS, 1).await, EnforcedStatus::Decreasing);
    let waiting = lease();
    let answer = bench.reserve(waiting, &[("slots", 1)]).await;
    assert!(matches!(answer, ReserveAnswer::Refused(Refusal::LimitDecreasing { .. })), "{answer:?}");
    // A lease with reservations is a retry, not a new reserve.
    let answer = bench.reserve(leases[0], &[("slots", 1)]).await;
    assert!(matches!(answer, ReserveAnswer::Allowed { .. }), "{answer:?}");
    assert_eq!(bench.usage("slots").await.capacity, 3);
    bench.complete(leases[0], &[]).await;
    assert_eq!(bench.usage("slots").await.capacity, 1);
    let denied = lease();
    let answer = bench.reserve(denied, &[("slots", 1)]).await;
    assert!(matches!(answer, ReserveAnswer::Denied { .. }), "{answer:?}");
    bench.complete(leases[1], &[]).await;
    let answer = bench.reserve(waiting, &[("slots", 1)]).await;
    assert!(matches!(answer, ReserveAnswer::Allowed { .. }), "{answer:?}");
    assert_eq!(bench.put("slots", SLOTS, 5).await, EnforcedStatus::InForce);
    assert_eq!(bench.usage("slots").await.capacity, 5);
    assert_eq!(bench.delete("slots").await, EnforcedStatus::Decreasing);
    bench.complete(waiting, &[]).await;
    assert_eq!(bench.delete("slots").await, EnforcedStatus::Absent);
    assert_eq!(bench.put("slots", SLOTS, 2).await, EnforcedStatus::InForce);
    assert_eq!(bench.usage("slots").await.capacity, 2);
}

async fn a_limit_that_comes_back_owes_nothing(server: Ledger) {
    let bench = TestLimits::on(&server).await;
    bench.put("tps", Kind::Rolling { window_seconds: 1 }, 10).await;
    let lease = bench.admit(&[("tps", 10)]).await;
    assert_eq!(bench.complete(lease, &[("tps", 17)]).await.overage_debt, 7);
    assert_eq!(bench.usage("tps").await.debt, 7);
    bench.delete("tps").await;
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert_eq!(bench.delete("tps").await, EnforcedStatus::Absent);
    bench.put("tps", MINUTE, 5).await;
    let usage = bench.usage("tps").await;
    assert_eq!((usage.capacity, usage.debt), (5, 0));
}

/// A process was killed between putting a limit in the registry and creating its account.
async fn a_limit_without_an_account_denies_nobody(server: Ledger) {
    let registry = Arc::new(TestRegistry::default());
    registry.is_idle.store(true, std::sync::atomic::Ordering::SeqCst);
    let bench = TestLimits::with(&server, registry).await;
    bench.registry.put(&namespace(), definition("tpm", MINUTE, 100));
    bench.admit(&[("tpm", 60)]).await;
    assert_eq!(bench.usage("tpm").await.available, 40);
}

async fn a_late_reserve_after_its_complete_takes_nothing(server: Ledger) {
    let bench = TestLimits::on(&server).await;
    bench.put("slots", SLOTS, 1).await;
    let lease = lease();
    assert!(!bench.complete(lease, &[("slots", 1)]).await.reconciled);
    assert!(!bench.complete(lease, &[("slots", 1)]).await.reconciled);
    assert_eq!(bench.reserve(lease, &[("slots", 1)]).await, ReserveAnswer::Refused(Refusal::LeaseExpired));
    assert_eq!(bench.reserved("slots").await, 0);
}

async fn what_is_released_is_free_and_the_lease_is_spent(server: Ledger) {
    let bench = TestLimits::on(&server).await;
    bench.put("tpm", MINUTE, 100).await;
    let lease = bench.admit(&[("tpm", 60)]).await;
    for _ in 0..2 {
        bench.limits.release(namespace(), lease).await.unwrap();
        assert_eq!(bench.reserved("tpm").await, 0);
    }
    assert!(!bench.complete(lease, &[("tpm", 60)]).await.reconciled);
    assert_eq!(bench.reserve(lease, &[("tpm", 60)]).await, ReserveAnswer::Refused(Refusal::LeaseExpired));
    assert_eq!(bench.reserved("tpm").await, 0);
}

async fn a_lease_of_other_age_is_refused_unless_it_is_known(server: Ledger) {
    let bench = TestLimits::on(&server).await;
    bench.put("rpm", MINUTE, 10).await;
    let now = support::wall_ms();
    for made_at in [now - 3_600_000, now + 3_600_000] {
        let lease = LeaseId::from_parts(earmark_core::UnixMs::new(made_at), rand::random());
        let answer = bench.reserve(lease, &[("rpm", 1)]).await;
        assert!(
            matches!(&answer, ReserveAnswer::Refused(Refusal::InvalidRequest { message })
                if message.contains(&earmark_admission::utc(earmark_core::UnixMs::new(made_at)))),
            "{answer:?}"
        );
        assert!(!bench.complete(lease, &[("rpm", 1)]).await.reconciled);
        assert_eq!(bench.limits.lease(namespace(), lease).await.unwrap(), None);
    }
    assert_eq!(bench.reserved("rpm").await, 0);
}

/// Regression: one process denied a lease and another allowed it with other requirements. A complete through the first
/// trusted its own cache, and the reservation stayed until its timeout.
async fn a_complete_gives_back_what_another_process_allowed_after_a_denial(server: Ledger) {
    let registry = Arc::<TestRegistry>::default();
    let first = TestLimits::with(&server, registry.clone()).await;
    let second = TestLimits::with(&server, registry).await;
    first.put("slots", SLOTS, 1).await;
    first.put("tpm", MINUTE, 100).await;
    let in_the_way = first.admit(&[("slots", 1)]).await;
    let lease = lease();
    let denied = first.reserve(lease, &[("slots", 1)]).await;
    assert!(matches!(denied, ReserveAnswer::Denied { .. }), "{denied:?}");
    first.complete(in_the_way, &[]).await;
    // A cached denial stays, for these requirements and all others.
    let again = first.reserve(lease, &[("slots", 1)]).await;
    assert!(matches!(again, ReserveAnswer::Denied { .. }), "{again:?}");
    let other = first.reserve(lease, &[("tpm", 30)]).await;
    assert!(matches!(other, ReserveAnswer::Refused(Refusal::InvalidRequest { .. })), "{other:?}");
    let view = first.limits.lease(namespace(), lease).await.unwrap().unwrap();
    assert_eq!(view.state, LeaseState::Denied);
    let allowed = second.reserve(lease, &[("tpm", 30)]).await;
    assert!(matches!(allowed, ReserveAnswer::Allowed { .. }), "{allowed:?}");
    assert_eq!(first.limits.lease(namespace(), lease).await.unwrap().unwrap().state, LeaseState::Live);
    assert!(first.complete(lease, &[("tpm", 10)]).await.reconciled);
    assert_eq!(first.reserved("tpm").await, 10);
}

/// Regression: the statistics said 0 live leases, although no process knows the number.
async fn how_many_leases_live_is_not_told_and_the_rest_is(server: Ledger) {
    let bench = TestLimits::on(&server).await;
    bench.put("slots", SLOTS, 1).await;
    bench.admit(&[("slots", 1)]).await;
    let stats = bench.limits.stats();
    assert_eq!((stats.live_leases, stats.remembered_leases), (None, 1));
}

on_ledgers!(
    a_call_is_admitted_settled_and_remembered,
    another_process_knows_what_became_of_a_lease,
    a_lease_is_read_whoever_put_its_limits,
    a_lease_that_was_denied_elsewhere_is_denied_before_any_limit_is_named,
    capacity_goes_up_at_once_and_down_when_it_is_free,
    a_limit_that_comes_back_owes_nothing,
    a_limit_without_an_account_denies_nobody,
    a_late_reserve_after_its_complete_takes_nothing,
    what_is_released_is_free_and_the_lease_is_spent,
    a_lease_of_other_age_is_refused_unless_it_is_known,
    a_complete_gives_back_what_another_process_allowed_after_a_denial,
    how_many_leases_live_is_not_told_and_the_rest_is,
);

/// The one test of this program that turns tracing on, because it is on for the whole process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_to_the_ledger_are_in_the_trace_of_their_request() {
    let mut queue = earmark_trace::install(0.0).unwrap();
    let server = Ledger::stand_in().unwrap();
    let [first, second] = [TestLimits::on(&server).await, TestLimits::on(&server).await];
    for bench in [&first, &second] {
        bench.put("tpm", MINUTE, 100).await;
    }
    let context = |trace, is_sampled| TraceContext { trace, span: 9, is_sampled };
    let lease = within(context(1, true), first.admit(&[("tpm", 60)])).await;
    // Another process reads the lease before it settles it, in a task of its own.
    assert!(within(context(2, true), second.complete(lease, &[("tpm", 30)])).await.reconciled);
    within(context(3, false), first.admit(&[("tpm", 1)])).await;
    let spans: Vec<SpanRecord> = std::iter::from_fn(|| queue.try_recv().ok()).collect();
    for (trace, names) in [(1, &["queue", "ledger"][..]), (2, &["ledger", "queue", "ledger"])] {
        let of: Vec<&SpanRecord> = spans.iter().filter(|span| span.context.trace == trace).collect();
        assert_eq!(of.iter().map(|span| &*span.name).collect::<Vec<_>>(), names, "{of:#?}");
        assert!(of.iter().all(|span| span.parent == Some(9)), "{of:#?}");
    }
    assert_eq!(spans.len(), 5, "{spans:#?}");
}
