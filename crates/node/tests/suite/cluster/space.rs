//! A data disk that is short of space: the leader takes completes only, and goes on by itself.

use std::time::Duration;

use earmark_admission::{Backend as _, BackendError, ReserveAnswer};
use earmark_core::Kind;

use crate::support::client::{definition, issue, lease, open, reserve_request, write_request};
use crate::support::sim_cluster::{SMALL, SimCluster};

/// Longer than the time between two checks.
const CHECKED: Duration = Duration::from_secs(2);

async fn reports_space(cluster: &mut SimCluster) {
    for id in [1, 2, 3] {
        cluster.stop(id).await;
        cluster.hosts[&id].disk.set_free(1_000);
        cluster.start(id).await;
    }
    cluster.leader().await;
}

/// A node ran until its disk was full, and stopped.
#[tokio::test(start_paused = true)]
async fn below_the_reserve_only_completes_work_at_every_node_and_above_it_everything_does() {
    let mut cluster = SimCluster::of(3, SMALL).await;
    reports_space(&mut cluster).await;
    let leader = cluster.leader().await;
    let follower = cluster.follower().await;
    let client = cluster.client(leader);
    client.put(definition("slots", Kind::Concurrency { timeout_seconds: 600 }, 10)).await;
    client.write("load", 1, vec![open("acme")]).await;
    let held = [client.admit(&[("slots", 1)]).await, client.admit(&[("slots", 1)]).await];

    // The disk of a follower is its own affair.
    cluster.hosts[&follower].disk.set_free(0);
    tokio::time::sleep(CHECKED).await;
    assert!(cluster.client(follower).0.warning().is_some_and(|warning| warning.contains("--disk-reserve")));
    client.admit(&[("slots", 1)]).await;
    cluster.hosts[&follower].disk.set_free(1_000);
    cluster.hosts[&leader].disk.set_free(40);
    tokio::time::sleep(CHECKED).await;
    for (id, held) in [leader, follower].into_iter().zip(&held) {
        let client = cluster.client(id);
        let refused = |error: &BackendError| matches!(error, BackendError::Overloaded(why) if why.contains("disk"));
        let reserve = client.ask(reserve_request(lease(), &[("slots", 1)])).await;
        assert!(reserve.as_ref().is_err_and(refused), "node {id}: {reserve:?}");
        let write = client.try_write(write_request("load", 2, vec![issue("acme", 1)])).await;
        assert!(write.as_ref().is_err_and(refused), "node {id}: {write:?}");
        assert!(client.complete(held.lease, &[("slots", 1)]).await.reconciled, "node {id}");
        assert_eq!(client.0.ready(), Ok(()));
        assert!(cluster.node(id).failure().get().is_none());
    }
    assert!(cluster.client(leader).0.warning().is_some());

    // Just above the reserve is not enough.
    for (free, is_allowed) in [(55, false), (60, true)] {
        cluster.hosts[&leader].disk.set_free(free);
        tokio::time::sleep(CHECKED).await;
        for id in [leader, follower] {
            let reserve = cluster.client(id).ask(reserve_request(lease(), &[("slots", 1)])).await;
            assert_eq!(matches!(reserve, Ok(ReserveAnswer::Allowed { .. })), is_allowed, "node {id}: {reserve:?}");
        }
    }
    assert!(cluster.client(leader).0.warning().is_none());
    cluster.agree().await;
}
