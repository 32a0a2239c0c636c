//! The batcher: callers share requests, and none waits for others.

use std::sync::Arc;

use earmark_client::{AcquireError, Actuals, BatchOptions, Limiter, LimiterOptions, Protocol, TryAcquire};
use tokio::sync::Barrier;

use crate::fixture::{ALLOWED, COMPLETED, ScriptedServer, TestServer, client_of, limiter, ok};
use crate::support::proxy::Proxy;
use crate::support::{concurrency, job, key, rolling, soon};

const CALLERS: usize = 1_000;

async fn run(in_flight_max: Option<usize>, keys: usize) -> (u64, TestServer, Proxy) {
    let server = TestServer::start().await;
    let direct = server.client(Protocol::Http);
    let long = "k".repeat(240);
    let names: Vec<String> = (0..keys).map(|number| format!("{long}:{number}")).collect();
    for name in &names {
        direct.put_limit(&rolling(name, 1 << 40, 3_600), soon()).await.unwrap();
    }
    let proxy = server.proxy().await;
    let batching = in_flight_max.map(|in_flight_max| BatchOptions { in_flight_max, waiting_max: 65_536 });
    let options = LimiterOptions { batching, ..LimiterOptions::default() };
    let limiter = Limiter::new(&client_of(&[proxy.url()], Protocol::Http), options).unwrap();
    let parts: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let job = Arc::new(job(&parts));
    let barrier = Arc::new(Barrier::new(CALLERS));
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (limiter, job, barrier) = (limiter.clone(), Arc::clone(&job), Arc::clone(&barrier));
            tokio::spawn(async move {
                barrier.wait().await;
                let guard = limiter.acquire(&job, soon()).await.unwrap();
                assert!(guard.complete(Actuals::nothing_of(&job)).await.unwrap().reconciled);
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    for name in &names {
        assert_eq!(direct.usage(&key(name), soon()).await.unwrap().reserved, 0);
    }
    (proxy.through(), server, proxy)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_callers_share_few_requests() {
    let (batched, ..) = run(Some(2), 2).await;
    // 1,000 reserves and 1,000 completes are at least 4 batches of 256 each.
    assert!((8..=200).contains(&batched), "{batched} requests");
}

/// The server refuses a batch with a malformed item as a whole, and all callers of the batch failed.
#[tokio::test]
async fn a_malformed_item_fails_alone_and_not_the_batch_that_it_is_in() {
    let server = ScriptedServer::by(|request| {
        if request.contains(r#""malformed""#) {
            return Some((400, r#"{"error":"invalid_request","message":"found malformed"}"#.to_owned()));
        }
        let one = if request.contains("/v1/reserve") { ALLOWED } else { COMPLETED };
        let items = vec![one; request.matches("lease_id").count()].join(",");
        ok(&if request.contains("/batch ") { format!(r#"{{"results":[{items}]}}"#) } else { items })
    })
    .await;
    let limiter = limiter(&client_of(std::slice::from_ref(&server.url), Protocol::Http));
    let mut callers = Vec::new();
    for number in 0..20 {
        let (limiter, job) = (limiter.clone(), job(&[(if number == 7 { "malformed" } else { "slots" }, 1)]));
        callers.push(tokio::spawn(async move { limiter.acquire(&job, soon()).await }));
    }
    for (number, caller) in callers.into_iter().enumerate() {
        match caller.await.unwrap() {
            Ok(guard) => assert!(guard.release().await.unwrap().reconciled),
            Err(AcquireError::InvalidRequest { .. }) => assert_eq!(number, 7),
            Err(other) => panic!("{number}: {other}"),
        }
    }
    assert!(server.count("POST /v1/reserve/batch ") > 1, "they shared a batch");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_is_larger_than_a_server_takes() {
    // 256 such reserves are 2.4 MB, and a server accepts 1 MiB.
    let (batched, ..) = run(Some(1), 32).await;
    assert!(batched >= 20, "{batched} requests");
}

#[tokio::test]
async fn one_caller_alone_has_a_request_of_its_own() {
    let server = TestServer::start().await;
    server.client(Protocol::Http).put_limit(&concurrency("slots", 1), soon()).await.unwrap();
    let proxy = server.proxy().await;
    let limiter = limiter(&client_of(&[proxy.url()], Protocol::Http));
    for done in 1..=5 {
        let guard = limiter.acquire(&job(&[("slots", 1)]), soon()).await.unwrap();
        guard.complete(Actuals::unknown()).await.unwrap();
        // A reserve and a complete never share a request, and neither waits for another caller.
        assert_eq!(proxy.through(), done * 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_beyond_the_bound_wait_and_are_served() {
    let server = TestServer::start().await;
    let direct = server.client(Protocol::Http);
    direct.put_limit(&rolling("tokens", 1 << 40, 3_600), soon()).await.unwrap();
    let batching = Some(BatchOptions { in_flight_max: 1, waiting_max: 4 });
    let limiter = Limiter::new(&direct, LimiterOptions { batching, ..LimiterOptions::default() }).unwrap();
    let callers: Vec<_> = (0..100)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let guard = limiter.acquire(&job(&[("tokens", 5)]), soon()).await.unwrap();
                guard.complete(Actuals::unknown().used(key("tokens"), 3)).await.unwrap();
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    assert_eq!(direct.usage(&key("tokens"), soon()).await.unwrap().reserved, 300);
}

#[tokio::test]
async fn each_caller_of_a_batch_gets_its_own_answer() {
    let server = TestServer::start().await;
    let direct = server.client(Protocol::Http);
    for definition in [concurrency("slots", 1), rolling("tokens", 10, 3_600)] {
        direct.put_limit(&definition, soon()).await.unwrap();
    }
    let proxy = server.proxy().await;
    let limiter = limiter(&client_of(&[proxy.url()], Protocol::Http));
    let (slot, tokens) = (job(&[("slots", 1)]), job(&[("tokens", 4)]));
    let (too_much, unknown) = (job(&[("tokens", 11)]), job(&[("what", 1)]));
    // All wait before the batcher runs, so they share a request.
    let answers = tokio::join!(
        limiter.try_acquire(&slot, soon()),
        limiter.try_acquire(&slot, soon()),
        limiter.try_acquire(&too_much, soon()),
        limiter.try_acquire(&unknown, soon()),
        limiter.try_acquire(&tokens, soon()),
    );
    assert_eq!(proxy.through(), 1);
    let (Ok(TryAcquire::Admitted(slot)), Ok(TryAcquire::Denied(denial)), never, unknown, tokens) = answers else {
        panic!("{answers:?}")
    };
    assert_eq!(denial.limited_by, [key("slots")]);
    assert_eq!(never.unwrap_err(), AcquireError::Never { limited_by: vec![key("tokens")] });
    assert_eq!(unknown.unwrap_err(), AcquireError::UnknownLimitKey { key: key("what") });
    let Ok(TryAcquire::Admitted(tokens)) = tokens else { panic!("{tokens:?}") };
    slot.complete(Actuals::unknown()).await.unwrap();
    tokens.complete(Actuals::unknown().used(key("tokens"), 3)).await.unwrap();
    for (name, left) in [("slots", 0), ("tokens", 3)] {
        assert_eq!(direct.usage(&key(name), soon()).await.unwrap().reserved, left, "{name}");
    }
}
