//! Completing a lease with its actual usage.

use earmark_core::Overage;

use super::Harness;
use super::driver::{Driver, MINUTE, SLOTS, definition};
use crate::backend::{Refusal, ReserveAnswer};

/// Unused amounts are free at once.
pub async fn less_than_reserved_comes_back_at_once(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("tpm", MINUTE, 100).await;
    driver.put("slots", SLOTS, 1).await;
    let lease = driver.admit(&[("tpm", 100), ("slots", 1)]).await;
    let answer = driver.complete(lease, &[("tpm", 30)]).await;
    assert!(answer.reconciled);
    assert_eq!((driver.reserved("tpm").await, driver.reserved("slots").await), (30, 0));
    driver.admit(&[("tpm", 70), ("slots", 1)]).await;
}

/// Usage beyond the reservation is reserved if there is room.
pub async fn more_than_reserved_is_held_where_it_fits(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("tpm", MINUTE, 100).await;
    let lease = driver.admit(&[("tpm", 60)]).await;
    let answer = driver.complete(lease, &[("tpm", 90)]).await;
    assert_eq!((answer.overage_reserved, answer.overage_debt), (30, 0));
    let usage = driver.usage("tpm").await;
    assert_eq!((usage.reserved, usage.debt), (90, 0));
}

/// Usage beyond the reservation that does not fit becomes debt as a whole.
pub async fn more_than_reserved_is_debt_where_it_does_not_fit(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("tpm", MINUTE, 100).await;
    let lease = driver.admit(&[("tpm", 60)]).await;
    let answer = driver.complete(lease, &[("tpm", 101)]).await;
    assert_eq!((answer.overage_reserved, answer.overage_debt), (0, 41));
    let usage = driver.usage("tpm").await;
    assert_eq!((usage.reserved, usage.debt), (60, 41));
}

/// With overage `deny`, usage beyond the reservation is only counted.
pub async fn more_than_reserved_is_no_debt_where_none_is_kept(harness: &impl Harness) {
    let driver = Driver(harness);
    let strict = earmark_core::Definition { overage: Overage::Deny, ..definition("tpm", MINUTE, 100) };
    driver.try_put(strict, None).await.expect("a limit that can be put");
    let lease = driver.admit(&[("tpm", 60)]).await;
    let answer = driver.complete(lease, &[("tpm", 500)]).await;
    assert_eq!((answer.overage_debt, answer.overage_dropped), (0, 440));
    let usage = driver.usage("tpm").await;
    assert_eq!((usage.reserved, usage.debt), (60, 0));
}

/// A key that was not reserved does not fail the complete.
pub async fn a_key_that_was_not_reserved_is_ignored_with_a_message(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("tpm", MINUTE, 100).await;
    driver.put("rpm", MINUTE, 100).await;
    let lease = driver.admit(&[("tpm", 60)]).await;
    let answer = driver.complete(lease, &[("rpm", 5), ("tpm", 10), ("nothing", 1)]).await;
    assert!(answer.reconciled);
    let message = answer.message.expect("a message about what was ignored");
    assert!(message.contains("rpm") && message.contains("nothing"), "{message}");
    assert_eq!((driver.reserved("tpm").await, driver.reserved("rpm").await), (10, 0));
}

/// A second complete is a retry, whatever its actuals.
pub async fn nothing_changes_after_the_first_complete(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("tpm", MINUTE, 100).await;
    let lease = driver.admit(&[("tpm", 60)]).await;
    driver.complete(lease, &[("tpm", 30)]).await;
    for actual in [0, 30, 90, 1_000] {
        let answer = driver.complete(lease, &[("tpm", actual)]).await;
        assert!(answer.reconciled);
        let usage = driver.usage("tpm").await;
        assert_eq!((usage.reserved, usage.debt), (30, 0));
    }
}

/// A completed lease cannot reserve again.
pub async fn a_completed_lease_is_spent(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("slots", SLOTS, 1).await;
    let lease = driver.admit(&[("slots", 1)]).await;
    driver.complete(lease, &[]).await;
    let answer = driver.reserve(lease, &[("slots", 1)]).await;
    assert_eq!(answer, ReserveAnswer::Refused(Refusal::LeaseExpired));
    assert_eq!(driver.reserved("slots").await, 0);
}

/// A reserve that arrives after its own complete would hold a slot until the timeout.
pub async fn a_late_reserve_after_complete_takes_no_slot(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("slots", SLOTS, 1).await;
    let lease = driver.lease();
    let answer = driver.complete(lease, &[("slots", 1)]).await;
    assert!(!answer.reconciled);
    let answer = driver.reserve(lease, &[("slots", 1)]).await;
    assert_eq!(answer, ReserveAnswer::Refused(Refusal::LeaseExpired));
    assert_eq!(driver.reserved("slots").await, 0);
}

/// A denied lease holds nothing, so its complete changes nothing.
pub async fn completing_a_denied_lease_changes_nothing(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("slots", SLOTS, 1).await;
    driver.admit(&[("slots", 1)]).await;
    let denied = driver.deny(&[("slots", 1)]).await;
    let answer = driver.complete(denied, &[("slots", 1)]).await;
    assert!(!answer.reconciled);
    assert_eq!(driver.reserved("slots").await, 1);
}

/// Without actuals the slots are free and the tokens stay reserved: over-counting is the safe side.
pub async fn an_empty_complete_frees_slots_and_keeps_the_rest(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("tpm", MINUTE, 100).await;
    driver.put("slots", SLOTS, 1).await;
    let lease = driver.admit(&[("tpm", 60), ("slots", 1)]).await;
    assert!(driver.complete(lease, &[]).await.reconciled);
    assert_eq!((driver.reserved("tpm").await, driver.reserved("slots").await), (60, 0));
}
