//! The counts of one step.

use std::time::Duration;

use serde::Serialize;

/// Buckets of latency: two for each power of two, from one microsecond to about a minute.
const BUCKETS: usize = 52;

/// The outcome of a reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decided {
    Allowed,
    /// A limit or an account lacked room.
    Denied,
    /// Refused by name, by a quota or by the policy.
    Refused,
    /// Malformed, overloaded, or without an answer from the backend.
    Failed,
}

const OUTCOMES: usize = 4;

/// The reserves of one step.
pub(super) struct Step {
    outcomes: [u64; OUTCOMES],
    latency: [u32; BUCKETS],
}

impl Default for Step {
    fn default() -> Step {
        Step { outcomes: [0; OUTCOMES], latency: [0; BUCKETS] }
    }
}

/// A step as it is shown. A quantile is the end of its bucket, which is less than half as long again.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ChartPoint {
    pub(crate) at_unix_ms: u64,
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) refused: u64,
    pub(crate) failed: u64,
    pub(crate) p50_us: Option<u64>,
    pub(crate) p99_us: Option<u64>,
}

impl Step {
    pub(super) fn count(&mut self, decided: Decided, took: Duration) {
        let outcome = &mut self.outcomes[decided as usize];
        *outcome = outcome.saturating_add(1);
        let bucket = &mut self.latency[bucket(took)];
        *bucket = bucket.saturating_add(1);
    }

    pub(super) fn add(&mut self, other: &Step) {
        for (sum, count) in self.outcomes.iter_mut().zip(other.outcomes) {
            *sum = sum.saturating_add(count);
        }
        for (sum, count) in self.latency.iter_mut().zip(other.latency) {
            *sum = sum.saturating_add(count);
        }
    }

    pub(super) fn point(&self, at_unix_ms: u64) -> ChartPoint {
        let [allowed, denied, refused, failed] = self.outcomes;
        let (p50_us, p99_us) = (self.quantile_us(50), self.quantile_us(99));
        ChartPoint { at_unix_ms, allowed, denied, refused, failed, p50_us, p99_us }
    }

    /// The time within which this many percent were answered.
    fn quantile_us(&self, percent: u64) -> Option<u64> {
        let total: u64 = self.latency.iter().map(|count| u64::from(*count)).sum();
        let rank = total.saturating_mul(percent).div_ceil(100);
        let mut seen = 0_u64;
        let found = self.latency.iter().position(|count| {
            seen = seen.saturating_add(u64::from(*count));
            seen >= rank
        });
        found.filter(|_| total > 0).map(end_us)
    }
}

/// The bucket of a latency: the place of its highest bit, and the bit below it.
fn bucket(took: Duration) -> usize {
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
    let power = micros.ilog2();
    let half = if power == 0 { 0 } else { micros >> (power - 1) & 1 };
    (2 * power as usize + half as usize).min(BUCKETS - 1)
}

/// The end of a bucket, in microseconds.
fn end_us(bucket: usize) -> u64 {
    let (power, half) = (bucket / 2, bucket as u64 % 2);
    ((3 + half) << power) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_is_below_the_end_of_its_bucket_and_above_two_thirds_of_it() {
        for micros in (2..100_000).chain([999_999, 12_345_678, 60_000_000]) {
            let end = end_us(bucket(Duration::from_micros(micros)));
            assert!(micros < end && end * 2 <= micros * 3 + 2, "{micros} in a bucket up to {end}");
        }
        assert_eq!(end_us(bucket(Duration::ZERO)), 1);
        assert_eq!(bucket(Duration::MAX), BUCKETS - 1);
    }
}
