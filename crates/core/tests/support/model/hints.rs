//! Retry hints, computed step by step.

use earmark_core::{Hints, Kind, LeaseId};

/// The backoff after `run` denials in a row.
pub fn backoff_ms(hints: &Hints, kind: &Kind, run: u32) -> u64 {
    match kind {
        Kind::Concurrency { .. } => {
            let mut wait = hints.concurrency_base_ms.min(hints.concurrency_max_ms);
            for _ in 0..run {
                wait = wait.saturating_mul(2).min(hints.concurrency_max_ms);
            }
            wait
        }
        Kind::Rolling { .. } | Kind::Calendar { .. } => {
            let part_of_window = u64::from(kind.hold_seconds()) * 1_000 / hints.rolling_window_part.max(1);
            let mut wait = hints.rolling_base_ms.max(part_of_window).min(hints.rolling_max_ms);
            for _ in 0..run {
                wait = wait.saturating_add(wait / 2).min(hints.rolling_max_ms);
            }
            wait
        }
        Kind::Credit(_) => panic!("credit knows no backoff"),
    }
}

/// The backoff minus up to `jitter_percent`, from the random bits of the lease, so that callers denied together do not
/// return together.
pub fn jittered_ms(hints: &Hints, lease: LeaseId, backoff_ms: u64) -> u64 {
    let random = u128::from(lease.random_bits() & 0xffff);
    let backoff = u128::from(backoff_ms);
    let less = backoff * u128::from(hints.jitter_percent.min(100)) * random / (100 * 65_536);
    u64::try_from(backoff - less).unwrap().max(1)
}
