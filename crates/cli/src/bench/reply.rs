//! A minimal HTTP response parser for the load generator.

use std::ops::Range;

use super::measure::Counts;

/// Largest response, in bytes: larger than any batch answer.
pub(super) const REPLY_BYTES_MAX: usize = 1 << 20;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) status: u16,
    /// The range of the body in the received bytes.
    pub(super) body: Range<usize>,
}

/// Parses a response; `None` if `bytes` is incomplete.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<Reply>, String> {
    let Some(head_end) = find(bytes, b"\r\n\r\n") else {
        return if bytes.len() > REPLY_BYTES_MAX {
            Err("the header of a response is too long".into())
        } else {
            Ok(None)
        };
    };
    let head = &bytes[..head_end];
    let status = head
        .strip_prefix(b"HTTP/1.1 ")
        .and_then(|rest| std::str::from_utf8(rest.get(..3)?).ok()?.parse().ok())
        .ok_or("a response does not start with HTTP/1.1 and a status")?;
    let length = content_length(head).ok_or("a response has no content-length")?;
    if length > REPLY_BYTES_MAX {
        return Err(format!("a response has {length} bytes, more than {REPLY_BYTES_MAX}"));
    }
    let body = head_end + 4..head_end + 4 + length;
    match bytes.len() {
        len if len < body.end => Ok(None),
        len if len > body.end => Err("more bytes arrived than one response".into()),
        _ => Ok(Some(Reply { status, body })),
    }
}

fn content_length(head: &[u8]) -> Option<usize> {
    const NAME: &[u8] = b"content-length:";
    let mut lines = head.split(|byte| *byte == b'\n');
    let value = lines.find_map(|line| {
        let (name, value) = line.split_at_checked(NAME.len())?;
        name.eq_ignore_ascii_case(NAME).then_some(value)
    })?;
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

/// Counts the results of a reserve of `calls` calls by its body. A result with an error is neither allowed nor denied.
pub(super) fn reserve_counts(body: &[u8], calls: u64) -> Counts {
    let allowed = count(body, b"\"allowed\":true").min(calls);
    let without_error = count(body, b"\"error\":\"\"").clamp(allowed, calls);
    Counts { allowed, denied: without_error - allowed, errors: calls - without_error }
}

/// Counts the leases that a complete settled.
pub(super) fn settled(body: &[u8]) -> u64 {
    count(body, b"\"reconciled\":true")
}

/// Counts the occurrences of `wanted`, which starts with a quote.
fn count(bytes: &[u8], wanted: &[u8]) -> u64 {
    let mut found = 0;
    let mut rest = bytes;
    // Searching for one byte is much faster than comparing at every offset.
    while let Some(at) = rest.iter().position(|byte| *byte == b'"') {
        rest = &rest[at..];
        if rest.starts_with(wanted) {
            found += 1;
        }
        rest = &rest[1..];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_complete_once_its_body_is() {
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nx: y\r\n\r\nhello";
        for len in 0..text.len() {
            assert_eq!(parse(&text[..len]), Ok(None), "{len}");
        }
        let reply = parse(text).unwrap().unwrap();
        assert_eq!((reply.status, &text[reply.body]), (200, &b"hello"[..]));
        let empty = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length:0\r\n\r\n";
        assert_eq!(parse(empty).unwrap().unwrap().status, 503);
    }

    #[test]
    fn an_invalid_response_is_an_error() {
        for (text, message) in [
            ("HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n", "does not start with"),
            ("HTTP/1.1 2x0 OK\r\ncontent-length: 0\r\n\r\n", "does not start with"),
            ("HTTP/1.1 200 OK\r\n\r\n", "no content-length"),
            ("HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", "no content-length"),
            ("HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n", "more than 1048576"),
            ("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nab", "more bytes arrived"),
        ] {
            let error = parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(message), "{text}: {error}");
        }
        assert!(parse(&[b'x'; REPLY_BYTES_MAX + 1]).is_err());
    }

    #[test]
    fn answers_are_counted_as_allowed_denied_or_in_error() {
        let allowed = r#"{"allowed":true,"error":""}"#;
        let denied = r#"{"allowed":false,"error":"","limited_by":["a"]}"#;
        let failed = r#"{"allowed":false,"error":"unknown_limit_key:a"}"#;
        let count = |body: &str, calls| {
            let counts = reserve_counts(body.as_bytes(), calls);
            (counts.allowed, counts.denied, counts.errors)
        };
        assert_eq!(count(allowed, 1), (1, 0, 0));
        assert_eq!(count(denied, 1), (0, 1, 0));
        assert_eq!(count(failed, 1), (0, 0, 1));
        assert_eq!(count("", 1), (0, 0, 1));
        let batch = format!(r#"{{"results":[{allowed},{denied},{failed},{allowed}]}}"#);
        assert_eq!(count(&batch, 4), (2, 1, 1));
        assert_eq!(count(&batch, 5), (2, 1, 2));
        assert_eq!(settled(br#"{"results":[{"ok":true,"reconciled":true},{"reconciled":false}]}"#), 1);
    }
}
