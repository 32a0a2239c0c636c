//! Health, reflection, metrics, request ids, and gRPC beside HTTP on one port.

use std::sync::Arc;
use std::time::Duration;

use earmark_admission::{BackendError, ManualClock};
use tokio::time::timeout;
use tonic::Code;
use tonic::codegen::tokio_stream::StreamExt;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};
use tonic_reflection::pb::v1alpha;

use crate::grpc::calls::{self, channel, refused, reserve, rolling};
use crate::support::{Broken, START_MS, TestServer, Wire};

fn of(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.into() }
}

#[tokio::test]
async fn health_is_what_the_backend_says() {
    let server = TestServer::open().await;
    let mut client = HealthClient::new(channel(&server).await);
    for service in ["", "earmark.v1.ClusterService", "earmark.v1.LedgerService", "earmark.v1.LimitsService"] {
        let status = client.check(of(service)).await.unwrap().into_inner().status();
        assert_eq!(status, ServingStatus::Serving, "{service}");
    }
    let message = refused(client.check(of("earmark.v1.Other")).await, Code::NotFound);
    assert_eq!(message, "service \"earmark.v1.Other\" not found; reflection lists all services");

    let broken = Arc::new(Broken(BackendError::Failed("it broke".into())));
    let server = TestServer::on(ManualClock::at(START_MS), broken, TestServer::options()).await;
    let mut client = HealthClient::new(channel(&server).await);
    assert_eq!(client.check(of("")).await.unwrap().into_inner().status(), ServingStatus::NotServing);
}

