//! The metrics that a server describes.

use std::collections::BTreeMap;

/// The Prometheus type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// A metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Metric {
    pub(super) kind: Kind,
    /// Its HELP text.
    pub(super) about: String,
}

/// Metrics by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Metrics(pub(super) BTreeMap<String, Metric>);

impl Metrics {
    /// Reads the HELP and TYPE lines of a scrape.
    pub(super) fn read(&mut self, text: &str) {
        let mut helps = BTreeMap::new();
        for line in text.lines() {
            if let Some((name, about)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
                helps.insert(name, about);
            }
            let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) else {
                continue;
            };
            let kind = match kind {
                "counter" => Kind::Counter,
                "histogram" => Kind::Histogram,
                _ => Kind::Gauge,
            };
            let about = helps.get(name).copied().unwrap_or_default().to_owned();
            self.0.insert(name.to_owned(), Metric { kind, about });
        }
    }

    /// The metrics that an expression names and that do not exist.
    pub(super) fn unknown_in(&self, expression: &str) -> Vec<String> {
        let is_part = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
        let words = expression.split(|letter| !is_part(letter)).filter(|word| word.starts_with("earmark_"));
        let exists = |word: &&str| {
            let histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end));
            let is_histogram = |name: &str| self.0.get(name).is_some_and(|metric| metric.kind == Kind::Histogram);
            self.0.contains_key(*word) || histogram.is_some_and(is_histogram)
        };
        words.filter(|word| !exists(word)).map(str::to_owned).collect()
    }
}

#[cfg(test)]
pub(super) fn example() -> Metrics {
    let mut metrics = Metrics::default();
    metrics.read(
        "# HELP earmark_a_total A.\n# TYPE earmark_a_total counter\nearmark_a_total 1\n\
         # HELP earmark_b_seconds B.\n# TYPE earmark_b_seconds histogram\n\
         # HELP earmark_c C.\n# TYPE earmark_c gauge\n",
    );
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_described_metrics_are_read() {
        let Metrics(found) = example();
        let kinds: Vec<_> = found.iter().map(|(name, metric)| (name.as_str(), metric.kind)).collect();
        let expected =
            [("earmark_a_total", Kind::Counter), ("earmark_b_seconds", Kind::Histogram), ("earmark_c", Kind::Gauge)];
        assert_eq!(kinds, expected);
        assert_eq!(found["earmark_c"].about, "C.");
    }

    #[test]
    fn an_expression_may_name_only_metrics_that_exist() {
        let metrics = example();
        let known = "histogram_quantile(0.9, rate(earmark_b_seconds_bucket{job=~\"x\"}[5m])) > earmark_c";
        assert_eq!(metrics.unknown_in(known), [""; 0]);
        assert_eq!(
            metrics.unknown_in("earmark_b_seconds_bucketx + earmark_a"),
            ["earmark_b_seconds_bucketx", "earmark_a"]
        );
        assert_eq!(metrics.unknown_in("earmark_c_count"), ["earmark_c_count"]);
    }
}
