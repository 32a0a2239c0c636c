//! A cluster of three processes under load: the leader is killed, frozen and partitioned, and nodes are backed up.
//!
//! No acknowledged outcome may be lost or applied twice, and no limit may be exceeded.
//! `EARMARK_KILLS=100` repeats each test 100 times instead of five.

mod backup;
mod cuts;
mod gateway;
mod keys;
mod links;
mod load;
mod nodes;

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use load::Load;
use nodes::Nodes;

/// Default for `EARMARK_KILLS`.
const KILLS: u64 = 5;
/// Kills between two freezes of the leader.
const KILLS_PER_FREEZE: u64 = 3;
/// Duration of a freeze: longer than an election, shorter than the longest client timeout.
const FREEZE: Duration = Duration::from_secs(4);
/// Pause between two faults.
const PEACE: Duration = Duration::from_millis(400);

#[test]
fn no_acknowledged_outcome_is_lost_or_doubled_however_often_the_leader_dies() {
    let kills = kills();
    let start = Instant::now();
    let mut nodes = Nodes::start();
    let load = Arc::new(Load::new(nodes.urls()));
    load.prepare();
    let workers = Load::start(&load);
    let (mut killed, mut frozen) = (Vec::new(), Vec::new());
    for kill in 1..=kills {
        sleep(PEACE);
        let leader = nodes.leader();
        killed.push(load.outage("a kill", || nodes.kill(leader)));
        nodes.restart(leader);
        // Half of the time the next leader dies before this node has caught up.
        if kill % 2 == 0 {
            nodes.settled(leader);
        }
        if kill % KILLS_PER_FREEZE == 0 {
            sleep(PEACE);
            let leader = nodes.leader();
            let since = Instant::now();
            frozen.push(load.outage("a freeze", || nodes.signal(leader, "STOP")));
            sleep(FREEZE.saturating_sub(since.elapsed()));
            nodes.signal(leader, "CONT");
        }
    }
    sleep(PEACE);
    let counts = load.finish(workers);
    let all = nodes.leader();
    nodes.settle();
    println!(
        "{:.1?}: {} transfers, {} calls, {} denials, {} tries without an answer; node {all} leads now\n\
         until the next reserve was answered: {}, {}",
        start.elapsed(),
        counts.transfers,
        counts.calls,
        counts.denials,
        counts.unanswered,
        summary("kills", killed),
        summary("freezes", frozen),
    );
    assert!(counts.transfers > 50 && counts.calls > 50, "hardly anything happened");

    load.check(&counts);
}

/// The upgrade steps of docs/operating.md: one node at a time, the leader last. With `EARMARK_PREVIOUS`, versions run
/// beside each other, first older leaders with newer followers, then after a downgrade the reverse.
#[test]
fn nodes_are_upgraded_one_by_one_under_load_and_nothing_is_lost() {
    let mut nodes = Nodes::of_previous_version(crate::upgrade::unpack_node);
    let load = Arc::new(Load::new(nodes.urls()));
    load.prepare();
    let workers = Load::start(&load);
    let upgrade = replace_all(&mut nodes, &load);
    println!("until the next reserve was answered: {upgrade:.2?}, the leader last");
    if nodes.start_previous_version_next() {
        let downgrade = replace_all(&mut nodes, &load);
        println!("the same in a downgrade: {downgrade:.2?}");
    }
    sleep(PEACE);
    let counts = load.finish(workers);
    nodes.settle();
    load.check(&counts);
    // Each entry was applied by an older version on one node and by a newer one on another.
    backup::assert_equal(&nodes);
}

/// Stops each node and starts the next version on its folder, the leader last. Returns the outages.
fn replace_all(nodes: &mut Nodes, load: &Load) -> Vec<Duration> {
    let leader = nodes.leader();
    let followers = (0..nodes.urls().len()).filter(|place| *place != leader);
    let mut outages = Vec::new();
    for place in followers.chain([leader]) {
        sleep(PEACE);
        outages.push(load.outage("a stop", || nodes.stop(place)));
        nodes.restart(place);
        nodes.settled(place);
    }
    outages
}

fn kills() -> u64 {
    std::env::var("EARMARK_KILLS").map_or(KILLS, |kills| kills.parse().unwrap())
}

/// Count, median and longest of some times.
fn summary(what: &str, mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let Some(longest) = times.last() else { return format!("no {what}") };
    format!("{} {what}, median {:.2?}, longest {longest:.2?}", times.len(), times[times.len() / 2])
}
