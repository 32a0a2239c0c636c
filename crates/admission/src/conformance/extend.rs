//! Extensions: more amounts, later ends and reported usage, numbered and repeatable.

use earmark_core::{EXTENSIONS_MAX, Kind, LeaseId, LeaseState, REQUIREMENTS_MAX};

use super::Harness;
use super::driver::{Driver, MINUTE, SLOTS, amounts, definition, key, namespace};
use crate::backend::{Refusal, ReserveAnswer};
use crate::extend::{ExtendAnswer, ExtendRequest};

/// The extension that a case requests.
#[derive(Clone, Copy, Default)]
pub(super) struct Asked<'a> {
    pub(super) add: &'a [(&'a str, u64)],
    pub(super) used: &'a [(&'a str, u64)],
    pub(super) renew: bool,
}

pub(super) fn add<'a>(add: &'a [(&'a str, u64)]) -> Asked<'a> {
    Asked { add, ..Asked::default() }
}

pub(super) fn used<'a>(used: &'a [(&'a str, u64)]) -> Asked<'a> {
    Asked { used, ..Asked::default() }
}

pub(super) const RENEW: Asked<'static> = Asked { add: &[], used: &[], renew: true };

fn extend_request(lease: LeaseId, number: u32, asked: Asked<'_>) -> ExtendRequest {
    let (add, used) = (amounts(asked.add), amounts(asked.used));
    let claim = earmark_core::LeaseClaim::default();
    ExtendRequest { namespace: namespace(), lease, number, add, used, claim, renew: asked.renew }
}

impl<H: Harness> Driver<'_, H> {
    pub(super) async fn extend(&self, lease: LeaseId, number: u32, asked: Asked<'_>) -> ExtendAnswer {
        self.extend_batch(vec![extend_request(lease, number, asked)]).await.remove(0)
    }

    async fn extend_batch(&self, requests: Vec<ExtendRequest>) -> Vec<ExtendAnswer> {
        let answers = self.0.backend().extend(earmark_core::Principal::System, requests).await;
        answers.into_iter().map(|answer| answer.expect("a backend that answers")).collect()
    }

    /// Extends a lease, which must be allowed. Returns when it ends, and the message.
    pub(super) async fn extends(&self, lease: LeaseId, number: u32, asked: Asked<'_>) -> (Option<u64>, String) {
        let answer = self.extend(lease, number, asked).await;
        let ExtendAnswer::Extended { ends_at, .. } = &answer else { panic!("{answer:?}") };
        (ends_at.map(earmark_core::UnixMs::get), answer.message().unwrap_or_default())
    }

    /// Extends a lease, which must be refused as malformed. Returns the message.
    async fn is_invalid(&self, lease: LeaseId, number: u32, asked: Asked<'_>) -> String {
        match self.extend(lease, number, asked).await {
            ExtendAnswer::Refused(Refusal::InvalidRequest { message }) => message,
            other => panic!("{other:?}"),
        }
    }
}

const EXPIRED: ExtendAnswer = ExtendAnswer::expired();

/// An extension takes more of the limits of a lease and of new ones. A copy of it takes nothing more.
pub async fn an_extension_takes_more_and_its_copy_gets_the_same_answer(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("tpm", MINUTE, 1_000).await;
    driver.put("rpm", MINUTE, 10).await;
    driver.put("slots", SLOTS, 4).await;
    let lease = driver.admit(&[("tpm", 100), ("slots", 1)]).await;
    let asked = Asked { add: &[("tpm", 50), ("rpm", 2), ("slots", 2)], used: &[], renew: true };
    let first = driver.extend(lease, 1, asked).await;
    assert!(matches!(first, ExtendAnswer::Extended { ends_at: Some(_), .. }), "{first:?}");
    for _ in 0..2 {
        assert_eq!(driver.extend(lease, 1, asked).await, first);
        let reordered = Asked { add: &[("slots", 2), ("tpm", 50), ("rpm", 2)], ..asked };
        assert_eq!(driver.extend(lease, 1, reordered).await, first);
    }
    let reserved = [driver.reserved("tpm").await, driver.reserved("rpm").await, driver.reserved("slots").await];
    assert_eq!(reserved, [150, 2, 3]);
    // The reserve is judged by its original body.
    let again = driver.reserve(lease, &[("slots", 1), ("tpm", 100)]).await;
    assert!(matches!(again, ReserveAnswer::Allowed { .. }), "{again:?}");
    let other = driver.reserve(lease, &[("slots", 3), ("tpm", 150)]).await;
    assert!(matches!(other, ReserveAnswer::Refused(Refusal::InvalidRequest { .. })), "{other:?}");
    assert!(driver.complete(lease, &[("tpm", 120), ("rpm", 1)]).await.reconciled);
    let reserved = [driver.reserved("tpm").await, driver.reserved("rpm").await, driver.reserved("slots").await];
    assert_eq!(reserved, [120, 1, 0]);
}

/// The numbers of extensions follow each other; each has one body.
pub async fn extensions_are_numbered_without_gaps(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("tpm", MINUTE, 1_000).await;
    let lease = driver.admit(&[("tpm", 100)]).await;
    assert!(driver.is_invalid(lease, 0, add(&[("tpm", 1)])).await.contains("found 0"));
    let last = EXTENSIONS_MAX + 1;
    assert!(driver.is_invalid(lease, last, RENEW).await.contains(&format!("found {last}")));
    assert!(driver.is_invalid(lease, 2, add(&[("tpm", 1)])).await.contains("expected 1"));
    driver.extends(lease, 1, add(&[("tpm", 1)])).await;
    assert!(driver.is_invalid(lease, 1, add(&[("tpm", 2)])).await.contains("another body"));
    assert!(driver.is_invalid(lease, 1, RENEW).await.contains("another body"));
    driver.extends(lease, 2, add(&[("tpm", 2)])).await;
    assert!(driver.is_invalid(lease, 1, add(&[("tpm", 1)])).await.contains("expected 3"));
    assert!(driver.is_invalid(lease, 4, add(&[("tpm", 1)])).await.contains("expected 3"));
    assert!(driver.is_invalid(lease, 3, add(&[("tpm", 1), ("tpm", 1)])).await.contains("add[1].key"));
    assert!(driver.is_invalid(lease, 3, used(&[("tpm", 1), ("tpm", 1)])).await.contains("used[1].key"));
    assert!(driver.is_invalid(lease, 3, add(&[("tpm", 0)])).await.contains("add[0].amount"));
    assert_eq!(driver.reserved("tpm").await, 103);
}

/// A batch may have several extensions of one lease. A composed backend executed them at once, so that all but the first
/// left a gap.
pub async fn the_extensions_of_a_lease_in_one_batch_follow_each_other(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("tpm", MINUTE, 1_000).await;
    let (one, other) = (driver.admit(&[("tpm", 1)]).await, driver.admit(&[("tpm", 1)]).await);
    let more = add(&[("tpm", 10)]);
    let numbers = [(one, 1), (other, 1), (one, 2), (one, 3), (one, 5), (other, 2), (one, 3)];
    let requests = numbers.map(|(lease, number)| extend_request(lease, number, more)).to_vec();
    let answers = driver.extend_batch(requests).await;
    let are_made: Vec<bool> = answers.iter().map(|answer| matches!(answer, ExtendAnswer::Extended { .. })).collect();
    assert_eq!(are_made, [true, true, true, true, false, true, true], "{answers:?}");
    assert_eq!(driver.reserved("tpm").await, 52);
}

/// A denied extension changes nothing, and its number stays denied. The next number may succeed.
pub async fn a_denied_extension_stays_denied_even_when_it_would_fit(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("tpm", MINUTE, 100).await;
    driver.put("rpm", MINUTE, 10).await;
    driver.put("slots", SLOTS, 2).await;
    let other = driver.admit(&[("slots", 1)]).await;
    let lease = driver.admit(&[("tpm", 90), ("slots", 1)]).await;
    let asked = Asked { add: &[("slots", 1), ("rpm", 1)], used: &[("tpm", 5)], renew: true };
    for _ in 0..2 {
        let answer = driver.extend(lease, 1, asked).await;
        let ExtendAnswer::Denied { limited_by, never, retry_after_ms } = answer else { panic!("{answer:?}") };
        assert_eq!((limited_by, never), (vec![key("slots")], false));
        assert!(retry_after_ms <= 60_000, "{retry_after_ms}");
        driver.complete(other, &[]).await;
    }
    let reserved = [driver.reserved("tpm").await, driver.reserved("rpm").await, driver.reserved("slots").await];
    assert_eq!(reserved, [90, 0, 1]);
    let answer = driver.extend(lease, 2, add(&[("tpm", 101)])).await;
    let ExtendAnswer::Denied { limited_by, never: true, retry_after_ms } = answer else { panic!("{answer:?}") };
    assert_eq!((limited_by, retry_after_ms), (vec![key("tpm")], 60_000));
    driver.extends(lease, 3, asked).await;
    assert_eq!((driver.reserved("rpm").await, driver.reserved("slots").await), (1, 2));
    // Nothing was reported by the denied ones.
    assert!(driver.complete(lease, &[("tpm", 1)]).await.message.unwrap_or_default().contains("tpm"));
    assert_eq!((driver.reserved("tpm").await, driver.reserved("slots").await), (5, 0));
}

/// A slot that is renewed outlives its timeout, and is free when nobody renews it any more.
pub async fn a_renewed_slot_is_held_until_its_last_timeout(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("slots", Kind::Concurrency { timeout_seconds: 3 }, 1).await;
    let lease = driver.admit(&[("slots", 1)]).await;
    let mut ends = Vec::new();
    for number in 1..=3 {
        harness.advance_ms(1_500).await;
        let (ends_at, message) = driver.extends(lease, number, RENEW).await;
        assert_eq!(message, "");
        ends.push(ends_at.expect("a lease with a slot"));
        driver.deny(&[("slots", 1)]).await;
    }
    assert!(ends.windows(2).all(|pair| pair[0] < pair[1]), "{ends:?}");
    // Without `renew` the end stays.
    assert_eq!(driver.extends(lease, 4, used(&[("slots", 1)])).await.0, Some(ends[2]));
    harness.advance_ms(4_200).await;
    assert_eq!(driver.extend(lease, 4, used(&[("slots", 1)])).await, EXPIRED);
    assert_eq!(driver.extend(lease, 5, RENEW).await, EXPIRED);
    driver.admit(&[("slots", 1)]).await;
}

/// Earlier parts are settled and keep their ends; only the newest one shrinks.
pub async fn only_the_newest_part_of_an_extended_limit_shrinks(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("tpm", MINUTE, 1_000).await;
    for (actual, expected) in [(180, 180), (150, 150), (120, 120), (100, 100), (20, 100)] {
        let before = driver.reserved("tpm").await;
        let lease = driver.admit(&[("tpm", 60)]).await;
        driver.extends(lease, 1, add(&[("tpm", 40)])).await;
        driver.extends(lease, 2, add(&[("tpm", 50)])).await;
        assert_eq!(driver.reserved("tpm").await, before + 150);
        let answer = driver.complete(lease, &[("tpm", actual)]).await;
        assert_eq!(answer.overage_reserved, actual.saturating_sub(150));
        assert_eq!(driver.reserved("tpm").await, before + expected, "{actual}");
    }
}

/// Reported usage is a floor for what is settled. Usage above the reservation is settled as overage, and the answer
/// says so.
pub async fn reported_usage_is_a_floor_at_complete(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("tpm", MINUTE, 1_000).await;
    driver.put("rpm", MINUTE, 10).await;
    let lease = driver.admit(&[("tpm", 100)]).await;
    driver.extends(lease, 1, used(&[("tpm", 70)])).await;
    // A lower report changes nothing.
    let (_, message) = driver.extends(lease, 2, used(&[("tpm", 60), ("rpm", 1)])).await;
    assert!(message.contains("rpm") && !message.contains("tpm"), "{message}");
    let answer = driver.complete(lease, &[("tpm", 10)]).await;
    assert!(answer.message.unwrap_or_default().contains("tpm"));
    assert_eq!(driver.reserved("tpm").await, 70);
    let lease = driver.admit(&[("tpm", 100)]).await;
    let (_, message) = driver.extends(lease, 1, used(&[("tpm", 130)])).await;
    assert!(message.contains("tpm"), "{message}");
    assert_eq!(driver.reserved("tpm").await, 170);
    let answer = driver.complete(lease, &[]).await;
    assert_eq!(answer.overage_reserved, 30);
    assert_eq!(driver.reserved("tpm").await, 200);
}

/// Only a live lease can be extended. After a complete every number is expired, the last one too.
pub async fn only_a_live_lease_is_extended(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("tpm", Kind::Rolling { window_seconds: 2 }, 100).await;
    driver.put("slots", Kind::Concurrency { timeout_seconds: 2 }, 2).await;
    assert_eq!(driver.extend(driver.lease(), 1, RENEW).await, EXPIRED);
    let denied = driver.deny(&[("tpm", 101)]).await;
    assert_eq!(driver.extend(denied, 1, RENEW).await, EXPIRED);
    let completed = driver.admit(&[("tpm", 1), ("slots", 1)]).await;
    driver.extends(completed, 1, RENEW).await;
    driver.complete(completed, &[]).await;
    for number in [1, 2] {
        assert_eq!(driver.extend(completed, number, add(&[("tpm", 1)])).await, EXPIRED);
        assert_eq!(driver.extend(completed, number, RENEW).await, EXPIRED);
    }
    let marked = driver.lease();
    driver.complete(marked, &[]).await;
    assert_eq!(driver.extend(marked, 1, RENEW).await, EXPIRED);
    let rolling = driver.admit(&[("tpm", 1)]).await;
    let slot = driver.admit(&[("tpm", 1), ("slots", 1)]).await;
    harness.advance_ms(1_000).await;
    // The newest part of a rolling limit keeps its lease alive.
    driver.extends(rolling, 1, add(&[("tpm", 1)])).await;
    harness.advance_ms(1_300).await;
    driver.extends(rolling, 2, add(&[("tpm", 1)])).await;
    assert_eq!(driver.extend(slot, 1, add(&[("tpm", 1)])).await, EXPIRED);
    harness.advance_ms(3_200).await;
    assert_eq!(driver.extend(rolling, 3, add(&[("tpm", 1)])).await, EXPIRED);
    assert_eq!((driver.reserved("tpm").await, driver.reserved("slots").await), (0, 0));
}

/// Refusals by name leave the number free.
pub async fn a_refusal_by_name_leaves_the_number_of_an_extension_free(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("tpm", MINUTE, 100).await;
    driver.put("rpm", MINUTE, 10).await;
    let lease = driver.admit(&[("tpm", 1)]).await;
    let unknown = ExtendAnswer::Refused(Refusal::UnknownLimitKey(key("nothing")));
    for _ in 0..2 {
        assert_eq!(driver.extend(lease, 1, add(&[("tpm", 1), ("nothing", 1)])).await, unknown);
    }
    let busy = driver.admit(&[("rpm", 8)]).await;
    driver.put("rpm", MINUTE, 5).await;
    let answer = driver.extend(lease, 1, add(&[("tpm", 1), ("rpm", 1)])).await;
    let is_decreasing =
        matches!(&answer, ExtendAnswer::Refused(Refusal::LimitDecreasing { key: limit, .. }) if *limit == key("rpm"));
    assert!(is_decreasing, "{answer:?}");
    driver.complete(busy, &[("rpm", 0)]).await;
    driver.extends(lease, 1, add(&[("tpm", 1), ("rpm", 1)])).await;
    assert_eq!((driver.reserved("tpm").await, driver.reserved("rpm").await), (2, 1));
}

/// A lease has at most 32 limits, extensions included.
pub async fn a_lease_is_not_extended_beyond_its_limits(harness: &impl Harness) {
    let driver = Driver(harness);
    let names: Vec<String> = (0..=REQUIREMENTS_MAX).map(|number| format!("l{number}")).collect();
    for name in &names {
        driver.try_put(definition(name, MINUTE, 10), None).await.expect("a limit that can be put");
    }
    let parts: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let (first, rest) = parts.split_at(2);
    let lease = driver.admit(first).await;
    assert!(driver.is_invalid(lease, 1, add(rest)).await.contains("33"));
    driver.extends(lease, 1, add(&parts[1..REQUIREMENTS_MAX])).await;
    assert!(driver.is_invalid(lease, 2, add(&parts[REQUIREMENTS_MAX..])).await.contains("33"));
    driver.extends(lease, 2, add(&parts[..REQUIREMENTS_MAX])).await;
    assert_eq!((driver.reserved("l0").await, driver.reserved("l1").await, driver.reserved("l31").await), (2, 3, 2));
    assert!(driver.complete(lease, &[]).await.reconciled);
}

/// A lease shows its extensions.
pub async fn an_extended_lease_can_be_read(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("tpm", MINUTE, 1_000).await;
    driver.put("slots", SLOTS, 4).await;
    let lease = driver.admit(&[("tpm", 100), ("slots", 1)]).await;
    driver.extends(lease, 1, add(&[("tpm", 50), ("slots", 1)])).await;
    let asked = Asked { add: &[("tpm", 5)], used: &[("tpm", 120)], renew: true };
    driver.extends(lease, 2, asked).await;
    let view = harness.backend().lease(namespace(), lease).await.expect("a backend that answers");
    let view = view.expect("a lease that is known");
    assert_eq!((view.state, view.requirements), (LeaseState::Live, amounts(&[("slots", 2), ("tpm", 155)])));
    assert_eq!((view.extensions, view.used), (2, amounts(&[("tpm", 120)])));
    assert!(view.ends_at > view.reserved_at, "{:?} {:?}", view.ends_at, view.reserved_at);
}

/// Many extensions of one lease from many callers: every number takes once.
pub async fn concurrent_copies_of_an_extension_take_once(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("tpm", MINUTE, 1_000).await;
    driver.put("slots", SLOTS, 4).await;
    let lease = driver.admit(&[("tpm", 1), ("slots", 1)]).await;
    for number in 1..=5 {
        let asked = Asked { add: &[("tpm", 10)], used: &[], renew: true };
        let copies = tokio::join!(
            driver.extend(lease, number, asked),
            driver.extend(lease, number, asked),
            driver.extend(lease, number, asked)
        );
        assert!(matches!(copies.0, ExtendAnswer::Extended { .. }), "{copies:?}");
        assert_eq!((&copies.0, &copies.0), (&copies.1, &copies.2));
    }
    assert_eq!((driver.reserved("tpm").await, driver.reserved("slots").await), (51, 1));
    let (extended, completed) =
        tokio::join!(driver.extend(lease, 6, add(&[("tpm", 10)])), driver.complete(lease, &[("tpm", 51)]));
    assert!(completed.reconciled);
    let is_extended = matches!(extended, ExtendAnswer::Extended { .. });
    assert!(is_extended || extended == EXPIRED, "{extended:?}");
    assert_eq!((driver.reserved("tpm").await, driver.reserved("slots").await), (51, 0));
}
