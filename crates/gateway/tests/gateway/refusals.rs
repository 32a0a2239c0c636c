//! Requests that are refused: nothing is reserved, or everything is released, and the error has the API's own shape.

use std::time::Duration;

use earmark_client::{CallDecision, CallResult, Denial, Failure, PolicyRefusal, ReserveAnswer};

use crate::fixture::{CHAT_BODY, MESSAGES_STREAM_BODY, Running, send};
use crate::upstream::{CHAT, Step, whole};

fn denied() -> ReserveAnswer {
    let limited_by = vec!["tenant:acme:rpm".parse().unwrap()];
    ReserveAnswer::Denied(Denial { retry_after: Duration::from_millis(1_500), limited_by })
}

#[tokio::test]
async fn a_denial_names_its_limit_and_its_wait_in_the_shape_of_each_api() {
    let gateway = Running::start("").await;
    gateway.earmark.decide(denied());
    let answer = gateway.chat(CHAT_BODY).await;
    assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (429, Some("rate_limit_exceeded")));
    assert_eq!(answer.header("retry-after-ms").as_deref(), Some("1500"));
    assert_eq!(answer.header("retry-after").as_deref(), Some("2"));
    assert_eq!(answer.header("x-earmark-limited-by").as_deref(), Some("tenant:acme:rpm"));
    gateway.earmark.decide(denied());
    let answer = gateway.post("/v1/messages", "", MESSAGES_STREAM_BODY).await;
    assert_eq!((answer.status, answer.json()["error"]["type"].as_str()), (429, Some("rate_limit_error")));
    assert_eq!(answer.header("request-id"), answer.header("x-request-id"));
    assert!(gateway.upstream.seen().is_empty() && gateway.earmark.leases().is_empty());
}

#[tokio::test]
async fn each_refusal_has_the_status_that_stops_or_starts_a_retry() {
    let gateway = Running::start("").await;
    let key = || "acme:usd".parse().unwrap();
    let policy = PolicyRefusal { error: "denied_by_rule:free".into(), message: "not in your plan".into() };
    let credit = || CallDecision::Limits(ReserveAnswer::InsufficientCredit { key: key(), message: None });
    for (decision, statuses) in [
        (credit(), [429, 402]),
        (CallDecision::Limits(ReserveAnswer::Never { limited_by: vec![key()] }), [400, 400]),
        (CallDecision::Refused(policy), [403, 403]),
    ] {
        for (path, body, status) in
            [("/v1/chat/completions", CHAT_BODY, statuses[0]), ("/v1/messages", MESSAGES_STREAM_BODY, statuses[1])]
        {
            gateway.earmark.refuse(decision.clone());
            let answer = gateway.post(path, "", body).await;
            assert_eq!(answer.status, status, "{decision:?} {answer:?}");
            assert_eq!(answer.header("x-should-retry").as_deref(), Some("false"), "{answer:?}");
        }
    }
    gateway.earmark.fail(Failure::Forbidden { message: "attributes: tenant: found b".into() });
    assert_eq!(gateway.chat(CHAT_BODY).await.status, 403);
    assert!(gateway.upstream.seen().is_empty());
}

#[tokio::test]
async fn without_earmark_nothing_passes() {
    let gateway = Running::start("").await;
    gateway.earmark.set_down(true);
    let answer = gateway.chat(CHAT_BODY).await;
    assert_eq!(answer.status, 503);
    assert!(answer.header("retry-after").is_some());
    assert!(gateway.upstream.seen().is_empty());
}

#[tokio::test]
async fn bad_requests_reserve_nothing() {
    let gateway = Running::start("").await;
    let chat = "/v1/chat/completions";
    for (path, headers, body, status) in [
        ("/v1/unknown", "", CHAT_BODY, 404),
        ("/v1/messages/batches", "", CHAT_BODY, 404),
        (chat, "", "{", 400),
        (chat, "", "{\"model\":\"fast\",\"model\":\"claude\",\"messages\":[]}", 400),
        (chat, "", "{\"model\":\"unknown\",\"messages\":[]}", 404),
        (chat, "", "{\"model\":\"claude\",\"messages\":[]}", 404),
        (chat, "content-encoding: gzip\r\n", CHAT_BODY, 400),
        (chat, "x-earmark-attributes: model=cheap\r\n", CHAT_BODY, 400),
        (chat, "origin: http://evil.example\r\n", CHAT_BODY, 403),
        ("/v1/chat/completions?api_key=x", "", CHAT_BODY, 400),
    ] {
        let answer = gateway.post(path, headers, body).await;
        assert_eq!(answer.status, status, "{path} {headers} {body}: {answer:?}");
        assert!(answer.json()["error"]["message"].is_string(), "{answer:?}");
    }
    let upgrade = gateway.get("/v1/models", "upgrade: websocket\r\nconnection: upgrade\r\n").await;
    assert_eq!(upgrade.status, 404);
    assert!(gateway.upstream.seen().is_empty() && gateway.earmark.leases().is_empty());
}

