//! Counts the credit holds that ran out, by what became of them.

use earmark_core::{JournalRecord, SettleReason};

/// The metric. A hold that ran out was `returned` in full, paid the `used` part that extensions reported, or was
/// `charged` in full.
pub const EXPIRED_HOLDS: &str = "earmark_expired_holds_total";

/// The values of its label `credit`.
const FATES: [&str; 3] = ["returned", "used", "charged"];

/// Registers the metric, so that it is shown before the first hold runs out.
pub fn register_expired() {
    for credit in FATES {
        metrics::counter!(EXPIRED_HOLDS, "credit" => credit).increment(0);
    }
}

/// Counts the holds among journal records that ran out. Call it once for each record that a process applies.
pub fn count_expired(records: &[JournalRecord]) {
    for credit in records.iter().filter_map(fate) {
        metrics::counter!(EXPIRED_HOLDS, "credit" => credit).increment(1);
    }
}

/// The fate of a hold that ran out. `None` for other records.
fn fate(record: &JournalRecord) -> Option<&'static str> {
    match record {
        JournalRecord::Release(hold) if hold.actor.is_none() => Some("returned"),
        JournalRecord::Settle(settle) if settle.reason == SettleReason::Timeout => {
            let cost = settle.paid.saturating_add(settle.uncollected);
            Some(if cost >= settle.hold.amount { "charged" } else { "used" })
        }
        _ => None,
    }
}
