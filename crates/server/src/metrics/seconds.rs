//! Histograms of request durations. Each request is recorded in one, by two additions: a histogram of the recorder keeps
//! every sample until it is collected, which costs ten times as much.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::catalogue;

/// Bucket bounds, in nanoseconds.
const BOUNDS_NS: [u64; 16] = [
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
    1_000_000_000,
    5_000_000_000,
    30_000_000_000,
];
const NS_PER_SECOND: f64 = 1e9;

/// The durations of the requests of one route or method.
#[derive(Default)]
pub(super) struct Seconds {
    /// Requests by the first bound that they do not exceed; the last ones exceed all.
    counts: [AtomicU64; BOUNDS_NS.len() + 1],
    sum_ns: AtomicU64,
}

impl Seconds {
    pub(super) fn record(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_NS.partition_point(|bound| *bound < ns);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }
}

/// Writes the histogram `name` of each value of `label` that has samples.
pub(super) fn render<'a>(
    text: &mut String,
    name: &str,
    label: &str,
    all: impl Iterator<Item = (&'a str, &'a Seconds)>,
) {
    let mut lines = String::new();
    for (value, seconds) in all {
        let counts = seconds.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        let mut sum = 0_u64;
        if counts.iter().all(|count| *count == 0) {
            continue;
        }
        let bounds = BOUNDS_NS.iter().map(|bound| (*bound as f64 / NS_PER_SECOND).to_string());
        for (bound, count) in bounds.chain(["+Inf".to_owned()]).zip(counts) {
            sum = sum.saturating_add(count);
            // Writing to a text does not fail.
            _ = writeln!(lines, "{name}_bucket{{{label}=\"{value}\",le=\"{bound}\"}} {sum}");
        }
        let seconds = seconds.sum_ns.load(Ordering::Relaxed) as f64 / NS_PER_SECOND;
        _ = writeln!(lines, "{name}_sum{{{label}=\"{value}\"}} {seconds}");
        _ = writeln!(lines, "{name}_count{{{label}=\"{value}\"}} {sum}");
    }
    if !lines.is_empty() {
        catalogue::header(text, name);
        _ = writeln!(text, "{lines}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_counts_in_its_bucket_and_in_all_larger_ones() {
        let seconds = Seconds::default();
        for us in [0, 50, 51, 30_000_000, 30_000_001] {
            seconds.record(Duration::from_micros(us));
        }
        let mut text = String::new();
        let unused = Seconds::default();
        render(&mut text, "earmark_http_request_seconds", "route", [("a", &seconds), ("b", &unused)].into_iter());
        assert!(text.starts_with("# HELP earmark_http_request_seconds "), "{text}");
        for (bound, count) in [("0.00005", 2), ("0.0001", 3), ("5", 3), ("30", 4), ("+Inf", 5)] {
            let line = format!("earmark_http_request_seconds_bucket{{route=\"a\",le=\"{bound}\"}} {count}\n");
            assert!(text.contains(&line), "{line}{text}");
        }
        assert!(text.contains("_sum{route=\"a\"} 60.000102\n"), "{text}");
        assert!(text.contains("_count{route=\"a\"} 5\n") && !text.contains("\"b\""), "{text}");
    }
}
