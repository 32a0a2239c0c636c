//! Answers reach the client as they came, and are settled by their usage.

use std::time::Duration;

use earmark_client::{CallResult, CallUsage, Denial, Failure, ReserveAnswer};

use crate::earmark::{Double, identity};
use crate::fixture::{CHAT_BODY, CHAT_STREAM_BODY, MESSAGES_STREAM_BODY, Running, config};
use crate::upstream::{CHAT, CHAT_STREAM, MESSAGE_STREAM, Upstream, chunk, stream, stream_end, stream_head, whole};

fn used(input_tokens: u64, output_tokens: u64) -> CallResult {
    CallResult::Used(CallUsage { input_tokens, output_tokens, ..CallUsage::default() })
}

#[tokio::test]
async fn a_chat_completion_is_settled_by_its_usage_and_tells_its_cost() {
    let gateway = Running::start("").await;
    gateway.upstream.always(whole(200, "openai-organization: org\r\nset-cookie: a=b\r\nx-unknown: 1\r\n", CHAT));
    let answer = gateway.chat(CHAT_BODY).await;
    assert_eq!((answer.status, answer.text().as_str()), (200, CHAT));
    assert_eq!(answer.header("x-earmark-cost").as_deref(), Some("37"));
    assert_eq!(answer.header("x-unknown").as_deref(), Some("1"));
    assert!(answer.header("x-request-id").is_some() && answer.header("set-cookie").is_none());
    let [CallResult::Used(usage)] = &gateway.earmark.settled().await[..] else { panic!("one usage") };
    assert_eq!((usage.input_tokens, usage.output_tokens, usage.cached_input_tokens), (7, 3, Some(4)));
    let lease = &gateway.earmark.leases()[0];
    assert_eq!(answer.header("x-earmark-lease"), Some(lease.call.lease.to_string()));
    assert_eq!((lease.call.input_tokens_max, lease.call.output_tokens_max), (CHAT_BODY.len() as u64 + 512, 100));
    let attributes: Vec<(&str, &str)> =
        lease.call.attributes.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let expected = [("alias", "fast"), ("model", "gpt-4o"), ("operation", "chat"), ("provider", "one")];
    assert_eq!(attributes, expected);
    assert_eq!(lease.outcome.as_ref().unwrap().policy_revision, Some(3));
    let seen = &gateway.upstream.seen()[0];
    assert!(seen.head.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"), "{}", seen.head);
    assert_eq!(seen.json()["max_completion_tokens"], 100);
    assert_eq!(seen.header("accept-encoding").as_deref(), Some("identity"));
    assert_eq!(gateway.metric("earmark_gateway_settled_total{by=\"usage\"}").await, 1);
    let tokens = "earmark_gateway_tokens_total{model=\"gpt-4o\",provider=\"one\",kind=\"cached_input\"}";
    assert_eq!(gateway.metric(tokens).await, 4);
}

#[tokio::test]
async fn a_stream_passes_byte_for_byte_without_the_chunk_that_nobody_asked_for() {
    let gateway = Running::start("").await;
    gateway.upstream.always(stream(&CHAT_STREAM));
    let answer = gateway.chat(CHAT_STREAM_BODY).await;
    assert!(answer.is_whole);
    let expected = [CHAT_STREAM[0], CHAT_STREAM[1], CHAT_STREAM[2], CHAT_STREAM[4]].concat();
    assert_eq!(answer.text(), expected);
    assert_eq!(answer.header("content-type").as_deref(), Some("text/event-stream"));
    assert_eq!(gateway.earmark.settled().await, [used(7, 3)]);
    assert_eq!(gateway.upstream.seen()[0].json()["stream_options"]["include_usage"], true);

    let asked =
        CHAT_STREAM_BODY.replace("\"stream\":true", "\"stream\":true,\"stream_options\":{\"include_usage\":true}");
    assert_eq!(gateway.chat(&asked).await.text(), CHAT_STREAM.concat());
}

#[tokio::test]
async fn a_stream_of_messages_is_settled_by_its_usage() {
    let gateway = Running::start("").await;
    gateway.upstream.always(stream(&MESSAGE_STREAM));
    let answer = gateway.post("/v1/messages", "anthropic-version: 2023-06-01\r\n", MESSAGES_STREAM_BODY).await;
    assert_eq!((answer.status, answer.text()), (200, MESSAGE_STREAM.concat()));
    assert_eq!(gateway.earmark.settled().await, [used(7, 3)]);
    let seen = &gateway.upstream.seen()[0];
    assert!(seen.head.starts_with("POST /v1/messages HTTP/1.1\r\n"), "{}", seen.head);
    assert_eq!(seen.header("anthropic-version").as_deref(), Some("2023-06-01"));
    assert_eq!(seen.body, MESSAGES_STREAM_BODY.as_bytes(), "nothing was spliced");
    assert_eq!(gateway.earmark.leases()[0].call.output_tokens_max, 50);
}

#[tokio::test]
async fn an_answer_without_usage_pays_its_bound_and_the_metric_says_so() {
    let gateway = Running::start("").await;
    let silent = CHAT.split(",\"usage\"").next().unwrap().to_owned() + "}";
    gateway.upstream.then(whole(200, "", &silent));
    assert_eq!(gateway.chat(CHAT_BODY).await.text(), silent);
    // llama.cpp's streams never report usage.
    gateway.upstream.then(stream(&[CHAT_STREAM[0], CHAT_STREAM[2], CHAT_STREAM[4]]));
    assert!(gateway.chat(CHAT_STREAM_BODY).await.is_whole);
    assert_eq!(gateway.earmark.settled().await, [CallResult::Done, CallResult::Done]);
    assert_eq!(gateway.metric("earmark_gateway_settled_total{by=\"bound\"}").await, 2);
}

#[tokio::test]
async fn frames_arrive_while_the_stream_runs_and_it_is_renewed() {
    use tokio::io::AsyncReadExt as _;
    let gateway = Running::start("").await;
    let mut steps = vec![stream_head(), chunk(MESSAGE_STREAM[0])];
    steps.push(crate::upstream::Step::Wait(Duration::from_millis(2_500)));
    steps.extend(MESSAGE_STREAM[1..].iter().map(|frame| chunk(frame)));
    steps.push(stream_end());
    gateway.upstream.always(steps);
    let mut stream = gateway.connect().await;
    crate::fixture::send(&mut stream, "/v1/messages", "", MESSAGES_STREAM_BODY).await;
    let mut first = vec![0; 4_096];
    let started = std::time::Instant::now();
    let mut read = 0;
    while !String::from_utf8_lossy(&first[..read]).contains("message_start") {
        read += stream.read(&mut first[read..]).await.unwrap();
    }
    assert!(started.elapsed() < Duration::from_secs(2), "the first frame waits for no other");
    let mut rest = first[..read].to_vec();
    stream.read_to_end(&mut rest).await.unwrap();
    assert_eq!(crate::fixture::Answer::parse(&rest).text(), MESSAGE_STREAM.concat());
    assert_eq!(gateway.earmark.settled().await, [used(7, 3)]);
    let extensions = &gateway.earmark.leases()[0].extensions;
    assert_eq!(extensions.iter().map(|one| one.number).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(extensions[0].used.as_ref().map(|used| used.input_tokens), Some(7));
    assert_eq!(extensions[0].policy_revision, Some(3));
}

/// The numbers of the extensions of a stream that runs for five intervals, if the first ones get these answers.
async fn extensions_after(answers: Vec<Result<ReserveAnswer, Failure>>) -> Vec<u32> {
    let gateway = Running::start("").await;
    gateway.earmark.refuse_extends(answers);
    let mut steps = vec![stream_head(), crate::upstream::Step::Wait(Duration::from_millis(4_500))];
    steps.extend(CHAT_STREAM.iter().map(|frame| chunk(frame)));
    steps.push(stream_end());
    gateway.upstream.always(steps);
    assert!(gateway.chat(CHAT_STREAM_BODY).await.is_whole);
    gateway.earmark.leases()[0].extensions.iter().map(|one| one.number).collect()
}

#[tokio::test]
async fn a_call_whose_lease_has_expired_is_not_renewed_again() {
    assert_eq!(extensions_after(vec![Ok(ReserveAnswer::LeaseExpired)]).await, [1]);
    assert_eq!(extensions_after(vec![Err(Failure::Invalid { message: "it".into() })]).await, [1]);
}

#[tokio::test]
async fn a_renewal_without_an_answer_is_repeated_and_a_refused_one_leaves_its_number_free() {
    let lost = Failure::NoAnswer { server: "double".into(), why: "it is lost".into() };
    let paused = ReserveAnswer::LimitPaused(Denial { retry_after: Duration::from_secs(1), limited_by: Vec::new() });
    assert_eq!(extensions_after(vec![Err(lost), Ok(paused)]).await, [1, 1, 1, 2]);
}

#[tokio::test]
async fn a_large_answer_is_relayed_in_pieces_and_settled_by_its_usage() {
    let gateway = Running::start("").await;
    let body = CHAT.replace("hello", &"x".repeat(3 << 20));
    gateway.upstream.always(whole(200, "", &body));
    let answer = gateway.chat(CHAT_BODY).await;
    assert!(answer.is_whole && answer.text() == body);
    assert!(answer.header("x-earmark-cost").is_none());
    assert!(matches!(gateway.earmark.settled().await[..], [CallResult::Used(_)]));
}

#[tokio::test]
async fn a_settlement_without_an_answer_is_repeated_with_the_same_lease() {
    let gateway = Running::start("").await;
    gateway.upstream.always(whole(200, "", CHAT));
    gateway.earmark.lose_completes(2);
    assert_eq!(gateway.chat(CHAT_BODY).await.status, 200);
    for _ in 0..100 {
        if gateway.earmark.leases()[0].completes == 3 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{:?}", gateway.earmark.leases());
}

#[tokio::test]
async fn a_client_with_a_key_gets_its_labels_and_its_user() {
    let (upstream, earmark) = (Upstream::start().await, Double::default());
    earmark.add_key("emk_abc_secret", identity("client", "team", &[("tenant", "acme")], &["user"]));
    earmark.add_key("emk_def_secret", identity("client", "team", &[], &[]));
    let text = config(&upstream, "");
    let calls = earmark_gateway::open_calls::OpenCalls::in_memory();
    let gateway = Running::with(&text, upstream, earmark, calls, true).await;
    gateway.upstream.always(whole(200, "", CHAT));
    let body = CHAT_BODY.replace("{\"model\"", "{\"user\":\"u1\",\"model\"");
    let key = "authorization: Bearer emk_abc_secret\r\n";
    assert_eq!(gateway.post("/v1/chat/completions", key, &body).await.status, 200);
    let other = "x-api-key: emk_def_secret\r\n";
    assert_eq!(gateway.post("/v1/chat/completions", other, &body).await.status, 200);
    gateway.earmark.settled().await;
    let leases = gateway.earmark.leases();
    assert_eq!(leases[0].call.attributes.get("user").map(String::as_str), Some("u1"));
    assert!(!leases[1].call.attributes.contains_key("user"), "may_set lacks it, so it is ignored");
    let outcome = leases[0].outcome.as_ref().unwrap();
    assert_eq!(outcome.namespace.as_ref().map(ToString::to_string).as_deref(), Some("team"));
    assert_eq!(outcome.attributes["tenant"], "acme");
    assert_eq!(outcome.attributes["key"], "abc");
    let seen = &gateway.upstream.seen()[0];
    assert!(!seen.head.contains("emk_"), "a client's key went upstream: {}", seen.head);
    for headers in ["", "authorization: Bearer emk_wrong_key\r\n", "authorization: Basic x\r\n"] {
        let answer = gateway.post("/v1/chat/completions", headers, &body).await;
        assert_eq!(
            (answer.status, answer.json()["error"]["code"].as_str()),
            (401, Some("invalid_api_key")),
            "{headers}"
        );
    }
    let two = "authorization: Bearer emk_abc_secret\r\nx-api-key: emk_def_secret\r\n";
    assert_eq!(gateway.post("/v1/chat/completions", two, &body).await.status, 400);
    assert_eq!(gateway.upstream.seen().len(), 2);
    let asked = gateway.earmark.whos();
    for _ in 0..20 {
        gateway.get("/v1/models", key).await;
    }
    assert!(gateway.earmark.whos() - asked <= 5, "who a client is, is remembered for a second");
}

#[tokio::test]
async fn an_upstreams_key_goes_upstream_and_never_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    std::fs::write(&path, "sk-upstream\n").unwrap();
    let gateway = Running::start(&format!("key_file = {:?}", path.display().to_string())).await;
    gateway.upstream.then(whole(200, "x-echo: sk-upstream\r\n", CHAT));
    let answer = gateway.chat(CHAT_BODY).await;
    assert!(answer.header("x-echo").is_none());
    assert_eq!(gateway.upstream.seen()[0].header("authorization").as_deref(), Some("Bearer sk-upstream"));
    for (status, body) in [(401, "no sk-upstream"), (403, "{}"), (400, "bad key sk-upstream")] {
        gateway.upstream.then(whole(status, "", body));
        let answer = gateway.chat(CHAT_BODY).await;
        assert_eq!(answer.status, 502, "{answer:?}");
        assert!(!answer.text().contains("sk-upstream"), "{answer:?}");
    }
    let results = gateway.earmark.settled().await;
    assert_eq!(results[1..], [CallResult::Refused, CallResult::Refused, CallResult::Refused]);
}

#[tokio::test]
async fn models_are_those_of_the_configuration() {
    let gateway = Running::start("").await;
    let answer = gateway.get("/v1/models", "").await.json();
    let names: Vec<&str> = answer["data"].as_array().unwrap().iter().filter_map(|one| one["id"].as_str()).collect();
    assert_eq!(names, ["claude", "fast"], "only a model that a rule denies is not shown");
    let answer = gateway.get("/v1/models", "anthropic-version: 2023-06-01\r\n").await.json();
    assert_eq!(answer["data"][0]["type"], "model");
    assert_eq!(gateway.get("/healthz", "").await.status, 200);
    assert_eq!(gateway.get("/readyz", "").await.status, 200);
    gateway.earmark.set_down(true);
    assert_eq!(gateway.get("/readyz", "").await.status, 503);
    assert_eq!(gateway.get("/healthz", "").await.status, 200);
}
