//! Traces: the W3C context of a request, its sampled spans, and their export by OTLP.
//!
//! Tracing is off until [`install`] is called. A request begins with [`Span::of_request`], which decides by the caller's
//! context or by the ratio. Only a sampled request has a [`Span`]; for any other the cost is one comparison. The context
//! of the span travels with the task ([`within`], [`current`], [`step`]), with the commands of a batch, and between
//! processes in the header `traceparent`.
//!
//! A finished span goes into a bounded queue. A span that finds it full is dropped and counted; no request ever waits.

mod context;
mod current;
#[cfg(feature = "otlp")]
pub mod otlp;
mod recorder;
mod span;

pub use context::{CONTEXT_BYTES, TRACEPARENT, TRACESTATE, TraceContext};
pub use current::{InQueue, carried, current, step, within};
pub use recorder::{DROPPED, EXPORTED, FAILED, QUEUE_MAX, SpanQueue, TRACES_MAX, install, is_on, next_context};
pub use span::{Kind, Span, SpanRecord, Value, record_each};
