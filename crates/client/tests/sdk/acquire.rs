//! Admission: waiting, errors that waiting cannot cure, and completes.

use std::time::{Duration, Instant};

use earmark_client::core::Kind;
use earmark_client::{
    AcquireError, Actuals, Certainty, Client, Deadline, Failure, Guard, Limiter, LimiterOptions, Protocol, TryAcquire,
};

use crate::fixture::{
    ALLOWED, COMPLETED, ScriptedServer, TestServer, client_of, each_way, limiter, ok, refused, unauthorized,
};
use crate::support::proxy::Proxy;
use crate::support::{concurrency, job, key, limit, rolling, soon};

async fn reserved(client: &Client, name: &str) -> u64 {
    client.usage(&key(name), soon()).await.unwrap().reserved
}

async fn admitted(limiter: &Limiter, parts: &[(&str, u64)]) -> Guard {
    match limiter.try_acquire(&job(parts), soon()).await.unwrap() {
        TryAcquire::Admitted(guard) => guard,
        TryAcquire::Denied(denial) => panic!("{denial:?}"),
    }
}

#[tokio::test]
async fn a_guard_frees_what_was_not_used_every_way() {
    for (way, client, _server) in each_way().await {
        for definition in [concurrency("slots", 2), rolling("tokens", 100, 3_600)] {
            client.put_limit(&definition, soon()).await.unwrap();
        }
        let limiter = limiter(&client);
        let guard = admitted(&limiter, &[("slots", 1), ("tokens", 60)]).await;
        assert_eq!(guard.lease().to_string().len(), 26);
        let TryAcquire::Denied(denial) =
            limiter.try_acquire(&job(&[("slots", 1), ("tokens", 60)]), soon()).await.unwrap()
        else {
            panic!("{way}: 120 of 100 tokens were admitted");
        };
        assert_eq!(denial.limited_by, [key("tokens")], "{way}");
        assert!(denial.retry_after > Duration::ZERO, "{way}");
        let completed = guard.complete(Actuals::unknown().used(key("tokens"), 10)).await.unwrap();
        assert!(completed.reconciled, "{way}");
        assert_eq!((reserved(&client, "slots").await, reserved(&client, "tokens").await), (0, 10), "{way}");

        let guard = admitted(&limiter, &[("slots", 1), ("tokens", 60)]).await;
        assert!(guard.release().await.unwrap().reconciled, "{way}");
        assert_eq!((reserved(&client, "slots").await, reserved(&client, "tokens").await), (0, 10), "{way}");

        drop(admitted(&limiter, &[("slots", 1), ("tokens", 60)]).await);
        assert!(limiter.flush(soon()).await, "{way}");
        assert_eq!((reserved(&client, "slots").await, reserved(&client, "tokens").await), (0, 70), "{way}");

        let used = Actuals::unknown().used(key("tokens"), 0).used(key("other"), 7);
        let completed = admitted(&limiter, &[("slots", 1), ("tokens", 1)]).await.complete(used).await.unwrap();
        assert_eq!(completed.message.as_deref(), Some("not reserved, so ignored: other"), "{way}");
        assert_eq!(limiter.abandoned(), 0, "{way}");
    }
}

#[tokio::test]
async fn an_error_that_waiting_cannot_cure_is_returned_at_once_every_way() {
    for (way, client, _server) in each_way().await {
        let credit = Kind::Credit(earmark_client::core::CreditTerms {
            timeout_seconds: 60,
            vault: "main".parse().unwrap(),
            account: "nobody".parse().unwrap(),
            asset: "usd".parse().unwrap(),
            revenue: "revenue".parse().unwrap(),
            on_timeout: Default::default(),
        });
        for definition in [concurrency("slots", 2), limit("credit", credit, 0)] {
            client.put_limit(&definition, soon()).await.unwrap();
        }
        let limiter = limiter(&client);
        let never = limiter.acquire(&job(&[("slots", 3)]), soon()).await.unwrap_err();
        assert_eq!(never, AcquireError::Never { limited_by: vec![key("slots")] }, "{way}");
        let unknown = limiter.acquire(&job(&[("slots", 1), ("what", 1)]), soon()).await.unwrap_err();
        assert_eq!(unknown, AcquireError::UnknownLimitKey { key: key("what") }, "{way}");
        let poor = limiter.acquire(&job(&[("slots", 1), ("credit", 1)]), soon()).await.unwrap_err();
        assert_eq!(poor, AcquireError::AccountNotFound { key: key("credit") }, "{way}");
        assert_eq!(reserved(&client, "slots").await, 0, "{way}");
    }
}

