//! Prometheus metrics of the gateway. A handle is made with the first sample of its labels and kept, so that counting
//! allocates nothing.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use earmark_client::CallCompleted;
use metrics::{Counter, Histogram, Key, Label, Level, Metadata, Recorder, SharedString, Unit};
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
    const ALL: [SettledBy; 4] = [SettledBy::Usage, SettledBy::Bound, SettledBy::Released, SettledBy::Recovered];

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

fn key(name: &'static str, labels: &[(&'static str, &str)]) -> Key {
    let labels: Vec<Label> = labels.iter().map(|(name, value)| Label::new(*name, (*value).to_owned())).collect();
    Key::from_parts(name, labels)
}

fn counter(recorder: &PrometheusRecorder, name: &'static str, labels: &[(&'static str, &str)]) -> Counter {
    recorder.register_counter(&key(name, labels), &METADATA)
}

/// The kinds of tokens.
const KINDS: [&str; 5] = ["input", "output", "cached_input", "cache_write", "reasoning"];

/// Handles by a label. Labels are names of the configuration, so there are few.
struct Handles<K, V>(RwLock<BTreeMap<K, Arc<V>>>);

impl<K, V> Default for Handles<K, V> {
    fn default() -> Handles<K, V> {
        Handles(RwLock::default())
    }
}

impl<K: Ord, V: Default> Handles<K, V> {
    /// The handle of a label, which is new with its first sample.
    fn of<Q: Ord + ToOwned<Owned = K> + ?Sized>(&self, label: &Q) -> Arc<V>
    where
        K: Borrow<Q>,
    {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner).get(label).cloned();
        known.unwrap_or_else(|| {
            let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(label.to_owned()).or_default())
        })
    }
}

/// The counters of one model of one provider.
#[derive(Default)]
struct TargetCounters {
    tokens: [OnceLock<Counter>; KINDS.len()],
    cost: OnceLock<Counter>,
}

/// The metrics of one gateway.
pub(crate) struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    /// By endpoint and status.
    requests: Handles<(&'static str, u16), OnceLock<Counter>>,
    /// By provider.
    first_byte: Handles<String, OnceLock<Histogram>>,
    settled: [Counter; SettledBy::ALL.len()],
    /// By model, then by provider.
    targets: Handles<String, Handles<String, TargetCounters>>,
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
        let settled = SettledBy::ALL.map(|by| counter(&recorder, SETTLED, &[("by", by.name())]));
        Metrics {
            recorder,
            handle,
            requests: Handles::default(),
            first_byte: Handles::default(),
            settled,
            targets: Handles::default(),
        }
    }

    fn counter(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Counter {
        counter(&self.recorder, name, labels)
    }

    fn set(&self, name: &'static str, labels: &[(&'static str, &str)], to: usize) {
        self.recorder.register_gauge(&key(name, labels), &METADATA).set(to as f64);
    }

    pub(crate) fn request(&self, endpoint: &'static str, status: u16) {
        let new = || self.counter(REQUESTS, &[("endpoint", endpoint), ("status", &status.to_string())]);
        self.requests.of(&(endpoint, status)).get_or_init(new).increment(1);
    }

    pub(crate) fn first_byte(&self, provider: &str, after: Duration) {
        let new = || self.recorder.register_histogram(&key(FIRST_BYTE, &[("provider", provider)]), &METADATA);
        self.first_byte.of(provider).get_or_init(new).record(after.as_secs_f64());
    }

    pub(crate) fn paused(&self, provider: &str, is_ok: bool) {
        let result = if is_ok { "ok" } else { "failed" };
        self.counter(PAUSES, &[("provider", provider), ("result", result)]).increment(1);
    }

    /// Counts a settled call with its tokens and its cost.
    pub(crate) fn settled(&self, by: SettledBy, call: &OpenCall, end: &End, completed: Option<&CallCompleted>) {
        self.settled[by as usize].increment(1);
        let attribute = |name| call.attributes.get(name).map_or("", String::as_str);
        let (model, provider) = (attribute("model"), attribute("provider"));
        let target = self.targets.of(model).of(provider);
        if let End::Used(usage) = end {
            let tokens = [
                Some(usage.input_tokens),
                Some(usage.output_tokens),
                usage.cached_input_tokens,
                usage.cache_write_tokens,
                usage.reasoning_tokens,
            ];
            for ((tokens, kind), counter) in tokens.into_iter().zip(KINDS).zip(&target.tokens) {
                let Some(tokens) = tokens else { continue };
                let new = || self.counter(TOKENS, &[("model", model), ("provider", provider), ("kind", kind)]);
                counter.get_or_init(new).increment(tokens);
            }
        }
        if let Some(cost) = completed.and_then(|completed| completed.cost) {
            let new = || self.counter(COST, &[("model", model), ("provider", provider)]);
            target.cost.get_or_init(new).increment(u64::try_from(cost).unwrap_or(u64::MAX));
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
