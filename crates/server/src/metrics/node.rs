//! What a node records through the `metrics` facade, in words.

use earmark_admission::ClusterStatus;
use metrics::Recorder;
use metrics_exporter_prometheus::PrometheusRecorder;

/// Upper ends of the buckets for what a disk takes: from a device with a cache of its own to one that is in trouble.
pub(super) const SECONDS: [f64; 16] = [
    0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0,
];

/// The metrics that are histograms of seconds.
pub(super) const HISTOGRAMS: [&str; 3] =
    ["earmark_node_fsync_seconds", "earmark_node_apply_seconds", "earmark_node_snapshot_seconds"];

const DESCRIPTIONS: [(&str, &str); 13] = [
    ("earmark_node_is_leader", "1 if this node leads its cluster, else 0."),
    ("earmark_node_term", "The term of the latest vote. It goes up with every election."),
    ("earmark_node_last_log_index", "The last entry in the log of this node."),
    ("earmark_node_committed_index", "The last entry that this node knows to be on a majority of the nodes."),
    ("earmark_node_applied_index", "The last entry that this node has applied."),
    ("earmark_node_snapshot_index", "The last entry in the newest snapshot; 0 if there is none."),
    ("earmark_node_fsync_seconds", "How long the log waited until what it wrote was on disk."),
    ("earmark_node_apply_seconds", "How long it took to apply the entries that were committed together."),
    ("earmark_node_log_bytes", "What the log takes on disk."),
    ("earmark_node_journal_bytes", "What the records of the journal take on disk."),
    ("earmark_node_journal_records", "The records of the journal."),
    ("earmark_node_snapshot_bytes", "How large the newest snapshot is."),
    ("earmark_node_snapshot_seconds", "How long it took to write a snapshot."),
];

/// How far the other nodes are behind. A leader alone knows it, so that others say nothing: what they knew when they
/// last led would be taken for what is.
pub(super) fn lags(status: &ClusterStatus) -> String {
    if status.leader != Some(status.node) {
        return String::new();
    }
    let others = status.members.iter().filter(|member| member.node != status.node);
    let lines = others.filter_map(|member| {
        Some(format!("earmark_node_peer_lag{{peer=\"{}\"}} {}\n", member.node, member.lag?))
    });
    let lines: String = lines.collect();
    if lines.is_empty() {
        return lines;
    }
    format!(
        "# HELP earmark_node_peer_lag By how many entries another node is behind; told by the leader.\n\
         # TYPE earmark_node_peer_lag gauge\n{lines}\n"
    )
}

pub(super) fn describe(recorder: &PrometheusRecorder) {
    for (name, about) in DESCRIPTIONS {
        // The kind of metric does not matter to this recorder.
        recorder.describe_gauge(name.into(), None, about.into());
    }
}

#[cfg(test)]
mod tests {
    use earmark_admission::MemberStatus;

    use super::*;

    /// A node that had lost the lead went on telling how far others were behind when it last led.
    #[test]
    fn a_node_that_does_not_lead_tells_no_lag() {
        let member = |node, lag| MemberStatus { node, lag, is_voter: true, ..MemberStatus::default() };
        let members = vec![member(1, Some(0)), member(2, Some(7)), member(3, None)];
        let mut status = ClusterStatus { node: 1, leader: Some(1), members, ..ClusterStatus::default() };
        assert!(lags(&status).contains("\nearmark_node_peer_lag{peer=\"2\"} 7\n"), "{}", lags(&status));
        assert!(!lags(&status).contains("peer=\"1\"") && !lags(&status).contains("peer=\"3\""));
        for leader in [Some(2), None] {
            status.leader = leader;
            assert_eq!(lags(&status), "");
        }
    }
}
