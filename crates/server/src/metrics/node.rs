//! Descriptions of the metrics that a node records through the `metrics` facade.

use earmark_admission::ClusterStatus;
use metrics::Recorder;
use metrics_exporter_prometheus::PrometheusRecorder;

/// Bucket bounds of disk operations, in seconds: from a device with a write cache to a failing one.
pub(super) const SECONDS: [f64; 16] =
    [0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0];

/// The histograms of durations.
pub(super) const HISTOGRAMS: [&str; 3] =
    ["earmark_node_fsync_seconds", "earmark_node_apply_seconds", "earmark_node_snapshot_seconds"];

const DESCRIPTIONS: [(&str, &str); 17] = [
    ("earmark_node_disk_free_bytes", "Free space on the data disk."),
    ("earmark_node_disk_reserve_bytes", "Space that a leader keeps free on its data disk (--disk-reserve)."),
    ("earmark_node_disk_is_short", "1 if the data disk has less free space than its reserve, else 0."),
    ("earmark_node_is_leader", "1 if this node is the leader, else 0."),
    ("earmark_node_term", "Raft term of the latest vote. It rises with every election."),
    ("earmark_node_last_log_index", "Index of the last entry in the Raft log of this node."),
    ("earmark_node_committed_index", "Index of the last entry that this node knows to be committed."),
    ("earmark_node_applied_index", "Index of the last entry that this node has applied."),
    ("earmark_node_snapshot_index", "Index of the last entry in the newest snapshot; 0 without one."),
    ("earmark_node_fsync_seconds", "Time of a flush of the Raft log to disk."),
    ("earmark_node_apply_seconds", "Time to apply a batch of committed entries."),
    ("earmark_node_refused_peer_calls_total", "Peer calls that were refused: wrong certificate, or not a member."),
    ("earmark_node_log_bytes", "Size of the Raft log on disk."),
    ("earmark_node_journal_bytes", "Size of the journal on disk."),
    ("earmark_node_journal_records", "Records in the journal."),
    ("earmark_node_snapshot_bytes", "Size of the newest snapshot."),
    ("earmark_node_snapshot_seconds", "Time to write a snapshot."),
];

/// The replication lag of the other nodes. Only the leader knows it; a former leader would show stale values.
pub(super) fn lags(status: &ClusterStatus) -> String {
    if status.leader != Some(status.node) {
        return String::new();
    }
    let others = status.members.iter().filter(|member| member.node != status.node);
    let lines = others
        .filter_map(|member| Some(format!("earmark_node_peer_lag{{peer=\"{}\"}} {}\n", member.node, member.lag?)));
    let lines: String = lines.collect();
    if lines.is_empty() {
        return lines;
    }
    format!(
        "# HELP earmark_node_peer_lag Entries that another node is behind; only the leader reports it.\n\
         # TYPE earmark_node_peer_lag gauge\n{lines}\n"
    )
}

pub(super) fn describe(recorder: &PrometheusRecorder) {
    for (name, about) in DESCRIPTIONS {
        // This recorder ignores the kind of metric here.
        recorder.describe_gauge(name.into(), None, about.into());
    }
}

#[cfg(test)]
mod tests {
    use earmark_admission::MemberStatus;

    use super::*;

    /// A node that had lost leadership kept reporting the lag from when it last led.
    #[test]
    fn a_node_that_is_not_leader_reports_no_lag() {
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
