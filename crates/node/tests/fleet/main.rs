//! Cluster tests in one process, on simulated disks and networks.

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
