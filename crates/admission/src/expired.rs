//! Counts the credit holds that ran out, by what became of them, and watches whether credit can expire.

use std::sync::atomic::{AtomicBool, Ordering};

use earmark_core::{Book, EXPIRY_SKEW_MS_MAX, JournalRecord, SettleReason};

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

/// Counts a hold that ran out in a credit store. `held` is its amount, and `cost` the part that it was charged, collected
/// or not.
pub fn count_expired_hold(held: u64, cost: u64) {
    metrics::counter!(EXPIRED_HOLDS, "credit" => fate_of(held, cost)).increment(1);
}

/// Logs when expiry begins to wait for the clocks, and when it goes on. Call it after every batch that a process applies.
pub fn watch_expiry(book: &Book) {
    static IS_WAITING: AtomicBool = AtomicBool::new(false);
    let is_waiting = book.is_expiry_waiting();
    if IS_WAITING.load(Ordering::Relaxed) == is_waiting || IS_WAITING.swap(is_waiting, Ordering::Relaxed) == is_waiting
    {
        return;
    }
    if is_waiting {
        let minutes = EXPIRY_SKEW_MS_MAX / 60_000;
        tracing::warn!(
            "credit does not expire: log time and the leader's wall time differ by more than {minutes} minutes; check the \
             clocks, and see --accept-time"
        );
    } else {
        tracing::info!("credit expires again: log time and wall time agree");
    }
}

/// The fate of a hold that ran out. `None` for other records.
fn fate(record: &JournalRecord) -> Option<&'static str> {
    match record {
        JournalRecord::Release(hold) if hold.actor.is_none() => Some("returned"),
        JournalRecord::Settle(settle) if settle.reason == SettleReason::Timeout => {
            Some(fate_of(settle.hold.amount, settle.paid.saturating_add(settle.uncollected)))
        }
        _ => None,
    }
}

fn fate_of(held: u64, cost: u64) -> &'static str {
    match cost {
        0 => "returned",
        cost if cost < held => "used",
        _ => "charged",
    }
}
