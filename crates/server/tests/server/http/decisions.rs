//! `GET /v1/decisions`: denials, refusals, timeouts and overages, newest first.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use earmark_admission::{MemoryRecords, RECORDS_BYTES_MIN, RecordBounds, RecordStore};
use earmark_core::Role;
use serde_json::{Value, json};

use crate::support::{KeyedServer, TestServer, complete, reserve};

async fn list(server: &TestServer, query: &str) -> Vec<Value> {
    let page = server.ok("GET", &format!("/v1/decisions?{query}"), &Value::Null).await;
    page["decisions"].as_array().unwrap().clone()
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

#[tokio::test]
async fn a_denial_is_listed_with_who_what_and_how_full_the_limits_were() {
    let server = TestServer::open().await;
    server.put_rolling("a:rpm", 5, 60).await;
    server.put_rolling("b:rpm", 3, 600).await;
    server.reserve(&server.lease(), &[("a:rpm", 4), ("b:rpm", 1)]).await;
    let before = now_ms();
    let lease = server.lease();
    let mut body = reserve(&lease, &[("a:rpm", 2), ("b:rpm", 3)]);
    body["job_id"] = json!("job-7");
    let denied = server.ok("POST", "/v1/reserve", &body).await;
    let found = list(&server, "").await;
    assert_eq!(found.len(), 1, "{found:?}");
    let at = found[0]["at_unix_ms"].as_u64().unwrap();
    assert!((before..=now_ms()).contains(&at), "{at}");
    let limit = |key: &str, asked: u64, available: u64, capacity: u64| json!({"key": key, "asked": asked, "available": available, "capacity": capacity});
    // In the order of the answer.
    let limits: Vec<Value> = (denied["limited_by"].as_array().unwrap().iter())
        .map(|key| if key == "a:rpm" { limit("a:rpm", 2, 1, 5) } else { limit("b:rpm", 3, 2, 3) })
        .collect();
    let expected = json!({
        "at_unix_ms": at, "outcome": "denied", "lease_id": lease, "job_id": "job-7", "actor": "system:local",
        "limits": limits, "repeated": 0,
    });
    assert_eq!(found[0], expected);
    assert_eq!(limits.len(), 2, "{denied}");
}

#[tokio::test]
async fn refusals_extensions_overages_and_timeouts_are_listed_and_other_answers_are_not() {
    let server = TestServer::open().await;
    server.put_rolling("rpm", 10, 60).await;
    server.put_concurrency("slots", 2, 30).await;
    let lease = server.lease();
    server.reserve(&lease, &[("rpm", 4), ("slots", 1)]).await;
    // Not decisions: allowed, malformed, used for other requirements, completed before.
    server.reserve(&lease, &[("rpm", 1)]).await;
    server.ask("POST", "/v1/reserve", "{}").await;
    assert!(list(&server, "").await.is_empty());

    server.reserve(&server.lease(), &[("nope", 1)]).await;
    server.ok("POST", "/v1/admin/limits/rpm/pause", &json!({"for_ms": 1_000})).await;
    server.reserve(&server.lease(), &[("rpm", 1)]).await;
    server.ok("POST", "/v1/admin/limits/rpm/pause", &json!({"for_ms": 0})).await;
    let add = json!([{"key": "slots", "amount": 2}]);
    server.ok("POST", "/v1/extend", &json!({"lease_id": lease, "extension": 1, "add": add})).await;
    server.complete(&lease, &[("rpm", 15), ("slots", 1)]).await;
    let lost = server.lease();
    server.reserve(&lost, &[("slots", 2)]).await;
    server.clock.advance_ms(30_000);

    let found = list(&server, "").await;
    let shown: Vec<(&str, &str, u64)> = (found.iter())
        .map(|one| {
            let limit = &one["limits"][0];
            (one["outcome"].as_str().unwrap(), limit["key"].as_str().unwrap(), limit["asked"].as_u64().unwrap())
        })
        .collect();
    let expected = [
        ("timeout", "slots", 2),
        ("overage", "rpm", 11),
        ("denied", "slots", 2),
        ("refused", "rpm", 1),
        ("refused", "nope", 1),
    ];
    assert_eq!(shown, expected);
    assert_eq!((&found[0]["actor"], &found[0]["lease_id"]), (&json!("system:earmark"), &json!(lost)));
    // A limit that does not exist has neither.
    assert_eq!(found[4]["limits"], json!([{"key": "nope", "asked": 1}]));
    assert_eq!(list(&server, "outcome=timeout").await.len(), 1, "a second look finds it once");
}

#[tokio::test]
async fn filters_and_pages_find_the_same_decisions() {
    let server = TestServer::open().await;
    for key in ["a:rpm", "a:tpm", "b:rpm"] {
        server.put_rolling(key, 1, 60).await;
    }
    for number in 0..6 {
        let mut body = reserve(&server.lease(), &[(["a:rpm", "a:tpm", "b:rpm"][number % 3], 2)]);
        body["job_id"] = json!(format!("job-{}", number % 2));
        server.ok("POST", "/v1/reserve", &body).await;
    }
    let all = list(&server, "").await;
    assert_eq!(all.len(), 6);
    assert!(all.is_sorted_by_key(|one| std::cmp::Reverse(one["at_unix_ms"].as_u64().unwrap())));
    let (first, last) = (all[5]["at_unix_ms"].as_u64().unwrap(), all[0]["at_unix_ms"].as_u64().unwrap());
    for (query, count) in [
        ("key=a:", 4),
        ("key=a:rpm", 2),
        ("key=c", 0),
        ("job=job-1", 3),
        ("job=job-1&key=b:", 1),
        ("outcome=denied", 6),
        ("outcome=overage", 0),
        ("actor=system:local", 6),
        ("actor=user:other", 0),
        (&format!("since={first}"), 6),
        (&format!("since={}", last + 1), 0),
        (&format!("until={first}"), 0),
        (&format!("until={}", last + 1), 6),
    ] {
        assert_eq!(list(&server, query).await.len(), count, "{query}");
    }
    for filter in ["", "&key=a:", "&outcome=denied"] {
        let (mut paged, mut after) = (Vec::new(), String::new());
        loop {
            let path = format!("/v1/decisions?page_size=1{filter}{after}");
            let page = server.ok("GET", &path, &Value::Null).await;
            paged.extend(page["decisions"].as_array().unwrap().clone());
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => break,
            }
        }
        assert_eq!(paged, list(&server, filter.trim_start_matches('&')).await, "{filter}");
    }
    for (query, message) in [
        ("outcome=allowed", "outcome: found \"allowed\", allowed are denied, refused, timeout, overage"),
        ("since=yesterday", "since: found \"yesterday\", allowed are integers from 0"),
        ("page_size=0", "page_size: found \"0\""),
        ("key=a%20b", "key: "),
        ("after=x", "after: found \"x\""),
    ] {
        let answer = server.ask("GET", &format!("/v1/decisions?{query}"), "").await;
        assert!(answer.problem(400, "invalid_request").starts_with(message), "{answer:?}");
    }
}

