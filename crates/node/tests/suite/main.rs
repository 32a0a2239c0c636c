//! Tests of nodes, clusters and storage. They share one binary, because each binary costs link time.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, unreachable_pub, reason = "a test may")]

mod cluster;
mod conformance;
mod journal;
mod peers;
mod storage;
#[path = "../support/mod.rs"]
mod support;
mod tls;
