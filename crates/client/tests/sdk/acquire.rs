//! Admission: what is waited for, what is not, and what is given back.

use std::time::{Duration, Instant};

use earmark_client::core::Kind;
use earmark_client::{
    AcquireError, Actuals, Certainty, Client, Deadline, Failure, Guard, Limiter, LimiterOptions, Protocol,
    TryAcquire,
};

use crate::scripted::Scripted;
use crate::served::{Served, client_of, each_way};
use crate::support::proxy::Proxy;
use crate::support::{concurrency, job, key, limit, rolling, soon};

fn limiter(client: &Client) -> Limiter {
    Limiter::new(client, LimiterOptions::default()).unwrap()
}

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
async fn a_guard_gives_back_what_was_not_used_every_way() {
    for (way, client, _served) in each_way().await {
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
        let completed =
            admitted(&limiter, &[("slots", 1), ("tokens", 1)]).await.complete(used).await.unwrap();
        assert_eq!(completed.message.as_deref(), Some("not reserved, so ignored: other"), "{way}");
        assert_eq!(limiter.abandoned(), 0, "{way}");
    }
}

#[tokio::test]
async fn what_waiting_cannot_cure_is_returned_at_once_every_way() {
    for (way, client, _served) in each_way().await {
        let credit = Kind::Credit(earmark_client::core::CreditTerms {
            timeout_seconds: 60,
            vault: "main".parse().unwrap(),
            account: "nobody".parse().unwrap(),
            asset: "usd".parse().unwrap(),
            revenue: "revenue".parse().unwrap(),
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
        let AcquireError::InsufficientCredit { key: poor, message: Some(_) } = poor else {
            panic!("{way}: {poor}")
        };
        assert_eq!(poor, key("credit"), "{way}");
        assert_eq!(reserved(&client, "slots").await, 0, "{way}");
    }
}

#[tokio::test]
async fn an_acquire_waits_until_there_is_room_every_way() {
    for (way, client, _served) in each_way().await {
        client.put_limit(&concurrency("slots", 1), soon()).await.unwrap();
        let limiter = limiter(&client);
        let first = admitted(&limiter, &[("slots", 1)]).await;
        let waiting = tokio::spawn({
            let limiter = limiter.clone();
            async move { limiter.acquire(&job(&[("slots", 1)]), soon()).await.map(drop) }
        });
        tokio::time::sleep(Duration::from_millis(120)).await;
        assert!(!waiting.is_finished(), "{way}: two have one slot");
        first.complete(Actuals::unknown()).await.unwrap();
        waiting.await.unwrap().unwrap();
        limiter.flush(soon()).await;
        assert_eq!(reserved(&client, "slots").await, 0, "{way}");
    }
}

#[tokio::test]
async fn a_deadline_that_passes_says_what_was_in_the_way() {
    for (way, client, _served) in each_way().await {
        client.put_limit(&concurrency("slots", 1), soon()).await.unwrap();
        let limiter = limiter(&client);
        let _held = admitted(&limiter, &[("slots", 1)]).await;
        let start = Instant::now();
        let deadline = Deadline::after(Duration::from_millis(800));
        let error = limiter.acquire(&job(&[("slots", 1)]), deadline).await.unwrap_err();
        assert!(start.elapsed() >= Duration::from_millis(800), "{way}");
        let AcquireError::DeadlinePassed { denial: Some(denial), .. } = error else {
            panic!("{way}: {error}")
        };
        assert_eq!(denial.limited_by, [key("slots")], "{way}");
    }
}

/// The reserve reaches the server, its answer does not reach anybody, and nobody waits for it any more.
#[tokio::test]
async fn an_acquire_that_is_cancelled_half_way_leaves_nothing_behind() {
    let served = Served::start().await;
    let direct = served.client(Protocol::Http);
    for definition in [concurrency("slots", 4), rolling("tokens", 1_000, 3_600)] {
        direct.put_limit(&definition, soon()).await.unwrap();
    }
    for batching in [Some(earmark_client::BatchOptions::default()), None] {
        let limiter =
            Limiter::new(&direct, LimiterOptions { batching, ..LimiterOptions::default() }).unwrap();
        let what = job(&[("slots", 1), ("tokens", 5)]);
        for wait_us in (0..2_000).step_by(20) {
            let acquire = limiter.acquire(&what, soon());
            if let Ok(admitted) = tokio::time::timeout(Duration::from_micros(wait_us), acquire).await {
                admitted.unwrap().release().await.unwrap();
            }
        }
        assert!(limiter.flush(soon()).await);
        // A reserve that was sent before its caller gave up may come after the complete; it must find it.
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(
            (reserved(&direct, "slots").await, reserved(&direct, "tokens").await),
            (0, 0),
            "{batching:?}"
        );
        assert_eq!(limiter.abandoned(), 0);
    }
}

/// A lease whose answer was lost is asked for again; a new one would take the slot twice.
#[tokio::test]
async fn an_unknown_outcome_is_retried_with_the_same_lease() {
    let served = Served::start().await;
    let direct = served.client(Protocol::Http);
    for definition in [concurrency("slots", 1), rolling("tokens", 1_000_000, 3_600)] {
        direct.put_limit(&definition, soon()).await.unwrap();
    }
    let proxy = Proxy::http(&served.address.to_string(), 7, 2).await;
    let limiter = limiter(&client_of(&[proxy.url()], Protocol::Http));
    for _ in 0..60 {
        // With one slot, a second lease for the same job would never be admitted.
        let guard = limiter.acquire(&job(&[("slots", 1), ("tokens", 2)]), soon()).await.unwrap();
        guard.complete(Actuals::unknown().used(key("tokens"), 1)).await.unwrap();
    }
    assert!(proxy.faults().iter().all(|(_, count)| *count > 0), "{:?}", proxy.faults());
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!((reserved(&direct, "slots").await, reserved(&direct, "tokens").await), (0, 60));
}

#[tokio::test]
async fn a_server_that_is_down_is_waited_for_and_leaves_nothing_to_give_back() {
    let served = Served::start().await;
    served.client(Protocol::Http).put_limit(&concurrency("slots", 1), soon()).await.unwrap();
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let limiter = limiter(&client_of(&[format!("http://{gone}")], Protocol::Http));
    let deadline = Deadline::after(Duration::from_millis(100));
    let error = limiter.acquire(&job(&[("slots", 1)]), deadline).await.unwrap_err();
    let AcquireError::DeadlinePassed { failure: Some(Failure::Unreachable { .. }), .. } = error else {
        panic!("{error:?}");
    };
    // Nothing was ever sent, so nothing has to be given back.
    assert!(limiter.flush(Deadline::after(Duration::ZERO)).await);
}

#[test]
fn a_guard_may_be_dropped_outside_of_a_runtime() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (client, limiter, guard, _served) = runtime.block_on(async {
        let served = Served::start().await;
        let client = served.client(Protocol::Grpc);
        client.put_limit(&concurrency("slots", 1), soon()).await.unwrap();
        let limiter = limiter(&client);
        let guard = admitted(&limiter, &[("slots", 1)]).await;
        (client, limiter, guard, served)
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

/// The answer to a reserve was lost, and the limit was deleted meanwhile: the second copy was refused by name, which
/// says nothing about a first one that is late. It was not given back, and held its slot until it ran out.
#[tokio::test]
async fn a_refusal_that_leaves_no_trace_gives_back_what_an_earlier_copy_may_hold() {
    for (is_first, error) in [
        (false, "unknown_limit_key:slots"),
        (false, "limit_decreasing:slots"),
        (true, "unknown_limit_key:slots"),
        (true, "limit_decreasing:slots"),
    ] {
        let mut reserves = u32::from(is_first);
        let script = Scripted::by(move |request| {
            if request.starts_with("POST /v1/complete ") {
                return Some((200, r#"{"ok":true,"error":"","reconciled":false}"#.to_owned()));
            }
            reserves += 1;
            let refused = r#"{"allowed":false,"retry_after_ms":9,"reserved_at_unix_ms":0,"error":"ERROR"}"#;
            (reserves > 1).then(|| (200, refused.replace("ERROR", error)))
        })
        .await;
        let limiter = limiter(&client_of(std::slice::from_ref(&script.url), Protocol::Http));
        let _ = limiter.try_acquire(&job(&[("slots", 1)]), soon()).await;
        assert!(limiter.flush(soon()).await);
        let asked = script.asked();
        let leases: Vec<&str> =
            asked.iter().filter_map(|request| request.split("\"lease_id\":\"").nth(1)).collect();
        let leases: Vec<&str> = leases.into_iter().filter_map(|rest| rest.get(..26)).collect();
        assert!(leases.windows(2).all(|pair| pair[0] == pair[1]), "{leases:?}");
        let completes = asked.iter().filter(|request| request.contains("\"actual_amount\":0")).count();
        assert_eq!((asked.len() - completes, completes), if is_first { (1, 0) } else { (2, 1) }, "{error}");
    }
}

/// A wall clock that is minutes later whenever it is looked at.
struct Hasty(std::sync::atomic::AtomicU64);

impl earmark_client::Surroundings for Hasty {
    fn wall(&self) -> earmark_client::core::UnixMs {
        let step_ms = 4 * 60_000;
        let moment = self.0.fetch_add(step_ms, std::sync::atomic::Ordering::SeqCst);
        earmark_client::core::UnixMs::new(1_700_000_000_000 + moment)
    }

    fn random(&self) -> u64 {
        self.0.load(std::sync::atomic::Ordering::SeqCst)
    }
}

/// Servers were away for longer than they remember leases. The caller that had waited for them came back with the lease
/// of before, which was refused for its age, and that was taken for a malformed request.
#[tokio::test]
async fn an_attempt_that_outlives_its_lease_takes_a_new_one_and_gives_the_old_one_back() {
    let mut reserves = 0;
    let script = Scripted::by(move |request| {
        if request.starts_with("POST /v1/complete ") {
            return Some((200, r#"{"ok":true,"error":"","reconciled":false}"#.to_owned()));
        }
        reserves += 1;
        let allowed = r#"{"allowed":true,"retry_after_ms":0,"reserved_at_unix_ms":1,"error":""}"#;
        (reserves > 3).then(|| (200, allowed.to_owned()))
    })
    .await;
    let options = earmark_client::ClientOptions::of(&[&script.url]).unwrap();
    let client = Client::new(options.surrounded_by(std::sync::Arc::new(Hasty(0.into())))).unwrap();
    let limiter = limiter(&client);
    let guard = limiter.acquire(&job(&[("slots", 1)]), soon()).await.unwrap();
    assert!(limiter.flush(soon()).await);
    let asked = script.asked();
    let leases = |path: &str| -> Vec<String> {
        let requests = asked.iter().filter(|request| request.starts_with(&format!("POST {path} ")));
        let rest = requests.filter_map(|request| request.split("\"lease_id\":\"").nth(1));
        rest.map(|rest| rest[..26].to_owned()).collect()
    };
    // Each lease is asked for twice: after four minutes it is young enough, and after eight it is not.
    let (reserved, completed) = (leases("/v1/reserve"), leases("/v1/complete"));
    assert_eq!(reserved.len(), 4);
    assert_eq!((&reserved[0], &reserved[2]), (&reserved[1], &reserved[3]));
    assert_eq!(completed, [reserved[0].clone()]);
    assert_eq!(guard.lease().to_string(), reserved[3]);
}

#[tokio::test]
async fn a_request_that_is_refused_as_invalid_is_returned_at_once() {
    for (status, body) in [
        (
            200,
            r#"{"allowed":false,"retry_after_ms":9000,"reserved_at_unix_ms":0,"error":"invalid_request","message":"too old"}"#,
        ),
        (400, r#"{"error":"invalid_request","message":"too old"}"#),
    ] {
        let script = Scripted::by(move |request| {
            let completed = r#"{"ok":true,"error":"","reconciled":false}"#;
            let is_complete = request.starts_with("POST /v1/complete ");
            Some(if is_complete { (200, completed.to_owned()) } else { (status, body.to_owned()) })
        })
        .await;
        let limiter = limiter(&client_of(std::slice::from_ref(&script.url), Protocol::Http));
        let error = limiter.acquire(&job(&[("slots", 1)]), soon()).await.unwrap_err();
        let AcquireError::InvalidRequest { message } = error else { panic!("{error:?}") };
        assert!(message.ends_with("too old"), "{message}");
        assert!(limiter.flush(soon()).await);
        let reserves = script.asked().iter().filter(|asked| asked.starts_with("POST /v1/reserve ")).count();
        assert_eq!(reserves, 1);
    }
}

#[tokio::test]
async fn a_key_goes_with_every_request_and_is_refused_by_name() {
    let refused = r#"{"error":"unauthorized","message":"no such key"}"#;
    let script = Scripted::by(move |_| Some((401, refused.to_owned()))).await;
    let mut options = earmark_client::ClientOptions::of(&[&script.url]).unwrap();
    options.key = Some(earmark_client::ApiKey::new("em_secret").unwrap());
    let client = Client::new(options).unwrap();
    let message = "no such key".to_owned();
    let error = limiter(&client).acquire(&job(&[("slots", 1)]), soon()).await.unwrap_err();
    assert_eq!(error, AcquireError::Unauthorized { message: message.clone() });
    let failure = client.usage(&key("slots"), soon()).await.unwrap_err();
    assert_eq!(failure, Failure::Unauthorized { message });
    let asked = script.asked();
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert!(asked.iter().all(|asked| asked.contains("\r\nauthorization: Bearer em_secret\r\n")), "{asked:?}");
}

/// A key that ends while a request has no answer: the server that refuses the next attempt knows nothing of the first.
#[tokio::test]
async fn what_is_refused_after_an_attempt_without_an_answer_may_have_happened() {
    let refused = || Some((401, r#"{"error":"unauthorized","message":"no such key"}"#.to_owned()));
    let allowed = r#"{"allowed":true,"retry_after_ms":0,"reserved_at_unix_ms":5,"error":"","message":""}"#;
    for (first, is_known) in [(None, false), (refused(), true)] {
        let mut answers = vec![first, refused()].into_iter();
        let script = Scripted::by(move |request| match request.starts_with("POST /v1/reserve ") {
            true => Some((200, allowed.to_owned())),
            false => answers.next().flatten(),
        })
        .await;
        let client = client_of(std::slice::from_ref(&script.url), Protocol::Http);
        let guard = limiter(&client).acquire(&job(&[("slots", 1)]), soon()).await.unwrap();
        let failure = guard.complete(Actuals::unknown()).await.unwrap_err();
        let refusal = Failure::Unauthorized { message: "no such key".to_owned() };
        let certainty = if is_known { Certainty::NothingHappened } else { Certainty::Unknown };
        assert_eq!(failure.certainty(), certainty);
        let later = Failure::RefusedLater { refusal: Box::new(refusal.clone()) };
        assert_eq!(failure, if is_known { refusal } else { later });
    }
}
