//! `GET /v1/events` and `GET /v1/charts`.

use std::time::Duration;

use earmark_core::Role;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::support::{KeyedServer, Nodes, TestServer, reserve};

/// Timeout of an event; far longer than any takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// A reader of a stream.
struct Events {
    tcp: TcpStream,
    /// The bytes that no event was taken from. An event is never cut by a chunk of the transfer.
    text: String,
}

impl Events {
    async fn open(server: &TestServer, key: Option<&str>, query: &str) -> Events {
        let tcp = TcpStream::connect(server.address).await.unwrap();
        Events::on(tcp, key, query).await
    }

    async fn on(mut tcp: TcpStream, key: Option<&str>, query: &str) -> Events {
        let key = key.map(|key| format!("authorization: Bearer {key}\r\n")).unwrap_or_default();
        let head = format!("GET /v1/events{query} HTTP/1.1\r\nhost: localhost\r\n{key}\r\n");
        tcp.write_all(head.as_bytes()).await.unwrap();
        Events { tcp, text: String::new() }
    }

    /// Reads more. False at the end of the connection.
    async fn read(&mut self) -> bool {
        let mut bytes = vec![0; 64 << 10];
        let count = timeout(PATIENCE, self.tcp.read(&mut bytes)).await.expect("no event in time").unwrap_or(0);
        self.text.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
        count > 0
    }

    /// The data of the next event with this name, which must come. Others before it are skipped.
    async fn next(&mut self, name: &str) -> Value {
        let begin = format!("event: {name}\ndata: ");
        loop {
            if let Some((_, rest)) = self.text.split_once(&begin)
                && let Some((data, rest)) = rest.split_once("\n\n")
            {
                let data = serde_json::from_str(data).unwrap();
                self.text = rest.to_owned();
                return data;
            }
            assert!(self.read().await, "closed before {name}: {}", self.text);
        }
    }

    /// Everything until the server closes the stream.
    async fn rest(mut self) -> String {
        // The last chunk of the transfer.
        while !self.text.ends_with("0\r\n\r\n") && self.read().await {}
        self.text
    }
}

#[tokio::test]
async fn a_stream_shows_decisions_usage_and_readiness() {
    let server = TestServer::open().await;
    server.put_rolling("a:rpm", 10, 60).await;
    let mut events = Events::open(&server, None, "").await;
    let hello = events.next("hello").await;
    assert_eq!(hello, json!({"namespace": "default", "topics": ["decisions", "usage", "cluster"]}));
    assert!(events.text.is_empty() || events.text.starts_with("\r\n"), "{}", events.text);
    assert_eq!(events.next("cluster").await, json!({"ready": true}));
    server.reserve(&server.lease(), &[("a:rpm", 9)]).await;
    let lease = server.lease();
    server.reserve(&lease, &[("a:rpm", 2)]).await;
    let decision = events.next("decision").await;
    assert_eq!((&decision["outcome"], &decision["lease_id"]), (&json!("denied"), &json!(lease)));
    assert_eq!(decision["limits"], json!([{"key": "a:rpm", "asked": 2, "available": 1, "capacity": 10}]));
    let listed = server.ok("GET", "/v1/decisions", &Value::Null).await;
    let fields = |decision: &Value| decision.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(fields(&decision), fields(&listed["decisions"][0]));
    let mut usage = events.next("usage").await;
    while usage["usage"][0]["reserved"] != 9 {
        usage = events.next("usage").await;
    }
    let fullest = server.ok("GET", "/v1/usage?sort=fullness", &Value::Null).await;
    assert_eq!(usage["usage"], fullest["usage"]);
    assert_eq!(usage["denied"], json!([{"key": "a:rpm", "amount": 1, "error": 0}]));
    let mut only = Events::open(&server, None, "?topics=cluster").await;
    assert_eq!(only.next("hello").await["topics"], json!(["cluster"]));
}

#[tokio::test]
async fn a_reader_sees_its_namespace_and_only_an_admin_of_the_server_the_cluster() {
    let keyed = KeyedServer::open().await;
    let reader = keyed.key(Role::Reader, "team").await;
    let caller = keyed.key(Role::Caller, "other").await;
    let mut events = Events::open(&keyed.server, Some(&reader), "?topics=decisions").await;
    assert_eq!(events.next("hello").await["namespace"], "team");
    let mut all = Events::open(&keyed.server, Some(&keyed.root), "?topics=decisions&namespace=other").await;
    all.next("hello").await;
    let lease = keyed.server.lease();
    let body = reserve(&lease, &[("none", 1)]).to_string();
    keyed.ask(Some(&caller), "POST", "/v1/reserve", &body).await;
    assert_eq!(all.next("decision").await["lease_id"], json!(lease));
    assert!(!events.text.contains("decision"), "{}", events.text);
    let foreign = keyed.ask(Some(&reader), "GET", "/v1/events?namespace=other", "").await;
    foreign.problem(403, "forbidden");
    let server = TestServer::with_nodes(Nodes(Ok(()))).await;
    let cluster = Events::open(&server, None, "?topics=cluster").await.next("cluster").await;
    let status = server.ok("GET", "/v1/admin/cluster", &Value::Null).await;
    assert_eq!(cluster["cluster"]["members"], status["members"]);
}