/// A streaming response was taken for an unread one, and its connection was closed.
#[tokio::test]
async fn who_watches_is_told_of_the_end_and_not_cut_off_before() {
    let server = TestServer::with(|_, options| options.request_timeout = Duration::from_millis(200)).await;
    let mut client = HealthClient::new(channel(&server).await);
    let mut watched = client.watch(of("")).await.unwrap().into_inner();
    assert_eq!(watched.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    assert!(timeout(Duration::from_millis(1_500), watched.message()).await.is_err(), "nothing has changed");
    let mut unknown = client.watch(of("other")).await.unwrap().into_inner();
    assert_eq!(unknown.message().await.unwrap().unwrap().status(), ServingStatus::ServiceUnknown);
    drop(unknown);
    let stopped = tokio::spawn(server.stop());
    assert_eq!(watched.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    assert!(watched.message().await.unwrap().is_none());
    timeout(Duration::from_secs(10), stopped).await.unwrap().unwrap();
}

fn ask(message: MessageRequest) -> ServerReflectionRequest {
    ServerReflectionRequest { host: String::new(), message_request: Some(message) }
}

fn names(response: ServerReflectionResponse) -> Vec<String> {
    match response.message_response {
        Some(MessageResponse::ListServicesResponse(list)) => list.service.into_iter().map(|it| it.name).collect(),
        other => panic!("{other:?}"),
    }
}

const SERVICES: [&str; 8] = [
    "earmark.v1.CallsService",
    "earmark.v1.ClusterService",
    "earmark.v1.LedgerService",
    "earmark.v1.LimitsService",
    "envoy.service.ratelimit.v3.RateLimitService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
];

#[tokio::test]
async fn reflection_lists_every_service_and_describes_it() {
    let server = TestServer::open().await;
    let mut client = ServerReflectionClient::new(channel(&server).await);
    let symbol = MessageRequest::FileContainingSymbol("earmark.v1.LedgerService".into());
    let asked = [ask(MessageRequest::ListServices(String::new())), ask(symbol)];
    let asked = tonic::codegen::tokio_stream::iter(asked);
    let mut answers = client.server_reflection_info(asked).await.unwrap().into_inner();
    let mut found = names(answers.message().await.unwrap().unwrap());
    found.sort();
    assert_eq!(found, SERVICES);
    match answers.message().await.unwrap().unwrap().message_response {
        Some(MessageResponse::FileDescriptorResponse(files)) => {
            let file = &files.file_descriptor_proto[0];
            assert!(file.windows(10).any(|bytes| bytes == b"BatchWrite"), "{file:?}");
        }
        other => panic!("{other:?}"),
    }

    let mut old = v1alpha::server_reflection_client::ServerReflectionClient::new(channel(&server).await);
    let list = v1alpha::server_reflection_request::MessageRequest::ListServices(String::new());
    let asked = v1alpha::ServerReflectionRequest { host: String::new(), message_request: Some(list) };
    let asked = tonic::codegen::tokio_stream::iter([asked]);
    let answer = old.server_reflection_info(asked).await.unwrap().into_inner().message().await.unwrap();
    match answer.unwrap().message_response {
        Some(v1alpha::server_reflection_response::MessageResponse::ListServicesResponse(list)) => {
            assert_eq!(list.service.len(), SERVICES.len());
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_stream_of_reflection_ends_with_the_time_of_a_request() {
    let server = TestServer::with(|_, options| options.request_timeout = Duration::from_millis(300)).await;
    let mut client = ServerReflectionClient::new(channel(&server).await);
    let (say, hear) = tokio::sync::mpsc::channel(1);
    say.send(ask(MessageRequest::ListServices(String::new()))).await.unwrap();
    let mut answers = client.server_reflection_info(ReceiverStream::new(hear)).await.unwrap().into_inner();
    assert!(answers.message().await.unwrap().is_some());
    let end = timeout(Duration::from_secs(10), answers.next()).await.unwrap();
    assert!(end.is_none(), "{end:?}");
    drop(say);
}

#[tokio::test]
async fn both_protocols_are_spoken_on_one_port_at_the_same_time() {
    let server = Arc::new(TestServer::open().await);
    let mut client = calls::limits(&server).await;
    client.put_limit(rolling("a", 1_000)).await.unwrap();
    let by_grpc = tokio::spawn({
        let server = Arc::clone(&server);
        async move {
            for _ in 0..50 {
                let request = reserve(&server.lease(), &[("a", 1)]);
                assert!(client.reserve(request).await.unwrap().into_inner().allowed);
            }
        }
    });
    let mut wire = Wire::to(server.address).await;
    for _ in 0..50 {
        let body = crate::support::reserve(&server.lease(), &[("a", 1)]).to_string();
        assert_eq!(wire.ask("POST", "/v1/reserve", &body).await.json()["allowed"], true);
    }
    by_grpc.await.unwrap();
    assert_eq!(server.reserved("a").await, 100);
    // gRPC-Web and other content types are served as HTTP.
    let mut wire = Wire::to(server.address).await;
    wire.send(
        "POST /earmark.v1.LimitsService/Reserve HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/grpc\r\n\
         content-length: 0\r\n\r\n",
    )
    .await;
    assert_eq!(wire.answer().await.status, 404);
}

#[tokio::test]
async fn calls_are_counted_by_method_and_code_and_named_in_the_logs() {
    let server = TestServer::open().await;
    let mut client = calls::limits(&server).await;
    let mut request = tonic::Request::new(rolling("a", 1));
    request.metadata_mut().insert("x-request-id", "mine".parse().unwrap());
    let response = client.put_limit(request).await.unwrap();
    assert_eq!(response.metadata().get("x-request-id").unwrap(), "mine");
    refused(client.reserve(reserve("x", &[])).await, Code::InvalidArgument);
    for _ in 0..2 {
        client.reserve(reserve(&server.lease(), &[("a", 1)])).await.unwrap();
    }
    for (line, value) in [
        ("earmark_grpc_requests_total{method=\"earmark.v1.LimitsService/PutLimit\",code=\"OK\"}", 1.0),
        ("earmark_grpc_requests_total{method=\"earmark.v1.LimitsService/Reserve\",code=\"OK\"}", 2.0),
        ("earmark_grpc_requests_total{method=\"earmark.v1.LimitsService/Reserve\",code=\"INVALID_ARGUMENT\"}", 1.0),
        ("earmark_grpc_request_seconds_count{method=\"earmark.v1.LimitsService/Reserve\"}", 3.0),
        ("earmark_reserves_total{outcome=\"allowed\"}", 1.0),
        ("earmark_reserves_total{outcome=\"denied\"}", 1.0),
        ("earmark_reserves_total{outcome=\"invalid_request\"}", 1.0),
        ("earmark_denials_total{namespace=\"default\",key=\"a\",reason=\"capacity\"}", 1.0),
    ] {
        assert_eq!(server.metric(line).await, value, "{line}");
    }
}
