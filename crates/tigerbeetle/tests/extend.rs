//! Extensions of one lease by two processes on the stand-in and on a real server. Each process has its own cache of the lease.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod support;

use std::sync::Arc;

use earmark_admission::{
    CompleteAnswer, CreditStep, ExtendAnswer, Limits, LimitsComplete, LimitsExtend, LimitsReserve, Refusal,
    ReserveAnswer,
};
use earmark_core::{CreditShortage, Kind, LeaseId, Period};
use earmark_tigerbeetle::{TigerBeetleLimits, TigerBeetleOptions};
use support::gate::{Gate, Stop};
use support::ledger::Ledger;
use support::registry::TestRegistry;
use support::{amounts, definition, key, lease, namespace};

const MINUTE: Kind = Kind::Rolling { window_seconds: 60 };
const SLOTS: Kind = Kind::Concurrency { timeout_seconds: 60 };

/// One process: limits on a server, with a cache of leases.
struct Process {
    limits: TigerBeetleLimits,
    registry: Arc<TestRegistry>,
}

impl Process {
    async fn start(server: &Ledger, registry: &Arc<TestRegistry>) -> Process {
        Process::start_with(server.options(), registry).await
    }

    async fn start_with(options: TigerBeetleOptions, registry: &Arc<TestRegistry>) -> Process {
        let limits = TigerBeetleLimits::open(options, registry.clone()).await.unwrap();
        Process { limits, registry: Arc::clone(registry) }
    }

    async fn put(&self, name: &str, kind: Kind, capacity: u64) {
        self.registry.put(&namespace(), definition(name, kind, capacity));
        self.limits.apply_definition(namespace(), key(name)).await.unwrap();
    }

    async fn admit(&self, parts: &[(&str, u64)]) -> LeaseId {
        let lease = lease();
        let request = LimitsReserve {
            namespace: namespace(),
            lease,
            job: None,
            call: None,
            by_gateway: false,
            requirements: amounts(parts),
        };
        let answer = self.limits.reserve(vec![request]).await.remove(0).unwrap();
        assert!(matches!(answer, ReserveAnswer::Allowed { .. }), "{answer:?}");
        lease
    }

    async fn extend_with(&self, lease: LeaseId, number: u32, add: &[(&str, u64)], credit: CreditStep) -> ExtendAnswer {
        let (namespace, add, used) = (namespace(), amounts(add), amounts(&[("tpm", 5 * u64::from(number))]));
        let request = LimitsExtend {
            namespace,
            lease,
            number,
            add,
            used,
            claim: earmark_core::LeaseClaim::default(),
            renew: true,
            credit,
        };
        self.limits.extend(vec![request]).await.remove(0).unwrap().answer
    }

    /// Takes 10 tokens more and renews the slot.
    async fn extend(&self, lease: LeaseId, number: u32) -> ExtendAnswer {
        self.extend_with(lease, number, &[("tpm", 10)], CreditStep::Held).await
    }

    async fn complete(&self, lease: LeaseId, actual: u64) -> CompleteAnswer {
        let request = LimitsComplete {
            namespace: namespace(),
            lease,
            claim: earmark_core::LeaseClaim::default(),
            actuals: amounts(&[("tpm", actual)]),
        };
        self.limits.complete(vec![request]).await.remove(0).unwrap()
    }

    async fn reserved(&self, name: &str) -> u64 {
        let info = self.registry.get(&namespace(), &key(name)).unwrap();
        self.limits.usage(namespace(), info).await.unwrap().reserved
    }
}

/// Two processes on a new server, with a rolling limit and slots.
async fn two(server: &Ledger) -> [Process; 2] {
    let registry = Arc::new(TestRegistry::default());
    let both = [Process::start(server, &registry).await, Process::start(server, &registry).await];
    both[0].put("tpm", MINUTE, 1_000_000).await;
    both[0].put("slots", SLOTS, 3).await;
    both
}

fn is_extended(answer: &ExtendAnswer) -> bool {
    matches!(answer, ExtendAnswer::Extended { .. })
}

