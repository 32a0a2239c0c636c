use std::time::Duration;

use earmark_core::UnixMs;
use serde_json::Value;

use super::*;
use crate::body::CallBody;
use crate::{Endpoint, body::ModelRules};

fn key(text: &str) -> LimitKey {
    text.parse().unwrap()
}

fn body(error: &ApiError, api: Api) -> Value {
    serde_json::from_slice(&error.body(api, Some("req_1"))).unwrap()
}

/// Checks the status, type and code of a kind in both APIs, and whether an SDK retries it.
#[track_caller]
fn check(kind: ErrorKind, openai: (u16, &str, Option<&str>), anthropic: (u16, &str), retries: bool) {
    let error = ApiError::new(kind, "why");
    let found = body(&error, Api::OpenAi);
    assert_eq!(error.status(Api::OpenAi), openai.0, "{kind:?}");
    let code = openai.2.map_or(Value::Null, Value::from);
    let expected = json!({"error": {"message": "why", "type": openai.1, "param": null, "code": code}});
    assert_eq!(found, expected);
    assert_eq!(error.status(Api::Anthropic), anthropic.0, "{kind:?}");
    let expected = json!({"type": "error", "error": {"type": anthropic.1, "message": "why"}, "request_id": "req_1"});
    assert_eq!(body(&error, Api::Anthropic), expected);
    // Both SDKs retry these statuses, unless a header says not to.
    for status in [openai.0, anthropic.0] {
        let is_retried = matches!(status, 408 | 409 | 429 | 500..) && error.headers().is_empty();
        assert_eq!(is_retried, retries, "{kind:?} {status}");
    }
}

#[test]
fn each_kind_has_the_shape_of_both_apis() {
    let invalid = "invalid_request_error";
    check(ErrorKind::Invalid, (400, invalid, None), (400, invalid), false);
    check(ErrorKind::ExceedsCapacity, (400, invalid, Some("exceeds_capacity")), (400, invalid), false);
    check(ErrorKind::Unauthenticated, (401, invalid, Some("invalid_api_key")), (401, "authentication_error"), false);
    check(ErrorKind::Forbidden, (403, invalid, Some("permission_denied")), (403, "permission_error"), false);
    check(ErrorKind::UnknownModel, (404, invalid, Some("model_not_found")), (404, "not_found_error"), false);
    check(ErrorKind::NotFound, (404, invalid, Some("unknown_url")), (404, "not_found_error"), false);
    check(ErrorKind::TooLarge, (413, invalid, Some("request_too_large")), (413, "request_too_large"), false);
    check(ErrorKind::ClientTimeout, (408, invalid, Some("request_timeout")), (408, "timeout_error"), true);
    let limited = Some("rate_limit_exceeded");
    check(ErrorKind::RateLimited, (429, "rate_limit_error", limited), (429, "rate_limit_error"), true);
    let quota = "insufficient_quota";
    check(ErrorKind::InsufficientCredit, (429, quota, Some(quota)), (402, "billing_error"), false);
    let server = "server_error";
    check(ErrorKind::Overloaded, (503, server, Some("overloaded")), (503, "overloaded_error"), true);
    check(ErrorKind::Unavailable, (503, server, Some("service_unavailable")), (503, "api_error"), true);
    check(ErrorKind::UpstreamFailed, (502, server, Some("upstream_failed")), (502, "api_error"), true);
    check(ErrorKind::UpstreamTimeout, (504, server, Some("upstream_timeout")), (504, "timeout_error"), true);
    assert_eq!(ErrorKind::ALL.len(), 14);
}

#[test]
fn a_denial_says_how_long_to_wait_and_which_limits_are_in_the_way() {
    let denial = Denial { retry_after: Duration::from_millis(1_500), limited_by: vec![key("a:rpm"), key("b:tpm")] };
    let error = ApiError::of(&CallDecision::Limits(ReserveAnswer::Denied(denial))).unwrap();
    assert_eq!((error.status(Api::OpenAi), error.status(Api::Anthropic)), (429, 429));
    assert_eq!(error.message, "rate limit reached: a:rpm and b:tpm; try again in 2 s");
    let headers = error.headers();
    let value = |name| headers.iter().find(|(found, _)| *found == name).map(|(_, value)| value.as_str());
    assert_eq!(value("retry-after-ms"), Some("1500"));
    assert_eq!(value("retry-after"), Some("2"));
    assert_eq!(value("x-should-retry"), None);
    assert_eq!(value(LIMITED_BY), Some("a:rpm, b:tpm"));
}

#[test]
fn denials_that_waiting_does_not_help_are_final() {
    let of = |answer| ApiError::of(&CallDecision::Limits(answer)).unwrap();
    let credit = ReserveAnswer::InsufficientCredit { key: key("acme:usd"), message: None };
    let cases = [
        (of(credit), 429, 402),
        (of(ReserveAnswer::Never { limited_by: vec![key("a:tpm")] }), 400, 400),
        (of(ReserveAnswer::AccountNotFound(key("acme:usd"))), 403, 403),
        (of(ReserveAnswer::UnknownLimitKey(key("a:tpm"))), 403, 403),
    ];
    for (error, openai, anthropic) in cases {
        assert_eq!((error.status(Api::OpenAi), error.status(Api::Anthropic)), (openai, anthropic));
        let names: Vec<&str> = error.headers().iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["x-should-retry", LIMITED_BY]);
    }
    let refusal = PolicyRefusal { error: "denied_by_rule:plan".to_owned(), message: "upgrade to pro".to_owned() };
    let refused = ApiError::of(&CallDecision::Refused(refusal)).unwrap();
    assert_eq!((refused.status(Api::OpenAi), refused.message.as_str()), (403, "upgrade to pro"));
}

#[test]
fn an_allowed_call_is_no_error_and_a_lost_lease_is_tried_again() {
    let allowed = ReserveAnswer::Allowed { reserved_at: UnixMs::new(1), would_deny: Vec::new() };
    assert_eq!(ApiError::of(&CallDecision::Limits(allowed)), None);
    let lost = ApiError::of(&CallDecision::Limits(ReserveAnswer::LeaseExpired)).unwrap();
    assert_eq!((lost.kind, lost.headers()), (ErrorKind::Unavailable, Vec::new()));
}

#[test]
fn a_refused_body_names_its_field() {
    let text = br#"{"model":"m","previous_response_id":"resp_1"}"#;
    let call = CallBody::scan(Endpoint::Responses, text).unwrap();
    let error = ApiError::from(call.bound(text, &ModelRules::default()).unwrap_err());
    assert_eq!(error.param.as_deref(), Some("previous_response_id"));
    assert_eq!(body(&error, Api::OpenAi)["error"]["param"], "previous_response_id");
    let unknown = ApiError::unknown_model("gpt-9");
    assert_eq!(body(&unknown, Api::OpenAi)["error"]["param"], "model");
}

#[test]
fn the_list_of_limits_is_bounded() {
    let limited_by = (0..1_000).map(|limit| key(&format!("limit:{limit}"))).collect();
    let error = ApiError::of(&CallDecision::Limits(ReserveAnswer::Never { limited_by })).unwrap();
    let (_, keys) = error.headers().pop().unwrap();
    assert!(keys.len() <= LIMITED_BY_BYTES_MAX + 2);
    assert!(keys.starts_with("limit:0, limit:1, "));
}
