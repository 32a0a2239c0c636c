//! What one command costs. `cargo bench -p earmark-core --bench book`

#![allow(clippy::expect_used, clippy::panic, clippy::arithmetic_side_effects, reason = "a benchmark may")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(missing_docs, unreachable_pub, dead_code, reason = "a benchmark is not read from outside")]

mod workload;

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use earmark_core::{Outcome, ReserveOutcome};
use workload::{Desk, ENDLESS, TOKENS};

/// Calls that are measured on one Book before a new one is made, so that memory stays bounded.
const ROUND: u64 = 500_000;
/// 1,000 calls in a millisecond: a million a second.
const CALLS_PER_MS: u64 = 1_000;

/// Runs `job` as often as asked, on Books that `setup` made, and gives the time without the set-up.
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

fn desk_with(live: u64) -> Desk {
    let mut desk = Desk::new(ENDLESS, CALLS_PER_MS);
    for _ in 0..live {
        desk.admit();
    }
    desk
}

/// A Book in which every model's tokens are taken.
fn full_desk() -> Desk {
    let mut desk = Desk::new(500 * TOKENS, u64::MAX);
    for _ in 0..30_000 {
        let call = desk.next_call();
        desk.reserve(&call);
    }
    desk
}

fn benches(c: &mut Criterion) {
    let mut group = c.benchmark_group("four limits");
    group.throughput(Throughput::Elements(1)).sample_size(20).measurement_time(Duration::from_secs(8));
    group.bench_function("reserve, from 10,000 live", |b| {
        b.iter_custom(|n| rounds(n, || desk_with(10_000), |desk| _ = desk.admit()));
    });
    group.bench_function("reserve and complete", |b| {
        let setup = || desk_with(10_000);
        b.iter_custom(|n| {
            rounds(n, setup, |desk| {
                let call = desk.admit();
                desk.complete(&call);
            })
        });
    });
    group.bench_function("denial, hint included", |b| {
        b.iter_custom(|n| {
            rounds(n, full_desk, |desk| {
                let call = desk.next_call();
                let outcome = desk.reserve(&call);
                assert!(matches!(outcome, Outcome::Reserve(ReserveOutcome::Denied(_))), "{outcome:?}");
            })
        });
    });
    group.bench_function("retry of a live lease", |b| {
        let setup = || {
            let mut desk = desk_with(10_000);
            let call = desk.admit();
            (desk, call)
        };
        b.iter_custom(|n| rounds(n, setup, |(desk, call)| drop(desk.reserve(call))));
    });
    group.finish();
}

criterion_group!(book, benches);
criterion_main!(book);
