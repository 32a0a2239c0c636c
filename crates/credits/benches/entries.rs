//! Entries of credit per second that each store commits.
//!
//! `cargo bench -p earmark-credits` measures every store, `-- memory sqlite` only those. Three figures each: sixteen
//! callers with an account each, sixty-four callers of one account, and sixteen callers that settle the holds of
//! another process. `EARMARK_BENCH_ENTRIES=1000000` commits that many entries in between and repeats the first and the
//! last figure. Behind each is the CPU time of an entry, that of a private PostgreSQL server included: on a busy machine
//! it varies less than the speed. `EARMARK_BENCH_SECONDS=1` shortens the measurements.

#![allow(clippy::expect_used, clippy::panic, reason = "a bench may")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use earmark_admission::{
    Amount, Credits, HoldAnswer, HoldPart, HoldRequest, SettleRequest, SystemClock, WriteAnswer, Writer,
};
use earmark_core::{AccountName, Definition, GrantTerms, LeaseId, Operation, Overdraft};
use earmark_credits::conformance::server;
use earmark_credits::{
    MemoryStore, Options, PostgresOptions, PostgresStore, SagaCredits, SqliteOptions, SqliteStore, Store,
};

use support::{credit_limit, namespace, usd, write};

/// Duration of each measurement, in seconds.
const SPAN_SECONDS: u64 = 5;
const CALLERS: usize = 16;
const CROWD: usize = 64;
/// Leases of another process that each caller settles.
const FOREIGN: usize = 64;
/// Clock ticks per second in `/proc/<pid>/stat`, on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;
/// Callers that fill the store between measurements.
const RUSH: usize = 256;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|word| word == name);
    let between = std::env::var("EARMARK_BENCH_ENTRIES").ok().and_then(|count| count.parse().ok());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    if is_wanted("memory") {
        runtime.block_on(measure("memory", Arc::new(MemoryStore::new()), between, None));
    }
    if is_wanted("sqlite") {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("credits.db");
        let opened = runtime.block_on(SqliteStore::open(&path, SqliteOptions::default()));
        runtime.block_on(measure("sqlite", Arc::new(opened.expect("a store")), between, None));
    }
    if is_wanted("postgres") {
        // A private server on this disk, unless one is given.
        let given = std::env::var(server::URL_VARIABLE).ok();
        let own = given.is_none().then(|| server::Server::start().expect("a server"));
        let url = given.or(own.as_ref().map(server::Server::url)).expect("a server");
        let opened = runtime.block_on(PostgresStore::open(&url, PostgresOptions::default()));
        let postmaster = own.as_ref().and_then(postmaster);
        runtime.block_on(measure("postgres", Arc::new(opened.expect("a store")), between, postmaster));
    }
}

/// The process of a server, whose children serve the connections.
fn postmaster(server: &server::Server) -> Option<u32> {
    let text = std::fs::read_to_string(server.socket().with_file_name("data/postmaster.pid")).ok()?;
    text.lines().next()?.parse().ok()
}

/// The CPU time in microseconds of this process, and of a PostgreSQL server; 0 where there is no `/proc`.
fn cpu_us(postmaster: Option<u32>) -> f64 {
    let own = std::process::id();
    let of = |stat: String| {
        let (id, rest) = (stat.split(' ').next()?.parse::<u32>().ok()?, stat.rsplit_once(") ")?.1);
        let field = |place: usize| rest.split(' ').nth(place)?.parse::<u32>().ok();
        let is_meant = id == own || postmaster.is_some_and(|server| id == server || field(1) == Some(server));
        is_meant.then_some(f64::from(field(11)? + field(12)?))
    };
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let stats = processes.filter_map(|process| std::fs::read_to_string(process.path().join("stat")).ok());
    stats.filter_map(of).sum::<f64>() * 1e6 / TICKS_PER_SECOND
}

