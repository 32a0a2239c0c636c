//! The trace of a call: its context to the server and to the upstream, and spans with the attributes `gen_ai.*`.

use earmark_client::core::LeaseId;
use earmark_trace::{Kind, Span, TRACEPARENT, TRACESTATE, TraceContext, current, next_context};
use hyper::Request;
use hyper::header::{HeaderMap, HeaderValue};

use super::CallTask;
use crate::body::Bound;
use crate::config::Target;
use crate::open_calls::End;

/// The operation of an endpoint, by the names of OpenTelemetry.
fn operation(name: &'static str) -> &'static str {
    match name {
        "completions" => "text_completion",
        "responses" | "messages" => "chat",
        other => other,
    }
}

impl CallTask {
    /// The context of the call, and its span if it is sampled. An unsampled context is passed on too, so that the next
    /// process does not sample either. Both are `None` while tracing is off.
    pub(super) fn begin_trace(&self) -> (Option<TraceContext>, Option<Span>) {
        let parent = parent(&self.received().headers);
        let context = next_context(parent);
        let span = context.filter(|context| context.is_sampled).map(|context| {
            let name = format!("POST {}", self.content.endpoint().path());
            let mut span = Span::of_context(name, Kind::Server, context, parent);
            span.set("gen_ai.operation.name", operation(self.content.endpoint().operation()));
            span.set("gen_ai.request.model", self.content.model().name.clone());
            span
        });
        (context, span)
    }

    /// Begins the span of the call at one target.
    pub(super) fn begin_attempt(&self, target: &Target, bound: &Bound) -> Option<Span> {
        let parent = current().filter(|context| context.is_sampled)?;
        let operation = operation(self.content.endpoint().operation());
        let mut span = Span::of_request(format!("{operation} {}", target.model), Kind::Client, Some(parent))?;
        span.set("gen_ai.operation.name", operation);
        span.set("gen_ai.provider.name", target.upstream.name.clone());
        span.set("gen_ai.request.model", target.model.clone());
        if bound.output_tokens_max > 0 {
            span.set("gen_ai.request.max_tokens", u64::from(bound.output_tokens_max));
        }
        Some(span)
    }
}

/// Ends the span of an attempt. The usage is that of the provider; a call that is settled by its bound has none.
pub(super) fn end_attempt(mut span: Span, lease: LeaseId, end: &End) {
    span.set("earmark.lease", lease.to_string());
    match end {
        End::Used(usage) => {
            span.set("gen_ai.usage.input_tokens", usage.input_tokens);
            span.set("gen_ai.usage.output_tokens", usage.output_tokens);
        }
        End::Refused => span.fail("the call was not made, or the provider refused it"),
        End::Unknown => span.fail("the provider gave no whole answer"),
        End::Done => {}
    }
}

impl CallTask {
    /// The request with the context, for the upstream. The client's `tracestate` goes with its own context only.
    pub(super) fn in_context<B>(&self, mut request: Request<B>, span: Option<&Span>) -> Request<B> {
        let Some(context) = span.map(Span::context).or_else(current) else { return request };
        let Ok(header) = HeaderValue::try_from(context.header()) else { return request };
        let received = self.received();
        request.headers_mut().insert(TRACEPARENT, header);
        if parent(&received.headers).is_some() {
            for state in received.headers.get_all(TRACESTATE) {
                request.headers_mut().append(TRACESTATE, state.clone());
            }
        }
        request
    }
}

/// The context in the header `traceparent`.
fn parent(headers: &HeaderMap) -> Option<TraceContext> {
    headers.get(TRACEPARENT).and_then(|header| TraceContext::parse(header.as_bytes()))
}
