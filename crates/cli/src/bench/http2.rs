//! A gRPC client on one HTTP/2 connection, reduced to what a load generator needs: it shares the machine with the
//! server, so that the time of a general client would be taken for that of the server.
//!
//! It sends the same headers with each request, so that they are indices of the header table after the first one. It
//! reads no headers of responses: a response without a message is a failed one.

const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEADER_BYTES: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
/// Received bytes after which the server may send as many again: half of the initial window of HTTP/2.
const WINDOW_STEP: u32 = 32 << 10;
/// The bytes before a gRPC message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;
const STREAM_MAX: u32 = i32::MAX as u32;

/// The headers of the first request: indices of the static table, and five headers that enter the table of the
/// connection. The newest entry of that table has index 62.
const METHOD_POST: u8 = 0x83;
const SCHEME_HTTP: u8 = 0x86;
const ADD_AUTHORITY: u8 = 0x41;
const ADD_PATH: u8 = 0x44;
const ADD_CONTENT_TYPE: u8 = 0x5f;
const ADD_USER_AGENT: u8 = 0x7a;
const ADD_NEW: u8 = 0x40;
/// The headers of every later request.
const LATER: [u8; 7] = [METHOD_POST, SCHEME_HTTP, 0x80 | 66, 0x80 | 65, 0x80 | 64, 0x80 | 63, 0x80 | 62];

/// A part of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The first two bytes of its message.
    Message { stream: u32, start: [u8; 2] },
    /// Its end.
    End { stream: u32, is_reset: bool },
}

pub(super) struct Client {
    /// The header block of the next request.
    head: Vec<u8>,
    next_stream: u32,
    output: Vec<u8>,
    input: Vec<u8>,
    /// Bytes of the input that were read.
    read: usize,
    /// Bytes of messages since the last update of the window.
    unacknowledged: u32,
}

impl Client {
    /// A client of one method.
    pub(super) fn new(path: &str, authority: &str) -> Client {
        let mut head = vec![METHOD_POST, SCHEME_HTTP];
        for (how, name, value) in [
            (ADD_PATH, "", path),
            (ADD_AUTHORITY, "", authority),
            (ADD_CONTENT_TYPE, "", "application/grpc"),
            (ADD_NEW, "te", "trailers"),
            (ADD_USER_AGENT, "", "earmark-bench"),
        ] {
            head.push(how);
            for text in [name, value].into_iter().filter(|text| !text.is_empty()) {
                push_text(&mut head, text);
            }
        }
        let mut output = PREFACE.to_vec();
        push_frame(&mut output, (SETTINGS, 0, 0), &[]);
        Client { head, next_stream: 1, output, input: Vec::new(), read: 0, unacknowledged: 0 }
    }

    /// Adds a request to the output. Returns its stream. A few small requests in flight never fill a window.
    pub(super) fn request(&mut self, message: &[u8]) -> Result<u32, String> {
        let stream = self.next_stream;
        if stream > STREAM_MAX {
            return Err("the connection has no more streams; choose a shorter run".to_owned());
        }
        self.next_stream += 2;
        push_frame(&mut self.output, (HEADERS, END_HEADERS, stream), &self.head);
        if stream == 1 {
            self.head = LATER.to_vec();
        }
        push_frame_header(&mut self.output, (DATA, END_STREAM, stream), PREFIX_BYTES + message.len());
        self.output.push(0);
        self.output.extend_from_slice(&(message.len() as u32).to_be_bytes());
        self.output.extend_from_slice(message);
        Ok(stream)
    }

    /// The bytes to send.
    pub(super) fn output(&self) -> &[u8] {
        &self.output
    }

    /// The output was sent.
    pub(super) fn sent(&mut self) {
        self.output.clear();
    }

    pub(super) fn received(&mut self, bytes: &[u8]) {
        self.input.drain(..self.read);
        self.read = 0;
        self.input.extend_from_slice(bytes);
    }

