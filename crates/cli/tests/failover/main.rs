//! Three real processes under load, whose leader is killed and frozen again and again.
//!
//! Nothing that was acknowledged may be lost, nothing may happen twice, and no limit may be exceeded at any moment.
//! `EARMARK_KILLS=100` goes on for longer than the usual five.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test that fails panics")]

mod ask;
mod load;
mod nodes;

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use load::{Load, SLOTS, TOKENS, TRANSFERRERS};
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
    let kills = std::env::var("EARMARK_KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    let start = Instant::now();
    let mut nodes = Nodes::start();
    let load = Arc::new(Load::new(nodes.urls()));
    load.prepare();
    let workers = Load::start(&load);
    let mut failovers = Vec::new();
    for kill in 1..=kills {
        sleep(PEACE);
        let leader = nodes.leader();
        nodes.kill(leader);
        failovers.push(load.recovered("a kill"));
        nodes.restart(leader);
        // The next leader dies while this one is behind, or when it is not.
        if kill % 2 == 0 {
            nodes.settled(leader);
        }
        if kill % KILLS_PER_FREEZE == 0 {
            sleep(PEACE);
            let leader = nodes.leader();
            nodes.signal(leader, "STOP");
            let frozen = Instant::now();
            failovers.push(load.recovered("a freeze"));
            sleep(FREEZE.saturating_sub(frozen.elapsed()));
            nodes.signal(leader, "CONT");
        }
    }
    sleep(PEACE);
    let counts = load.finish(workers);
    let all = nodes.leader();
    nodes.settle();
    failovers.sort_unstable();
    println!(
        "{} kills and freezes in {:.1?}: {} transfers, {} calls, {} denials, {} tries without an answer; fail-over \
         median {:.1?}, longest {:.1?}; node {all} leads now",
        failovers.len(),
        start.elapsed(),
        counts.transfers,
        counts.calls,
        counts.denials,
        counts.unanswered,
        failovers[failovers.len() / 2],
        failovers[failovers.len() - 1],
    );
    assert!(counts.transfers > 50 && counts.calls > 50, "hardly anything happened");

    for node in 0..nodes.urls().len() {
        let read = |path: &str| load.read(node, path);
        for (worker, sum) in counts.transferred.iter().enumerate() {
            let balances = read(&format!("/v1/vaults/main/accounts/to-{worker}/balances"));
            assert_eq!(balances["balances"][0]["available"], sum.to_string(), "node {node}, worker {worker}");
            let client = read(&format!("/v1/clients/transferrer-{worker}?namespace=default&vault=main"));
            assert_eq!(client["last_committed_sequence"], counts.sequences[worker], "node {node}");
        }
        let audit = read("/v1/vaults/main/audit");
        assert_eq!(audit["balanced"], true, "node {node}: {audit}");
        let slots = read(&format!("/v1/admin/limits/{SLOTS}/usage"));
        assert_eq!(slots["reserved"], 0, "node {node}: a slot is lost: {slots}");
        let tokens = read(&format!("/v1/admin/limits/{TOKENS}/usage"));
        assert_eq!(tokens["reserved"], counts.tokens, "node {node}: {tokens}");
        assert_eq!(tokens["debt"], 0, "node {node}: {tokens}");
    }
    assert_eq!(counts.transferred.len(), TRANSFERRERS);
}
