//! Failures of the server: down, restarted, evicting sessions, or with accounts of another application.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use earmark_admission::{BackendError, EnforcedStatus, Limits, LimitsComplete, LimitsReserve, ReserveAnswer};
use earmark_core::{CreditTerms, Kind, Label, LeaseId};
use earmark_tigerbeetle::{OpenError, TigerBeetleLimits, TigerBeetleOptions};
use support::random::Random;
use support::registry::TestRegistry;
use support::server::Server;
use support::{amounts, definition, key, lease, namespace};

const HOUR: Kind = Kind::Rolling { window_seconds: 3_600 };
const DEADLINE: Duration = Duration::from_secs(2);

fn registry() -> Arc<TestRegistry> {
    let registry = TestRegistry::default();
    registry.put(&namespace(), definition("tpm", HOUR, 1_000_000));
    Arc::new(registry)
}

async fn open(server: &Server, registry: Arc<TestRegistry>) -> TigerBeetleLimits {
    let options = TigerBeetleOptions { deadline: DEADLINE, ..server.options() };
    TigerBeetleLimits::open(options, registry).await.unwrap()
}

async fn reserve(limits: &TigerBeetleLimits, lease: LeaseId, amount: u64) -> Result<ReserveAnswer, BackendError> {
    let requirements = amounts(&[("tpm", amount)]);
    limits
        .reserve(vec![LimitsReserve {
            namespace: namespace(),
            lease,
            job: None,
            call: None,
            by_gateway: false,
            requirements,
        }])
        .await
        .remove(0)
}

/// On a busy machine a new server may exceed the deadline; retry with the same lease.
async fn reserve_patiently(limits: &TigerBeetleLimits, lease: LeaseId, amount: u64) {
    let start = Instant::now();
    loop {
        match reserve(limits, lease, amount).await {
            Ok(answer) => return assert!(matches!(answer, ReserveAnswer::Allowed { .. }), "{answer:?}"),
            Err(error) => assert!(start.elapsed() < Duration::from_secs(60), "{error}"),
        }
    }
}

async fn complete(limits: &TigerBeetleLimits, lease: LeaseId, amount: u64) -> Result<bool, BackendError> {
    let actuals = amounts(&[("tpm", amount)]);
    let answers = limits
        .complete(vec![LimitsComplete {
            namespace: namespace(),
            lease,
            claim: earmark_core::LeaseClaim::default(),
            actuals,
        }])
        .await;
    answers.into_iter().next().unwrap().map(|answer| answer.reconciled)
}

async fn reserved(limits: &TigerBeetleLimits, registry: &TestRegistry) -> u64 {
    let info = registry.get(&namespace(), &key("tpm")).unwrap();
    limits.usage(namespace(), info).await.unwrap().reserved
}

