//! The server as its clients see it: HTTP and gRPC on a loopback port, with a clock that the tests move.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod grpc;
mod http;
mod logs;
mod support;
mod traces;
