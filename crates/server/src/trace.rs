//! Spans of requests, over HTTP and gRPC.

use axum::http::HeaderMap;
use earmark_trace::{Kind, Span, TRACEPARENT, TraceContext};

/// Begins the span of a request, if it is sampled: as its header `traceparent` says, or by the ratio.
pub(crate) fn begin(headers: &HeaderMap, name: impl FnOnce() -> String) -> Option<Span> {
    if !earmark_trace::is_on() {
        return None;
    }
    let parent = parent(headers);
    // Most requests are not sampled and need no name.
    let mut span = Span::of_request("", Kind::Server, parent)?;
    span.rename(name());
    Some(span)
}

/// The context in the header `traceparent`.
pub(crate) fn parent(headers: &HeaderMap) -> Option<TraceContext> {
    headers.get(TRACEPARENT).and_then(|header| TraceContext::parse(header.as_bytes()))
}
