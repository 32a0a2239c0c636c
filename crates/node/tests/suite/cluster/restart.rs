//! Everything acknowledged survives a restart, however the node ended.

use crate::support::client::Scenario;
use crate::support::is_exhaustive;
use crate::support::sim_cluster::{SMALL, Settings, SimCluster};

#[derive(Clone, Copy, Debug)]
enum End {
    Stop,
    Kill,
    PowerCut(u64),
}

impl End {
    async fn of(self, cluster: &mut SimCluster, id: u64) {
        match self {
            End::Stop => cluster.stop(id).await,
            End::Kill => cluster.kill(id),
            End::PowerCut(seed) => cluster.crash(id, seed),
        }
    }
}

fn ends() -> Vec<End> {
    let cuts = (0..if is_exhaustive() { 12 } else { 5 }).map(End::PowerCut);
    [End::Stop, End::Kill].into_iter().chain(cuts).collect()
}

async fn everything_is_there(end: End, settings: Settings, with_snapshot: bool) {
    let mut cluster = SimCluster::of(1, settings).await;
    let mut scenario = Scenario::run(&cluster.client(1)).await;
    if with_snapshot {
        cluster.node(1).snapshot().await.unwrap();
        scenario.reserve(&cluster.client(1), &[("rpm", 2), ("usd", 3)]).await;
    }
    let before = scenario.visible_state(&cluster.client(1)).await;
    end.of(&mut cluster, 1).await;
    cluster.start(1).await;
    cluster.leader().await;
    let client = cluster.client(1);
    assert_eq!(scenario.visible_state(&client).await, before, "{end:?}");
    scenario.repeat_all(&client).await;
    assert_eq!(scenario.visible_state(&client).await, before, "{end:?}: asking again changed something");
    cluster.agree().await;
}

#[tokio::test(start_paused = true)]
async fn everything_acknowledged_is_there_after_a_stop_a_kill_or_a_power_cut() {
    for end in ends() {
        for with_snapshot in [false, true] {
            everything_is_there(end, Settings::default(), with_snapshot).await;
            everything_is_there(end, SMALL, with_snapshot).await;
        }
    }
}
