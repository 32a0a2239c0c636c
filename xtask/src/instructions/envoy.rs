//! A client of Envoy's rate limit service: one HTTP/2 connection, as little of the protocol as an answer needs.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;

/// Frame types.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
/// Flags. The first one of SETTINGS and PING is the acknowledgement.
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const FRAME_HEAD: usize = 9;
/// The first index of HPACK's dynamic table.
const FIRST_DYNAMIC: u8 = 62;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADS: [(&str, &str); 7] = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"),
    (":authority", "localhost"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
    ("x-envoy-internal", "true"),
];

/// A connection with requests in flight.
pub(super) struct Client {
    tcp: TcpStream,
    output: Vec<u8>,
    input: Vec<u8>,
    /// The stream of the next request.
    next: u32,
}

impl Client {
    pub(super) fn new(tcp: TcpStream) -> Client {
        let mut client = Client { tcp, output: PREFACE.to_vec(), input: Vec::new(), next: 1 };
        client.frame(SETTINGS, 0, 0, &[]);
        // Answers are read at once, so the window need not be kept.
        client.frame(WINDOW_UPDATE, 0, 0, &(i32::MAX as u32 - 65_535).to_be_bytes());
        client
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let [_, length @ ..] = (payload.len() as u32).to_be_bytes();
        self.output.extend_from_slice(&length);
        self.output.extend_from_slice(&[kind, flags]);
        self.output.extend_from_slice(&stream.to_be_bytes());
        self.output.extend_from_slice(payload);
    }

    /// Queues a request.
    pub(super) fn request(&mut self, message: &[u8]) {
        let head: Vec<u8> = match self.next {
            // Literals that enter the dynamic table, then their indexes. The newest entry has the first one.
            1 => HEADS.iter().flat_map(|(name, value)| literal(name, value)).collect(),
            _ => (0..HEADS.len() as u8).rev().map(|index| 0x80 | (FIRST_DYNAMIC + index)).collect(),
        };
        self.frame(HEADERS, END_HEADERS, self.next, &head);
        let frame = [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat();
        self.frame(DATA, END_STREAM, self.next, &frame);
        self.next += 2;
    }

    /// Sends what is queued, and reads until this many streams have ended. Each answer must allow its request.
    pub(super) fn answers(&mut self, mut count: usize) -> io::Result<()> {
        self.tcp.write_all(&std::mem::take(&mut self.output))?;
        let mut buffer = [0; 16_384];
        while count > 0 {
            let read = self.tcp.read(&mut buffer)?;
            if read == 0 {
                return Err(io::Error::other("the server closed the connection"));
            }
            self.input.extend_from_slice(&buffer[..read]);
            while let Some(ended) = self.next_frame()? {
                count -= usize::from(ended);
            }
            self.tcp.write_all(&std::mem::take(&mut self.output))?;
        }
        Ok(())
    }

    /// Handles one frame. Returns whether it ended a stream.
    fn next_frame(&mut self) -> io::Result<Option<bool>> {
        let Some([high, middle, low, kind, flags, stream @ ..]) = self.input.first_chunk::<FRAME_HEAD>().copied()
        else {
            return Ok(None);
        };
        let length = u32::from_be_bytes([0, high, middle, low]) as usize;
        if self.input.len() < FRAME_HEAD + length {
            return Ok(None);
        }
        let rest = self.input.split_off(FRAME_HEAD + length);
        let frame = std::mem::replace(&mut self.input, rest);
        let payload = &frame[FRAME_HEAD..];
        match kind {
            SETTINGS if flags & ACK == 0 => self.frame(SETTINGS, ACK, 0, &[]),
            PING if flags & ACK == 0 => self.frame(PING, ACK, 0, payload),
            // The field overall_code, which is OK, begins the message.
            DATA if payload.get(5..7) != Some(&[8, 1]) => {
                return Err(io::Error::other(format!("found the answer {payload:?}")));
            }
            HEADERS | DATA => return Ok(Some(flags & END_STREAM != 0)),
            SETTINGS | PING | WINDOW_UPDATE => {}
            _ => return Err(io::Error::other(format!("found the frame {kind} of the stream {stream:?}"))),
        }
        Ok(Some(false))
    }
}

/// A header that enters the dynamic table.
fn literal(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| [&[text.len() as u8][..], text.as_bytes()].concat();
    [vec![0x40], text(name), text(value)].concat()
}

/// A request with two descriptors, one limit each: requests of a model and tokens of a tenant.
pub(super) fn message(model: &str, tenant: &str, tokens: u64) -> Vec<u8> {
    let field = |tag: u8, bytes: &[u8]| [&[tag, bytes.len() as u8][..], bytes].concat();
    let entry = |key: &str, value: &str| field(10, &[field(10, key.as_bytes()), field(18, value.as_bytes())].concat());
    // `hits_addend` is a wrapped number of 14 bits.
    let hits = field(26, &[8, 0x80 | (tokens & 0x7f) as u8, (tokens >> 7) as u8]);
    let descriptors = [field(18, &entry("model", model)), field(18, &[entry("tenant", tenant), hits].concat())];
    [field(10, b"default"), descriptors.concat()].concat()
}
