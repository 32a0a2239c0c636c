//! Changes of a body in place. All other bytes stay as they came.

use std::ops::Range;

use bytes::Bytes;

use super::{Bound, CallBody, StreamOptions};

/// Replacements in a body, in order, without overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Splices(pub(super) Vec<(Range<usize>, Vec<u8>)>);

impl Splices {
    /// Whether the body is sent as it came.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The body with the replacements, in pieces. Those of the body share its memory.
    #[must_use]
    pub fn pieces(&self, body: &Bytes) -> Vec<Bytes> {
        let between = |range: Range<usize>| match body.get(range.clone()) {
            Some(_) => body.slice(range),
            None => Bytes::new(),
        };
        let mut pieces = Vec::with_capacity(self.0.len().saturating_mul(2).saturating_add(1));
        let mut at = 0;
        for (range, with) in &self.0 {
            pieces.push(between(at..range.start));
            pieces.push(Bytes::copy_from_slice(with));
            at = range.end;
        }
        pieces.push(between(at..body.len()));
        pieces.retain(|piece| !piece.is_empty());
        pieces
    }

    /// The body with the replacements, as one.
    #[must_use]
    pub fn apply(&self, body: &Bytes) -> Bytes {
        self.pieces(body).concat().into()
    }
}

pub(super) fn splices(call: &CallBody, bound: &Bound, upstream_model: &str) -> Splices {
    const USAGE: &str = "\"include_usage\":true";
    let mut splices: Vec<(Range<usize>, Vec<u8>)> = Vec::new();
    // A body has a model, so a member follows what is inserted behind the opening brace.
    let mut at_open = String::new();
    if let Some(cap) = bound.inserted_cap {
        match call.caps.iter().find(|existing| existing.field == cap.field) {
            Some(null) => splices.push((null.at.clone(), cap.tokens.to_string().into_bytes())),
            None => at_open = format!("\"{}\":{},", cap.field, cap.tokens),
        }
    }
    if call.asks_for_usage() && !call.include_usage_asked {
        match &call.stream_options {
            StreamOptions::Absent => at_open.push_str(&format!("\"stream_options\":{{{USAGE}}},")),
            StreamOptions::Null(at) => splices.push((at.clone(), format!("{{{USAGE}}}").into_bytes())),
            StreamOptions::Object { include_usage_at: Some(at), .. } => splices.push((at.clone(), b"true".to_vec())),
            StreamOptions::Object { open, is_empty, include_usage_at: None } => {
                let comma = if *is_empty { "" } else { "," };
                splices.push((*open..*open, format!("{USAGE}{comma}").into_bytes()));
            }
        }
    }
    if call.model != upstream_model {
        let model = serde_json::Value::from(upstream_model).to_string();
        splices.push((call.model_at.clone(), model.into_bytes()));
    }
    if !at_open.is_empty() {
        splices.push((call.open..call.open, at_open.into_bytes()));
    }
    splices.sort_by_key(|(range, _)| range.start);
    Splices(splices)
}
