//! Network partitions: the leader is cut off in one or both directions, then all nodes from each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use serde_json::json;
use ulid::Ulid;

use super::links::Links;
use super::load::Load;
use super::nodes::{COUNT, Nodes};
use super::{kills, summary};
use crate::ask::ask;

/// Duration of a partition, longer than an election.
const CUT: Duration = Duration::from_secs(3);
const PEACE: Duration = Duration::from_millis(400);
/// Delivery time of messages that were in flight when a link was cut.
const ON_ITS_WAY: Duration = Duration::from_millis(100);
/// Latest answer of a node without a majority: its timeout of 5 s, plus time for queued requests on a busy machine.
const DEADLINE: Duration = Duration::from_millis(7_500);

/// The kind of partition.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// No message passes; messages are delivered after the partition.
    Both,
    /// No message passes, and all connections are closed.
    Severed,
    /// Messages from the leader are held back.
    Mute,
    /// Messages to the leader are held back.
    Deaf,
    /// Messages are delayed for longer than the leader's timeout.
    Slow,
}

const CUTS: [Cut; 5] = [Cut::Both, Cut::Mute, Cut::Severed, Cut::Deaf, Cut::Slow];

fn cut(links: &Links, how: Cut, leader: usize) {
    for other in (0..COUNT).filter(|other| *other != leader) {
        links.hold(leader, other, matches!(how, Cut::Both | Cut::Severed | Cut::Mute));
        links.hold(other, leader, matches!(how, Cut::Both | Cut::Severed | Cut::Deaf));
    }
    match how {
        Cut::Severed => links.sever(leader),
        Cut::Slow => links.delay(Duration::from_millis(130)),
        Cut::Both | Cut::Mute | Cut::Deaf => {}
    }
}

/// Sends one node requests that only a leader may answer, and collects the answers.
struct Probes {
    is_over: Arc<AtomicBool>,
    asking: Vec<JoinHandle<Vec<String>>>,
}

impl Probes {
    fn of(url: &str) -> Probes {
        let is_over = Arc::new(AtomicBool::new(false));
        let start = |kind| {
            let (url, is_over) = (url.to_owned(), Arc::clone(&is_over));
            spawn(move || {
                let mut answers = Vec::new();
                while !is_over.load(Ordering::SeqCst) {
                    let (method, path, body) = question(kind);
                    let answered = ask(&url, method, &path, &body, Duration::from_millis(500));
                    // An answer after the partition may be right.
                    if let Ok(answered) = answered
                        && answered.status == 200
                        && !is_over.load(Ordering::SeqCst)
                    {
                        answers.push(format!("{path}: {}", answered.body));
                    }
                    sleep(Duration::from_millis(20));
                }
                answers
            })
        };
        let asking = (0..3).map(start).collect();
        Probes { is_over, asking }
    }

