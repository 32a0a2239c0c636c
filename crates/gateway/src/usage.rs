//! The usage of a call, read while its answer passes.
//!
//! The largest value of each field counts, wherever it was reported. A stream that was cut before its last event has no
//! usage: the gateway then charges the bound.

mod members;

use bytes::Bytes;
use earmark_client::CallUsage;
use serde_json::Value;

use crate::api::Endpoint;
use crate::sse::{DataLines, Framer, Piece};
use members::{Members, Path};

/// Tokens are counted up to here, as everywhere in Earmark.
const TOKENS_MAX: u64 = u32::MAX as u64;
/// The longest name of a service tier, in bytes.
const TIER_BYTES_MAX: usize = 64;

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

/// The tokens that were reported so far.
#[derive(Clone, Debug, Default)]
struct Counts {
    input: Option<u64>,
    output: Option<u64>,
    total: Option<u64>,
    /// Input that was read from a cache.
    cached: Option<u64>,
    /// Input that was written to a cache, for whatever time.
    written: Option<u64>,
    /// Input that was written to a cache for an hour.
    written_1h: Option<u64>,
    reasoning: Option<u64>,
    tier: Option<String>,
}

/// A number of tokens. Some servers write it with a fraction.
fn tokens(value: &Value) -> Option<u64> {
    let fraction = || value.as_f64().filter(|tokens| *tokens >= 0.0).map(|tokens| tokens.ceil() as u64);
    value.as_u64().or_else(fraction).map(|tokens| tokens.min(TOKENS_MAX))
}

/// The largest of the numbers at these paths.
fn largest(usage: &Value, paths: &[&[&str]]) -> Option<u64> {
    let at = |path: &&[&str]| path.iter().try_fold(usage, |value, key| value.get(key)).and_then(tokens);
    paths.iter().filter_map(at).max()
}

impl Counts {
    fn merge(&mut self, usage: &Value) {
        let raise = |count: &mut Option<u64>, paths: &[&[&str]]| *count = (*count).max(largest(usage, paths));
        raise(&mut self.input, &[&["prompt_tokens"], &["input_tokens"]]);
        raise(&mut self.output, &[&["completion_tokens"], &["output_tokens"]]);
        raise(&mut self.total, &[&["total_tokens"]]);
        raise(
            &mut self.cached,
            &[
                &["prompt_tokens_details", "cached_tokens"],
                &["input_tokens_details", "cached_tokens"],
                &["cache_read_input_tokens"],
            ],
        );
        raise(
            &mut self.written,
            &[
                &["prompt_tokens_details", "cache_write_tokens"],
                &["input_tokens_details", "cache_write_tokens"],
                &["cache_creation_input_tokens"],
            ],
        );
        raise(&mut self.written_1h, &[&["cache_creation", "ephemeral_1h_input_tokens"]]);
        raise(
            &mut self.reasoning,
            &[
                &["completion_tokens_details", "reasoning_tokens"],
                &["output_tokens_details", "reasoning_tokens"],
                &["output_tokens_details", "thinking_tokens"],
            ],
        );
        self.set_tier(usage.get("service_tier"));
    }

    fn set_tier(&mut self, tier: Option<&Value>) {
        let tier = tier.and_then(Value::as_str).filter(|tier| (1..=TIER_BYTES_MAX).contains(&tier.len()));
        if let Some(tier) = tier {
            self.tier = Some(tier.to_owned());
        }
    }

    /// The usage, if enough was reported.
    fn usage(&self, endpoint: Endpoint) -> Option<CallUsage> {
        let (input, output) = match endpoint {
            Endpoint::CountTokens => return Some(CallUsage::default()),
            Endpoint::Models | Endpoint::Flat => return None,
            Endpoint::Embeddings => (self.input.max(self.total)?, 0),
            Endpoint::Messages => {
                // Anthropic counts tokens of the cache apart from the others.
                let input = [self.input?, self.cached.unwrap_or(0), self.written_in_all()];
                (input.into_iter().fold(0, u64::saturating_add).min(TOKENS_MAX), self.output?)
            }
            Endpoint::Chat | Endpoint::Completions | Endpoint::Responses => {
                let input = self.input?;
                // Some providers leave reasoning out of the output, but not out of the total.
                (input, self.output.max(self.total.map(|total| total.saturating_sub(input)))?)
            }
        };
        let written_1h = self.written_1h.unwrap_or(0);
        let part = |tokens: Option<u64>, whole: u64| tokens.map(|tokens| tokens.min(whole));
        Some(CallUsage {
            input_tokens: input,
            output_tokens: output,
            cached_input_tokens: part(self.cached, input),
            cache_write_tokens: part(self.written.map(|written| written.saturating_sub(written_1h)), input),
            cache_write_1h_tokens: part(self.written_1h, input),
            reasoning_tokens: part(self.reasoning, output),
            service_tier: self.tier.clone(),
        })
    }

    fn written_in_all(&self) -> u64 {
        self.written.max(self.written_1h).unwrap_or(0)
    }
}

/// A picked usage, if it is an object.
fn object(value: Option<&[u8]>) -> Option<Value> {
    serde_json::from_slice::<Value>(value?).ok().filter(Value::is_object)
}

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
            let value = value.as_deref();
            match path {
                USAGE => drop(object(value).map(|usage| self.counts.merge(&usage))),
                TIER => self.counts.set_tier(value.and_then(|tier| serde_json::from_slice(tier).ok()).as_ref()),
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
            let value = value.as_deref();
            match path {
                USAGE | RESPONSE_USAGE | MESSAGE_USAGE => {
                    if let Some(usage) = object(value) {
                        self.counts.merge(&usage);
                        event.has_usage |= path == USAGE;
                    }
                }
                TYPE => event.kind = value.and_then(|kind| serde_json::from_slice(kind).ok()),
                CHOICES => event.has_no_choices = value == Some(b"[]"),
                TIER | RESPONSE_TIER => {
                    self.counts.set_tier(value.and_then(|tier| serde_json::from_slice(tier).ok()).as_ref());
                }
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
