//! Oversized, late and malformed gRPC calls.

use std::time::Duration;

use axum::body::{Body, Bytes};
use earmark_proto::v1;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::TcpStream;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use crate::grpc::calls::{self, issue, refused, reserve, rolling, write};
use crate::support::TestServer;

/// Sends a raw HTTP/2 request that no gRPC client would send.
async fn post(server: &TestServer, path: &str, headers: &[(&str, &str)], body: Body) -> Response<Incoming> {
    let tcp = TcpStream::connect(server.address).await.unwrap();
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tcp)).await.unwrap();
    tokio::spawn(connection);
    let mut request = Request::post(format!("http://{}{path}", server.address));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    sender.send_request(request.body(body).unwrap()).await.unwrap()
}

/// The status of a response without a message.
async fn raw(server: &TestServer, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Status {
    let response = post(server, path, headers, Body::from(body)).await;
    assert_eq!(response.status(), 200);
    Status::from_header_map(response.headers()).unwrap()
}

/// A message with its gRPC frame header.
fn framed(message: &impl Message) -> Vec<u8> {
    frame(message.encode_to_vec())
}

fn frame(message: Vec<u8>) -> Vec<u8> {
    let mut body = vec![0];
    body.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    body.extend(message);
    body
}

const GRPC: (&str, &str) = ("content-type", "application/grpc");
const RESERVE: &str = "/earmark.v1.LimitsService/Reserve";

#[tokio::test]
async fn a_message_beyond_the_allowed_is_refused_and_the_next_call_is_served() {
    let server = TestServer::open().await;
    let mut client = calls::limits(&server).await;
    let job_id = Some("j".repeat(earmark_server::BODY_BYTES_MAX));
    let large = v1::ReserveRequest { job_id, ..reserve(&server.lease(), &[("a", 1)]) };
    let message = refused(client.reserve(large).await, Code::ResourceExhausted);
    assert_eq!(message, "body: found more than 1048576 bytes, allowed are at most 1048576");
    client.put_limit(rolling("a", 5)).await.unwrap();
    let job_id = Some("j".repeat(earmark_server::BODY_BYTES_MAX - 100));
    let fits = v1::ReserveRequest { job_id, ..reserve(&server.lease(), &[("a", 1)]) };
    let message = refused(client.reserve(fits).await, Code::InvalidArgument);
    assert!(message.starts_with("job_id: found 1048476 bytes, allowed are 1 to 128"), "{message}");
}

#[tokio::test]
async fn batches_and_lists_have_the_bounds_of_the_contract() {
    let server = TestServer::open().await;
    let mut client = calls::limits(&server).await;
    client.put_limit(rolling("a", 1_000)).await.unwrap();
    let batch = |count: usize| {
        let requests = (0..count).map(|_| reserve(&server.lease(), &[("a", 1)])).collect();
        v1::ReserveBatchRequest { requests }
    };
    assert_eq!(client.reserve_batch(batch(256)).await.unwrap().into_inner().results.len(), 256);
    for count in [0, 257] {
        let message = refused(client.reserve_batch(batch(count)).await, Code::InvalidArgument);
        assert_eq!(message, format!("requests: found {count} items, allowed are 1 to 256"));
    }
    let message = refused(client.complete_batch(v1::CompleteBatchRequest::default()).await, Code::InvalidArgument);
    assert_eq!(message, "requests: found 0 items, allowed are 1 to 256");
    let mut bad = batch(2);
    bad.requests[1].requirements[0].amount = 0;
    let message = refused(client.reserve_batch(bad).await, Code::InvalidArgument);
    assert!(message.starts_with("requests[1].requirements[0].amount: found 0, allowed"), "{message}");
    assert_eq!(server.reserved("a").await, 256);

    let mut ledger = calls::ledger(&server).await;
    let many = write(Some("main"), 1, vec![issue("revenue", "1"); 257]);
    let error = calls::error(ledger.write(many).await.unwrap().into_inner());
    assert_eq!(error.message, "operations: found 257, allowed are up to 256");
}

#[tokio::test]
async fn what_is_no_call_of_this_server_is_told_so() {
    let server = TestServer::open().await;
    let status = raw(&server, "/earmark.v1.LimitsService/Steal", &[GRPC], vec![0; 5]).await;
    assert_eq!(status.code(), Code::Unimplemented);
    let expected = "method /earmark.v1.LimitsService/Steal not found; reflection lists all methods";
    assert_eq!(status.message(), expected);
    // A length of 3 and bytes that are not a message.
    let status = raw(&server, RESERVE, &[GRPC], vec![0, 0, 0, 0, 3, 255, 255, 255]).await;
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    assert!(status.message().starts_with("body: found no message of its type"), "{status:?}");
    let compressed = [GRPC, ("grpc-encoding", "gzip")];
    let status = raw(&server, RESERVE, &compressed, vec![1, 0, 0, 0, 0]).await;
    assert_eq!(status.code(), Code::Unimplemented, "{status:?}");
    let status = raw(&server, RESERVE, &[GRPC, ("grpc-timeout", "5 s")], vec![0; 5]).await;
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().starts_with("grpc-timeout: found \"5 s\", allowed are"), "{status:?}");
    server.until("earmark_grpc_requests_total{method=\"unmatched\",code=\"UNIMPLEMENTED\"}", 1.0).await;
}

#[tokio::test]
async fn a_field_that_is_not_known_is_passed_over_and_no_field_names_an_actor() {
    let server = TestServer::open().await;
    let mut client = calls::ledger(&server).await;
    let mut message = write(Some("main"), 1, vec![]).encode_to_vec();
    // Field 15, a string: an attempt to name the actor.
    message.extend([0x7a, 7]);
    message.extend(b"user:me");
    let body = frame(message);
    let response = post(&server, "/earmark.v1.LedgerService/Write", &[GRPC], Body::from(body)).await;
    assert_eq!(response.status(), 200);
    let done = calls::success(client.write(write(Some("main"), 1, vec![])).await.unwrap().into_inner());
    assert_eq!((done.sequence, done.actor.as_str()), (1, "system:local"));
}

#[tokio::test]
async fn a_client_that_waits_no_longer_is_told_so_and_what_it_asked_is_done() {
    let (server, gate) = crate::grpc::failures::gated().await;
    let mut client = calls::limits(&server).await;
    let lease = server.lease();
    let message = framed(&reserve(&lease, &[("a", 1)]));
    // Sent by hand, because tonic's client would time out first.
    let status = raw(&server, RESERVE, &[GRPC, ("grpc-timeout", "200m")], message).await;
    assert_eq!(status.code(), Code::DeadlineExceeded);
    let expected = "grpc-timeout: no answer in time; the outcome is unknown, retry the same request";
    assert_eq!(status.message(), expected);
    gate.gate.add_permits(8);
    assert!(client.reserve(reserve(&lease, &[("a", 1)])).await.unwrap().into_inner().allowed);
    assert_eq!(server.reserved("a").await, 1);
}

#[tokio::test]
async fn a_message_that_does_not_come_in_time_is_given_up() {
    let server = TestServer::with(|_, options| options.request_timeout = Duration::from_millis(300)).await;
    let (say, hear) = tokio::sync::mpsc::channel::<Result<Bytes, std::io::Error>>(1);
    let body = Body::from_stream(ReceiverStream::new(hear));
    let response = post(&server, RESERVE, &[GRPC], body).await;
    let status = Status::from_header_map(response.headers()).unwrap();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert_eq!(status.message(), "body: it did not arrive in time; send it at once");
    drop(say);
}
