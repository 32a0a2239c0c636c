//! Responses that routes document.

/// A described response.
pub(in crate::http) struct Documented {
    pub(in crate::http) status: u16,
    pub(in crate::http) about: &'static str,
    /// Names of JSON schemas, one of which matches; empty if it is never JSON.
    pub(in crate::http) schemas: &'static [&'static str],
    /// The media type of the text that it is instead of JSON.
    pub(in crate::http) text_type: Option<&'static str>,
}

pub(in crate::http) const fn answer(status: u16, schema: &'static [&'static str], about: &'static str) -> Documented {
    let text_type = if schema.is_empty() { Some("text/plain") } else { None };
    Documented { status, about, schemas: schema, text_type }
}

/// JSON, or a text of this media type.
pub(in crate::http) const fn json_or(
    text_type: &'static str,
    status: u16,
    schema: &'static [&'static str],
    about: &'static str,
) -> Documented {
    Documented { status, about, schemas: schema, text_type: Some(text_type) }
}

/// A file or a stream.
pub(in crate::http) const fn binary(status: u16, about: &'static str, text_type: &'static str) -> Documented {
    Documented { status, about, schemas: &[], text_type: Some(text_type) }
}

pub(in crate::http) const PROBLEM: &[&str] = &["Problem"];
pub(in crate::http) const RESERVE_ANSWER: &[&str] = &["ReserveAnswer"];
pub(in crate::http) const EXTEND_ANSWER: &[&str] = &["ExtendAnswer"];
pub(in crate::http) const COMPLETE_ANSWER: &[&str] = &["CompleteAnswer"];

pub(in crate::http) const WRITE_ANSWER: &[&str] = &["WriteRefused"];
pub(in crate::http) const WRITE_ANSWERS: &[Documented] = &[
    answer(200, &["WriteCommitted"], "Committed, now or by an earlier copy of the same write."),
    answer(400, &["Problem", "WriteRefused"], "Malformed, or an operation of another scope."),
    answer(402, WRITE_ANSWER, "`INSUFFICIENT_CREDIT`: an account has too little credit."),
    answer(404, WRITE_ANSWER, "`ACCOUNT_NOT_FOUND` or `VAULT_NOT_FOUND`."),
    answer(409, WRITE_ANSWER, "A sequence, a key, a condition or the state of an account prevents the write."),
    answer(
        503,
        &["WriteRefused", "Problem"],
        "`UNAVAILABLE`: the outcome is unknown. Retry the same write. `overloaded`: nothing happened.",
    ),
];
pub(in crate::http) const BAD_NAME: Documented = answer(400, PROBLEM, "A name in the path or query is malformed.");
pub(in crate::http) const NO_VAULT: Documented = answer(404, PROBLEM, "No such vault or account.");

pub(in crate::http) const BAD_QUERY: Documented = answer(400, PROBLEM, "Unknown query parameter.");
pub(in crate::http) const BAD_KEY: Documented = answer(400, PROBLEM, "The key in the path is malformed.");
pub(in crate::http) const QUOTA: Documented =
    answer(409, PROBLEM, "`quota_exceeded:<quota>`: the namespace has used up a quota.");
pub(in crate::http) const NO_PAUSE: Documented = answer(
    409,
    PROBLEM,
    "`conflict`: as many limits are paused as may be. `quota_exceeded:<quota>`: the namespace has used up a quota.",
);
pub(in crate::http) const TEMPLATE_DIFFERS: Documented = answer(
    409,
    PROBLEM,
    "`conflict`: it does not have the `expected_revision`. `quota_exceeded:<quota>`: the namespace has used up a quota.",
);
pub(in crate::http) const NO_LIMIT: Documented = answer(404, PROBLEM, "No limit has this key.");
pub(in crate::http) const NO_TEMPLATE: Documented = answer(404, PROBLEM, "No template has this key.");
pub(in crate::http) const NO_POLICY: Documented = answer(404, PROBLEM, "The namespace has no policy.");
pub(in crate::http) const NO_CLUSTER: Documented =
    answer(404, PROBLEM, "This server runs in memory and has no cluster.");
pub(in crate::http) const MEMBERS_STAY: Documented =
    answer(409, PROBLEM, "`conflict`: the members were not changed; the message says why.");
pub(in crate::http) const MEMBERS_LATER: Documented =
    answer(503, PROBLEM, "`unavailable`: not possible now, or not finished yet. Retry the same request.");

pub(in crate::http) const NO_KEYS: Documented = answer(404, PROBLEM, "No such key, or this server has no keys.");

pub(in crate::http) const FAILED: Documented =
    answer(500, PROBLEM, "`backend_error`: the outcome is unknown, or nothing happened. Retry.");
pub(in crate::http) const OVERLOADED: Documented = answer(503, PROBLEM, "`overloaded`: nothing happened. Retry later.");

/// Responses of every route with a body.
pub(in crate::http) static WITH_BODY: [Documented; 4] = [
    answer(400, PROBLEM, "Malformed body; the message names the field, the value found and the values allowed."),
    answer(408, PROBLEM, "The body did not arrive in time."),
    answer(413, PROBLEM, "The body is too large."),
    OVERLOADED,
];

/// Responses of every route that needs credentials.
pub(in crate::http) static GUARDED: [Documented; 3] = [
    answer(401, PROBLEM, "`unauthenticated`: the credentials are missing or not valid."),
    answer(403, PROBLEM, "`forbidden`: the caller lacks a role; the message names it."),
    answer(429, PROBLEM, "`rate_limited`: too many requests; retry after the seconds in the header `retry-after`."),
];
