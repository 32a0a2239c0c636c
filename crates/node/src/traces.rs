//! Contexts of sampled requests: with an entry in memory, and between nodes.

use bytes::Bytes;
use earmark_trace::{Span, TRACES_MAX, TraceContext, is_on};
use openraft::EntryPayload;

use crate::types::{Traces, Types};

/// The contexts of the spans below which other spans of a batch stand.
pub(crate) fn of_spans(spans: &[Span]) -> Traces {
    (!spans.is_empty()).then(|| spans.iter().map(Span::context).collect())
}

/// One span for each sampled request of a batch, as far as they are named.
pub(crate) fn spans(name: &'static str, parents: impl Iterator<Item = TraceContext>) -> Vec<Span> {
    parents.take(TRACES_MAX).map(|parent| Span::below(name, parent)).collect()
}

/// The contexts of an entry.
pub(crate) fn of_payload(payload: &EntryPayload<Types>) -> &[TraceContext] {
    match payload {
        EntryPayload::Normal(batch) => batch.traces.as_deref().unwrap_or_default(),
        EntryPayload::Blank | EntryPayload::Membership(_) => &[],
    }
}

pub(crate) fn to_wire(traces: &[TraceContext]) -> Vec<Bytes> {
    traces.iter().map(|context| Bytes::copy_from_slice(&context.to_bytes())).collect()
}

/// Contexts from another node. Without tracing they are dropped; malformed ones too, because they decide nothing.
pub(crate) fn from_wire(traces: &[Bytes]) -> Traces {
    if traces.is_empty() || !is_on() {
        return None;
    }
    Some(traces.iter().take(TRACES_MAX).filter_map(|bytes| TraceContext::from_bytes(bytes)).collect())
}
