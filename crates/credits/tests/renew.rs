//! Two real processes on one database issue plans and expire their credit, while one of them is killed with SIGKILL and
//! replaced. Each period is issued once, and each grant expires once.

use std::collections::BTreeMap;
use std::io::{BufRead, Write, stdin};
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use crate::process::{self, report};
use crate::support::{account, namespace, usd, vault, write};
use earmark_admission::{AccountPath, Clock, Credits, EntryKind, EntryQuery, SystemClock, WriteAnswer, Writer};
use earmark_core::{CarryOver, Moment, Operation, Overdraft, Period, Plan, UnixMs};
use earmark_credits::conformance::server::Server;
use earmark_credits::{Options, PostgresOptions, SagaCredits};

const ACCOUNTS: usize = 12;
const AMOUNT: u64 = 100;
/// How much faster than the machine the clock runs: an hour takes a quarter of a second.
const SPEED: u64 = 14_400;
const HOUR_MS: u64 = 3_600_000;
/// The fewest periods that the processes must see.
const PERIODS_MIN: usize = 8;

/// A clock that all processes with the same start agree on.
struct FastClock {
    start_ms: u64,
    machine: SystemClock,
}

impl Clock for FastClock {
    fn now(&self) -> Moment {
        let passed_ms = self.machine.now().wall.get().saturating_sub(self.start_ms);
        let now = UnixMs::new(self.start_ms + passed_ms * SPEED);
        Moment { log: now, wall: now }
    }
}

async fn start(store: &str, start_ms: u64) -> SagaCredits {
    // No process counts as dead in the time of this test.
    let options =
        Options { heartbeat: Duration::from_millis(40), owner_timeout_ms: 100 * HOUR_MS, ..Options::default() };
    let database = PostgresOptions { keeps_time: false, ..PostgresOptions::default() };
    let clock = FastClock { start_ms, machine: SystemClock::new() };
    let started = SagaCredits::start(process::open_as(store, database).await, Arc::new(clock), options).await;
    started.expect("a store that answers")
}

/// One of the processes. The parent writes when its clock starts, and closes the pipe to end it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the tests below start it"]
async fn renewer() {
    let Some((store, number)) = process::assignment() else { return };
    let word = stdin().lock().lines().next();
    let start_ms = word.expect("a word").expect("a word").parse().expect("a time");
    let credits = Arc::new(start(&store, start_ms).await);
    report("ready");
    // Decisions about the accounts issue and expire too.
    let deciding = tokio::spawn({
        let credits = Arc::clone(&credits);
        async move {
            let client = format!("renewer-{number}");
            for sequence in 1.. {
                let retire = Operation::Retire {
                    account: account(sequence as usize % ACCOUNTS),
                    asset: usd(),
                    amount: 1,
                    memo: String::new(),
                };
                let written = credits.write(Writer::system(), write(&client, sequence, vec![retire])).await;
                assert!(matches!(written, Ok(WriteAnswer::Committed(_))), "{written:?}");
            }
        }
    });
    tokio::task::spawn_blocking(move || stdin().lock().lines().next()).await.expect("a parent that ends");
    assert!(!deciding.is_finished(), "every decision is made");
    deciding.abort();
    credits.shut_down().await;
}

fn spawn(store: &str, start_ms: u64) -> Child {
    let mut child = process::spawn("renew::renewer", store);
    writeln!(child.stdin.as_mut().expect("a pipe"), "{start_ms}").expect("a process that listens");
    let mut lines = process::lines_of(child.stdout.take().expect("an output"));
    assert!(lines.any(|line| line == "ready"), "a process that starts");
    // The pipe must be read to the end.
    std::thread::spawn(move || lines.for_each(drop));
    child
}

fn end(mut child: Child) {
    drop(child.stdin.take());
    assert!(child.wait().expect("a process that ends").success());
}

/// Starts two processes, kills one, and starts another in its place.
fn run(store: &str, start_ms: u64) {
    let (steady, mut killed) = (spawn(store, start_ms), spawn(store, start_ms));
    std::thread::sleep(Duration::from_millis(2_000));
    killed.kill().expect("a process that can be killed");
    killed.wait().expect("a process that ends");
    let next = spawn(store, start_ms);
    std::thread::sleep(Duration::from_millis(2_000));
    end(steady);
    end(next);
}

