//! The trace of a call, through the gateway to the server and to the upstream.

use earmark_trace::{SpanRecord, TraceContext, Value};

use crate::fixture::CHAT_BODY;
use crate::real::Real;
use crate::upstream::{CHAT, Upstream, whole};

fn text<'a>(span: &'a SpanRecord, name: &str) -> Option<&'a Value> {
    span.attributes.iter().find(|(found, _)| *found == name).map(|(_, value)| value)
}

/// The one test of this program that turns tracing on, because it is on for the whole process.
#[tokio::test]
async fn the_context_of_a_call_reaches_the_server_and_the_upstream() {
    let mut queue = earmark_trace::install(0.0).unwrap();
    let (real, upstream) = (Real::start(100, 10, 100_000).await, Upstream::start().await);
    let running = real.open(&upstream).await;
    upstream.always(whole(200, "", CHAT));
    let parent = TraceContext { trace: 7, span: 9, is_sampled: true };
    let headers = format!("traceparent: {}\r\ntracestate: a=1\r\ntracestate: b=2\r\n", parent.header());
    assert_eq!(running.post("/v1/chat/completions", &headers, CHAT_BODY).await.status, 200);
    let unsampled = TraceContext { is_sampled: false, ..parent };
    let headers = format!("traceparent: {}\r\n", unsampled.header());
    assert_eq!(running.post("/v1/chat/completions", &headers, CHAT_BODY).await.status, 200);
    // Without a context of its own, it belongs to nothing.
    assert_eq!(running.post("/v1/chat/completions", "tracestate: a=1\r\n", CHAT_BODY).await.status, 200);
    running.stop().await;

    let spans: Vec<SpanRecord> = std::iter::from_fn(|| queue.try_recv().ok()).collect();
    assert!(spans.iter().all(|span| span.context.trace == 7), "{spans:#?}");
    let of = |name: &str| spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("{name}: {spans:#?}"));
    let (call, attempt, reserve) = (of("POST /v1/chat/completions"), of("chat gpt-4o"), of("POST /v1/calls"));
    assert_eq!(call.parent, Some(9));
    assert_eq!((attempt.parent, reserve.parent), (Some(call.context.span), Some(call.context.span)));
    assert_eq!(of("apply").parent, Some(reserve.context.span));
    for (name, value) in [
        ("gen_ai.operation.name", Value::from("chat")),
        ("gen_ai.provider.name", Value::from("one")),
        ("gen_ai.request.model", Value::from("gpt-4o")),
        ("gen_ai.request.max_tokens", Value::from(100)),
        ("gen_ai.usage.input_tokens", Value::from(7)),
        ("gen_ai.usage.output_tokens", Value::from(3)),
    ] {
        assert_eq!(text(attempt, name), Some(&value), "{name}");
    }
    let seen: Vec<Option<String>> = upstream.seen().iter().map(|request| request.header("traceparent")).collect();
    let [Some(sampled), Some(unsampled), Some(_)] = &seen[..] else { panic!("{seen:?}") };
    let states: Vec<Vec<String>> =
        upstream.seen().iter().map(|request| request.headers("tracestate").collect()).collect();
    assert_eq!(states, [vec!["a=1".to_owned(), "b=2".to_owned()], vec![], vec![]]);
    assert_eq!(*sampled, attempt.context.header());
    let unsampled = TraceContext::parse(unsampled.as_bytes()).unwrap();
    assert_eq!((unsampled.trace, unsampled.is_sampled), (7, false));
}