#[tokio::test]
async fn an_acquire_waits_until_there_is_room_every_way() {
    for (way, client, _server) in each_way().await {
        client.put_limit(&concurrency("slots", 1), soon()).await.unwrap();
        let limiter = limiter(&client);
        let first = admitted(&limiter, &[("slots", 1)]).await;
        let waiting = tokio::spawn({
            let limiter = limiter.clone();
            async move { limiter.acquire(&job(&[("slots", 1)]), soon()).await.map(drop) }
        });
        tokio::time::sleep(Duration::from_millis(60)).await;
        assert!(!waiting.is_finished(), "{way}: two have one slot");
        first.complete(Actuals::unknown()).await.unwrap();
        waiting.await.unwrap().unwrap();
        limiter.flush(soon()).await;
        assert_eq!(reserved(&client, "slots").await, 0, "{way}");
    }
}

#[tokio::test]
async fn a_passed_deadline_names_the_limits_without_room() {
    for (way, client, _server) in each_way().await {
        client.put_limit(&concurrency("slots", 1), soon()).await.unwrap();
        let limiter = limiter(&client);
        let _held = admitted(&limiter, &[("slots", 1)]).await;
        let start = Instant::now();
        let deadline = Deadline::after(Duration::from_millis(300));
        let error = limiter.acquire(&job(&[("slots", 1)]), deadline).await.unwrap_err();
        assert!(start.elapsed() >= Duration::from_millis(300), "{way}");
        let AcquireError::DeadlinePassed { denial: Some(denial), .. } = error else { panic!("{way}: {error}") };
        assert_eq!(denial.limited_by, [key("slots")], "{way}");
    }
}

/// The reserve reaches the server, and its caller is gone before the answer arrives.
#[tokio::test]
async fn an_acquire_that_is_cancelled_half_way_leaves_nothing_behind() {
    let server = TestServer::start().await;
    let direct = server.client(Protocol::Http);
    for definition in [concurrency("slots", 4), rolling("tokens", 1_000, 3_600)] {
        direct.put_limit(&definition, soon()).await.unwrap();
    }
    for batching in [Some(earmark_client::BatchOptions::default()), None] {
        let limiter = Limiter::new(&direct, LimiterOptions { batching, ..LimiterOptions::default() }).unwrap();
        let what = job(&[("slots", 1), ("tokens", 5)]);
        for wait_us in (0..2_000).step_by(20) {
            let acquire = limiter.acquire(&what, soon());
            if let Ok(admitted) = tokio::time::timeout(Duration::from_micros(wait_us), acquire).await {
                admitted.unwrap().release().await.unwrap();
            }
        }
        assert!(limiter.flush(soon()).await);
        // A reserve that was sent before its caller gave up may arrive after the complete, and must be void.
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!((reserved(&direct, "slots").await, reserved(&direct, "tokens").await), (0, 0), "{batching:?}");
        assert_eq!(limiter.abandoned(), 0);
    }
}

/// A new lease for a lost answer would take the slot twice.
#[tokio::test]
async fn an_unknown_outcome_is_retried_with_the_same_lease() {
    let server = TestServer::start().await;
    let direct = server.client(Protocol::Http);
    for definition in [concurrency("slots", 1), rolling("tokens", 1_000_000, 3_600)] {
        direct.put_limit(&definition, soon()).await.unwrap();
    }
    let proxy = Proxy::http(&server.address.to_string(), 7, 2).await;
    let limiter = limiter(&client_of(&[proxy.url()], Protocol::Http));
    for _ in 0..60 {
        // With one slot, a second lease of the same job would never be admitted.
        let guard = limiter.acquire(&job(&[("slots", 1), ("tokens", 2)]), soon()).await.unwrap();
        guard.complete(Actuals::unknown().used(key("tokens"), 1)).await.unwrap();
    }
    assert!(proxy.faults().iter().all(|(_, count)| *count > 0), "{:?}", proxy.faults());
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!((reserved(&direct, "slots").await, reserved(&direct, "tokens").await), (0, 60));
}

