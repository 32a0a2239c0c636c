//! Shared test support.

#![allow(dead_code, unreachable_pub, reason = "every test binary compiles all of this and uses a part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

pub mod client;
pub mod disk;
pub mod log_driver;
pub mod net;
#[path = "../../../core/tests/support/random.rs"]
pub mod random;
pub mod raw_peer;
pub mod real_cluster;
pub mod sim_cluster;
#[path = "../../../core/tests/support/soak.rs"]
pub mod soak;

/// Whether to run every case instead of a sample: in a soak.
pub fn is_exhaustive() -> bool {
    soak::number("EARMARK_SOAK_SECONDS").is_some()
}

/// The first 12 cases and every fourth later one; all of them in a soak.
pub fn sample(count: u64) -> impl Iterator<Item = u64> {
    let is_exhaustive = is_exhaustive();
    (0..count).filter(move |case| is_exhaustive || *case < 12 || case.is_multiple_of(4))
}
