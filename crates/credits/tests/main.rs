//! Stores, sagas and their faults, in one program.

#![allow(clippy::expect_used, clippy::panic, reason = "these are tests")]

mod expired;
mod faults;
mod full;
mod kill;
mod memory;
mod outage;
mod postgres;
mod process;
mod recovery;
mod renew;
mod sqlite;
mod storm;
mod support;
