//! Three real processes under load, whose leader is killed and frozen again and again, and which are backed up.
//!
//! Nothing that was acknowledged may be lost, nothing may happen twice, and no limit may be exceeded at any moment.
//! `EARMARK_KILLS=100` goes on for longer than the usual five.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test that fails panics")]

mod ask;
mod backup;
mod cuts;
mod keys;
mod links;
mod load;
mod nodes;

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use load::Load;
use nodes::Nodes;

/// How often a leader is killed unless `EARMARK_KILLS` says otherwise.
const KILLS: u64 = 5;
/// After so many kills the leader is frozen once.
const KILLS_PER_FREEZE: u64 = 3;
/// Longer than an election takes, and shorter than the most patient client waits.
const FREEZE: Duration = Duration::from_secs(4);
/// How long the nodes are left alone in between.
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
        // The next leader dies while this one is behind, or when it is not.
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
        told("kills", killed),
        told("freezes", frozen),
    );
    assert!(counts.transfers > 50 && counts.calls > 50, "hardly anything happened");

    load.check(&counts);
}

/// The steps of an upgrade, as the page for operators has them: the leader last, each once the one before has caught up.
#[test]
fn nodes_are_restarted_one_by_one_under_load_and_nothing_is_lost() {
    let mut nodes = Nodes::start();
    let load = Arc::new(Load::new(nodes.urls()));
    load.prepare();
    let workers = Load::start(&load);
    let leader = nodes.leader();
    let mut outages = Vec::new();
    for place in (0..nodes.urls().len()).filter(|place| *place != leader).chain([leader]) {
        sleep(PEACE);
        outages.push(load.outage("a stop", || nodes.stop(place)));
        nodes.restart(place);
        nodes.settled(place);
    }
    sleep(PEACE);
    let counts = load.finish(workers);
    nodes.settle();
    println!("until the next reserve was answered: {outages:.2?}, the leader last");
    load.check(&counts);
}

fn kills() -> u64 {
    std::env::var("EARMARK_KILLS").map_or(KILLS, |kills| kills.parse().unwrap())
}

/// Times in words.
fn told(what: &str, mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let Some(longest) = times.last() else { return format!("no {what}") };
    format!("{} {what}, median {:.2?}, longest {longest:.2?}", times.len(), times[times.len() / 2])
}
