//! A gateway before a cluster whose leader is killed and frozen, while calls and streams run.

use std::io::{BufRead as _, BufReader, Read as _, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use earmark_gateway::open_calls::OpenCalls;
use serde_json::json;

use super::PEACE;
use super::load::read;
use super::nodes::Nodes;
use crate::ask::ask;
use crate::support::{Server, TIMEOUT, command, wait};

const CALLERS: usize = 4;
const STREAMS: u64 = 3;
const CREDIT: u64 = 1_000_000_000;
const INPUT: u64 = 7;
/// The shortest freeze of a leader: longer than an election.
const FREEZE: Duration = Duration::from_secs(4);
/// The timeout of slots and holds: longer than the 8 s that the gateway waits for one server. Streams run for longer, so
/// that they need their renewals.
const TIMEOUT_SECONDS: u64 = 15;
/// Time between two frames of a stream, and the longest time that a client waits for one. Each outage takes longer.
const FRAME: Duration = Duration::from_millis(100);
const FRAME_WAIT_MAX: Duration = Duration::from_millis(1_500);

const POLICY: &str = r#"
[[rules]]
name   = "all"
limits = [ { key = "usd", amount = "cost" }, { key = "slots", amount = "requests" } ]
[[prices]]
model  = "*"
asset  = "usd"
input  = 1_000_000
output = 10_000_000
"#;

/// A provider that knows what its answers cost. Each call has another cost.
#[derive(Default)]
struct Upstream {
    calls: AtomicU64,
    cost: AtomicU64,
    /// Streams end.
    is_over: AtomicBool,
}

impl Upstream {
    fn start() -> (Arc<Upstream>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let upstream = Arc::new(Upstream::default());
        let shared = Arc::clone(&upstream);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (upstream, stream) = (Arc::clone(&shared), stream.unwrap());
                std::thread::spawn(move || upstream.serve(&stream));
            }
        });
        (upstream, url)
    }

    /// Answers the requests of one connection.
    fn serve(&self, stream: &TcpStream) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        let (mut reader, mut writer) = (BufReader::new(stream), stream);
        loop {
            let (mut length, mut line) = (0, String::from("-"));
            while !line.trim().is_empty() {
                line.clear();
                if reader.read_line(&mut line)? == 0 {
                    return Ok(());
                }
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body)?;
            let output = 1 + self.calls.fetch_add(1, SeqCst) % 97;
            let usage = json!({"prompt_tokens": INPUT, "completion_tokens": output, "total_tokens": INPUT + output});
            let text = json!({"choices": [], "usage": usage}).to_string();
            self.cost.fetch_add(INPUT + 10 * output, SeqCst);
            let head = "HTTP/1.1 200 OK\r\ncontent-type:";
            if String::from_utf8_lossy(&body).contains("\"stream\":true") {
                write!(writer, "{head} text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")?;
                self.stream(&mut writer, &text)?;
            } else {
                write!(writer, "{head} application/json\r\ncontent-length: {}\r\n\r\n{text}", text.len())?;
            }
        }
    }

    fn stream(&self, writer: &mut impl Write, usage: &str) -> std::io::Result<()> {
        let mut frame = |data: &str| write!(writer, "{:x}\r\ndata: {data}\n\n\r\n", data.len() + 8);
        let content = json!({"choices": [{"index": 0, "delta": {"content": "x"}}]}).to_string();
        while !self.is_over.load(SeqCst) {
            frame(&content)?;
            sleep(FRAME);
        }
        frame(usage)?;
        frame("[DONE]")?;
        writer.write_all(b"0\r\n\r\n")
    }
}

fn body(stream: bool) -> String {
    json!({"model": "fast", "stream": stream, "messages": [{"role": "user", "content": "hi"}]}).to_string()
}

/// Calls through a gateway that run until they are stopped.
#[derive(Default)]
struct Calls {
    is_over: AtomicBool,
    answered: AtomicU64,
    /// Answers of 503: nothing was sent.
    refused: AtomicU64,
    /// Streams whose first frame came.
    streaming: AtomicU64,
}