#[tokio::test]
async fn a_server_that_is_down_is_retried_and_leaves_nothing_to_complete() {
    let server = TestServer::start().await;
    server.client(Protocol::Http).put_limit(&concurrency("slots", 1), soon()).await.unwrap();
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let limiter = limiter(&client_of(&[format!("http://{gone}")], Protocol::Http));
    let deadline = Deadline::after(Duration::from_millis(100));
    let error = limiter.acquire(&job(&[("slots", 1)]), deadline).await.unwrap_err();
    let AcquireError::DeadlinePassed { failure: Some(Failure::Unreachable { .. }), .. } = error else {
        panic!("{error:?}");
    };
    // Nothing was sent, so no complete is pending.
    assert!(limiter.flush(Deadline::after(Duration::ZERO)).await);
}

#[test]
fn a_guard_may_be_dropped_outside_of_a_runtime() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (client, limiter, guard, _server) = runtime.block_on(async {
        let server = TestServer::start().await;
        let client = server.client(Protocol::Grpc);
        client.put_limit(&concurrency("slots", 1), soon()).await.unwrap();
        let limiter = limiter(&client);
        let guard = admitted(&limiter, &[("slots", 1)]).await;
        (client, limiter, guard, server)
    });
    drop(guard);
    runtime.block_on(async {
        assert!(limiter.flush(soon()).await);
        assert_eq!(reserved(&client, "slots").await, 0);
    });
}

#[test]
fn without_a_runtime_there_is_an_error_and_no_panic() {
    let mut options = earmark_client::ClientOptions::of(&["http://127.0.0.1:1"]).unwrap();
    options.protocol = Protocol::Grpc;
    assert!(matches!(Client::new(options), Err(earmark_client::OptionsError::NoRuntime)));
    let client = Client::local(earmark_client::LocalOptions::default()).unwrap();
    assert!(Limiter::new(&client, LimiterOptions::default()).is_err());
}

/// The answer to a reserve was lost, and the limit was deleted meanwhile. The refusal of the second copy tells nothing
/// about a first one that arrives late. It was not completed, and held its slot until it expired.
#[tokio::test]
async fn a_refusal_that_servers_do_not_remember_completes_an_earlier_copy() {
    for (is_first, error) in [
        (false, "unknown_limit_key:slots"),
        (false, "limit_decreasing:slots"),
        (true, "unknown_limit_key:slots"),
        (true, "limit_decreasing:slots"),
    ] {
        let mut reserves = u32::from(is_first);
        let script = ScriptedServer::by(move |request| {
            if request.starts_with("POST /v1/complete ") {
                return ok(COMPLETED);
            }
            reserves += 1;
            (reserves > 1).then(|| (200, refused(error, 9)))
        })
        .await;
        let limiter = limiter(&script.client());
        let _ = limiter.try_acquire(&job(&[("slots", 1)]), soon()).await;
        assert!(limiter.flush(soon()).await);
        let leases = leases(&script, "");
        assert!(leases.windows(2).all(|pair| pair[0] == pair[1]), "{leases:?}");
        let completes = script.requests().iter().filter(|one| one.contains("\"actual_amount\":0")).count();
        assert_eq!((leases.len() - completes, completes), if is_first { (1, 0) } else { (2, 1) }, "{error}");
    }
}

/// The lease ids of the requests to a path.
fn leases(script: &ScriptedServer, path: &str) -> Vec<String> {
    let requests = script.requests();
    let requests = requests.iter().filter(|request| request.starts_with(&format!("POST {path}")));
    let rest = requests.filter_map(|request| request.split("\"lease_id\":\"").nth(1));
    rest.map(|rest| rest[..26].to_owned()).collect()
}

/// A wall clock that advances 4 minutes at each read.
struct FastClock(std::sync::atomic::AtomicU64);

impl earmark_client::Env for FastClock {
    fn wall(&self) -> earmark_client::core::UnixMs {
        let step_ms = 4 * 60_000;
        let moment = self.0.fetch_add(step_ms, std::sync::atomic::Ordering::SeqCst);
        earmark_client::core::UnixMs::new(1_700_000_000_000 + moment)
    }

    fn random(&self) -> u64 {
        self.0.load(std::sync::atomic::Ordering::SeqCst)
    }
}

