//! Shared test support.

#![allow(dead_code, unreachable_pub, reason = "every test binary compiles all of this and uses a part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

pub mod cluster;
pub mod desk;
pub mod disk;
pub mod fleet;
pub mod history;
pub mod net;
#[path = "../../../core/tests/support/random.rs"]
pub mod random;
#[path = "../../../core/tests/support/soak.rs"]
pub mod soak;
