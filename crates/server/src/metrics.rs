//! What is counted. Every handle is made beforehand, so that counting costs no look-up and no memory.
//!
//! A server has its own recorder, so that several in one process do not mix. What other crates record
//! through the `metrics` facade goes to one recorder of the process; `/metrics` shows both.

mod calls;
mod denials;
mod node;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use earmark_admission::{ClusterStatus, CompleteAnswer, Stats};
use earmark_core::{LimitKey, NamespaceName};
use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use tonic::Code;

use crate::answer::WRITE_CODES;
use crate::door::{DoorCounts, Waits};
use crate::http::ROUTES;
use calls::Calls;
use denials::Denials;

const METADATA: Metadata<'static> = Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

/// Upper ends of the buckets for the time a request takes.
const SECONDS: [f64; 16] = [
    0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0,
];
/// Upper ends of the buckets for the size of a batch.
const BATCH_SIZES: [f64; 14] =
    [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0];

/// The statuses that are answered; others are counted as the last.
const STATUSES: [u16; 13] = [200, 400, 401, 402, 403, 404, 405, 408, 409, 413, 429, 503, 500];

/// How a reserve came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserved {
    Allowed,
    Denied,
    InvalidRequest,
    UnknownLimitKey,
    LimitDecreasing,
    InsufficientCredit,
    LeaseExpired,
    Overloaded,
    BackendError,
}

const RESERVED: [(Reserved, &str); 9] = [
    (Reserved::Allowed, "allowed"),
    (Reserved::Denied, "denied"),
    (Reserved::InvalidRequest, "invalid_request"),
    (Reserved::UnknownLimitKey, "unknown_limit_key"),
    (Reserved::LimitDecreasing, "limit_decreasing"),
    (Reserved::InsufficientCredit, "insufficient_credit"),
    (Reserved::LeaseExpired, "lease_expired"),
    (Reserved::Overloaded, "overloaded"),
    (Reserved::BackendError, "backend_error"),
];

/// Why a limit stood in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// It is full.
    Capacity,
    /// Its account has not enough, or cannot pay.
    Credit,
}

/// How a complete came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completed {
    Reconciled,
    Unknown,
    InvalidRequest,
    Overloaded,
    BackendError,
}

const COMPLETED: [(Completed, &str); 5] = [
    (Completed::Reconciled, "reconciled"),
    (Completed::Unknown, "unknown"),
    (Completed::InvalidRequest, "invalid_request"),
    (Completed::Overloaded, "overloaded"),
    (Completed::BackendError, "backend_error"),
];

const FAILED_LOGINS: &str = "earmark_failed_logins_total";
const WAITING: &str = "earmark_requests_waiting";
const WAITED: &str = "earmark_requests_waited_total";

const DESCRIPTIONS: [(&str, &str); 19] = [
    (FAILED_LOGINS, "Requests whose credentials were missing or not valid."),
    (WAITING, "Requests that wait because as many of the same caller are worked on as may be."),
    (WAITED, "Requests that ever waited for that."),
    (
        "earmark_reserves_total",
        "Reserves, by how they came out. A batch that is malformed counts as one invalid_request.",
    ),
    (
        "earmark_denials_total",
        "Denials, once for each limit that stood in the way, by whether it was full or its account had too \
         little credit. The first 1000 keys of each reason are told apart until the server restarts; any \
         others are counted together as \"all others\".",
    ),
    (
        "earmark_completes_total",
        "Completes, by how they came out. A batch that is malformed counts as one invalid_request.",
    ),
    ("earmark_overage_total", "Usage beyond what was reserved, by what became of it; without credit."),
    (
        "earmark_credit_settled_total",
        "Credit that leases said they cost, in minor units of whatever asset: paid, owed as debt, or collected \
         from nobody, since the account had too little and keeps no debt, or is closed.",
    ),
    (
        "earmark_writes_total",
        "Sequenced writes, by the code of their answer; a retry counts again, and a malformed one is INVALID.",
    ),
    (
        "earmark_http_requests_total",
        "HTTP requests, by route and status; without what is no HTTP or has too large a head.",
    ),
    ("earmark_http_request_seconds", "The time from a request's head to its answer, by route."),
    ("earmark_connections", "Connections that are open."),
    ("earmark_connections_refused_total", "Connections beyond the allowed, which were closed."),
    ("earmark_queue_depth", "Requests that wait to be submitted."),
    ("earmark_live_leases", "Leases that hold something, or ran out without being completed."),
    ("earmark_remembered_leases", "Leases that are remembered, resolved ones included."),
    ("earmark_debt", "Usage that was never reserved, of all limits."),
    ("earmark_limits", "Limits that are in force or going down."),
    ("earmark_decreasing_limits", "Limits that are going down."),
];

/// What a server counts.
pub(crate) struct Metrics {
    recorder: PrometheusRecorder,
    reserved: [Counter; RESERVED.len()],
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
    credit_denials: Denials,
    /// One for each route, and one for what matches none.
    routes: Vec<Served>,
    calls: Calls,
    gauges: Gauges,
    connections: AtomicUsize,
    refused: Counter,
}

