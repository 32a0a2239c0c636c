//! The list of all metrics: name, kind and meaning. `/metrics` describes each of them, also before its first sample, so
//! that dashboards and alerts can be checked against the list of a running server.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use metrics::Recorder;
use metrics_exporter_prometheus::PrometheusRecorder;

/// A metric.
#[derive(Clone, Copy, Debug)]
pub(super) struct Metric {
    pub(super) name: &'static str,
    /// Its Prometheus type.
    kind: &'static str,
    /// The HELP text.
    about: &'static str,
}

const fn counter(name: &'static str, about: &'static str) -> Metric {
    Metric { name, kind: "counter", about }
}

const fn gauge(name: &'static str, about: &'static str) -> Metric {
    Metric { name, kind: "gauge", about }
}

const fn histogram(name: &'static str, about: &'static str) -> Metric {
    Metric { name, kind: "histogram", about }
}

/// The metrics of a server.
pub(super) const SERVER: [Metric; 37] = [
    counter(
        "earmark_decisions_dropped_total",
        "Decisions that the decision log dropped: its queue was full, or its file could not be written.",
    ),
    counter("earmark_failed_logins_total", "Requests whose credentials were missing or not valid."),
    gauge("earmark_requests_waiting", "Requests that wait because their caller is at its concurrency limit."),
    counter(
        "earmark_requests_waited_total",
        "Requests that have waited because their caller was at its concurrency limit.",
    ),
    counter("earmark_reserves_total", "Reserves by outcome. A malformed batch counts as one invalid_request."),
    counter("earmark_extensions_total", "Extensions by outcome. A malformed batch counts as one invalid_request."),
    counter("earmark_completes_total", "Completes by outcome. A malformed batch counts as one invalid_request."),
    counter(
        "earmark_overage_total",
        "Usage beyond the reservation, by treatment: reserved, recorded as debt, or dropped. Credit is not included.",
    ),
    counter(
        "earmark_credit_settled_total",
        "Credit that leases cost, in minor units of all assets: paid, owed as debt, or uncollected because the account \
         had too little and allows no debt, or is closed.",
    ),
    counter(
        "earmark_writes_total",
        "Sequenced writes by answer code. Retries count again; malformed writes are INVALID.",
    ),
    counter(
        "earmark_http_requests_total",
        "HTTP requests by route and status. Malformed HTTP and oversized heads are not included.",
    ),
    histogram("earmark_http_request_seconds", "Time from the request head to the response, by route."),
    gauge("earmark_connections", "Open connections."),
    gauge("earmark_event_streams", "Open streams of `GET /v1/events`."),
    counter("earmark_events_dropped_total", "Events that readers of `GET /v1/events` were too slow for."),
    gauge("earmark_lease_streams", "Open gRPC streams `Leases`."),
    counter("earmark_lease_stream_requests_total", "Requests that arrived on gRPC streams `Leases`."),
    counter("earmark_connections_refused_total", "Connections closed at once because too many were open."),
    counter(
        "earmark_connections_evicted_total",
        "Connections without valid credentials that were closed to make room.",
    ),
    counter("earmark_log_lines_dropped_total", "Log lines about failed requests that were counted instead, by kind."),
    gauge("earmark_queue_depth", "Requests queued for the backend."),
    gauge("earmark_live_leases", "Leases that neither completed nor timed out."),
    gauge("earmark_remembered_leases", "Leases in memory, completed ones included."),
    gauge(
        "earmark_debt",
        "Debt of all limits: usage that was never reserved, and credit that accounts of defined credit limits owe. Credit in a database is not included.",
    ),
    gauge("earmark_limits", "Limits, those that are decreasing included."),
    gauge("earmark_decreasing_limits", "Limits that are decreasing."),
    gauge("earmark_paused_limits", "Limits that are paused."),
    gauge(
        "earmark_expiry_waiting",
        "1 while credit does not expire, because log time and wall time differ by more than 5 minutes.",
    ),
    counter("earmark_grpc_requests_total", "gRPC calls by method and status. A stream counts when it begins."),
    histogram("earmark_grpc_request_seconds", "Time from the request head to the response, by method."),
    counter(
        "earmark_expired_leases_total",
        "Leases that ran out before they were completed. Leases kept in TigerBeetle are not included. Every node of a \
     cluster counts all of them.",
    ),
    counter(
        "earmark_denials_total",
        "Denials, once for each limit that denied, by reason: the limit was full, or its account had too little credit. \
     Every defined limit has its own series; the keys of a template share one.",
    ),
    counter(
        "earmark_would_deny_total",
        "Allowed reserves that a limit that is not enforced would have denied, by limit.",
    ),
    gauge(
        "earmark_limit_fullness",
        "Reserved share of the capacity of each defined limit: 1 is full. The fullest 10,000 limits, without derived ones, \
     limits in TigerBeetle and credit in a database.",
    ),
    gauge(
        "earmark_limit_capacity",
        "Capacity in force of each defined limit; of a credit limit, the balance of its account. The limits of \
     earmark_limit_fullness.",
    ),
    gauge("earmark_quota", "Quota of a namespace, by kind."),
    gauge("earmark_quota_used", "Use of a quota, by namespace and kind."),
];

