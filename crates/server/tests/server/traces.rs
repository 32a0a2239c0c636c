//! Traces: the context of a request over HTTP and over gRPC.

use std::time::Duration;

use earmark_proto::v1;
use earmark_trace::{Kind, SpanRecord, TraceContext, Value};

use crate::grpc::calls;
use crate::support::{TestServer, Wire, reserve};

/// The one test of this program that turns tracing on, because it is on for the whole process.
#[tokio::test]
async fn a_request_is_traced_as_its_header_says_over_http_and_grpc() {
    let mut queue = earmark_trace::install(0.0).unwrap();
    let server = TestServer::open().await;
    server.put_rolling("rpm", 10, 60).await;
    let header = |trace, is_sampled| TraceContext { trace, span: 9, is_sampled }.header();
    for (trace, is_sampled) in [(1, true), (2, false)] {
        let body = reserve(&server.lease(), &[("rpm", 1)]).to_string();
        let (header, length) = (header(trace, is_sampled), body.len());
        let mut wire = Wire::to(server.address).await;
        let head = format!("host: localhost\r\ntraceparent: {header}\r\ncontent-length: {length}\r\n");
        wire.send(&format!("POST /v1/reserve HTTP/1.1\r\n{head}\r\n{body}")).await;
        assert_eq!(wire.answer().await.status, 200);
    }
    let mut client = calls::limits(&server).await;
    for (trace, is_sampled) in [(3, true), (4, false)] {
        let mut request = tonic::Request::new(calls::reserve(&server.lease(), &[("rpm", 1)]));
        request.set_timeout(Duration::from_secs(20));
        request.metadata_mut().insert("traceparent", header(trace, is_sampled).parse().unwrap());
        client.reserve(request).await.unwrap();
    }
    for (trace, is_sampled) in [(5, true), (6, false)] {
        let message = v1::leases_request::Request::Reserve(calls::reserve(&server.lease(), &[("rpm", 1)]));
        let asked = v1::LeasesRequest { request_id: 1, request: Some(message) };
        let mut request = tonic::Request::new(tonic::codegen::tokio_stream::once(asked));
        request.metadata_mut().insert("traceparent", header(trace, is_sampled).parse().unwrap());
        let mut answers = client.leases(request).await.unwrap().into_inner();
        assert!(answers.message().await.unwrap().is_some());
    }
    // Without a header the ratio decides, which is 0 here.
    server.reserve(&server.lease(), &[("rpm", 1)]).await;

    let spans: Vec<SpanRecord> = std::iter::from_fn(|| queue.try_recv().ok()).collect();
    for (trace, name, count) in [
        (1, "POST /v1/reserve", 3),
        (3, "earmark.v1.LimitsService/Reserve", 3),
        // And the span of the stream's opening.
        (5, "earmark.v1.LimitsService/Leases reserve", 4),
    ] {
        let of: Vec<&SpanRecord> = spans.iter().filter(|span| span.context.trace == trace).collect();
        let find = |name: &str| *of.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("{name}: {of:#?}"));
        let root = find(name);
        assert_eq!((root.parent, root.kind), (Some(9), Kind::Server));
        for below in ["queue", "apply"] {
            assert_eq!(find(below).parent, Some(root.context.span), "{below}");
        }
        assert_eq!(of.len(), count, "{of:#?}");
    }
    let status = spans.iter().flat_map(|span| &span.attributes).find(|(name, _)| *name == "http.response.status_code");
    assert_eq!(status.map(|(_, value)| value), Some(&Value::from(200)));
    assert_eq!(spans.len(), 10, "{spans:#?}");
}
