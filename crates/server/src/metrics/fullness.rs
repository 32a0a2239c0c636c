//! Gauges of the defined limits. Derived limits have none, so that a busy template cannot hide a defined limit.

use std::fmt::Write as _;

use earmark_admission::LimitFullness;

use super::catalogue;

/// `earmark_limit_fullness` and `earmark_limit_capacity` by namespace, key and kind. The backend bounds their number.
pub(super) fn gauges(limits: &[LimitFullness], text: &mut String) {
    if limits.is_empty() {
        return;
    }
    let mut series = |name: &str, value: &dyn Fn(&LimitFullness) -> f64| {
        catalogue::header(text, name);
        for limit in limits {
            let LimitFullness { namespace, key, kind, .. } = limit;
            let labels = format!("namespace=\"{namespace}\",key=\"{key}\",kind=\"{}\"", kind.name());
            _ = writeln!(text, "{name}{{{labels}}} {}", value(limit));
        }
        text.push('\n');
    };
    series("earmark_limit_fullness", &|limit| limit.fullness);
    series("earmark_limit_capacity", &|limit| limit.capacity as f64);
}

#[cfg(test)]
mod tests {
    use earmark_core::KindTag;

    use super::*;
    use crate::metrics::{BackendGauges, Metrics};

    #[test]
    fn each_defined_limit_has_its_fullness_and_its_capacity() {
        let limit = LimitFullness {
            namespace: "team".parse().unwrap(),
            key: "gpt-4o:rpm".parse().unwrap(),
            kind: KindTag::Rolling,
            capacity: 60,
            fullness: 0.25,
        };
        let gauges = BackendGauges { fullness: vec![limit], ..BackendGauges::default() };
        let text = Metrics::new().render_for(&gauges, &"team".parse().unwrap());
        let labels = "{namespace=\"team\",key=\"gpt-4o:rpm\",kind=\"rolling\"}";
        assert!(text.contains(&format!("\nearmark_limit_fullness{labels} 0.25\n")), "{text}");
        assert!(text.contains(&format!("\nearmark_limit_capacity{labels} 60\n")), "{text}");
        assert!(Metrics::new().render_for(&gauges, &"other".parse().unwrap()).is_empty());
    }
}
