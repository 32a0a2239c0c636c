//! Many derived limits: speed, memory, churn, and the pause of a snapshot.
//!
//! `cargo bench -p earmark-core --bench limits` needs 5 GiB and a few minutes; `-- 1000000` uses fewer limits. Speeds
//! are by CPU time of this thread, and the longest calls are those without an interruption of it.

#![allow(clippy::expect_used, clippy::panic, clippy::arithmetic_side_effects, reason = "a benchmark may")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(missing_docs, unreachable_pub, dead_code, reason = "a benchmark is not read from outside")]

mod workload;

use std::time::{Duration, Instant};

use earmark_core::*;
use workload::{Call, ENDLESS, Workload, put};

const LIMITS: u64 = 10_000_000;
const BATCH: u64 = 256;
const START_MS: u64 = 1_700_000_000_000;
/// Calls between two readings of the interruptions.
const READ_EVERY: u64 = 64;

const SECTIONS: [&str; 5] = ["defined", "tenth", "all", "two", "churn"];

/// Runs each section in a process of its own, so that none measures the memory that another has freed.
fn main() {
    let limits = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(LIMITS);
    let section = std::env::args().find(|argument| SECTIONS.contains(&argument.as_str()));
    match section.as_deref() {
        None => {
            for section in SECTIONS {
                let exe = std::env::current_exe().expect("this program");
                let child = std::process::Command::new(exe).args([section, &limits.to_string()]).status();
                assert!(child.expect("a process").success(), "{section}");
            }
        }
        Some("defined") => four_defined(),
        Some("tenth") => Users::grown(limits / 10).draw(limits / 10),
        Some("all") => {
            let mut users = Users::grown(limits);
            users.draw(limits);
            users.snapshot();
        }
        Some("two") => two_reservations(limits),
        Some(_) => churn(limits, limits / 10),
    }
}

fn line(what: &str, figure: impl std::fmt::Display) {
    println!("{what:<70} {figure}");
}

fn per_second(count: u64, spent: Duration) -> String {
    format!("{:.2} M/s", count as f64 / spent.as_secs_f64() / 1e6)
}

/// Resident memory of the process, in bytes.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0 kB");
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) * 1024
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(stat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0))
}

/// How often this thread was interrupted so far.
fn interruptions() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// The longest call during which the thread was not interrupted.
struct Longest {
    interrupted: u64,
    calls: u64,
    longest: Duration,
}

impl Longest {
    fn new() -> Longest {
        Longest { interrupted: interruptions(), calls: 0, longest: Duration::ZERO }
    }

    fn call<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = call();
        let spent = start.elapsed();
        self.calls += 1;
        if spent > self.longest || self.calls == READ_EVERY {
            let now = interruptions();
            if now == self.interrupted {
                self.longest = self.longest.max(spent);
            }
            (self.interrupted, self.calls) = (now, 0);
        }
        result
    }
}

fn four_defined() {
    let mut workload = Workload::new(ENDLESS, 1_000);
    let count = 1_000_000;
    let calls: Vec<Call> = (0..count).map(|_| workload.next_call()).collect();
    let mut outcomes = Vec::with_capacity(BATCH as usize);
    let mut spent = Duration::ZERO;
    for batch in calls.chunks(BATCH as usize) {
        outcomes.clear();
        let start = cpu_time();
        workload.reserve_all(batch, &mut outcomes);
        spent += cpu_time() - start;
    }
    line("reserves of four defined limits, in batches", per_second(count, spent));
}

/// A Book with three defined limits and one limit for each user.
struct Users {
    book: Book,
    now: UnixMs,
    shared: [LimitId; 3],
    leases: u64,
    random: u64,
}

/// A key of 24 bytes.
fn key(user: u64) -> LimitKey {
    format!("user:{user:015}:rpm").parse().expect("a valid key")
}

impl Users {
    fn new(config: Config, window_seconds: u32) -> Users {
        let mut book = Book::new(config, 0x5eed);
        let now = UnixMs::new(START_MS);
        let minute = Kind::Rolling { window_seconds: 60 };
        let names = ["global:rpm", "global:tpm", "global:day"];
        let shared = names.map(|name| put(&mut book, now, name, minute.clone(), ENDLESS));
        let key = LimitKey::pattern("user:{user}:rpm").expect("a valid key");
        let definition = Definition::new(key, Kind::Rolling { window_seconds }, ENDLESS);
        let template = Template::new(definition).expect("a valid template");
        let namespace = NamespaceId::DEFAULT;
        let command = PutTemplate { namespace, template: &template, expected_revision: None };
        book.apply(now, Command::PutTemplate(command));
        Users { book, now, shared, leases: 0, random: 1 }
    }

