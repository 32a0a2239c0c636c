//! The alert rules, and for each the series with which it fires and those with which it does not.

use super::metrics::Metrics;

/// An alert.
struct Alert {
    name: &'static str,
    expression: &'static str,
    /// Minutes that the condition must hold.
    minutes: u32,
    severity: &'static str,
    summary: &'static str,
    /// The next step of the person who is called.
    action: &'static str,
    /// The labels of the alert that fires in the test, besides its severity.
    labels: &'static [(&'static str, &'static str)],
    /// Series and their values, one a minute, with which it fires.
    firing: Samples,
    /// Series with which it does not.
    quiet: Samples,
}

type Samples = &'static [(&'static str, &'static str)];

/// The minute at which the tests look.
const TEST_MINUTES: u32 = 60;

const JOB: &[(&str, &str)] = &[("job", "earmark")];
const NODE: &[(&str, &str)] = &[("job", "earmark"), ("instance", "a:7878")];
const LIMIT: &[(&str, &str)] = &[("job", "earmark"), ("namespace", "default"), ("key", "gpt-4o:rpm")];

const ALERTS: &[Alert] = &[
    Alert {
        name: "EarmarkDown",
        expression: "up{job=~\".*earmark.*\"} == 0",
        minutes: 2,
        severity: "critical",
        summary: "A server or gateway does not answer the scrape.",
        action: "Read its log. While a majority of the nodes runs, callers can use the others.",
        labels: NODE,
        firing: &[("up{job=\"earmark\",instance=\"a:7878\"}", "0x60")],
        quiet: &[("up{job=\"earmark\",instance=\"a:7878\"}", "1x60")],
    },
    Alert {
        name: "EarmarkNoLeader",
        expression: "sum by (job)(earmark_node_is_leader) == 0",
        minutes: 1,
        severity: "critical",
        summary: "No node leads; reserves and reads fail.",
        action: "See docs/operating.md, \"Failover\". GET /readyz says what each node lacks.",
        labels: JOB,
        firing: &[
            ("earmark_node_is_leader{job=\"earmark\",instance=\"a:7878\"}", "0x60"),
            ("earmark_node_is_leader{job=\"earmark\",instance=\"b:7878\"}", "0x60"),
        ],
        quiet: &[
            ("earmark_node_is_leader{job=\"earmark\",instance=\"a:7878\"}", "0x60"),
            ("earmark_node_is_leader{job=\"earmark\",instance=\"b:7878\"}", "1x60"),
        ],
    },
    Alert {
        name: "EarmarkElections",
        expression: "max by (job)(delta(earmark_node_term[15m])) > 3",
        minutes: 5,
        severity: "warning",
        summary: "The cluster elects a leader again and again.",
        action: "Compare EarmarkSlowDisk and the network between the nodes; raise --election-ms if the disk stays slow.",
        labels: JOB,
        firing: &[("earmark_node_term{job=\"earmark\",instance=\"a:7878\"}", "1+1x60")],
        quiet: &[("earmark_node_term{job=\"earmark\",instance=\"a:7878\"}", "1x50 2x10")],
    },
    Alert {
        name: "EarmarkNodeLags",
        expression: "min_over_time(earmark_node_peer_lag[5m]) > 1000",
        minutes: 5,
        severity: "warning",
        summary: "A node does not catch up with the log.",
        action: "Check that it runs and that its disk and network are well. A lost node is removed and replaced.",
        labels: &[("job", "earmark"), ("instance", "a:7878"), ("peer", "2")],
        firing: &[("earmark_node_peer_lag{job=\"earmark\",instance=\"a:7878\",peer=\"2\"}", "2000+100x60")],
        quiet: &[("earmark_node_peer_lag{job=\"earmark\",instance=\"a:7878\",peer=\"2\"}", "2000 0x58 5000")],
    },
    Alert {
        name: "EarmarkDiskIsShort",
        expression: "earmark_node_disk_is_short == 1",
        minutes: 1,
        severity: "critical",
        summary: "The data disk has less free space than its reserve; reserves are refused while this node leads.",
        action: "Free space: the node resumes by itself. See docs/operating.md, \"Full or failing disks\".",
        labels: NODE,
        firing: &[("earmark_node_disk_is_short{job=\"earmark\",instance=\"a:7878\"}", "1x60")],
        quiet: &[("earmark_node_disk_is_short{job=\"earmark\",instance=\"a:7878\"}", "0x60")],
    },
    Alert {
        name: "EarmarkDiskFills",
        expression: "predict_linear(earmark_node_disk_free_bytes[1h], 4 * 24 * 3600) < 0",
        minutes: 15,
        severity: "warning",
        summary: "The data disk is full within four days at the present rate.",
        action: "Plan for more space. The journal only grows: see docs/operating.md, \"Sizing\".",
        labels: NODE,
        firing: &[("earmark_node_disk_free_bytes{job=\"earmark\",instance=\"a:7878\"}", "100000-1000x60")],
        quiet: &[("earmark_node_disk_free_bytes{job=\"earmark\",instance=\"a:7878\"}", "100000-1x60")],
    },
    Alert {
        name: "EarmarkSlowDisk",
        expression: "histogram_quantile(0.99, sum by (job, instance, le)(rate(earmark_node_fsync_seconds_bucket[5m]))) > 0.1",
        minutes: 10,
        severity: "warning",
        summary: "One flush of the Raft log in a hundred takes longer than 0.1 s.",
        action: "Find what else uses the disk. Every decision waits for a flush on a majority of the nodes.",
        labels: NODE,
        firing: &[
            ("earmark_node_fsync_seconds_bucket{job=\"earmark\",instance=\"a:7878\",le=\"0.1\"}", "0+90x60"),
            ("earmark_node_fsync_seconds_bucket{job=\"earmark\",instance=\"a:7878\",le=\"0.5\"}", "0+100x60"),
            ("earmark_node_fsync_seconds_bucket{job=\"earmark\",instance=\"a:7878\",le=\"+Inf\"}", "0+100x60"),
        ],
        quiet: &[
            ("earmark_node_fsync_seconds_bucket{job=\"earmark\",instance=\"a:7878\",le=\"0.1\"}", "0+100x60"),
            ("earmark_node_fsync_seconds_bucket{job=\"earmark\",instance=\"a:7878\",le=\"0.5\"}", "0+100x60"),
            ("earmark_node_fsync_seconds_bucket{job=\"earmark\",instance=\"a:7878\",le=\"+Inf\"}", "0+100x60"),
        ],
    },
    Alert {
        name: "EarmarkPeerCallsRefused",
        expression: "increase(earmark_node_refused_peer_calls_total[10m]) > 0",
        minutes: 10,
        severity: "warning",
        summary: "Another node is refused: its certificate is wrong, or it is not a member.",
        action: "The log names the caller. Renew its certificate, or invite it to join again.",
        labels: NODE,
        firing: &[("earmark_node_refused_peer_calls_total{job=\"earmark\",instance=\"a:7878\"}", "0+2x60")],
        quiet: &[("earmark_node_refused_peer_calls_total{job=\"earmark\",instance=\"a:7878\"}", "7x60")],
    },
    Alert {
        name: "EarmarkUndecided",
        expression: "sum by (job)(rate(earmark_reserves_total{outcome=~\"overloaded|backend_error\"}[5m])) / sum by (job)(rate(earmark_reserves_total[5m])) > 0.01",
        minutes: 5,
        severity: "critical",
        summary: "More than 1% of the reserves get no decision.",
        action: "Compare EarmarkNoLeader, EarmarkDiskIsShort and EarmarkQueueGrows; the log has the reason.",
        labels: JOB,
        firing: &[
            ("earmark_reserves_total{job=\"earmark\",instance=\"a:7878\",outcome=\"overloaded\"}", "0+5x60"),
            ("earmark_reserves_total{job=\"earmark\",instance=\"a:7878\",outcome=\"allowed\"}", "0+95x60"),
        ],
        quiet: &[
            ("earmark_reserves_total{job=\"earmark\",instance=\"a:7878\",outcome=\"overloaded\"}", "5x60"),
            ("earmark_reserves_total{job=\"earmark\",instance=\"a:7878\",outcome=\"denied\"}", "0+95x60"),
        ],
    },
    Alert {
        name: "EarmarkSlowReserves",
        expression: "histogram_quantile(0.99, sum by (job, le)(rate(earmark_http_request_seconds_bucket{route=~\"(reserve|call)(_batch)?\"}[5m]))) > 0.2 or histogram_quantile(0.99, sum by (job, le)(rate(earmark_grpc_request_seconds_bucket{method=~\".*/((Reserve|Call)(Batch)?|ShouldRateLimit)\"}[5m]))) > 0.2",
        minutes: 10,
        severity: "warning",
        summary: "One reserve in a hundred takes longer than 0.2 s.",
        action: "Compare EarmarkSlowDisk and EarmarkQueueGrows; a trace of a slow reserve shows where it waits.",
        labels: JOB,
        firing: &[
            ("earmark_http_request_seconds_bucket{job=\"earmark\",route=\"call\",le=\"0.2\"}", "0+90x60"),
            ("earmark_http_request_seconds_bucket{job=\"earmark\",route=\"call\",le=\"0.5\"}", "0+100x60"),
            ("earmark_http_request_seconds_bucket{job=\"earmark\",route=\"call\",le=\"+Inf\"}", "0+100x60"),
        ],
        quiet: &[
            ("earmark_http_request_seconds_bucket{job=\"earmark\",route=\"reserve\",le=\"0.2\"}", "0+100x60"),
            ("earmark_http_request_seconds_bucket{job=\"earmark\",route=\"reserve\",le=\"0.5\"}", "0+100x60"),
            ("earmark_http_request_seconds_bucket{job=\"earmark\",route=\"reserve\",le=\"+Inf\"}", "0+100x60"),
            (
                "earmark_grpc_request_seconds_bucket{job=\"earmark\",method=\"earmark.v1.LimitsService/Reserve\",le=\"0.2\"}",
                "0+100x60",
            ),
            (
                "earmark_grpc_request_seconds_bucket{job=\"earmark\",method=\"earmark.v1.LimitsService/Reserve\",le=\"+Inf\"}",
                "0+100x60",
            ),
            (
                "earmark_grpc_request_seconds_bucket{job=\"earmark\",method=\"earmark.v1.LimitsService/Leases\",le=\"0.2\"}",
                "0+0x60",
            ),
            (
                "earmark_grpc_request_seconds_bucket{job=\"earmark\",method=\"earmark.v1.LimitsService/Leases\",le=\"+Inf\"}",
                "0+100x60",
            ),
        ],
    },
    Alert {
        name: "EarmarkQueueGrows",
        expression: "min_over_time(earmark_queue_depth[5m]) > 1000",
        minutes: 5,
        severity: "warning",
        summary: "Requests wait for the Book longer than usual.",
        action: "Compare EarmarkSlowDisk. If the disk is well, the load is above what the leader can take.",
        labels: NODE,
        firing: &[("earmark_queue_depth{job=\"earmark\",instance=\"a:7878\"}", "2000x60")],
        quiet: &[("earmark_queue_depth{job=\"earmark\",instance=\"a:7878\"}", "0x58 5000 5000")],
    },
    Alert {
        name: "EarmarkLimitIsFull",
        expression: "max by (job, namespace, key)(earmark_limit_fullness) > 0.95",
        minutes: 15,
        severity: "info",
        summary: "A defined limit has been nearly full for a quarter of an hour.",
        action: "earmark top shows who uses it, earmark decisions who was denied. Raise its capacity or slow callers down.",
        labels: LIMIT,
        firing: &[("earmark_limit_fullness{job=\"earmark\",namespace=\"default\",key=\"gpt-4o:rpm\"}", "0.99x60")],
        quiet: &[(
            "earmark_limit_fullness{job=\"earmark\",namespace=\"default\",key=\"gpt-4o:rpm\"}",
            "0.99x50 0.5x10",
        )],
    },
    Alert {
        name: "EarmarkWouldDeny",
        expression: "sum by (job, namespace, key)(increase(earmark_would_deny_total[15m])) > 0",
        minutes: 15,
        severity: "info",
        summary: "A limit that is not enforced would have denied reserves.",
        action: "Raise its capacity before you enforce it.",
        labels: LIMIT,
        firing: &[("earmark_would_deny_total{job=\"earmark\",namespace=\"default\",key=\"gpt-4o:rpm\"}", "0+1x60")],
        quiet: &[("earmark_would_deny_total{job=\"earmark\",namespace=\"default\",key=\"gpt-4o:rpm\"}", "9x60")],
    },
    Alert {
        name: "EarmarkLeasesExpire",
        expression: "max by (job)(increase(earmark_expired_leases_total[15m])) > 10",
        minutes: 15,
        severity: "warning",
        summary: "Leases run out before they are completed.",
        action: "A caller crashes, or its calls take longer than the timeout of the limit: earmark decisions names the leases.",
        labels: JOB,
        firing: &[("earmark_expired_leases_total{job=\"earmark\",instance=\"a:7878\"}", "0+2x60")],
        quiet: &[("earmark_expired_leases_total{job=\"earmark\",instance=\"a:7878\"}", "0x58 1 2")],
    },
    Alert {
        name: "EarmarkDecisionsDropped",
        expression: "increase(earmark_decisions_dropped_total[10m]) > 0",
        minutes: 0,
        severity: "warning",
        summary: "The decision log is incomplete: it dropped decisions.",
        action: "Its disk is slow or full, or denials come faster than it writes. Reserves are not affected.",
        labels: NODE,
        firing: &[("earmark_decisions_dropped_total{job=\"earmark\",instance=\"a:7878\"}", "0x55 9x5")],
        quiet: &[("earmark_decisions_dropped_total{job=\"earmark\",instance=\"a:7878\"}", "9x60")],
    },
    Alert {
        name: "EarmarkSpansLost",
        expression: "increase(earmark_trace_spans_dropped_total[10m]) + increase(earmark_trace_spans_failed_total[10m]) > 0",
        minutes: 10,
        severity: "info",
        summary: "Traces are incomplete: spans are lost.",
        action: "The collector is down or slow, or --trace-sample is too high. Requests are not affected.",
        labels: NODE,
        firing: &[
            ("earmark_trace_spans_dropped_total{job=\"earmark\",instance=\"a:7878\"}", "0x60"),
            ("earmark_trace_spans_failed_total{job=\"earmark\",instance=\"a:7878\"}", "0+9x60"),
        ],
        quiet: &[
            ("earmark_trace_spans_dropped_total{job=\"earmark\",instance=\"a:7878\"}", "9x60"),
            ("earmark_trace_spans_failed_total{job=\"earmark\",instance=\"a:7878\"}", "9x60"),
        ],
    },
    Alert {
        name: "EarmarkQuotaNearlyUsed",
        expression: "max by (job, namespace, kind)(earmark_quota_used / (earmark_quota > 0)) > 0.9",
        minutes: 10,
        severity: "warning",
        summary: "A namespace has used nine tenths of a quota.",
        action: "Raise the quota, or ask the tenant to clean up: earmark quotas.",
        labels: &[("job", "earmark"), ("namespace", "team"), ("kind", "leases")],
        firing: &[
            ("earmark_quota{job=\"earmark\",namespace=\"team\",kind=\"leases\"}", "100x60"),
            ("earmark_quota_used{job=\"earmark\",namespace=\"team\",kind=\"leases\"}", "95x60"),
        ],
        quiet: &[
            ("earmark_quota{job=\"earmark\",namespace=\"team\",kind=\"leases\"}", "100x60"),
            ("earmark_quota_used{job=\"earmark\",namespace=\"team\",kind=\"leases\"}", "50x60"),
        ],
    },
    Alert {
        name: "EarmarkCreditUncollected",
        expression: "sum by (job)(increase(earmark_credit_settled_total{how=\"uncollected\"}[1h])) > 0",
        minutes: 0,
        severity: "warning",
        summary: "Calls cost more than their accounts had, and the rest is lost.",
        action: "Allow an overdraft on these accounts, or hold more: the entries of the accounts have the amounts.",
        labels: JOB,
        firing: &[(
            "earmark_credit_settled_total{job=\"earmark\",instance=\"a:7878\",how=\"uncollected\"}",
            "0x30 5x30",
        )],
        quiet: &[("earmark_credit_settled_total{job=\"earmark\",instance=\"a:7878\",how=\"paid\"}", "0+5x60")],
    },
    Alert {
        name: "EarmarkExpiryWaits",
        expression: "max by (job)(earmark_expiry_waiting) > 0",
        minutes: 5,
        severity: "warning",
        summary: "Credit does not expire, because log time and wall time differ by more than 5 minutes.",
        action: "Compare the clocks of the nodes with a time server; see docs/operating.md, \"Grants\".",
        labels: JOB,
        firing: &[("earmark_expiry_waiting{job=\"earmark\",instance=\"a:7878\"}", "1x60")],
        quiet: &[("earmark_expiry_waiting{job=\"earmark\",instance=\"a:7878\"}", "0x60")],
    },
    Alert {
        name: "EarmarkStuckSagas",
        expression: "max by (job)(earmark_credit_stuck_sagas) > 0",
        minutes: 5,
        severity: "critical",
        summary: "A credit saga in the database can be neither read nor finished.",
        action: "See docs/operating.md, \"Stuck sagas\".",
        labels: JOB,
        firing: &[("earmark_credit_stuck_sagas{job=\"earmark\",instance=\"a:7878\"}", "1x60")],
        quiet: &[("earmark_credit_stuck_sagas{job=\"earmark\",instance=\"a:7878\"}", "0x60")],
    },
    Alert {
        name: "EarmarkFailedLogins",
        expression: "sum by (job)(rate(earmark_failed_logins_total[5m])) > 1",
        minutes: 10,
        severity: "warning",
        summary: "More than one request a second has no valid credentials.",
        action: "The log names the addresses: an attacker tries keys, or a caller has an old one.",
        labels: JOB,
        firing: &[("earmark_failed_logins_total{job=\"earmark\",instance=\"a:7878\"}", "0+120x60")],
        quiet: &[("earmark_failed_logins_total{job=\"earmark\",instance=\"a:7878\"}", "0+6x60")],
    },
    Alert {
        name: "EarmarkConnectionsRefused",
        expression: "increase(earmark_connections_refused_total[10m]) > 0",
        minutes: 5,
        severity: "warning",
        summary: "The server closes connections because too many are open.",
        action: "Use fewer connections per client, or raise --connections-max.",
        labels: NODE,
        firing: &[("earmark_connections_refused_total{job=\"earmark\",instance=\"a:7878\"}", "0+1x60")],
        quiet: &[("earmark_connections_refused_total{job=\"earmark\",instance=\"a:7878\"}", "3x60")],
    },
    Alert {
        name: "EarmarkGatewayCircuitOpen",
        expression: "max by (job, provider)(earmark_gateway_circuit_open) == 1",
        minutes: 2,
        severity: "warning",
        summary: "An upstream fails again and again; its calls are refused or fall back.",
        action: "Check the status of the provider, and the network from the gateway to it.",
        labels: &[("job", "earmark"), ("provider", "openai")],
        firing: &[("earmark_gateway_circuit_open{job=\"earmark\",instance=\"g:8080\",provider=\"openai\"}", "1x60")],
        quiet: &[("earmark_gateway_circuit_open{job=\"earmark\",instance=\"g:8080\",provider=\"openai\"}", "0x60")],
    },
    Alert {
        name: "EarmarkGatewayUnsettled",
        expression: "min_over_time(earmark_gateway_settlements_waiting[10m]) > 0",
        minutes: 5,
        severity: "warning",
        summary: "Calls wait for Earmark to settle them.",
        action: "Check that the gateway reaches its servers. When the queue is full, new calls are refused.",
        labels: &[("job", "earmark"), ("instance", "g:8080")],
        firing: &[("earmark_gateway_settlements_waiting{job=\"earmark\",instance=\"g:8080\"}", "4x60")],
        quiet: &[("earmark_gateway_settlements_waiting{job=\"earmark\",instance=\"g:8080\"}", "4x50 0x10")],
    },
];

