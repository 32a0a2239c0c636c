//! The leases of a proxy: their ids, and the text by which Envoy passes one to its end.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use earmark_admission::ReserveAnswer;
use earmark_core::{LeaseId, UnixMs, id128};
use earmark_policy::Attributes;
use serde::{Deserialize, Serialize};

use super::descriptors::DESCRIPTORS_MAX;
use crate::calls::{CallRequest, Called, Decision, Descriptor};

/// The times of leases that an id of a request gives are multiples of this. Shorter than any sensible retention, so that
/// no such lease is refused for its age.
const BUCKET_MS: u64 = 60_000;
/// How long after its first attempt a request may be retried. Envoy's timeout is far shorter.
const RETRY_MS: u64 = 10_000;

/// Generates lease ids.
pub(super) struct LeaseIds {
    /// The random state of the standard hasher saves a dependency on a random generator.
    state: RandomState,
    next: AtomicU64,
}

impl LeaseIds {
    pub(super) fn new() -> LeaseIds {
        LeaseIds { state: RandomState::new(), next: AtomicU64::new(0) }
    }

    pub(super) fn random(&self, now: UnixMs) -> LeaseId {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let half = |which: u64| u128::from(self.state.hash_one((number, which)));
        LeaseId::from_parts(now, half(0) << 64 | half(1))
    }
}

/// An id that Envoy generated for a request: a UUID.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RequestUuid(u128);

impl RequestUuid {
    /// `None` for any other text, which identifies nothing.
    pub(super) fn parse(text: &str) -> Option<RequestUuid> {
        let is_fit = |(place, byte): (usize, u8)| match place {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        };
        let is_uuid = text.len() == 36 && text.bytes().enumerate().all(is_fit);
        is_uuid.then(|| RequestUuid(id128(&text.to_ascii_lowercase()).to_u128()))
    }

    /// The lease of a first attempt now.
    pub(super) fn lease(&self, now: UnixMs) -> LeaseId {
        LeaseId::from_parts(UnixMs::new(now.get() - now.get() % BUCKET_MS), self.0)
    }

    /// The lease of a first attempt shortly before now, if it has another id.
    pub(super) fn earlier_lease(&self, now: UnixMs) -> Option<LeaseId> {
        let earlier = self.lease(UnixMs::new(now.get().saturating_sub(RETRY_MS)));
        (earlier != self.lease(now)).then_some(earlier)
    }
}

/// A lease that Envoy settles at the end of its stream, with what the settlement needs.
#[derive(Debug)]
pub(super) struct HeldLease {
    pub(super) lease: LeaseId,
    pub(super) policy_revision: Option<u64>,
    pub(super) list: Vec<Descriptor>,
}

/// [`HeldLease`] as JSON.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct HeldText {
    lease_id: String,
    policy_revision: Option<u64>,
    descriptors: Vec<HeldDescriptor>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct HeldDescriptor {
    hits: u32,
    attributes: BTreeMap<String, String>,
}

impl HeldLease {
    /// The id and the text of a lease that was allowed.
    pub(super) fn of(request: &CallRequest, called: &Called) -> Option<(String, String)> {
        let Decision::Limits(Ok(ReserveAnswer::Allowed { .. })) = called.decision else { return None };
        let lease_id = request.lease.to_string();
        let descriptor = |descriptor: &Descriptor| {
            let pairs = descriptor.attributes.iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
            HeldDescriptor { hits: descriptor.hits, attributes: pairs.collect() }
        };
        let descriptors = request.asked.descriptors().iter().map(descriptor).collect();
        let text = HeldText { lease_id: lease_id.clone(), policy_revision: called.policy_revision, descriptors };
        Some((lease_id, serde_json::to_string(&text).ok()?))
    }

    /// Reads the text. The lease has a hash of the attributes, so that Envoy cannot settle it by others.
    pub(super) fn parse(text: &str) -> Result<HeldLease, String> {
        let HeldText { lease_id, policy_revision, descriptors } = serde_json::from_str(text)
            .map_err(|error| format!("found no lease ({error}), allowed is the metadata `lease` of an answer"))?;
        let lease = lease_id.parse().map_err(|error: earmark_core::LeaseIdError| error.to_string())?;
        if descriptors.len() > DESCRIPTORS_MAX {
            return Err(format!("descriptors: found {}, allowed are up to {DESCRIPTORS_MAX}", descriptors.len()));
        }
        let descriptor = |HeldDescriptor { hits, attributes }| {
            let attributes = Attributes::new(attributes.iter()).map_err(|error| error.to_string())?;
            Ok(Descriptor { attributes, hits, tokens_max: None })
        };
        let list = descriptors.into_iter().map(descriptor).collect::<Result<_, String>>()?;
        Ok(HeldLease { lease, policy_revision, list })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_id_gives_one_lease_for_ten_seconds_and_only_if_it_is_a_uuid() {
        let id = RequestUuid::parse("2f1fa4b2-3c1d-4e9f-8a7b-0123456789ab").unwrap();
        assert_eq!(RequestUuid::parse("2F1FA4B2-3C1D-4E9F-8A7B-0123456789AB").unwrap(), id);
        assert_ne!(RequestUuid::parse("2f1fa4b2-3c1d-4e9f-8a7b-0123456789ac").unwrap(), id);
        for text in
            ["", "1", "constant-request-id", "2f1fa4b23c1d4e9f8a7b0123456789ab", "2f1fa4b2-3c1d-4e9f-8a7b-0123456789ä"]
        {
            assert_eq!(RequestUuid::parse(text), None, "{text}");
        }
        for start in [1_700_000_000_000, 1_700_000_039_999, 1_700_000_040_000] {
            let first = id.lease(UnixMs::new(start));
            for later in 0..=RETRY_MS {
                let now = UnixMs::new(start + later);
                assert!(id.lease(now) == first || id.earlier_lease(now) == Some(first), "{start} {later}");
            }
            assert!(start - first.time().get() < BUCKET_MS);
        }
    }

    #[test]
    fn generated_ids_differ_and_have_the_time() {
        let (ids, now) = (LeaseIds::new(), UnixMs::new(1_700_000_000_000));
        let all: std::collections::BTreeSet<LeaseId> = (0..1_000).map(|_| ids.random(now)).collect();
        assert_eq!(all.len(), 1_000);
        assert!(all.iter().all(|lease| lease.time() == now));
    }
}
