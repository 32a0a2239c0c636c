//! Calls: their requests, their answers and their retry rules.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use earmark_client::{
    ApiKey, BatchOptions, Call, CallDecision, CallExtension, CallOutcome, CallResult, CallUsage, Calls, Certainty,
    Client, ClientKey, ClientOptions, Deadline, ExtendAnswer, Failure, PolicyRefusal, Protocol, ReserveAnswer,
};

use crate::fixture::{ScriptedServer, TestServer, ok, unavailable};
use crate::support::{key, soon};

const LEASE: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAV";

fn call() -> Call {
    Call {
        lease: LEASE.parse().unwrap(),
        job: None,
        attributes: attributes(),
        input_tokens_max: 1_200,
        output_tokens_max: 500,
    }
}

fn attributes() -> Arc<BTreeMap<String, String>> {
    of(&[("model", "gpt-4o"), ("tenant", "acme")])
}

fn of(attributes: &[(&str, &str)]) -> Arc<BTreeMap<String, String>> {
    Arc::new(attributes.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
}

/// The body of a request as JSON.
fn body(request: &str) -> serde_json::Value {
    serde_json::from_str(request.split_once("\r\n\r\n").unwrap().1).unwrap()
}

#[tokio::test]
async fn a_call_keeps_its_lease_until_its_outcome_is_known() {
    let mut answers = vec![
        None,
        unavailable(),
        ok(r#"{"allowed":true,"retry_after_ms":0,"reserved_at_unix_ms":7,"error":"","policy_revision":3,
               "requirements":[{"key":"tpm","amount":1700},{"key":"rpm","amount":1,"namespace":"team"}]}"#),
    ]
    .into_iter();
    let script = ScriptedServer::by(move |_| answers.next().flatten()).await;
    let mut options = ClientOptions::of(&[&script.url]).unwrap();
    options.key = Some(ApiKey::new("emk_gateway").unwrap());
    let client = Client::new(options).unwrap();
    let answer = client.call(&call(), Some(&ClientKey::new("emk_client").unwrap()), soon()).await.unwrap();
    assert!(matches!(answer.decision, CallDecision::Limits(ReserveAnswer::Allowed { .. })), "{answer:?}");
    assert_eq!(answer.policy_revision, Some(3));
    let foreign = earmark_client::core::LimitKey::parse_qualified("!team:rpm").unwrap();
    assert_eq!(answer.requirements, [(key("tpm"), 1_700), (foreign, 1)]);
    let requests = script.requests();
    assert_eq!(requests.len(), 3);
    for request in &requests {
        assert!(request.starts_with("POST /v1/calls HTTP/1.1\r\n"), "{request}");
        assert!(request.contains("\r\nauthorization: Bearer emk_gateway\r\n"), "{request}");
        assert!(request.contains("\r\nx-earmark-client-key: emk_client\r\n"), "{request}");
        let expected = serde_json::json!({"lease_id": LEASE, "attributes": {"model": "gpt-4o", "tenant": "acme"},
            "input_tokens_max": 1200, "output_tokens_max": 500});
        assert_eq!(body(request), expected);
    }
}

#[tokio::test]
async fn a_refusal_by_the_policy_is_an_answer() {
    let script = ScriptedServer::by(|_| {
        ok(r#"{"allowed":false,"retry_after_ms":0,"reserved_at_unix_ms":0,"error":"denied_by_rule:free",
               "message":"not in your plan","requirements":[],"policy_revision":2}"#)
    })
    .await;
    let answer = script.client().call(&call(), None, soon()).await.unwrap();
    let refusal = PolicyRefusal { error: "denied_by_rule:free".into(), message: "not in your plan".into() };
    assert_eq!(answer.decision, CallDecision::Refused(refusal));
    assert!(!script.requests()[0].contains("x-earmark-client-key"));
}

#[tokio::test]
async fn an_attribute_that_the_key_may_not_set_is_forbidden_and_not_retried() {
    let refused = r#"{"error":"forbidden","message":"attributes: tenant: found b, the key has acme"}"#;
    let script = ScriptedServer::by(move |_| Some((403, refused.to_owned()))).await;
    let failure = script.client().call(&call(), None, soon()).await.unwrap_err();
    let message = "attributes: tenant: found b, the key has acme".to_owned();
    assert_eq!(failure, Failure::Forbidden { message });
    assert_eq!(failure.certainty(), Certainty::NothingHappened);
    assert_eq!(script.requests().len(), 1);
}

#[tokio::test]
async fn an_outcome_names_usage_namespace_and_policy() {
    let script = ScriptedServer::by(|request| match request.starts_with("POST /v1/calls/extend ") {
        true => ok(r#"{"allowed":true,"retry_after_ms":0,"error":"","ends_at_unix_ms":9}"#),
        false => {
            ok(r#"{"ok":true,"error":"","reconciled":true,"actuals":[{"key":"tpm","actual_amount":12}],"cost":"34"}"#)
        }
    })
    .await;
    let client = script.client();
    let usage = CallUsage { input_tokens: 10, output_tokens: 2, cached_input_tokens: Some(4), ..CallUsage::default() };
    let extension = CallExtension {
        number: 2,
        attributes: attributes(),
        namespace: Some("team".parse().unwrap()),
        policy_revision: Some(3),
        used: Some(usage.clone()),
        ..CallExtension::default()
    };
    let extended = client.extend_call(call().lease, &extension, soon()).await.unwrap();
    assert!(matches!(extended, ExtendAnswer::Extended(_)), "{extended:?}");
    let (namespace, policy_revision) = (extension.namespace, extension.policy_revision);
    for (result, outcome) in [
        (CallResult::Used(usage), "done"),
        (CallResult::Done, "done"),
        (CallResult::Refused, "refused"),
        (CallResult::Unknown, "unknown"),
    ] {
        let end = CallOutcome {
            attributes: attributes(),
            namespace: namespace.clone(),
            policy_revision,
            result,
            labels: earmark_client::core::SettleLabels::NONE,
        };
        let completed = client.complete_call(call().lease, &end, soon()).await.unwrap();
        assert!(completed.reconciled);
        assert_eq!((completed.actuals, completed.cost), (vec![(key("tpm"), 12)], Some(34)));
        assert_eq!(body(script.requests().last().unwrap())["outcome"], outcome);
    }
    let requests = script.requests();
    let attributes = serde_json::json!({"model": "gpt-4o", "tenant": "acme"});
    let used = serde_json::json!({"input_tokens": 10, "output_tokens": 2, "cached_input_tokens": 4});
    let extend = serde_json::json!({"lease_id": LEASE, "extension": 2, "attributes": attributes, "used": used,
        "policy_revision": 3, "namespace": "team"});
    assert_eq!(body(&requests[0]), extend);
    let complete = serde_json::json!({"lease_id": LEASE, "attributes": attributes, "usage": used, "outcome": "done",
        "policy_revision": 3, "namespace": "team"});
    assert_eq!(body(&requests[1]), complete);
    assert!(body(&requests[3]).get("usage").is_none());
}

#[tokio::test]
async fn whoami_tells_the_labels_of_a_key() {
    let script = ScriptedServer::by(|_| {
        ok(r#"{"actor":"client:a","namespace":"team","role":"client","labels":{"tenant":"acme"},"may_set":["user"]}"#)
    })
    .await;
    let identity = script.client().whoami(Some(&ClientKey::new("emk_client").unwrap()), soon()).await.unwrap();
    assert_eq!((identity.namespace.as_str(), identity.role.as_str()), ("team", "client"));
    assert_eq!(identity.labels.get("tenant").map(String::as_str), Some("acme"));
    assert_eq!(identity.may_set, ["user"]);
    assert!(script.requests()[0].starts_with("GET /v1/whoami HTTP/1.1\r\n"));
}

#[tokio::test]
async fn an_explanation_names_rules_and_limits() {
    let script = ScriptedServer::by(|_| {
        ok(r#"{"allowed":false,"error":"limit_paused:tpm","rules":[{"name":"tenant","matched":true}],
               "limits":[{"key":"tpm","amount":1700,"capacity":1000,"available":900,"fits":false}],"cost":"12"}"#)
    })
    .await;
    let explained = script.client().explain(&call(), None, soon()).await.unwrap();
    assert_eq!(explained.rules, [("tenant".to_owned(), true)]);
    assert_eq!(explained.error, "limit_paused:tpm");
    assert_eq!((explained.limits[0].fits, explained.cost), (Some(false), Some(12)));
    assert!(body(&script.requests()[0]).get("lease_id").is_none());
}

#[tokio::test]
async fn calls_over_grpc_are_refused_by_name() {
    let server = TestServer::start().await;
    let failure = server.client(Protocol::Grpc).call(&call(), None, soon()).await.unwrap_err();
    assert_eq!(failure, Failure::Invalid { message: "calls need a client with Protocol::Http".into() });
    let local = Client::local(earmark_client::LocalOptions::default()).unwrap();
    let deadline = Deadline::after(std::time::Duration::from_secs(1));
    assert!(matches!(local.whoami(None, deadline).await, Err(Failure::Invalid { .. })));
}

/// A server that allows every call but those of the model `bad`, which it refuses with their whole batch.
async fn allowing() -> ScriptedServer {
    ScriptedServer::by(|request| {
        if request.contains(r#""bad""#) {
            return Some((403, r#"{"error":"forbidden","message":"attributes: model: found bad"}"#.to_owned()));
        }
        let one = match request.starts_with("POST /v1/calls/complete") {
            true => r#"{"ok":true,"error":"","reconciled":true,"actuals":[],"cost":"7"}"#,
            false => r#"{"allowed":true,"retry_after_ms":0,"reserved_at_unix_ms":7,"error":"","requirements":[]}"#,
        };
        let items = vec![one; request.matches("lease_id").count()].join(",");
        ok(&if request.contains("/batch ") { format!(r#"{{"results":[{items}]}}"#) } else { items })
    })
    .await
}

fn one_at_a_time(script: &ScriptedServer) -> Calls {
    Calls::new(script.client(), BatchOptions { in_flight_max: 1, ..BatchOptions::default() }).unwrap()
}

/// The runtime of the first caller sent a batch. While it stood still, all other callers waited.
#[tokio::test]
async fn a_runtime_that_stands_still_keeps_no_other_caller_waiting() {
    let script = allowing().await;
    let calls = Arc::new(one_at_a_time(&script));
    let first = Arc::clone(&calls);
    let still = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let call = call();
        runtime.block_on(async {
            tokio::select! {
                biased;
                _ = first.call(&call, None, soon()) => {}
                () = std::future::ready(()) => {}
            }
        });
        runtime
    });
    let still = still.await.unwrap();
    let answer = tokio::time::timeout(Duration::from_secs(5), calls.call(&call(), None, soon())).await;
    assert!(matches!(answer, Ok(Ok(_))), "{answer:?}");
    still.shutdown_background();
}

#[tokio::test]
async fn calls_of_one_client_share_requests_and_those_of_another_never_do() {
    let script = allowing().await;
    let calls = Arc::new(one_at_a_time(&script));
    let mut callers = Vec::new();
    for number in 0..40 {
        let (calls, tenant) = (Arc::clone(&calls), if number % 2 == 0 { "acme" } else { "globex" });
        callers.push(tokio::spawn(async move {
            let call = Call { attributes: of(&[("tenant", tenant)]), ..call() };
            let client = ClientKey::new(&format!("emk_{tenant}")).unwrap();
            let answer = calls.call(&call, Some(&client), soon()).await.unwrap();
            assert!(matches!(answer.decision, CallDecision::Limits(ReserveAnswer::Allowed { .. })), "{answer:?}");
            let outcome = CallOutcome {
                attributes: call.attributes,
                namespace: None,
                policy_revision: None,
                result: CallResult::Done,
                labels: earmark_client::core::SettleLabels::NONE,
            };
            assert_eq!(calls.complete(call.lease, &outcome, soon()).await.unwrap().cost, Some(7));
        }));
    }
    for caller in callers {
        caller.await.unwrap();
    }
    let requests = script.requests();
    assert!(requests.len() < 40, "{} requests for 40 calls and their ends", requests.len());
    let of_calls = requests.iter().filter(|request| !request.starts_with("POST /v1/calls/complete"));
    for request in of_calls {
        let (acme, globex) = (request.contains(r#""acme""#), request.contains(r#""globex""#));
        assert_ne!(acme, globex, "{request}");
        assert_eq!(acme, request.contains("x-earmark-client-key: emk_acme\r\n"), "{request}");
    }
    // The gateway settles by its own key, so that the ends of all clients share requests.
    let mut ends = requests.iter().filter(|request| request.starts_with("POST /v1/calls/complete"));
    assert!(ends.any(|request| request.contains(r#""acme""#) && request.contains(r#""globex""#)));
}

#[tokio::test]
async fn a_call_that_is_not_allowed_fails_alone_and_not_the_batch_that_it_is_in() {
    let script = allowing().await;
    let calls = Arc::new(Calls::new(script.client(), BatchOptions::default()).unwrap());
    let mut callers = Vec::new();
    for number in 0..20 {
        let (calls, model) = (Arc::clone(&calls), if number == 7 { "bad" } else { "good" });
        callers.push(tokio::spawn(async move {
            let call = Call { attributes: of(&[("model", model)]), ..call() };
            calls.call(&call, None, soon()).await
        }));
    }
    for (number, caller) in callers.into_iter().enumerate() {
        let answer = caller.await.unwrap();
        assert_eq!(matches!(answer, Err(Failure::Forbidden { .. })), number == 7, "{number}: {answer:?}");
    }
    assert!(script.count("POST /v1/calls/batch ") > 1, "they shared a batch");
}