async fn eventually_ready(limits: &TigerBeetleLimits) {
    let start = Instant::now();
    while let Err(why) = limits.ready() {
        assert!(start.elapsed() < Duration::from_secs(60), "{why}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn eventually_not_ready(limits: &TigerBeetleLimits) -> String {
    let start = Instant::now();
    loop {
        match limits.ready() {
            Err(why) => return why,
            Ok(()) => assert!(start.elapsed() < Duration::from_secs(60), "it takes silence for readiness"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_later_is_waited_for() {
    let Some(mut server) = Server::format() else { return };
    let registry = registry();
    let limits = open(&server, registry.clone()).await;
    let why = limits.ready().unwrap_err();
    assert!(why.contains(&server.address().to_string()), "{why}");
    let (lease, start) = (lease(), Instant::now());
    let answer = reserve(&limits, lease, 10).await;
    assert!(matches!(answer, Err(BackendError::Failed(_))), "{answer:?}");
    assert!(start.elapsed() < DEADLINE + Duration::from_secs(5), "{:?}", start.elapsed());
    server.up();
    eventually_ready(&limits).await;
    reserve_patiently(&limits, lease, 10).await;
    assert_eq!(reserved(&limits, &registry).await, 10);
}

/// The outcome of a request to a dead server is unknown. A retry with the same lease takes effect exactly once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_goes_away_and_comes_back_needs_no_restart_here() {
    let Some(mut server) = Server::start() else { return };
    let registry = registry();
    let limits = open(&server, registry.clone()).await;
    let held = lease();
    reserve_patiently(&limits, held, 100).await;
    server.kill();
    let lost = lease();
    let answer = reserve(&limits, lost, 10).await;
    assert!(
        matches!(&answer, Err(BackendError::Failed(message)) if message.contains("may still take effect")),
        "{answer:?}"
    );
    assert!(complete(&limits, held, 30).await.is_err());
    let why = eventually_not_ready(&limits).await;
    assert!(why.contains("has not answered for"), "{why}");
    server.up();
    eventually_ready(&limits).await;
    for _ in 0..2 {
        reserve_patiently(&limits, lost, 10).await;
        assert_eq!(complete(&limits, held, 30).await, Ok(true));
    }
    assert_eq!(reserved(&limits, &registry).await, 40);
    limits.shut_down().await;
    assert!(matches!(reserve(&limits, lease(), 1).await, Err(BackendError::Overloaded(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_does_not_wait_for_a_server_that_is_gone() {
    let Some(mut server) = Server::start() else { return };
    let limits = open(&server, registry()).await;
    server.kill();
    let answer = reserve(&limits, lease(), 10).await;
    assert!(answer.is_err(), "{answer:?}");
    let start = Instant::now();
    limits.shut_down().await;
    assert!(start.elapsed() < DEADLINE + Duration::from_secs(5), "{:?}", start.elapsed());
}

/// A server allows 64 sessions and evicts the ones idle for longest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_was_ended_is_replaced() {
    let Some(server) = Server::start() else { return };
    let registry = registry();
    let limits = open(&server, registry.clone()).await;
    let held = lease();
    reserve(&limits, held, 100).await.unwrap();
    for _ in 0..6 {
        let mut crowd = tokio::task::JoinSet::new();
        for _ in 0..11 {
            let client = tigerbeetle::Client::new(0, &server.address().to_string()).unwrap();
            crowd.spawn(async move {
                client.lookup_accounts(&[1]).await.unwrap();
                // A closed client keeps its session until it is evicted.
                client.close().await.unwrap();
            });
        }
        crowd.join_all().await;
    }
    let answer = reserve(&limits, lease(), 1).await;
    assert!(matches!(answer, Ok(ReserveAnswer::Allowed { .. })), "{answer:?}");
    assert_eq!(complete(&limits, held, 30).await, Ok(true));
    assert_eq!(reserved(&limits, &registry).await, 31);
}

/// An account with the same id, created by another application.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_that_is_not_ours_is_a_clear_error() {
    let Some(server) = Server::start() else { return };
    let client = tigerbeetle::Client::new(0, &server.address().to_string()).unwrap();
    let foreign = |name: &str| tigerbeetle::Account {
        id: Label::LimitAccount(&namespace(), &key(name)).id().to_u128(),
        ledger: 1,
        code: 1,
        ..tigerbeetle::Account::default()
    };
    let other_ledger = tigerbeetle::Account { ledger: 7, ..foreign("rpm") };
    client.create_accounts(&[foreign("tps"), other_ledger]).await.unwrap();
    let registry = registry();
    let limits = open(&server, registry.clone()).await;
    for (name, field) in [("tps", "flags"), ("rpm", "flags")] {
        registry.put(&namespace(), definition(name, HOUR, 10));
        let error = limits.apply_definition(namespace(), key(name)).await.unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(field), "{error}");
        for _ in 0..2 {
            let requirements = amounts(&[(name, 1)]);
            let request = LimitsReserve {
                namespace: namespace(),
                lease: lease(),
                job: None,
                call: None,
                by_gateway: false,
                requirements,
            };
            assert!(limits.reserve(vec![request]).await.remove(0).is_err());
            // The background lookup does not use the account either.
            let info = registry.get(&namespace(), &key(name)).unwrap();
            assert_eq!(limits.usage(namespace(), info).await.unwrap().capacity, 0);
        }
    }
    let answer = reserve(&limits, lease(), 1).await;
    assert!(matches!(answer, Ok(ReserveAnswer::Allowed { .. })), "{answer:?}");
    let opened = TigerBeetleLimits::open(server.options(), registry).await;
    assert!(matches!(opened, Err(OpenError::Account(message)) if message.contains("is not one of")));
}

/// A development server accepts 253 transfers per request; 256 calls on four limits are 1,280.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_is_too_much_for_the_server_is_split_between_leases() {
    let Some(server) = Server::start() else { return };
    let registry = registry();
    for name in ["a", "b", "c"] {
        registry.put(&namespace(), definition(name, HOUR, 200));
    }
    let limits = open(&server, registry.clone()).await;
    let parts = [("tpm", 1), ("a", 1), ("b", 1), ("c", 1)];
    for (name, _) in parts {
        assert_eq!(limits.apply_definition(namespace(), key(name)).await.unwrap(), EnforcedStatus::InForce);
    }
    for _ in 0..2 {
        let requests: Vec<_> = (0..256)
            .map(|_| LimitsReserve {
                namespace: namespace(),
                lease: lease(),
                job: None,
                call: None,
                by_gateway: false,
                requirements: amounts(&parts),
            })
            .collect();
        let answers = limits.reserve(requests.clone()).await;
        let is_allowed = |answer: &&Result<ReserveAnswer, _>| matches!(answer, Ok(ReserveAnswer::Allowed { .. }));
        assert_eq!(answers.iter().filter(is_allowed).count(), 200);
        assert!(answers[..200].iter().all(|answer| is_allowed(&answer)));
        let denied = |answer: &Result<ReserveAnswer, _>| matches!(answer, Ok(ReserveAnswer::Denied { .. }));
        assert!(answers[200..].iter().all(denied));
        assert_eq!(reserved(&limits, &registry).await, 200);
        let completes = requests.iter().take(200).map(|request| LimitsComplete {
            namespace: namespace(),
            lease: request.lease,
            claim: earmark_core::LeaseClaim::default(),
            actuals: amounts(&[("tpm", 0), ("a", 0), ("b", 0), ("c", 0)]),
        });
        let answers = limits.complete(completes.collect()).await;
        assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(|answer| answer.reconciled)));
        assert_eq!(reserved(&limits, &registry).await, 0);
    }
}

/// Concurrent changes of one limit are each applied once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_drivers_bring_a_limit_to_one_capacity() {
    let Some(server) = Server::start() else { return };
    let registry = registry();
    let mut drivers = Vec::new();
    for _ in 0..3 {
        drivers.push(Arc::new(open(&server, registry.clone()).await));
    }
    let mut random = Random::new(7);
    let holder = lease();
    assert!(matches!(reserve(&drivers[0], holder, 500).await, Ok(ReserveAnswer::Allowed { .. })));
    for round in 0..40 {
        let mut tasks = Vec::new();
        for driver in drivers.iter().chain(&drivers) {
            let driver = Arc::clone(driver);
            registry.put(&namespace(), definition("tpm", HOUR, random.between(1, 5_000)));
            tasks.push(tokio::spawn(async move { driver.apply_definition(namespace(), key("tpm")).await }));
        }
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        let info = registry.get(&namespace(), &key("tpm")).unwrap();
        let enforced = drivers[0].apply_definition(namespace(), key("tpm")).await.unwrap();
        let usage = drivers[1].usage(namespace(), info.clone()).await.unwrap();
        let wanted = info.definition.capacity;
        if wanted >= 500 {
            assert_eq!((enforced, usage.capacity), (EnforcedStatus::InForce, wanted), "round {round}");
        } else {
            assert_eq!(enforced, EnforcedStatus::Decreasing, "round {round}");
            assert!(usage.capacity >= 500, "round {round}: {usage:?}");
        }
    }
}

/// Regression: a credit-only reserve was sent before setup. If the server came up then, the transfer arrived before the
/// accounts existed. It spent its id, and the lease could never be reserved or completed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_of_credit_alone_waits_for_the_accounts_of_a_ledger_that_comes_later() {
    let Some(mut server) = Server::format() else { return };
    let terms = CreditTerms {
        timeout_seconds: 60,
        vault: "main".parse().unwrap(),
        account: "acme".parse().unwrap(),
        asset: "usd".parse().unwrap(),
        revenue: "revenue".parse().unwrap(),
        on_timeout: Default::default(),
    };
    let registry = TestRegistry::default();
    registry.put(&namespace(), definition("usd", Kind::Credit(terms), 0));
    let limits = open(&server, Arc::new(registry)).await;
    let request = |lease| LimitsReserve {
        namespace: namespace(),
        lease,
        job: None,
        call: None,
        by_gateway: false,
        requirements: amounts(&[("usd", 5)]),
    };
    let leases: Vec<LeaseId> = (0..8).map(|_| lease()).collect();
    for leases in leases.chunks(2) {
        for answer in limits.reserve(leases.iter().copied().map(request).collect()).await {
            assert!(answer.is_err(), "{answer:?}");
        }
    }
    // Nothing is queued that could arrive after the server starts.
    assert_eq!(limits.stats().queue_depth, 0);
    server.up();
    eventually_ready(&limits).await;
    for lease in leases {
        let answer = limits.reserve(vec![request(lease)]).await.remove(0);
        assert!(matches!(answer, Ok(ReserveAnswer::Allowed { .. })), "{answer:?}");
        let complete = LimitsComplete {
            namespace: namespace(),
            lease,
            claim: earmark_core::LeaseClaim::default(),
            actuals: Vec::new(),
        };
        assert!(limits.complete(vec![complete]).await.remove(0).unwrap().reconciled);
    }
}

/// Regression: follow-ups of a batch of retries or repeated completes ran one after the other: 256 round trips within
/// one deadline. After an outage they always timed out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_to_do_for_a_batch_of_retries_is_done_side_by_side() {
    let Some(server) = Server::start() else { return };
    let options = TigerBeetleOptions { deadline: Duration::from_secs(60), ..server.options() };
    let limits = TigerBeetleLimits::open(options, registry()).await.unwrap();
    let leases: Vec<LeaseId> = (0..256).map(|_| lease()).collect();
    let reserves = |leases: &[LeaseId]| -> Vec<LimitsReserve> {
        let requirements = amounts(&[("tpm", 1)]);
        let of = |lease| LimitsReserve {
            namespace: namespace(),
            lease,
            job: None,
            call: None,
            by_gateway: false,
            requirements: requirements.clone(),
        };
        leases.iter().copied().map(of).collect()
    };
    let completes = |leases: &[LeaseId]| -> Vec<LimitsComplete> {
        let of = |lease| LimitsComplete {
            namespace: namespace(),
            lease,
            claim: earmark_core::LeaseClaim::default(),
            actuals: amounts(&[("tpm", 1)]),
        };
        leases.iter().copied().map(of).collect()
    };
    let reserve = async |leases: &[LeaseId]| {
        let start = Instant::now();
        for answer in limits.reserve(reserves(leases)).await {
            assert!(matches!(answer, Ok(ReserveAnswer::Allowed { .. })), "{answer:?}");
        }
        start.elapsed()
    };
    let complete = async |leases: &[LeaseId]| {
        let start = Instant::now();
        for answer in limits.complete(completes(leases)).await {
            assert!(answer.as_ref().is_ok_and(|answer| answer.reconciled), "{answer:?}");
        }
        start.elapsed()
    };
    reserve(&leases).await;
    let start = Instant::now();
    for lease in &leases[..32] {
        assert!(limits.lease(namespace(), *lease).await.unwrap().is_some());
    }
    let look = start.elapsed() / 32;
    // Sequential lookups would take 256 times as long as one.
    let bound = look * 96;
    let mut least = Duration::MAX;
    for _ in 0..5 {
        least = least.min(reserve(&leases).await);
    }
    assert!(least < bound, "reserves: {least:?}, one look: {look:?}");
    complete(&leases).await;
    let mut least = Duration::MAX;
    for _ in 0..5 {
        least = least.min(complete(&leases).await);
    }
    assert!(least < bound, "completes: {least:?}, one look: {look:?}");
}