struct Served {
    label: &'static str,
    seconds: Histogram,
    /// Made at the first answer of its status, so that `/metrics` is not full of zeros.
    statuses: [OnceLock<Counter>; STATUSES.len()],
}

struct Gauges {
    connections: Gauge,
    queue_depth: Gauge,
    remembered_leases: Gauge,
    debt: Gauge,
    limits: Gauge,
    decreasing_limits: Gauge,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        let recorder = recorder();
        for (name, about) in DESCRIPTIONS {
            // The kind of metric does not matter to this recorder.
            recorder.describe_counter(name.into(), None, about.into());
        }
        let counter = |name, label, value| counter(&recorder, name, label, value);
        let gauge = |name| recorder.register_gauge(&Key::from_static_name(name), &METADATA);
        let labels = ROUTES.iter().map(|route| route.label()).chain(["unmatched"]);
        Metrics {
            reserved: RESERVED.map(|(_, outcome)| counter("earmark_reserves_total", "outcome", outcome)),
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
            credit_denials: Denials::default(),
            routes: labels.map(|label| Served::new(&recorder, label)).collect(),
            calls: Calls::new(&recorder),
            gauges: Gauges {
                connections: gauge("earmark_connections"),
                queue_depth: gauge("earmark_queue_depth"),
                remembered_leases: gauge("earmark_remembered_leases"),
                debt: gauge("earmark_debt"),
                limits: gauge("earmark_limits"),
                decreasing_limits: gauge("earmark_decreasing_limits"),
            },
            connections: AtomicUsize::new(0),
            refused: recorder
                .register_counter(&Key::from_static_name("earmark_connections_refused_total"), &METADATA),
            recorder,
        }
    }

    /// What is counted at the door.
    pub(crate) fn door(&self) -> DoorCounts {
        let counter = |name| self.recorder.register_counter(&Key::from_static_name(name), &METADATA);
        let now = self.recorder.register_gauge(&Key::from_static_name(WAITING), &METADATA);
        DoorCounts { failed: counter(FAILED_LOGINS), waits: Waits { now, ever: counter(WAITED) } }
    }

    pub(crate) fn reserved(&self, outcome: Reserved) {
        if let Some(counter) = self.reserved.get(outcome as usize) {
            counter.increment(1);
        }
    }

    pub(crate) fn denied_by(&self, namespace: &NamespaceName, keys: &[LimitKey], reason: Reason) {
        let (denials, reason) = match reason {
            Reason::Capacity => (&self.denials, "capacity"),
            Reason::Credit => (&self.credit_denials, "credit"),
        };
        let make = |key: &str| {
            let mut labels =
                vec![Label::new("key", key.to_owned()), Label::from_static_parts("reason", reason)];
            // What is not told apart by key is not by namespace either.
            if key != denials::OTHER {
                labels.insert(0, Label::new("namespace", namespace.to_string()));
            }
            self.recorder.register_counter(&Key::from_parts("earmark_denials_total", labels), &METADATA)
        };
        keys.iter().for_each(|key| denials.count(namespace, key, make));
    }

    /// A write was answered: with a code, or with success.
    pub(crate) fn written(&self, code: Option<&str>) {
        let counter = match code {
            // A code that is not in the table would be a mistake here, and is counted as the last.
            Some(code) => {
                let place = WRITE_CODES.iter().position(|known| *known == code);
                &self.writes[place.unwrap_or(WRITE_CODES.len() - 1)]
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

    /// What became of usage beyond what was reserved, and of what leases cost.
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

    /// An answer left. `place` is that of the route in the table.
    pub(crate) fn served(&self, place: usize, status: StatusCode, took: Duration) {
        let Some(served) = self.routes.get(place) else { return };
        served.seconds.record(took.as_secs_f64());
        let at = STATUSES.iter().position(|code| *code == status.as_u16()).unwrap_or(STATUSES.len() - 1);
        let make = || {
            let labels = vec![
                Label::from_static_parts("route", served.label),
                Label::new("status", STATUSES[at].to_string()),
            ];
            self.recorder.register_counter(&Key::from_parts("earmark_http_requests_total", labels), &METADATA)
        };
        served.statuses[at].get_or_init(make).increment(1);
    }

    /// A call was answered. `place` is that of the method in the table.
    pub(crate) fn called(&self, place: usize, code: Code, took: Duration) {
        self.calls.count(&self.recorder, place, code, took);
    }

    pub(crate) fn connection_opened(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn connection_closed(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn connection_refused(&self) {
        self.refused.increment(1);
    }

    /// Everything, as Prometheus reads it.
    pub(crate) fn render(&self, stats: &Stats, cluster: Option<&ClusterStatus>) -> String {
        let gauges = &self.gauges;
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
        let mut text = self.recorder.handle().render();
        if let Some(facade) = facade() {
            text.push_str(&facade.render());
        }
        text.push_str(&cluster.map(node::lags).unwrap_or_default());
        text
    }

    /// Everything that a namespace may see: labels of others are none of its business.
    pub(crate) fn render_for(
        &self,
        stats: &Stats,
        cluster: Option<&ClusterStatus>,
        namespace: &NamespaceName,
    ) -> String {
        let (label, own) = ("namespace=\"", format!("namespace=\"{namespace}\""));
        let text = self.render(stats, cluster);
        let is_shown = |line: &&str| line.starts_with('#') || !line.contains(label) || line.contains(&own);
        text.lines().filter(is_shown).flat_map(|line| [line, "\n"]).collect()
    }

    /// Sums up what was recorded since the last time. To be called every now and then, or what nobody
    /// scrapes piles up.
    pub(crate) fn upkeep(&self) {
        self.recorder.handle().run_upkeep();
        if let Some(facade) = facade() {
            facade.run_upkeep();
        }
    }
}

impl Served {
    fn new(recorder: &PrometheusRecorder, label: &'static str) -> Served {
        let key =
            Key::from_parts("earmark_http_request_seconds", vec![Label::from_static_parts("route", label)]);
        Served { label, seconds: recorder.register_histogram(&key, &METADATA), statuses: Default::default() }
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
    // Only an empty list of buckets is refused, and none is.
    let builder = with_buckets(PrometheusBuilder::new(), "earmark_http_request_seconds", &SECONDS)
        .and_then(|builder| with_buckets(builder, calls::SECONDS, &SECONDS))
        .and_then(|builder| with_buckets(builder, "earmark_batch_size", &BATCH_SIZES));
    let builder =
        node::HISTOGRAMS.iter().fold(builder, |builder, name| with_buckets(builder?, name, &node::SECONDS));
    builder.unwrap_or_default().build_recorder()
}

const STUCK_SAGAS: &str =
    "Sagas of credit in a database that cannot be read or finished; the log names them.";

static FACADE: OnceLock<Option<PrometheusHandle>> = OnceLock::new();

/// Lets `/metrics` show what other crates record through the `metrics` facade. To be called before
/// a backend is opened, since handles that were made earlier record nothing; calling it again does nothing.
/// Where the program has installed a recorder of its own, that one keeps what they record.
pub fn install_metrics() {
    facade();
}

fn facade() -> Option<&'static PrometheusHandle> {
    let install = || {
        let recorder = recorder();
        recorder.describe_histogram("earmark_batch_size".into(), None, "Events per batch.".into());
        recorder.describe_gauge("earmark_credit_stuck_sagas".into(), None, STUCK_SAGAS.into());
        node::describe(&recorder);
        let handle = recorder.handle();
        metrics::set_global_recorder(recorder).ok().map(|()| handle)
    };
    FACADE.get_or_init(install).as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_is_counted_under_its_own_name() {
        for (place, (outcome, _)) in RESERVED.iter().enumerate() {
            assert_eq!(*outcome as usize, place);
        }
        for (place, (outcome, _)) in COMPLETED.iter().enumerate() {
            assert_eq!(*outcome as usize, place);
        }
        let metrics = Metrics::new();
        metrics.reserved(Reserved::LeaseExpired);
        metrics.completed(Completed::Unknown);
        let text = metrics.render(&Stats::default(), None);
        assert!(text.contains("earmark_reserves_total{outcome=\"lease_expired\"} 1\n"), "{text}");
        assert!(text.contains("earmark_completes_total{outcome=\"unknown\"} 1\n"), "{text}");
        assert!(text.contains("earmark_reserves_total{outcome=\"allowed\"} 0\n"), "{text}");
    }

    #[test]
    fn gauges_show_what_the_backend_says() {
        let stats = Stats {
            live_leases: Some(1),
            remembered_leases: 2,
            limits: 3,
            decreasing_limits: 4,
            debt: u128::from(u64::MAX) + 1,
            queue_depth: 6,
        };
        let text = Metrics::new().render(&stats, None);
        for line in [
            "earmark_live_leases 1\n",
            "earmark_remembered_leases 2\n",
            "earmark_limits 3\n",
            "earmark_decreasing_limits 4\n",
            "earmark_debt 18446744073709552000\n",
            "earmark_queue_depth 6\n",
            "earmark_connections 0\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }

    /// With limits on a ledger elsewhere nobody here knows of all leases, and `earmark_live_leases 0` was shown.
    #[test]
    fn what_the_backend_does_not_know_is_left_out_and_not_0() {
        let text = Metrics::new().render(&Stats { live_leases: None, ..Stats::default() }, None);
        assert!(!text.contains("earmark_live_leases "), "{text}");
    }

    #[test]
    fn a_status_nobody_thought_of_is_counted_as_the_worst() {
        let metrics = Metrics::new();
        metrics.served(0, StatusCode::IM_A_TEAPOT, Duration::from_micros(70));
        let text = metrics.render(&Stats::default(), None);
        assert!(text.contains("earmark_http_requests_total{route=\"reserve\",status=\"500\"} 1\n"), "{text}");
        assert!(
            text.contains("earmark_http_request_seconds_bucket{route=\"reserve\",le=\"0.0001\"} 1\n"),
            "{text}"
        );
    }
}
