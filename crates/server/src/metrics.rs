//! Prometheus metrics. Handles are created in advance, so that counting needs no lookup and no allocation.
//!
//! Each server has its own recorder, so that several in one process stay apart. Other crates record through the
//! `metrics` facade into one recorder of the process; `/metrics` shows both.

mod calls;
mod catalogue;
mod denials;
mod fullness;
mod node;
mod quotas;
mod seconds;

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use earmark_admission::{ClusterStatus, CompleteAnswer, LimitFullness, Stats, register_expired};
use earmark_core::{LimitKey, NamespaceName};
use metrics::{Counter, Gauge, Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use tonic::Code;

use crate::answer::WRITE_CODES;
use crate::auth::{AuthMetrics, QueueMetrics};
use crate::decisions::DecisionCounters;
use crate::http::ROUTES;
use crate::log_rate::LINE_KINDS;
use calls::Calls;
use denials::Denials;
use quotas::NamespaceQuotas;
use seconds::Seconds;

const METADATA: Metadata<'static> = Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

const HTTP_SECONDS: &str = "earmark_http_request_seconds";
/// Bucket bounds of batch sizes, in events.
const BATCH_SIZES: [f64; 14] =
    [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0];

/// The HTTP statuses of responses. Any other counts as the last one.
const STATUSES: [u16; 13] = [200, 400, 401, 402, 403, 404, 405, 408, 409, 413, 429, 503, 500];

/// The outcome of a reserve or an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserved {
    Allowed,
    Denied,
    InvalidRequest,
    UnknownLimitKey,
    LimitDecreasing,
    LimitPaused,
    InsufficientCredit,
    AccountNotFound,
    LeaseExpired,
    QuotaExceeded,
    Overloaded,
    BackendError,
    RefusedByPolicy,
}

const RESERVED: [(Reserved, &str); 13] = [
    (Reserved::Allowed, "allowed"),
    (Reserved::Denied, "denied"),
    (Reserved::InvalidRequest, "invalid_request"),
    (Reserved::UnknownLimitKey, "unknown_limit_key"),
    (Reserved::LimitDecreasing, "limit_decreasing"),
    (Reserved::LimitPaused, "limit_paused"),
    (Reserved::InsufficientCredit, "insufficient_credit"),
    (Reserved::AccountNotFound, "account_not_found"),
    (Reserved::LeaseExpired, "lease_expired"),
    (Reserved::QuotaExceeded, "quota_exceeded"),
    (Reserved::Overloaded, "overloaded"),
    (Reserved::BackendError, "backend_error"),
    (Reserved::RefusedByPolicy, "refused_by_policy"),
];

/// The reason why a limit denied a reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The limit is full.
    Capacity,
    /// Its account has too little credit or cannot pay.
    Credit,
    /// The limit is not enforced and would have denied it.
    Shadow,
}

/// The outcome of a complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completed {
    Reconciled,
    Unknown,
    InvalidRequest,
    QuotaExceeded,
    Overloaded,
    BackendError,
}

const COMPLETED: [(Completed, &str); 6] = [
    (Completed::Reconciled, "reconciled"),
    (Completed::Unknown, "unknown"),
    (Completed::InvalidRequest, "invalid_request"),
    (Completed::QuotaExceeded, "quota_exceeded"),
    (Completed::Overloaded, "overloaded"),
    (Completed::BackendError, "backend_error"),
];

const FAILED_LOGINS: &str = "earmark_failed_logins_total";
const WAITING: &str = "earmark_requests_waiting";
const WAITED: &str = "earmark_requests_waited_total";

const EVENT_STREAMS: &str = "earmark_event_streams";
const DROPPED_EVENTS: &str = "earmark_events_dropped_total";

