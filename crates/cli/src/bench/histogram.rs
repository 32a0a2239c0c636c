//! A latency histogram of fixed size.

use std::time::Duration;

/// Bits of the number of buckets per power of two: 32 buckets, so values are off by at most 3 %.
const PART_BITS: u32 = 5;
/// Longest recorded duration, 18 minutes. Longer ones count as this.
const NANOS_MAX: u64 = (1 << 40) - 1;
const BUCKETS: usize = bucket(NANOS_MAX) + 1;

/// A log-linear histogram of durations: exact below 64 ns, then 32 buckets for each power of two.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    counts: Box<[u64; BUCKETS]>,
    count: u64,
    sum_nanos: u128,
    max_nanos: u64,
}

const fn bucket(nanos: u64) -> usize {
    if nanos < 2 << PART_BITS {
        return nanos as usize;
    }
    let shift = 63 - nanos.leading_zeros() - PART_BITS;
    ((shift as usize) << PART_BITS) + (nanos >> shift) as usize
}

/// The largest value of `bucket`.
const fn largest(bucket: usize) -> u64 {
    if bucket < 2 << PART_BITS {
        return bucket as u64;
    }
    let shift = (bucket >> PART_BITS) - 1;
    let part = bucket - (shift << PART_BITS);
    ((part as u64 + 1) << shift) - 1
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: Box::new([0; BUCKETS]), count: 0, sum_nanos: 0, max_nanos: 0 }
    }
}

impl Histogram {
    /// Adds `duration` to the histogram `times` times.
    pub(super) fn record(&mut self, duration: Duration, times: u64) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX).min(NANOS_MAX);
        self.counts[bucket(nanos)] += times;
        self.count += times;
        self.sum_nanos += u128::from(nanos) * u128::from(times);
        self.max_nanos = self.max_nanos.max(nanos);
    }

    pub(super) fn merge(&mut self, other: &Histogram) {
        for (count, more) in self.counts.iter_mut().zip(other.counts.iter()) {
            *count += more;
        }
        self.count += other.count;
        self.sum_nanos += other.sum_nanos;
        self.max_nanos = self.max_nanos.max(other.max_nanos);
    }

    /// The percentile of the durations; zero if the histogram is empty.
    pub(super) fn percentile(&self, percent: f64) -> Duration {
        let rank = ((self.count as f64 * percent / 100.0).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Duration::from_nanos(largest(bucket).min(self.max_nanos));
            }
        }
        self.max()
    }

    pub(super) fn max(&self) -> Duration {
        Duration::from_nanos(self.max_nanos)
    }

    /// The mean; zero if the histogram is empty.
    pub(super) fn mean(&self) -> Duration {
        let mean = self.sum_nanos / u128::from(self.count.max(1));
        Duration::from_nanos(u64::try_from(mean).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nanos(count: u64) -> Duration {
        Duration::from_nanos(count)
    }

    #[test]
    fn every_value_falls_into_a_bucket_that_is_at_most_three_percent_wide() {
        let mut last = 0;
        let steps = (0..40).flat_map(|bits| [0, 1, 3, 7].map(|part| (1_u64 << bits) + (part << bits) / 8));
        for value in (0..200_u64).chain(steps) {
            let top = largest(bucket(value));
            assert!(top >= value, "{value}");
            assert!((top - value) as f64 <= value as f64 / 32.0, "{value} {top}");
            assert_eq!(bucket(top), bucket(value), "{value}");
            assert_ne!(bucket(top + 1), bucket(top), "{value}");
            last = last.max(bucket(value));
        }
        assert!(last < BUCKETS);
    }

    #[test]
    fn percentiles_are_near_the_real_ones() {
        let mut histogram = Histogram::default();
        for us in 1..=1_000 {
            histogram.record(nanos(us * 1_000), 1);
        }
        for (percent, real_us) in [(50.0, 500.0), (90.0, 900.0), (99.0, 990.0), (100.0, 1_000.0)] {
            let found = histogram.percentile(percent).as_secs_f64() * 1e6;
            assert!(found >= real_us && found <= real_us * 1.032, "{percent}: {found}");
        }
        assert_eq!(histogram.max(), nanos(1_000_000));
        assert_eq!(histogram.mean(), nanos(500_500));
    }

    #[test]
    fn nothing_counted_gives_zero_and_too_long_counts_as_the_longest() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.percentile(99.0), Duration::ZERO);
        assert_eq!(histogram.mean(), Duration::ZERO);
        histogram.record(Duration::MAX, 1);
        assert_eq!(histogram.percentile(50.0), nanos(NANOS_MAX));
    }

    #[test]
    fn merging_counts_as_if_all_had_been_counted_in_one() {
        let (mut one, mut other, mut all) = (Histogram::default(), Histogram::default(), Histogram::default());
        for value in 0..1_000_u64 {
            let part = if value % 3 == 0 { &mut one } else { &mut other };
            part.record(nanos(value * 37), value);
            all.record(nanos(value * 37), value);
        }
        one.merge(&other);
        assert_eq!(one.counts, all.counts);
        assert_eq!((one.count, one.sum_nanos, one.max_nanos), (all.count, all.sum_nanos, all.max_nanos));
    }
}
