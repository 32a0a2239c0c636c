//! The attributes and bounds by which the policy judges a call.

use std::borrow::Cow;

use earmark_core::ATTRIBUTES_MAX;
use earmark_policy::{Attributes, Call, CallAmount, Hits, Policy, REQUIREMENTS_MAX, Refusal, Replaced};

/// The attributes and bounds of a call.
pub(crate) enum Asked {
    /// A call to a model.
    Call { attributes: Attributes, input_tokens_max: u32, output_tokens_max: u32 },
    /// The descriptors of a proxy, which make one reserve.
    Descriptors(Vec<Descriptor>),
}

/// The attributes of a call, for the decision log.
#[derive(Clone, Copy)]
pub(crate) enum CallAttributes<'a> {
    One(&'a Attributes),
    OfDescriptors(&'a [Descriptor]),
}

impl<'a> CallAttributes<'a> {
    /// All attributes. The first value of a name wins.
    pub(crate) fn all(self) -> Cow<'a, Attributes> {
        let list = match self {
            CallAttributes::One(attributes) => return Cow::Borrowed(attributes),
            CallAttributes::OfDescriptors(list) => list,
        };
        let mut all: Vec<(&str, &str)> = Vec::new();
        for (name, value) in list.iter().flat_map(|descriptor| descriptor.attributes.iter()) {
            if all.len() < ATTRIBUTES_MAX && !all.iter().any(|(other, _)| *other == name) {
                all.push((name, value));
            }
        }
        // Each was checked, and no name is there twice.
        Cow::Owned(Attributes::new(all).unwrap_or_default())
    }
}

/// One descriptor of a proxy.
#[derive(Clone, Debug)]
pub(crate) struct Descriptor {
    pub(crate) attributes: Attributes,
    /// The amount of `requests`, and of tokens where it states no bounds. One without hits takes nothing; its rules
    /// replace those of the others.
    pub(crate) hits: u32,
    /// The most input and output tokens.
    pub(crate) tokens_max: Option<(u32, u32)>,
}

impl Descriptor {
    fn as_hits(&self, replaced: Replaced) -> Hits<'_> {
        Hits { attributes: &self.attributes, count: self.hits, tokens_max: self.tokens_max, replaced }
    }

    fn fold_bounds(hash: u64, one: &Descriptor) -> u64 {
        let (input, output) = one.tokens_max.unwrap_or_default();
        let hits = u64::from(one.tokens_max.is_some()) << 32 | u64::from(one.hits);
        mix(mix(hash ^ hits) ^ (u64::from(input) << 32 | u64::from(output)))
    }
}

impl Asked {
    pub(crate) fn descriptors(&self) -> &[Descriptor] {
        match self {
            Asked::Call { .. } => &[],
            Asked::Descriptors(list) => list,
        }
    }

    pub(crate) fn attributes(&self) -> CallAttributes<'_> {
        match self {
            Asked::Call { attributes, .. } => CallAttributes::One(attributes),
            Asked::Descriptors(list) => CallAttributes::OfDescriptors(list),
        }
    }

    /// The limits that it needs, by one revision of the policy.
    pub(super) fn evaluate(&self, policy: &Policy) -> Result<Vec<CallAmount>, Refusal> {
        match self {
            Asked::Call { attributes, input_tokens_max, output_tokens_max } => {
                let (input_tokens_max, output_tokens_max) = (*input_tokens_max, *output_tokens_max);
                policy.evaluate(&Call { attributes, input_tokens_max, output_tokens_max })
            }
            Asked::Descriptors(list) => {
                let mut all = Vec::new();
                for hits in hits(policy, list) {
                    raise(&mut all, policy.evaluate_hits(&hits)?);
                }
                if all.len() > REQUIREMENTS_MAX { Err(Refusal::TooManyLimits) } else { Ok(all) }
            }
        }
    }

    /// The hashes of attributes and bounds, which the lease keeps.
    pub(super) fn hashes(&self) -> (u32, u32) {
        match self {
            Asked::Call { attributes, input_tokens_max, output_tokens_max } => {
                (attributes.hash32(), bounds_hash(*input_tokens_max, *output_tokens_max))
            }
            Asked::Descriptors(list) => {
                let attributes = match list.as_slice() {
                    [one] => one.attributes.hash32(),
                    more => low(more.iter().fold(0, |hash, one| mix(hash ^ u64::from(one.attributes.hash32())))),
                };
                (attributes, low(list.iter().fold(1, Descriptor::fold_bounds)))
            }
        }
    }
}

/// The hits of the descriptors of one request, as far as they have any.
pub(super) fn hits<'a>(policy: &Policy, list: &'a [Descriptor]) -> impl Iterator<Item = Hits<'a>> + use<'a> {
    let replaced = policy.replaced(list.iter().map(|descriptor| &descriptor.attributes));
    list.iter().filter(|descriptor| descriptor.hits > 0).map(move |descriptor| descriptor.as_hits(replaced))
}

/// Adds amounts. A key that is there already takes the larger one.
pub(super) fn raise(all: &mut Vec<CallAmount>, more: Vec<CallAmount>) {
    for amount in more {
        match all.iter_mut().find(|other| other.key == amount.key) {
            Some(other) => {
                other.amount = other.amount.max(amount.amount);
                other.is_cost |= amount.is_cost;
            }
            None => all.push(amount),
        }
    }
}

/// A hash of the bounds of a call, the same on every node and in every version.
fn bounds_hash(input_tokens_max: u32, output_tokens_max: u32) -> u32 {
    low(mix(u64::from(input_tokens_max) << 32 | u64::from(output_tokens_max)))
}

/// The finalizer of splitmix64.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

fn low(bits: u64) -> u32 {
    let [a, b, c, d, ..] = bits.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptors(list: &[(&str, &str, u32)]) -> Asked {
        let one = |(name, value, hits): &(&str, &str, u32)| Descriptor {
            attributes: Attributes::new([(*name, *value)]).unwrap(),
            hits: *hits,
            tokens_max: None,
        };
        Asked::Descriptors(list.iter().map(one).collect())
    }

    /// Leases keep the hashes on disk.
    #[test]
    fn the_hashes_of_bounds_and_descriptors_stay() {
        assert_eq!(bounds_hash(0, 0), 0);
        let hashes = [bounds_hash(1_200, 500), bounds_hash(500, 1_200), bounds_hash(1_200, 501), bounds_hash(0, 1)];
        assert_eq!(hashes, [1_410_056_815, 268_094_123, 3_353_058_645, 269_157_861]);
        let hashes = |list| descriptors(list).hashes();
        let one = hashes(&[("a", "b", 1)]);
        assert_eq!(one.0, Attributes::new([("a", "b")]).unwrap().hash32());
        let others = [
            hashes(&[("a", "b", 2)]),
            hashes(&[("a", "c", 1)]),
            hashes(&[("a", "b", 1), ("a", "c", 1)]),
            hashes(&[("a", "c", 1), ("a", "b", 1)]),
        ];
        assert!(others.iter().all(|other| *other != one), "{others:?}");
        assert_ne!(others[2].0, others[3].0, "the order counts");
    }

    #[test]
    fn the_decision_log_gets_the_first_value_of_each_attribute() {
        let all = descriptors(&[("tenant", "acme", 1), ("tenant", "globex", 1), ("model", "m", 1)]);
        assert_eq!(all.attributes().all().iter().collect::<Vec<_>>(), [("model", "m"), ("tenant", "acme")]);
    }
}
