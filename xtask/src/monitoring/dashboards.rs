//! The dashboards. A panel names its metrics; its expressions follow from their kinds, its description is their HELP
//! text.

use super::metrics::{Kind, Metrics};

/// A panel.
struct Panel {
    title: &'static str,
    /// The unit of Grafana.
    unit: &'static str,
    /// Metrics, each with the labels that it is shown by, separated by commas.
    metrics: &'static [(&'static str, &'static str)],
    /// Whether only the greatest series are shown.
    is_top: bool,
}

const fn panel(title: &'static str, unit: &'static str, metrics: &'static [(&'static str, &'static str)]) -> Panel {
    Panel { title, unit, metrics, is_top: false }
}

const fn top(title: &'static str, unit: &'static str, metrics: &'static [(&'static str, &'static str)]) -> Panel {
    Panel { title, unit, metrics, is_top: true }
}

type Row = (&'static str, &'static [Panel]);

/// Series of a panel that shows only the greatest.
const TOP: usize = 20;

const SERVICE: &[Row] = &[
    (
        "Decisions",
        &[
            panel("Reserves", "ops", &[("earmark_reserves_total", "outcome")]),
            panel("Completes", "ops", &[("earmark_completes_total", "outcome")]),
            panel("Extensions", "ops", &[("earmark_extensions_total", "outcome")]),
            top("Denials by limit", "ops", &[("earmark_denials_total", "namespace, key, reason")]),
            top("Would deny: limits that are not enforced", "ops", &[("earmark_would_deny_total", "namespace, key")]),
            panel("Overage", "short", &[("earmark_overage_total", "how")]),
        ],
    ),
    (
        "Limits and leases",
        &[
            top("Fullest limits", "percentunit", &[("earmark_limit_fullness", "namespace, key, kind")]),
            top("Capacity", "short", &[("earmark_limit_capacity", "namespace, key, kind")]),
            panel(
                "Limits",
                "short",
                &[("earmark_limits", ""), ("earmark_decreasing_limits", ""), ("earmark_paused_limits", "")],
            ),
            panel("Leases", "short", &[("earmark_live_leases", ""), ("earmark_remembered_leases", "")]),
            panel("Expired leases", "ops", &[("earmark_expired_leases_total", "instance")]),
            panel("Debt", "short", &[("earmark_debt", "")]),
            top("Quotas", "short", &[("earmark_quota_used", "namespace, kind"), ("earmark_quota", "namespace, kind")]),
        ],
    ),
    (
        "Credit",
        &[
            panel("Settled credit", "short", &[("earmark_credit_settled_total", "how")]),
            panel("Expired holds", "ops", &[("earmark_expired_holds_total", "credit")]),
            panel("Writes", "ops", &[("earmark_writes_total", "code")]),
            panel("Stuck sagas", "short", &[("earmark_credit_stuck_sagas", "instance")]),
            panel("Expiry that waits for the clocks", "short", &[("earmark_expiry_waiting", "instance")]),
        ],
    ),
    (
        "Requests",
        &[
            panel("HTTP requests", "reqps", &[("earmark_http_requests_total", "route, status")]),
            panel("HTTP latency", "s", &[("earmark_http_request_seconds", "route")]),
            panel("gRPC calls", "reqps", &[("earmark_grpc_requests_total", "method, code")]),
            panel("gRPC latency", "s", &[("earmark_grpc_request_seconds", "method")]),
            panel("Lease streams", "short", &[("earmark_lease_streams", "instance")]),
            panel("Requests on lease streams", "reqps", &[("earmark_lease_stream_requests_total", "instance")]),
            panel("Event streams", "short", &[("earmark_event_streams", "instance")]),
            panel("Queue", "short", &[("earmark_queue_depth", "instance")]),
            panel("Batch size", "short", &[("earmark_batch_size", "instance")]),
            panel("Connections", "short", &[("earmark_connections", "instance")]),
            panel(
                "Closed connections",
                "ops",
                &[("earmark_connections_refused_total", "instance"), ("earmark_connections_evicted_total", "instance")],
            ),
        ],
    ),
    (
        "Callers and logs",
        &[
            panel("Failed logins", "ops", &[("earmark_failed_logins_total", "instance")]),
            panel(
                "Requests that wait for their caller's others",
                "short",
                &[("earmark_requests_waiting", "instance"), ("earmark_requests_waited_total", "instance")],
            ),
            panel("Dropped decisions", "ops", &[("earmark_decisions_dropped_total", "instance")]),
            panel("Dropped events", "ops", &[("earmark_events_dropped_total", "instance")]),
            panel("Dropped log lines", "ops", &[("earmark_log_lines_dropped_total", "kind")]),
            panel(
                "Spans of traces",
                "ops",
                &[
                    ("earmark_trace_spans_exported_total", "instance"),
                    ("earmark_trace_spans_dropped_total", "instance"),
                    ("earmark_trace_spans_failed_total", "instance"),
                ],
            ),
        ],
    ),
    (
        "Gateway",
        &[
            panel("Requests", "reqps", &[("earmark_gateway_requests_total", "endpoint, status")]),
            panel("Time to the first byte", "s", &[("earmark_gateway_first_byte_seconds", "provider")]),
            panel("Tokens", "short", &[("earmark_gateway_tokens_total", "model, kind")]),
            panel("Cost", "short", &[("earmark_gateway_cost_total", "model, provider")]),
            panel("Settled calls", "ops", &[("earmark_gateway_settled_total", "by")]),
            panel(
                "Calls in flight",
                "short",
                &[
                    ("earmark_gateway_open_calls", "instance"),
                    ("earmark_gateway_settlements_waiting", "instance"),
                    ("earmark_gateway_drains", "provider"),
                ],
            ),
            panel("Buffers", "bytes", &[("earmark_gateway_buffered_bytes", "instance")]),
            panel("Open circuits", "short", &[("earmark_gateway_circuit_open", "instance, provider")]),
            panel("Pauses", "ops", &[("earmark_gateway_pauses_total", "provider, result")]),
        ],
    ),
];

