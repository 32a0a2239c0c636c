//! Seeds: a fixed number by default, one with `EARMARK_SEED`, or new ones for `EARMARK_SOAK_SECONDS`.

#![allow(clippy::disallowed_methods, reason = "a soak runs by the clock; the Book that it tests does not")]

use std::env;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::random::Random;

/// Calls `run` with every seed of this run and prints their number.
pub fn each_seed(what: &str, by_default: u64, mut run: impl FnMut(u64)) {
    if let Some(seed) = number("EARMARK_SEED") {
        return run(seed);
    }
    let Some(seconds) = number("EARMARK_SOAK_SECONDS") else {
        return (0..by_default).for_each(run);
    };
    let start_seed = number("EARMARK_START_SEED").unwrap_or_else(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        u64::try_from(since.as_nanos() & 0xffff_ffff).unwrap()
    });
    println!("{what}: soaking for {seconds} s from EARMARK_START_SEED={start_seed}");
    let started = Instant::now();
    let mut seeds = Random::new(start_seed);
    let mut count = 0_u64;
    while started.elapsed() < Duration::from_secs(seconds) {
        run(seeds.next());
        count += 1;
    }
    println!("{what}: {count} seeds from EARMARK_START_SEED={start_seed} in {seconds} s");
}

pub fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}: found {text:?}, a whole number is needed")))
}
