//! Spans as OTLP messages.

use earmark_proto::opentelemetry::proto::collector::trace::v1::ExportTraceServiceRequest;
use earmark_proto::opentelemetry::proto::common::v1::any_value::Value as AnyValueKind;
use earmark_proto::opentelemetry::proto::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use earmark_proto::opentelemetry::proto::resource::v1::Resource;
use earmark_proto::opentelemetry::proto::trace::v1::span::SpanKind;
use earmark_proto::opentelemetry::proto::trace::v1::status::StatusCode;
use earmark_proto::opentelemetry::proto::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};

use crate::span::{Kind, SpanRecord, Value};

pub(super) fn request(resource: &[(&'static str, String)], spans: Vec<SpanRecord>) -> ExportTraceServiceRequest {
    let attributes = resource.iter().map(|(name, value)| attribute(name, AnyValueKind::StringValue(value.clone())));
    let scope = InstrumentationScope { name: "earmark".into(), version: env!("CARGO_PKG_VERSION").into() };
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans: spans.into_iter().map(span).collect() }];
    let resource = Some(Resource { attributes: attributes.collect() });
    ExportTraceServiceRequest { resource_spans: vec![ResourceSpans { resource, scope_spans }] }
}

fn attribute(key: &str, value: AnyValueKind) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}

fn span(record: SpanRecord) -> Span {
    let SpanRecord { context, parent, name, kind, start_unix_ns, end_unix_ns, attributes, error } = record;
    let kind = match kind {
        Kind::Internal => SpanKind::Internal,
        Kind::Server => SpanKind::Server,
        Kind::Client => SpanKind::Client,
    };
    let attributes = attributes.into_iter().map(|(key, value)| match value {
        Value::Text(text) => attribute(key, AnyValueKind::StringValue(text.into_owned())),
        Value::Integer(number) => attribute(key, AnyValueKind::IntValue(number)),
    });
    Span {
        trace_id: context.trace.to_be_bytes().to_vec(),
        span_id: context.span.to_be_bytes().to_vec(),
        parent_span_id: parent.map(|parent| parent.to_be_bytes().to_vec()).unwrap_or_default(),
        name: name.into_owned(),
        kind: kind.into(),
        start_time_unix_nano: start_unix_ns,
        end_time_unix_nano: end_unix_ns,
        attributes: attributes.collect(),
        status: error.map(|message| Status { message, code: StatusCode::Error.into() }),
    }
}
