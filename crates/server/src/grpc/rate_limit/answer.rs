//! The answer to Envoy: a status for each descriptor, and headers, body and metadata for the request.

use std::time::Duration;

use earmark_core::LimitKey;
use earmark_policy::LimitState;
use earmark_proto::envoy::config::core::v3::HeaderValue;
use earmark_proto::envoy::service::ratelimit::v3::RateLimitResponse;
use earmark_proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use earmark_proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use prost_types::value::Kind;
use prost_types::{Struct, Value};

use crate::calls::{self, CallWire, Called, KnownLimit};

/// The metadata with the lease for the end of the stream.
const LEASE: &str = "lease";
/// The metadata with the id of the lease, for logs.
const LEASE_ID: &str = "lease_id";

/// The decision about some of the descriptors.
pub(super) struct Group {
    /// The places of its descriptors.
    pub(super) places: Vec<usize>,
    pub(super) called: Called,
    /// The limits of each descriptor, `None` if the policy refuses it. Empty if the answer needs none.
    pub(super) keys: Vec<Option<Vec<LimitKey>>>,
    /// The limits that the answer may reveal.
    pub(super) known: Vec<KnownLimit>,
}

impl Group {
    /// A refusal of all descriptors.
    pub(super) fn refused(count: usize, called: Called) -> Group {
        Group { places: (0..count).collect(), called, keys: Vec::new(), known: Vec::new() }
    }

    pub(super) fn is_allowed(&self) -> bool {
        CallWire::of(&self.called).reserve.allowed
    }
}

/// The answer to a request with this many descriptors. Those in no group are OK.
pub(super) fn of(count: usize, groups: &[Group], held: Option<&(String, String)>) -> RateLimitResponse {
    let ok = DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
    let mut answer = RateLimitResponse {
        overall_code: Code::Ok.into(),
        statuses: vec![ok; count],
        dynamic_metadata: held.map(|(id, text)| metadata([(LEASE_ID, id), (LEASE, text)])),
        ..RateLimitResponse::default()
    };
    for group in groups {
        let wire = CallWire::of(&group.called);
        let states = calls::limit_states(&group.known, &wire);
        add_statuses(&mut answer.statuses, group, (&wire, &states));
        let mut headers = wire.headers(&states);
        if !wire.reserve.allowed {
            answer.overall_code = Code::OverLimit.into();
            answer.raw_body = serde_json::to_vec(&wire.reserve).unwrap_or_default();
            headers.push(("content-type", "application/json".to_owned()));
        }
        let header = |(key, value): (&str, String)| HeaderValue { key: key.to_owned(), value, raw_value: Vec::new() };
        answer.response_headers_to_add = headers.into_iter().map(header).collect();
    }
    answer
}

fn metadata(texts: [(&str, &String); 2]) -> Struct {
    let value = |text: &String| Value { kind: Some(Kind::StringValue(text.clone())) };
    Struct { fields: texts.into_iter().map(|(name, text)| (name.to_owned(), value(text))).collect() }
}

fn add_statuses(statuses: &mut [DescriptorStatus], group: &Group, (wire, states): (&CallWire<'_>, &[LimitState<'_>])) {
    let limited_by = wire.reserve.limited_by;
    let is_limited = |keys: Option<&Option<Vec<LimitKey>>>| match keys {
        Some(Some(keys)) => keys.iter().any(|key| limited_by.contains(key)),
        Some(None) => true,
        None => false,
    };
    let any = (0..group.places.len()).any(|index| is_limited(group.keys.get(index)));
    for (index, place) in group.places.iter().enumerate() {
        let Some(status) = statuses.get_mut(*place) else { continue };
        let keys = group.keys.get(index);
        if !wire.reserve.allowed && (is_limited(keys) || !any) {
            status.code = Code::OverLimit.into();
        }
        let Some(Some(keys)) = keys else { continue };
        let own = states.iter().filter(|state| keys.iter().any(|key| key.as_str() == state.key));
        // The limits in the way first, then the one with the least left.
        let is_in_the_way = |state: &LimitState<'_>| limited_by.iter().any(|key| key.as_str() == state.key);
        if let Some(state) = own.min_by_key(|state| (!is_in_the_way(state), state.available)) {
            reveal(status, state);
        }
    }
}

fn reveal(status: &mut DescriptorStatus, state: &LimitState<'_>) {
    status.current_limit = Some(RateLimit {
        requests_per_unit: clamp(state.capacity),
        unit: unit(state.window_seconds).into(),
        name: state.key.to_owned(),
    });
    status.limit_remaining = clamp(state.available);
    // A whole window later everything is free.
    let reset = state.reset_seconds.or(state.window_seconds).map(Duration::from_secs);
    status.duration_until_reset = reset.and_then(|reset| reset.try_into().ok());
}

/// Amounts of Earmark have 64 bits, those of Envoy 32.
fn clamp(amount: u64) -> u32 {
    u32::try_from(amount).unwrap_or(u32::MAX)
}

fn unit(window_seconds: Option<u64>) -> Unit {
    const DAY: u64 = 86_400;
    const MONTH_MIN: u64 = 28 * DAY;
    const MONTH_MAX: u64 = 31 * DAY;
    const YEAR_MIN: u64 = 365 * DAY;
    match window_seconds {
        Some(1) => Unit::Second,
        Some(60) => Unit::Minute,
        Some(3_600) => Unit::Hour,
        Some(DAY) => Unit::Day,
        Some(MONTH_MIN..=MONTH_MAX) => Unit::Month,
        Some(YEAR_MIN..) => Unit::Year,
        Some(_) | None => Unit::Unknown,
    }
}
