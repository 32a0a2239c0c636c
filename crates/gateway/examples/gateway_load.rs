//! An upstream double and a load generator, for `cargo xtask bench-gateway`.
//!
//! ```text
//! gateway_load double
//! gateway_load rate URL REQUESTS_PER_SECOND SECONDS
//! gateway_load connections URL CONNECTIONS SECONDS
//! gateway_load streams URL STREAMS SECONDS
//! gateway_load flush FOLDER
//! ```
//!
//! Each load prints one line of numbers. The double prints its address and serves until it is killed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a program for measurements")]

use std::convert::Infallible;
use std::io::Write as _;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Either, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, Interval, interval_at};

/// Chunks of one stream in a second.
const CHUNKS_PER_SECOND: u64 = 20;
/// Flushes that are measured.
const FLUSHES: usize = 200;
const ANSWER: &str = r#"{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}"#;
const USAGE: &str = "data: {\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3,\"total_tokens\":10}}\n\ndata: [DONE]\n\n";

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["double"] => double().await,
        ["rate", url, rate, seconds] => at_rate(url, number(rate), number(seconds)).await,
        ["connections", url, count, seconds] => closed_loop(url, number(count), number(seconds)).await,
        ["streams", url, count, seconds] => streams(url, number(count), number(seconds)).await,
        ["flush", folder] => flushes(Path::new(folder)),
        _ => panic!("found {args:?}; see the head of this file"),
    }
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("found {text:?}, allowed is a whole number"))
}

fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64
}

/// The upstream: one fixed answer, or a stream of chunks that carry the time at which they were made.
async fn double() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("double listens on http://{}", listener.local_addr().unwrap());
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let serving = hyper::server::conn::http1::Builder::new();
        tokio::spawn(async move {
            _ = serving.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
        });
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Either<Full<Bytes>, Chunks>>, Infallible> {
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let seconds = String::from_utf8_lossy(&body).split("\"seconds\":").nth(1).and_then(|rest| {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u64>().ok()
    });
    let (kind, body) = match seconds {
        None => ("application/json", Either::Left(Full::new(Bytes::from_static(ANSWER.as_bytes())))),
        Some(seconds) => ("text/event-stream", Either::Right(Chunks::new(seconds * CHUNKS_PER_SECOND))),
    };
    Ok(Response::builder().header("content-type", kind).body(body).unwrap())
}

/// The chunks of a stream, at an even pace.
struct Chunks {
    left: u64,
    interval: Interval,
    has_ended: bool,
}

impl Chunks {
    fn new(count: u64) -> Chunks {
        let period = Duration::from_millis(1_000 / CHUNKS_PER_SECOND);
        // Streams that began together must not tick together.
        let first = Instant::now() + period * (rand::random::<u8>() as u32) / 256;
        Chunks { left: count, interval: interval_at(first, period), has_ended: false }
    }
}

impl Body for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            let is_first = !std::mem::replace(&mut self.has_ended, true);
            return Poll::Ready(is_first.then(|| Ok(Frame::data(Bytes::from_static(USAGE.as_bytes())))));
        }
        self.interval.poll_tick(context).map(|_| {
            self.left -= 1;
            let text = format!(
                "data: {{\"id\":\"c\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{}\"}},\"finish_reason\":null}}]}}\n\n",
                now_us()
            );
            Some(Ok(Frame::data(Bytes::from(text))))
        })
    }
}

/// One connection, which makes one request at a time.
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    host: String,
}

impl Connection {
    async fn open(url: &str) -> Connection {
        let host = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
        let stream = TcpStream::connect(&host).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Connection { sender, host }
    }

    async fn send(&mut self, more: &str) -> Response<Incoming> {
        let body = format!(
            "{{\"model\":\"m\",\"max_tokens\":50,\"messages\":[{{\"role\":\"user\",\"content\":\"hi\"}}]{more}}}"
        );
        let request = Request::post("/v1/chat/completions").header("host", &self.host);
        let request = request.header("content-type", "application/json").body(Full::new(Bytes::from(body))).unwrap();
        self.sender.ready().await.unwrap();
        let answer = self.sender.send_request(request).await.unwrap();
        assert!(answer.status().is_success(), "status {}", answer.status());
        answer
    }

