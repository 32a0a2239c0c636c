//! Random bodies come out byte for byte as they went in, splices aside.

use proptest::prelude::*;

use super::*;
use crate::json::OPEN_KEYS_MAX;

/// A JSON value as text, with random whitespace and random ways to write strings and numbers.
fn value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        "-?(0|[1-9][0-9]{0,8})(\\.[0-9]{1,4})?([eE][+-]?[0-9]{1,2})?",
        any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap()),
        any::<String>().prop_map(|text| {
            let escaped: String = text.encode_utf16().map(|unit| format!("\\u{unit:04X}")).collect();
            format!("\"{escaped}\"")
        }),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        let item = ("[ \n\r\t]{0,2}", inner.clone(), "[ \n\r\t]{0,2}")
            .prop_map(|(before, value, after)| format!("{before}{value}{after}"));
        let list = proptest::collection::vec(item.clone(), 0..5).prop_map(|items| format!("[{}]", items.join(",")));
        let object = proptest::collection::btree_map("[a-zé]{1,6}", item, 0..5).prop_map(|members| {
            let members: Vec<String> = members.iter().map(|(key, value)| format!(" \"{key}\" :{value}")).collect();
            format!("{{{}}}", members.join(","))
        });
        prop_oneof![list, object]
    })
}

/// A member that the gateway changes, or one that it forwards.
fn members() -> impl Strategy<Value = Vec<String>> {
    let unknown = proptest::collection::btree_map("x_[a-z]{1,5}", value(), 0..6)
        .prop_map(|members| members.into_iter().map(|(key, value)| format!("\"{key}\": {value}")).collect::<Vec<_>>());
    let model = prop_oneof![Just(r#""model":"m""#), Just(r#""model" : "up""#)];
    let cap = prop_oneof![
        Just(""),
        Just(r#""max_tokens":5"#),
        Just(r#""max_completion_tokens": null"#),
        Just(r#""max_completion_tokens":5"#),
    ];
    let stream = prop_oneof![Just(""), Just(r#""stream":true"#), Just(r#""stream":false"#)];
    let options = prop_oneof![
        Just(""),
        Just(r#""stream_options":null"#),
        Just(r#""stream_options":{ }"#),
        Just(r#""stream_options":{"include_usage":false , "x":1}"#),
        Just(r#""stream_options":{"include_usage":true}"#),
        Just(r#""stream_options":{"x":1}"#),
    ];
    (unknown, model, cap, stream, options).prop_flat_map(|(mut members, model, cap, stream, options)| {
        let known = [model, cap, stream, options].into_iter().filter(|member| !member.is_empty());
        members.extend(known.map(str::to_owned));
        Just(members).prop_shuffle()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// The spliced body means the same but for the spliced fields, and removing the splices gives the bytes that came.
    #[test]
    fn random_bodies_are_sent_as_they_came_splices_aside(members in members(), blank in "[ \n]{0,3}") {
        let text = format!("{blank}{{{blank}{}{blank}}}{blank}", members.join(","));
        let body = Bytes::from(text.clone());
        let call = CallBody::scan(Endpoint::Chat, &body).unwrap();
        let splices = call.splices(&call.bound(&body, &rules()).unwrap(), "up");
        let sent = splices.apply(&body);

        // Undo each splice at its new position; the rest must be the body that came.
        let (mut undone, mut at, mut shift) = (Vec::new(), 0, 0_isize);
        for (range, with) in &splices.0 {
            let start = range.start.checked_add_signed(shift).unwrap();
            prop_assert_eq!(&sent[start..start + with.len()], with.as_slice());
            undone.extend_from_slice(&sent[at..start]);
            undone.extend_from_slice(&body[range.clone()]);
            at = start + with.len();
            shift += isize::try_from(with.len()).unwrap() - isize::try_from(range.len()).unwrap();
        }
        undone.extend_from_slice(&sent[at..]);
        prop_assert_eq!(undone, text.as_bytes());

        let mut expected: serde_json::Value = serde_json::from_str(&text).unwrap();
        let expected = expected.as_object_mut().unwrap();
        expected.insert("model".to_owned(), "up".into());
        let has_cap = ["max_tokens", "max_completion_tokens"].iter().any(|cap| expected.get(*cap).is_some_and(|cap| cap.is_u64()));
        if !has_cap {
            expected.insert("max_completion_tokens".to_owned(), 1_000.into());
        }
        if expected.get("stream") == Some(&true.into()) {
            let options = expected.entry("stream_options").or_insert(serde_json::Value::Null);
            if options.is_null() {
                *options = serde_json::json!({});
            }
            options.as_object_mut().unwrap().insert("include_usage".to_owned(), true.into());
        }
        let sent: serde_json::Value = serde_json::from_slice(&sent).unwrap();
        prop_assert_eq!(&sent, &serde_json::Value::Object(expected.clone()));
        // A body that was changed is scanned again without anything to change.
        let again = Bytes::from(sent.to_string());
        let call = CallBody::scan(Endpoint::Chat, &again).unwrap();
        prop_assert!(call.splices(&call.bound(&again, &rules()).unwrap(), "up").is_empty());
    }

    #[test]
    fn no_body_makes_a_scan_panic(body in proptest::collection::vec(any::<u8>(), 0..300)) {
        for endpoint in [Endpoint::Chat, Endpoint::Completions, Endpoint::Embeddings, Endpoint::Responses,
            Endpoint::Messages, Endpoint::CountTokens] {
            let _ = CallBody::scan(endpoint, &body);
        }
    }

    /// A damaged body is refused, or bounded and spliced like any other.
    #[test]
    fn no_damage_to_a_body_makes_it_panic(at in 0_usize..400, byte in any::<u8>(), cut in 0_usize..400) {
        let mut body = br#"{"model":"m","stream":true,"stream_options":{"include_usage":false},"max_tokens":null,"n":2,
            "messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}},{"type":"text","text":"\ud83d\ude00"}]}],
            "tools":[{"type":"function"}],"thinking":{"budget_tokens":5},"metadata":{"user_id":"u"}}"#.to_vec();
        if let Some(place) = body.get_mut(at) {
            *place = byte;
        }
        body.truncate(body.len() - cut.min(body.len()));
        let body = Bytes::from(body);
        for endpoint in [Endpoint::Chat, Endpoint::Messages, Endpoint::Responses] {
            if let Ok(call) = CallBody::scan(endpoint, &body) && let Ok(bound) = call.bound(&body, &rules()) {
                let sent = call.splices(&bound, "up").apply(&body);
                prop_assert!(CallBody::scan(endpoint, &sent).is_ok());
            }
        }
    }
}

#[test]
fn the_memory_of_a_scan_does_not_grow_with_the_body() {
    // A megabyte of the members that cost most: short keys, findings, caps and media.
    let members: Vec<String> = (0..OPEN_KEYS_MAX - 1).map(|key| format!("\"k{key}\":[{}1]", "[],".repeat(5))).collect();
    let body = format!("{{\"model\":\"m\",{}}}", members.join(","));
    let call = CallBody::scan(Endpoint::Chat, body.as_bytes()).unwrap();
    assert!(call.caps.capacity() + call.findings.capacity() < 64);
    let parts = vec![r#"{"type":"image_url","image_url":{"url":"x"}}"#; 20_000].join(",");
    let body = format!(r#"{{"model":"m","messages":[{{"content":[{parts}]}}]}}"#);
    let call = CallBody::scan(Endpoint::Chat, body.as_bytes()).unwrap();
    assert_eq!(call.media, 20_000);
    assert!(call.caps.capacity() + call.findings.capacity() < 64);
}
