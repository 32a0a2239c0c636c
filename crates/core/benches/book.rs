//! Cost of single commands. Run with `cargo bench -p earmark-core --bench book`.

#![allow(clippy::expect_used, clippy::panic, clippy::arithmetic_side_effects, reason = "a benchmark may")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(missing_docs, unreachable_pub, dead_code, reason = "a benchmark is not read from outside")]

mod workload;

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use earmark_core::{Outcome, ReserveOutcome};
use workload::{Call, ENDLESS, TOKENS, Workload};

/// Calls measured on one Book before a new one is created, to bound memory.
const ROUND: u64 = 500_000;
/// Simulated load: one million calls per second.
const CALLS_PER_MS: u64 = 1_000;

/// Runs `job` `iterations` times on Books from `setup`; returns the time without the setup.
fn rounds<S>(iterations: u64, setup: impl Fn() -> S, mut job: impl FnMut(&mut S)) -> Duration {
    let mut spent = Duration::ZERO;
    let mut left = iterations;
    while left > 0 {
        let round = left.min(ROUND);
        let mut state = setup();
        let start = Instant::now();
        for _ in 0..round {
            job(&mut state);
        }
        spent += start.elapsed();
        left -= round;
    }
    spent
}

fn workload_with(live: u64) -> Workload {
    let mut workload = Workload::new(ENDLESS, CALLS_PER_MS);
    for _ in 0..live {
        workload.admit();
    }
    workload
}

/// A Book in which the tokens of every model are reserved.
fn full_workload() -> Workload {
    let mut workload = Workload::new(500 * TOKENS, u64::MAX);
    for _ in 0..30_000 {
        let call = workload.next_call();
        workload.reserve(&call);
    }
    workload
}

fn benches(c: &mut Criterion) {
    let mut group = c.benchmark_group("four limits");
    group.throughput(Throughput::Elements(1)).sample_size(20).measurement_time(Duration::from_secs(8));
    group.bench_function("reserve, from 10,000 live", |b| {
        b.iter_custom(|n| rounds(n, || workload_with(10_000), |workload| _ = workload.admit()));
    });
    group.bench_function("reserve and complete", |b| {
        let setup = || workload_with(10_000);
        b.iter_custom(|n| {
            rounds(n, setup, |workload| {
                let call = workload.admit();
                workload.complete(&call);
            })
        });
    });
    group.bench_function("denial, hint included", |b| {
        b.iter_custom(|n| {
            rounds(n, full_workload, |workload| {
                let call = workload.next_call();
                let outcome = workload.reserve(&call);
                assert!(matches!(outcome, Outcome::Reserve(ReserveOutcome::Denied(_))), "{outcome:?}");
            })
        });
    });
    group.bench_function("first extension of a lease, by its four limits", |b| {
        let setup = || {
            let mut workload = workload_with(10_000);
            let calls: Vec<Call> = (0..ROUND).map(|_| workload.admit()).collect();
            (workload, calls.into_iter())
        };
        b.iter_custom(|n| {
            rounds(n, setup, |(workload, calls)| {
                let call = calls.next().expect("one call for each extension");
                workload.extend(&call, 1);
            })
        });
    });
    group.bench_function("further extension of a lease, by its four limits", |b| {
        let setup = || {
            let mut workload = workload_with(10_000);
            let calls: Vec<Call> = (0..64).map(|_| workload.admit()).collect();
            (workload, calls, 0_u64)
        };
        b.iter_custom(|n| {
            rounds(n, setup, |(workload, calls, done)| {
                workload.extend(&calls[(*done % 64) as usize], (*done / 64) as u32 + 1);
                *done += 1;
            })
        });
    });
    group.bench_function("retry of a live lease", |b| {
        let setup = || {
            let mut workload = workload_with(10_000);
            let call = workload.admit();
            (workload, call)
        };
        b.iter_custom(|n| rounds(n, setup, |(workload, call)| drop(workload.reserve(call))));
    });
    group.finish();
}

criterion_group!(book, benches);
criterion_main!(book);