    /// Makes one call that is not streamed, and returns how long it took.
    async fn call(&mut self) -> Duration {
        let start = Instant::now();
        let answer = self.send("").await;
        answer.into_body().collect().await.unwrap();
        start.elapsed()
    }
}

/// Prints a quantity with its percentiles in microseconds.
fn print(name: &str, amount: f64, mut times: Vec<u64>) {
    times.sort_unstable();
    let at = |part: f64| times.get((times.len() as f64 * part) as usize).or(times.last()).copied().unwrap_or(0);
    println!("{name} {amount:.1} p50_us {} p99_us {} max_us {}", at(0.50), at(0.99), at(1.0));
}

/// Requests at an even rate, whatever the answers take. Each waits for a free connection at most.
async fn at_rate(url: &str, rate: u64, seconds: u64) {
    let mut interval = tokio::time::interval(Duration::from_micros(1_000_000 / rate));
    let idle = std::sync::Arc::new(tokio::sync::Mutex::new(Vec::new()));
    let mut calls = Vec::new();
    for _ in 0..rate * seconds {
        interval.tick().await;
        let (idle, url) = (std::sync::Arc::clone(&idle), url.to_owned());
        calls.push(tokio::spawn(async move {
            let free = idle.lock().await.pop();
            let mut connection = match free {
                Some(connection) => connection,
                None => Connection::open(&url).await,
            };
            let took = connection.call().await;
            idle.lock().await.push(connection);
            took.as_micros() as u64
        }));
    }
    let mut times = Vec::new();
    for call in calls {
        times.push(call.await.unwrap());
    }
    // The first second opens the connections.
    print("rate", rate as f64, times.split_off(rate as usize));
}

/// As many requests as these connections make, each one at a time.
async fn closed_loop(url: &str, connections: u64, seconds: u64) {
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut tasks = Vec::new();
    for _ in 0..connections {
        let mut connection = Connection::open(url).await;
        tasks.push(tokio::spawn(async move {
            let mut times = Vec::new();
            while Instant::now() < end {
                times.push(connection.call().await.as_micros() as u64);
            }
            times
        }));
    }
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.unwrap());
    }
    print("requests_per_second", times.len() as f64 / seconds as f64, times);
}

/// Streams that run at the same time. The times are the delays of their chunks.
async fn streams(url: &str, count: u64, seconds: u64) {
    let mut tasks = Vec::new();
    for _ in 0..count {
        let mut connection = Connection::open(url).await;
        tasks.push(tokio::spawn(async move {
            let mut answer = connection.send(&format!(",\"stream\":true,\"seconds\":{seconds}")).await;
            let (mut times, mut rest) = (Vec::new(), String::new());
            while let Some(frame) = answer.body_mut().frame().await {
                let Ok(bytes) = frame.unwrap().into_data() else { continue };
                let now = now_us();
                rest.push_str(std::str::from_utf8(&bytes).unwrap());
                while let Some(end) = rest.find("\n\n") {
                    let frame: String = rest.drain(..end + 2).collect();
                    let made = frame.split("\"content\":\"").nth(1).and_then(|rest| rest.split('"').next());
                    times.extend(made.and_then(|made| made.parse::<u64>().ok()).map(|made| now.saturating_sub(made)));
                }
            }
            times
        }));
    }
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.unwrap());
    }
    let chunks = count * seconds * CHUNKS_PER_SECOND;
    assert_eq!(times.len() as u64, chunks, "every chunk arrives");
    print("streams", count as f64, times);
}

/// The time of one flush on the disk of a folder.
fn flushes(folder: &Path) {
    let path = folder.join("flush");
    let mut file = std::fs::File::create(&path).unwrap();
    let mut times = Vec::new();
    for _ in 0..FLUSHES {
        file.write_all(&[0; 200]).unwrap();
        let start = std::time::Instant::now();
        file.sync_data().unwrap();
        times.push(start.elapsed().as_micros() as u64);
    }
    std::fs::remove_file(path).unwrap();
    print("flushes", FLUSHES as f64, times);
}