/// The metrics of a process, which other crates record through the `metrics` facade.
pub(super) const PROCESS: [Metric; 6] = [
    counter("earmark_trace_spans_dropped_total", "Spans dropped because the queue of the exporter was full."),
    counter("earmark_trace_spans_exported_total", "Spans that the trace collector has taken."),
    counter("earmark_trace_spans_failed_total", "Spans lost because the trace collector did not take them."),
    histogram("earmark_batch_size", "Events per batch."),
    counter(
        "earmark_expired_holds_total",
        "Credit holds that ran out without a complete: returned in full, paid the used part that extensions \
     reported, or charged in full.",
    ),
    gauge(
        "earmark_credit_stuck_sagas",
        "Credit sagas in a database that cannot be read or finished; the log names them.",
    ),
];

/// The metrics of a node.
pub(super) const NODE: [Metric; 18] = [
    gauge("earmark_node_disk_free_bytes", "Free space on the data disk."),
    gauge("earmark_node_disk_reserve_bytes", "Space that a leader keeps free on its data disk (--disk-reserve)."),
    gauge("earmark_node_disk_is_short", "1 if the data disk has less free space than its reserve, else 0."),
    gauge("earmark_node_is_leader", "1 if this node is the leader, else 0."),
    gauge("earmark_node_term", "Raft term of the latest vote. It rises with every election."),
    gauge("earmark_node_last_log_index", "Index of the last entry in the Raft log of this node."),
    gauge("earmark_node_committed_index", "Index of the last entry that this node knows to be committed."),
    gauge("earmark_node_applied_index", "Index of the last entry that this node has applied."),
    gauge("earmark_node_snapshot_index", "Index of the last entry in the newest snapshot; 0 without one."),
    histogram("earmark_node_fsync_seconds", "Time of a flush of the Raft log to disk."),
    histogram("earmark_node_apply_seconds", "Time to apply a batch of committed entries."),
    counter(
        "earmark_node_refused_peer_calls_total",
        "Peer calls that were refused: wrong certificate, or not a member.",
    ),
    gauge("earmark_node_log_bytes", "Size of the Raft log on disk."),
    gauge("earmark_node_journal_bytes", "Size of the journal on disk."),
    gauge("earmark_node_journal_records", "Records in the journal."),
    gauge("earmark_node_snapshot_bytes", "Size of the newest snapshot."),
    histogram("earmark_node_snapshot_seconds", "Time to write a snapshot."),
    gauge("earmark_node_peer_lag", "Entries that another node is behind; only the leader reports it."),
];

/// Every metric.
fn all() -> impl Iterator<Item = Metric> {
    SERVER.into_iter().chain(PROCESS).chain(NODE)
}

/// Tells a recorder the HELP texts of all metrics.
pub(super) fn describe(recorder: &PrometheusRecorder) {
    for Metric { name, about, .. } in all() {
        // This recorder ignores the kind of metric here.
        recorder.describe_counter(name.into(), None, about.into());
    }
}

/// The HELP and TYPE lines of a metric.
pub(super) fn header(text: &mut String, name: &str) {
    if let Some(Metric { kind, about, .. }) = all().find(|metric| metric.name == name) {
        _ = writeln!(text, "# HELP {name} {about}\n# TYPE {name} {kind}");
    }
}

/// Describes the metrics without samples.
pub(super) fn describe_absent(text: &mut String) {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let present: BTreeSet<String> = types.map(str::to_owned).collect();
    for Metric { name, .. } in all().filter(|metric| !present.contains(metric.name)) {
        header(text, name);
    }
}

#[cfg(test)]
mod tests {
    use earmark_admission::Stats;

    use super::*;
    use crate::metrics::{BackendGauges, Metrics};

    #[test]
    fn every_metric_is_described_once_before_its_first_sample() {
        let text = Metrics::new().render(&Stats::default(), &BackendGauges::default(), None);
        for Metric { name, kind, about } in all() {
            assert_eq!(text.matches(&format!("# HELP {name} {about}\n")).count(), 1, "{name}");
            assert_eq!(text.matches(&format!("# TYPE {name} {kind}\n")).count(), 1, "{name}");
        }
    }

    #[test]
    fn every_help_text_is_a_sentence() {
        for Metric { name, about, .. } in all() {
            assert!(
                about.ends_with('.') && about.starts_with(|c: char| c.is_uppercase() || c.is_numeric() || c == 'g')
            );
            assert!(!about.contains('\n') && !about.contains("  "), "{name}: {about}");
        }
    }
}
