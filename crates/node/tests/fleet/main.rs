//! Nodes in one process, on disks and a network that fail when they are told to.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test may")]

#[path = "../support/mod.rs"]
mod support;

mod backup;
mod catch_up;
mod damage;
mod exactly_once;
mod failures;
mod hostile;
mod keys;
mod members;
mod partition;
mod restart;
mod sizes;
mod slow_link;
mod time;
