//! Finds HTTP/1 requests that state the length of their body twice: `content-length` and `transfer-encoding`.
//!
//! A proxy and the server could read different ones, and so see different requests (request smuggling). hyper drops the
//! first header before anyone sees it, so the bytes are searched instead.

const CONTENT_LENGTH: &[u8] = b"content-length:";
const TRANSFER_ENCODING: &[u8] = b"transfer-encoding:";
/// Bytes of a line that are compared.
const LINE_BYTES: usize = TRANSFER_ENCODING.len();

/// Searches the lines of a connection. Lines of a body cannot be told from those of a head, but no JSON body has both
/// headers as lines of their own.
#[derive(Default)]
pub(super) struct BodyLengths {
    line: [u8; LINE_BYTES],
    length: usize,
    has_content_length: bool,
    has_transfer_encoding: bool,
}

impl BodyLengths {
    /// Whether these bytes complete a head with both headers.
    pub(super) fn are_ambiguous(&mut self, mut bytes: &[u8]) -> bool {
        let mut is_ambiguous = false;
        // Every byte of a body passes here, and most pieces of a body have no line end.
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            if self.length == 0 {
                self.end_line(line);
            } else {
                self.keep(line);
                let (kept, length) = (self.line, std::mem::take(&mut self.length));
                self.end_line(&kept[..length]);
            }
            bytes = rest;
            is_ambiguous |= self.has_content_length && self.has_transfer_encoding;
        }
        self.keep(bytes);
        is_ambiguous
    }

    fn keep(&mut self, bytes: &[u8]) {
        let count = bytes.len().min(LINE_BYTES - self.length);
        self.line[self.length..self.length + count].copy_from_slice(&bytes[..count]);
        self.length += count;
    }

    fn end_line(&mut self, line: &[u8]) {
        // Nearly every line has no colon at this place.
        let is = |name: &[u8]| line.get(name.len() - 1) == Some(&b':') && line[..name.len()].eq_ignore_ascii_case(name);
        match line {
            [] | [b'\r'] => (self.has_content_length, self.has_transfer_encoding) = (false, false),
            _ if is(CONTENT_LENGTH) => self.has_content_length = true,
            _ if is(TRANSFER_ENCODING) => self.has_transfer_encoding = true,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(requests: &[&str]) -> bool {
        let text = requests.concat();
        let whole = BodyLengths::default().are_ambiguous(text.as_bytes());
        let mut lengths = BodyLengths::default();
        let by_byte =
            text.as_bytes().chunks(1).map(|byte| lengths.are_ambiguous(byte)).fold(false, |all, one| all | one);
        assert_eq!(whole, by_byte, "{text}");
        whole
    }

    #[test]
    fn only_a_head_with_both_headers_is_ambiguous() {
        let sized = "POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}";
        let chunked = "POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\nhost: a\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
        let both = "POST /a HTTP/1.1\r\nTRANSFER-ENCODING: chunked\r\nx: y\r\nContent-Length:2\r\n\r\n";
        assert!(!found(&[sized, chunked, sized, sized, chunked, chunked]));
        assert!(found(&[both]));
        assert!(found(&[sized, both]));
        assert!(found(&[chunked, both]));
        assert!(found(&["POST / HTTP/1.1\ncontent-length: 2\ntransfer-encoding: chunked\n\n"]));
        assert!(!found(&[
            "GET / HTTP/1.1\r\nx-content-length: 2\r\nx: content-length:\r\ntransfer-encoding: a\r\n\r\n"
        ]));
    }
}
