//! Policies: put and read by admins of `default` only, checked before they are kept.

use earmark_core::Role;
use earmark_proto::v1;
use serde_json::{Value, json};

use crate::grpc::callers::with;
use crate::grpc::calls;
use crate::support::KeyedServer;

const POLICY: &str = "[[rules]]\nname = \"tenant\"\nlimits = [ { key = \"{tenant}:rpm\", amount = \"requests\" } ]\n";

async fn put(keyed: &KeyedServer, key: &str, namespace: &str, body: Value) -> (u16, Value) {
    let path = format!("/v1/admin/policy?namespace={namespace}");
    let answer = keyed.ask(Some(key), "PUT", &path, &body.to_string()).await;
    (answer.status, answer.json())
}

async fn get(keyed: &KeyedServer, key: &str, namespace: &str) -> (u16, Value) {
    let answer = keyed.ask(Some(key), "GET", &format!("/v1/admin/policy?namespace={namespace}"), "").await;
    (answer.status, answer.json())
}

#[tokio::test]
async fn a_policy_is_replaced_at_its_revision_and_read_back() {
    let keyed = KeyedServer::open().await;
    let root = &keyed.root;
    assert_eq!(get(&keyed, root, "team").await.0, 404);
    let (status, first) = put(&keyed, root, "team", json!({"policy": POLICY, "expected_revision": 0})).await;
    assert_eq!((status, &first["ok"]), (200, &json!(true)), "{first}");
    assert_eq!(get(&keyed, root, "team").await, (200, json!({"policy": POLICY, "revision": first["revision"]})));
    assert_eq!(get(&keyed, root, "default").await.0, 404, "each namespace has its own");

    let (status, answer) = put(&keyed, root, "team", json!({"policy": "", "expected_revision": 0})).await;
    assert_eq!((status, &answer["error"]), (409, &json!("conflict")), "{answer}");
    let again = put(&keyed, root, "team", json!({"policy": POLICY})).await;
    assert_eq!(again, (200, first.clone()), "the same text is no new revision");
    let (_, second) = put(&keyed, root, "team", json!({"policy": "", "expected_revision": first["revision"]})).await;
    assert!(second["revision"].as_u64() > first["revision"].as_u64(), "{second}");

    let answer = keyed.ask(Some(root), "GET", "/v1/audit", "").await.json();
    let newest = &answer["entries"][0];
    assert_eq!((&newest["kind"], &newest["revision"]), (&json!("policy"), &second["revision"]), "{newest}");
}

#[tokio::test]
async fn a_mistake_is_named_with_its_field_and_line_and_changes_nothing() {
    let keyed = KeyedServer::open().await;
    let root = &keyed.root;
    put(&keyed, root, "team", json!({"policy": POLICY})).await;
    let before = get(&keyed, root, "team").await;
    let long = "#".repeat(262_145);
    for (policy, what) in [
        ("[[rules]]\nname = \"a\"\n", "policy: line 1: rules[0].limits: is required, unless the rule has deny"),
        (
            "[[rules]]\nname = \"a\"\nwhen = 'x =='\ndeny = \"b\"\n",
            "policy: line 3: rules[0].when: at 1:5: Syntax error",
        ),
        ("rules = ", "policy: line 1: not valid TOML"),
        (&long, "policy: line 1: found 262145 bytes, allowed are 262144"),
    ] {
        let (status, answer) = put(&keyed, root, "team", json!({"policy": policy})).await;
        let message = answer["message"].as_str().unwrap();
        assert_eq!((status, &answer["error"]), (400, &json!("invalid_request")), "{answer}");
        assert!(message.starts_with(what), "{what}\nbut {message}");
    }
    assert_eq!(get(&keyed, root, "team").await, before);
}

/// A tenant must not drop its own limits.
#[tokio::test]
async fn only_an_admin_of_default_may_put_a_policy() {
    let keyed = KeyedServer::open().await;
    for (role, namespace) in [(Role::Admin, "team"), (Role::Writer, "default"), (Role::Caller, "default")] {
        let key = keyed.key(role, namespace).await;
        assert_eq!(put(&keyed, &key, namespace, json!({"policy": ""})).await.0, 403, "{role} of {namespace}");
        assert_eq!(get(&keyed, &key, namespace).await.0, 403, "{role} of {namespace}");
    }
    assert_eq!(get(&keyed, &keyed.root, "team").await.0, 404);
}

#[tokio::test]
async fn a_policy_over_grpc_is_the_same() {
    let keyed = KeyedServer::open().await;
    let limits = &mut calls::limits(&keyed.server).await;
    let root = Some(keyed.root.as_str());
    let asked =
        v1::PutPolicyRequest { namespace: Some("team".into()), policy: POLICY.into(), expected_revision: Some(0) };
    let put = limits.put_policy(with(root, asked.clone())).await.unwrap().into_inner();
    let read = v1::GetPolicyRequest { namespace: Some("team".into()) };
    let found = limits.get_policy(with(root, read)).await.unwrap().into_inner();
    assert_eq!((found.policy.as_str(), found.revision), (POLICY, put.revision));
    let wrong = v1::PutPolicyRequest { policy: "rules = 1".into(), ..asked.clone() };
    let wrong = limits.put_policy(with(root, wrong)).await.unwrap_err();
    assert_eq!(wrong.code(), tonic::Code::InvalidArgument);
    assert_eq!(wrong.message(), "policy: line 1: rules: found 1, allowed is a list of tables");
    let stale = v1::PutPolicyRequest { policy: String::new(), ..asked };
    let stale = limits.put_policy(with(root, stale)).await.unwrap_err();
    assert_eq!(stale.code(), tonic::Code::FailedPrecondition);
    let absent = limits.get_policy(with(root, v1::GetPolicyRequest { namespace: None })).await.unwrap_err();
    assert_eq!(absent.code(), tonic::Code::NotFound);
}
