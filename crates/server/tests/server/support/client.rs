//! A hand-made HTTP/1.1 client, which can also break the protocol.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

/// Timeout of a response; far longer than any takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// A complete response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }

    /// Asserts that the body is JSON, and parses it.
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.header("content-type"), Some("application/json"), "{self:?}");
        serde_json::from_str(&self.text).unwrap()
    }

    /// Asserts status and code, and returns the field `message`.
    pub(crate) fn problem(&self, status: u16, code: &str) -> String {
        assert_eq!(self.status, status, "{self:?}");
        let json = self.json();
        assert_eq!(json["error"], code, "{self:?}");
        json["message"].as_str().unwrap().to_owned()
    }
}

/// The text of a request.
pub(crate) fn request(method: &str, path: &str, body: &str) -> String {
    let length = body.len();
    format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// A loopback address that no test has connected from: repeated failed logins of one address are delayed.
pub(crate) fn new_address() -> IpAddr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    (Ipv4Addr::from(u32::from(Ipv4Addr::LOCALHOST) + NEXT.fetch_add(1, Ordering::Relaxed))).into()
}

/// A connection.
pub(crate) struct Wire {
    pub(crate) tcp: TcpStream,
    read: Vec<u8>,
}

impl Wire {
    pub(crate) async fn to(address: SocketAddr) -> Wire {
        Wire::of(TcpStream::connect(address).await.unwrap())
    }

    /// A connection from a new address.
    pub(crate) async fn from_new_address(server: SocketAddr) -> Wire {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((new_address(), 0).into()).unwrap();
        Wire::of(socket.connect(server).await.unwrap())
    }

    pub(crate) fn of(tcp: TcpStream) -> Wire {
        tcp.set_nodelay(true).unwrap();
        Wire { tcp, read: Vec::new() }
    }

    pub(crate) async fn send(&mut self, text: &str) {
        self.tcp.write_all(text.as_bytes()).await.unwrap();
    }

    pub(crate) async fn ask(&mut self, method: &str, path: &str, body: &str) -> Answer {
        self.send(&request(method, path, body)).await;
        self.answer().await
    }

    /// Reads the next response.
    pub(crate) async fn answer(&mut self) -> Answer {
        timeout(PATIENCE, self.next()).await.expect("no answer in time").expect("closed before an answer")
    }

    /// Whether the server closes the connection without sending more.
    pub(crate) async fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        match timeout(PATIENCE, self.tcp.read(&mut byte)).await {
            Ok(Ok(0) | Err(_)) => self.read.is_empty(),
            Ok(Ok(_)) | Err(_) => false,
        }
    }

    async fn next(&mut self) -> Option<Answer> {
        loop {
            if let Some(answer) = self.parse() {
                return Some(answer);
            }
            if self.tcp.read_buf(&mut self.read).await.ok()? == 0 {
                return None;
            }
        }
    }

    /// Takes one complete response from the buffer.
    fn parse(&mut self) -> Option<Answer> {
        let end = self.read.windows(4).position(|four| four == b"\r\n\r\n")?;
        let head = std::str::from_utf8(&self.read[..end]).unwrap();
        let (first, rest) = head.split_once("\r\n").unwrap_or((head, ""));
        let status = first.split(' ').nth(1).unwrap().parse().unwrap();
        let headers: Vec<(String, String)> = rest
            .lines()
            .map(|line| line.split_once(": ").unwrap())
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let header = |wanted: &str| headers.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str());
        let rest = self.read.get(end + 4..)?;
        let (body, length) = match (header("transfer-encoding"), header("content-length")) {
            // The body of an event stream has no end.
            (Some("chunked"), _) if header("content-type") != Some("text/event-stream") => chunks(rest)?,
            (_, length) => {
                let length: usize = length.map_or(0, |length| length.parse().unwrap());
                (rest.get(..length)?.to_vec(), length)
            }
        };
        let text = String::from_utf8(body).unwrap();
        self.read.drain(..end + 4 + length);
        Some(Answer { status, headers, text })
    }
}

/// The body of a streamed response and its length on the wire; `None` before its last chunk.
fn chunks(mut rest: &[u8]) -> Option<(Vec<u8>, usize)> {
    let (total, mut body) = (rest.len(), Vec::new());
    loop {
        let end = rest.windows(2).position(|two| two == b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        body.extend_from_slice(rest.get(end + 2..end + 2 + size)?);
        rest = rest.get(end + 2 + size + 2..)?;
        if size == 0 {
            return Some((body, total - rest.len()));
        }
    }
}
