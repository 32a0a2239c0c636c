//! The usage of a call, read while its answer passes.
//!
//! The largest value of each field counts, wherever it was reported. A stream that was cut before its last event has no
//! usage: the gateway then charges the bound.

mod counts;
mod members;

use bytes::Bytes;
use earmark_client::CallUsage;

use crate::api::Endpoint;
use crate::sse::{DataLines, Framer, Piece};
use counts::Counts;
use members::{Members, Path};

/// Tokens are counted up to here, as everywhere in Earmark.
const TOKENS_MAX: u64 = u32::MAX as u64;

const USAGE: usize = 0;
const RESPONSE_USAGE: usize = 1;
const MESSAGE_USAGE: usize = 2;
const TYPE: usize = 3;
const CHOICES: usize = 4;
const TIER: usize = 5;
const RESPONSE_TIER: usize = 6;

/// The members of an answer or event that are read, by the numbers above.
const PATHS: &[Path] = &[
    &["usage"],
    &["response", "usage"],
    &["message", "usage"],
    &["type"],
    &["choices"],
    &["service_tier"],
    &["response", "service_tier"],
];

/// Reads the usage of an answer that is not streamed, of any length.
#[derive(Debug)]
pub struct AnswerUsage {
    endpoint: Endpoint,
    members: Members,
    counts: Counts,
}

impl AnswerUsage {
    /// A reader for an answer of an endpoint.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> AnswerUsage {
        AnswerUsage { endpoint, members: Members::new(PATHS), counts: Counts::default() }
    }

    /// Takes the next bytes of the answer.
    pub fn push(&mut self, bytes: &[u8]) {
        self.members.push(bytes);
        while let Some((path, value)) = self.members.take() {
            let Some(value) = value else { continue };
            match path {
                USAGE => _ = self.counts.merge(&value),
                TIER => self.counts.set_tier(serde_json::from_slice(&value).ok()),
                _ => {}
            }
        }
    }

    /// Whether the answer is complete.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.members.is_complete()
    }

    /// The usage, once the answer is complete. `None` charges the bound.
    #[must_use]
    pub fn usage(&self) -> Option<CallUsage> {
        self.is_complete().then(|| self.counts.usage(self.endpoint))?
    }
}

/// Reads the usage of a stream.
#[derive(Debug)]
pub struct StreamUsage {
    endpoint: Endpoint,
    lines: DataLines,
    members: Members,
    /// The first bytes of the event's data, for `[DONE]`.
    head: Vec<u8>,
    counts: Counts,
    has_ended: bool,
    /// Whether a message's last usage came. The one at its begin has next to no output.
    has_last_usage: bool,
}

/// The data of the last event of a stream of chat completions or completions.
const DONE: &[u8] = b"[DONE]";

/// The meaning of an event.
struct Event {
    kind: Option<String>,
    has_usage: bool,
    has_no_choices: bool,
}

