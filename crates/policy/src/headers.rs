//! The headers of a decision, for `/v1/calls`, the gateway and Envoy.

use std::fmt::Write as _;

/// The largest integer of a structured field (RFC 9651). Larger amounts are cut to it.
const STRUCTURED_INTEGER_MAX: u64 = 999_999_999_999_999;

/// A decision, as far as its headers need it.
#[derive(Clone, Copy, Debug, Default)]
pub struct DecisionHeaders<'a> {
    /// Whether the call is allowed.
    pub is_allowed: bool,
    /// Milliseconds until another attempt may succeed; 0 if that is not known.
    pub retry_after_ms: u64,
    /// Whether waiting does not help: the policy refuses the call, credit is missing, or a capacity is too small.
    pub is_final: bool,
    /// The limits of the call, if the caller may know them (`--reveal-remaining`).
    pub limits: &'a [LimitState<'a>],
}

/// A limit that a caller may know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitState<'a> {
    /// The key.
    pub key: &'a str,
    /// The capacity in force.
    pub capacity: u64,
    /// The free amount.
    pub available: u64,
    /// The length of its window or period in seconds. `None` for a limit without one.
    pub window_seconds: Option<u64>,
    /// Seconds until more is free, if that is known.
    pub reset_seconds: Option<u64>,
}

/// The names and values of the headers of a decision.
///
/// A denial has `retry-after-ms` and `retry-after`, as the SDKs of OpenAI and Anthropic read them, or `x-should-retry:
/// false` where waiting does not help. Known limits are in `ratelimit-policy` and `ratelimit`
/// (draft-ietf-httpapi-ratelimit-headers-10).
#[must_use]
pub fn headers(decision: &DecisionHeaders<'_>) -> Vec<(&'static str, String)> {
    let mut headers = Vec::new();
    if !decision.is_allowed {
        if decision.is_final {
            headers.push(("x-should-retry", "false".to_owned()));
        } else if decision.retry_after_ms > 0 {
            headers.push(("retry-after-ms", decision.retry_after_ms.to_string()));
            headers.push(("retry-after", decision.retry_after_ms.div_ceil(1_000).to_string()));
        }
    }
    if !decision.limits.is_empty() {
        let (mut policies, mut states) = (String::new(), String::new());
        for limit in decision.limits {
            write_item(&mut policies, limit.key, [("q", Some(limit.capacity)), ("w", limit.window_seconds)]);
            write_item(&mut states, limit.key, [("r", Some(limit.available)), ("t", limit.reset_seconds)]);
        }
        headers.push(("ratelimit-policy", policies));
        headers.push(("ratelimit", states));
    }
    headers
}

/// Appends an item of a structured list: a string with integer parameters.
fn write_item(list: &mut String, key: &str, parameters: [(&str, Option<u64>); 2]) {
    if !list.is_empty() {
        list.push_str(", ");
    }
    // A key has neither quotes nor backslashes, which a string would have to escape.
    list.push('"');
    list.push_str(key);
    list.push('"');
    for (name, value) in parameters {
        if let Some(value) = value {
            // Writing to a text does not fail.
            let _written = write!(list, ";{name}={}", value.min(STRUCTURED_INTEGER_MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RPM: LimitState<'_> = LimitState {
        key: "tenant:acme:rpm",
        capacity: 100,
        available: 50,
        window_seconds: Some(60),
        reset_seconds: Some(30),
    };

    #[test]
    fn a_decision_becomes_the_headers_of_the_drafts() {
        let denied = |retry_after_ms| DecisionHeaders { retry_after_ms, ..DecisionHeaders::default() };
        let last = |retry_after_ms| DecisionHeaders { is_final: true, ..denied(retry_after_ms) };
        let slots = LimitState { key: "!default:calls", capacity: u64::MAX, ..LimitState::default() };
        let known = |limits| DecisionHeaders { is_allowed: true, limits, ..DecisionHeaders::default() };
        let cases: [(DecisionHeaders<'_>, &[(&str, &str)]); 8] = [
            (known(&[]), &[]),
            (denied(0), &[]),
            (denied(1), &[("retry-after-ms", "1"), ("retry-after", "1")]),
            (denied(2_000), &[("retry-after-ms", "2000"), ("retry-after", "2")]),
            (denied(2_001), &[("retry-after-ms", "2001"), ("retry-after", "3")]),
            (last(60_000), &[("x-should-retry", "false")]),
            (
                known(&[RPM]),
                &[
                    ("ratelimit-policy", "\"tenant:acme:rpm\";q=100;w=60"),
                    ("ratelimit", "\"tenant:acme:rpm\";r=50;t=30"),
                ],
            ),
            (
                DecisionHeaders { limits: &[RPM, slots], ..denied(1_500) },
                &[
                    ("retry-after-ms", "1500"),
                    ("retry-after", "2"),
                    ("ratelimit-policy", "\"tenant:acme:rpm\";q=100;w=60, \"!default:calls\";q=999999999999999"),
                    ("ratelimit", "\"tenant:acme:rpm\";r=50;t=30, \"!default:calls\";r=0"),
                ],
            ),
        ];
        for (decision, expected) in cases {
            let found = headers(&decision);
            let found: Vec<(&str, &str)> = found.iter().map(|(name, value)| (*name, value.as_str())).collect();
            assert_eq!(found, expected, "{decision:?}");
        }
    }
}
