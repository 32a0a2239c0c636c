//! Helpers for tests on a real server and on its stand-in.

#![allow(dead_code, unreachable_pub, reason = "every test binary compiles all of this and uses a part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

pub mod gate;
pub mod ledger;
#[path = "../../../core/tests/support/random.rs"]
pub mod random;
pub mod registry;
pub mod server;
#[path = "../../../core/tests/support/soak.rs"]
pub mod soak;
pub mod stand_in;

use std::time::{SystemTime, UNIX_EPOCH};

use earmark_admission::Amount;
use earmark_core::{Definition, Kind, LeaseId, LimitKey, NamespaceName, UnixMs};

pub fn namespace() -> NamespaceName {
    NamespaceName::new(NamespaceName::DEFAULT).unwrap()
}

pub fn key(name: &str) -> LimitKey {
    name.parse().unwrap()
}

pub fn amounts(parts: &[(&str, u64)]) -> Vec<Amount> {
    parts.iter().map(|(name, amount)| Amount { key: key(name), amount: *amount }).collect()
}

pub fn definition(name: &str, kind: Kind, capacity: u64) -> Definition {
    Definition::new(key(name), kind, capacity)
}

pub fn wall_ms() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

/// A new lease with random bits.
pub fn lease() -> LeaseId {
    LeaseId::from_parts(UnixMs::new(wall_ms()), rand::random())
}
