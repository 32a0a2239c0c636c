//! Spans of sampled requests.

use std::borrow::Cow;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::context::TraceContext;
use crate::recorder::{child, is_sampled, record};

/// The part that a span plays between processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Work inside one process.
    Internal,
    /// A request that was received.
    Server,
    /// A request that was sent.
    Client,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Text.
    Text(Cow<'static, str>),
    /// An integer.
    Integer(i64),
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Value {
        Value::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(Cow::Owned(text))
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Value {
        Value::Integer(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

/// A finished span.
#[derive(Clone, Debug, PartialEq)]
pub struct SpanRecord {
    /// Its own context.
    pub context: TraceContext,
    /// The id of its parent span. `None` for a root.
    pub parent: Option<u64>,
    /// Its name: the operation, without values.
    pub name: Cow<'static, str>,
    /// Its kind.
    pub kind: Kind,
    /// Nanoseconds since the epoch at its start.
    pub start_unix_ns: u64,
    /// Nanoseconds since the epoch at its end.
    pub end_unix_ns: u64,
    /// Attributes, by the names of OpenTelemetry's semantic conventions where they have one.
    pub attributes: Vec<(&'static str, Value)>,
    /// Why it failed. `None` if it did not.
    pub error: Option<String>,
}

fn unix_ns(time: SystemTime) -> u64 {
    u64::try_from(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
}

/// A span of a sampled request. It ends when it is dropped.
#[derive(Debug)]
pub struct Span(Option<Box<SpanRecord>>);

impl Span {
    /// Begins the span of a request that came with the context `parent`, if it is sampled.
    #[must_use]
    pub fn of_request(name: impl Into<Cow<'static, str>>, kind: Kind, parent: Option<TraceContext>) -> Option<Span> {
        is_sampled(parent.as_ref()).then(|| Span::of_context(name, kind, child(parent, true), parent))
    }

    /// Begins a span with a sampled context that [`next_context`](crate::next_context) has made.
    #[must_use]
    pub fn of_context(
        name: impl Into<Cow<'static, str>>,
        kind: Kind,
        context: TraceContext,
        parent: Option<TraceContext>,
    ) -> Span {
        Span::begin(name.into(), kind, context, parent, SystemTime::now())
    }

    /// Begins a span below a sampled one.
    #[must_use]
    pub fn below(name: &'static str, parent: TraceContext) -> Span {
        Span::below_since(name, parent, SystemTime::now())
    }

    /// A span below a sampled one that began at `since`.
    #[must_use]
    pub fn below_since(name: &'static str, parent: TraceContext, since: SystemTime) -> Span {
        Span::begin(name.into(), Kind::Internal, child(Some(parent), true), Some(parent), since)
    }

    fn begin(
        name: Cow<'static, str>,
        kind: Kind,
        context: TraceContext,
        parent: Option<TraceContext>,
        since: SystemTime,
    ) -> Span {
        Span(Some(Box::new(SpanRecord {
            context,
            parent: parent.map(|parent| parent.span),
            name,
            kind,
            start_unix_ns: unix_ns(since),
            end_unix_ns: 0,
            attributes: Vec::new(),
            error: None,
        })))
    }

    /// The context, for spans below this one.
    #[must_use]
    pub fn context(&self) -> TraceContext {
        let none = TraceContext { trace: 0, span: 0, is_sampled: false };
        self.0.as_ref().map_or(none, |span| span.context)
    }

    /// Gives the span another name.
    pub fn rename(&mut self, name: impl Into<Cow<'static, str>>) {
        if let Some(span) = &mut self.0 {
            span.name = name.into();
        }
    }

    /// Adds an attribute.
    pub fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        if let Some(span) = &mut self.0 {
            span.attributes.push((name, value.into()));
        }
    }

    /// Marks the span as failed.
    pub fn fail(&mut self, why: impl Into<String>) {
        if let Some(span) = &mut self.0 {
            span.error = Some(why.into());
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(mut span) = self.0.take() {
            span.end_unix_ns = unix_ns(SystemTime::now()).max(span.start_unix_ns);
            record(*span);
        }
    }
}

/// Records the same work once for each request that it was part of.
pub fn record_each(
    name: &'static str,
    parents: impl IntoIterator<Item = TraceContext>,
    since: SystemTime,
    attributes: &[(&'static str, u64)],
) {
    for parent in parents {
        let mut span = Span::below_since(name, parent, since);
        attributes.iter().for_each(|(name, value)| span.set(name, *value));
    }
}