    fn lease(&mut self) -> LeaseId {
        self.leases += 1;
        LeaseId::from_parts(self.now, u128::from(self.leases) << 16)
    }

    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 31)
    }

    /// Reserves the limit of one user and completes with `actual`.
    fn visit(&mut self, user: u64, actual: u64, longest: &mut Longest) {
        let (namespace, lease) = (NamespaceId::DEFAULT, self.lease());
        let parts = [Part { limit: LimitRef::Key(key(user)), amount: 1 }];
        let reserve = Command::Reserve(Reserve {
            namespace,
            lease,
            job: None,
            call: None,
            by_gateway: false,
            requirements: &parts,
        });
        let outcome = longest.call(|| self.book.apply(self.now, reserve));
        assert!(matches!(outcome, Outcome::Reserve(ReserveOutcome::Created { .. })), "{outcome:?}");
        let actuals = [Part { amount: actual, ..parts[0].clone() }];
        let complete = Command::Complete(Complete {
            namespace,
            lease,
            claim: earmark_core::LeaseClaim::default(),
            actuals: &actuals,
            labels: &earmark_core::SettleLabels::NONE,
        });
        longest.call(|| self.book.apply(self.now, complete));
    }

    /// Visits users within one second of log time, so that their leases are forgotten and their limits are not.
    fn visit_all(&mut self, users: u64, actual: u64, longest: &mut Longest) {
        let per_ms = users.div_ceil(900);
        for user in 0..users {
            if user % per_ms == 0 {
                self.now = self.now.plus_ms(1);
            }
            // Not in key order.
            self.visit(user.wrapping_mul(2_654_435_761) % users, actual, longest);
        }
    }

    /// A Book in which each user has a limit that holds nothing.
    fn grown(users: u64) -> Users {
        let config = Config { retention_ms: 1, limits_max: 1 << 27, ..Config::default() };
        let mut book = Users::new(config, 60);
        let before = resident_bytes();
        let mut longest = Longest::new();
        let start = cpu_time();
        book.visit_all(users, 0, &mut longest);
        line(&format!("derivations of {users} limits, with their completes"), per_second(users, cpu_time() - start));
        line("  longest call", format!("{:?}", longest.longest));
        assert_eq!(u64::from(book.book.limit_count()), users + 3);
        line("  memory of an idle one", format!("{} bytes", (resident_bytes() - before) / users));
        book
    }

    /// Reserves of three defined limits and one derived key of `users`.
    fn draw(&mut self, users: u64) {
        let count = 1_000_000;
        let mut spent = Duration::ZERO;
        let mut outcomes = Vec::with_capacity(BATCH as usize);
        let namespace = NamespaceId::DEFAULT;
        for _ in 0..count / BATCH {
            let calls: Vec<(LeaseId, [Part; 4])> = (0..BATCH)
                .map(|_| {
                    let [a, b, c] = self.shared.map(|limit| Part { limit: LimitRef::Id(limit), amount: 1 });
                    let user = Part { limit: LimitRef::Key(key(self.random() % users)), amount: 1 };
                    (self.lease(), [a, b, c, user])
                })
                .collect();
            let commands: Vec<Command<'_>> = calls
                .iter()
                .map(|(lease, parts)| {
                    Command::Reserve(Reserve {
                        namespace,
                        lease: *lease,
                        job: None,
                        call: None,
                        by_gateway: false,
                        requirements: parts,
                    })
                })
                .collect();
            outcomes.clear();
            let start = cpu_time();
            self.book.apply_all(self.now, &commands, &mut outcomes);
            spent += cpu_time() - start;
        }
        let what = format!("reserves of three defined limits and one derived of {users}");
        line(&what, per_second(count, spent));
    }

    /// Freezes the Book, and applies commands while another thread encodes.
    fn snapshot(&mut self) {
        let mut longest = Longest::new();
        let start = Instant::now();
        let frozen = longest.call(|| self.book.freeze());
        line("freeze", format!("{:?}", start.elapsed()));
        let encoder = std::thread::spawn(move || frozen.encode().map(|block| block.len()).sum::<usize>());
        let users = u64::from(self.book.limit_count());
        while !encoder.is_finished() {
            let user = self.random() % (users - 3);
            self.visit(user, 0, &mut longest);
        }
        let bytes = encoder.join().expect("a snapshot");
        line("snapshot", format!("{:.0} MB", bytes as f64 / 1e6));
        line("  longest call meanwhile, the freeze included", format!("{:?}", longest.longest));
    }
}

/// The memory of derived limits with two reservations that have not ended.
fn two_reservations(users: u64) {
    let config = Config { retention_ms: 1, limits_max: 1 << 27, ..Config::default() };
    let mut book = Users::new(config, 86_400);
    let before = resident_bytes();
    let mut longest = Longest::new();
    book.visit_all(users, 1, &mut longest);
    book.now = book.now.plus_ms(60_000);
    book.visit_all(users, 1, &mut longest);
    let bytes = (resident_bytes() - before) / users;
    line(&format!("memory of a derived limit with two reservations, of {users}"), format!("{bytes} bytes"));
}

/// Many keys pass through a Book that holds a tenth of them at once.
fn churn(users: u64, live_max: u64) {
    let config = Config { retention_ms: 2_000, limits_max: live_max as u32 + 3, ..Config::default() };
    let mut book = Users::new(config, 1);
    let per_ms = (live_max / 8_000).max(1);
    let (mut longest, mut most, mut early) = (Longest::new(), 0, 0);
    let start = cpu_time();
    for user in 0..users {
        if user % per_ms == 0 {
            book.now = book.now.plus_ms(1);
        }
        book.visit(user, 0, &mut longest);
        most = most.max(book.book.limit_count());
        if user == users / 3 {
            early = resident_bytes();
        }
    }
    line(&format!("churn of {users} keys, with their completes"), per_second(users, cpu_time() - start));
    line("  most limits at once", most);
    line("  longest call", format!("{:?}", longest.longest));
    let mb = |bytes: u64| bytes / 1_000_000;
    line("  memory after a third, and at the end", format!("{} MB, {} MB", mb(early), mb(resident_bytes())));
}
