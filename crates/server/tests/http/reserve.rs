//! Reserving, and what a retry of a reserve gets.

use serde_json::json;

use crate::support::{Desk, START_MS};

fn allowed(at: u64) -> serde_json::Value {
    json!({"allowed": true, "retry_after_ms": 0, "reserved_at_unix_ms": at, "error": ""})
}

#[tokio::test]
async fn a_reserve_takes_every_limit_it_names_or_none() {
    let desk = Desk::open().await;
    desk.put_rolling("rpm", 10, 60).await;
    desk.put_concurrency("slots", 1, 60).await;
    let first = desk.lease();
    assert_eq!(desk.reserve(&first, &[("rpm", 1), ("slots", 1)]).await, allowed(START_MS));

    let denied = desk.reserve(&desk.lease(), &[("rpm", 1), ("slots", 1)]).await;
    assert_eq!(denied["allowed"], false);
    assert_eq!(denied["error"], "");
    assert_eq!(denied["limited_by"], json!(["slots"]));
    assert_eq!(denied["reserved_at_unix_ms"], 0);
    assert!(denied["retry_after_ms"].as_u64().unwrap() > 0);
    assert_eq!(denied.get("never"), None);
    assert_eq!(desk.reserved("rpm").await, 1);
    assert_eq!(desk.reserved("slots").await, 1);
}

#[tokio::test]
async fn an_accepted_lease_whose_answer_was_lost_gets_the_same_answer_again() {
    let desk = Desk::open().await;
    desk.put_rolling("rpm", 1, 60).await;
    desk.put_rolling("tpm", 9, 60).await;
    let lease = desk.lease();
    desk.reserve(&lease, &[("rpm", 1), ("tpm", 9)]).await;
    desk.clock.advance_ms(59_999);
    // Neither the order of the requirements, nor the case of the lease, nor a definition that has changed
    // since makes another request of it.
    desk.put_rolling("rpm", 1, 5).await;
    assert_eq!(desk.reserve(&lease, &[("tpm", 9), ("rpm", 1)]).await, allowed(START_MS));
    assert_eq!(desk.reserve(&lease.to_lowercase(), &[("rpm", 1), ("tpm", 9)]).await, allowed(START_MS));
    assert_eq!(desk.reserved("tpm").await, 9);
}

#[tokio::test]
async fn a_lease_with_another_body_is_refused_and_changes_nothing() {
    let desk = Desk::open().await;
    desk.put_rolling("rpm", 10, 60).await;
    desk.put_rolling("tpm", 10, 60).await;
    let lease = desk.lease();
    desk.reserve(&lease, &[("rpm", 1)]).await;
    for other in [&[("rpm", 2)][..], &[("tpm", 1)], &[("rpm", 1), ("tpm", 1)]] {
        let refused = desk.reserve(&lease, other).await;
        assert_eq!(refused["allowed"], false, "{other:?}");
        assert_eq!(refused["error"], "invalid_request", "{other:?}");
        assert!(!refused["message"].as_str().unwrap().is_empty(), "{other:?}");
    }
    assert_eq!((desk.reserved("rpm").await, desk.reserved("tpm").await), (1, 0));
}

#[tokio::test]
async fn a_denied_lease_stays_denied_even_when_it_would_fit() {
    let desk = Desk::open().await;
    desk.put_rolling("rpm", 1, 60).await;
    desk.reserve(&desk.lease(), &[("rpm", 1)]).await;
    let lease = desk.lease();
    assert_eq!(desk.reserve(&lease, &[("rpm", 1)]).await["retry_after_ms"], 5_000);
    desk.clock.advance_ms(60_000);
    let again = desk.reserve(&lease, &[("rpm", 1)]).await;
    assert_eq!((&again["allowed"], &again["error"]), (&json!(false), &json!("")));
    assert_eq!(again["limited_by"], json!(["rpm"]));
    assert_eq!(desk.reserve(&desk.lease(), &[("rpm", 1)]).await["allowed"], true);
}

#[tokio::test]
async fn a_lease_that_was_completed_or_ran_out_is_expired() {
    let desk = Desk::open().await;
    desk.put_concurrency("slots", 2, 60).await;
    let (completed, ran_out) = (desk.lease(), desk.lease());
    desk.reserve(&completed, &[("slots", 1)]).await;
    desk.reserve(&ran_out, &[("slots", 1)]).await;
    desk.complete(&completed, &[]).await;
    desk.clock.advance_ms(60_000);
    for lease in [completed, ran_out] {
        let refused = desk.reserve(&lease, &[("slots", 1)]).await;
        assert_eq!((&refused["allowed"], &refused["error"]), (&json!(false), &json!("lease_expired")));
    }
}

