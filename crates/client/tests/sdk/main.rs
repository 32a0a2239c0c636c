//! The client against a server in this process: what is asked arrives, and the rules are kept.

#![allow(unreachable_pub, reason = "all of it is one binary")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod acquire;
mod batches;
mod blame;
mod gaps;
mod gives_up;
mod hints;
mod over_tls;
mod schedule;
mod scripted;
mod served;
mod stores;
#[path = "../support/mod.rs"]
mod support;
mod wires;
mod writes;
