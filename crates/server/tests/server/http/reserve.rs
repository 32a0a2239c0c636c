//! Reserve, and retries of a reserve.

use serde_json::json;

use crate::support::{START_MS, TestServer, reserve};

fn allowed(at: u64) -> serde_json::Value {
    json!({"allowed": true, "retry_after_ms": 0, "reserved_at_unix_ms": at, "error": ""})
}

#[tokio::test]
async fn a_reserve_takes_every_limit_it_names_or_none() {
    let server = TestServer::open().await;
    server.put_rolling("rpm", 10, 60).await;
    server.put_concurrency("slots", 1, 60).await;
    let first = server.lease();
    assert_eq!(server.reserve(&first, &[("rpm", 1), ("slots", 1)]).await, allowed(START_MS));

    let denied = server.reserve(&server.lease(), &[("rpm", 1), ("slots", 1)]).await;
    assert_eq!(denied["allowed"], false);
    assert_eq!(denied["error"], "");
    assert_eq!(denied["limited_by"], json!(["slots"]));
    assert_eq!(denied["reserved_at_unix_ms"], 0);
    assert!(denied["retry_after_ms"].as_u64().unwrap() > 0);
    assert_eq!(denied.get("never"), None);
    assert_eq!(server.reserved("rpm").await, 1);
    assert_eq!(server.reserved("slots").await, 1);
}

#[tokio::test]
async fn an_accepted_lease_whose_answer_was_lost_gets_the_same_answer_again() {
    let server = TestServer::open().await;
    server.put_rolling("rpm", 1, 60).await;
    server.put_rolling("tpm", 9, 60).await;
    let lease = server.lease();
    server.reserve(&lease, &[("rpm", 1), ("tpm", 9)]).await;
    server.clock.advance_ms(59_999);
    // The order of requirements, the case of the lease id and a changed definition
    // do not make it another request.
    server.put_rolling("rpm", 1, 5).await;
    assert_eq!(server.reserve(&lease, &[("tpm", 9), ("rpm", 1)]).await, allowed(START_MS));
    assert_eq!(server.reserve(&lease.to_lowercase(), &[("rpm", 1), ("tpm", 9)]).await, allowed(START_MS));
    assert_eq!(server.reserved("tpm").await, 9);
}

#[tokio::test]
async fn a_lease_with_another_body_is_refused_and_changes_nothing() {
    let server = TestServer::open().await;
    server.put_rolling("rpm", 10, 60).await;
    server.put_rolling("tpm", 10, 60).await;
    let lease = server.lease();
    server.reserve(&lease, &[("rpm", 1)]).await;
    for other in [&[("rpm", 2)][..], &[("tpm", 1)], &[("rpm", 1), ("tpm", 1)]] {
        let refused = server.reserve(&lease, other).await;
        assert_eq!(refused["allowed"], false, "{other:?}");
        assert_eq!(refused["error"], "invalid_request", "{other:?}");
        assert!(!refused["message"].as_str().unwrap().is_empty(), "{other:?}");
    }
    assert_eq!((server.reserved("rpm").await, server.reserved("tpm").await), (1, 0));
}

#[tokio::test]
async fn a_denied_lease_stays_denied_even_when_it_would_fit() {
    let server = TestServer::open().await;
    server.put_rolling("rpm", 1, 60).await;
    server.reserve(&server.lease(), &[("rpm", 1)]).await;
    let lease = server.lease();
    assert_eq!(server.reserve(&lease, &[("rpm", 1)]).await["retry_after_ms"], 5_000);
    server.clock.advance_ms(60_000);
    let again = server.reserve(&lease, &[("rpm", 1)]).await;
    assert_eq!((&again["allowed"], &again["error"]), (&json!(false), &json!("")));
    assert_eq!(again["limited_by"], json!(["rpm"]));
    assert_eq!(server.reserve(&server.lease(), &[("rpm", 1)]).await["allowed"], true);
}

#[tokio::test]
async fn a_lease_that_was_completed_or_ran_out_is_expired() {
    let server = TestServer::open().await;
    server.put_concurrency("slots", 2, 60).await;
    let (completed, ran_out) = (server.lease(), server.lease());
    server.reserve(&completed, &[("slots", 1)]).await;
    server.reserve(&ran_out, &[("slots", 1)]).await;
    server.complete(&completed, &[]).await;
    server.clock.advance_ms(60_000);
    for lease in [completed, ran_out] {
        let refused = server.reserve(&lease, &[("slots", 1)]).await;
        assert_eq!((&refused["allowed"], &refused["error"]), (&json!(false), &json!("lease_expired")));
    }
}

#[tokio::test]
async fn an_unknown_or_decreasing_limit_is_refused_by_name_and_the_lease_may_try_again() {
    let server = TestServer::open().await;
    let lease = server.lease();
    let refused = server.reserve(&lease, &[("rpm", 1)]).await;
    assert_eq!((&refused["allowed"], &refused["error"]), (&json!(false), &json!("unknown_limit_key:rpm")));

    server.put_concurrency("rpm", 2, 60).await;
    let holder = server.lease();
    server.reserve(&holder, &[("rpm", 2)]).await;
    assert_eq!(server.put_concurrency("rpm", 1, 60).await, json!({"ok": true, "status": "decreasing"}));
    let refused = server.reserve(&lease, &[("rpm", 1)]).await;
    assert_eq!(refused["error"], "limit_decreasing:rpm");
    assert_eq!(refused["limited_by"], json!(["rpm"]));
    assert_eq!(refused["retry_after_ms"], 10_000);

    server.complete(&holder, &[]).await;
    assert_eq!(server.reserve(&lease, &[("rpm", 1)]).await["allowed"], true);
}

