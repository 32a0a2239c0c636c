//! The stream `Leases`.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use earmark_admission::{LocalBook, LocalOptions, ManualClock};
use earmark_core::Role;
use earmark_proto::v1;
use earmark_proto::v1::leases_request::Request as Ask;
use earmark_proto::v1::leases_response::Answer;
use earmark_proto::v1::limits_service_client::LimitsServiceClient;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::tokio_stream;
use tonic::codegen::tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::grpc::callers::with;
use crate::grpc::calls::{self, complete, reserve};
use crate::support::{Gate, KeyedServer, START_MS, TestServer};

/// An answer that takes longer than this is missing.
const PATIENCE: Duration = Duration::from_secs(20);

/// The client side of one stream.
struct Stream {
    requests: mpsc::UnboundedSender<v1::LeasesRequest>,
    answers: Streaming<v1::LeasesResponse>,
}

impl Stream {
    async fn open(server: &TestServer, key: Option<&str>) -> Result<Stream, Status> {
        Stream::over(calls::limits(server).await, key).await
    }

    async fn over(mut client: LimitsServiceClient<Channel>, key: Option<&str>) -> Result<Stream, Status> {
        let (requests, receiver) = mpsc::unbounded_channel();
        let answers = client.leases(with(key, UnboundedReceiverStream::new(receiver))).await?.into_inner();
        Ok(Stream { requests, answers })
    }

    fn ask(&self, request_id: u64, request: Ask) {
        self.requests.send(v1::LeasesRequest { request_id, request: Some(request) }).unwrap();
    }

    /// The next answer; `None` at the end.
    async fn next(&mut self) -> Result<Option<v1::LeasesResponse>, Status> {
        timeout(PATIENCE, self.answers.message()).await.expect("no answer")
    }

    /// The next `count` answers by request id.
    async fn take(&mut self, count: usize) -> BTreeMap<u64, Answer> {
        let mut answers = BTreeMap::new();
        for _ in 0..count {
            let v1::LeasesResponse { request_id, answer } = self.next().await.unwrap().expect("the stream ended");
            assert!(answers.insert(request_id, answer.unwrap()).is_none(), "two answers to {request_id}");
        }
        answers
    }

    async fn one(&mut self, request_id: u64, request: Ask) -> Answer {
        self.ask(request_id, request);
        self.take(1).await.remove(&request_id).unwrap()
    }

    async fn ending(mut self) -> Status {
        loop {
            match self.next().await {
                Ok(Some(_)) => {}
                Ok(None) => return Status::ok(""),
                Err(status) => return status,
            }
        }
    }
}

fn error(answer: Answer) -> v1::LeasesError {
    match answer {
        Answer::Error(error) => error,
        other => panic!("{other:?}"),
    }
}

/// A server whose reserves are answered when the test allows it.
async fn gated() -> (TestServer, Arc<Gate>) {
    let clock = ManualClock::at(START_MS);
    let local = LocalOptions { clock: Arc::<ManualClock>::clone(&clock), ..LocalOptions::default() };
    let gate = Arc::new(Gate::before(LocalBook::open(local).await.unwrap()));
    let server = TestServer::on(clock, Arc::<Gate>::clone(&gate), TestServer::options()).await;
    server.put_rolling("a", 1 << 40, 60).await;
    (server, gate)
}

const REQUESTS: &str = "earmark_lease_stream_requests_total";

