//! What databases do to a store: they go away, come back, refuse, lock, and forget to answer.

#![allow(clippy::expect_used, clippy::panic, reason = "these are tests")]

mod grants;
mod postgres;
mod proxy;
mod sqlite;
mod till;
mod tls;
