//! Storage tests: Raft log, vote and data folder.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod crash;
mod damage;
mod failure;
mod folder;
mod openraft;
mod reading;
#[path = "../support/mod.rs"]
mod support;
