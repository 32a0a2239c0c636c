//! The batch size of a server with the settings for production: 8,189 events, where a development server has 253.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use earmark_admission::{EnforcedStatus, Limits, LimitsComplete, LimitsReserve, ReserveAnswer};
use earmark_core::{Kind, Label, LeaseClaim};
use earmark_tigerbeetle::{TigerBeetleLimits, TigerBeetleOptions};
use support::ledger::Ledger;
use support::registry::TestRegistry;
use support::stand_in::StandIn;
use support::{amounts, definition, key, lease, namespace};
use tigerbeetle::{AccountFilter, AccountFilterFlags};

const BATCH_EVENTS: usize = 8_189;
/// Leases with an anchor and four limits each: 8,185 transfers, which fit into one request.
const LEASES: usize = 1_637;
const CAPACITY: usize = 1_000;
const LIMITS: [&str; 4] = ["a", "b", "c", "d"];
const HOUR: Kind = Kind::Rolling { window_seconds: 3_600 };
const PATIENCE: Duration = Duration::from_secs(60);

async fn reserved(limits: &TigerBeetleLimits, registry: &TestRegistry) -> Vec<u64> {
    let mut reserved = Vec::new();
    for name in LIMITS {
        let info = registry.get(&namespace(), &key(name)).unwrap();
        reserved.push(limits.usage(namespace(), info).await.unwrap().reserved);
    }
    reserved
}

/// The times of the newest reservations on the first limit. Those of one request are consecutive nanoseconds.
async fn times(ledger: &Ledger) -> Vec<u64> {
    let filter = AccountFilter {
        account_id: Label::LimitAccount(&namespace(), &key("a")).id().to_u128(),
        limit: u32::try_from(CAPACITY).unwrap(),
        flags: AccountFilterFlags::Debits | AccountFilterFlags::Credits | AccountFilterFlags::Reversed,
        ..AccountFilter::default()
    };
    let transfers = ledger.client().account_transfers(filter).await.unwrap();
    transfers.into_iter().map(|transfer| transfer.timestamp).collect()
}

/// A full batch is one request, and a larger one is split between leases.
async fn a_full_batch_is_one_request(ledger: Ledger) {
    let registry = Arc::new(TestRegistry::default());
    for name in LIMITS {
        registry.put(&namespace(), definition(name, HOUR, CAPACITY as u64));
    }
    let options = TigerBeetleOptions { deadline: PATIENCE, sessions: 1, ..ledger.options() };
    let limits = TigerBeetleLimits::open(options, registry.clone()).await.unwrap();
    for name in LIMITS {
        assert_eq!(limits.apply_definition(namespace(), key(name)).await.unwrap(), EnforcedStatus::InForce);
    }
    for leases in [LEASES, 2 * LEASES] {
        let requests: Vec<_> = (0..leases)
            .map(|_| LimitsReserve {
                namespace: namespace(),
                lease: lease(),
                job: None,
                call: None,
                by_gateway: false,
                requirements: amounts(&LIMITS.map(|name| (name, 1))),
            })
            .collect();
        let answers = limits.reserve(requests.clone()).await;
        let (allowed, denied) = answers.split_at(CAPACITY);
        assert!(allowed.iter().all(|answer| matches!(answer, Ok(ReserveAnswer::Allowed { .. }))));
        assert!(denied.iter().all(|answer| matches!(answer, Ok(ReserveAnswer::Denied { .. }))));
        assert_eq!(reserved(&limits, &registry).await, [CAPACITY as u64; 4]);
        let times = times(&ledger).await;
        assert_eq!(times.len(), CAPACITY);
        assert!(times[0] - times[CAPACITY - 1] < BATCH_EVENTS as u64, "{leases} leases: more than one request");
        let completes = requests.iter().take(CAPACITY).map(|request| LimitsComplete {
            namespace: namespace(),
            lease: request.lease,
            claim: LeaseClaim::default(),
            actuals: amounts(&LIMITS.map(|name| (name, 0))),
        });
        let answers = limits.complete(completes.collect()).await;
        assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(|answer| answer.reconciled)));
        assert_eq!(reserved(&limits, &registry).await, [0; 4]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_batch_is_one_request_to_the_stand_in() {
    a_full_batch_is_one_request(Ledger::StandIn(StandIn::start_for_production())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_batch_is_one_request_to_a_real_server() {
    if let Some(ledger) = Ledger::server_for_production() {
        a_full_batch_is_one_request(ledger).await;
    }
}
