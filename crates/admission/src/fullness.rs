//! Fullness of the defined limits, for metrics.

use std::cmp::Reverse;

use earmark_core::{ExternalParts, KindTag, LimitKey, LimitUsage, NAMESPACES_MAX, NamespaceId, NamespaceName};

use crate::book_host::{BookBackend, BookHost};

/// Limits in the metrics, each with two series. A scrape of 10,000 takes some ten milliseconds.
const LIMITS_MAX: usize = 10_000;
/// Limits that are read while the Book is held: about a tenth of a millisecond.
const PIECE: usize = 100;

/// The fullness of a defined limit.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitFullness {
    /// The namespace of the limit.
    pub namespace: NamespaceName,
    /// The limit.
    pub key: LimitKey,
    /// Its kind.
    pub kind: KindTag,
    /// The capacity in force; of a credit limit, the balance of its account.
    pub capacity: u64,
    /// The reserved share of the capacity: 1 is full. A limit without capacity is full.
    pub fullness: f64,
}

impl LimitFullness {
    fn of(namespace: &NamespaceName, LimitUsage { key, kind, usage }: LimitUsage) -> LimitFullness {
        let fullness = match usage.capacity {
            0 => 1.0,
            capacity => usage.reserved as f64 / capacity as f64,
        };
        LimitFullness { namespace: namespace.clone(), key, kind, capacity: usage.capacity, fullness }
    }
}

/// Keeps the fullest limits.
fn trim(limits: &mut Vec<LimitFullness>, max: usize) {
    if limits.len() > max {
        let rank = |limit: &LimitFullness| Reverse((limit.fullness * 1e9) as u64);
        limits.select_nth_unstable_by_key(max, rank);
        limits.truncate(max);
    }
}

impl<H: BookHost> BookBackend<H> {
    /// The fullness of the defined limits of a namespace, or of all: the fullest [`LIMITS_MAX`], in order of their
    /// namespaces and keys. `external` are the parts that another system keeps.
    pub(crate) fn book_fullness(
        &self,
        external: ExternalParts,
        namespace: Option<&NamespaceName>,
    ) -> Vec<LimitFullness> {
        let host = &self.0.host;
        let now = host.now();
        let is_known = |limit: &LimitUsage| match limit.kind {
            KindTag::Credit => !external.credit,
            KindTag::Rolling | KindTag::Calendar | KindTag::Concurrency => !external.limits,
        };
        let name_of = |id| host.with_book(|book| book.namespace_name(id).cloned());
        let ids = (0..=u16::try_from(NAMESPACES_MAX - 1).unwrap_or(u16::MAX)).map(NamespaceId);
        let all = ids.map_while(|id| Some((id, name_of(id)?)));
        let mut found = Vec::new();
        for (id, name) in all.filter(|(_, name)| namespace.is_none_or(|only| only == name)) {
            let mut after = None;
            loop {
                let (piece, next) = host.with_book(|book| book.defined_usage_page(now, id, after.as_ref(), PIECE));
                found.extend(piece.into_iter().filter(is_known).map(|limit| LimitFullness::of(&name, limit)));
                if found.len() >= 2 * LIMITS_MAX {
                    trim(&mut found, LIMITS_MAX);
                }
                after = next;
                if after.is_none() {
                    break;
                }
            }
        }
        trim(&mut found, LIMITS_MAX);
        found.sort_by(|one, other| (&one.namespace, &one.key).cmp(&(&other.namespace, &other.key)));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fullest_limits_stay() {
        let limit = |number: u64| LimitFullness {
            namespace: "team".parse().unwrap(),
            key: format!("k{number}").parse().unwrap(),
            kind: KindTag::Rolling,
            capacity: 100,
            fullness: number as f64 / 100.0,
        };
        let mut limits: Vec<LimitFullness> = (0..100).map(|number| limit(number * 37 % 100)).collect();
        trim(&mut limits, 3);
        limits.sort_by(|one, other| one.fullness.total_cmp(&other.fullness));
        assert_eq!(limits, [limit(97), limit(98), limit(99)]);
    }
}
