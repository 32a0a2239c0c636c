//! Server-sent events: a stream cut into frames, as exact bytes.
//!
//! A frame is everything up to and including the blank line that ends an event. Lines end in LF, CRLF or CR, also mixed.
//! Comments, unknown fields and data of several lines are part of their frame. The pieces that come out are the bytes
//! that went in, in order, however they were cut.

use bytes::{Bytes, BytesMut};

/// The largest frame that is held until it is complete, in bytes: far more than a chunk with only the usage, which is the
/// only frame that must be seen whole. A longer frame passes in several pieces.
pub const FRAME_BYTES_MAX: usize = 16 << 10;

/// A part of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The bytes, as they came.
    pub bytes: Bytes,
    /// Whether a frame begins here. If not, the piece belongs to the frame before: its rest, or the line feed of the CRLF
    /// that ended it.
    pub starts: bool,
    /// Whether its frame ends here.
    pub ends: bool,
}

impl Piece {
    /// Whether this is a whole frame.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.starts && self.ends
    }
}

/// Cuts a stream into frames. It holds at most [`FRAME_BYTES_MAX`] bytes.
#[derive(Debug)]
pub struct Framer {
    /// The begin of a frame whose end has not come yet.
    held: BytesMut,
    /// Whether pieces of the current frame were given out already.
    is_open: bool,
    is_line_empty: bool,
    /// A line feed that follows belongs to this carriage return.
    is_after_return: bool,
}

impl Default for Framer {
    fn default() -> Framer {
        Framer { held: BytesMut::new(), is_open: false, is_line_empty: true, is_after_return: false }
    }
}

impl Framer {
    /// Takes the next bytes of the stream, and gives out every frame that they complete.
    pub fn push(&mut self, mut bytes: Bytes, mut piece: impl FnMut(Piece)) {
        // The stream was cut inside the CRLF that ends a frame.
        let is_between = self.held.is_empty() && !self.is_open;
        if is_between && self.is_after_return && bytes.first() == Some(&b'\n') {
            self.is_after_return = false;
            piece(Piece { bytes: bytes.split_to(1), starts: false, ends: false });
        }
        while let Some(end) = self.frame_end(&bytes) {
            let last = bytes.split_to(end);
            let starts = !std::mem::take(&mut self.is_open);
            piece(Piece { bytes: self.joined(last), starts, ends: true });
        }
        if bytes.is_empty() {
            return;
        }
        if self.is_open || self.held.len().saturating_add(bytes.len()) > FRAME_BYTES_MAX {
            let starts = !std::mem::replace(&mut self.is_open, true);
            piece(Piece { bytes: self.joined(bytes), starts, ends: false });
        } else {
            self.held.extend_from_slice(&bytes);
        }
    }

    /// The bytes behind the last frame: all that a cut stream has of its last one.
    pub fn finish(&mut self) -> Option<Piece> {
        let bytes = std::mem::take(&mut self.held).freeze();
        (!bytes.is_empty()).then(|| Piece { bytes, starts: !std::mem::take(&mut self.is_open), ends: false })
    }

    fn joined(&mut self, bytes: Bytes) -> Bytes {
        if self.held.is_empty() {
            return bytes;
        }
        self.held.extend_from_slice(&bytes);
        std::mem::take(&mut self.held).freeze()
    }

    /// The offset behind the first blank line.
    fn frame_end(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0_usize;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            if std::mem::take(&mut self.is_after_return) && rest.first() == Some(&b'\n') {
                at = at.saturating_add(1);
                continue;
            }
            let Some(line) = memchr::memchr2(b'\n', b'\r', rest) else {
                self.is_line_empty = false;
                break;
            };
            let was_empty = line == 0 && self.is_line_empty;
            self.is_line_empty = true;
            self.is_after_return = rest.get(line) == Some(&b'\r');
            at = at.saturating_add(line).saturating_add(1);
            if was_empty {
                if self.is_after_return && bytes.get(at) == Some(&b'\n') {
                    self.is_after_return = false;
                    at = at.saturating_add(1);
                }
                return Some(at);
            }
        }
        None
    }
}

/// Reads the data of events, without holding any of it.
#[derive(Debug)]
pub(crate) struct DataLines {
    state: Line,
    /// Bytes of the byte order mark that may still come, at the begin of the stream.
    mark: &'static [u8],
    is_after_return: bool,
    has_data: bool,
}

/// The part of a line that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// The name of the field, of which this many bytes equal `data`.
    Name(usize),
    /// A space behind the colon, which is no part of the data.
    Space,
    Data,
    Other,
}

const NAME: &[u8] = b"data";

impl Default for DataLines {
    fn default() -> DataLines {
        DataLines { state: Line::Name(0), mark: b"\xEF\xBB\xBF", is_after_return: false, has_data: false }
    }
}

impl DataLines {
    /// Takes the next bytes of the stream. `data` gets the data of the current event, with a line feed between lines.
    pub(crate) fn push(&mut self, bytes: &[u8], mut data: impl FnMut(&[u8])) {
        let mut at = 0_usize;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            let first = rest.first().copied().unwrap_or_default();
            if self.skips(first) {
                at = at.saturating_add(1);
                continue;
            }
            if matches!(first, b'\n' | b'\r') {
                self.is_after_return = first == b'\r';
                if matches!(self.state, Line::Name(4)) {
                    // A field without a colon has empty data.
                    self.begin(&mut data);
                }
                self.state = Line::Name(0);
                at = at.saturating_add(1);
                continue;
            }
            at = at.saturating_add(self.within_line(rest, first, &mut data));
        }
    }

    /// The bytes that were read of a line.
    fn within_line(&mut self, rest: &[u8], first: u8, data: &mut impl FnMut(&[u8])) -> usize {
        match self.state {
            Line::Name(read) if NAME.get(read) == Some(&first) => {
                self.state = Line::Name(read.saturating_add(1));
                1
            }
            Line::Name(4) if first == b':' => {
                self.begin(data);
                self.state = Line::Space;
                1
            }
            Line::Name(_) => {
                self.state = Line::Other;
                0
            }
            Line::Space => {
                self.state = Line::Data;
                usize::from(first == b' ')
            }
            Line::Data | Line::Other => {
                let end = memchr::memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
                if self.state == Line::Data {
                    data(rest.get(..end).unwrap_or_default());
                }
                end
            }
        }
    }

    fn skips(&mut self, byte: u8) -> bool {
        if std::mem::take(&mut self.is_after_return) && byte == b'\n' {
            return true;
        }
        match self.mark.split_first() {
            Some((mark, rest)) if *mark == byte => {
                self.mark = rest;
                true
            }
            _ => {
                self.mark = &[];
                false
            }
        }
    }

    fn begin(&mut self, data: &mut impl FnMut(&[u8])) {
        if std::mem::replace(&mut self.has_data, true) {
            data(b"\n");
        }
    }

    /// Ends an event.
    pub(crate) fn end_event(&mut self) {
        self.has_data = false;
    }
}

#[cfg(test)]
mod tests;
