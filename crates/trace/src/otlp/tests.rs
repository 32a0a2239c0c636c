use std::convert::Infallible;

use earmark_proto::opentelemetry::proto::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use earmark_proto::opentelemetry::proto::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use prost::Message as _;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::TcpListenerStream;

use super::*;
use crate::{Kind, SpanRecord, TraceContext, Value};

/// A collector, as the requests with the header `x-team` that it got.
type Got = (ExportTraceServiceRequest, Option<String>);

struct Collector(mpsc::UnboundedSender<Got>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        let team = request.metadata().get("x-team").and_then(|value| value.to_str().ok()).map(str::to_owned);
        self.0.send((request.into_inner(), team)).unwrap();
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

async fn grpc_collector(listener: TcpListener, got: mpsc::UnboundedSender<Got>) {
    let service = TraceServiceServer::new(Collector(got));
    let server = tonic::transport::Server::builder().add_service(service);
    server.serve_with_incoming(TcpListenerStream::new(listener)).await.unwrap();
}

async fn http_collector(listener: TcpListener, got: mpsc::UnboundedSender<Got>) {
    let (stream, _) = listener.accept().await.unwrap();
    let answer = |request: hyper::Request<Incoming>| {
        let got = got.clone();
        async move {
            assert_eq!(request.uri().path(), "/v1/traces");
            assert_eq!(request.headers()["content-type"], "application/x-protobuf");
            let team = request.headers().get("x-team").and_then(|value| value.to_str().ok()).map(str::to_owned);
            let body = request.into_body().collect().await.unwrap().to_bytes();
            got.send((ExportTraceServiceRequest::decode(body).unwrap(), team)).unwrap();
            Ok::<_, Infallible>(hyper::Response::new(Full::<bytes::Bytes>::default()))
        }
    };
    let served = hyper::service::service_fn(answer);
    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), served).await.unwrap();
}

fn example(name: &'static str) -> SpanRecord {
    SpanRecord {
        context: TraceContext { trace: 0x0af7_6519, span: 0xb7ad, is_sampled: true },
        parent: Some(7),
        name: name.into(),
        kind: Kind::Client,
        start_unix_ns: 1_000,
        end_unix_ns: 2_000,
        attributes: vec![("gen_ai.request.model", Value::from("m")), ("gen_ai.usage.input_tokens", Value::from(5))],
        error: Some("status 503".into()),
    }
}

#[tokio::test]
async fn a_collector_gets_the_spans_over_grpc_and_over_http() {
    for protocol in [Protocol::Grpc, Protocol::Http] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (got, mut requests) = mpsc::unbounded_channel();
        match protocol {
            Protocol::Grpc => tokio::spawn(grpc_collector(listener, got)),
            Protocol::Http => tokio::spawn(http_collector(listener, got)),
        };
        let (spans, queue) = mpsc::channel(10);
        let options = Options {
            endpoint: Endpoint::parse(&url, protocol).unwrap(),
            headers: vec![("x-team".into(), "a".into())],
            resource: vec![("service.name", "earmark".into())],
        };
        let exporter = Exporter::start(queue, options).unwrap();
        spans.send(example("one")).await.unwrap();
        spans.send(example("two")).await.unwrap();
        let (mut request, team) = requests.recv().await.unwrap();
        assert_eq!(team.as_deref(), Some("a"));
        let found = request.resource_spans.remove(0);
        assert_eq!(found.resource.unwrap().attributes[0].key, "service.name");
        let span = found.scope_spans[0].spans[0].clone();
        assert_eq!(span.trace_id, [&[0; 12][..], &[0x0a, 0xf7, 0x65, 0x19]].concat());
        assert_eq!((span.span_id[6..].to_vec(), span.parent_span_id[7]), (vec![0xb7, 0xad], 7));
        assert_eq!((span.name.as_str(), span.kind, span.attributes.len()), ("one", 3, 2));
        assert_eq!(span.status.unwrap().message, "status 503");
        // The rest is sent at the shutdown.
        spans.send(example("three")).await.unwrap();
        exporter.shut_down().await;
        let mut names: Vec<String> = found.scope_spans[0].spans.iter().map(|span| span.name.clone()).collect();
        while let Ok((request, _)) = requests.try_recv() {
            names.extend(request.resource_spans[0].scope_spans[0].spans.iter().map(|span| span.name.clone()));
        }
        assert_eq!(names, ["one", "two", "three"], "{protocol:?}");
    }
}

#[test]
fn an_endpoint_is_a_url_with_the_usual_port_and_path() {
    let parse =
        |url, protocol| Endpoint::parse(url, protocol).map(|found| (found.authority(), found.path, found.is_tls));
    let ok = |authority: &str, path: &str, is_tls| Ok((authority.to_owned(), path.to_owned(), is_tls));
    assert_eq!(parse("http://localhost", Protocol::Grpc), ok("localhost:4317", "", false));
    assert_eq!(parse("https://c:9/", Protocol::Grpc), ok("c:9", "", true));
    assert_eq!(parse("http://c", Protocol::Http), ok("c:4318", "/v1/traces", false));
    assert_eq!(parse("https://c/x", Protocol::Http), ok("c:4318", "/x/v1/traces", true));
    assert_eq!(parse("https://c/v1/traces", Protocol::Http), ok("c:4318", "/v1/traces", true));
    for (url, protocol) in [
        ("localhost:4317", Protocol::Grpc),
        ("http://c/path", Protocol::Grpc),
        ("ftp://c", Protocol::Http),
        ("http://user@c", Protocol::Http),
        ("http://c?x=1", Protocol::Http),
        ("", Protocol::Http),
    ] {
        assert!(parse(url, protocol).is_err(), "{url}");
    }
}
