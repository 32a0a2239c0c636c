//! The built binary, from outside: what it prints, what it writes, and what it ends with.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test that fails panics")]

mod bench;
mod cluster;
mod credit;
mod database;
mod durable;
mod files;
mod keys;
#[cfg(feature = "tigerbeetle")]
mod ledger;
mod readme;
mod refusals;
mod sessions;
mod signals;
mod support;
mod walk;
