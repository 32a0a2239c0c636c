use serde::de::DeserializeOwned;

use super::*;
use crate::http::parse::{BatchBody, CompleteBody, ReserveBody};

const LEASE: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAV";

fn reserve(requirements: &str) -> String {
    format!(r#"{{"lease_id":"{LEASE}","requirements":{requirements}}}"#)
}

#[test]
fn what_is_wrong_is_said_by_place_with_what_was_found_and_what_is_allowed() {
    let many = |count: usize| {
        let items: Vec<String> = (0..count).map(|n| format!(r#"{{"key":"k{n}","amount":1}}"#)).collect();
        reserve(&format!("[{}]", items.join(",")))
    };
    for (body, message) in [
        (String::new(), "body: found nothing, allowed is one JSON object"),
        ("[]".into(), "body: found [], allowed is an object with lease_id, job_id, requirements"),
        ("null".into(), "body: found null, allowed is an object with lease_id, job_id, requirements"),
        (
            "{".into(),
            "body: found no JSON (EOF while parsing an object at line 1 column 1), allowed is one JSON object",
        ),
        (
            format!("{} {{}}", many(1)),
            "body: found no JSON (trailing characters at line 1 column 84), allowed is one JSON object",
        ),
        ("{}".into(), "lease_id is required"),
        (r#"{"lease":1}"#.into(), "lease: found an unknown field, allowed are lease_id, job_id, requirements"),
        (r#"{"lease_id":7}"#.into(), "lease_id: found 7, allowed is a ULID as a text"),
        (r#"{"lease_id":"x"}"#.into(), "lease_id: found 1 bytes, a ULID has 26 characters"),
        (
            format!(r#"{{"lease_id":"{LEASE}","lease_id":"{LEASE}"}}"#),
            "lease_id: found it twice, allowed is each field once",
        ),
        (
            format!(r#"{{"lease_id":"{LEASE}","job_id":"a b"}}"#),
            "job_id: found ' ' at byte 1, allowed are 1 to 128 bytes of letters, digits and :._@+-",
        ),
        (reserve("{}"), "requirements: found {}, allowed is a list"),
        (reserve("[]"), "requirements: found 0 items, allowed are 1 to 32"),
        (many(33), "requirements: found 33 items, allowed are 1 to 32"),
        (reserve("[1]"), "requirements[0]: found 1, allowed is an object with key, amount, namespace"),
        (
            reserve(r#"[["a",1]]"#),
            r#"requirements[0]: found ["a",1], allowed is an object with key, amount, namespace"#,
        ),
        (reserve(r#"[{"key":"a"}]"#), "requirements[0].amount is required"),
        (
            reserve(r#"[{"key":"a!b","amount":1}]"#),
            "requirements[0].key: found '!' at byte 1, allowed are 1 to 256 bytes of letters, digits and :._@+-/|=~%",
        ),
        (
            reserve(r#"[{"key":"a","amount":1},{"key":"\u0061","amount":2}]"#),
            r#"requirements[1].key: found "a" as in item 0, allowed is each key once"#,
        ),
        (
            reserve(r#"[{"key":"a","amount":1,"actor":"me"}]"#),
            "requirements[0].actor: found an unknown field, allowed are key, amount, namespace",
        ),
    ] {
        assert_eq!(ReserveBody::SHAPE.explain(body.as_bytes()).as_deref(), Some(message), "{body}");
        assert!(serde_json::from_str::<Object<ReserveBody>>(&body).is_err(), "{body}");
    }
}

#[test]
fn an_amount_is_an_integer_of_64_bits_and_nothing_else() {
    let long = format!("\"{}\"", "é".repeat(100));
    for amount in ["\"5\"", "0", "-1", "1.5", "1.0", "1e3", "null", "18446744073709551616", &long] {
        let body = reserve(&format!(r#"[{{"key":"a","amount":1}},{{"key":"b","amount":{amount}}}]"#));
        let message = ReserveBody::SHAPE.explain(body.as_bytes()).unwrap();
        let found = if amount == long { format!("\"{}...", "é".repeat(63)) } else { amount.to_owned() };
        let allowed = "allowed are integers from 1 to 18446744073709551615";
        assert_eq!(message, format!("requirements[1].amount: found {found}, {allowed}"));
        assert!(serde_json::from_str::<Object<ReserveBody>>(&body).is_err(), "{body}");
    }
}

#[test]
fn a_place_in_a_batch_names_its_item() {
    let good = reserve(r#"[{"key":"a","amount":1}]"#);
    let bad = reserve(r#"[{"key":"a","amount":1},{"key":"b","amount":0}]"#);
    let message =
        BatchBody::<ReserveBody>::SHAPE.explain(format!(r#"{{"requests":[{good},{bad}]}}"#).as_bytes()).unwrap();
    assert!(message.starts_with("requests[1].requirements[1].amount: found 0, "), "{message}");
}

#[test]
fn what_is_right_is_not_explained() {
    for body in [
        reserve(r#"[{"key":"a","amount":18446744073709551615}]"#),
        reserve(r#" [ { "amount" : 1 , "key" : "\u0061" } ] "#),
        format!(r#"{{"requirements":[{{"key":"a","amount":1}}],"job_id":null,"lease_id":"{LEASE}"}}"#),
    ] {
        assert_eq!(ReserveBody::SHAPE.explain(body.as_bytes()), None, "{body}");
        assert!(serde_json::from_str::<Object<ReserveBody>>(&body).is_ok(), "{body}");
    }
}

/// The field types parse by hand-written code and name their shapes; both must agree.
#[test]
fn a_body_is_refused_by_the_parser_exactly_if_the_shape_can_explain_it() {
    let reserve = r#"{"lease_id":"01ARZ3NDEKTSV4RRFFQ69G5FAV","job_id":"j","requirements":[{"key":"a","amount":1},{"key":"ab","amount":20}]}"#;
    let complete = r#"{"lease_id":"01ARZ3NDEKTSV4RRFFQ69G5FAV","actuals":[{"key":"a","actual_amount":0}]}"#;
    let mut random = Random(0x5eed);
    let mut accepted = [0; 4];
    for _ in 0..20_000 {
        let (one, two) = (random.mutated(reserve), random.mutated(reserve));
        accepted[0] += agree::<ReserveBody>(&one);
        accepted[1] += agree::<BatchBody<ReserveBody>>(&batch(&[&one, &two]));
        let (one, two) = (random.mutated(complete), random.mutated(complete));
        accepted[2] += agree::<CompleteBody>(&one);
        accepted[3] += agree::<BatchBody<CompleteBody>>(&batch(&[&one, &two]));
    }
    for accepted in accepted {
        assert!((100..19_000).contains(&accepted), "the mutations are too wild or too tame: {accepted}");
    }
}

fn batch(items: &[&[u8]]) -> Vec<u8> {
    [b"{\"requests\":[", items.join(&b","[..]).as_slice(), b"]}"].concat()
}

fn agree<T: DeserializeOwned + Described>(body: &[u8]) -> usize {
    let parsed = serde_json::from_slice::<Object<T>>(body).map(drop).map_err(|error| error.to_string());
    let explained = T::SHAPE.explain(body);
    assert_eq!(parsed.is_ok(), explained.is_none(), "{:?}: {parsed:?}, {explained:?}", body.escape_ascii().to_string());
    usize::from(parsed.is_ok())
}

/// Limits are parsed by another crate.
#[test]
fn a_limit_is_refused_by_the_parser_exactly_if_the_shape_can_explain_it() {
    let limits = [
        r#"{"key":"a","kind":"rolling","capacity":1,"window_seconds":60,"timeout_seconds":null,"overage":"deny"}"#,
        r#"{"key":"a","kind":"concurrency","capacity":1,"timeout_seconds":60,"unit":"x","vault":null}"#,
        r#"{"key":"a","kind":"credit","timeout_seconds":60,"vault":"v","account":"b","asset":"usd","revenue":"r"}"#,
    ];
    let mut random = Random(0x5eed);
    for limit in limits {
        let (plain, swapped) = (random.limits(limit), random.limits(&limit.replace("60", "null")));
        assert!((100..19_000).contains(&plain), "the mutations are too wild or too tame: {plain}");
        assert!(swapped < plain);
    }
}

/// Pseudo-random numbers, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    /// The number of accepted mutations of a limit.
    fn limits(&mut self, limit: &str) -> usize {
        (0..20_000).map(|_| agree::<LimitDocument>(&self.mutated(limit))).sum()
    }

    /// `text` with up to two pieces replaced by others that are common in bodies.
    fn mutated(&mut self, text: &str) -> Vec<u8> {
        const PIECES: [&str; 24] = [
            "",
            "0",
            "1",
            "-1",
            "1.5",
            "1e2",
            "18446744073709551615",
            "18446744073709551616",
            "\"",
            "\"5\"",
            "null",
            "[]",
            "{}",
            "[",
            "]",
            "{",
            "}",
            ",",
            ":",
            "key",
            "amount",
            "a",
            " ",
            "\\u0061",
        ];
        let mut bytes = text.as_bytes().to_vec();
        for _ in 0..self.below(3) {
            let at = self.below(bytes.len() + 1);
            let length = self.below(4).min(bytes.len() - at);
            bytes.splice(at..at + length, PIECES[self.below(PIECES.len())].bytes());
        }
        bytes
    }
}

#[test]
fn the_patterns_allow_what_the_code_allows() {
    for name in [&LIMIT_KEY, &JOB_ID, &ACCOUNT, &NAMESPACE, &VAULT, &CLIENT, &ASSET] {
        let class = name.pattern.strip_prefix("^[").and_then(|rest| rest.strip_suffix("]+$")).unwrap();
        for character in (0..=0x17f).filter_map(char::from_u32) {
            let is_allowed = (name.check)(&character.to_string()).is_ok();
            assert_eq!(in_class(class, character), is_allowed, "{character:?}");
        }
        assert!((name.check)(&"a".repeat(name.bytes_max)).is_ok());
        assert!((name.check)(&"a".repeat(name.bytes_max + 1)).is_err());
    }
    let classes = LEASE_PATTERN.strip_prefix("^[").and_then(|rest| rest.strip_suffix("]{25}$")).unwrap();
    let (first, rest) = classes.split_once("][").unwrap();
    for character in (0..=0x17f).filter_map(char::from_u32) {
        let starts = format!("{character}{}", "0".repeat(25));
        assert_eq!(in_class(first, character), starts.parse::<LeaseId>().is_ok(), "{character:?}");
        let ends = format!("{}{character}", "0".repeat(25));
        assert_eq!(in_class(rest, character), ends.parse::<LeaseId>().is_ok(), "{character:?}");
    }
}

/// Whether a character is in a class like `A-Z_-`.
fn in_class(class: &str, character: char) -> bool {
    let class: Vec<char> = class.chars().collect();
    let mut rest = class.as_slice();
    loop {
        match rest {
            [first, '-', last, ..] => {
                if (*first..=*last).contains(&character) {
                    return true;
                }
                rest = &rest[3..];
            }
            [one, ..] if *one == character => return true,
            [_, ..] => rest = &rest[1..],
            [] => return false,
        }
    }
}

#[test]
fn a_definition_is_explained_field_by_field() {
    for (body, message) in [
        (
            r#"{"key":"a","kind":"rolling","capacity":1,"window_seconds":31622401}"#,
            "window_seconds: found 31622401, allowed are integers from 1 to 31622400",
        ),
        (r#"{"kind":"bursty"}"#, "kind: found \"bursty\", allowed are rolling, concurrency, calendar and credit"),
        (
            r#"{"key":"a","kind":"credit","timeout_seconds":1,"vault":"main","account":"b","asset":null}"#,
            "asset is required for a credit limit",
        ),
        (r#"{"key":"a","kind":"credit","capacity":1}"#, "capacity: found 1, but a credit limit has none"),
        (r#"{"key":"a","kind":"rolling","asset":"usd"}"#, "asset: found \"usd\", but a rolling limit has none"),
        (r#"{"unit":5}"#, "unit: found 5, allowed is a text"),
        (
            r#"{"actor":"me"}"#,
            "actor: found an unknown field, allowed are key, kind, capacity, window_seconds, timeout_seconds, period, utc_offset_minutes, vault, account, asset, revenue, on_timeout, unit, description, overage, shared, enforce",
        ),
    ] {
        assert_eq!(LimitDocument::SHAPE.explain(body.as_bytes()).as_deref(), Some(message), "{body}");
    }
    let long = format!(r#"{{"unit":"{}"}}"#, "é".repeat(33));
    assert_eq!(
        LimitDocument::SHAPE.explain(long.as_bytes()).as_deref(),
        Some("unit: found 66 bytes, allowed are up to 64")
    );
}
