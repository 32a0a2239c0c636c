//! Backends of parts pass the suite of all backends, and come out right whatever fails between two steps.

#![allow(clippy::panic, clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

mod behind;
mod credit_elsewhere;
mod disagree;
mod faults;
mod limits_elsewhere;
mod parts;
mod support;
