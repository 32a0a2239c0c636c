//! A lagging or new node catches up.

use earmark_admission::{
    Backend as _, CompleteRequest, ManualClock, PutLimitRequest, ReserveAnswer, ReserveRequest,
};
use earmark_core::NamespaceName;

use crate::support::desk::{
    SLOTS, START_MS, Story, definition, issue, key, lease, reserve_request, write_request,
};
use crate::support::disk::SimDisk;
use crate::support::fleet::{Fleet, SMALL, Seat, Settings, TIMING, until};

async fn all_show_the_same(fleet: &Fleet, story: &Story) {
    fleet.agree().await;
    let ids = fleet.running();
    let expected = story.picture(&fleet.desk(ids[0])).await;
    for id in ids {
        assert_eq!(story.picture(&fleet.desk(id)).await, expected, "node {id}");
    }
}

/// Every node makes a snapshot and purges its log.
async fn forget_the_log(fleet: &Fleet) {
    for id in fleet.running() {
        fleet.node(id).snapshot().await.unwrap();
    }
    tokio::time::sleep(TIMING.election).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_away_for_a_short_time_catches_up_by_log() {
    let mut fleet = Fleet::of(3, Settings::default()).await;
    let away = fleet.follower().await;
    fleet.kill(away);
    let leader = fleet.leader().await;
    let story = Story::tell(&fleet.desk(leader)).await;
    fleet.start(away).await;
    fleet.leader().await;
    let shown = story.picture(&fleet.desk(away)).await;
    assert_eq!(shown, story.picture(&fleet.desk(leader)).await);
    assert_eq!(fleet.status(away).snapshot_index, None);
    all_show_the_same(&fleet, &story).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_away_for_long_catches_up_by_snapshot_and_journal() {
    let mut fleet = Fleet::of(3, SMALL).await;
    let leader = fleet.leader().await;
    // It has part of the journal already, so only the rest is sent.
    let mut story = Story::tell(&fleet.desk(leader)).await;
    let away = fleet.follower().await;
    fleet.stop(away).await;
    fleet.leader().await;
    for sequence in 1..20 {
        story.write(&fleet.desk(leader), write_request("load", sequence, vec![issue("acme", 1)])).await;
    }
    forget_the_log(&fleet).await;
    let behind = fleet.status(leader).snapshot_index;
    story.write(&fleet.desk(leader), write_request("load", 20, vec![issue("acme", 1)])).await;
    fleet.start(away).await;
    fleet.leader().await;
    story.ask_again(&fleet.desk(away)).await;
    assert_eq!(fleet.status(away).snapshot_index, behind);
    all_show_the_same(&fleet, &story).await;
    // The installed snapshot survives a power cut.
    fleet.crash(away, 7);
    fleet.start(away).await;
    fleet.leader().await;
    all_show_the_same(&fleet, &story).await;
}

/// Only the header of a received snapshot was checked. A snapshot damaged on the sender's disk stopped every node
/// that received it.
#[tokio::test(start_paused = true)]
async fn a_damaged_snapshot_is_refused_and_the_next_one_is_taken() {
    let mut fleet = Fleet::of(1, SMALL).await;
    let mut story = Story::tell(&fleet.desk(1)).await;
    forget_the_log(&fleet).await;
    let disk = fleet.seats[&1].disk.clone();
    let path = disk.paths().into_iter().find(|path| path.ends_with(".snapshot")).unwrap();
    disk.corrupt(&path, disk.bytes(&path).len() - 20, 1);
    fleet.seats.insert(2, Seat { disk: SimDisk::new(), clock: ManualClock::at(START_MS), node: None });
    fleet.start(2).await;
    tokio::time::sleep(TIMING.deadline).await;
    assert_eq!(fleet.node(2).failure().get(), None);
    assert!(!fleet.is_voter(2) && fleet.status(2).snapshot_index.is_none());
    story.reserve(&fleet.desk(1), &[("rpm", 1)]).await;
    fleet.node(1).snapshot().await.unwrap();
    until("node 2 is a voter", || fleet.is_voter(2)).await;
    all_show_the_same(&fleet, &story).await;
}

/// The journal received with a snapshot was stored twice: as received, and as the journal.
#[tokio::test(start_paused = true)]
async fn what_arrived_with_a_snapshot_is_not_kept_besides() {
    let mut fleet = Fleet::of(1, SMALL).await;
    Story::tell(&fleet.desk(1)).await;
    forget_the_log(&fleet).await;
    fleet.add(2).await;
    assert!(fleet.status(2).snapshot_index.is_some(), "it must have come by snapshot");
    let left: Vec<String> = fleet.seats[&2].disk.paths();
    assert!(!left.iter().any(|path| path.contains("incoming")), "{left:?}");
    fleet.agree().await;
}

#[tokio::test(start_paused = true)]
async fn a_new_node_gets_the_snapshot_and_the_whole_journal() {
    let mut fleet = Fleet::of(1, SMALL).await;
    let mut story = Story::tell(&fleet.desk(1)).await;
    forget_the_log(&fleet).await;
    story.reserve(&fleet.desk(1), &[("rpm", 1)]).await;
    fleet.add(2).await;
    fleet.add(3).await;
    all_show_the_same(&fleet, &story).await;
    fleet.kill(1);
    fleet.leader().await;
    story.ask_again(&fleet.desk(2)).await;
    fleet.start(1).await;
    fleet.leader().await;
    all_show_the_same(&fleet, &story).await;
}

/// A follower built its answers from its own Book, which may lag behind the leader's outcome. A node that had just
/// restarted denied without naming the limit, reported missing credit as an error, and did not know a new namespace.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_just_back_answers_like_one_that_was_never_away() {
    let mut fleet = Fleet::of(3, Settings::default()).await;
    let away = fleet.follower().await;
    fleet.kill(away);
    let leader = fleet.leader().await;
    let desk = fleet.desk(leader);
    let story = Story::tell(&desk).await;
    let team = NamespaceName::new("team").unwrap();
    let definition = definition("calls", SLOTS, 2);
    let put = PutLimitRequest { namespace: team.clone(), definition, expected_revision: None };
    desk.0.put_limit(put).await.unwrap();
    let in_team =
        |amount| ReserveRequest { namespace: team.clone(), ..reserve_request(lease(), &[("calls", amount)]) };
    let taken = in_team(2);
    desk.ask(taken.clone()).await.unwrap();
    let complete = || {
        let actuals = Vec::new();
        vec![CompleteRequest { namespace: team.clone(), lease: taken.lease, job: None, actuals }]
    };
    for round in 0..4 {
        fleet.start(away).await;
        let desk = fleet.desk(away);
        match round {
            0 => story.ask_again(&desk).await,
            1 => match desk.ask(reserve_request(lease(), &[("tokens", 1)])).await.unwrap() {
                ReserveAnswer::Denied { limited_by, .. } => assert_eq!(limited_by, [key("tokens")]),
                other => panic!("{other:?}"),
            },
            2 => match desk.ask(in_team(1)).await.unwrap() {
                ReserveAnswer::Denied { limited_by, .. } => assert_eq!(limited_by, [key("calls")]),
                other => panic!("{other:?}"),
            },
            _ => assert!(desk.0.complete(complete()).await.pop().unwrap().unwrap().reconciled),
        }
        fleet.kill(away);
    }
    fleet.start(away).await;
    fleet.leader().await;
    fleet.agree().await;
}

/// Snapshots are triggered by log growth alone.
#[tokio::test(start_paused = true)]
async fn the_log_stays_short_by_itself_and_late_nodes_still_catch_up() {
    let mut fleet = Fleet::of(3, Settings { snapshot_bytes: 3_000, ..SMALL }).await;
    let mut story = Story::tell(&fleet.desk(1)).await;
    let away = fleet.follower().await;
    for round in 0..4 {
        fleet.kill(away);
        fleet.leader().await;
        let desk = fleet.desk(fleet.running()[0]);
        for sequence in 1..60 {
            story.write(&desk, write_request("load", round * 59 + sequence, vec![issue("acme", 1)])).await;
        }
        tokio::time::sleep(TIMING.deadline).await;
        fleet.start(away).await;
        fleet.leader().await;
    }
    let log = |id: u64| {
        let disk = &fleet.seats[&id].disk;
        disk.paths()
            .iter()
            .filter(|path| path.starts_with("log/0"))
            .map(|path| disk.bytes(path).len())
            .sum::<usize>()
    };
    for id in fleet.running() {
        assert!(log(id) < 20_000, "the log of node {id} has {} bytes", log(id));
    }
    all_show_the_same(&fleet, &story).await;
}

/// openraft purges the log while the snapshot that replaces it is still being installed. A power cut in between left
/// neither, and the node could not start.
#[tokio::test(start_paused = true)]
async fn a_node_whose_power_goes_at_any_moment_of_an_installation_can_be_started_again() {
    let mut fleet = Fleet::of(3, SMALL).await;
    let away = fleet.follower().await;
    let mut story = Story::tell(&fleet.desk(away)).await;
    fleet.stop(away).await;
    let mut leader = fleet.leader().await;
    for sequence in 1..10 {
        story.write(&fleet.desk(leader), write_request("load", sequence, vec![issue("acme", 1)])).await;
    }
    forget_the_log(&fleet).await;
    let left = fleet.seats[&away].disk.copy();
    let mut installed = 0;
    for changes in 0..90 {
        // Disk work is slow, so concurrent work can overtake it.
        let disk: SimDisk = left.copy().with_latency(changes, TIMING.heartbeat / 4);
        fleet.seats.get_mut(&away).unwrap().disk = disk.clone();
        disk.cut_power_after(changes);
        if fleet.try_start(away).await.is_ok() {
            tokio::time::sleep(TIMING.election * 2).await;
        }
        fleet.crash(away, changes);
        fleet.try_start(away).await.unwrap_or_else(|error| panic!("after {changes} changes: {error}"));
        fleet.leader().await;
        let desk = fleet.desk(away);
        assert_eq!(story.picture(&desk).await, story.picture(&fleet.desk(leader)).await, "{changes}");
        installed += u64::from(fleet.status(away).snapshot_index.is_some());
        fleet.stop(away).await;
        // A leader remembers a follower's progress, and the next round uses an older disk.
        for id in fleet.running() {
            fleet.stop(id).await;
        }
        for id in [1, 2, 3].into_iter().filter(|id| *id != away) {
            fleet.start(id).await;
        }
        leader = fleet.leader().await;
    }
    assert!(installed > 40, "{installed} installations prove little");
}