#[tokio::test]
async fn every_request_has_one_answer_with_its_id_and_leases_are_reserved_and_completed() {
    let server = TestServer::open().await;
    server.put_concurrency("slots", 300, 60).await;
    let mut stream = Stream::open(&server, None).await.unwrap();
    let leases: Vec<String> = (0..500).map(|_| server.lease()).collect();
    for (id, lease) in (7..).zip(&leases) {
        stream.ask(id, Ask::Reserve(reserve(lease, &[("slots", 1)])));
    }
    let answers = stream.take(leases.len()).await;
    let allowed = |answer: &Answer| matches!(answer, Answer::Reserve(answer) if answer.allowed);
    assert_eq!(answers.values().filter(|answer| allowed(answer)).count(), 300);
    assert_eq!(server.reserved("slots").await, 300);

    let first = Ask::Extend(v1::ExtendRequest { lease_id: leases[0].clone(), extension: 1, ..Default::default() });
    let Answer::Extend(extended) = stream.one(1, first).await else { panic!("no answer to an extension") };
    assert!(extended.allowed && extended.ends_at_unix_ms > 0, "{extended:?}");
    let none = Ask::Extend(v1::ExtendRequest { lease_id: leases[0].clone(), ..Default::default() });
    assert_eq!(Code::from_i32(error(stream.one(2, none).await).code), Code::InvalidArgument);

    let held = answers.iter().filter(|(_, answer)| allowed(answer)).map(|(id, _)| *id);
    let mut completed = 0;
    for id in held {
        stream.ask(id, Ask::Complete(complete(&leases[usize::try_from(id - 7).unwrap()], &[])));
        completed += 1;
    }
    let answers = stream.take(completed).await;
    assert!(
        answers.values().all(|answer| matches!(answer, Answer::Complete(answer) if answer.ok && answer.reconciled))
    );
    assert_eq!(server.reserved("slots").await, 0);

    assert_eq!(server.metric(REQUESTS).await, 802.0);
    assert_eq!(server.metric("earmark_lease_streams").await, 1.0);
    let Stream { requests, mut answers } = stream;
    drop(requests);
    assert_eq!(answers.message().await.unwrap(), None, "it ends with its requests");
    server.until("earmark_lease_streams", 0.0).await;
}

#[tokio::test]
async fn a_bad_request_is_answered_by_its_id_and_the_stream_goes_on() {
    let keyed = KeyedServer::open().await;
    let root = Some(keyed.root.as_str());
    calls::limits(&keyed.server).await.put_limit(with(root, calls::rolling("a", 5))).await.unwrap();
    let mut stream = Stream::open(&keyed.server, root).await.unwrap();
    let lease = || keyed.server.lease();
    let foreign = v1::ReserveRequest { namespace: Some("team".into()), ..reserve(&lease(), &[("a", 1)]) };
    for (request, code, message) in [
        (None, Code::InvalidArgument, "request: found none, allowed are reserve, extend and complete"),
        (
            Some(Ask::Reserve(reserve(&lease(), &[]))),
            Code::InvalidArgument,
            "requirements: found 0 items, allowed are 1 to 32",
        ),
        (Some(Ask::Reserve(reserve("x", &[("a", 1)]))), Code::InvalidArgument, "lease_id: found 1 bytes"),
        (Some(Ask::Complete(complete("x", &[]))), Code::InvalidArgument, "lease_id: found 1 bytes"),
        (Some(Ask::Reserve(foreign)), Code::PermissionDenied, "namespace: found team, this key belongs to"),
    ] {
        stream.requests.send(v1::LeasesRequest { request_id: 3, request }).unwrap();
        let found = error(stream.take(1).await.remove(&3).unwrap());
        assert_eq!(Code::from_i32(found.code), code, "{found:?}");
        assert!(found.message.starts_with(message), "{found:?}");
    }
    let answer = stream.one(0, Ask::Reserve(reserve(&lease(), &[("a", 5)]))).await;
    assert!(matches!(answer, Answer::Reserve(answer) if answer.allowed));
    let answer = stream.one(u64::MAX, Ask::Reserve(reserve(&lease(), &[("a", 1)]))).await;
    let Answer::Reserve(denied) = answer else { panic!("{answer:?}") };
    assert_eq!((denied.allowed, denied.limited_by), (false, vec!["a".to_owned()]));
}

#[tokio::test]
async fn a_message_that_cannot_be_decoded_or_is_too_long_ends_the_stream() {
    let server = TestServer::open().await;
    for (message, code) in [
        (v1::Requirement { key: "not a number".into(), ..Default::default() }, Code::InvalidArgument),
        (v1::Requirement { key: "x".repeat(40 << 10), ..Default::default() }, Code::OutOfRange),
    ] {
        let mut client = Grpc::new(calls::channel(&server).await);
        client.ready().await.unwrap();
        let codec: ProstCodec<v1::Requirement, v1::LeasesResponse> = ProstCodec::default();
        let path = PathAndQuery::from_static("/earmark.v1.LimitsService/Leases");
        let request = Request::new(tokio_stream::iter([message]));
        let mut answers = client.streaming(request, path, codec).await.unwrap().into_inner();
        assert_eq!(answers.message().await.unwrap_err().code(), code);
    }
    server.until("earmark_lease_streams", 0.0).await;
}

