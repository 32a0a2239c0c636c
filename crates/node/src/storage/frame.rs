//! Record framing of the Raft log and the journal.
//!
//! A frame is the payload length, metadata, a checksum of both, the payload, and a checksum of everything before. The
//! header has its own checksum so that a damaged length is recognised. Checksums start from a seed, so a frame copied
//! from another file can be told apart.
//!
//! Torn tail or damage: every user knows an offset up to which its file was synced (the mark of the log, the snapshot's
//! position in the journal). A defect before that offset is damage, and the file is refused. After it, a power cut may
//! have torn the last write, and the rest of the file is dropped.

use std::ops::Range;

use bytes::Bytes;
use crc32fast::Hasher;

use crate::fault::Fault;

const LEN_BYTES: usize = 4;
const SUM_BYTES: usize = 4;
/// Bytes per read of a [`FrameWalk`].
const READ_BYTES: usize = 256 * 1024;

/// Frame layout of one kind of file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Framing {
    pub(crate) meta_bytes: usize,
    pub(crate) payload_bytes_max: usize,
}

/// Initial state of a file's checksums.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seed(Hasher);

impl Seed {
    pub(crate) fn new(parts: &[&[u8]]) -> Seed {
        let mut hasher = Hasher::new();
        parts.iter().for_each(|part| hasher.update(part));
        Seed(hasher)
    }

    fn sum(&self, bytes: &[u8]) -> [u8; SUM_BYTES] {
        let mut hasher = self.0.clone();
        hasher.update(bytes);
        hasher.finalize().to_le_bytes()
    }
}

/// A record as it is in a file: checked metadata and payload, and all its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) meta: &'a [u8],
    pub(crate) payload: &'a [u8],
    pub(crate) raw: &'a [u8],
}

/// A 64-bit number of a frame's metadata, by position.
pub(crate) fn meta_number(meta: &[u8], position: usize) -> u64 {
    meta.get(position * 8..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Why bytes do not begin with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameDefect {
    /// At least `needed` bytes are needed.
    #[error("the record is truncated")]
    Truncated { needed: usize },
    #[error("the record header has a wrong checksum")]
    HeaderChecksum,
    #[error("the record exceeds the maximum size")]
    TooLong,
    #[error("the record has a wrong checksum")]
    Checksum,
}

impl Framing {
    pub(crate) const fn header_bytes(&self) -> usize {
        LEN_BYTES + self.meta_bytes + SUM_BYTES
    }

    /// Appends a frame. On error nothing is appended, and the payload length is returned.
    pub(crate) fn put(
        &self,
        seed: &Seed,
        meta: &[u8],
        out: &mut Vec<u8>,
        payload: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), usize> {
        let start = out.len();
        out.extend_from_slice(&[0; LEN_BYTES]);
        out.extend_from_slice(meta);
        let meta_end = out.len();
        out.extend_from_slice(&[0; SUM_BYTES]);
        let body = out.len();
        payload(out);
        let payload_len = out.len() - body;
        let len = u32::try_from(payload_len).ok().filter(|_| payload_len <= self.payload_bytes_max);
        let Some(len) = len else {
            out.truncate(start);
            return Err(payload_len);
        };
        out[start..start + LEN_BYTES].copy_from_slice(&len.to_le_bytes());
        let sum = seed.sum(&out[start..meta_end]);
        out[meta_end..body].copy_from_slice(&sum);
        let sum = seed.sum(&out[start..]);
        out.extend_from_slice(&sum);
        Ok(())
    }

    /// Metadata and payload length of the frame at the front of some bytes.
    pub(crate) fn read_header<'a>(&self, seed: &Seed, bytes: &'a [u8]) -> Result<(&'a [u8], usize), FrameDefect> {
        let needed = self.header_bytes();
        let header = bytes.get(..needed).ok_or(FrameDefect::Truncated { needed })?;
        let (summed, sum) = header.split_at(needed - SUM_BYTES);
        if seed.sum(summed) != sum {
            return Err(FrameDefect::HeaderChecksum);
        }
        let Some((len, meta)) = summed.split_first_chunk::<LEN_BYTES>() else {
            return Err(FrameDefect::Truncated { needed });
        };
        let len = u32::from_le_bytes(*len) as usize;
        if len > self.payload_bytes_max { Err(FrameDefect::TooLong) } else { Ok((meta, len)) }
    }

    /// The frame at the front of some bytes.
    pub(crate) fn read<'a>(&self, seed: &Seed, bytes: &'a [u8]) -> Result<Frame<'a>, FrameDefect> {
        let (meta, len) = self.read_header(seed, bytes)?;
        let (start, needed) = (self.header_bytes(), self.header_bytes() + len + SUM_BYTES);
        let raw = bytes.get(..needed).ok_or(FrameDefect::Truncated { needed })?;
        let (summed, sum) = raw.split_at(start + len);
        if seed.sum(summed) != sum {
            return Err(FrameDefect::Checksum);
        }
        Ok(Frame { meta, payload: &summed[start..], raw })
    }

    /// First offset in `bytes` from `from` on whose frame header satisfies `accept`, given its metadata.
    pub(crate) fn find(
        &self,
        seed: &Seed,
        bytes: &[u8],
        from: usize,
        accept: impl Fn(usize, &[u8]) -> bool,
    ) -> Option<usize> {
        let mut windows = bytes.get(from..)?.windows(self.header_bytes());
        let is_match = |(at, window): &(usize, &[u8])| {
            self.read_header(seed, window).is_ok_and(|(meta, _)| accept(from + at, meta))
        };
        windows.by_ref().enumerate().find(is_match).map(|(at, _)| from + at)
    }
}

