//! The body of a request: its scan, its bounds, and the bytes that are changed in it.
//!
//! ```
//! use bytes::Bytes;
//! use earmark_gateway::Endpoint;
//! use earmark_gateway::body::{CallBody, ModelRules};
//!
//! let body = Bytes::from_static(br#"{"model":"fast","messages":[{"role":"user","content":"hi"}]}"#);
//! let call = CallBody::scan(Endpoint::Chat, &body)?;
//! let rules = ModelRules { max_output_tokens: Some(100), ..ModelRules::default() };
//! let bound = call.bound(&body, &rules)?;
//! assert_eq!((bound.input_tokens_max, bound.output_tokens_max), (60 + 512, 100));
//! let sent = call.splices(&bound, "gpt-4o").apply(&body);
//! assert_eq!(
//!     sent,
//!     r#"{"max_completion_tokens":100,"model":"gpt-4o","messages":[{"role":"user","content":"hi"}]}"#
//! );
//! # Ok::<(), earmark_gateway::body::BodyRefusal>(())
//! ```

mod bound;
pub mod fields;
mod refusal;
mod scan;
mod splice;
#[cfg(test)]
mod tests;
mod tokens;

use std::ops::Range;

use crate::api::Endpoint;

pub use bound::{Allowance, Bound, CapField, Estimate, INPUT_OVERHEAD_TOKENS, InsertedCap, ModelRules};
pub use refusal::BodyRefusal;
pub use splice::Splices;
pub use tokens::{Encoding, TOKENIZED_BYTES_MAX};

/// A scanned body. It holds positions in the body, not the body.
#[derive(Clone, Debug)]
pub struct CallBody {
    /// The endpoint that the body was sent to.
    pub endpoint: Endpoint,
    /// The model that the client asks for.
    pub model: String,
    /// Whether the answer is a stream.
    pub stream: bool,
    /// Whether the client asked for the usage in its stream. If not, the chunk that has only the usage is removed.
    pub include_usage_asked: bool,
    /// The user that the body names: `user` or `safety_identifier`, or `metadata.user_id`. `None` too if it is not
    /// usable as an attribute.
    pub user: Option<String>,
    body_bytes: usize,
    media: u32,
    media_bytes: usize,
    caps: Vec<Cap>,
    thinking_budget: u32,
    choices: u32,
    prompts: usize,
    prediction_bytes: usize,
    findings: Vec<Finding>,
    /// The offset behind the opening brace.
    open: usize,
    model_at: Range<usize>,
    stream_options: StreamOptions,
}

/// A cap on the output, or null.
#[derive(Clone, Debug)]
struct Cap {
    field: &'static str,
    tokens: Option<u32>,
    at: Range<usize>,
}

/// Something without a bound, or that refers to stored state. Only a configuration can allow it.
#[derive(Clone, Debug)]
struct Finding {
    name: String,
    field: String,
    count: u32,
}

/// The field `stream_options`.
#[derive(Clone, Debug)]
enum StreamOptions {
    Absent,
    Null(Range<usize>),
    Object { open: usize, is_empty: bool, include_usage_at: Option<Range<usize>> },
}

impl CallBody {
    /// Scans a body once, from its first to its last byte.
    ///
    /// # Errors
    /// The body is not strict JSON, or a field that the gateway reads has the wrong type.
    pub fn scan(endpoint: Endpoint, body: &[u8]) -> Result<CallBody, BodyRefusal> {
        scan::scan(endpoint, body)
    }

    /// The bounds of the call at a model.
    ///
    /// # Errors
    /// The call has no bound, or needs something that the model's configuration does not allow.
    pub fn bound(&self, body: &[u8], rules: &ModelRules) -> Result<Bound, BodyRefusal> {
        bound::bound(self, body, rules)
    }

    /// The changes to the body for a target.
    #[must_use]
    pub fn splices(&self, bound: &Bound, upstream_model: &str) -> Splices {
        splice::splices(self, bound, upstream_model)
    }

    /// Whether the chunk with the usage must be removed from the stream again.
    #[must_use]
    pub fn removes_usage_chunk(&self) -> bool {
        self.asks_for_usage() && !self.include_usage_asked
    }

    /// Whether the gateway sets `stream_options.include_usage`.
    fn asks_for_usage(&self) -> bool {
        self.stream && matches!(self.endpoint, Endpoint::Chat | Endpoint::Completions)
    }

    const fn empty(endpoint: Endpoint, body_bytes: usize) -> CallBody {
        CallBody {
            endpoint,
            model: String::new(),
            stream: false,
            include_usage_asked: false,
            user: None,
            body_bytes,
            media: 0,
            media_bytes: 0,
            caps: Vec::new(),
            thinking_budget: 0,
            choices: 1,
            prompts: 1,
            prediction_bytes: 0,
            findings: Vec::new(),
            open: 0,
            model_at: 0..0,
            stream_options: StreamOptions::Absent,
        }
    }
}