/// Every order of three extensions and a complete, each by either process, so that every operation meets a cache that
/// is up to date, behind by extensions, or behind by the end of the lease.
async fn extensions_and_completes_of_two_processes_never_pass_each_other(server: Ledger) {
    let both = two(&server).await;
    let mut before = 0;
    for case in 0..64_u32 {
        let by = |step: u32| &both[usize::from(case >> step & 1 == 1)];
        let completed_after = case >> 4 & 3;
        let lease = both[0].admit(&[("tpm", 100), ("slots", 1)]).await;
        for number in 1..=completed_after {
            let answer = by(number).extend(lease, number).await;
            assert!(is_extended(&answer), "{case}: {answer:?}");
            // The other process repeats the answer.
            assert_eq!(by(number + 1).extend(lease, number).await, answer, "{case}");
            assert_eq!(both[0].reserved("slots").await, 1, "{case}");
        }
        let total = 100 + 10 * u64::from(completed_after);
        assert_eq!(both[0].reserved("tpm").await, before + total, "{case}");
        let answer = by(0).complete(lease, total - 5).await;
        assert!(answer.reconciled && answer.is_extended == (completed_after > 0), "{case}: {answer:?}");
        let settled = if completed_after == 0 { 95 } else { total - 5 };
        before += settled;
        for number in [1, completed_after.max(1), completed_after + 1, completed_after + 2] {
            for process in &both {
                assert_eq!(process.extend(lease, number).await, ExtendAnswer::expired(), "{case}: {number}");
            }
        }
        assert!(by(3).complete(lease, 1).await.reconciled);
        assert_eq!((both[0].reserved("tpm").await, both[0].reserved("slots").await), (before, 0), "{case}");
    }
}

/// An extension and a complete at the same time: one of them is first, and the other knows.
async fn an_extension_that_races_a_complete_leaks_nothing(server: Ledger) {
    let [a, b] = two(&server).await;
    let (mut extended_first, mut before) = (0, 0);
    for round in 0..60 {
        let lease = a.admit(&[("tpm", 100), ("slots", 1)]).await;
        assert!(is_extended(&b.extend(lease, 1).await));
        let (one, other, completed) = match round % 3 {
            0 => tokio::join!(a.extend(lease, 2), b.extend(lease, 2), a.complete(lease, 104)),
            1 => tokio::join!(a.extend(lease, 2), b.extend(lease, 2), b.complete(lease, 104)),
            _ => {
                let (completed, one, other) =
                    tokio::join!(b.complete(lease, 104), a.extend(lease, 2), a.extend(lease, 2));
                (one, other, completed)
            }
        };
        assert!(completed.reconciled);
        for answer in [&one, &other] {
            assert!(is_extended(answer) || *answer == ExtendAnswer::expired(), "{answer:?}");
        }
        // Of the second extension nothing is left; of the first one 4 tokens, unless it was settled before the second.
        let is_second = is_extended(&one) || is_extended(&other);
        extended_first += u32::from(is_second);
        before += if is_second { 110 } else { 104 };
        for process in [&a, &b] {
            assert_eq!(process.extend(lease, 2).await, ExtendAnswer::expired());
            assert_eq!(process.extend(lease, 3).await, ExtendAnswer::expired());
        }
        assert_eq!((a.reserved("tpm").await, b.reserved("slots").await), (before, 0), "{round}");
    }
    assert!(extended_first > 0);
}

/// A request of one process about a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Extend,
    Complete,
}

impl Deed {
    /// Does it. Returns whether the lease was extended; `None` for a complete.
    async fn run(self, process: &Process, lease: LeaseId) -> Option<bool> {
        match self {
            Deed::Extend => {
                let answer = process.extend(lease, 2).await;
                assert!(is_extended(&answer) || answer == ExtendAnswer::expired(), "{answer:?}");
                Some(is_extended(&answer))
            }
            Deed::Complete => {
                assert!(process.complete(lease, 104).await.reconciled);
                None
            }
        }
    }
}