/// Why a walk over frames ended: the file could not be read, or a frame is invalid.
pub(crate) enum WalkError {
    Fault(Fault),
    Defect(FrameDefect),
}

/// Reads the frames of a file in order, in bounded memory.
#[derive(Debug)]
pub(crate) struct FrameWalk {
    framing: Framing,
    seed: Seed,
    /// File offset of the next frame.
    pub(crate) offset: u64,
    buffer: Vec<u8>,
    /// The current frame in the buffer; the next one follows it.
    current: Range<usize>,
}

impl FrameWalk {
    pub(crate) fn new(framing: Framing, seed: Seed, offset: u64) -> FrameWalk {
        FrameWalk { framing, seed, offset, buffer: Vec::new(), current: 0..0 }
    }

    /// The next frame; `None` if the file ends after the current one. `read` returns up to the given number of bytes
    /// at an offset, and none at the end of the file.
    pub(crate) fn next(
        &mut self,
        mut read: impl FnMut(u64, usize) -> Result<Bytes, Fault>,
    ) -> Result<Option<Frame<'_>>, WalkError> {
        let mut from = self.current.end;
        let len = loop {
            let needed = match self.framing.read(&self.seed, &self.buffer[from..]) {
                Ok(frame) => break frame.raw.len(),
                Err(FrameDefect::Truncated { needed }) => needed,
                Err(defect) => return Err(WalkError::Defect(defect)),
            };
            self.buffer.drain(..from);
            (from, self.current) = (0, 0..0);
            let has = self.buffer.len();
            let more = read(self.offset + has as u64, READ_BYTES.max(needed - has)).map_err(WalkError::Fault)?;
            if more.is_empty() {
                let truncated = WalkError::Defect(FrameDefect::Truncated { needed });
                return if has == 0 { Ok(None) } else { Err(truncated) };
            }
            self.buffer.extend_from_slice(&more);
        };
        self.current = from..from + len;
        self.offset += len as u64;
        Ok(Some(self.frame()))
    }

    pub(crate) fn frame(&self) -> Frame<'_> {
        let raw = &self.buffer[self.current.clone()];
        let start = self.framing.header_bytes().min(raw.len());
        let meta = start.saturating_sub(self.framing.meta_bytes + SUM_BYTES)..start.saturating_sub(SUM_BYTES);
        Frame { meta: &raw[meta], payload: &raw[start..raw.len().saturating_sub(SUM_BYTES).max(start)], raw }
    }
}
