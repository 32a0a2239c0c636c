//! A running gateway, and a client that sends raw bytes to it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use earmark_gateway::config::Config;
use earmark_gateway::earmark::Earmark;
use earmark_gateway::open_calls::OpenCalls;
use earmark_gateway::{Gateway, GatewayOptions};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::earmark::Double;
use crate::upstream::Upstream;

pub const CHAT_BODY: &str = r#"{"model":"fast","messages":[{"role":"user","content":"hi"}]}"#;
pub const CHAT_STREAM_BODY: &str = r#"{"model":"fast","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;
pub const MESSAGES_STREAM_BODY: &str =
    r#"{"model":"claude","max_tokens":50,"stream":true,"messages":[{"role":"user","content":"hi"}]}"#;

/// A gateway that runs. It stops when it is dropped, without settling anything.
pub struct Running {
    pub address: SocketAddr,
    pub earmark: Double,
    pub upstream: Upstream,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

/// A configuration with one upstream of each API, and `more` in the first.
pub fn config(upstream: &Upstream, more: &str) -> String {
    let url = &upstream.url;
    format!(
        r#"
listen = "127.0.0.1:0"
renew_seconds = 1
[[upstreams]]
name = "one"
api = "openai"
base_url = "{url}/v1"
{more}
[[upstreams]]
name = "two"
api = "openai"
base_url = "{url}/two"
[[upstreams]]
name = "anthropic"
api = "anthropic"
base_url = "{url}"
[[models]]
name = "fast"
targets = ["one/gpt-4o"]
max_output_tokens = 100
[[models]]
name = "both"
targets = ["one/gpt-4o", "two/gpt-4o"]
max_output_tokens = 100
[[models]]
name = "claude"
targets = ["anthropic/claude"]
max_output_tokens = 100
"#
    )
}

impl Running {
    pub async fn start(more: &str) -> Running {
        let upstream = Upstream::start().await;
        let text = config(&upstream, more);
        Running::with(&text, upstream, Double::default(), OpenCalls::in_memory(), false).await
    }

    /// A gateway with further tables in its configuration.
    pub async fn with_more(tables: &str) -> Running {
        let upstream = Upstream::start().await;
        let text = config(&upstream, "") + tables;
        Running::with(&text, upstream, Double::default(), OpenCalls::in_memory(), false).await
    }

    pub async fn with(text: &str, upstream: Upstream, earmark: Double, calls: OpenCalls, has_key: bool) -> Running {
        Running::before(text, upstream, (earmark.clone(), Arc::new(earmark)), calls, has_key).await
    }

    /// A gateway before any Earmark.
    pub async fn before(
        text: &str,
        upstream: Upstream,
        (double, earmark): (Double, Arc<dyn Earmark>),
        calls: OpenCalls,
        has_key: bool,
    ) -> Running {
        let config = Config::parse(text).unwrap();
        let options = GatewayOptions { config, earmark, calls, has_key };
        let gateway = Gateway::bind(options).await.unwrap();
        let address = gateway.local_addr();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(gateway.run(async move { _ = stopped.await }));
        Running { address, earmark: double, upstream, stop: Some(stop), task }
    }

    /// A gateway on a folder of open calls.
    pub async fn on(folder: &Path, upstream: &Upstream, earmark: &Double) -> Running {
        let calls = OpenCalls::open(folder).unwrap();
        let text = config(upstream, "");
        Running::with(&text, upstream.clone(), earmark.clone(), calls, false).await
    }

    /// Stops in order.
    pub async fn stop(mut self) {
        _ = self.stop.take().unwrap().send(());
        timeout(Duration::from_secs(30), &mut self.task).await.unwrap().unwrap();
    }

    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Posts a body, and returns the answer.
    pub async fn post(&self, path: &str, headers: &str, body: &str) -> Answer {
        let mut stream = self.connect().await;
        send(&mut stream, path, headers, body).await;
        Answer::read(&mut stream).await
    }

    pub async fn get(&self, path: &str, headers: &str) -> Answer {
        let mut stream = self.connect().await;
        let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        Answer::read(&mut stream).await
    }

    pub async fn chat(&self, body: &str) -> Answer {
        self.post("/v1/chat/completions", "", body).await
    }

    /// A metric with these labels.
    pub async fn metric(&self, series: &str) -> u64 {
        let text = self.get("/metrics", "").await.text();
        let line = text.lines().find(|line| line.starts_with(series) && line[series.len()..].starts_with(' '));
        line.and_then(|line| line.rsplit(' ').next()).map_or(0, |value| value.parse::<f64>().unwrap() as u64)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Sends a request, and leaves the connection open.
pub async fn send(stream: &mut TcpStream, path: &str, headers: &str, body: &str) {
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n\
         content-length: {length}\r\n{headers}\r\n"
    );
    stream.write_all((head + body).as_bytes()).await.unwrap();
}

/// An answer as it arrived.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    /// The body without its chunks.
    pub body: Vec<u8>,
    /// Whether it ended as HTTP says.
    pub is_whole: bool,
}

impl Answer {
    pub async fn read(stream: &mut TcpStream) -> Answer {
        let mut bytes = Vec::new();
        let read = timeout(Duration::from_secs(20), stream.read_to_end(&mut bytes)).await;
        // A reset is a cut, too.
        _ = read.expect("the gateway answers in time");
        Answer::parse(&bytes)
    }

    pub fn parse(bytes: &[u8]) -> Answer {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").map_or(bytes.len(), |at| at + 4);
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let status = head.split(' ').nth(1).and_then(|text| text.parse().ok()).unwrap_or(0);
        let raw = &bytes[end..];
        let answer = Answer { status, head, body: Vec::new(), is_whole: false };
        if let Some(length) = answer.header("content-length") {
            let length: usize = length.parse().unwrap();
            return Answer { body: raw.to_vec(), is_whole: raw.len() == length, ..answer };
        }
        let (body, is_whole) = unchunked(raw);
        Answer { body, is_whole, ..answer }
    }

    pub fn header(&self, name: &str) -> Option<String> {
        self.head.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        })
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }
}

fn unchunked(mut raw: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    loop {
        let Some(line) = raw.windows(2).position(|two| two == b"\r\n") else { return (body, false) };
        let size = usize::from_str_radix(std::str::from_utf8(&raw[..line]).unwrap(), 16).unwrap_or(0);
        raw = &raw[line + 2..];
        if size == 0 {
            return (body, true);
        }
        if raw.len() < size + 2 {
            body.extend_from_slice(&raw[..raw.len().min(size)]);
            return (body, false);
        }
        body.extend_from_slice(&raw[..size]);
        raw = &raw[size + 2..];
    }
}
