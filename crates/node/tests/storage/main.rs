//! What is on disk: the log, the vote and the folder they lie in.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod crash;
mod damage;
mod failure;
mod folder;
mod openraft;
mod reading;
#[path = "../support/mod.rs"]
mod support;