/// One process is stopped before and after each request that it sends to extend or to complete a lease. Meanwhile the
/// other process does the opposite with the same lease, from its start to its end. No slot leaks, and nothing changes
/// after the end of the lease.
async fn an_extension_and_a_complete_meet_at_every_step(server: Ledger) {
    let registry = Arc::new(TestRegistry::default());
    let (gate, options) = Gate::before(server.options());
    let stopped = Arc::new(Process::start_with(options, &registry).await);
    let other = Process::start(&server, &registry).await;
    other.put("tpm", MINUTE, 1_000_000).await;
    other.put("slots", SLOTS, 3).await;
    let (mut before, mut stops, mut kept) = (0, 0, 0);
    let deeds = [(Deed::Extend, Deed::Complete), (Deed::Complete, Deed::Extend)];
    for ((first, second), stop, is_cached) in deeds.into_iter().flat_map(|pair| {
        [Stop::BeforeItsEffect, Stop::AfterItsEffect]
            .into_iter()
            .flat_map(move |stop| [true, false].map(|is_cached| (pair, stop, is_cached)))
    }) {
        for step in 0.. {
            let owner = if is_cached { &*stopped } else { &other };
            let lease = owner.admit(&[("tpm", 100), ("slots", 1)]).await;
            assert!(is_extended(&owner.extend(lease, 1).await));
            gate.stop_at(step, stop);
            let process = Arc::clone(&stopped);
            let mut running = tokio::spawn(async move { first.run(&process, lease).await });
            let finished = tokio::select! {
                () = gate.stopped() => None,
                finished = &mut running => Some(finished.unwrap()),
            };
            let is_stopped = finished.is_none();
            let theirs = second.run(&other, lease).await;
            gate.open();
            let mine = match finished {
                Some(mine) => mine,
                None => running.await.unwrap(),
            };
            let case = format!("{first:?} {stop:?} request {step}, cached: {is_cached}");
            let is_made = mine.or(theirs).unwrap();
            kept += u32::from(is_made && first == Deed::Complete && is_stopped);
            // The total of 104 is less than the first two parts, which stay.
            before += if is_made { 110 } else { 104 };
            for process in [&*stopped, &other] {
                assert_eq!(process.extend(lease, 2).await, ExtendAnswer::expired(), "{case}");
                assert_eq!(process.extend(lease, 3).await, ExtendAnswer::expired(), "{case}");
                assert!(process.complete(lease, 0).await.reconciled, "{case}");
                assert_eq!((process.reserved("tpm").await, process.reserved("slots").await), (before, 0), "{case}");
            }
            stops += u32::from(is_stopped);
            if !is_stopped {
                break;
            }
        }
    }
    // Every deed sends at least one request, and an extension can overtake a complete that has not taken effect.
    assert!(stops >= 8 && kept > 0, "{stops} stops, {kept} extensions before a stopped complete");
}

/// A lease of many extensions is rebuilt from the ledger alone, page by page.
async fn a_process_that_starts_later_knows_every_extension(server: Ledger) {
    let [a, _] = two(&server).await;
    let lease = a.admit(&[("tpm", 100), ("slots", 1)]).await;
    for number in 1..=150 {
        assert!(is_extended(&a.extend(lease, number).await));
    }
    let late = Process::start(&server, &a.registry).await;
    let view = late.limits.lease(namespace(), lease).await.unwrap().unwrap();
    assert_eq!((view.extensions, view.requirements), (150, amounts(&[("slots", 1), ("tpm", 1_600)])));
    assert_eq!(view.used, amounts(&[("tpm", 750)]));
    assert_eq!(late.extend(lease, 150).await, a.extend(lease, 150).await);
    assert!(is_extended(&late.extend(lease, 151).await));
    // The newest 10 tokens come back, and no more.
    assert!(late.complete(lease, 760).await.reconciled);
    assert_eq!((late.reserved("tpm").await, late.reserved("slots").await), (1_600, 0));
}

