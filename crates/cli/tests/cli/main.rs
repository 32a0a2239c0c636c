//! The built binary from outside: its output, files and exit codes.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test that fails panics")]

mod as_code;
mod ask;
mod backup;
mod bench;
mod certificates;
mod cluster;
mod config;
mod credit;
mod database;
mod decisions;
mod durable;
mod failover;
mod files;
mod gateway;
mod keys;
mod names;
mod policies;
mod proof;
mod quotas;
mod readme;
mod refusals;
mod secrets;
mod sessions;
mod signals;
mod streams;
mod support;
mod templates;
mod terminal;
#[cfg(feature = "tigerbeetle")]
mod tigerbeetle;
mod traces;
mod upgrade;
mod walk;
