//! Database faults: outages, refusals, locks and missing answers.

#![allow(clippy::expect_used, clippy::panic, reason = "these are tests")]

mod grants;
mod helpers;
mod postgres;
mod proxy;
mod sqlite;
mod tls;