const CLUSTER: &[Row] = &[
    (
        "Consensus",
        &[
            panel("Leader", "short", &[("earmark_node_is_leader", "instance")]),
            panel("Term", "short", &[("earmark_node_term", "instance")]),
            panel("Lag of the other nodes, in entries", "short", &[("earmark_node_peer_lag", "peer")]),
            panel("Refused peer calls", "ops", &[("earmark_node_refused_peer_calls_total", "instance")]),
            panel(
                "Log positions",
                "short",
                &[
                    ("earmark_node_last_log_index", "instance"),
                    ("earmark_node_committed_index", "instance"),
                    ("earmark_node_applied_index", "instance"),
                    ("earmark_node_snapshot_index", "instance"),
                ],
            ),
        ],
    ),
    (
        "Disk",
        &[
            panel("Flush of the Raft log", "s", &[("earmark_node_fsync_seconds", "instance")]),
            panel("Apply of a batch", "s", &[("earmark_node_apply_seconds", "instance")]),
            panel("Time to write a snapshot", "s", &[("earmark_node_snapshot_seconds", "instance")]),
            panel(
                "Free space",
                "bytes",
                &[("earmark_node_disk_free_bytes", "instance"), ("earmark_node_disk_reserve_bytes", "instance")],
            ),
            panel("Short of space", "short", &[("earmark_node_disk_is_short", "instance")]),
            panel(
                "Files",
                "bytes",
                &[
                    ("earmark_node_log_bytes", "instance"),
                    ("earmark_node_journal_bytes", "instance"),
                    ("earmark_node_snapshot_bytes", "instance"),
                ],
            ),
            panel("Records in the journal", "short", &[("earmark_node_journal_records", "instance")]),
        ],
    ),
];