/// The metrics of one server.
pub(crate) struct Metrics {
    recorder: PrometheusRecorder,
    reserved: [Counter; RESERVED.len()],
    extended: [Counter; RESERVED.len()],
    completed: [Counter; COMPLETED.len()],
    overage_reserved: Counter,
    overage_debt: Counter,
    overage_dropped: Counter,
    credit_paid: Counter,
    credit_debt: Counter,
    credit_uncollected: Counter,
    writes: [Counter; WRITE_CODES.len()],
    committed: Counter,
    denials: Denials,
    /// One per route, one for requests without a route, and one for the console.
    routes: Vec<Served>,
    calls: Calls,
    gauges: Gauges,
    connections: AtomicUsize,
    streams: AtomicUsize,
    stream_requests: Counter,
    refused: Counter,
    evicted: Counter,
}

/// Gauges that the backend reads for each scrape.
#[derive(Default)]
pub(crate) struct BackendGauges {
    pub(crate) quotas: Vec<NamespaceQuotas>,
    pub(crate) fullness: Vec<LimitFullness>,
}

struct Served {
    label: &'static str,
    seconds: Seconds,
    /// Created with the first response of its status, so that `/metrics` has no zeros.
    statuses: [OnceLock<Counter>; STATUSES.len()],
}

struct Gauges {
    connections: Gauge,
    streams: Gauge,
    queue_depth: Gauge,
    remembered_leases: Gauge,
    debt: Gauge,
    limits: Gauge,
    decreasing_limits: Gauge,
    paused_limits: Gauge,
    expiry_waiting: Gauge,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        let recorder = recorder();
        catalogue::describe(&recorder);
        let counter = |name, label, value| counter(&recorder, name, label, value);
        let gauge = |name| recorder.register_gauge(&Key::from_static_name(name), &METADATA);
        let labels = ROUTES.iter().map(|route| route.label()).chain(["unmatched", "console"]);
        Metrics {
            reserved: RESERVED.map(|(_, outcome)| counter("earmark_reserves_total", "outcome", outcome)),
            extended: RESERVED.map(|(_, outcome)| counter("earmark_extensions_total", "outcome", outcome)),
            completed: COMPLETED.map(|(_, outcome)| counter("earmark_completes_total", "outcome", outcome)),
            overage_reserved: counter("earmark_overage_total", "how", "reserved"),
            overage_debt: counter("earmark_overage_total", "how", "debt"),
            overage_dropped: counter("earmark_overage_total", "how", "dropped"),
            credit_paid: counter("earmark_credit_settled_total", "how", "paid"),
            credit_debt: counter("earmark_credit_settled_total", "how", "debt"),
            credit_uncollected: counter("earmark_credit_settled_total", "how", "uncollected"),
            writes: WRITE_CODES.map(|code| counter("earmark_writes_total", "code", code)),
            committed: counter("earmark_writes_total", "code", "success"),
            denials: Denials::default(),
            routes: labels.map(Served::new).collect(),
            calls: Calls::new(),
            gauges: Gauges {
                connections: gauge("earmark_connections"),
                streams: gauge("earmark_lease_streams"),
                queue_depth: gauge("earmark_queue_depth"),
                remembered_leases: gauge("earmark_remembered_leases"),
                debt: gauge("earmark_debt"),
                limits: gauge("earmark_limits"),
                decreasing_limits: gauge("earmark_decreasing_limits"),
                paused_limits: gauge("earmark_paused_limits"),
                expiry_waiting: gauge("earmark_expiry_waiting"),
            },
            connections: AtomicUsize::new(0),
            streams: AtomicUsize::new(0),
            stream_requests: recorder
                .register_counter(&Key::from_static_name("earmark_lease_stream_requests_total"), &METADATA),
            refused: recorder.register_counter(&Key::from_static_name("earmark_connections_refused_total"), &METADATA),
            evicted: recorder.register_counter(&Key::from_static_name("earmark_connections_evicted_total"), &METADATA),
            recorder,
        }
    }

    pub(crate) fn auth(&self) -> AuthMetrics {
        let counter = |name| self.recorder.register_counter(&Key::from_static_name(name), &METADATA);
        let waiting = self.recorder.register_gauge(&Key::from_static_name(WAITING), &METADATA);
        let queue = QueueMetrics { waiting, waited: counter(WAITED) };
        AuthMetrics { failed_logins: counter(FAILED_LOGINS), queue }
    }

    /// The counters of the decision log.
    pub(crate) fn decisions(&self) -> DecisionCounters {
        let counter = |name| self.recorder.register_counter(&Key::from_static_name(name), &METADATA);
        DecisionCounters {
            dropped: counter("earmark_decisions_dropped_total"),
            expired_leases: counter("earmark_expired_leases_total"),
        }
    }

    /// The gauge of open event streams, and the counter of events that slow readers lost.
    pub(crate) fn event_streams(&self) -> (Gauge, Counter) {
        let streams = self.recorder.register_gauge(&Key::from_static_name(EVENT_STREAMS), &METADATA);
        (streams, self.recorder.register_counter(&Key::from_static_name(DROPPED_EVENTS), &METADATA))
    }

    /// Counters of log lines that were not written.
    pub(crate) fn dropped_lines(&self) -> [Counter; LINE_KINDS.len()] {
        LINE_KINDS.map(|(_, kind, _)| counter(&self.recorder, "earmark_log_lines_dropped_total", "kind", kind))
    }

    pub(crate) fn reserved(&self, outcome: Reserved) {
        if let Some(counter) = self.reserved.get(outcome as usize) {
            counter.increment(1);
        }
    }

    pub(crate) fn extended(&self, outcome: Reserved) {
        if let Some(counter) = self.extended.get(outcome as usize) {
            counter.increment(1);
        }
    }

    /// Counts denials by limit. The keys of a template share its series, so that they cannot push out those of defined
    /// limits.
    pub(crate) fn denied_by(
        &self,
        namespace: &NamespaceName,
        keys: &[LimitKey],
        reason: Reason,
        template_of: impl Fn(&LimitKey) -> Option<LimitKey>,
    ) {
        for key in keys {
            if !self.denials.count_known(namespace, key, reason) {
                self.denials.count(namespace, template_of(key).as_ref().unwrap_or(key), reason);
            }
        }
    }

    /// Counts a write by its error code; `None` is success.
    pub(crate) fn written(&self, code: Option<&str>) {
        let counter = match code {
            // A code missing in the table is a bug, and counts as the last one.
            Some(code) => {
                let index = WRITE_CODES.iter().position(|known| *known == code);
                &self.writes[index.unwrap_or(WRITE_CODES.len() - 1)]
            }
            None => &self.committed,
        };
        counter.increment(1);
    }

    pub(crate) fn completed(&self, outcome: Completed) {
        if let Some(counter) = self.completed.get(outcome as usize) {
            counter.increment(1);
        }
    }

    /// Counts overage, and the credit that a lease cost.
    pub(crate) fn settled(&self, answer: &CompleteAnswer) {
        for (counter, amount) in [
            (&self.overage_reserved, answer.overage_reserved),
            (&self.overage_debt, answer.overage_debt),
            (&self.overage_dropped, answer.overage_dropped),
            (&self.credit_paid, answer.credit_paid),
            (&self.credit_debt, answer.credit_debt),
            (&self.credit_uncollected, answer.credit_uncollected),
        ] {
            if amount > 0 {
                counter.increment(amount);
            }
        }
    }

    /// Counts a response of a route, by its index in the table.
    pub(crate) fn served(&self, route_index: usize, status: StatusCode, took: Duration) {
        let Some(served) = self.routes.get(route_index) else { return };
        served.seconds.record(took);
        let at = STATUSES.iter().position(|code| *code == status.as_u16()).unwrap_or(STATUSES.len() - 1);
        let make = || {
            let labels =
                vec![Label::from_static_parts("route", served.label), Label::new("status", STATUSES[at].to_string())];
            self.recorder.register_counter(&Key::from_parts("earmark_http_requests_total", labels), &METADATA)
        };
        served.statuses[at].get_or_init(make).increment(1);
    }

    /// Counts a gRPC call of a method, by its index in the table.
    pub(crate) fn called(&self, method_index: usize, code: Code, took: Duration) {
        self.calls.count(&self.recorder, method_index, code, took);
    }

    pub(crate) fn connection_opened(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn connection_closed(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn stream_opened(&self) {
        self.streams.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn stream_closed(&self) {
        self.streams.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn stream_requests(&self, count: u64) {
        self.stream_requests.increment(count);
    }

    pub(crate) fn connection_refused(&self) {
        self.refused.increment(1);
    }

    pub(crate) fn connections_evicted(&self, count: u64) {
        self.evicted.increment(count);
    }

    /// All metrics in the Prometheus text format.
    pub(crate) fn render(&self, stats: &Stats, gauges: &BackendGauges, cluster: Option<&ClusterStatus>) -> String {
        self.set_gauges(stats);
        self.text(Some(stats.limits), gauges, cluster)
    }

    fn set_gauges(&self, stats: &Stats) {
        let gauges = &self.gauges;
        gauges.streams.set(self.streams.load(Ordering::Relaxed) as f64);
        gauges.connections.set(self.connections.load(Ordering::Relaxed) as f64);
        gauges.queue_depth.set(stats.queue_depth as f64);
        if let Some(live) = stats.live_leases {
            let key = Key::from_static_name("earmark_live_leases");
            self.recorder.register_gauge(&key, &METADATA).set(live as f64);
        }
        gauges.remembered_leases.set(stats.remembered_leases as f64);
        gauges.debt.set(stats.debt as f64);
        gauges.limits.set(stats.limits as f64);
        gauges.decreasing_limits.set(stats.decreasing_limits as f64);
        gauges.paused_limits.set(stats.paused_limits as f64);
        gauges.expiry_waiting.set(f64::from(u8::from(stats.is_expiry_waiting)));
    }

    /// All series as they are. `limits` is the number of defined limits, if it was counted.
    fn text(&self, limits: Option<usize>, gauges: &BackendGauges, cluster: Option<&ClusterStatus>) -> String {
        let mut text = self.recorder.handle().render();
        let routes = self.routes.iter().map(|served| (served.label, &served.seconds));
        seconds::render(&mut text, HTTP_SECONDS, "route", routes);
        self.calls.render(&mut text);
        self.denials.render(limits, &mut text);
        if let Some(facade) = facade() {
            text.push_str(&facade.render());
        }
        fullness::gauges(&gauges.fullness, &mut text);
        quotas::gauges(&gauges.quotas, &mut text);
        text.push_str(&cluster.map(node::lags).unwrap_or_default());
        catalogue::describe_absent(&mut text);
        text
    }

    /// The series of one namespace. Totals of the server are not among them: they tell about other namespaces,
    /// and counting them reads every limit.
    pub(crate) fn render_for(&self, gauges: &BackendGauges, namespace: &NamespaceName) -> String {
        let (text, own) = (self.text(None, gauges, None), format!("namespace=\"{namespace}\""));
        let series = |line: &str| line.split_once('{').map(|(name, _)| name.to_owned());
        let names: BTreeSet<String> = text.lines().filter(|line| line.contains(&own)).filter_map(series).collect();
        let is_shown = |line: &&str| match line.strip_prefix("# ") {
            Some(about) => about.split(' ').nth(1).is_some_and(|name| names.contains(name)),
            None => line.contains(&own),
        };
        text.lines().filter(is_shown).flat_map(|line| [line, "\n"]).collect()
    }

    /// Aggregates recorded samples. Without regular calls they accumulate until the next scrape.
    pub(crate) fn upkeep(&self) {
        self.recorder.handle().run_upkeep();
        if let Some(facade) = facade() {
            facade.run_upkeep();
        }
    }
}

impl Served {
    fn new(label: &'static str) -> Served {
        Served { label, seconds: Seconds::default(), statuses: Default::default() }
    }
}

fn counter(recorder: &PrometheusRecorder, name: &'static str, label: &'static str, value: &str) -> Counter {
    let key = Key::from_parts(name, vec![Label::new(label, value.to_owned())]);
    recorder.register_counter(&key, &METADATA)
}

fn recorder() -> PrometheusRecorder {
    let with_buckets = |builder: PrometheusBuilder, name: &str, buckets: &[f64]| {
        builder.set_buckets_for_metric(Matcher::Full(name.into()), buckets).ok()
    };
    // Only an empty list of buckets is an error.
    let builder = with_buckets(PrometheusBuilder::new(), "earmark_batch_size", &BATCH_SIZES);
    let builder = node::HISTOGRAMS.iter().fold(builder, |builder, name| with_buckets(builder?, name, &node::SECONDS));
    builder.unwrap_or_default().build_recorder()
}

static FACADE: OnceLock<Option<PrometheusHandle>> = OnceLock::new();

/// Installs the recorder of the `metrics` facade, so that `/metrics` shows the metrics of other crates. Call it before
/// opening a backend: handles created earlier record nothing. Further calls do nothing, and a recorder that the program
/// has installed stays.
pub fn install_metrics() {
    facade();
}

fn facade() -> Option<&'static PrometheusHandle> {
    let install = || {
        let recorder = recorder();
        catalogue::describe(&recorder);
        let handle = recorder.handle();
        metrics::set_global_recorder(recorder).ok()?;
        register_expired();
        Some(handle)
    };
    FACADE.get_or_init(install).as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_has_its_own_label() {
        for (index, (outcome, _)) in RESERVED.iter().enumerate() {
            assert_eq!(*outcome as usize, index);
        }
        for (index, (outcome, _)) in COMPLETED.iter().enumerate() {
            assert_eq!(*outcome as usize, index);
        }
        let metrics = Metrics::new();
        metrics.reserved(Reserved::LeaseExpired);
        metrics.extended(Reserved::Denied);
        metrics.completed(Completed::Unknown);
        let text = metrics.render(&Stats::default(), &BackendGauges::default(), None);
        assert!(text.contains("earmark_reserves_total{outcome=\"lease_expired\"} 1\n"), "{text}");
        assert!(text.contains("earmark_extensions_total{outcome=\"denied\"} 1\n"), "{text}");
        assert!(text.contains("earmark_completes_total{outcome=\"unknown\"} 1\n"), "{text}");
        assert!(text.contains("earmark_reserves_total{outcome=\"allowed\"} 0\n"), "{text}");
    }

    #[test]
    fn gauges_show_the_stats_of_the_backend() {
        let stats = Stats {
            live_leases: Some(1),
            remembered_leases: 2,
            limits: 3,
            decreasing_limits: 4,
            paused_limits: 7,
            debt: u128::from(u64::MAX) + 1,
            is_expiry_waiting: true,
            queue_depth: 6,
        };
        let text = Metrics::new().render(&stats, &BackendGauges::default(), None);
        for line in [
            "earmark_live_leases 1\n",
            "earmark_remembered_leases 2\n",
            "earmark_limits 3\n",
            "earmark_decreasing_limits 4\n",
            "earmark_paused_limits 7\n",
            "earmark_debt 18446744073709552000\n",
            "earmark_expiry_waiting 1\n",
            "earmark_queue_depth 6\n",
            "earmark_connections 0\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }

    /// With limits on TigerBeetle no node knows all leases, and `earmark_live_leases 0` was shown.
    #[test]
    fn a_gauge_that_the_backend_does_not_know_is_absent() {
        let text =
            Metrics::new().render(&Stats { live_leases: None, ..Stats::default() }, &BackendGauges::default(), None);
        assert!(!text.contains("\nearmark_live_leases "), "{text}");
    }

    #[test]
    fn an_unknown_status_counts_as_500() {
        let metrics = Metrics::new();
        metrics.served(0, StatusCode::IM_A_TEAPOT, Duration::from_micros(70));
        let text = metrics.render(&Stats::default(), &BackendGauges::default(), None);
        assert!(text.contains("earmark_http_requests_total{route=\"reserve\",status=\"500\"} 1\n"), "{text}");
        assert!(text.contains("earmark_http_request_seconds_bucket{route=\"reserve\",le=\"0.0001\"} 1\n"), "{text}");
    }
}
