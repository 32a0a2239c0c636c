//! The client against servers in this process: requests arrive, and the retry rules hold.

#![allow(unreachable_pub, reason = "all of it is one binary")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod acquire;
mod batches;
mod calls;
mod examples;
mod extend;
mod failover;
mod fixture;
mod hints;
mod memory;
mod names;
mod over_tls;
mod scenarios;
mod schedule;
mod stores;
#[path = "../support/mod.rs"]
mod support;
mod templates;
mod wires;
mod writes;
