//! Extensions: numbers, repeated attempts, and the renewals of a lease in the background.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use earmark_client::core::{Kind, LeaseState};
use earmark_client::{AcquireError, Actuals, Client, Deadline, ExtendError, Extension, Guard, LeaseView};
use serde_json::Value;

use crate::fixture::{ALLOWED, COMPLETED, Reply, ScriptedServer, each_way, limiter, ok, unavailable};
use crate::support::{job, key, limit, rolling, soon};

/// The timeout of the limits that tests keep alive, in seconds.
const TIMEOUT_SECONDS: u32 = 1;

fn extended(ends_at: u64) -> Reply {
    ok(&format!(r#"{{"allowed":true,"retry_after_ms":0,"error":"","ends_at_unix_ms":{ends_at}}}"#))
}

fn refused(error: &str) -> Reply {
    ok(&format!(
        r#"{{"allowed":false,"retry_after_ms":7,"error":"{error}","limited_by":["a"],"message":"m","ends_at_unix_ms":0}}"#
    ))
}

/// A server that answers extensions from a script, and everything else with success.
async fn scripted(replies: Vec<Reply>) -> ScriptedServer {
    let mut replies = replies.into_iter();
    ScriptedServer::by(move |request| match request {
        request if request.starts_with("POST /v1/reserve") => ok(ALLOWED),
        request if request.starts_with("POST /v1/complete") => ok(COMPLETED),
        _ => replies.next().flatten(),
    })
    .await
}

fn bodies(server: &ScriptedServer, path: &str) -> Vec<Value> {
    let of_path = |request: &String| request.starts_with(&format!("POST {path} "));
    let body = |request: &String| serde_json::from_str(request.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    server.requests().iter().filter(|request| of_path(request)).map(body).collect()
}

fn numbers(server: &ScriptedServer) -> Vec<u64> {
    bodies(server, "/v1/extend").iter().map(|body| body["extension"].as_u64().unwrap()).collect()
}

async fn guard(client: &Client) -> Guard {
    limiter(client).acquire(&job(&[("a", 1)]), soon()).await.unwrap()
}

#[tokio::test]
async fn an_extension_without_an_answer_is_repeated_with_its_number_and_body() {
    let server = scripted(vec![None, unavailable(), extended(9), extended(10)]).await;
    let mut guard = guard(&server.client()).await;
    guard.used(key("a"), 5);
    let more = Extension::new().add(key("b"), 3);
    assert_eq!(guard.extend(&more, soon()).await.unwrap().ends_at.unwrap().get(), 9);
    guard.used(key("a"), 4);
    guard.extend(&Extension::new().without_renewal(), soon()).await.unwrap();
    let sent = bodies(&server, "/v1/extend");
    assert_eq!((&sent[0], &sent[0]), (&sent[1], &sent[2]));
    let (first, last) = (&sent[0], &sent[3]);
    assert_eq!(
        (&first["extension"], &first["renew"], &first["used"][0]["actual_amount"]),
        (&1.into(), &true.into(), &5.into())
    );
    assert_eq!(
        (&last["extension"], &last["renew"], &last["used"][0]["actual_amount"]),
        (&2.into(), &false.into(), &5.into())
    );
    assert_eq!(last["add"], Value::Array(vec![]));
    assert_eq!(guard.job().requirements(), [(key("a"), 1), (key("b"), 3)]);
    guard.release().await.unwrap();
    let completed = &bodies(&server, "/v1/complete")[0]["actuals"];
    assert_eq!(completed.as_array().unwrap().len(), 2, "{completed}");
}

/// A caller that gave up and asks again would otherwise take the amounts twice.
#[tokio::test]
async fn an_extension_that_is_asked_again_after_its_deadline_takes_nothing_twice() {
    let server = scripted(vec![None, None, extended(9), extended(10), extended(11)]).await;
    let mut guard = guard(&server.client()).await;
    let more = Extension::new().add(key("b"), 3);
    let failed = guard.extend(&more, Deadline::after(Duration::from_millis(20))).await;
    assert!(matches!(failed, Err(ExtendError::Failed(_))), "{failed:?}");
    guard.extend(&more, soon()).await.unwrap();
    assert!(numbers(&server).iter().all(|number| *number == 1), "{:?}", numbers(&server));
    assert_eq!(guard.job().requirements()[1], (key("b"), 3));
    guard.extend(&more, soon()).await.unwrap();
    assert_eq!(numbers(&server).last(), Some(&2));
}

#[tokio::test]
async fn a_denial_uses_its_number_and_a_refusal_by_name_leaves_it_free() {
    let errors = ["", "limit_paused:a", "unknown_limit_key:a", "insufficient_credit:a", "invalid_request"];
    let replies = errors.iter().map(|error| refused(error)).chain([extended(9)]).collect();
    let server = scripted(replies).await;
    let mut guard = guard(&server.client()).await;
    let more = Extension::new().add(key("a"), 3);
    let mut answers = Vec::new();
    for _ in 0..errors.len() {
        answers.push(guard.extend(&more, soon()).await.unwrap_err());
    }
    let [denied, paused, unknown, credit, invalid] = answers.try_into().unwrap();
    assert!(matches!(&denied, ExtendError::Denied(denial) if denial.retry_after.as_millis() == 7), "{denied:?}");
    assert!(matches!(&paused, ExtendError::NotNow(denial) if denial.limited_by == [key("a")]), "{paused:?}");
    assert_eq!(unknown, ExtendError::Refused(AcquireError::UnknownLimitKey { key: key("a") }));
    assert!(matches!(credit, ExtendError::Refused(AcquireError::InsufficientCredit { .. })), "{credit:?}");
    assert!(matches!(invalid, ExtendError::Refused(AcquireError::InvalidRequest { .. })), "{invalid:?}");
    assert_eq!(guard.job().requirements(), [(key("a"), 1)]);
    guard.extend(&more, soon()).await.unwrap();
    assert_eq!(numbers(&server), [1, 2, 2, 2, 3, 3]);
    assert_eq!(guard.job().requirements(), [(key("a"), 4)]);
}

#[tokio::test]
async fn a_renewal_without_an_answer_is_repeated_and_an_ended_lease_is_reported() {
    let replies = vec![extended(301), None, unavailable(), extended(401), refused("lease_expired")];
    let server = scripted(replies).await;
    let guard = guard(&server.client()).await;
    let began = Instant::now();
    let mut alive = guard.keep_alive(Duration::from_millis(300));
    assert_eq!(alive.error(), None);
    assert_eq!(alive.lost().await, Some(ExtendError::LeaseExpired));
    assert!(began.elapsed() >= Duration::from_millis(200), "{:?}", began.elapsed());
    assert_eq!(alive.error(), Some(ExtendError::LeaseExpired));
    assert_eq!(numbers(&server), [1, 2, 2, 2, 3]);
    guard.complete(Actuals::unknown()).await.unwrap();
}

#[tokio::test]
async fn renewals_stop_with_the_guard() {
    let server = scripted((1..1_000).map(|renewal| extended(100 * renewal)).collect()).await;
    for is_completed in [true, false] {
        let guard = guard(&server.client()).await;
        let mut alive = guard.keep_alive(Duration::from_millis(150));
        tokio::time::sleep(Duration::from_millis(200)).await;
        if is_completed {
            guard.complete(Actuals::unknown()).await.unwrap();
        } else {
            drop(guard);
        }
        assert_eq!(alive.lost().await, None);
        let sent = numbers(&server).len();
        assert!(sent >= 1);
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(numbers(&server).len(), sent, "a lease was renewed after its end");
    }
}

async fn lease(client: &Client, guard: &Guard) -> LeaseView {
    client.lease(guard.lease().to_string().parse().unwrap(), soon()).await.unwrap()
}

#[tokio::test]
async fn a_call_longer_than_the_timeout_keeps_its_slot_every_way() {
    for (way, client, _server) in each_way().await {
        let slots = limit("slots", Kind::Concurrency { timeout_seconds: TIMEOUT_SECONDS }, 1);
        for definition in [slots, rolling("tokens", 100, 3_600)] {
            client.put_limit(&definition, soon()).await.unwrap();
        }
        let limiter = limiter(&client);
        let timeout = Duration::from_secs(TIMEOUT_SECONDS.into());
        let mut guard = limiter.acquire(&job(&[("slots", 1), ("tokens", 10)]), soon()).await.unwrap();
        guard.used(key("tokens"), 8);
        let extended = guard.extend(&Extension::new().add(key("tokens"), 5), soon()).await.unwrap();
        assert!(extended.ends_at.unwrap() >= guard.reserved_at().plus_ms(1_000), "{way}");
        let mut alive = guard.keep_alive(timeout);
        let other = limiter.acquire(&job(&[("slots", 1)]), Deadline::after(timeout * 5 / 2)).await;
        assert!(matches!(other, Err(AcquireError::DeadlinePassed { .. })), "{way}: a slot was given twice");
        let view = lease(&client, &guard).await;
        assert_eq!(view.state, LeaseState::Live, "{way}");
        assert!(view.extensions > 2 && view.ends_at.is_some(), "{way}: {view:?}");
        assert_eq!(view.used, [(key("tokens"), 8)], "{way}");
        assert_eq!(alive.error(), None, "{way}");
        let denied = guard.extend(&Extension::new().add(key("tokens"), 90), soon()).await;
        assert!(matches!(denied, Err(ExtendError::Denied(_))), "{way}: {denied:?}");
        let completed = guard.complete(Actuals::unknown().used(key("tokens"), 2)).await.unwrap();
        assert!(completed.message.unwrap().contains("tokens"), "{way}: less than the reported usage was settled");
        assert_eq!(client.usage(&key("tokens"), soon()).await.unwrap().reserved, 10, "{way}");
        assert_eq!(alive.lost().await, None, "{way}");

        let mut guard = limiter.acquire(&job(&[("slots", 1)]), soon()).await.unwrap();
        tokio::time::sleep(timeout + Duration::from_millis(100)).await;
        let ended = guard.extend(&Extension::new(), soon()).await;
        assert_eq!(ended, Err(ExtendError::LeaseExpired), "{way}");
    }
}

/// A renewal repeats the extension that a caller gave up on. When the caller asked again, it took the amounts twice.
#[tokio::test]
async fn an_extension_that_a_renewal_repeated_is_not_taken_again() {
    let server = scripted(vec![None, extended(9), extended(2_000), extended(3_000), extended(4_000)]).await;
    let mut guard = guard(&server.client()).await;
    let more = Extension::new().add(key("b"), 3);
    let failed = guard.extend(&more, Deadline::after(Duration::from_millis(5))).await;
    assert!(matches!(failed, Err(ExtendError::Failed(_))), "{failed:?}");
    let alive = guard.keep_alive(Duration::from_millis(150));
    while numbers(&server).iter().max() < Some(&2) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(alive);
    assert_eq!(guard.extend(&more, soon()).await.unwrap().ends_at.unwrap().get(), 9);
    let adds = bodies(&server, "/v1/extend");
    let adds = adds.iter().filter(|body| body["add"] != Value::Array(vec![]));
    assert!(adds.map(|body| &body["extension"]).all(|number| *number == 1));
    assert_eq!(guard.job().requirements(), [(key("a"), 1), (key("b"), 3)]);
}

/// A server that does not answer extensions while `is_down`, and allows everything else.
async fn interrupted(is_down: &Arc<AtomicBool>) -> ScriptedServer {
    let is_down = Arc::clone(is_down);
    let mut ends_at = 8;
    ScriptedServer::by(move |request| match request {
        request if request.starts_with("POST /v1/reserve") => ok(ALLOWED),
        request if request.starts_with("POST /v1/complete") => ok(COMPLETED),
        _ if is_down.load(Ordering::SeqCst) => None,
        _ => {
            ends_at += 1;
            extended(ends_at)
        }
    })
    .await
}

async fn give_up(guard: &mut Guard, extension: &Extension) {
    let failed = guard.extend(extension, Deadline::after(Duration::from_millis(20))).await;
    assert!(matches!(failed, Err(ExtendError::Failed(_))), "{failed:?}");
}

/// The answer to an extension that another one had finished was dropped, so that the caller's next try took it twice.
#[tokio::test]
async fn an_extension_that_another_one_finished_takes_nothing_twice() {
    let is_down = Arc::new(AtomicBool::new(true));
    let server = interrupted(&is_down).await;
    let mut guard = guard(&server.client()).await;
    let (more, other) = (Extension::new().add(key("b"), 3), Extension::new().add(key("c"), 4));
    give_up(&mut guard, &more).await;
    give_up(&mut guard, &other).await;
    assert!(numbers(&server).iter().all(|number| *number == 1), "{:?}", numbers(&server));
    is_down.store(false, Ordering::SeqCst);
    assert_eq!(guard.extend(&other, soon()).await.unwrap().ends_at.unwrap().get(), 10);
    let sent = numbers(&server);
    assert_eq!(sent.last(), Some(&2));
    assert_eq!(guard.extend(&more, soon()).await.unwrap().ends_at.unwrap().get(), 9);
    assert_eq!(numbers(&server), sent);
    assert_eq!(guard.job().requirements(), [(key("a"), 1), (key("b"), 3), (key("c"), 4)]);
    // The answer was given. The same extension is a new one now.
    guard.extend(&more, soon()).await.unwrap();
    assert_eq!(numbers(&server).last(), Some(&3));
}

/// While a renewal repeated an extension, a complete took its limits for ones that the job does not have, and dropped
/// their usage.
#[tokio::test]
async fn usage_of_an_unanswered_extension_is_completed_while_it_is_repeated() {
    for is_released in [false, true] {
        let server = interrupted(&Arc::new(AtomicBool::new(true))).await;
        let mut guard = guard(&server.client()).await;
        give_up(&mut guard, &Extension::new().add(key("b"), 3)).await;
        let tried = numbers(&server).len();
        let alive = guard.keep_alive(Duration::from_millis(60));
        while numbers(&server).len() == tried {
            tokio::task::yield_now().await;
        }
        let (completed, used) = match is_released {
            true => (guard.release().await, 0),
            false => (guard.complete(Actuals::unknown().used(key("b"), 2)).await, 2),
        };
        assert_eq!(completed.unwrap().message, None);
        drop(alive);
        let actuals = bodies(&server, "/v1/complete")[0]["actuals"].clone();
        let of_b = actuals.as_array().unwrap().iter().find(|actual| actual["key"] == "b");
        assert_eq!(of_b.unwrap()["actual_amount"], used, "{actuals}");
    }
}
