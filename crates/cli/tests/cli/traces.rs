//! Traces: an OTLP collector gets the spans of a reserve from every node.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use earmark_proto::opentelemetry::proto::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message as _;
use serde_json::{Value, json};

use crate::ask::free;
use crate::support::{Server, wait};

/// A span with the instance that sent it.
#[derive(Clone, Debug)]
struct Got {
    instance: String,
    trace: Vec<u8>,
    span: Vec<u8>,
    parent: Vec<u8>,
    name: String,
}

/// A collector over HTTP.
struct Collector {
    url: String,
    got: Arc<Mutex<Vec<Got>>>,
}

impl Collector {
    fn start() -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let got = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&got);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let all = Arc::clone(&all);
                std::thread::spawn(move || {
                    while let Some(request) = take(&stream) {
                        all.lock().unwrap().extend(spans(&request));
                        (&stream).write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
                    }
                });
            }
        });
        Collector { url, got }
    }

    fn spans(&self) -> Vec<Got> {
        self.got.lock().unwrap().clone()
    }
}

/// The next request of a connection; `None` at its end.
fn take(stream: &TcpStream) -> Option<ExportTraceServiceRequest> {
    let mut reader = BufReader::new(stream);
    let (mut line, mut length) = (String::new(), 0);
    while reader.read_line(&mut line).ok()? > 0 {
        if line == "\r\n" {
            let mut body = vec![0; length];
            reader.read_exact(&mut body).ok()?;
            return Some(ExportTraceServiceRequest::decode(&body[..]).unwrap());
        }
        if let Some(text) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = text.trim().parse().unwrap();
        }
        line.clear();
    }
    None
}

fn spans(request: &ExportTraceServiceRequest) -> Vec<Got> {
    let of = &request.resource_spans[0];
    let attributes = &of.resource.as_ref().unwrap().attributes;
    let instance = attributes.iter().find(|attribute| attribute.key == "service.instance.id").unwrap();
    let got = |span: &earmark_proto::opentelemetry::proto::trace::v1::Span| Got {
        instance: format!("{:?}", instance.value),
        trace: span.trace_id.clone(),
        span: span.span_id.clone(),
        parent: span.parent_span_id.clone(),
        name: span.name.clone(),
    };
    of.scope_spans[0].spans.iter().map(got).collect()
}

/// Sends a reserve with a header `traceparent`.
fn reserve(server: &Server, lease: &str, header: &str) {
    let body = json!({"lease_id": lease, "requirements": [{"key": "rpm", "amount": 1}]});
    let answer = post(server, "/v1/reserve", &body, header);
    assert!(answer.contains("\"allowed\":true"), "{answer}");
}