/// Metrics that alerts name and that do not exist.
pub(super) fn problems(metrics: &Metrics) -> Vec<String> {
    let unknown = |alert: &Alert| {
        let samples = alert.firing.iter().chain(alert.quiet).map(|(series, _)| *series);
        let texts = std::iter::once(alert.expression).chain(samples);
        let names = texts.flat_map(|text| metrics.unknown_in(text));
        names.map(|name| format!("{}: names {name}, which no server has", alert.name)).collect::<Vec<_>>()
    };
    ALERTS.iter().flat_map(unknown).collect()
}

pub(super) fn expressions() -> Vec<String> {
    ALERTS.iter().map(|alert| alert.expression.to_owned()).collect()
}

/// A YAML string in single quotes.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

const GENERATED: &str = "# Written by `cargo xtask monitoring`; change xtask/src/monitoring/alerts.rs instead.\n";

/// The rules for Prometheus.
pub(super) fn rules() -> String {
    let mut yaml = format!("{GENERATED}groups:\n  - name: earmark\n    rules:\n");
    for Alert { name, expression, minutes, severity, summary, action, .. } in ALERTS {
        yaml += &format!(
            "      - alert: {name}\n        expr: {}\n        for: {minutes}m\n        labels:\n          \
             severity: {severity}\n        annotations:\n          summary: {}\n          description: {}\n",
            quoted(expression),
            quoted(summary),
            quoted(action)
        );
    }
    yaml
}