#[tokio::test]
async fn more_than_the_capacity_never_fits() {
    let server = TestServer::open().await;
    server.put_rolling("tpm", 10, 60).await;
    let denied = server.reserve(&server.lease(), &[("tpm", 11)]).await;
    let never = json!({
        "allowed": false, "retry_after_ms": 60_000, "reserved_at_unix_ms": 0, "error": "exceeds_capacity:tpm",
        "limited_by": ["tpm"], "never": true,
    });
    assert_eq!(denied, never);
}

#[tokio::test]
async fn the_limit_that_frees_last_is_named_first() {
    let server = TestServer::open().await;
    server.put_rolling("a", 1, 10).await;
    server.put_rolling("b", 1, 60).await;
    let lease = server.lease();
    server.reserve(&lease, &[("a", 1), ("b", 1)]).await;
    server.complete(&lease, &[("a", 1), ("b", 1)]).await;
    let denied = server.reserve(&server.lease(), &[("a", 1), ("b", 1)]).await;
    assert_eq!(denied["limited_by"], json!(["b", "a"]));
    assert_eq!(denied["retry_after_ms"], 60_000);
}

#[tokio::test]
async fn a_batch_answers_each_request_on_its_own_and_in_order() {
    let server = TestServer::open().await;
    server.put_rolling("rpm", 1, 60).await;
    let leases = [server.lease(), server.lease(), server.lease(), TestServer::lease_at(START_MS - 3_600_000)];
    let one = |lease: &str, key: &str| crate::support::reserve(lease, &[(key, 1)]);
    let requests = [one(&leases[0], "rpm"), one(&leases[1], "rpm"), one(&leases[2], "nope"), one(&leases[3], "rpm")];
    let answer = server.ok("POST", "/v1/reserve/batch", &json!({"requests": requests})).await;
    let results = answer["results"].as_array().unwrap();
    assert_eq!(results.len(), 4);
    assert_eq!(results[0], allowed(START_MS));
    assert_eq!(results[1]["limited_by"], json!(["rpm"]));
    assert_eq!(results[2]["error"], "unknown_limit_key:nope");
    assert_eq!(results[3]["error"], "invalid_request");
}

#[tokio::test]
async fn a_lease_can_be_looked_up() {
    let server = TestServer::open().await;
    server.put_rolling("a:rpm", 5, 60).await;
    server.put_concurrency("slots", 5, 30).await;
    let lease = server.lease();
    let path = format!("/v1/leases/{lease}");
    let nothing = serde_json::Value::Null;
    server.ask("GET", &path, "").await.problem(404, "not_found");

    server.reserve(&lease, &[("slots", 2), ("a:rpm", 1)]).await;
    let requirements = json!([{"key": "a:rpm", "amount": 1}, {"key": "slots", "amount": 2}]);
    let view = |state, ends_at| {
        json!({"lease": {
            "lease_id": lease, "reserved_at_unix_ms": START_MS, "requirements": requirements, "state": state,
            "job_id": null, "extensions": 0, "used": [], "ends_at_unix_ms": ends_at,
        }})
    };
    assert_eq!(server.ok("GET", &path, &nothing).await, view("live", START_MS + 30_000));
    server.clock.advance_ms(30_000);
    assert_eq!(server.ok("GET", &path, &nothing).await, view("expired", 0));
    server.complete(&lease, &[]).await;
    assert_eq!(server.ok("GET", &path, &nothing).await["lease"]["state"], "completed");

    let denied = server.lease();
    server.reserve(&denied, &[("slots", 6)]).await;
    let view = server.ok("GET", &format!("/v1/leases/{denied}"), &nothing).await;
    assert_eq!((&view["lease"]["state"], &view["lease"]["reserved_at_unix_ms"]), (&json!("denied"), &json!(0)));
}

/// The job was only logged, and only at debug level.
#[tokio::test]
async fn a_lease_shows_the_job_of_its_first_reserve() {
    let server = TestServer::open().await;
    server.put_rolling("a:rpm", 1, 60).await;
    let nothing = serde_json::Value::Null;
    let (allowed, denied) = (server.lease(), server.lease());
    for (lease, job) in [(&allowed, "first"), (&denied, "first"), (&allowed, "retry"), (&denied, "retry")] {
        let mut body = reserve(lease, &[("a:rpm", 1)]);
        body["job_id"] = job.into();
        assert_eq!(server.ok("POST", "/v1/reserve", &body).await["allowed"], *lease == allowed);
    }
    server.complete(&allowed, &[]).await;
    for lease in [&allowed, &denied] {
        let view = server.ok("GET", &format!("/v1/leases/{lease}"), &nothing).await;
        assert_eq!(view["lease"]["job_id"], "first");
    }
}
