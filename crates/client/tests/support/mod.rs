//! Helpers of the client tests, here and in the command line.

#![allow(dead_code, reason = "not every test binary uses all helpers")]

pub mod proxy;
#[path = "../../../core/tests/support/random.rs"]
pub mod random;

use std::time::Duration;

use earmark_client::core::{Definition, Kind, LimitKey, Overage};
use earmark_client::{Deadline, Job};

/// A deadline that no test reaches, even on a busy machine.
pub fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

pub fn key(text: &str) -> LimitKey {
    text.parse().unwrap()
}

pub fn job(parts: &[(&str, u64)]) -> Job {
    Job::new(parts.iter().map(|(name, amount)| (key(name), *amount))).unwrap()
}

pub fn rolling(name: &str, capacity: u64, window_seconds: u32) -> Definition {
    limit(name, Kind::Rolling { window_seconds }, capacity)
}

pub fn concurrency(name: &str, capacity: u64) -> Definition {
    limit(name, Kind::Concurrency { timeout_seconds: 3_600 }, capacity)
}

pub fn limit(name: &str, kind: Kind, capacity: u64) -> Definition {
    Definition {
        key: key(name),
        kind,
        capacity,
        unit: "u".into(),
        description: "d".into(),
        overage: Overage::Debt,
        shared: false,
        enforce: true,
    }
}
