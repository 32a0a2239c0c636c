//! Prometheus metrics of the gateway.

use std::time::Duration;

use earmark_client::CallCompleted;
use metrics::{Key, Label, Level, Metadata, Recorder, SharedString, Unit};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use crate::open_calls::{End, OpenCall};

const METADATA: Metadata<'static> = Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

/// Bucket bounds of times, in seconds: from an answer out of a cache to a long reasoning.
const SECONDS: [f64; 14] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0, 600.0];

const REQUESTS: &str = "earmark_gateway_requests_total";
const FIRST_BYTE: &str = "earmark_gateway_first_byte_seconds";
const SETTLED: &str = "earmark_gateway_settled_total";
const TOKENS: &str = "earmark_gateway_tokens_total";
const COST: &str = "earmark_gateway_cost_total";
const PAUSES: &str = "earmark_gateway_pauses_total";
const OPEN: &str = "earmark_gateway_open_calls";
const WAITING: &str = "earmark_gateway_settlements_waiting";
const BUFFERED: &str = "earmark_gateway_buffered_bytes";
const CIRCUIT: &str = "earmark_gateway_circuit_open";
const DRAINS: &str = "earmark_gateway_drains";

const COUNTERS: [(&str, &str); 5] = [
    (REQUESTS, "Requests by endpoint and status."),
    (SETTLED, "Calls by the way they were settled: usage, bound, released, or recovered after a crash."),
    (TOKENS, "Tokens that calls paid for, by model, provider and kind. Calls settled by their bound are not included."),
    (COST, "Cost of settled calls in minor units, by model and provider."),
    (PAUSES, "Pauses of limits after a 429, by provider and result."),
];
const GAUGES: [(&str, &str); 5] = [
    (OPEN, "Calls that are not settled."),
    (WAITING, "Calls that wait for Earmark to settle them."),
    (BUFFERED, "Bytes in all buffers, of at most max_buffered_bytes."),
    (CIRCUIT, "Whether the circuit of an upstream is open: 1 or 0."),
    (DRAINS, "Answers that are read for clients that have gone, by upstream."),
];

const ABOUT_FIRST_BYTE: &str = "Time from the request to the first byte of the upstream's answer, by provider.";

/// The way that a call was settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SettledBy {
    /// Its usage.
    Usage,
    /// Its bound, because nobody knows its usage.
    Bound,
    /// Released: it was not made.
    Released,
    /// After a crash, from the folder of open calls.
    Recovered,
}

impl SettledBy {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            SettledBy::Usage => "usage",
            SettledBy::Bound => "bound",
            SettledBy::Released => "released",
            SettledBy::Recovered => "recovered",
        }
    }

    /// The way of a call that ended like this.
    pub(crate) const fn of(end: &End) -> SettledBy {
        match end {
            End::Used(_) => SettledBy::Usage,
            End::Done | End::Unknown => SettledBy::Bound,
            End::Refused => SettledBy::Released,
        }
    }
}

