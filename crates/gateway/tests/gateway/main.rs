//! The gateway between a client and an upstream that this test writes, with a double of Earmark.

#![allow(unreachable_pub, reason = "all of it is one binary")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a test may")]

mod answers;
mod connections;
mod cuts;
mod earmark;
mod fixture;
mod memory;
mod protocols;
mod real;
mod refusals;
mod routes;
mod slow;
mod targets;
mod traces;
mod transparency;
mod upstream;