async fn measure(name: &str, store: Arc<dyn Store>, between: Option<u64>, postmaster: Option<u32>) {
    let seconds = std::env::var("EARMARK_BENCH_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let span = Until::Time(Duration::from_secs(seconds.unwrap_or(SPAN_SECONDS)));
    let start = async || {
        let credits = SagaCredits::start(Arc::clone(&store), Arc::new(SystemClock::new()), Options::default());
        credits.await.expect("a store that answers")
    };
    let (credits, other) = (start().await, start().await);
    let bench = Arc::new(Bench { credits, other, leases: AtomicU64::new(0), postmaster });
    let accounts: Vec<String> = (0..CALLERS).map(|caller| format!("tenant-{caller}")).collect();
    bench.open(&accounts).await;
    bench.open(&["crowd".to_owned()]).await;
    bench.run(&accounts, CALLERS, Until::Count(1_000)).await;
    let (early, early_us, cpu) = bench.run(&accounts, CALLERS, span).await;
    println!("{name:<10} {CALLERS} callers: {early:>8.0} entries/s, {early_us:>8.0} us each, {cpu:>6.0} us of CPU");
    let (crowd, crowd_us, cpu) = bench.run(&["crowd".to_owned()], CROWD, span).await;
    println!(
        "{name:<10} {CROWD} callers of one account: {crowd:>8.0} entries/s, {crowd_us:>8.0} us each, {cpu:>6.0} us of CPU, {:.2} of the above",
        crowd / early
    );
    let (foreign, cpu) = bench.settle_foreign(&accounts).await;
    println!("{name:<10} {CALLERS} callers, leases of another process: {foreign:>8.0} entries/s, {cpu:>6.0} us of CPU");
    if let Some(count) = between {
        bench.run(&accounts, RUSH, Until::Count(count)).await;
        let (late, late_us, _) = bench.run(&accounts, CALLERS, span).await;
        println!(
            "{name:<10} {CALLERS} callers after {count}: {late:>8.0} entries/s, {late_us:>8.0} us each, {:.2} times the cost",
            early / late
        );
        let (late, _) = bench.settle_foreign(&accounts).await;
        println!(
            "{name:<10} {CALLERS} callers, leases of another process after {count}: {late:>8.0} entries/s, {:.2} times the cost",
            foreign / late
        );
    }
    bench.other.shut_down().await;
    bench.credits.shut_down().await;
}

#[derive(Clone, Copy)]
enum Until {
    Time(Duration),
    Count(u64),
}

struct Bench {
    credits: SagaCredits,
    /// A second process: it shares the rows and has no memory of the first one's holds.
    other: SagaCredits,
    leases: AtomicU64,
    postmaster: Option<u32>,
}

fn limit(account: &str) -> Arc<Definition> {
    credit_limit(account, AccountName::new(account).expect("a valid account"))
}

impl Bench {
    /// Opens accounts, each with one large deposit.
    async fn open(&self, names: &[String]) {
        for name in names {
            let account = AccountName::new(name).expect("a valid account");
            let operations = vec![
                Operation::OpenAccount { account: account.clone(), overdraft: Overdraft::Deny, plan: None },
                Operation::Issue {
                    account,
                    asset: usd(),
                    amount: 1 << 60,
                    memo: String::new(),
                    terms: GrantTerms::PLAIN,
                },
            ];
            let request = write(name, 1, operations);
            let answer = self.credits.write(Writer::system(), request).await.expect("a store that answers");
            assert!(matches!(answer, WriteAnswer::Committed(_)), "{answer:?}");
        }
    }

    /// One call: hold, then settle. Two entries.
    async fn call(&self, limit: &Arc<Definition>) {
        let lease = self.hold(limit).await;
        settle(&self.credits, limit, lease).await;
    }

    async fn hold(&self, limit: &Arc<Definition>) -> LeaseId {
        let lease = LeaseId::from_u128(u128::from(self.leases.fetch_add(1, Ordering::Relaxed)));
        let holds = vec![HoldPart { limit: Arc::clone(limit), amount: 100 }];
        let hold = HoldRequest { namespace: namespace(), lease, holds };
        let held = self.credits.hold(None, vec![hold]).await.remove(0).expect("a store that answers");
        assert_eq!(held, HoldAnswer::Held);
        lease
    }

    /// Entries per second of callers that settle another process's leases, and the CPU time of each.
    async fn settle_foreign(self: &Arc<Bench>, accounts: &[String]) -> (f64, f64) {
        let mut callers = Vec::with_capacity(accounts.len());
        for limit in accounts.iter().map(|account| limit(account)) {
            let mut leases = Vec::with_capacity(FOREIGN);
            for _ in 0..FOREIGN {
                leases.push(self.hold(&limit).await);
            }
            callers.push((limit, leases));
        }
        let (start, cpu) = (Instant::now(), cpu_us(self.postmaster));
        let tasks = callers.into_iter().map(|(limit, leases)| {
            let bench = Arc::clone(self);
            tokio::spawn(async move {
                for lease in leases {
                    settle(&bench.other, &limit, lease).await;
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.expect("a caller that is served");
        }
        let entries = (accounts.len() * FOREIGN) as f64;
        (entries / start.elapsed().as_secs_f64(), (cpu_us(self.postmaster) - cpu) / entries)
    }

    /// Entries per second, microseconds per entry of one caller, and the CPU time of an entry.
    async fn run(self: &Arc<Bench>, accounts: &[String], callers: usize, until: Until) -> (f64, f64, f64) {
        let cpu = cpu_us(self.postmaster);
        let (start, done) = (Instant::now(), Arc::new(AtomicU64::new(0)));
        let tasks: Vec<_> = (0..callers)
            .map(|caller| {
                let limit = limit(&accounts[caller % accounts.len()]);
                let (bench, done) = (Arc::clone(self), Arc::clone(&done));
                tokio::spawn(async move {
                    loop {
                        let is_over = match until {
                            Until::Time(span) => start.elapsed() >= span,
                            Until::Count(count) => done.load(Ordering::Relaxed) >= count,
                        };
                        if is_over {
                            return;
                        }
                        bench.call(&limit).await;
                        done.fetch_add(2, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("a caller that is served");
        }
        let entries = done.load(Ordering::Relaxed) as f64;
        let seconds = start.elapsed().as_secs_f64();
        let cpu = cpu_us(self.postmaster) - cpu;
        (entries / seconds, seconds * 1e6 * callers as f64 / entries, cpu / entries)
    }
}

async fn settle(credits: &SagaCredits, limit: &Definition, lease: LeaseId) {
    let actuals = vec![Amount { key: limit.key.clone(), amount: 70 }];
    let settle = SettleRequest {
        namespace: namespace(),
        lease,
        actuals,
        is_release: false,
        labels: earmark_core::SettleLabels::NONE,
    };
    let settled = credits.settle(None, vec![settle]).await.remove(0).expect("a store that answers");
    assert_eq!(settled.paid, 70);
}
