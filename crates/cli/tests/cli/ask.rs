//! One HTTP request on a new connection, and free addresses.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

/// A free address below the ephemeral port range, so that a process that restarts finds its port free: a peer that tries
/// to reach a stopped process in that range may be given the same port for its own end, and then has it. Tests of one
/// process never share an address.
pub(crate) fn free() -> String {
    static GIVEN: AtomicU16 = AtomicU16::new(0);
    let first = 20_000 + u16::try_from(std::process::id() % 1_000).unwrap() * 10;
    let ports = std::iter::repeat_with(|| first + GIVEN.fetch_add(1, Ordering::Relaxed) % 1_000);
    let mut addresses = ports.map(|port| format!("127.0.0.1:{port}"));
    addresses.find(|address| TcpListener::bind(address).is_ok()).unwrap()
}

pub(crate) struct Answered {
    pub(crate) status: u16,
    pub(crate) body: String,
}

/// Sends a request. An error means that the outcome is unknown. `patience` bounds each read.
pub(crate) fn ask(address: &str, method: &str, path: &str, body: &str, patience: Duration) -> io::Result<Answered> {
    ask_by(None, address, (method, path, body), patience)
}

/// Like [`ask`], with a key.
pub(crate) fn ask_by(
    key: Option<&str>,
    address: &str,
    (method, path, body): (&str, &str, &str),
    patience: Duration,
) -> io::Result<Answered> {
    let mut stream = TcpStream::connect_timeout(&address.parse().unwrap(), patience)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(patience))?;
    let length = body.len();
    let key = key.map(|key| format!("authorization: Bearer {key}\r\n")).unwrap_or_default();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{key}content-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let cut = || io::Error::new(io::ErrorKind::UnexpectedEof, "the answer is cut short");
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(cut)?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).ok_or_else(cut)?;
    if length.parse() != Ok(body.len()) {
        return Err(cut());
    }
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(cut)?;
    Ok(Answered { status, body: body.to_owned() })
}
