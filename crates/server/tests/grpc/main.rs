//! The server as clients of gRPC see it: tonic's own, on a loopback port, with a clock that the tests move.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod bounds;
mod callers;
mod calls;
mod equal;
mod failures;
mod ledger;
mod limits;
mod sessions;
mod standard;
#[path = "../http/support/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the other test binary uses the rest")]
mod support;
mod turns;