/// Metrics that the dashboards miss, and metrics that they name and that do not exist.
pub(super) fn problems(metrics: &Metrics) -> Vec<String> {
    let shown = || panels().flat_map(|panel| panel.metrics).map(|(name, _)| *name);
    let unknown = shown().filter(|name| !metrics.0.contains_key(*name));
    let unknown = unknown.map(|name| format!("{name}: is on a dashboard, but no server has it"));
    let missing = metrics.0.keys().filter(|name| !shown().any(|shown| shown == *name));
    let missing =
        missing.map(|name| format!("{name}: is on no dashboard; add it to xtask/src/monitoring/dashboards.rs"));
    unknown.chain(missing).collect()
}

fn panels() -> impl Iterator<Item = &'static Panel> {
    SERVICE.iter().chain(CLUSTER).flat_map(|(_, panels)| *panels)
}

/// Every expression, with the variables of Grafana replaced.
pub(super) fn expressions(metrics: &Metrics) -> Vec<String> {
    let targets = panels().flat_map(|panel| targets(panel, metrics));
    targets.map(|(expression, _)| expression.replace("$job", ".*").replace("$__rate_interval", "5m")).collect()
}

/// The expressions of a panel with their legends.
fn targets(panel: &Panel, metrics: &Metrics) -> Vec<(String, String)> {
    let mut targets = Vec::new();
    for (name, labels) in panel.metrics {
        let Some(metric) = metrics.0.get(*name) else { continue };
        let by = |more: &str| match (*labels, more) {
            ("", "") => String::new(),
            ("", more) => format!(" by ({more})"),
            (labels, "") => format!(" by ({labels})"),
            (labels, more) => format!(" by ({more}, {labels})"),
        };
        let legend = labels.split(", ").filter(|label| !label.is_empty()).map(|label| format!("{{{{{label}}}}}"));
        let mut legend: Vec<String> = legend.collect();
        if panel.metrics.len() > 1 || legend.is_empty() {
            legend.insert(0, name.trim_start_matches("earmark_").to_owned());
        }
        let legend = legend.join(" ");
        let own = r#"{job=~"$job"}"#;
        match metric.kind {
            Kind::Counter => {
                targets.push((format!("sum{}(rate({name}{own}[$__rate_interval]))", by("")), legend));
            }
            Kind::Gauge => targets.push((format!("max{}({name}{own})", by("")), legend)),
            Kind::Histogram => {
                for (quantile, said) in [("0.5", "p50"), ("0.99", "p99")] {
                    let buckets = format!("sum{}(rate({name}_bucket{own}[$__rate_interval]))", by("le"));
                    targets.push((format!("histogram_quantile({quantile}, {buckets})"), format!("{said} {legend}")));
                }
            }
        }
    }
    if panel.is_top {
        targets.iter_mut().for_each(|(expression, _)| *expression = format!("topk({TOP}, {expression})"));
    }
    targets
}

pub(super) fn service(metrics: &Metrics) -> String {
    dashboard("earmark-service", "Earmark: service", SERVICE, metrics)
}

pub(super) fn cluster(metrics: &Metrics) -> String {
    dashboard("earmark-cluster", "Earmark: cluster", CLUSTER, metrics)
}

const PANEL_WIDTH: usize = 12;
const PANEL_HEIGHT: usize = 8;