/// Stored responses belong to the provider's key, which all tenants share.
#[tokio::test]
async fn one_tenant_cannot_use_another_ones_response_id() {
    let gateway = Running::start("").await;
    let body = r#"{"model":"fast","input":"hi","previous_response_id":"resp_1"}"#;
    let answer = gateway.post("/v1/responses", "", body).await;
    assert_eq!((answer.status, answer.json()["error"]["param"].as_str()), (400, Some("previous_response_id")));
    assert!(gateway.upstream.seen().is_empty() && gateway.earmark.leases().is_empty());
}

#[tokio::test]
async fn a_body_has_a_bound() {
    let upstream = crate::upstream::Upstream::start().await;
    let text = "max_body_bytes = 1000\nbody_timeout_seconds = 1\n".to_owned() + &crate::fixture::config(&upstream, "");
    let calls = earmark_gateway::open_calls::OpenCalls::in_memory();
    let gateway = Running::with(&text, upstream, crate::earmark::Double::default(), calls, false).await;
    let large = CHAT_BODY.replace("hi", &"x".repeat(1_000));
    assert_eq!(gateway.chat(&large).await.status, 413);
    // A client that never sends the rest of its body.
    let mut stream = gateway.connect().await;
    send(&mut stream, "/v1/chat/completions", "x: y\r\n", "").await;
    let mut slow = gateway.connect().await;
    let head =
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\nconnection: close\r\n\r\n{";
    tokio::io::AsyncWriteExt::write_all(&mut slow, head.as_bytes()).await.unwrap();
    assert_eq!(crate::fixture::Answer::read(&mut slow).await.status, 408);
    assert!(gateway.earmark.leases().is_empty());
}

#[tokio::test]
async fn an_upstreams_error_passes_and_releases_everything() {
    let gateway = Running::start("").await;
    for status in [400, 404, 422, 429, 500, 503] {
        let body = format!("{{\"error\":{{\"message\":\"status {status}\"}}}}");
        gateway.upstream.then(whole(status, "retry-after: 7\r\nx-ratelimit-remaining: 1\r\n", &body));
        let answer = gateway.chat(CHAT_BODY).await;
        assert_eq!((answer.status, answer.text()), (status, body));
        assert_eq!(answer.header("retry-after").as_deref(), Some("7"));
        assert!(answer.header("x-ratelimit-remaining").is_none());
    }
    assert_eq!(gateway.earmark.settled().await, vec![CallResult::Refused; 6]);
    assert!(gateway.earmark.pauses().is_empty(), "no limit is named");
}

#[tokio::test]
async fn a_hostile_upstream_harms_nobody() {
    let gateway = Running::start("timeouts = { first_byte_seconds = 2, idle_seconds = 2 }").await;
    let redirect = whole(302, "location: http://169.254.169.254/\r\n", "");
    let endless =
        vec![Step::Send(b"HTTP/1.1 200 OK\r\n".to_vec()), Step::Send([b"x-a: b\r\n".as_slice(); 20_000].concat())];
    let wrong_length = vec![Step::Send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{}".to_vec()), Step::Close];
    let nonsense = vec![Step::Send(b"SSH-2.0-OpenSSH\r\n".to_vec()), Step::Close];
    let compressed = whole(200, "content-encoding: gzip\r\n", CHAT);
    let long_error = whole(400, "", &"x".repeat(2 << 20));
    for (answer, status, result) in [
        (redirect, 502, CallResult::Refused),
        (compressed, 200, CallResult::Done),
        (long_error, 502, CallResult::Refused),
        (endless, 502, CallResult::Unknown),
        (wrong_length, 502, CallResult::Unknown),
        (nonsense, 502, CallResult::Unknown),
        (vec![Step::Hang], 504, CallResult::Unknown),
    ] {
        gateway.upstream.then(answer);
        let answer = gateway.chat(CHAT_BODY).await;
        assert_eq!(answer.status, status, "{answer:?}");
        assert_eq!(gateway.earmark.settled().await.last(), Some(&result), "{answer:?}");
        gateway.upstream.then(whole(200, "", CHAT));
        assert_eq!(gateway.chat(CHAT_BODY).await.status, 200);
    }
}
