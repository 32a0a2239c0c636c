//! Follows the HTTP/2 frames of a client, only to detect a half-sent request head: hyper waits for the rest without a
//! timeout, and reads nothing else meanwhile.

use super::io::PREFACE;

const HEADER_BYTES: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// The position in the client's frames.
pub(super) struct Frames {
    header: [u8; HEADER_BYTES],
    /// Bytes of the frame header that have arrived.
    length: usize,
    /// Bytes of the payload that have not arrived.
    missing: usize,
    kind: u8,
    /// A request head has begun, and more of its frames follow.
    is_head_open: bool,
}

impl Frames {
    /// The position before the connection preface.
    pub(super) fn new() -> Frames {
        let missing = PREFACE.len();
        Frames { header: [0; HEADER_BYTES], length: 0, missing, kind: DATA, is_head_open: false }
    }

    /// Follows the received bytes. Returns whether they completed a frame or a head.
    pub(super) fn follow(&mut self, mut bytes: &[u8]) -> bool {
        let mut is_whole = false;
        while !bytes.is_empty() {
            let skipped = bytes.len().min(self.missing);
            self.missing -= skipped;
            bytes = &bytes[skipped..];
            is_whole |= skipped > 0 && self.missing == 0 && !self.is_head_open;
            let count = bytes.len().min(HEADER_BYTES - self.length);
            self.header[self.length..self.length + count].copy_from_slice(&bytes[..count]);
            self.length += count;
            bytes = &bytes[count..];
            if self.length == HEADER_BYTES {
                self.begin();
                is_whole |= self.missing == 0 && !self.is_head_open;
            }
        }
        is_whole
    }

    fn begin(&mut self) {
        let [high, middle, low, kind, flags, ..] = self.header;
        self.missing = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        self.length = 0;
        self.kind = kind;
        if matches!(kind, HEADERS | CONTINUATION) {
            self.is_head_open = flags & END_HEADERS == 0;
        }
    }

    /// Whether a head or another frame is half sent. Bodies have a timeout of their own.
    pub(super) fn is_in_head(&self) -> bool {
        self.is_head_open || self.length > 0 || (self.missing > 0 && self.kind != DATA)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 0, u8::try_from(payload.len()).unwrap(), kind, flags, 0, 0, 0, 1];
        bytes.extend_from_slice(payload);
        bytes
    }

    #[test]
    fn a_head_is_half_sent_until_its_last_frame_has_come_however_it_is_cut() {
        let mut sent = PREFACE.to_vec();
        sent.extend(frame(4, 0, &[0; 6]));
        sent.extend(frame(HEADERS, 0, b"abc"));
        sent.extend(frame(CONTINUATION, 0, b""));
        let open = sent.len();
        sent.extend(frame(CONTINUATION, END_HEADERS, b"de"));
        let closed = sent.len();
        sent.extend(frame(DATA, 0, b"fgh"));
        for piece in [1, 2, 5, 9, 10, 100] {
            let mut frames = Frames::new();
            for bytes in sent[..open].chunks(piece) {
                frames.follow(bytes);
            }
            assert!(frames.is_in_head(), "{piece}");
            for bytes in sent[open..closed].chunks(piece) {
                assert!(frames.is_in_head(), "{piece}");
                frames.follow(bytes);
            }
            assert!(!frames.is_in_head(), "{piece}");
            assert!(frames.follow(&sent[closed..]));
            assert!(!frames.is_in_head(), "{piece}");
        }
    }

    #[test]
    fn a_half_sent_body_is_not_a_half_sent_head() {
        let mut frames = Frames::new();
        frames.follow(PREFACE);
        frames.follow(&frame(DATA, 0, b"abc")[..10]);
        assert!(!frames.is_in_head());
    }
}
