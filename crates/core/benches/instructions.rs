//! Instructions of single commands, which vary less than times. Needs valgrind. Run with
//! `cargo bench -p earmark-core --bench instructions`.

#![allow(clippy::expect_used, clippy::panic, clippy::arithmetic_side_effects, reason = "a benchmark may")]
#![allow(missing_docs, unreachable_pub, dead_code, reason = "a benchmark is not read from outside")]

mod workload;

use std::process::Command;

use workload::{Call, ENDLESS, TOKENS, Workload};

/// Calls that are counted, after as many leases as `book` has at its start.
const COUNTED: u64 = 20_000;
const LIVE: u64 = 10_000;
/// Simulated load: one million calls per second.
const CALLS_PER_MS: u64 = 1_000;

/// The measured operations, by name.
const OPERATIONS: [(&str, fn()); 6] = [
    ("reserve", reserve),
    ("reserve and complete", reserve_and_complete),
    ("denial, hint included", denial),
    ("first extension of a lease", first_extension),
    ("further extension of a lease", further_extension),
    ("retry of a live lease", retry),
];

/// Counts each operation in a process of its own; with the name of one, runs it.
fn main() {
    let name = std::env::args().nth(1).unwrap_or_default();
    if let Some((_, run)) = OPERATIONS.iter().find(|(operation, _)| *operation == name) {
        return run();
    }
    for (operation, _) in OPERATIONS {
        println!("{:>6} instructions  {operation}", count(operation) / COUNTED);
    }
}

/// The instructions inside of [`counted`], as callgrind prints them.
fn count(operation: &str) -> u64 {
    let program = std::env::current_exe().expect("the path of this program");
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*counted*"]);
    let output = valgrind.arg(program).arg(operation).output().expect("valgrind, which counts instructions");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = text.lines().find_map(|line| line.split_once("Collected : ")).expect("a count of callgrind");
    line.1.trim().parse().expect("a number")
}

#[inline(never)]
fn counted(mut job: impl FnMut(u64)) {
    (0..COUNTED).for_each(&mut job);
}

fn workload_with(live: u64) -> Workload {
    let mut workload = Workload::new(ENDLESS, CALLS_PER_MS);
    for _ in 0..live {
        workload.admit();
    }
    workload
}

fn reserve() {
    let mut workload = workload_with(LIVE);
    counted(|_| _ = workload.admit());
}

fn reserve_and_complete() {
    let mut workload = workload_with(LIVE);
    counted(|_| {
        let call = workload.admit();
        workload.complete(&call);
    });
}

/// In a Book in which the tokens of every model are reserved.
fn denial() {
    let mut workload = Workload::new(500 * TOKENS, u64::MAX);
    for _ in 0..30_000 {
        let call = workload.next_call();
        workload.reserve(&call);
    }
    counted(|_| {
        let call = workload.next_call();
        workload.reserve(&call);
    });
}

fn first_extension() {
    let mut workload = workload_with(LIVE);
    let calls: Vec<Call> = (0..COUNTED).map(|_| workload.admit()).collect();
    counted(|at| workload.extend(&calls[at as usize], 1));
}

fn further_extension() {
    let mut workload = workload_with(LIVE);
    let calls: Vec<Call> = (0..64).map(|_| workload.admit()).collect();
    counted(|at| workload.extend(&calls[(at % 64) as usize], (at / 64) as u32 + 1));
}

fn retry() {
    let mut workload = workload_with(LIVE);
    let call = workload.admit();
    counted(|_| drop(workload.reserve(&call)));
}
