//! Shared test support.

#![allow(dead_code, unreachable_pub, reason = "every test binary compiles all of this and uses a part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

pub mod client;
pub mod disk;
pub mod log_driver;
pub mod net;
#[path = "../../../core/tests/support/random.rs"]
pub mod random;
pub mod real_cluster;
pub mod sim_cluster;
#[path = "../../../core/tests/support/soak.rs"]
pub mod soak;