/// The credit of one account.
#[derive(Default)]
struct Moved {
    /// The ends of the issued periods, in order of their entries.
    ends: Vec<u64>,
    issued: i128,
    /// The expired amounts, by the end of their period.
    expired: BTreeMap<u64, Vec<i128>>,
}

async fn moved(credits: &SagaCredits, number: usize) -> Moved {
    let path = AccountPath { namespace: namespace(), vault: vault(), account: account(number) };
    let (mut moved, mut after) = (Moved::default(), 0);
    loop {
        let query = EntryQuery::oldest_first(after, 1_000);
        let page = credits.entries(path.clone(), query).await.expect("a store that answers");
        for entry in &page.entries {
            let (EntryKind::Plan { terms, .. } | EntryKind::Expire(terms)) = &entry.what else { continue };
            let (ends_at, amount) = (terms.expires_at().expect("a period").get(), entry.changes[0].amount);
            match entry.what {
                EntryKind::Plan { .. } => {
                    moved.ends.push(ends_at);
                    moved.issued += amount;
                }
                _ => moved.expired.entry(ends_at).or_default().push(amount),
            }
        }
        match page.next {
            Some(next) => after = next,
            None => return moved,
        }
    }
}

async fn renew(store: String) {
    let start_ms = SystemClock::new().now().wall.get();
    let credits = start(&store, start_ms).await;
    // Every other plan keeps all of its credit, so that missed periods are issued too.
    let open = |number| {
        let carry_over = if number % 2 == 0 { CarryOver::Max(1_000_000) } else { CarryOver::None };
        let plan = Plan { asset: usd(), amount: AMOUNT, period: Period::Hour, utc_offset_minutes: 0, carry_over };
        Operation::OpenAccount { account: account(number), overdraft: Overdraft::Allow, plan: Some(plan) }
    };
    let opened = credits.write(Writer::system(), write("operator", 1, (0..ACCOUNTS).map(open).collect())).await;
    assert!(matches!(opened, Ok(WriteAnswer::Committed(_))), "{opened:?}");
    credits.shut_down().await;
    let running = tokio::task::spawn_blocking({
        let store = store.clone();
        move || run(&store, start_ms)
    });
    running.await.expect("processes that end");
    let credits = start(&store, start_ms).await;
    credits.abandon();
    let (mut periods, mut expired) = (0, 0);
    for number in 0..ACCOUNTS {
        let moved = moved(&credits, number).await;
        let (first, last) = (moved.ends[0], moved.ends[moved.ends.len() - 1]);
        assert!(moved.ends.is_sorted_by(|a, b| a < b), "account {number}: {:?}", moved.ends);
        let count = if number % 2 == 0 { (last - first) / HOUR_MS + 1 } else { moved.ends.len() as u64 };
        assert_eq!(moved.issued, i128::from(count * AMOUNT), "account {number}: {:?}", moved.ends);
        assert!(moved.ends.len() >= PERIODS_MIN, "account {number}: {:?}", moved.ends);
        for (ends_at, amounts) in &moved.expired {
            assert!(moved.ends.contains(ends_at), "account {number}: {ends_at}");
            assert_eq!(amounts.len(), 1, "account {number}: {amounts:?}");
        }
        assert!(number % 2 == 1 || moved.expired.is_empty(), "account {number} keeps its credit");
        (periods, expired) = (periods + moved.ends.len(), expired + moved.expired.len());
    }
    println!("{periods} periods issued, {expired} grants expired");
    assert!(expired >= PERIODS_MIN, "{expired}");
    let audit = credits.audit(namespace(), vault()).await.expect("a store that answers");
    assert!(audit.balanced, "{audit:?}");
    credits.shut_down().await;
    let rows = process::open(&store).await;
    assert_eq!(rows.orphans(9).await, Ok(vec![]), "nothing is reserved by nobody");
    rows.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_on_postgresql_renew_and_expire_the_same_accounts_once_each() {
    let server = Server::start().expect("a server");
    renew(server.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_on_one_file_of_sqlite_renew_and_expire_the_same_accounts_once_each() {
    let folder = tempfile::tempdir().expect("a folder");
    renew(format!("sqlite:{}", folder.path().join("credits.db").display())).await;
}