#[tokio::test]
async fn requests_that_wait_share_a_call_and_at_most_1024_are_read() {
    let (server, gate) = gated().await;
    let mut stream = Stream::open(&server, None).await.unwrap();
    for id in 0..3_000 {
        stream.ask(id, Ask::Reserve(reserve(&server.lease(), &[("a", 1)])));
    }
    server.until(REQUESTS, 1_024.0).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(server.metric(REQUESTS).await, 1_024.0, "the server reads on without sending answers");
    assert!(gate.came.lock().unwrap().len() <= 512, "more than two calls of 256 are under way");
    // 3,000 single calls would need 3,000 permits.
    gate.gate.add_permits(100);
    assert_eq!(stream.take(3_000).await.len(), 3_000);
    assert!(gate.gate.available_permits() > 0, "the requests did not share calls");
}

#[tokio::test]
async fn a_revoked_key_ends_its_stream_also_while_nothing_is_asked() {
    let keyed = KeyedServer::open().await;
    let key = keyed.key(Role::Caller, "default").await;
    let (idle, mut busy) = (
        Stream::open(&keyed.server, Some(&key)).await.unwrap(),
        Stream::open(&keyed.server, Some(&key)).await.unwrap(),
    );
    let answer = busy.one(1, Ask::Reserve(reserve(&keyed.server.lease(), &[("a", 1)]))).await;
    assert!(matches!(answer, Answer::Reserve(answer) if answer.error == "unknown_limit_key:a"));
    keyed.revoke(&key).await;
    busy.ask(2, Ask::Reserve(reserve(&keyed.server.lease(), &[("a", 1)])));
    assert_eq!(busy.ending().await.code(), Code::Unauthenticated);
    let ending = timeout(Duration::from_secs(10), idle.ending()).await.unwrap();
    assert_eq!(ending.code(), Code::Unauthenticated);
}

#[tokio::test]
async fn a_role_that_may_not_reserve_opens_no_stream() {
    let keyed = KeyedServer::open().await;
    let reader = keyed.key(Role::Reader, "default").await;
    assert_eq!(Stream::open(&keyed.server, Some(&reader)).await.err().unwrap().code(), Code::PermissionDenied);
    assert_eq!(Stream::open(&keyed.server, None).await.err().unwrap().code(), Code::Unauthenticated);
}

#[tokio::test]
async fn a_shutdown_answers_what_was_read_and_ends_the_stream_with_a_reason() {
    let (server, gate) = gated().await;
    let mut stream = Stream::open(&server, None).await.unwrap();
    stream.ask(1, Ask::Reserve(reserve(&server.lease(), &[("a", 1)])));
    server.until("earmark_live_leases", 1.0).await;
    let stopping = tokio::spawn(server.stop());
    tokio::time::sleep(Duration::from_millis(100)).await;
    gate.gate.add_permits(1);
    assert!(matches!(stream.take(1).await.remove(&1), Some(Answer::Reserve(answer)) if answer.allowed));
    let status = stream.ending().await;
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(status.message(), "the server is shutting down; open the stream again, on another server");
    timeout(PATIENCE, stopping).await.unwrap().unwrap();
}

#[tokio::test]
async fn the_rate_and_the_queue_of_a_caller_count_the_requests_of_its_streams() {
    let keyed = KeyedServer::with(|options| {
        options.requests_per_second = Some(10);
        options.requests_at_once = NonZeroU32::new(1);
    })
    .await;
    let key = keyed.key(Role::Caller, "default").await;
    let mut stream = Stream::open(&keyed.server, Some(&key)).await.unwrap();
    for id in 0..40 {
        stream.ask(id, Ask::Reserve(reserve(&keyed.server.lease(), &[("a", 1)])));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let answers = stream.take(40).await;
    let refused: Vec<v1::LeasesError> = answers
        .into_values()
        .filter_map(|answer| match answer {
            Answer::Error(error) => Some(error),
            _ => None,
        })
        .collect();
    assert!(!refused.is_empty(), "nothing was refused");
    for error in refused {
        assert_eq!(Code::from_i32(error.code), Code::ResourceExhausted);
        assert!(error.retry_after_ms > 0, "{error:?}");
    }
}
