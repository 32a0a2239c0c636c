//! Gauges of quotas and their use.

use std::fmt::Write as _;

use earmark_core::{NamespaceName, QuotaUsage};

use super::catalogue;

const USED: &str = "earmark_quota_used";

/// A namespace and its quotas.
pub(super) type NamespaceQuotas = (NamespaceName, Vec<QuotaUsage>);

/// `earmark_quota` and `earmark_quota_used` by namespace and kind. The backend bounds the number of namespaces.
pub(super) fn gauges(quotas: &[NamespaceQuotas], text: &mut String) {
    if quotas.is_empty() {
        return;
    }
    for name in ["earmark_quota", USED] {
        catalogue::header(text, name);
        for (namespace, usages) in quotas {
            for usage in usages {
                let value = if name == USED { usage.used } else { usage.quota };
                _ = writeln!(text, "{name}{{namespace=\"{namespace}\",kind=\"{}\"}} {}", usage.kind, value);
            }
        }
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use earmark_core::QuotaKind;

    use super::*;

    #[test]
    fn each_quota_has_a_gauge_with_its_value_and_its_use() {
        let usage = QuotaUsage { kind: QuotaKind::Vaults, quota: 7, used: 3 };
        let mut text = String::new();
        gauges(&[], &mut text);
        assert_eq!(text, "");
        gauges(&[("team".parse().unwrap(), vec![usage])], &mut text);
        assert!(text.contains("\nearmark_quota{namespace=\"team\",kind=\"vaults\"} 7\n"), "{text}");
        assert!(text.contains("\nearmark_quota_used{namespace=\"team\",kind=\"vaults\"} 3\n"), "{text}");
    }
}
