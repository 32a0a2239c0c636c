//! Composed backends pass the conformance suite, and recover from a failure between any two steps.

#![allow(clippy::panic, clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

mod behind;
mod credit_elsewhere;
mod disagree;
mod faults;
mod limits_elsewhere;
mod parts;
mod support;