/// The metrics of one gateway.
pub(crate) struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        let matcher = Matcher::Full(FIRST_BYTE.to_owned());
        let builder = PrometheusBuilder::new();
        // The buckets are not empty, which is the only error.
        let builder = builder.set_buckets_for_metric(matcher, &SECONDS).unwrap_or_else(|_| PrometheusBuilder::new());
        let recorder = builder.build_recorder();
        for (name, text) in COUNTERS {
            recorder.describe_counter(name.into(), None, SharedString::const_str(text));
        }
        for (name, text) in GAUGES {
            recorder.describe_gauge(name.into(), None, SharedString::const_str(text));
        }
        recorder.describe_histogram(FIRST_BYTE.into(), Some(Unit::Seconds), SharedString::const_str(ABOUT_FIRST_BYTE));
        let handle = recorder.handle();
        let metrics = Metrics { recorder, handle };
        for by in [SettledBy::Usage, SettledBy::Bound, SettledBy::Released, SettledBy::Recovered] {
            metrics.count(SETTLED, &[("by", by.name())], 0);
        }
        metrics
    }

    fn key(name: &'static str, labels: &[(&'static str, &str)]) -> Key {
        let labels: Vec<Label> = labels.iter().map(|(name, value)| Label::new(*name, (*value).to_owned())).collect();
        Key::from_parts(name, labels)
    }

    fn count(&self, name: &'static str, labels: &[(&'static str, &str)], by: u64) {
        self.recorder.register_counter(&Metrics::key(name, labels), &METADATA).increment(by);
    }

    fn set(&self, name: &'static str, labels: &[(&'static str, &str)], to: usize) {
        self.recorder.register_gauge(&Metrics::key(name, labels), &METADATA).set(to as f64);
    }

    pub(crate) fn request(&self, endpoint: &str, status: u16) {
        self.count(REQUESTS, &[("endpoint", endpoint), ("status", &status.to_string())], 1);
    }

    pub(crate) fn first_byte(&self, provider: &str, after: Duration) {
        let key = Metrics::key(FIRST_BYTE, &[("provider", provider)]);
        self.recorder.register_histogram(&key, &METADATA).record(after.as_secs_f64());
    }

    pub(crate) fn paused(&self, provider: &str, is_ok: bool) {
        self.count(PAUSES, &[("provider", provider), ("result", if is_ok { "ok" } else { "failed" })], 1);
    }

    /// Counts a settled call with its tokens and its cost.
    pub(crate) fn settled(&self, by: SettledBy, call: &OpenCall, end: &End, completed: Option<&CallCompleted>) {
        self.count(SETTLED, &[("by", by.name())], 1);
        let attribute = |name| call.attributes.get(name).map_or("", String::as_str);
        let (model, provider) = (attribute("model"), attribute("provider"));
        if let End::Used(usage) = end {
            let kinds = [("input", usage.input_tokens), ("output", usage.output_tokens)];
            let parts = [
                ("cached_input", usage.cached_input_tokens),
                ("cache_write", usage.cache_write_tokens),
                ("reasoning", usage.reasoning_tokens),
            ];
            let parts = parts.into_iter().filter_map(|(kind, tokens)| Some((kind, tokens?)));
            for (kind, tokens) in kinds.into_iter().chain(parts) {
                self.count(TOKENS, &[("model", model), ("provider", provider), ("kind", kind)], tokens);
            }
        }
        if let Some(cost) = completed.and_then(|completed| completed.cost) {
            let cost = u64::try_from(cost).unwrap_or(u64::MAX);
            self.count(COST, &[("model", model), ("provider", provider)], cost);
        }
    }

    pub(crate) fn calls(&self, open: usize, waiting: usize, buffered_bytes: usize) {
        self.set(OPEN, &[], open);
        self.set(WAITING, &[], waiting);
        self.set(BUFFERED, &[], buffered_bytes);
    }

    pub(crate) fn upstream(&self, name: &str, is_open: bool, drains: usize) {
        self.set(CIRCUIT, &[("provider", name)], usize::from(is_open));
        self.set(DRAINS, &[("provider", name)], drains);
    }

    /// All metrics as text. Those without samples are described too, so that a dashboard can be checked against them.
    pub(crate) fn text(&self) -> String {
        let mut text = self.handle.render();
        let kinds = [(&COUNTERS[..], "counter"), (&GAUGES, "gauge"), (&[(FIRST_BYTE, ABOUT_FIRST_BYTE)], "histogram")];
        for (name, about, kind) in
            kinds.iter().flat_map(|(all, kind)| all.iter().map(|(name, about)| (*name, *about, *kind)))
        {
            if !text.contains(&format!("# TYPE {name} ")) {
                text += &format!("# HELP {name} {about}\n# TYPE {name} {kind}\n");
            }
        }
        text
    }

    /// Bounds the memory of the histograms.
    pub(crate) fn upkeep(&self) {
        self.handle.run_upkeep();
    }
}