impl Calls {
    /// Makes one call after the other.
    fn call(&self, gateway: &str) {
        while !self.is_over.load(SeqCst) {
            let answer = ask(gateway, "POST", "/v1/chat/completions", &body(false), TIMEOUT).unwrap();
            match answer.status {
                200 => self.answered.fetch_add(1, SeqCst),
                503 => self.refused.fetch_add(1, SeqCst),
                status => panic!("{status} {}", answer.body),
            };
            sleep(Duration::from_millis(10));
        }
    }

    /// Reads a stream to its end. Returns the longest wait for a frame.
    fn stream(&self, gateway: &str) -> Duration {
        let mut stream = TcpStream::connect(gateway).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let body = body(true);
        let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length:";
        write!(stream, "{head} {}\r\n\r\n{body}", body.len()).unwrap();
        let (mut read, mut piece) = (Vec::new(), [0; 4_096]);
        let (mut last, mut longest) = (None::<Instant>, Duration::ZERO);
        loop {
            let length = stream.read(&mut piece).unwrap();
            if length == 0 {
                break;
            }
            read.extend_from_slice(&piece[..length]);
            match last {
                Some(last) => longest = longest.max(last.elapsed()),
                None => {
                    self.streaming.fetch_add(1, SeqCst);
                }
            }
            last = Some(Instant::now());
        }
        let text = String::from_utf8_lossy(&read);
        assert!(text.contains("data: [DONE]\n\n") && text.ends_with("0\r\n\r\n"), "a stream was interrupted: {text}");
        longest
    }

    /// Waits until calls that begin now are answered. Returns how long that took.
    fn go_on(&self) -> Duration {
        let (start, before) = (Instant::now(), self.answered.load(SeqCst));
        // Each caller may wait for an answer that is on its way already.
        wait("calls that are answered", || self.answered.load(SeqCst) > before + CALLERS as u64);
        start.elapsed()
    }
}

fn prepare(nodes: &Nodes) {
    let write = json!({"namespace": "default", "vault": "main", "client_id": "setup", "sequence": 1, "operations": [
        {"open_account": {"account": "acme", "overdraft": "deny"}},
        {"issue": {"account": "acme", "asset": "usd", "amount": CREDIT.to_string()}},
    ]});
    let answer = ask(&nodes.urls()[0], "POST", "/v1/write", &write.to_string(), TIMEOUT).unwrap();
    assert!(answer.status == 200 && answer.body.contains("success"), "{}", answer.body);
    let put = |path: &str, body: serde_json::Value| {
        let answer = ask(&nodes.urls()[0], "PUT", path, &body.to_string(), TIMEOUT).unwrap();
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    };
    let usd = json!({
        "key": "usd", "kind": "credit", "vault": "main", "account": "acme", "asset": "usd",
        "timeout_seconds": TIMEOUT_SECONDS, "on_timeout": "charge",
    });
    let slots = json!({"key": "slots", "kind": "concurrency", "capacity": 100, "timeout_seconds": TIMEOUT_SECONDS});
    put("/v1/admin/limits", usd);
    put("/v1/admin/limits", slots);
    put("/v1/admin/policy", json!({"policy": POLICY}));
}

fn start(nodes: &Nodes, folder: &Path, upstream: &str) -> Server {
    let config = folder.join("gateway.toml");
    let text = format!(
        "listen = \"127.0.0.1:0\"\nrenew_seconds = 1\n\
         [[upstreams]]\nname = \"up\"\napi = \"openai\"\nbase_url = \"{upstream}\"\n\
         [[models]]\nname = \"fast\"\ntargets = [\"up/gpt\"]\nmax_output_tokens = 100\n"
    );
    std::fs::write(&config, text).unwrap();
    let mut gateway = command(&["gateway", "--log-level", "error", "--config", config.to_str().unwrap()]);
    gateway.arg("--calls").arg(folder.join("calls"));
    for url in nodes.urls() {
        gateway.args(["--server", &format!("http://{url}")]);
    }
    Server::of(&mut gateway)
}