/// The test cases for `promtool test rules`: each alert fires, and does not.
pub(super) fn tests() -> String {
    let mut yaml = format!("{GENERATED}rule_files:\n  - alerts.yml\nevaluation_interval: 1m\ntests:\n");
    for alert in ALERTS {
        yaml += &case(alert, alert.firing, true);
        yaml += &case(alert, alert.quiet, false);
    }
    yaml
}

fn case(alert: &Alert, samples: Samples, fires: bool) -> String {
    let Alert { name, severity, summary, action, labels, .. } = alert;
    let what = if fires { "fires" } else { "does not fire" };
    let mut yaml = format!("  - name: {name} {what}\n    interval: 1m\n    input_series:\n");
    for (series, values) in samples {
        yaml += &format!("      - series: {}\n        values: {}\n", quoted(series), quoted(values));
    }
    yaml += &format!("    alert_rule_test:\n      - eval_time: {TEST_MINUTES}m\n        alertname: {name}\n");
    if !fires {
        return yaml + "        exp_alerts: []\n";
    }
    yaml += &format!("        exp_alerts:\n          - exp_labels:\n              severity: {severity}\n");
    for (label, value) in *labels {
        yaml += &format!("              {label}: {}\n", quoted(value));
    }
    yaml + &format!(
        "            exp_annotations:\n              summary: {}\n              description: {}\n",
        quoted(summary),
        quoted(action)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_alert_has_its_own_name_and_a_case_that_fires_and_one_that_does_not() {
        let yaml = super::tests();
        for alert in ALERTS {
            assert_eq!(ALERTS.iter().filter(|other| other.name == alert.name).count(), 1, "{}", alert.name);
            assert!(yaml.contains(&format!("name: {} fires\n", alert.name)));
            assert!(yaml.contains(&format!("name: {} does not fire\n", alert.name)));
            assert_ne!(alert.firing, alert.quiet, "{}", alert.name);
        }
    }

    #[test]
    fn quotes_in_yaml_are_doubled() {
        assert_eq!(quoted("it's {\"a\"}"), "'it''s {\"a\"}'");
    }
}
