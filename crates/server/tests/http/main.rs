//! The server as its clients see it: real HTTP on a loopback port, a clock that the tests move.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod bad_input;
mod callers;
mod clocks;
mod cluster;
mod complete;
mod connections;
mod credit;
mod drift;
mod http_2;
mod limits;
mod metrics;
mod overload;
mod reserve;
mod shutdown;
mod support;
mod tls;
mod turns;
mod writes;
