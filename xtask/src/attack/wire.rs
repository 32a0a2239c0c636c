//! HTTP/1 and HTTP/2 by hand, so that requests can be as wrong as an attacker wants.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Longest wait for a connection, a write or an answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer that is read, in bytes.
const ANSWER_BYTES_MAX: usize = 1 << 28;
const ULID: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// An answer.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: String,
}

impl Answer {
    /// The text of the first field `name` of the body.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        let (_, rest) = self.body.split_once(&format!("\"{name}\":\""))?;
        rest.split('"').next()
    }
}

/// A request.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) key: &'a str,
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    pub(super) body: &'a str,
}

/// An HTTP/1 connection.
pub(super) struct Wire(BufReader<TcpStream>);

impl Wire {
    pub(super) fn connect(address: SocketAddr) -> io::Result<Wire> {
        let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Wire(BufReader::new(stream)))
    }

    pub(super) fn stream(&mut self) -> &mut TcpStream {
        self.0.get_mut()
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream().write_all(bytes)
    }

    pub(super) fn ask(&mut self, request: Request<'_>) -> io::Result<Answer> {
        let Request { key, method, path, body } = request;
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\ncontent-length: {length}\r\n\r\n"
        );
        self.send((head + body).as_bytes())?;
        self.answer()
    }

    pub(super) fn answer(&mut self) -> io::Result<Answer> {
        let status = self.line()?;
        let status = status.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
        let mut length = 0;
        loop {
            let line = self.line()?.to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(text) = line.strip_prefix("content-length:") {
                length = text.trim().parse().unwrap_or(0);
            }
        }
        let mut body = vec![0; ANSWER_BYTES_MAX.min(length)];
        self.0.read_exact(&mut body)?;
        Ok(Answer { status, body: String::from_utf8_lossy(&body).into_owned() })
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }
}

/// Asks once on a connection of its own.
pub(super) fn ask(address: SocketAddr, request: Request<'_>) -> io::Result<Answer> {
    Wire::connect(address)?.ask(request)
}

/// A lease id with the current time.
pub(super) fn lease() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let process = u128::from(std::process::id()) << 48;
    let bits = ms << 80 | process | u128::from(NEXT.fetch_add(1, Ordering::Relaxed));
    let digit = |place: u32| char::from(ULID[(bits >> (5 * place) & 31) as usize]);
    (0..26).rev().map(digit).collect()
}

/// The bytes of an HTTP/2 client that asks `count` times for a path and opens no window for the answers.
pub(super) fn zero_window(path: &str, count: u32) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // SETTINGS_INITIAL_WINDOW_SIZE is 0.
    frame(&mut bytes, (4, 0, 0), &[0, 4, 0, 0, 0, 0]);
    let mut head = Vec::new();
    for (name, value) in [(":method", "GET"), (":path", path), (":scheme", "http"), (":authority", "localhost")] {
        head.push(0);
        for text in [name, value] {
            head.push(text.len() as u8);
            head.extend(text.as_bytes());
        }
    }
    for number in 0..count {
        // A HEADERS frame with END_STREAM and END_HEADERS.
        frame(&mut bytes, (1, 5, 2 * number + 1), &head);
    }
    bytes
}

fn frame(bytes: &mut Vec<u8>, (kind, flags, stream): (u8, u8, u32), payload: &[u8]) {
    bytes.extend((payload.len() as u32).to_be_bytes().iter().skip(1));
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_a_ulid_and_no_two_are_equal() {
        let (first, second) = (lease(), lease());
        assert_eq!((first.len(), first.starts_with('0')), (26, true));
        assert_ne!(first, second);
        assert_eq!(first[..8], second[..8]);
    }

    #[test]
    fn a_frame_has_its_length_kind_flags_and_stream() {
        let mut bytes = Vec::new();
        frame(&mut bytes, (1, 5, 3), b"ab");
        assert_eq!(bytes, [0, 0, 2, 1, 5, 0, 0, 0, 3, b'a', b'b']);
        assert!(zero_window("/", 2).starts_with(b"PRI * HTTP/2.0"));
    }

    #[test]
    fn a_field_of_an_answer_is_found() {
        let answer = Answer { status: 200, body: r#"{"key":"a_b","info":{"key":"c"}}"#.into() };
        assert_eq!((answer.text("key"), answer.text("no")), (Some("a_b"), None));
    }
}