#[tokio::test]
async fn an_unknown_or_decreasing_limit_is_refused_by_name_and_the_lease_may_try_again() {
    let desk = Desk::open().await;
    let lease = desk.lease();
    let refused = desk.reserve(&lease, &[("rpm", 1)]).await;
    assert_eq!((&refused["allowed"], &refused["error"]), (&json!(false), &json!("unknown_limit_key:rpm")));

    desk.put_concurrency("rpm", 2, 60).await;
    let holder = desk.lease();
    desk.reserve(&holder, &[("rpm", 2)]).await;
    assert_eq!(desk.put_concurrency("rpm", 1, 60).await, json!({"ok": true, "status": "decreasing"}));
    let refused = desk.reserve(&lease, &[("rpm", 1)]).await;
    assert_eq!(refused["error"], "limit_decreasing:rpm");
    assert_eq!(refused["retry_after_ms"], 10_000);

    desk.complete(&holder, &[]).await;
    assert_eq!(desk.reserve(&lease, &[("rpm", 1)]).await["allowed"], true);
}

#[tokio::test]
async fn more_than_the_capacity_never_fits() {
    let desk = Desk::open().await;
    desk.put_rolling("tpm", 10, 60).await;
    let denied = desk.reserve(&desk.lease(), &[("tpm", 11)]).await;
    let never = json!({
        "allowed": false, "retry_after_ms": 0, "reserved_at_unix_ms": 0, "error": "",
        "limited_by": ["tpm"], "never": true,
    });
    assert_eq!(denied, never);
}

#[tokio::test]
async fn the_limit_that_frees_last_is_named_first() {
    let desk = Desk::open().await;
    desk.put_rolling("a", 1, 10).await;
    desk.put_rolling("b", 1, 60).await;
    let lease = desk.lease();
    desk.reserve(&lease, &[("a", 1), ("b", 1)]).await;
    desk.complete(&lease, &[("a", 1), ("b", 1)]).await;
    let denied = desk.reserve(&desk.lease(), &[("a", 1), ("b", 1)]).await;
    assert_eq!(denied["limited_by"], json!(["b", "a"]));
    assert_eq!(denied["retry_after_ms"], 60_000);
}

#[tokio::test]
async fn a_batch_answers_each_request_on_its_own_and_in_order() {
    let desk = Desk::open().await;
    desk.put_rolling("rpm", 1, 60).await;
    let leases = [desk.lease(), desk.lease(), desk.lease(), Desk::lease_at(START_MS - 3_600_000)];
    let one = |lease: &str, key: &str| crate::support::reserve(lease, &[(key, 1)]);
    let requests =
        [one(&leases[0], "rpm"), one(&leases[1], "rpm"), one(&leases[2], "nope"), one(&leases[3], "rpm")];
    let answer = desk.ok("POST", "/v1/reserve/batch", &json!({"requests": requests})).await;
    let results = answer["results"].as_array().unwrap();
    assert_eq!(results.len(), 4);
    assert_eq!(results[0], allowed(START_MS));
    assert_eq!(results[1]["limited_by"], json!(["rpm"]));
    assert_eq!(results[2]["error"], "unknown_limit_key:nope");
    assert_eq!(results[3]["error"], "invalid_request");
}

#[tokio::test]
async fn a_lease_can_be_looked_up() {
    let desk = Desk::open().await;
    desk.put_rolling("a:rpm", 5, 60).await;
    desk.put_concurrency("slots", 5, 30).await;
    let lease = desk.lease();
    let path = format!("/v1/leases/{lease}");
    let nothing = serde_json::Value::Null;
    desk.ask("GET", &path, "").await.problem(404, "not_found");

    desk.reserve(&lease, &[("slots", 2), ("a:rpm", 1)]).await;
    let requirements = json!([{"key": "a:rpm", "amount": 1}, {"key": "slots", "amount": 2}]);
    let view = |state| {
        json!({"lease": {
            "lease_id": lease, "reserved_at_unix_ms": START_MS, "requirements": requirements, "state": state,
        }})
    };
    assert_eq!(desk.ok("GET", &path, &nothing).await, view("live"));
    desk.clock.advance_ms(30_000);
    assert_eq!(desk.ok("GET", &path, &nothing).await, view("expired"));
    desk.complete(&lease, &[]).await;
    assert_eq!(desk.ok("GET", &path, &nothing).await["lease"]["state"], "completed");

    let denied = desk.lease();
    desk.reserve(&denied, &[("slots", 6)]).await;
    let view = desk.ok("GET", &format!("/v1/leases/{denied}"), &nothing).await;
    assert_eq!(
        (&view["lease"]["state"], &view["lease"]["reserved_at_unix_ms"]),
        (&json!("denied"), &json!(0))
    );
}
