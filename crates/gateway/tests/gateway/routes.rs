//! Configured routes with a flat charge.

use earmark_client::{CallResult, CallUsage};
use earmark_gateway::open_calls::OpenCalls;

use crate::earmark::Double;
use crate::fixture::{CHAT_BODY, Running, config};
use crate::upstream::{CHAT_STREAM, Step, Upstream, chunk, stream_head, whole};

const ROUTES: &str = r#"
[[routes]]
path = "/v1/moderations"
target = "one/omni"
input_tokens = 5
output_tokens = 9
[[routes]]
method = "GET"
path = "/v1/messages/batches"
target = "anthropic/batches"
"#;

async fn start() -> Running {
    let upstream = Upstream::start().await;
    let text = config(&upstream, "") + ROUTES;
    Running::with(&text, upstream, Double::default(), OpenCalls::in_memory(), false).await
}

fn flat() -> CallResult {
    CallResult::Used(CallUsage { input_tokens: 5, output_tokens: 9, ..CallUsage::default() })
}

#[tokio::test]
async fn a_route_forwards_any_bytes_and_charges_the_same_for_each_answer() {
    let gateway = start().await;
    gateway.upstream.always(whole(200, "", "not JSON"));
    let answer = gateway.post("/v1/moderations", "", "any bytes").await;
    assert_eq!((answer.status, answer.text().as_str()), (200, "not JSON"));
    assert_eq!(answer.header("x-earmark-cost").as_deref(), Some("95"));
    let seen = &gateway.upstream.seen()[0];
    assert!(seen.head.starts_with("POST /v1/moderations HTTP/1.1\r\n"), "{}", seen.head);
    assert_eq!(seen.body, b"any bytes");
    let lease = &gateway.earmark.leases()[0].call;
    assert_eq!((lease.input_tokens_max, lease.output_tokens_max), (5, 9));
    let expected = [("alias", "/v1/moderations"), ("model", "omni"), ("operation", "flat"), ("provider", "one")];
    for (name, value) in expected {
        assert_eq!(lease.attributes[name], value);
    }
    gateway.upstream.then(whole(422, "", "{}"));
    assert_eq!(gateway.post("/v1/moderations", "", "x").await.status, 422);
    gateway.upstream.then(vec![stream_head(), chunk(CHAT_STREAM[0]), Step::Close]);
    assert!(!gateway.post("/v1/moderations", "", "x").await.is_whole);
    assert_eq!(gateway.earmark.settled().await, [flat(), CallResult::Refused, CallResult::Unknown]);
}

#[tokio::test]
async fn a_route_is_its_method_and_path_and_nothing_else() {
    let gateway = start().await;
    gateway.upstream.always(whole(200, "", "{}"));
    assert_eq!(gateway.get("/v1/messages/batches?limit=5", "").await.status, 200);
    let seen = &gateway.upstream.seen()[0];
    assert!(seen.head.starts_with("GET /v1/messages/batches HTTP/1.1\r\n"), "no query goes upstream: {}", seen.head);
    for path in ["/v1/messages/batches", "/v1/moderations/", "/v1/files"] {
        assert_eq!(gateway.post(path, "", CHAT_BODY).await.status, 404, "{path}");
    }
    assert_eq!(gateway.get("/v1/moderations", "").await.status, 404);
    let encoded = gateway.post("/v1/moderations", "content-encoding: gzip\r\n", "x").await;
    assert_eq!(encoded.status, 400);
    assert_eq!(gateway.upstream.seen().len(), 1);
}