    /// The next part of a response. `None` until more bytes have come.
    pub(super) fn next_event(&mut self) -> Result<Option<Event>, String> {
        loop {
            let rest = &self.input[self.read..];
            let Some((header, rest)) = rest.split_first_chunk::<FRAME_HEADER_BYTES>() else { return Ok(None) };
            let [high, middle, low, kind, flags, stream @ ..] = *header;
            let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
            let Some(payload) = rest.get(..length) else { return Ok(None) };
            self.read += FRAME_HEADER_BYTES + length;
            let stream = u32::from_be_bytes(stream);
            match kind {
                DATA => {
                    self.unacknowledged += length as u32;
                    let start = payload.get(PREFIX_BYTES..).and_then(|message| message.first_chunk::<2>().copied());
                    if self.unacknowledged >= WINDOW_STEP {
                        let more = self.unacknowledged.to_be_bytes();
                        self.unacknowledged = 0;
                        push_frame(&mut self.output, (WINDOW_UPDATE, 0, 0), &more);
                    }
                    if let Some(start) = start {
                        return Ok(Some(Event::Message { stream, start }));
                    }
                }
                HEADERS if flags & END_STREAM != 0 => return Ok(Some(Event::End { stream, is_reset: false })),
                RST_STREAM => return Ok(Some(Event::End { stream, is_reset: true })),
                SETTINGS if flags & ACK == 0 => push_frame(&mut self.output, (SETTINGS, ACK, 0), &[]),
                PING if flags & ACK == 0 => push_frame(&mut self.output, (PING, ACK, 0), payload),
                GOAWAY => return Err("the server ends the connection".to_owned()),
                _ => {}
            }
        }
    }
}

/// A text of a header, without Huffman coding. No header here has 127 bytes or more.
fn push_text(head: &mut Vec<u8>, text: &str) {
    head.push(text.len() as u8);
    head.extend_from_slice(text.as_bytes());
}

fn push_frame(output: &mut Vec<u8>, header: (u8, u8, u32), payload: &[u8]) {
    push_frame_header(output, header, payload.len());
    output.extend_from_slice(payload);
}

fn push_frame_header(output: &mut Vec<u8>, (kind, flags, stream): (u8, u8, u32), length: usize) {
    output.extend_from_slice(&(length as u32).to_be_bytes()[1..]);
    output.extend_from_slice(&[kind, flags]);
    output.extend_from_slice(&stream.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_read_however_it_is_cut() {
        let mut answer = Vec::new();
        push_frame(&mut answer, (SETTINGS, 0, 0), &[0, 3, 0, 0, 0, 128]);
        push_frame(&mut answer, (HEADERS, END_HEADERS, 1), &[0x88]);
        push_frame(&mut answer, (DATA, 0, 1), &[0, 0, 0, 0, 2, 8, 1]);
        push_frame(&mut answer, (PING, 0, 0), b"12345678");
        push_frame(&mut answer, (HEADERS, END_HEADERS | END_STREAM, 1), &[0x88]);
        push_frame(&mut answer, (RST_STREAM, 0, 3), &[0; 4]);
        for piece in [1, 2, 9, 1_000] {
            let mut client = Client::new("/a", "b");
            assert_eq!(client.request(b"abc"), Ok(1));
            assert_eq!(client.request(b"abc"), Ok(3));
            client.sent();
            let mut events = Vec::new();
            for bytes in answer.chunks(piece) {
                client.received(bytes);
                while let Some(event) = client.next_event().unwrap() {
                    events.push(event);
                }
            }
            let end = |stream, is_reset| Event::End { stream, is_reset };
            assert_eq!(events, [Event::Message { stream: 1, start: [8, 1] }, end(1, false), end(3, true)]);
            let mut sent = Vec::new();
            push_frame(&mut sent, (SETTINGS, ACK, 0), &[]);
            push_frame(&mut sent, (PING, ACK, 0), b"12345678");
            assert_eq!(client.output(), sent, "{piece}");
        }
    }
}