/// Of one key at most ten a second are kept in full. The others are counted, and none is lost.
#[tokio::test]
async fn repeats_of_a_key_are_counted_in_the_last_of_ten() {
    let server = TestServer::open().await;
    server.put_rolling("a", 1, 60).await;
    server.put_rolling("b", 1, 60).await;
    for _ in 0..20 {
        let requests: Vec<Value> = (0..50).map(|_| reserve(&server.lease(), &[("a", 2)])).collect();
        server.ok("POST", "/v1/reserve/batch", &json!({"requests": requests})).await;
    }
    server.reserve(&server.lease(), &[("b", 2)]).await;
    let found = list(&server, "page_size=1000").await;
    let mut by_second: std::collections::BTreeMap<u64, Vec<u64>> = std::collections::BTreeMap::new();
    for one in found.iter().filter(|one| one["limits"][0]["key"] == "a") {
        by_second
            .entry(one["at_unix_ms"].as_u64().unwrap() / 1_000)
            .or_default()
            .push(one["repeated"].as_u64().unwrap());
    }
    let total: u64 = by_second.values().flatten().map(|repeated| 1 + repeated).sum();
    assert_eq!(total, 1_000, "{by_second:?}");
    for repeated in by_second.values() {
        // The clock may pass into the next second between the count and the record.
        assert!(repeated.len() <= 11, "{by_second:?}");
    }
    assert_eq!(found.iter().filter(|one| one["limits"][0]["key"] == "b").count(), 1);
    assert_eq!(server.metric("earmark_decisions_dropped_total").await, 0.0);
}

#[tokio::test]
async fn each_namespace_sees_its_own_and_of_a_foreign_limit_the_key_only() {
    let keyed = KeyedServer::open().await;
    let shared = json!({"key": "gpt:rpm", "kind": "rolling", "capacity": 1, "window_seconds": 60, "shared": true});
    keyed.ask(Some(&keyed.root), "PUT", "/v1/admin/limits", &shared.to_string()).await;
    let caller = keyed.key(Role::Caller, "team").await;
    let lease = keyed.server.lease();
    let body = reserve(&lease, &[("!default:gpt:rpm", 2)]).to_string();
    assert_eq!(keyed.ask(Some(&caller), "POST", "/v1/reserve", &body).await.json()["allowed"], false);
    let reader = keyed.key(Role::Reader, "team").await;
    let read = |key: String, path: &'static str| {
        let keyed = &keyed;
        async move { keyed.ask(Some(&key), "GET", path, "").await }
    };
    for path in ["/v1/decisions", "/v1/decisions?key=!default:gpt"] {
        let found = read(reader.clone(), path).await.json();
        assert_eq!(found["decisions"][0]["limits"], json!([{"key": "!default:gpt:rpm"}]), "{found}");
        assert_eq!(found["decisions"][0]["lease_id"], lease);
        assert!(found["decisions"][0]["actor"].as_str().unwrap().starts_with("client:"), "{found}");
    }
    assert_eq!(read(keyed.root.clone(), "/v1/decisions").await.json()["decisions"], json!([]));
    let named = read(keyed.root.clone(), "/v1/decisions?namespace=team").await.json();
    assert_eq!(named["decisions"].as_array().unwrap().len(), 1);
    read(reader.clone(), "/v1/decisions?namespace=default").await.problem(403, "forbidden");
    keyed.revoke(&reader).await;
    assert_eq!(read(reader, "/v1/decisions").await.status, 401);
}