/// The available credit, the held credit and the slots in use, as a node sees them.
fn left(url: &str) -> (u64, u64, u64) {
    let balances = read(url, "/v1/vaults/main/accounts/acme/balances");
    let amount = |name: &str| balances["balances"][0][name].as_str().unwrap().parse().unwrap();
    let slots = read(url, "/v1/admin/limits/slots/usage");
    (amount("available"), amount("held"), slots["reserved"].as_u64().unwrap())
}

/// Asserts that this cost was charged, and that nothing is held, on every node.
fn is_charged(nodes: &mut Nodes, cost: u64) {
    wait("the settlements", || {
        let (_, held, slots) = left(&nodes.urls()[0]);
        held + slots == 0
    });
    nodes.settle();
    for url in nodes.urls() {
        assert_eq!(left(url), (CREDIT - cost, 0, 0), "{url}");
        assert_eq!(read(url, "/v1/vaults/main/audit")["balanced"], true, "{url}");
    }
}

#[test]
fn calls_through_a_gateway_are_charged_once_and_streams_go_on_while_the_leader_dies() {
    let folder = tempfile::tempdir().unwrap();
    let mut nodes = Nodes::start();
    prepare(&nodes);
    let (upstream, url) = Upstream::start();
    let gateway = start(&nodes, folder.path(), &url);
    let calls = Arc::new(Calls::default());
    let begun = Instant::now();
    let spawn = |call: fn(&Calls, &str) -> Duration| -> JoinHandle<Duration> {
        let (calls, address) = (Arc::clone(&calls), gateway.address.clone());
        std::thread::spawn(move || call(&calls, &address))
    };
    let streams: Vec<_> = (0..STREAMS).map(|_| spawn(Calls::stream)).collect();
    wait("the streams", || calls.streaming.load(SeqCst) == STREAMS);
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            spawn(|calls, gateway| {
                calls.call(gateway);
                Duration::ZERO
            })
        })
        .collect();
    calls.go_on();
    let leader = nodes.leader();
    nodes.kill(leader);
    let killed = calls.go_on();
    nodes.restart(leader);
    sleep(PEACE);

    let leader = nodes.leader();
    nodes.signal(leader, "STOP");
    let since = Instant::now();
    let frozen = calls.go_on();
    sleep(FREEZE.saturating_sub(since.elapsed()));
    // Requests in the sockets of this node arrive now, long after they were repeated elsewhere.
    nodes.signal(leader, "CONT");
    calls.go_on();
    sleep(Duration::from_secs(TIMEOUT_SECONDS + 1).saturating_sub(begun.elapsed()));

    calls.is_over.store(true, SeqCst);
    upstream.is_over.store(true, SeqCst);
    for caller in callers {
        caller.join().expect("a caller failed");
    }
    let waits = streams.into_iter().map(|stream| stream.join().expect("a stream failed"));
    let wait_max = waits.max().unwrap();
    assert!(wait_max < FRAME_WAIT_MAX, "a stream stood still for {wait_max:?}");
    nodes.settle();
    let (answered, refused) = (calls.answered.load(SeqCst), calls.refused.load(SeqCst));
    println!(
        "{answered} calls, {refused} refused; answered after a kill in {killed:.1?}, beside a frozen leader in {frozen:.1?}"
    );
    assert!(answered > 50, "hardly anything happened");
    assert_eq!(upstream.calls.load(SeqCst), answered + STREAMS, "whatever went upstream was answered");
    is_charged(&mut nodes, upstream.cost.load(SeqCst));
    gateway.stop();
    let left = OpenCalls::open(&folder.path().join("calls")).unwrap().list();
    assert!(left.is_empty(), "{left:?}");
}
