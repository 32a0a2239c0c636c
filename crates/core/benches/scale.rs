//! The Book with ten million live leases: speed, memory, the slowest call while tables grow, snapshots.
//!
//! `cargo bench -p earmark-core --bench scale` needs 4 GiB and a minute or two; `-- 1000000` uses fewer leases.

#![allow(clippy::expect_used, clippy::panic, clippy::arithmetic_side_effects, reason = "a benchmark may")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(missing_docs, unreachable_pub, dead_code, reason = "a benchmark is not read from outside")]

mod workload;

use std::time::{Duration, Instant};

use earmark_core::*;
use workload::{Call, ENDLESS, TOKENS, Workload, put};

const LEASES: u64 = 10_000_000;
/// Simulated load: ten million calls in 100 seconds.
const CALLS_PER_MS: u64 = 100;

fn main() {
    let leases = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(LEASES);
    println!("{leases} live leases of four limits, {CALLS_PER_MS} calls in a millisecond");
    let mut workload = grow(leases);
    reserve_at_scale(&mut workload);
    snapshot(&mut workload);
    while_a_snapshot_is_taken(&mut workload);
    drop(workload);
    falling_due(1_000_000);
    denials(1_000_000);
}

fn line(what: &str, figure: impl std::fmt::Display) {
    println!("{what:<66} {figure}");
}

fn per_second(count: u64, spent: Duration) -> String {
    format!("{:.2} M/s", count as f64 / spent.as_secs_f64() / 1e6)
}

fn ms(spent: Duration) -> String {
    format!("{:.2} ms", spent.as_secs_f64() * 1e3)
}

/// Resident memory of the process, in bytes.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0 kB");
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) * 1024
}

fn grow(leases: u64) -> Workload {
    let mut workload = Workload::new(ENDLESS, CALLS_PER_MS);
    let before = resident_bytes();
    let (mut longest, mut late) = (Duration::ZERO, 0);
    let start = Instant::now();
    let mut last = start;
    for _ in 0..leases {
        workload.admit();
        let now = Instant::now();
        late += u64::from(now - last > Duration::from_millis(1));
        longest = longest.max(now - last);
        last = now;
    }
    line("reserves while growing from none", per_second(leases, start.elapsed()));
    line("  longest call", ms(longest));
    line("  calls over 1 ms", late);
    line("  memory per live lease", format!("{} bytes", (resident_bytes() - before) / leases));
    workload
}

fn reserve_at_scale(workload: &mut Workload) {
    let count = 1_000_000;
    let calls: Vec<Call> = (0..count).map(|_| workload.next_call()).collect();
    let mut outcomes = Vec::new();
    let start = Instant::now();
    for batch in calls.chunks(256) {
        workload.reserve_all(batch, &mut outcomes);
    }
    line("reserves on top of these, in batches of 256", per_second(count, start.elapsed()));
    assert!(outcomes.iter().all(|o| matches!(o, Outcome::Reserve(ReserveOutcome::Created { .. }))));
    let start = Instant::now();
    for _ in 0..count {
        workload.admit();
    }
    line("  one by one", per_second(count, start.elapsed()));
    let start = Instant::now();
    for call in &calls {
        workload.complete(call);
    }
    line("completes", per_second(count, start.elapsed()));
    let start = Instant::now();
    for _ in 0..count {
        let call = workload.admit();
        workload.complete(&call);
    }
    line("reserves and completes, in pairs", per_second(count, start.elapsed()));
}

fn snapshot(workload: &mut Workload) {
    let start = Instant::now();
    let frozen = workload.book.freeze();
    line("freeze", ms(start.elapsed()));
    let start = Instant::now();
    let mut bytes = 0;
    for block in frozen.encode() {
        bytes += block.len();
    }
    let spent = start.elapsed();
    let rate = |spent: Duration| format!("{:.0} MB/s", bytes as f64 / 1e6 / spent.as_secs_f64());
    line("snapshot", format!("{:.0} MB", bytes as f64 / 1e6));
    line("  encode", rate(spent));
    let blocks: Vec<Vec<u8>> = frozen.encode().collect();
    // A restarting node has no other Book in memory.
    drop(frozen);
    drop(std::mem::replace(&mut workload.book, Book::new(Config::default(), 0)));
    let start = Instant::now();
    let mut restore = Restore::new(7);
    for block in &blocks {
        restore.feed(block).expect("a good snapshot");
    }
    workload.book = restore.finish().expect("a whole snapshot");
    line("  decode", rate(start.elapsed()));
    let same = workload.book.freeze().encode().eq(blocks);
    line("  the restored Book encodes the same", same);
    assert!(same);
}

