//! Settings are part of the replicated state: any node changes them, and all nodes have them.

use earmark_admission::{Backend as _, BackendError, PutLimitRequest, SettingEdit};
use earmark_core::{Kind, Principal, Setting, SettingChange};

use crate::support::client::{definition, lease, namespace, reserve_request};
use crate::support::sim_cluster::{SMALL, SimCluster};

const FEW: SettingChange = SettingChange { setting: Setting::LeasesMax, value: 2 };

#[tokio::test(start_paused = true)]
async fn a_setting_that_one_node_changes_is_in_force_on_all_and_survives_a_restart() {
    let mut cluster = SimCluster::of(3, SMALL).await;
    cluster.leader().await;
    let follower = cluster.follower().await;
    let changed = cluster.node(follower).backend().configure(Principal::System, &[FEW]).await.unwrap();
    assert_eq!(changed, [SettingEdit { setting: Setting::LeasesMax, old: 1 << 26, new: 2 }]);
    // A second start of the same node changes nothing.
    assert_eq!(cluster.node(follower).backend().configure(Principal::System, &[FEW]).await.unwrap(), []);
    cluster.agree().await;
    for id in cluster.running() {
        assert_eq!(cluster.status(id).settings.leases_max, 2, "node {id}");
        cluster.node(id).snapshot().await.unwrap();
        cluster.stop(id).await;
    }
    for id in [1, 2, 3] {
        cluster.start(id).await;
    }
    let leader = cluster.leader().await;
    let client = cluster.node(leader).backend();
    let definition = definition("slots", Kind::Concurrency { timeout_seconds: 60 }, 10);
    let request = PutLimitRequest { namespace: namespace(), definition, expected_revision: None };
    client.put_limit(Principal::System, request).await.unwrap();
    for (number, is_refused) in [(1, false), (2, false), (3, true)] {
        let request = reserve_request(lease(), &[("slots", 1)]);
        let answer = client.reserve(Principal::System, vec![request]).await.remove(0);
        assert_eq!(matches!(answer, Err(BackendError::Overloaded(_))), is_refused, "{number}: {answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_value_that_is_not_allowed_is_named_and_changes_nothing() {
    let cluster = SimCluster::of(1, SMALL).await;
    let leader = cluster.leader().await;
    let bad = SettingChange { setting: Setting::HintJitterPercent, value: 101 };
    let error = cluster.node(leader).backend().configure(Principal::System, &[FEW, bad]).await.unwrap_err();
    assert!(error.to_string().contains("hint_jitter_percent: found 101, allowed are 0 to 100"), "{error}");
    assert_eq!(cluster.status(leader).settings, Default::default());
}