impl StreamUsage {
    /// A reader for a stream of an endpoint.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> StreamUsage {
        StreamUsage {
            endpoint,
            lines: DataLines::default(),
            members: Members::new(PATHS),
            head: Vec::new(),
            counts: Counts::default(),
            has_ended: false,
            has_last_usage: false,
        }
    }

    /// Takes the next piece of the stream. Returns whether it is a whole frame that has only the usage: `choices` empty
    /// and `usage` an object.
    pub fn push(&mut self, piece: &Piece) -> bool {
        let StreamUsage { lines, members, head, .. } = self;
        lines.push(&piece.bytes, |data| {
            let missing = DONE.len().saturating_add(1).saturating_sub(head.len());
            head.extend(data.iter().take(missing));
            members.push(data);
        });
        piece.ends && self.end_event() && piece.is_whole()
    }

    /// Ends the stream. A last event without its blank line counts if its data is complete.
    pub fn finish(&mut self) {
        self.end_event();
    }

    /// Whether the event has only the usage.
    fn end_event(&mut self) -> bool {
        let is_done = self.head == DONE;
        self.head.clear();
        self.lines.end_event();
        let members = std::mem::replace(&mut self.members, Members::new(PATHS));
        let generates_chunks = matches!(self.endpoint, Endpoint::Chat | Endpoint::Completions);
        if is_done {
            self.has_ended |= generates_chunks;
            return false;
        }
        if !members.is_complete() {
            return false;
        }
        let event = self.read(members);
        match (self.endpoint, event.kind.as_deref()) {
            (Endpoint::Messages, Some("message_delta")) => self.has_last_usage |= event.has_usage,
            (Endpoint::Messages, Some("message_stop"))
            | (Endpoint::Responses, Some("response.completed" | "response.incomplete" | "response.failed")) => {
                self.has_ended = true;
            }
            _ => {}
        }
        generates_chunks && event.has_usage && event.has_no_choices
    }

    fn read(&mut self, mut members: Members) -> Event {
        let mut event = Event { kind: None, has_usage: false, has_no_choices: false };
        while let Some((path, value)) = members.take() {
            let value = value.unwrap_or_default();
            match path {
                USAGE | RESPONSE_USAGE | MESSAGE_USAGE => {
                    event.has_usage |= self.counts.merge(&value) && path == USAGE;
                }
                TYPE => event.kind = serde_json::from_slice(&value).ok(),
                CHOICES => {
                    let marks = value.iter().filter(|byte| !byte.is_ascii_whitespace());
                    event.has_no_choices = marks.eq(b"[]");
                }
                TIER | RESPONSE_TIER => self.counts.set_tier(serde_json::from_slice(&value).ok()),
                _ => {}
            }
        }
        event
    }

    /// Whether the last event came.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The usage of the whole stream. `None` charges the bound.
    #[must_use]
    pub fn usage(&self) -> Option<CallUsage> {
        let is_last = self.has_last_usage || self.endpoint != Endpoint::Messages;
        (self.has_ended && is_last).then(|| self.counts.usage(self.endpoint))?
    }

    /// The usage that was reported so far, for a stream that is still running.
    #[must_use]
    pub fn so_far(&self) -> Option<CallUsage> {
        self.counts.usage(self.endpoint)
    }
}

/// A stream on its way to the client: its frames, and its usage.
#[derive(Debug)]
pub struct Stream {
    framer: Framer,
    usage: StreamUsage,
    removes_usage_chunk: bool,
    /// Whether the last frame was removed, and what belongs to it still must be.
    is_removing: bool,
}

impl Stream {
    /// A stream of an endpoint. `removes_usage_chunk` is [`CallBody::removes_usage_chunk`].
    ///
    /// [`CallBody::removes_usage_chunk`]: crate::body::CallBody::removes_usage_chunk
    #[must_use]
    pub fn new(endpoint: Endpoint, removes_usage_chunk: bool) -> Stream {
        Stream { framer: Framer::default(), usage: StreamUsage::new(endpoint), removes_usage_chunk, is_removing: false }
    }

    /// Takes bytes of the upstream, and gives out those for the client.
    pub fn push(&mut self, bytes: Bytes, mut out: impl FnMut(Bytes)) {
        let Stream { framer, usage, removes_usage_chunk, is_removing } = self;
        framer.push(bytes, |piece| {
            let is_usage_chunk = usage.push(&piece);
            if piece.starts {
                *is_removing = is_usage_chunk && *removes_usage_chunk;
            }
            if !*is_removing {
                out(piece.bytes);
            }
        });
    }

    /// Ends the stream. Gives out the bytes behind its last frame.
    pub fn finish(&mut self) -> Option<Bytes> {
        let rest = self.framer.finish();
        if let Some(piece) = &rest {
            self.usage.push(piece);
        }
        self.usage.finish();
        rest.map(|piece| piece.bytes)
    }

    /// The usage read so far, and whether the stream has ended.
    #[must_use]
    pub const fn reader(&self) -> &StreamUsage {
        &self.usage
    }
}

#[cfg(test)]
mod tests;
