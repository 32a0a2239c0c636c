//! Metrics of a node.

use earmark_admission::ClusterStatus;

use super::catalogue;

/// Bucket bounds of disk operations, in seconds: from a device with a write cache to a failing one.
pub(super) const SECONDS: [f64; 16] =
    [0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0];

/// The histograms of durations.
pub(super) const HISTOGRAMS: [&str; 3] =
    ["earmark_node_fsync_seconds", "earmark_node_apply_seconds", "earmark_node_snapshot_seconds"];

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
    let mut text = String::new();
    catalogue::header(&mut text, "earmark_node_peer_lag");
    text + &lines + "\n"
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