#[tokio::test]
async fn a_log_that_is_off_says_so_and_a_small_one_drops_the_oldest() {
    let off = TestServer::with(|_, options| options.decisions = None).await;
    let message = off.ask("GET", "/v1/decisions", "").await.problem(404, "not_found");
    assert_eq!(message, "the decision log of this server is off (--decisions-bytes 0)");

    let bounds = RecordBounds { bytes: RECORDS_BYTES_MIN, age_ms: 60_000 };
    let store = Arc::new(MemoryRecords::new(bounds));
    let kept = Arc::clone(&store);
    let server = TestServer::with(|_, options| options.decisions = Some(store)).await;
    for round in 0..60 {
        let requests: Vec<Value> = (0..100)
            .map(|number| reserve(&server.lease(), &[(&format!("{}:{round}:{number}", "k".repeat(200)), 1)]))
            .collect();
        server.ok("POST", "/v1/reserve/batch", &json!({"requests": requests})).await;
        // A read waits for the writer, so that the small queue drops nothing.
        list(&server, "page_size=1").await;
    }
    let newest = list(&server, "page_size=1").await;
    assert!(newest[0]["limits"][0]["key"].as_str().unwrap().ends_with(":59:99"), "{newest:?}");
    let (mut bytes, mut before) = (0, u64::MAX);
    while let Some(segment) = kept.segment_before(before).unwrap() {
        bytes += segment.records.iter().map(|record| record.bytes()).sum::<u64>();
        before = segment.first;
    }
    assert!(before > 1_000, "the oldest were dropped, the first kept is {before}");
    assert!(bytes <= RECORDS_BYTES_MIN, "{bytes}");
}

#[tokio::test]
async fn overage_of_a_complete_names_the_limits_beyond_their_reservations_only() {
    let server = TestServer::open().await;
    server.put_rolling("in", 100, 60).await;
    server.put_rolling("out", 100, 60).await;
    let lease = server.lease();
    server.reserve(&lease, &[("in", 50), ("out", 50)]).await;
    server
        .ok("POST", "/v1/complete/batch", &json!({"requests": [complete(&lease, &[("in", 40), ("out", 170)])]}))
        .await;
    let found = list(&server, "outcome=overage").await;
    assert_eq!(found[0]["limits"][0]["key"], "out");
    assert_eq!((found[0]["limits"].as_array().unwrap().len(), &found[0]["limits"][0]["asked"]), (1, &json!(120)));
}

#[tokio::test]
async fn decisions_about_calls_have_their_attributes() {
    let server = TestServer::open().await;
    server.put_rolling("m:gpt-4o", 5, 60).await;
    let policy = "[[rules]]\nname = \"m\"\nlimits = [{ key = \"m:{model}\", amount = \"tokens\" }]\n";
    server.ok("PUT", "/v1/admin/policy", &json!({"policy": policy})).await;
    let call = |attributes: Value| {
        json!({
            "lease_id": server.lease(), "job_id": "j", "attributes": attributes, "input_tokens_max": 4, "output_tokens_max": 4,
        })
    };
    let denied = call(json!({"model": "gpt-4o", "user": "u1"}));
    assert_eq!(server.ok("POST", "/v1/calls", &denied).await["allowed"], false);
    let refused = call(json!({"user": "u2"}));
    assert_eq!(server.ok("POST", "/v1/calls", &refused).await["error"], "missing_attribute:model");
    let found = list(&server, "").await;
    let shown: Vec<(&Value, &Value, &Value)> =
        found.iter().map(|one| (&one["outcome"], &one["attributes"], &one["lease_id"])).collect();
    let expected = [
        (&json!("refused"), &refused["attributes"], &refused["lease_id"]),
        (&json!("denied"), &denied["attributes"], &denied["lease_id"]),
    ];
    assert_eq!(shown, expected);
    assert_eq!(found[0]["limits"], json!([]));
    assert_eq!(found[1]["limits"], json!([{"key": "m:gpt-4o", "asked": 8, "available": 5, "capacity": 5}]));
}
