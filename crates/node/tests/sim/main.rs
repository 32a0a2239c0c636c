//! Whole clusters in one thread: real nodes on simulated disks, links and clocks, all driven by one seed.
//!
//! A step is one thing that a caller asks of a node. `EARMARK_SEED` replays a seed, `EARMARK_SIM_STEPS` makes it as
//! long as wanted, and `EARMARK_SIM_TRACE` prints everything that is asked, answered and broken.

#![allow(unreachable_pub, reason = "all of it is one binary")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod caller;
mod faults;
mod finish;
mod host;
mod oracle;
#[path = "../support/mod.rs"]
mod support;
mod world;

use support::soak::{each_seed, number};
use world::{simulate, start_leader_again};

/// Long enough for a few faults of each kind.
const STEPS_SHORT: u64 = 600;
const STEPS_LONG: u64 = 10_000;

fn steps() -> u64 {
    let by_default = if number("EARMARK_SOAK_SECONDS").is_some() { STEPS_LONG } else { STEPS_SHORT };
    number("EARMARK_SIM_STEPS").unwrap_or(by_default)
}

#[test]
fn nothing_acknowledged_is_lost_doubled_or_forgotten_by_three_nodes() {
    each_seed("sim of three", 4, |seed| _ = simulate(seed, 3, steps()));
}

#[test]
fn nothing_acknowledged_is_lost_doubled_or_forgotten_by_five_nodes() {
    each_seed("sim of five", 2, |seed| _ = simulate(seed, 5, steps()));
}

#[test]
fn a_seed_runs_twice_alike() {
    let seed = number("EARMARK_SEED").unwrap_or(1);
    let steps = number("EARMARK_SIM_STEPS").unwrap_or(STEPS_SHORT);
    let first = simulate(seed, 3, steps);
    let second = simulate(seed, 3, steps);
    assert_eq!(first, second, "seed {seed}: the histories or the disks differ");
}

/// openraft lets a leader that starts again within its own term lead on at once, and then takes the first entry of that
/// term for as far as a read must have come. The leader had acknowledged more before it stopped, and for a moment its
/// reads knew nothing of it: an account that had just been opened was not there.
#[test]
fn a_leader_that_starts_again_answers_no_read_before_it_has_committed_what_it_had() {
    (0..5).for_each(start_leader_again);
}
