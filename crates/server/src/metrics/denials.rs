//! Denials by key, for so many keys.

use std::collections::HashMap;
use std::sync::{OnceLock, PoisonError, RwLock};

use earmark_core::{LimitKey, NamespaceName};
use metrics::Counter;

/// The most keys that are told apart; the rest count as [`OTHER`].
pub(super) const KEYS_MAX: usize = 1_000;
/// No limit has this key, for a key has no blank.
pub(super) const OTHER: &str = "all others";

/// Counters of denials, made at the first denial by their key.
#[derive(Default)]
pub(super) struct Denials {
    by_key: RwLock<HashMap<(NamespaceName, LimitKey), Counter>>,
    other: OnceLock<Counter>,
}

impl Denials {
    pub(super) fn count(&self, namespace: &NamespaceName, key: &LimitKey, make: impl Fn(&str) -> Counter) {
        let place = (namespace.clone(), key.clone());
        let known = self.by_key.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(counter) = known.get(&place) {
            return counter.increment(1);
        }
        let is_full = known.len() >= KEYS_MAX;
        drop(known);
        if is_full {
            return self.other.get_or_init(|| make(OTHER)).increment(1);
        }
        let mut known = self.by_key.write().unwrap_or_else(PoisonError::into_inner);
        // Two at once may each add one beyond the bound, which does no harm.
        known.entry(place).or_insert_with(|| make(key.as_str())).increment(1);
    }
}

#[cfg(test)]
mod tests {
    use earmark_admission::Stats;

    use super::*;
    use crate::metrics::{Metrics, Reason};

    #[test]
    fn only_so_many_keys_are_told_apart() {
        let metrics = Metrics::new();
        let keys: Vec<LimitKey> =
            (0..KEYS_MAX + 5).map(|number| LimitKey::new(&format!("k{number}")).unwrap()).collect();
        let namespace = NamespaceName::new("team").unwrap();
        metrics.denied_by(&namespace, &keys, Reason::Capacity);
        metrics.denied_by(&namespace, &keys[..1], Reason::Capacity);
        metrics.denied_by(&namespace, &keys[..1], Reason::Credit);
        let help = format!("The first {KEYS_MAX} keys of each reason are told apart until");
        assert!(metrics.render(&Stats::default(), None).contains(&help));
        let text = metrics.render(&Stats::default(), None);
        let lines: Vec<&str> =
            text.lines().filter(|line| line.starts_with("earmark_denials_total{")).collect();
        assert_eq!(lines.len(), KEYS_MAX + 2);
        assert!(
            lines.contains(&"earmark_denials_total{namespace=\"team\",key=\"k0\",reason=\"capacity\"} 2")
        );
        assert!(lines.contains(&"earmark_denials_total{namespace=\"team\",key=\"k0\",reason=\"credit\"} 1"));
        assert!(lines.contains(&"earmark_denials_total{key=\"all others\",reason=\"capacity\"} 5"));
        let other = NamespaceName::new("other").unwrap();
        assert!(!metrics.render_for(&Stats::default(), None, &other).contains("k0"));
        assert!(metrics.render_for(&Stats::default(), None, &namespace).contains("k0"));
    }
}
