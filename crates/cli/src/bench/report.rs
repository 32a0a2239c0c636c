//! The result of a run.

use std::time::Duration;

use serde::Serialize;

use super::measure::{End, Run};
use crate::output::{table, thousands};

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Setting {
    /// The measured path, such as `http-own-server-durable`.
    pub(super) mode: String,
    pub(super) limits: usize,
    pub(super) connections: usize,
    pub(super) batch: usize,
    pub(super) complete: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    setting: Setting,
    seconds: f64,
    ops: u64,
    ops_per_s: f64,
    transfers_per_s: f64,
    mean_us: f64,
    p50_us: f64,
    p90_us: f64,
    p99_us: f64,
    max_us: f64,
    allowed: u64,
    denied: u64,
    completed: u64,
    pub(super) errors: u64,
    first_error: Option<String>,
    ended_early: bool,
    /// Median fsync time of the measured disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fsync_p50_us: Option<f64>,
    /// Ops per second of a bare TigerBeetle client in the same run.
    #[serde(skip_serializing_if = "Option::is_none")]
    bare_ops_per_s: Option<f64>,
}

impl Report {
    pub(super) fn new(setting: Setting, run: Run) -> Report {
        let Run { tally, measured, end, bare_ops_per_s } = run;
        let ops = tally.allowed + tally.denied;
        let seconds = measured.as_secs_f64();
        let ops_per_s = if seconds > 0.0 { ops as f64 / seconds } else { 0.0 };
        let percentile = |percent| us(tally.latency.percentile(percent));
        Report {
            seconds: (seconds * 1_000.0).round() / 1_000.0,
            ops,
            ops_per_s: tenths(ops_per_s),
            transfers_per_s: tenths(ops_per_s * setting.limits as f64),
            mean_us: us(tally.latency.mean()),
            p50_us: percentile(50.0),
            p90_us: percentile(90.0),
            p99_us: percentile(99.0),
            max_us: us(tally.latency.max()),
            allowed: tally.allowed,
            denied: tally.denied,
            completed: tally.completed,
            errors: tally.errors,
            first_error: tally.first_error,
            ended_early: end != End::Time,
            fsync_p50_us: None,
            bare_ops_per_s: bare_ops_per_s.map(tenths),
            setting,
        }
    }

    pub(super) fn text(&self) -> String {
        let count = |number: u64| thousands(number.into());
        let rate = |number: f64| thousands(number.round() as u128);
        let time = |us: f64| format!("{} us", thousands(us.round() as u128));
        let mut rows = vec![
            ["ops/s", &rate(self.ops_per_s)].map(str::to_owned),
            ["transfers/s".to_owned(), format!("{} (ops x limits)", rate(self.transfers_per_s))],
            ["p50".to_owned(), time(self.p50_us)],
            ["p90".to_owned(), time(self.p90_us)],
            ["p99".to_owned(), time(self.p99_us)],
            ["max".to_owned(), time(self.max_us)],
            ["allowed".to_owned(), count(self.allowed)],
            ["denied".to_owned(), count(self.denied)],
            ["errors".to_owned(), count(self.errors)],
        ];
        if self.setting.complete {
            rows.push(["completed".to_owned(), count(self.completed)]);
        }
        if let Some(fsync) = self.fsync_p50_us {
            rows.push(["fsync p50".to_owned(), time(fsync)]);
        }
        if let Some(bare) = self.bare_ops_per_s {
            let part = if bare > 0.0 { 100.0 * self.ops_per_s / bare } else { 0.0 };
            rows.push(["bare client".to_owned(), format!("{} ops/s; this run reached {part:.0}% of it", rate(bare))]);
        }
        if let Some(error) = &self.first_error {
            rows.push(["first error".to_owned(), error.clone()]);
        }
        if self.ended_early {
            rows.push(["ended early".to_owned(), format!("after {:.2} s", self.seconds)]);
        }
        table(&rows)
    }
}

/// Microseconds, rounded to tenths.
pub(super) fn us(duration: Duration) -> f64 {
    tenths(duration.as_secs_f64() * 1e6)
}

fn tenths(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::measure::Tally;
    use super::*;

    fn report(end: End, measured: Duration) -> Report {
        let setting = Setting { mode: "http".into(), limits: 4, connections: 64, batch: 1, complete: false };
        let mut tally = Tally { allowed: 900, denied: 100, ..Tally::default() };
        tally.latency.record(Duration::from_micros(1_234), 1_000);
        Report::new(setting, Run { tally, measured, end, bare_ops_per_s: None })
    }

    #[test]
    fn json_has_all_numbers_in_one_object() {
        let json = serde_json::to_value(report(End::Time, Duration::from_millis(2_000))).unwrap();
        for (field, value) in [
            ("ops_per_s", Value::from(500.0)),
            ("transfers_per_s", 2_000.0.into()),
            ("allowed", 900.into()),
            ("denied", 100.into()),
            ("errors", 0.into()),
            ("p50_us", 1_234.0.into()),
            ("p99_us", 1_234.0.into()),
            ("seconds", 2.0.into()),
            ("connections", 64.into()),
            ("batch", 1.into()),
            ("limits", 4.into()),
            ("mode", "http".into()),
        ] {
            assert_eq!(json[field], value, "{field}");
        }
    }

    #[test]
    fn the_table_has_rounded_numbers_with_units() {
        let text = report(End::Ops, Duration::from_millis(1_500)).text();
        assert!(text.starts_with("ops/s        667\ntransfers/s  2,667 (ops x limits)\np50          1,234 us\n"));
        assert!(text.ends_with("errors       0\nended early  after 1.50 s\n"), "{text}");
    }

    #[test]
    fn a_run_that_measured_nothing_has_zeros() {
        let report = report(End::Workers, Duration::ZERO);
        assert_eq!((report.ops_per_s, report.transfers_per_s), (0.0, 0.0));
    }
}
