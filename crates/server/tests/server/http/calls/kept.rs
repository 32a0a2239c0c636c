//! Calls keep their policy: retries, other attributes, nodes with different revisions.

use std::sync::Arc;

use earmark_admission::{LocalBook, LocalOptions, ManualClock};
use serde_json::{Value, json};

use super::{ACME, POLICY, attributes, available, complete, make, opened, prepare, put_policy};
use crate::support::{Lagging, START_MS, TestServer};

/// Requirements that came from an older policy must not be taken a second time, nor lost.
#[tokio::test]
async fn a_retried_call_with_a_newer_policy_gets_its_first_answer() {
    let server = opened().await;
    for newer in [
        POLICY.replace("\"tokens\"", "7"),
        "[[rules]]\nname = \"a\"\nlimits = [ { key = \"nothing\", amount = 1 } ]\n".to_owned(),
        "[[rules]]\nname = \"a\"\ndeny = \"closed\"\n".to_owned(),
        "unmatched = \"allow\"".to_owned(),
    ] {
        put_policy(&server, POLICY).await;
        let before = (server.reserved("gpt-4o:tpm").await, available(&server).await);
        let lease = server.lease();
        let first = make(&server, &lease, ACME, (100, 100)).await;
        assert_eq!(first["allowed"], true, "{first}");
        let held = (server.reserved("gpt-4o:tpm").await, available(&server).await);
        put_policy(&server, &newer).await;
        assert_eq!(make(&server, &lease, ACME, (100, 100)).await, first, "{newer}");
        assert_eq!((server.reserved("gpt-4o:tpm").await, available(&server).await), held, "{newer}");
        let other = make(&server, &lease, ACME, (100, 101)).await;
        assert_eq!(other["allowed"], newer.contains("allow"), "other bounds are another call: {other}");
        // The lease keeps its revision, so the request need not name it.
        let settled = complete(&server, &lease, ACME, json!({"outcome": "refused"})).await;
        assert_eq!(settled["reconciled"], true, "{newer}: {settled}");
        assert_eq!((server.reserved("gpt-4o:tpm").await, available(&server).await), before, "{newer}");
    }
}

/// The limit in the way was named by its place among the requirements, so that the retry of a denied call named whatever
/// limit a newer policy had in this place.
#[tokio::test]
async fn a_denied_call_stays_denied_by_its_first_limits_under_a_newer_policy() {
    let server = opened().await;
    let denied = server.lease();
    let all = server.lease();
    assert_eq!(make(&server, &all, ACME, (9_999, 0)).await["allowed"], true);
    let seen = |answer: &Value| {
        ["allowed", "error", "limited_by", "requirements", "policy_revision"].map(|it| answer[it].clone())
    };
    let first = make(&server, &denied, ACME, (100, 100)).await;
    assert_eq!((&first["allowed"], &first["limited_by"]), (&json!(false), &json!(["gpt-4o:tpm"])), "{first}");
    let (poor, text) = (server.lease(), "tenant=acme model=gpt-4o");
    let short = make(&server, &poor, text, (40_000_000, 0)).await;
    assert_eq!(short["error"], "insufficient_credit:acme:usd", "{short}");
    for newer in [
        POLICY.replace("\"tokens\"", "7"),
        "[[rules]]\nname = \"a\"\nlimits = [ { key = \"nothing\", amount = 1 } ]\n".to_owned(),
        "[[rules]]\nname = \"a\"\ndeny = \"closed\"\n".to_owned(),
        "unmatched = \"allow\"".to_owned(),
    ] {
        put_policy(&server, &newer).await;
        assert_eq!(seen(&make(&server, &denied, ACME, (100, 100)).await), seen(&first), "{newer}");
        assert_eq!(seen(&make(&server, &poor, text, (40_000_000, 0)).await), seen(&short), "{newer}");
    }
    for change in 0..33 {
        put_policy(&server, &format!("[[rules]]\nname = \"r{change}\"\ndeny = \"closed\"\n")).await;
    }
    let rules = "[[rules]]\nname = \"a\"\nlimits = [ { key = \"gpt-4o:calls\", amount = 1 } ]\n";
    put_policy(&server, rules).await;
    // The first limits are not known any more.
    assert_eq!(make(&server, &denied, ACME, (100, 100)).await["error"], "lease_expired");
}

