//! Real processes killed with SIGKILL under load: acknowledged work exists once, and everything balances.
//!
//! The killed process is this test binary, running only `kill::worker`. `EARMARK_KILLS` sets the number of kills; `cargo
//! xtask soak` uses fifty.

use std::collections::{BTreeMap, HashSet};
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use crate::process::{self, report};
use crate::support::{DEPOSIT, account, fill, hold, namespace, settle, usd, vault, write};
use earmark_admission::{AccountPath, Credits, EntryKind, EntryQuery, HoldAnswer, HoldState, WriteAnswer, Writer};
use earmark_core::{ClientId, LeaseId, Operation, WriteId};
use earmark_credits::conformance::server::Server;
use earmark_credits::{Options, SagaCredits};

const ACCOUNTS: usize = 8;
const CALLERS: usize = 16;

/// Owners expire fast, to keep the test short.
fn options() -> Options {
    Options { owner_timeout_ms: 800, heartbeat: Duration::from_millis(100), ..Options::default() }
}

async fn start(store: &str) -> SagaCredits {
    process::start(store, options()).await
}

/// The process that is killed: callers that spend in a loop.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the tests below start it"]
async fn worker() {
    let Some((store, worker)) = process::assignment() else { return };
    let credits = Arc::new(start(&store).await);
    let callers = (0..CALLERS).map(|caller| {
        let (credits, client) = (Arc::clone(&credits), format!("worker-{worker}-{caller}"));
        tokio::spawn(async move {
            for sequence in 1.. {
                let operations = vec![Operation::Transfer {
                    from: account(caller % ACCOUNTS),
                    to: account((caller + 1) % ACCOUNTS),
                    asset: usd(),
                    amount: 3,
                    memo: String::new(),
                }];
                match credits.write(Writer::system(), write(&client, sequence, operations)).await {
                    Ok(WriteAnswer::Committed(_)) => report(&format!("write {client} {sequence}")),
                    other => panic!("{other:?}"),
                }
                let lease = LeaseId::from_u128(ulid::Ulid::generate().0);
                match credits.hold(None, vec![hold(lease, caller % ACCOUNTS)]).await.remove(0) {
                    Ok(HoldAnswer::Held) => report(&format!("hold {lease}")),
                    other => panic!("{other:?}"),
                }
                match credits.settle(None, vec![settle(lease)]).await.remove(0) {
                    Ok(answer) if answer.is_known => report(&format!("settle {lease}")),
                    other => panic!("{other:?}"),
                }
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.expect("a caller that is served");
    }
}

/// The acknowledged requests.
#[derive(Debug, Default)]
struct Acknowledged {
    writes: BTreeMap<String, u64>,
    held: Vec<LeaseId>,
    settled: Vec<LeaseId>,
}

impl Acknowledged {
    fn hear(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["write", client, sequence] => {
                let last = self.writes.entry(client.to_owned()).or_default();
                let sequence: u64 = sequence.parse().expect("a number");
                assert_eq!(sequence, *last + 1);
                *last = sequence;
            }
            ["hold", lease] => self.held.push(lease.parse().expect("a lease")),
            ["settle", lease] => self.settled.push(lease.parse().expect("a lease")),
            _ => {}
        }
    }
}

/// Starts workers and kills them, `at_once` at a time, `EARMARK_KILLS` times.
fn kill(store: &str, at_once: usize) -> Acknowledged {
    let kills: usize = std::env::var("EARMARK_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(5);
    let mut heard = Acknowledged::default();
    for round in 0..kills {
        let mut workers: Vec<Child> = (0..at_once).map(|_| process::spawn("kill::worker", store)).collect();
        let outputs: Vec<_> = workers
            .iter_mut()
            .map(|worker| {
                let out = worker.stdout.take().expect("an output");
                std::thread::spawn(move || process::lines_of(out).collect::<Vec<String>>())
            })
            .collect();
        // At another moment each time.
        std::thread::sleep(Duration::from_millis(900 + 137 * (round as u64 % 7)));
        for worker in &mut workers {
            worker.kill().expect("a worker that runs");
            let status = worker.wait().expect("a worker that was killed");
            assert_eq!(status.code(), None, "it was killed and did not end by itself");
        }
        for output in outputs {
            let lines = output.join().expect("a worker that was heard");
            lines.iter().for_each(|line| heard.hear(line));
        }
    }
    heard
}

async fn open_accounts(store: &str) {
    let credits = start(store).await;
    fill(&credits, ACCOUNTS).await;
    credits.shut_down().await;
}

/// Recovers, then checks everything.
async fn check(store: &str, heard: &Acknowledged) {
    assert!(!heard.settled.is_empty(), "the workers had time to do something: {heard:?}");
    let credits = start(store).await;
    tokio::time::sleep(Duration::from_millis(900)).await;
    credits.maintain().await.expect("a store that answers");
    let rows = process::open(store).await;
    assert_eq!(rows.orphans(9).await, Ok(vec![]), "nothing is reserved by nobody");
    for (client, acknowledged) in &heard.writes {
        let client = ClientId::new(client).expect("a valid client");
        let last = credits.client_state(namespace(), vault(), client).await.expect("a store that answers");
        assert!(last == *acknowledged || last == *acknowledged + 1, "{acknowledged} and one more at most: {last}");
    }
    for lease in &heard.settled {
        assert_eq!(credits.holds(namespace(), *lease, Vec::new()).await, Ok(HoldState::Ended), "{lease} was settled");
    }
    let settled: HashSet<&LeaseId> = heard.settled.iter().collect();
    let mut unsettled = 0;
    for lease in heard.held.iter().filter(|lease| !settled.contains(lease)) {
        match credits.holds(namespace(), *lease, Vec::new()).await.expect("a store that answers") {
            HoldState::Held => unsettled += 1,
            HoldState::Ended => {}
            other => panic!("{lease} was held, and is {other:?}"),
        }
    }
    let (writes, holds) = (heard.writes.values().sum::<u64>(), heard.held.len());
    println!("{writes} writes, {holds} holds, {unsettled} of them left");
    let audit = credits.audit(namespace(), vault()).await.expect("a store that answers");
    assert!(audit.balanced, "{audit:?}");
    assert_eq!(audit.assets[0].live, (DEPOSIT * ACCOUNTS as u128) as i128);
    sequences_are_there_once(&credits).await;
    let census = rows.census(earmark_credits::VaultKey { namespace: namespace(), vault: vault() }).await;
    assert_eq!(census.expect("a store that answers").records, 0, "no saga is in progress");
    rows.close().await;
    credits.shut_down().await;
}

/// Every client has every sequence once in the histories of all accounts.
async fn sequences_are_there_once(credits: &SagaCredits) {
    let mut found: BTreeMap<(ClientId, u64), u64> = BTreeMap::new();
    for number in 0..ACCOUNTS {
        let path = || AccountPath { namespace: namespace(), vault: vault(), account: account(number) };
        let mut after = 0;
        loop {
            let page =
                credits.entries(path(), EntryQuery::oldest_first(after, 1_000)).await.expect("a store that answers");
            for entry in &page.entries {
                if let EntryKind::Transaction { id: WriteId::Sequence { client, sequence }, .. } = &entry.what {
                    *found.entry((client.clone(), *sequence)).or_default() += 1;
                }
            }
            match page.next {
                Some(next) => after = next,
                None => break,
            }
        }
    }
    let mut last: BTreeMap<ClientId, u64> = BTreeMap::new();
    for ((client, sequence), times) in found {
        if client.as_str() == "operator" {
            continue;
        }
        assert_eq!(times, 2, "a transfer is in two histories: {client} {sequence}");
        let last = last.entry(client.clone()).or_default();
        assert_eq!(sequence, *last + 1, "{client} has every number");
        *last = sequence;
    }
    for (client, last) in last {
        let state = credits.client_state(namespace(), vault(), client.clone()).await;
        assert_eq!(state.expect("a store that answers"), last, "{client}");
    }
}

async fn survives(store: String, at_once: usize) {
    open_accounts(&store).await;
    let heard = tokio::task::spawn_blocking({
        let store = store.clone();
        move || kill(&store, at_once)
    });
    check(&store, &heard.await.expect("workers that were killed")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_on_sqlite_is_killed_under_load_and_nothing_is_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    survives(format!("sqlite:{}", folder.path().join("credits.db").display()), 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_on_postgresql_are_killed_under_load_and_nothing_is_lost() {
    let server = Server::start().expect("a server");
    survives(server.url(), 2).await;
}