/// A denied extension is known everywhere by its anchor, for lack of room as for lack of credit.
async fn a_denial_is_repeated_by_every_process(server: Ledger) {
    let [a, b] = two(&server).await;
    let lease = a.admit(&[("tpm", 100), ("slots", 1)]).await;
    let other = a.admit(&[("slots", 2)]).await;
    let slot = &[("slots", 1), ("tpm", 1)];
    let denied = a.extend_with(lease, 1, slot, CreditStep::Held).await;
    let ExtendAnswer::Denied { retry_after_ms: first_ms, .. } = denied else { panic!("{denied:?}") };
    a.complete(other, 0).await;
    let again = b.extend_with(lease, 1, slot, CreditStep::Held).await;
    let ExtendAnswer::Denied { retry_after_ms, limited_by, never: false } = again else { panic!("{again:?}") };
    assert_eq!(limited_by, [key("slots")]);
    assert!(retry_after_ms <= first_ms, "{retry_after_ms} of {first_ms}");
    let short = CreditStep::Short { key: key("slots"), why: CreditShortage::Frozen };
    let refused = b.extend_with(lease, 2, slot, short).await;
    for process in [&a, &b] {
        let again = process.extend_with(lease, 2, slot, CreditStep::Held).await;
        let ExtendAnswer::Refused(Refusal::InsufficientCredit { key: limit, why, retry_after_ms }) = again else {
            panic!("{again:?} after {refused:?}")
        };
        assert_eq!((limit, why), (key("slots"), CreditShortage::Frozen));
        assert!(retry_after_ms <= 10_000);
    }
    let blocked = CreditStep::Blocked(Refusal::UnknownLimitKey(key("usd")));
    let answer = b.extend_with(lease, 3, slot, blocked.clone()).await;
    assert_eq!(answer, ExtendAnswer::Refused(Refusal::UnknownLimitKey(key("usd"))));
    let gap = b.extend_with(lease, 4, slot, blocked).await;
    assert!(matches!(gap, ExtendAnswer::Refused(Refusal::InvalidRequest { .. })), "{gap:?}");
    assert!(is_extended(&a.extend_with(lease, 3, slot, CreditStep::Held).await));
    assert_eq!((a.reserved("tpm").await, a.reserved("slots").await), (101, 2));
}

/// Extensions of calendar limits end with their period, those of shadow limits never deny.
async fn calendar_and_shadow_limits_are_extended(server: Ledger) {
    let [a, b] = two(&server).await;
    let months = Kind::Calendar { period: Period::Month, utc_offset_minutes: 0 };
    a.put("tokens", months, 100).await;
    let shadow = earmark_core::Definition { enforce: false, ..definition("shadow", MINUTE, 5) };
    a.registry.put(&namespace(), shadow);
    a.limits.apply_definition(namespace(), key("shadow")).await.unwrap();
    let lease = a.admit(&[("tokens", 10), ("slots", 1)]).await;
    for number in 1..=3 {
        let answer = b.extend_with(lease, number, &[("tokens", 20), ("shadow", 4)], CreditStep::Held).await;
        assert!(is_extended(&answer), "{answer:?}");
    }
    let answer = a.extend_with(lease, 4, &[("tokens", 31)], CreditStep::Held).await;
    assert!(matches!(answer, ExtendAnswer::Denied { .. }), "{answer:?}");
    assert_eq!((a.reserved("tokens").await, a.reserved("shadow").await), (70, 12));
    let request = LimitsComplete {
        namespace: namespace(),
        lease,
        claim: earmark_core::LeaseClaim::default(),
        actuals: amounts(&[("tokens", 55), ("shadow", 0)]),
    };
    assert!(a.limits.complete(vec![request]).await.remove(0).unwrap().reconciled);
    assert_eq!((a.reserved("tokens").await, a.reserved("shadow").await), (55, 8));
}

/// Regression: a process whose cache did not know that another one had extended or ended a lease refused it by name.
async fn a_refusal_by_name_comes_after_what_another_process_did(server: Ledger) {
    let [a, b] = two(&server).await;
    let unknown = &[("nothing", 1)];
    let refused = ExtendAnswer::Refused(Refusal::UnknownLimitKey(key("nothing")));
    let lease = a.admit(&[("tpm", 100), ("slots", 1)]).await;
    assert_eq!(a.extend_with(lease, 1, unknown, CreditStep::Held).await, refused);
    assert!(is_extended(&b.extend(lease, 1).await));
    let reused = a.extend_with(lease, 1, unknown, CreditStep::Held).await;
    assert_eq!(reused, ExtendAnswer::number_reused(1));
    assert_eq!(a.extend_with(lease, 2, unknown, CreditStep::Held).await, refused);
    b.complete(lease, 100).await;
    assert_eq!(a.extend_with(lease, 2, unknown, CreditStep::Held).await, ExtendAnswer::expired());
}

on_ledgers!(
    extensions_and_completes_of_two_processes_never_pass_each_other,
    an_extension_that_races_a_complete_leaks_nothing,
    an_extension_and_a_complete_meet_at_every_step,
    a_process_that_starts_later_knows_every_extension,
    a_denial_is_repeated_by_every_process,
    calendar_and_shadow_limits_are_extended,
    a_refusal_by_name_comes_after_what_another_process_did,
);