/// The servers were down for longer than their retention of leases. The caller retried with its old lease, which was
/// refused for its age, and took that for a malformed request.
#[tokio::test]
async fn an_attempt_that_outlives_its_lease_takes_a_new_one_and_completes_the_old_one() {
    let mut reserves = 0;
    let script = ScriptedServer::by(move |request| {
        if request.starts_with("POST /v1/complete ") {
            return ok(COMPLETED);
        }
        reserves += 1;
        ok(ALLOWED).filter(|_| reserves > 3)
    })
    .await;
    let options = earmark_client::ClientOptions::of(&[&script.url]).unwrap();
    let client = Client::new(options.with_env(std::sync::Arc::new(FastClock(0.into())))).unwrap();
    let limiter = limiter(&client);
    let guard = limiter.acquire(&job(&[("slots", 1)]), soon()).await.unwrap();
    assert!(limiter.flush(soon()).await);
    // Each lease is sent twice: after 4 minutes it is young enough, and after 8 it is not.
    let (reserved, completed) = (leases(&script, "/v1/reserve "), leases(&script, "/v1/complete "));
    assert_eq!(reserved.len(), 4);
    assert_eq!((&reserved[0], &reserved[2]), (&reserved[1], &reserved[3]));
    assert_eq!(completed, [reserved[0].clone()]);
    assert_eq!(guard.lease().to_string(), reserved[3]);
}

#[tokio::test]
async fn a_request_that_is_refused_as_invalid_is_returned_at_once() {
    let answer = refused("invalid_request", 9_000).replace("\"limited_by\":[\"a\"]", "\"message\":\"too old\"");
    for (status, body) in [(200, answer), (400, r#"{"error":"invalid_request","message":"too old"}"#.to_owned())] {
        let script = ScriptedServer::by(move |request| match request.starts_with("POST /v1/complete ") {
            true => ok(COMPLETED),
            false => Some((status, body.clone())),
        })
        .await;
        let limiter = limiter(&script.client());
        let error = limiter.acquire(&job(&[("slots", 1)]), soon()).await.unwrap_err();
        let AcquireError::InvalidRequest { message } = error else { panic!("{error:?}") };
        assert!(message.ends_with("too old"), "{message}");
        assert!(limiter.flush(soon()).await);
        assert_eq!(script.count("POST /v1/reserve "), 1);
    }
}

/// A server names the limit whose capacity is too small in `error` too, for clients that know no `never`.
#[tokio::test]
async fn an_amount_beyond_the_capacity_is_never_admitted() {
    let never = refused("exceeds_capacity:a", 60_000).replace("\"error\"", "\"never\":true,\"error\"");
    let script = ScriptedServer::by(move |_| ok(&never)).await;
    let error = limiter(&script.client()).acquire(&job(&[("a", 9)]), soon()).await.unwrap_err();
    assert_eq!(error, AcquireError::Never { limited_by: vec![key("a")] });
    assert_eq!(script.requests().len(), 1);
}

#[tokio::test]
async fn a_key_goes_with_every_request_and_is_refused_by_name() {
    let script = ScriptedServer::by(|_| unauthorized()).await;
    let mut options = earmark_client::ClientOptions::of(&[&script.url]).unwrap();
    options.key = Some(earmark_client::ApiKey::new("em_secret").unwrap());
    let client = Client::new(options).unwrap();
    let message = "no such key".to_owned();
    let error = limiter(&client).acquire(&job(&[("slots", 1)]), soon()).await.unwrap_err();
    assert_eq!(error, AcquireError::Unauthorized { message: message.clone() });
    let failure = client.usage(&key("slots"), soon()).await.unwrap_err();
    assert_eq!(failure, Failure::Unauthorized { message });
    let requests = script.requests();
    assert_eq!(requests.len(), 2, "{requests:?}");
    assert!(requests.iter().all(|one| one.contains("\r\nauthorization: Bearer em_secret\r\n")), "{requests:?}");
}

/// A key is revoked while a request has no answer: the refusal of the next attempt tells nothing about the first.
#[tokio::test]
async fn a_complete_that_is_refused_after_an_attempt_without_an_answer_may_have_happened() {
    for (first, is_known) in [(None, false), (unauthorized(), true)] {
        let mut answers = vec![first, unauthorized()].into_iter();
        let script = ScriptedServer::by(move |request| match request.starts_with("POST /v1/reserve ") {
            true => ok(ALLOWED),
            false => answers.next().flatten(),
        })
        .await;
        let guard = limiter(&script.client()).acquire(&job(&[("slots", 1)]), soon()).await.unwrap();
        let failure = guard.complete(Actuals::unknown()).await.unwrap_err();
        let refusal = Failure::Unauthorized { message: "no such key".to_owned() };
        let certainty = if is_known { Certainty::NothingHappened } else { Certainty::Unknown };
        assert_eq!(failure.certainty(), certainty);
        let later = Failure::UnknownThenRefused { refusal: Box::new(refusal.clone()) };
        assert_eq!(failure, if is_known { refusal } else { later });
    }
}
