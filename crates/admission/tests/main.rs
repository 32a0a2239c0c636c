//! The in-memory Book, composed backends and the limits file, in one program.

#![allow(clippy::panic, clippy::unwrap_used, clippy::expect_used, reason = "these are tests")]

mod composed;
mod limits_file;
mod local;
#[path = "../../core/tests/support/random.rs"]
#[allow(dead_code, unreachable_pub, reason = "other tests use more of it")]
mod random;
mod registry;
mod storm;