/// Sends a request with a header `traceparent`.
fn post(server: &Server, path: &str, body: &Value, header: &str) -> String {
    let body = body.to_string();
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ntraceparent: {header}\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n{body}"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn the_spans_of_one_reserve_through_three_nodes_have_one_trace_id() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start();
    let peers = [free(), free(), free()];
    let listens = [free(), free(), free()];
    let node = |place: usize| {
        let id = (place + 1).to_string();
        let data = folder.path().join(format!("n{id}"));
        let data = data.to_str().unwrap();
        let mut words = vec!["serve", "--data", data, "--listen", &listens[place], "--node-id", &id];
        words.extend(["--peer-listen", &peers[place], "--otlp-endpoint", &collector.url]);
        words.extend(["--otlp-protocol", "http/protobuf", "--trace-sample", "0"]);
        words.extend([if place == 0 { "--bootstrap" } else { "--join" }, &peers[0]]);
        Server::of(&mut crate::support::command(&words))
    };
    let nodes = [node(0), node(1), node(2)];
    wait("three voters", || {
        let status = nodes[0].line("cluster status --json").ends(0).json();
        status["members"].as_array().unwrap().iter().filter(|member| member["role"] != "learner").count() == 3
    });
    nodes[0].line("limits put --key rpm --kind rolling --capacity 10 --window 60").ends(0);
    // A node that follows, so that the leader gets the commands from it.
    let leader = nodes[0].line("cluster status --json").ends(0).json()["leader_id"].as_u64().unwrap();
    let follower = if leader == 3 { &nodes[0] } else { &nodes[2] };
    // Its caller said not to trace it.
    let trace = "0af7651916cd43dd8448eb211c80319c";
    reserve(follower, &ulid::Ulid::generate().to_string(), &format!("00-{trace}-b7ad6b7169203331-00"));
    reserve(follower, &ulid::Ulid::generate().to_string(), &format!("00-{trace}-b7ad6b7169203331-01"));

    let expected = |got: &[Got]| {
        let of = |name: &str| got.iter().filter(|span| span.name == name).map(|span| span.instance.clone()).collect();
        let (disk, apply): (BTreeSet<String>, BTreeSet<String>) = (of("disk"), of("apply"));
        disk.len() == 3 && apply.len() == 3
    };
    wait("the spans of all nodes", || expected(&collector.spans()));
    let got = collector.spans();
    let name = |name: &str| got.iter().filter(|span| span.name == name).collect::<Vec<_>>();
    let only = |wanted: &str| match name(wanted)[..] {
        [span] => span,
        _ => panic!("{wanted}: {got:#?}"),
    };
    let id = u128::from_str_radix(trace, 16).unwrap().to_be_bytes();
    assert!(got.iter().all(|span| span.trace == id), "{got:#?}");
    let root = only("POST /v1/reserve");
    assert_eq!(root.parent, 0xb7ad_6b71_6920_3331_u64.to_be_bytes());
    let (queue, forward, consensus) = (only("queue"), only("forward"), only("consensus"));
    for span in [queue, forward] {
        assert_eq!((&span.parent, &span.instance), (&root.span, &root.instance), "{span:?}");
    }
    assert_eq!(consensus.parent, forward.span);
    assert_ne!(consensus.instance, root.instance);
    for span in [name("disk"), name("apply")].concat() {
        assert_eq!(span.parent, consensus.span, "{span:?}");
    }
    assert_eq!((name("disk").len(), name("apply").len()), (3, 3), "{got:#?}");
}

/// Regression: the steps of a backend that is composed of parts run in tasks of their own, which lost the trace.
#[test]
fn the_steps_of_limits_and_credit_in_a_database_are_in_the_trace_of_their_request() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start();
    let credits = format!("sqlite:{}", folder.path().join("credit.db").display());
    let traces = ["--otlp-endpoint", &collector.url, "--otlp-protocol", "http/protobuf", "--trace-sample", "0"];
    let server = Server::start(&[&["--credits", &credits][..], &traces].concat());
    server.issue_credit(700).ends(0);
    server.line("limits put --key usd --kind credit --account acme --asset usd --timeout 600").ends(0);
    server.line("limits put --key rpm --kind rolling --capacity 10 --window 60").ends(0);
    let lease = ulid::Ulid::generate().to_string();
    let requirements = json!([{"key": "rpm", "amount": 1}, {"key": "usd", "amount": 60}]);
    let extension = json!({"lease_id": lease, "extension": 1, "add": [{"key": "usd", "amount": 5}]});
    for (trace, path, body, part) in [
        (1, "/v1/reserve", json!({"lease_id": lease, "requirements": requirements}), "\"allowed\":true"),
        (2, "/v1/extend", extension, "\"allowed\":true"),
        (3, "/v1/complete", json!({"lease_id": lease, "actuals": []}), "\"reconciled\":true"),
    ] {
        let answer = post(&server, path, &body, &format!("00-{trace:032x}-b7ad6b7169203331-01"));
        assert!(answer.contains(part), "{answer}");
        let name = format!("POST {path}");
        wait("the span of the request", || collector.spans().iter().any(|span| span.name == name));
        let got = collector.spans();
        let of = |name: &str| -> Vec<&Got> {
            got.iter().filter(|span| span.trace == u128::to_be_bytes(trace) && span.name == name).collect()
        };
        let [root, limits] = [of(&name), of("limits")].map(|found| match found[..] {
            [span] => span,
            _ => panic!("{got:#?}"),
        });
        let credit: BTreeSet<&[u8]> = of("credit").iter().map(|span| &span.span[..]).collect();
        assert!(of("credit").iter().chain(&[limits]).all(|span| span.parent == root.span), "{got:#?}");
        for step in [of("queue"), of("apply")] {
            assert!(!step.is_empty() && step.iter().all(|span| span.parent == limits.span), "{got:#?}");
        }
        let database = of("database");
        assert!(!database.is_empty() && database.iter().all(|span| credit.contains(&span.parent[..])), "{got:#?}");
    }
}
