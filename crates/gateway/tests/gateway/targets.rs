//! Targets in order, pauses, circuits.

use std::time::Duration;

use earmark_client::{CallResult, Denial, ReserveAnswer};

use crate::fixture::{CHAT_BODY, Running};
use crate::upstream::{CHAT, Step, whole};

fn both() -> String {
    CHAT_BODY.replace("fast", "both")
}

#[tokio::test]
async fn the_next_target_has_a_lease_of_its_own() {
    let gateway = Running::start("").await;
    for refusal in [whole(503, "", "{}"), whole(429, "", "{}"), whole(401, "", "{}")] {
        gateway.upstream.then(refusal);
        gateway.upstream.then(whole(200, "", CHAT));
        assert_eq!(gateway.chat(&both()).await.status, 200);
    }
    let results = gateway.earmark.settled().await;
    assert_eq!(results.len(), 6);
    assert!(results.iter().step_by(2).all(|result| *result == CallResult::Refused), "{results:?}");
    assert!(results.iter().skip(1).step_by(2).all(|result| matches!(result, CallResult::Used(_))), "{results:?}");
    let leases = gateway.earmark.leases();
    assert_eq!(
        (leases[0].call.attributes["provider"].as_str(), leases[1].call.attributes["provider"].as_str()),
        ("one", "two")
    );
    assert!(gateway.upstream.seen()[1].head.starts_with("POST /two/chat/completions "));
}

#[tokio::test]
async fn a_refusal_that_is_the_clients_own_goes_to_no_other_target() {
    let gateway = Running::start("").await;
    gateway.upstream.then(whole(400, "", "{\"error\":{}}"));
    assert_eq!(gateway.chat(&both()).await.status, 400);
    assert_eq!(gateway.upstream.seen().len(), 1);
}

#[tokio::test]
async fn an_unknown_outcome_is_repeated_only_if_the_configuration_says_so() {
    for (more, calls, status) in [("", 1, 502), ("retry_unknown = true", 2, 200)] {
        let gateway = Running::start(more).await;
        gateway.upstream.then(vec![Step::Close]);
        gateway.upstream.always(whole(200, "", CHAT));
        assert_eq!(gateway.chat(&both()).await.status, status, "{more}");
        let results = gateway.earmark.settled().await;
        assert_eq!((results.len(), &results[0]), (calls, &CallResult::Unknown), "{more}");
    }
}

#[tokio::test]
async fn a_limit_of_one_provider_that_is_full_leaves_the_other() {
    let gateway = Running::start("").await;
    gateway.upstream.always(whole(200, "", CHAT));
    let limited_by = vec!["one:rpm".parse().unwrap()];
    gateway.earmark.decide(ReserveAnswer::LimitPaused(Denial { retry_after: Duration::from_secs(1), limited_by }));
    assert_eq!(gateway.chat(&both()).await.status, 200);
    assert_eq!(gateway.earmark.leases()[0].call.attributes["provider"], "two");
}

#[tokio::test]
async fn a_429_pauses_the_limits_that_the_upstream_names() {
    let gateway = Running::start("pause = [\"one:{model}:rpm\"]\npause_max_seconds = 20").await;
    let quota = "{\"error\":{\"code\":\"insufficient_quota\"}}";
    for (headers, body) in
        [("retry-after: 7\r\n", "{}"), ("retry-after-ms: 1500\r\n", "{}"), ("retry-after: 900\r\n", "{}"), ("", quota)]
    {
        gateway.upstream.then(whole(429, headers, body));
        assert_eq!(gateway.chat(CHAT_BODY).await.status, 429);
    }
    gateway.earmark.settled().await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut pauses = gateway.earmark.pauses();
    pauses.sort();
    let expected = [1_500, 7_000, 20_000].map(|ms| ("one:gpt-4o:rpm".to_owned(), Duration::from_millis(ms)));
    assert_eq!(pauses, expected);
}

#[tokio::test]
async fn repeated_failures_open_the_circuit_and_one_call_probes_it() {
    // A port that nobody listens on.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dead = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let mut upstream = crate::upstream::Upstream::start().await;
    upstream.url = dead;
    let text = crate::fixture::config(&upstream, "circuit_failures = 3\ncircuit_seconds = 1");
    let calls = earmark_gateway::open_calls::OpenCalls::in_memory();
    let gateway = Running::with(&text, upstream, crate::earmark::Double::default(), calls, false).await;
    for _ in 0..3 {
        assert_eq!(gateway.chat(CHAT_BODY).await.status, 502);
    }
    assert_eq!(gateway.earmark.settled().await, vec![CallResult::Refused; 3]);
    assert_eq!(gateway.metric("earmark_gateway_circuit_open{provider=\"one\"}").await, 1);
    let answer = gateway.chat(CHAT_BODY).await;
    assert_eq!(answer.status, 503);
    assert_eq!(gateway.earmark.leases().len(), 3, "an open circuit reserves nothing");
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert_eq!(gateway.chat(CHAT_BODY).await.status, 502, "one call probes it");
    assert_eq!(gateway.chat(CHAT_BODY).await.status, 503);
}
