//! Denials by limit. Every defined limit has a series of its own.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use earmark_core::{LIMITS_MAX, LimitKey, NamespaceName};

use super::{Reason, catalogue};

pub(super) const TOTAL: &str = "earmark_denials_total";
const WOULD_DENY: &str = "earmark_would_deny_total";
/// Series that are kept even if fewer limits are defined. Deleted limits keep theirs until there are more.
const SERIES_MIN: usize = 1_000;

/// Denials by namespace, key and reason. The `metrics` recorder cannot drop a series, so they are kept here.
#[derive(Default)]
pub(super) struct Denials {
    series: RwLock<HashMap<(NamespaceName, LimitKey), Series>>,
    /// Counts denials, to find the series that were denied longest ago.
    clock: AtomicU64,
}

#[derive(Default)]
struct Series {
    /// Indexed by [`Reason`].
    counts: [AtomicU64; REASONS.len()],
    last: AtomicU64,
}

/// The label of each [`Reason`], in order.
const REASONS: [&str; 3] = ["capacity", "credit", "shadow"];

impl Series {
    fn count(&self, reason: Reason, now: u64) {
        self.counts[reason as usize].fetch_add(1, Ordering::Relaxed);
        self.last.store(now, Ordering::Relaxed);
    }
}

impl Denials {
    /// Counts a denial by a limit that has a series. Returns false if it has none.
    pub(super) fn count_known(&self, namespace: &NamespaceName, key: &LimitKey, reason: Reason) -> bool {
        let all = self.series.read().unwrap_or_else(PoisonError::into_inner);
        let series = all.get(&(namespace.clone(), key.clone()));
        series.map(|series| series.count(reason, self.clock.fetch_add(1, Ordering::Relaxed))).is_some()
    }

    /// Counts a denial by a defined limit, or by the limits of a template.
    pub(super) fn count(&self, namespace: &NamespaceName, key: &LimitKey, reason: Reason) {
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        let id = (namespace.clone(), key.clone());
        if let Some(series) = self.series.read().unwrap_or_else(PoisonError::into_inner).get(&id) {
            return series.count(reason, now);
        }
        let mut all = self.series.write().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= LIMITS_MAX as usize {
            trim(&mut all, LIMITS_MAX as usize / 2);
        }
        all.entry(id).or_default().count(reason, now);
    }

    /// Drops the oldest series beyond the number of defined limits, those of deleted limits, and writes the others.
    pub(super) fn render(&self, limits: Option<usize>, text: &mut String) {
        let mut all = self.series.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(limits) = limits {
            trim(&mut all, limits.max(SERIES_MIN));
        }
        if all.is_empty() {
            return;
        }
        let (mut denials, mut would_deny) = (String::new(), String::new());
        for ((namespace, key), series) in &*all {
            for (index, (reason, count)) in REASONS.iter().zip(&series.counts).enumerate() {
                let count = count.load(Ordering::Relaxed);
                if count == 0 {
                    continue;
                }
                let labels = format!("namespace=\"{namespace}\",key=\"{key}\"");
                _ = match index == Reason::Shadow as usize {
                    true => writeln!(would_deny, "{WOULD_DENY}{{{labels}}} {count}"),
                    false => writeln!(denials, "{TOTAL}{{{labels},reason=\"{reason}\"}} {count}"),
                };
            }
        }
        for (name, lines) in [(TOTAL, denials), (WOULD_DENY, would_deny)] {
            if !lines.is_empty() {
                catalogue::header(text, name);
                _ = writeln!(text, "{lines}");
            }
        }
    }
}

/// Drops the series that were denied longest ago.
fn trim(all: &mut HashMap<(NamespaceName, LimitKey), Series>, max: usize) {
    if all.len() <= max {
        return;
    }
    let mut ages: Vec<u64> = all.values().map(|series| series.last.load(Ordering::Relaxed)).collect();
    let excess = ages.len() - max;
    let (_, newest_dropped, _) = ages.select_nth_unstable(excess - 1);
    let newest_dropped = *newest_dropped;
    all.retain(|_, series| series.last.load(Ordering::Relaxed) > newest_dropped);
}

#[cfg(test)]
mod tests {
    use earmark_admission::Stats;

    use super::*;
    use crate::metrics::{BackendGauges, Metrics};

    fn lines(metrics: &Metrics, limits: usize) -> Vec<String> {
        let text = metrics.render(&Stats { limits, ..Stats::default() }, &BackendGauges::default(), None);
        text.lines().filter(|line| line.starts_with("earmark_denials_total{")).map(str::to_owned).collect()
    }

    /// Only the first 1,000 keys had a series, and all others were counted together until a restart.
    #[test]
    fn every_defined_limit_has_a_series_and_deleted_ones_make_room() {
        let (metrics, limits) = (Metrics::new(), 3 * SERIES_MIN);
        let keys: Vec<LimitKey> = (0..limits).map(|number| LimitKey::new(&format!("k{number}")).unwrap()).collect();
        let namespace = NamespaceName::new("team").unwrap();
        metrics.denied_by(&namespace, &keys, Reason::Capacity, |_| None);
        metrics.denied_by(&namespace, &keys[..1], Reason::Capacity, |_| None);
        metrics.denied_by(&namespace, &keys[..1], Reason::Credit, |_| None);
        metrics.denied_by(&namespace, &keys[1..2], Reason::Shadow, |_| None);
        let all = lines(&metrics, limits);
        assert_eq!(all.len(), limits + 1);
        let text = metrics.render(&Stats { limits, ..Stats::default() }, &BackendGauges::default(), None);
        assert!(text.contains("\nearmark_would_deny_total{namespace=\"team\",key=\"k1\"} 1\n"), "{text}");
        let line = |key: &str, reason: &str, count: u64| {
            format!("earmark_denials_total{{namespace=\"team\",key=\"{key}\",reason=\"{reason}\"}} {count}")
        };
        assert!(all.contains(&line("k0", "capacity", 2)));
        assert!(all.contains(&line("k0", "credit", 1)));
        assert!(all.contains(&line("k2999", "capacity", 1)));
        // All but five limits were deleted.
        let kept = lines(&metrics, 5);
        assert_eq!(kept.len(), SERIES_MIN + 1);
        assert!(kept.contains(&line("k0", "capacity", 2)) && kept.contains(&line("k2999", "capacity", 1)));
        let other = NamespaceName::new("other").unwrap();
        assert!(!metrics.render_for(&BackendGauges::default(), &other).contains("k0"));
        assert!(metrics.render_for(&BackendGauges::default(), &namespace).contains("k0"));
    }
}