/// Applies commands while another thread encodes a frozen snapshot.
fn while_a_snapshot_is_taken(workload: &mut Workload) {
    let start = Instant::now();
    let frozen = workload.book.freeze();
    let mut longest = start.elapsed();
    let encoder = std::thread::spawn(move || frozen.encode().map(|block| block.len()).sum::<usize>());
    let mut count = 0;
    while !encoder.is_finished() {
        let before = Instant::now();
        let call = workload.admit();
        workload.complete(&call);
        longest = longest.max(before.elapsed());
        count += 1;
    }
    let spent = start.elapsed();
    line("pairs while a snapshot is taken", per_second(count, spent));
    line("  longest pause, the freeze included", ms(longest));
    assert!(encoder.join().is_ok());
}

/// Four full limits with `count` reservations each, one per millisecond.
fn crowd(count: u64, settle: bool) -> (Book, [Part; 4], UnixMs) {
    let mut book = Book::new(Config::default(), 1);
    let mut now = UnixMs::new(1_700_000_000_000);
    let kind = Kind::Rolling { window_seconds: 3_000 };
    let parts = ["a", "b", "c", "d"].map(|key| {
        let limit = put(&mut book, now, key, kind.clone(), count * TOKENS);
        Part { limit: LimitRef::Id(limit), amount: TOKENS }
    });
    let start = Instant::now();
    for number in 0..count {
        now = now.plus_ms(1);
        let lease = LeaseId::from_parts(now, u128::from(number));
        assert!(matches!(reserve(&mut book, now, lease, &parts), ReserveOutcome::Created { .. }));
        if settle {
            let complete = Complete {
                namespace: NamespaceId::DEFAULT,
                lease,
                claim: earmark_core::LeaseClaim::default(),
                actuals: &[],
                labels: &earmark_core::SettleLabels::NONE,
            };
            book.apply(now, Command::Complete(complete));
        }
    }
    if !settle {
        line("reserves that fill four limits, each in its own millisecond", per_second(count, start.elapsed()));
    }
    (book, parts, now)
}

fn reserve(book: &mut Book, now: UnixMs, lease: LeaseId, requirements: &[Part]) -> ReserveOutcome {
    let reserve =
        Reserve { namespace: NamespaceId::DEFAULT, lease, job: None, call: None, by_gateway: false, requirements };
    match book.apply(now, Command::Reserve(reserve)) {
        Outcome::Reserve(outcome) => outcome,
        other => panic!("{other:?}"),
    }
}

fn falling_due(count: u64) {
    let (mut book, parts, now) = crowd(count, false);
    let later = now.plus_ms(3_000_000 - 1);
    let steps = book.steps();
    let start = Instant::now();
    let outcome = reserve(&mut book, later, LeaseId::from_parts(later, 0), &parts);
    let spent = start.elapsed();
    assert!(matches!(outcome, ReserveOutcome::Created { .. }));
    line("the call that finds four million reservations due", format!("{:.1} us", spent.as_secs_f64() * 1e6));
    line("  steps", book.steps() - steps);
}

fn denials(count: u64) {
    for (what, settle) in [("unsettled", false), ("settled", true)] {
        let (mut book, parts, now) = crowd(count, settle);
        let start = Instant::now();
        for number in 0..count {
            let lease = LeaseId::from_parts(now, u128::from(count + number));
            assert!(matches!(reserve(&mut book, now, lease, &parts), ReserveOutcome::Denied(_)));
        }
        let spent = start.elapsed();
        line(&format!("denials by four limits with a million {what} reservations"), per_second(count, spent));
    }
}
