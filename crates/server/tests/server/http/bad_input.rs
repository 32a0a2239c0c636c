//! Malformed bodies: each gets 400 with the field, and changes nothing.

use serde_json::{Value, json};

use crate::support::{START_MS, TestServer, Wire, complete, reserve};

const PLENTY: u64 = 1_000_000;

async fn server() -> TestServer {
    let server = TestServer::open().await;
    server.put_rolling("a", PLENTY, 60).await;
    server
}

/// Asserts that each body is rejected with this field in the message, and changes nothing.
async fn refused(server: &TestServer, path: &str, cases: &[(String, &str)]) {
    for (body, message) in cases {
        let found = server.ask("POST", path, body).await.problem(400, "invalid_request");
        assert!(found.starts_with(message), "{path} {body}: {found}");
    }
    assert_eq!(server.reserved("a").await, 0);
    assert_eq!(server.metric("earmark_remembered_leases").await, 0.0);
}

#[tokio::test]
async fn amounts_that_are_no_positive_integers_are_refused() {
    let server = server().await;
    let of = |amount: &str| {
        format!(r#"{{"lease_id":"{}","requirements":[{{"key":"a","amount":{amount}}}]}}"#, server.lease())
    };
    let allowed = "allowed are integers from 1 to 18446744073709551615";
    for amount in
        ["0", "-1", "-0", "1.5", "1.0", "1e2", "18446744073709551616", "1e400", "\"5\"", "null", "true", "[1]"]
    {
        let found = server.ask("POST", "/v1/reserve", &of(amount)).await.problem(400, "invalid_request");
        assert_eq!(found, format!("requirements[0].amount: found {amount}, {allowed}"));
    }
    assert_eq!(server.reserved("a").await, 0);
    assert_eq!(server.ask("POST", "/v1/reserve", &of("18446744073709551615")).await.status, 200);
}

#[tokio::test]
async fn actual_amounts_may_be_nothing_but_no_less() {
    let server = server().await;
    let of = |amount: &str| {
        format!(r#"{{"lease_id":"{}","actuals":[{{"key":"a","actual_amount":{amount}}}]}}"#, server.lease())
    };
    let message = "actuals[0].actual_amount: found ";
    let cases: Vec<(String, &str)> =
        ["-1", "1.5", "18446744073709551616", "\"5\""].iter().map(|amount| (of(amount), message)).collect();
    refused(&server, "/v1/complete", &cases).await;
    assert_eq!(server.ask("POST", "/v1/complete", &of("0")).await.status, 200);
}

#[tokio::test]
async fn what_is_no_json_or_no_object_is_refused() {
    let server = server().await;
    let cases: Vec<(String, &str)> = [
        ("", "body: found nothing, allowed is one JSON object"),
        (" ", "body: found no JSON (EOF"),
        ("{", "body: found no JSON (EOF"),
        ("{]", "body: found no JSON ("),
        ("reserve please", "body: found no JSON (expected value at line 1 column 1)"),
        ("{} {}", "body: found no JSON (trailing characters"),
        ("\u{feff}{}", "body: found no JSON ("),
        ("null", "body: found null, allowed is an object with "),
        ("[]", "body: found [], allowed is an object with "),
        ("\"{}\"", "body: found \"{}\", allowed is an object with "),
        ("1", "body: found 1, allowed is an object with "),
        ("{\"lease_id\":\"\\ud800\"}", "lease_id: found \"\\ud800\", allowed is a ULID as a text"),
    ]
    .map(|(body, message)| (body.to_owned(), message))
    .into();
    for path in
        ["/v1/reserve", "/v1/extend", "/v1/complete", "/v1/reserve/batch", "/v1/extend/batch", "/v1/complete/batch"]
    {
        let cases = if path.ends_with("batch") { &cases[..cases.len() - 1] } else { &cases[..] };
        refused(&server, path, cases).await;
    }
    let deep = "[".repeat(100_000);
    refused(&server, "/v1/reserve", &[(deep, "body: found no JSON (")]).await;
}

#[tokio::test]
async fn bytes_that_are_no_utf_8_are_refused() {
    let server = server().await;
    let mut wire = Wire::to(server.address).await;
    let head = "POST /v1/reserve HTTP/1.1\r\nhost: localhost\r\ncontent-length: 16\r\n\r\n{\"lease_id\":\"";
    wire.send(head).await;
    tokio::io::AsyncWriteExt::write_all(&mut wire.tcp, b"\xff\"}").await.unwrap();
    let message = wire.answer().await.problem(400, "invalid_request");
    assert!(message.starts_with("body: found no JSON ("), "{message}");
}

#[tokio::test]
async fn unknown_missing_and_repeated_fields_are_refused() {
    let server = server().await;
    let lease = server.lease();
    let fields = "allowed are lease_id, job_id, requirements";
    let part = r#"[{"key":"a","amount":1}]"#;
    let cases = [
        (format!(r#"{{"lease_id":"{lease}"}}"#), "requirements is required"),
        (format!(r#"{{"requirements":{part}}}"#), "lease_id is required"),
        (
            format!(r#"{{"lease_id":"{lease}","requirements":{part},"actor":"user:me"}}"#),
            "actor: found an unknown field, allowed are lease_id, job_id, requirements",
        ),
        (
            format!(r#"{{"lease_id":"{lease}","requirements":{part},"namespace":"other"}}"#),
            "namespace: found an unknown field",
        ),
        (
            format!(r#"{{"lease_id":"{lease}","requirements":{part},"requirements":{part}}}"#),
            "requirements: found it twice",
        ),
        (
            format!(r#"{{"lease_id":"{lease}","requirements":[{{"key":"a","amount":1,"unit":"x"}}]}}"#),
            "requirements[0].unit: found an unknown field, allowed are key, amount, namespace",
        ),
        (
            format!(r#"{{"lease_id":"{lease}","requirements":[{{"key":"a","amount":1,"amount":1}}]}}"#),
            "requirements[0].amount: found it twice",
        ),
        (format!(r#"["{lease}",null,{part}]"#), "body: found [\""),
        (format!(r#"{{"lease_id":"{lease}","requirements":[["a",1]]}}"#), "requirements[0]: found [\"a\",1]"),
        (format!(r#"{{"lease_id":"{lease}","job_id":5,"requirements":{part}}}"#), "job_id: found 5, allowed is a text"),
        (
            format!(r#"{{"lease_id":"{lease}","job_id":"","requirements":{part}}}"#),
            "job_id: found 0 bytes, allowed are 1 to 128 bytes",
        ),
    ];
    assert!(cases[2].1.ends_with(fields));
    refused(&server, "/v1/reserve", &cases).await;
}

#[tokio::test]
async fn too_many_requirements_and_a_key_twice_are_refused() {
    let server = server().await;
    let many = |count: usize| {
        let keys: Vec<String> = (0..count).map(|number| format!("k{number}")).collect();
        let amounts: Vec<(&str, u64)> = keys.iter().map(|key| (key.as_str(), 1)).collect();
        (reserve(&server.lease(), &amounts).to_string(), complete(&server.lease(), &amounts).to_string())
    };
    let cases = [
        (many(0).0, "requirements: found 0 items, allowed are 1 to 32"),
        (many(33).0, "requirements: found 33 items, allowed are 1 to 32"),
        (
            reserve(&server.lease(), &[("a", 1), ("b", 1), ("a", 2)]).to_string(),
            "requirements[2].key: found \"a\" as in item 0, allowed is each key once",
        ),
    ];
    refused(&server, "/v1/reserve", &cases).await;
    let cases = [
        (many(33).1, "actuals: found 33 items, allowed are 0 to 32"),
        (complete(&server.lease(), &[("a", 1), ("a", 1)]).to_string(), "actuals[1].key: found \"a\" as in item 0"),
    ];
    refused(&server, "/v1/complete", &cases).await;
    let most = server.ok("POST", "/v1/reserve", &serde_json::from_str(&many(32).0).unwrap()).await;
    assert_eq!(most["error"], "unknown_limit_key:k0");
}

#[tokio::test]
async fn a_batch_has_one_to_256_requests_and_one_that_is_malformed_refuses_them_all() {
    let server = server().await;
    let batch = |count: usize| {
        let requests: Vec<Value> = (0..count).map(|_| reserve(&server.lease(), &[("a", 1)])).collect();
        json!({"requests": requests})
    };
    let mut one_bad = batch(3);
    one_bad["requests"][2]["requirements"][0]["amount"] = json!(0);
    let cases = [
        (batch(0).to_string(), "requests: found 0 items, allowed are 1 to 256"),
        (batch(257).to_string(), "requests: found 257 items, allowed are 1 to 256"),
        (one_bad.to_string(), "requests[2].requirements[0].amount: found 0, allowed are integers from 1"),
        ("{}".into(), "requests is required"),
    ];
    refused(&server, "/v1/reserve/batch", &cases).await;
    let most = server.ok("POST", "/v1/reserve/batch", &batch(256)).await;
    assert_eq!(most["results"].as_array().unwrap().len(), 256);
    assert_eq!(server.reserved("a").await, 256);
}

#[tokio::test]
async fn a_lease_that_is_no_ulid_is_refused_and_one_of_another_time_is_answered() {
    let server = server().await;
    let of = |lease: &str| reserve(lease, &[("a", 1)]).to_string();
    let cases = [
        (of(""), "lease_id: found 0 bytes, a ULID has 26 characters"),
        (of("01ARZ3NDEKTSV4RRFFQ69G5FAVX"), "lease_id: found 27 bytes, a ULID has 26 characters"),
        (of("8ZZZZZZZZZZZZZZZZZZZZZZZZZ"), "lease_id: found '8' as its first character"),
        (of("01ARZ3NDEKTSV4RRFFQ69G5FAU"), "lease_id: found 'U' at position 25"),
        (of("123e4567-e89b-12d3-a456-42"), "lease_id: found '-' at position 8"),
    ];
    refused(&server, "/v1/reserve", &cases).await;

    let (old, ahead) = (START_MS - 15 * 60_000 - 1, START_MS + 60_001);
    for time in [old, ahead] {
        let answer = server.reserve(&TestServer::lease_at(time), &[("a", 1)]).await;
        assert_eq!((&answer["allowed"], &answer["error"]), (&json!(false), &json!("invalid_request")));
        let message = answer["message"].as_str().unwrap();
        assert!(message.contains(&earmark_admission::utc(earmark_core::UnixMs::new(time))), "{message}");
    }
    assert_eq!(server.reserved("a").await, 0);
}

#[tokio::test]
async fn keys_with_odd_bytes_are_refused() {
    let server = server().await;
    let of = |key: &str| reserve(&server.lease(), &[(key, 1)]).to_string();
    let long = "k".repeat(257);
    let cases = [
        (of(""), "requirements[0].key: found 0 bytes, allowed are 1 to 256 bytes of letters, digits and :._@+-/|=~%"),
        (of(&long), "requirements[0].key: found 257 bytes, "),
        (of("a b"), "requirements[0].key: found ' ' at byte 1, "),
        (of("a!b"), "requirements[0].key: found '!' at byte 1, "),
        (of("a\0"), "requirements[0].key: found '\\0' at byte 1, "),
        (of("a\n"), "requirements[0].key: found '\\n' at byte 1, "),
        (of("ключ"), "requirements[0].key: found 'к' at byte 0, "),
    ];
    refused(&server, "/v1/reserve", &cases).await;
}

#[tokio::test]
async fn a_body_of_more_than_a_mebibyte_is_too_large_however_it_comes() {
    let server = server().await;
    let whole = reserve(&server.lease(), &[("a", 1)]).to_string();
    let padded = |length: usize| format!("{whole}{}", " ".repeat(length - whole.len()));
    let message = "body: found more than 1048576 bytes, allowed are at most 1048576";

    let mut wire = Wire::to(server.address).await;
    for length in [(1 << 20) + 1, 8 << 20] {
        let answer = wire.ask("POST", "/v1/reserve", &padded(length)).await;
        assert_eq!(answer.problem(413, "invalid_request"), message);
    }
    let chunk = " ".repeat(1 << 16);
    let chunked = format!("{:x}\r\n{chunk}\r\n", chunk.len());
    wire.send("POST /v1/reserve HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n").await;
    wire.send(&chunked.repeat(17)).await;
    wire.send("0\r\n\r\n").await;
    assert_eq!(wire.answer().await.problem(413, "invalid_request"), message);
    assert_eq!(server.reserved("a").await, 0);

    // A client that sends `expect: 100-continue`, as curl does, is rejected before it sends; so is one
    // that announces far too much.
    let mut wire = Wire::to(server.address).await;
    let length = 1_u64 << 40;
    wire.send(&format!("POST /v1/reserve HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n")).await;
    let answer = wire.answer().await;
    assert_eq!(answer.header("connection"), Some("close"));
    assert_eq!(answer.problem(413, "invalid_request"), message);

    let exactly = server.ask("POST", "/v1/reserve", &padded(1 << 20)).await;
    assert_eq!(exactly.json()["allowed"], true);
}

#[tokio::test]
async fn the_content_type_does_not_matter() {
    let server = server().await;
    for content_type in ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-8"] {
        let body = reserve(&server.lease(), &[("a", 1)]).to_string();
        let length = body.len();
        let mut wire = Wire::to(server.address).await;
        wire.send(&format!(
            "POST /v1/reserve HTTP/1.1\r\nhost: localhost\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\n\r\n{body}"
        ))
        .await;
        assert_eq!(wire.answer().await.json()["allowed"], true);
    }
}

#[tokio::test]
async fn paths_and_methods_that_do_not_exist_are_answered_in_json() {
    let server = server().await;
    for path in ["/", "/v1", "/v1/reserve/", "/v1/admin/limits/", "/v1/admin/limits/a/b", "/v2/reserve", "/v1/writes"] {
        server.ask("GET", path, "").await.problem(404, "not_found");
    }
    for (method, path, allow) in [
        ("GET", "/v1/reserve", "POST"),
        ("PATCH", "/v1/admin/limits", "PUT"),
        ("POST", "/v1/admin/limits/a", "DELETE"),
        ("DELETE", "/metrics", "GET"),
    ] {
        let answer = server.ask(method, path, "").await;
        assert!(answer.header("allow").unwrap().contains(allow), "{answer:?}");
        let message = answer.problem(405, "method_not_allowed");
        assert!(message.starts_with(&format!("method {method} not allowed; ")), "{message}");
    }
}

/// Each of these got its response before its body was read. The client, still sending, saw a connection
/// reset instead of the response.
#[tokio::test]
async fn a_body_that_nobody_asked_for_does_not_keep_the_answer_from_its_client() {
    let server = server().await;
    let body = " ".repeat(8 << 20);
    let mut wire = Wire::to(server.address).await;
    for (method, path, status) in
        [("POST", "/nope", 404), ("POST", "/healthz", 405), ("GET", "/healthz", 200), ("GET", "/v1/leases/x", 400)]
    {
        let answer = wire.ask(method, path, &body).await;
        assert_eq!((answer.status, answer.header("connection")), (status, None), "{method} {path}");
    }
    for path in ["/nope", "/healthz"] {
        let mut wire = Wire::to(server.address).await;
        let length = 1_u64 << 40;
        wire.send(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n")).await;
        assert_eq!(wire.answer().await.header("connection"), Some("close"), "{path}");
    }
}