#[tokio::test]
async fn a_stream_ends_when_its_key_is_revoked() {
    let keyed = KeyedServer::open().await;
    let reader = keyed.key(Role::Reader, "team").await;
    let mut events = Events::open(&keyed.server, Some(&reader), "").await;
    events.next("hello").await;
    keyed.revoke(&reader).await;
    let end = events.next("end").await;
    assert_eq!(end["error"], "unauthenticated");
    assert_eq!(events.rest().await, "\r\n0\r\n\r\n");
}

#[tokio::test]
async fn a_shutdown_ends_streams_and_does_not_wait_for_them() {
    let server = TestServer::open().await;
    let mut events = Events::open(&server, None, "").await;
    events.next("hello").await;
    let stopped = tokio::spawn(server.stop());
    assert_eq!(events.next("end").await, json!({"error": "unavailable", "message": "shutting down"}));
    timeout(PATIENCE, stopped).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_caller_has_a_bounded_number_of_streams() {
    let keyed = KeyedServer::open().await;
    let reader = keyed.key(Role::Reader, "team").await;
    let mut open = Vec::new();
    for _ in 0..16 {
        let mut events = Events::open(&keyed.server, Some(&reader), "").await;
        events.next("hello").await;
        open.push(events);
    }
    let refused = keyed.ask(Some(&reader), "GET", "/v1/events", "").await;
    let message = "this caller has 16 open event streams, which is the maximum; close some, or retry later";
    assert_eq!(refused.problem(503, "overloaded"), message);
    let metrics = keyed.ask(Some(&keyed.root), "GET", "/metrics", "").await.text;
    assert!(metrics.contains("\nearmark_event_streams 16\n"), "{metrics}");
    drop(open);
    // The server notices with its next event.
    let mut again = Events::open(&keyed.server, Some(&keyed.root), "").await;
    again.next("hello").await;
}

#[tokio::test]
async fn a_slow_reader_loses_events_and_is_told_how_many() {
    let server = TestServer::open().await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let tcp = socket.connect(server.address).await.unwrap();
    let mut events = Events::on(tcp, None, "?topics=decisions").await;
    events.next("hello").await;
    // More than the buffers of both sockets hold. Each key is its own, so that each decision is logged in full.
    let filler = "x".repeat(200);
    for batch in 0..100 {
        let request = |number: usize| reserve(&server.lease(), &[(&format!("{filler}:{batch}:{number}"), 1)]);
        let requests: Vec<Value> = (0..256).map(request).collect();
        server.ok("POST", "/v1/reserve/batch", &json!({"requests": requests})).await;
    }
    let dropped = events.next("dropped").await["count"].as_u64().unwrap();
    assert!(dropped > 0);
    assert!(server.metric("earmark_events_dropped_total").await >= dropped as f64);
}

#[tokio::test]
async fn a_malformed_list_of_topics_is_refused_by_name() {
    let server = TestServer::with(|_, options| options.decisions = None).await;
    for topics in ["", "all", "usage,usage", "usage,", "Usage"] {
        let answer = server.ask("GET", &format!("/v1/events?topics={topics}"), "").await;
        let message = answer.problem(400, "invalid_request");
        let allowed = "allowed are decisions, usage, cluster, each once, with commas";
        assert_eq!(message, format!("topics: found {topics:?}, {allowed}"));
    }
    let off = server.ask("GET", "/v1/events?topics=decisions,usage", "").await;
    assert!(off.problem(404, "not_found").starts_with("the decision log of this server is off"));
    let hello = Events::open(&server, None, "").await.next("hello").await;
    assert_eq!(hello["topics"], json!(["usage", "cluster"]));
}

#[tokio::test]
async fn charts_count_reserves_by_outcome_for_the_namespace_and_the_node() {
    let keyed = KeyedServer::open().await;
    let limit = json!({"key": "a", "kind": "rolling", "capacity": 1, "window_seconds": 60}).to_string();
    keyed.ask(Some(&keyed.root), "PUT", "/v1/admin/limits", &limit).await;
    for key in ["a", "a", "none"] {
        let body = reserve(&keyed.server.lease(), &[(key, 1)]).to_string();
        keyed.ask(Some(&keyed.root), "POST", "/v1/reserve", &body).await;
    }
    let totals = |charts: &Value| {
        let sum = |name: &str| charts["points"].as_array().unwrap().iter().map(|p| p[name].as_u64().unwrap()).sum();
        ["allowed", "denied", "refused", "failed"].map(sum) as [u64; 4]
    };
    let of_default = keyed.ask(Some(&keyed.root), "GET", "/v1/charts", "").await.json();
    assert_eq!(totals(&of_default), [1, 1, 1, 0]);
    assert!(of_default["points"][0]["p99_us"].as_u64() > Some(0), "{of_default}");
    let of_node = keyed.ask(Some(&keyed.root), "GET", "/v1/charts?of=node&namespace=team", "").await.json();
    assert_eq!(totals(&of_node), [1, 1, 1, 0]);
    let admin = keyed.key(Role::Admin, "team").await;
    assert_eq!(totals(&keyed.ask(Some(&admin), "GET", "/v1/charts", "").await.json()), [0; 4]);
    let refused = keyed.ask(Some(&admin), "GET", "/v1/charts?of=node", "").await;
    refused.problem(403, "forbidden");
}
