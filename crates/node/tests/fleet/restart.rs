//! Everything acknowledged survives a restart, however the node ended.

use crate::support::desk::Story;
use crate::support::fleet::{Fleet, SMALL, Settings};

/// How a node ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Stop,
    Kill,
    PowerCut(u64),
}

impl End {
    async fn of(self, fleet: &mut Fleet, id: u64) {
        match self {
            End::Stop => fleet.stop(id).await,
            End::Kill => fleet.kill(id),
            End::PowerCut(seed) => fleet.crash(id, seed),
        }
    }
}

fn ends() -> Vec<End> {
    let cuts = (0..12).map(End::PowerCut);
    [End::Stop, End::Kill].into_iter().chain(cuts).collect()
}

async fn everything_is_there(end: End, settings: Settings, with_snapshot: bool) {
    let mut fleet = Fleet::of(1, settings).await;
    let mut story = Story::tell(&fleet.desk(1)).await;
    if with_snapshot {
        fleet.node(1).snapshot().await.unwrap();
        story.reserve(&fleet.desk(1), &[("rpm", 2), ("usd", 3)]).await;
    }
    let before = story.picture(&fleet.desk(1)).await;
    end.of(&mut fleet, 1).await;
    fleet.start(1).await;
    fleet.leader().await;
    let desk = fleet.desk(1);
    assert_eq!(story.picture(&desk).await, before, "{end:?}");
    story.ask_again(&desk).await;
    assert_eq!(story.picture(&desk).await, before, "{end:?}: asking again changed something");
    fleet.agree().await;
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