fn dashboard(uid: &str, title: &str, rows: &[Row], metrics: &Metrics) -> String {
    let (mut items, mut id, mut y) = (Vec::new(), 0, 0);
    for (name, panels) in rows {
        id += 1;
        let place = format!(r#"{{"h": 1, "w": 24, "x": 0, "y": {y}}}"#);
        items.push(format!(
            "    {{\"id\": {id}, \"type\": \"row\", \"title\": {}, \"collapsed\": false, \"gridPos\": {place}, \"panels\": []}}",
            text(name)
        ));
        y += 1;
        for (index, panel) in panels.iter().enumerate() {
            id += 1;
            let (x, line) = ((index % 2) * PANEL_WIDTH, y + (index / 2) * PANEL_HEIGHT);
            items.push(timeseries(panel, id, (x, line), metrics));
        }
        y += panels.len().div_ceil(2) * PANEL_HEIGHT;
    }
    format!(
        r#"{{
  "uid": {uid},
  "title": {title},
  "tags": ["earmark"],
  "schemaVersion": 39,
  "editable": true,
  "refresh": "30s",
  "time": {{"from": "now-6h", "to": "now"}},
  "templating": {{"list": [
    {{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}},
    {{"name": "job", "label": "Job", "type": "query", "datasource": {SOURCE}, "query": "label_values(earmark_limits, job)", "includeAll": true, "allValue": ".*", "current": {{"text": "All", "value": "$__all"}}, "refresh": 2}}
  ]}},
  "panels": [
{panels}
  ]
}}
"#,
        uid = text(uid),
        title = text(title),
        panels = items.join(",\n"),
    )
}

const SOURCE: &str = r#"{"type": "prometheus", "uid": "${datasource}"}"#;

fn timeseries(panel: &Panel, id: usize, (x, y): (usize, usize), metrics: &Metrics) -> String {
    let abouts = panel.metrics.iter().filter_map(|(name, _)| metrics.0.get(*name)).map(|metric| metric.about.as_str());
    let about: Vec<&str> = abouts.collect();
    let targets = targets(panel, metrics);
    let letters = ('A'..='Z').zip(&targets).map(|(letter, (expression, legend))| {
        format!(
            "      {{\"refId\": \"{letter}\", \"datasource\": {SOURCE}, \"expr\": {}, \"legendFormat\": {}}}",
            text(expression),
            text(legend)
        )
    });
    let targets: Vec<String> = letters.collect();
    format!(
        "    {{\"id\": {id}, \"type\": \"timeseries\", \"title\": {}, \"description\": {}, \"datasource\": {SOURCE},\n     \
         \"gridPos\": {{\"h\": {PANEL_HEIGHT}, \"w\": {PANEL_WIDTH}, \"x\": {x}, \"y\": {y}}},\n     \
         \"fieldConfig\": {{\"defaults\": {{\"unit\": {}, \"min\": 0}}, \"overrides\": []}},\n     \
         \"targets\": [\n{}\n     ]}}",
        text(panel.title),
        text(&about.join(" ")),
        text(panel.unit),
        targets.join(",\n"),
    )
}

/// A JSON string. The texts have no control characters.
fn text(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::super::metrics;
    use super::*;

    #[test]
    fn the_expressions_of_a_panel_follow_from_the_kinds_of_its_metrics() {
        let metrics = metrics::example();
        let panel = top("T", "s", &[("earmark_a_total", "x"), ("earmark_b_seconds", ""), ("earmark_c", "x, y")]);
        let found: Vec<String> = targets(&panel, &metrics).into_iter().map(|(expression, _)| expression).collect();
        let expected = [
            r#"topk(20, sum by (x)(rate(earmark_a_total{job=~"$job"}[$__rate_interval])))"#,
            r#"topk(20, histogram_quantile(0.5, sum by (le)(rate(earmark_b_seconds_bucket{job=~"$job"}[$__rate_interval]))))"#,
            r#"topk(20, histogram_quantile(0.99, sum by (le)(rate(earmark_b_seconds_bucket{job=~"$job"}[$__rate_interval]))))"#,
            r#"topk(20, max by (x, y)(earmark_c{job=~"$job"}))"#,
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_metric_on_no_dashboard_and_a_panel_without_its_metric_are_named() {
        let problems = problems(&metrics::example());
        assert!(problems.iter().any(|line| line.starts_with("earmark_c: is on no dashboard")), "{problems:?}");
        assert!(problems.iter().any(|line| line.starts_with("earmark_limits: is on a dashboard, but")), "{problems:?}");
    }
}
