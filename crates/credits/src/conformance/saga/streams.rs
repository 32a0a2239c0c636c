//! Streams of random length that renew their lease, report usage, and sometimes die.

use std::collections::BTreeMap;
use std::sync::Arc;

use earmark_admission::{GrowAnswer, HoldAnswer, RenewAnswer};
use earmark_core::{LeaseId, OnTimeout, Overage};

use super::process::{Fixture, HoldSpec, RenewSpec, TestProcess, hold_of, issue, lease, open, options, renewal};
use crate::model::{EntryBody, LeaseKey};
use crate::store::Store;

const CALLERS: usize = 16;
const STREAMS: usize = 4;
/// One in this many streams dies without a word.
const DIES: u64 = 4;

/// A deterministic random number generator.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// The limits of the streams, on one account: by the first a timeout costs what was used, by the second all.
fn parts(random: &mut Random) -> Vec<HoldSpec> {
    let of = |name, on_timeout, amount| HoldSpec {
        name,
        overage: Overage::Deny,
        on_timeout,
        timeout_seconds: 5,
        ..hold_of("acme", amount)
    };
    let release = of("release", OnTimeout::Release, 1 + random.below(20));
    match random.below(3) {
        0 => vec![release, of("charge", OnTimeout::Charge, 1 + random.below(20))],
        _ => vec![release],
    }
}

/// One stream: its lease, and the usage that it reported successfully.
async fn stream(fixture: &Fixture, processes: &[Arc<TestProcess>; 2], random: &mut Random) -> (LeaseId, u64) {
    let (lease, mut used) = (lease(), 0);
    let process = |random: &mut Random| Arc::clone(&processes[random.below(2) as usize]);
    if process(random).hold(lease, &parts(random)).await != HoldAnswer::Held {
        return (lease, 0);
    }
    for number in 1..=random.below(6) as u32 {
        fixture.clock.advance_ms(random.below(400));
        let added = if random.below(2) == 0 { parts(random) } else { vec![] };
        match process(random).grow(lease, number, &added).await {
            GrowAnswer::Held => {}
            GrowAnswer::Refused { .. } => continue,
            GrowAnswer::Ended => return (lease, used),
            other => panic!("{other:?}"),
        }
        if random.below(4) == 0 {
            // The limits refused it.
            process(random).shrink(lease, number, &added).await;
            continue;
        }
        let report = used + random.below(12);
        let spec = RenewSpec {
            parts: &added,
            renew: random.below(2) == 0,
            used: &[("release", report)],
            timeout_seconds: Some(5),
            ..renewal(number)
        };
        match process(random).renew(lease, spec).await {
            RenewAnswer::Alive { .. } => used = report,
            RenewAnswer::Ended => return (lease, used),
            RenewAnswer::Refused { .. } => panic!("nobody returned this growth"),
        }
    }
    if random.below(DIES) > 0 {
        process(random).settle(lease, &[("release", random.below(30)), ("charge", random.below(30))]).await;
    }
    (lease, used)
}

/// The cost of a lease at its limit `release`.
async fn cost_of(fixture: &Fixture, lease: LeaseId) -> u64 {
    let key = LeaseKey { namespace: fixture.namespace.clone(), lease };
    let entries = fixture.store.lease(key).await.expect("a store that answers");
    let costs = entries.iter().filter_map(|stored| match &stored.entry.body {
        EntryBody::Settle(settlement) if settlement.hold.limit.as_str() == "release" => {
            Some(settlement.paid + settlement.uncollected)
        }
        _ => None,
    });
    costs.sum()
}

/// Two processes serve streams, some of which die, while others sweep. The account never owes, no credit is lost, and
/// every lease pays at least what it reported.
pub async fn streams_that_die_pay_what_they_used(stores: [Arc<dyn Store>; 2]) {
    let fixture = Arc::new(Fixture::new(&stores[0]));
    let [one, other] = stores;
    let processes =
        [Arc::new(fixture.process_on(one, options()).await), Arc::new(fixture.process_on(other, options()).await)];
    processes[0].write_next(vec![open("acme"), issue("acme", 900)]).await;
    let callers = (0..CALLERS).map(|caller| {
        let (fixture, processes) = (Arc::clone(&fixture), processes.clone());
        tokio::spawn(async move {
            let (mut random, mut streams) = (Random(caller as u64 * 2_654_435_761 + 7), BTreeMap::new());
            for _ in 0..STREAMS {
                let (lease, used) = stream(&fixture, &processes, &mut random).await;
                streams.insert(lease, used);
                let (available, held, _) = processes[0].balance_in("main", "acme").await.expect("an account");
                assert!(available >= 0 && held >= 0, "{available} and {held}");
                processes[caller % 2].maintain().await;
            }
            streams
        })
    });
    let mut streams = BTreeMap::new();
    for caller in callers.collect::<Vec<_>>() {
        streams.extend(caller.await.expect("a caller that is served"));
    }
    fixture.clock.advance_ms(10_000);
    for process in &processes {
        process.maintain().await;
    }
    for (lease, used) in &streams {
        let cost = cost_of(&fixture, *lease).await;
        assert!(cost >= *used, "{lease} cost {cost}, and reported {used}");
    }
    let ((available, held), (paid, _)) = (processes[0].balance("acme").await, processes[1].balance("revenue").await);
    assert_eq!((held, available + paid), (0, 900));
    assert!(paid > 0 && available >= 0, "{paid} paid, {available} left");
    assert!(streams.values().filter(|used| **used > 0).count() > STREAMS, "{streams:?}");
    processes[1].assert_balanced("main").await;
    assert_eq!(fixture.store.orphans(9).await, Ok(vec![]));
}
