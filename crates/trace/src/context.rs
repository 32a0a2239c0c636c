//! The W3C trace context.

/// The header of the context, over HTTP and gRPC.
pub const TRACEPARENT: &str = "traceparent";
/// The header of what other tracing systems add to the context. It is passed on as it came.
pub const TRACESTATE: &str = "tracestate";
/// Bytes of a context between nodes: trace id and span id.
pub const CONTEXT_BYTES: usize = 24;

/// A span in a trace, as other spans and other processes name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The id of the trace; not 0.
    pub trace: u128,
    /// The id of the span; not 0.
    pub span: u64,
    /// Whether the spans of this trace are recorded.
    pub is_sampled: bool,
}

impl TraceContext {
    /// Reads a header `traceparent`. A header that W3C Trace Context does not allow is ignored, as it demands.
    ///
    /// ```
    /// use earmark_trace::TraceContext;
    ///
    /// let header = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    /// let context = TraceContext::parse(header.as_bytes()).unwrap();
    /// assert!(context.is_sampled);
    /// assert_eq!(context.header(), header);
    /// ```
    #[must_use]
    pub fn parse(header: &[u8]) -> Option<TraceContext> {
        let text = std::str::from_utf8(header.trim_ascii()).ok()?;
        let mut parts = text.split('-');
        let mut part = |length: usize| {
            let is_hex = |part: &&str| part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            parts.next().filter(|part| part.len() == length).filter(is_hex)
        };
        let (version, trace, span, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
        // A later version may append parts; version 00 may not, and ff is no version.
        if version == "ff" || version == "00" && parts.next().is_some() {
            return None;
        }
        let trace = u128::from_str_radix(trace, 16).ok().filter(|trace| *trace != 0)?;
        let span = u64::from_str_radix(span, 16).ok().filter(|span| *span != 0)?;
        let flags = u8::from_str_radix(flags, 16).ok()?;
        Some(TraceContext { trace, span, is_sampled: flags & 1 == 1 })
    }

    /// The header `traceparent`.
    #[must_use]
    pub fn header(&self) -> String {
        format!("00-{:032x}-{:016x}-{:02x}", self.trace, self.span, u8::from(self.is_sampled))
    }

    /// The bytes of a sampled context between nodes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; CONTEXT_BYTES] {
        let mut bytes = [0; CONTEXT_BYTES];
        let (trace, span) = bytes.split_at_mut(16);
        trace.copy_from_slice(&self.trace.to_be_bytes());
        span.copy_from_slice(&self.span.to_be_bytes());
        bytes
    }

    /// A sampled context that another node sent.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<TraceContext> {
        let (trace, span) = bytes.split_first_chunk::<16>()?;
        let span = <[u8; 8]>::try_from(span).ok()?;
        let (trace, span) = (u128::from_be_bytes(*trace), u64::from_be_bytes(span));
        (trace != 0 && span != 0).then_some(TraceContext { trace, span, is_sampled: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_headers_that_the_standard_allows_are_read() {
        let (trace, span) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
        for (header, is_sampled) in [
            (format!("00-{trace}-{span}-00"), Some(false)),
            (format!("00-{trace}-{span}-03"), Some(true)),
            (format!(" 00-{trace}-{span}-01 "), Some(true)),
            (format!("01-{trace}-{span}-01-more"), Some(true)),
            (format!("00-{trace}-{span}-01-more"), None),
            (format!("ff-{trace}-{span}-01"), None),
            (format!("00-{}-{span}-01", "0".repeat(32)), None),
            (format!("00-{trace}-{}-01", "0".repeat(16)), None),
            (format!("00-{}-{span}-01", trace.to_uppercase()), None),
            (format!("00-{trace}-{span}"), None),
            (format!("00-{trace}-{span}-0+"), None),
            (String::new(), None),
        ] {
            let found = TraceContext::parse(header.as_bytes());
            assert_eq!(found.map(|context| context.is_sampled), is_sampled, "{header}");
        }
        assert_eq!(TraceContext::parse(&[0xff; 55]), None);
    }

    #[test]
    fn a_context_survives_the_way_to_another_node() {
        let context = TraceContext { trace: u128::MAX - 1, span: 7, is_sampled: true };
        assert_eq!(TraceContext::from_bytes(&context.to_bytes()), Some(context));
        for bytes in [&[0; CONTEXT_BYTES][..], &context.to_bytes()[1..], &[1; CONTEXT_BYTES + 1]] {
            assert_eq!(TraceContext::from_bytes(bytes), None);
        }
    }
}