#[tokio::test]
async fn only_the_attributes_of_a_call_complete_it() {
    let server = opened().await;
    let lease = server.lease();
    make(&server, &lease, ACME, (100, 100)).await;
    for text in ["tenant=acme model=gpt-4o", "tenant=acme model=gpt-4o provider=openai user=u1"] {
        let body = json!({"lease_id": lease, "attributes": attributes(text), "outcome": "refused"});
        let answer = server.ask("POST", "/v1/calls/complete", &body.to_string()).await;
        assert_eq!((answer.status, &answer.json()["error"]), (400, &json!("invalid_request")), "{answer:?}");
    }
    assert_eq!(server.reserved("gpt-4o:tpm").await, 200);
    let raw = server.lease();
    server.reserve(&raw, &[("gpt-4o:tpm", 1)]).await;
    let body = json!({"lease_id": raw, "attributes": attributes(ACME), "outcome": "refused"});
    assert_eq!(server.ask("POST", "/v1/calls/complete", &body.to_string()).await.status, 400, "no call made it");
    // A caller that names limits itself may still complete its call.
    assert_eq!(server.complete(&lease, &[("gpt-4o:tpm", 7)]).await["reconciled"], true);
}

/// A node that lags behind must not take a call a second time, whichever of the two decided first.
#[tokio::test]
async fn two_nodes_with_different_revisions_answer_with_theirs_and_never_charge_twice() {
    let clock = ManualClock::at(START_MS);
    let options = LocalOptions { clock: Arc::<ManualClock>::clone(&clock), ..LocalOptions::default() };
    let book = Arc::new(LocalBook::open(options).await.unwrap());
    let newest = TestServer::on(Arc::clone(&clock), Arc::<LocalBook>::clone(&book), TestServer::options()).await;
    prepare(&newest).await;
    let old = put_policy(&newest, POLICY).await;
    let lagging = || async {
        let node = Arc::new(Lagging::behind(&book, old));
        TestServer::on(Arc::clone(&clock), node, TestServer::options()).await
    };
    let new = put_policy(&newest, &POLICY.replace("\"tokens\"", "7").replace("2_500_000", "5_000_000")).await;
    let (first, second) = (newest.lease(), TestServer::lease_at(START_MS));
    let node = lagging().await;

    let by_new = make(&newest, &first, ACME, (100, 100)).await;
    assert_eq!(
        (&by_new["policy_revision"], &by_new["requirements"][0]["amount"]),
        (&json!(new), &json!(7)),
        "{by_new}"
    );
    let held = (newest.reserved("gpt-4o:tpm").await, available(&newest).await);
    assert_eq!(make(&node, &first, ACME, (100, 100)).await, by_new, "the lagging node repeats the first answer");
    assert_eq!((newest.reserved("gpt-4o:tpm").await, available(&newest).await), held);

    let node = lagging().await;
    let by_old = make(&node, &second, ACME, (100, 100)).await;
    assert_eq!(
        (&by_old["policy_revision"], &by_old["requirements"][0]["amount"]),
        (&json!(old), &json!(200)),
        "{by_old}"
    );
    assert_eq!(make(&newest, &second, ACME, (100, 100)).await, by_old);
    assert_eq!((newest.reserved("gpt-4o:tpm").await, available(&newest).await), (207, "97250".to_owned()));
    for (server, lease) in [(&node, &first), (&newest, &second)] {
        assert_eq!(complete(server, lease, ACME, json!({"outcome": "refused"})).await["reconciled"], true);
    }
    assert_eq!((newest.reserved("gpt-4o:tpm").await, available(&newest).await), (0, "100000".to_owned()));
}