    /// Call this before the partition ends.
    fn stop(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    fn answers(self) -> Vec<String> {
        self.asking.into_iter().flat_map(|asking| asking.join().unwrap()).collect()
    }
}

fn question(kind: usize) -> (&'static str, String, String) {
    match kind {
        0 => {
            let body =
                json!({"lease_id": Ulid::generate().to_string(), "requirements": [{"key": PROBED, "amount": 1}]});
            ("POST", "/v1/reserve".into(), body.to_string())
        }
        1 => {
            let body = json!({
                "namespace": "default", "client_id": Ulid::generate().to_string(), "sequence": 1, "operations": [],
            });
            ("POST", "/v1/write".into(), body.to_string())
        }
        _ => ("GET", format!("/v1/admin/limits/{PROBED}/usage"), String::new()),
    }
}

/// A separate limit, so that probes do not change the counts of the load.
const PROBED: &str = "probed";

#[test]
fn no_acknowledged_outcome_is_lost_or_doubled_when_the_leader_is_partitioned() {
    let mut nodes = Nodes::behind_proxies();
    let load = Arc::new(Load::new(nodes.urls()));
    load.prepare();
    let probed = json!({"key": PROBED, "kind": "concurrency", "capacity": 1_u64 << 30, "timeout_seconds": 3_600});
    let put = ask(&nodes.urls()[0], "PUT", "/v1/admin/limits", &probed.to_string(), DEADLINE).unwrap();
    assert_eq!(put.status, 200, "{}", put.body);
    let workers = Load::start(&load);
    let links = nodes.links();
    let start = Instant::now();
    let mut outages = Vec::new();
    for round in 0..kills() {
        let how = CUTS[usize::try_from(round).unwrap() % CUTS.len()];
        sleep(PEACE);
        let leader = nodes.leader();
        let since = Instant::now();
        match how {
            // The others can elect a leader at once.
            Cut::Both | Cut::Severed | Cut::Mute => {
                let begin = || cut(&links, how, leader);
                outages.push(load.outage("a cut", begin));
            }
            // The others still receive heartbeats, so there is no outage to wait for.
            Cut::Deaf | Cut::Slow => cut(&links, how, leader),
        }
        if matches!(how, Cut::Slow) {
            sleep(CUT);
        } else {
            sleep(ON_ITS_WAY.saturating_sub(since.elapsed()));
            let probes = Probes::of(&nodes.urls()[leader]);
            sleep(CUT.saturating_sub(since.elapsed()));
            // A mute leader still receives the heartbeats of the next leader and follows it.
            if !matches!(how, Cut::Mute) {
                unready(&nodes.urls()[leader]);
            }
            probes.stop();
            links.heal();
            let answers = probes.answers();
            assert!(answers.is_empty(), "{how:?}: a partitioned leader answered: {answers:?}");
        }
        links.heal();
    }
    all_nodes_isolated(&nodes, &links);
    sleep(PEACE);
    let counts = load.finish(workers);
    nodes.leader();
    nodes.settle();
    println!(
        "{:.1?}: {} transfers, {} calls, {} denials, {} tries without an answer\n\
         until the next reserve was answered: {}",
        start.elapsed(),
        counts.transfers,
        counts.calls,
        counts.denials,
        counts.unanswered,
        summary("cuts", outages),
    );
    assert!(counts.transfers > 50 && counts.calls > 50, "hardly anything happened");
    load.check(&counts);
}

/// Isolates every node. Each must fail requests within its timeout and then report that it is not ready.
fn all_nodes_isolated(nodes: &Nodes, links: &Links) {
    nodes.leader();
    for (from, to) in (0..COUNT).flat_map(|from| (0..COUNT).map(move |to| (from, to))) {
        links.hold(from, to, true);
    }
    sleep(ON_ITS_WAY);
    let asking: Vec<_> = nodes
        .urls()
        .iter()
        .flat_map(|url| (0..3).map(move |kind| (url.clone(), kind)))
        .map(|(url, kind)| {
            spawn(move || {
                let (method, path, body) = question(kind);
                let start = Instant::now();
                let answered = ask(&url, method, &path, &body, DEADLINE * 2).unwrap();
                assert!(start.elapsed() < DEADLINE, "{path}: an answer after {:?}", start.elapsed());
                assert!(answered.status >= 500, "{path}: {} {}", answered.status, answered.body);
                let says_why = ["majority", "no leader is known", "leads now", "did not answer within"]
                    .iter()
                    .any(|why| answered.body.contains(why));
                assert!(says_why, "{path}: {}", answered.body);
            })
        })
        .collect();
    asking.into_iter().for_each(|asking| asking.join().expect("an isolated node answered"));
    nodes.urls().iter().for_each(|url| unready(url));
    links.heal();
}

/// Asserts that a node reports that it is not ready, and why.
fn unready(url: &str) {
    let answered = ask(url, "GET", "/readyz", "", DEADLINE).unwrap();
    assert_eq!(answered.status, 503, "{}", answered.body);
    let says_why = ["no majority", "no leader is known"].iter().any(|why| answered.body.contains(why));
    assert!(says_why, "{}", answered.body);
}
