//! A tenant cannot pose as another: every attribute, by every way a request can carry it, against labels and `may_set`.

use std::collections::HashMap;

use earmark_core::{CreateKey, Labels, MaySet, Role};
use earmark_proto::v1;
use earmark_proto::v1::calls_service_client::CallsServiceClient;
use serde_json::{Value, json};
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::grpc::callers::with;
use crate::grpc::calls;
use crate::support::KeyedServer;

const HEADER: &str = "x-earmark-client-key";
const POLICY: &str = r#"
[[rules]]
name = "tenant"
limits = [{ key = "t:{tenant}", amount = "requests" }]

[[rules]]
name = "all"
optional = true
limits = [{ key = "all:{tenant}:{plan}:{user}:{model}", amount = "requests" }]
"#;

/// The calls that carry attributes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Carrier {
    Call,
    Extend,
    Complete,
    Explain,
}

const CARRIERS: [Carrier; 4] = [Carrier::Call, Carrier::Extend, Carrier::Complete, Carrier::Explain];

/// The credentials of a request.
struct Sender {
    key: String,
    client: Option<String>,
}

impl Sender {
    fn headers(&self) -> String {
        let client = self.client.as_ref().map(|client| format!("{HEADER}: {client}\r\n")).unwrap_or_default();
        // The header in which clients of a gateway state attributes means nothing here.
        format!("authorization: Bearer {}\r\n{client}x-earmark-attributes: tenant=globex\r\n", self.key)
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = with(Some(&self.key), message);
        if let Some(client) = &self.client {
            request.metadata_mut().insert(HEADER, MetadataValue::try_from(client).unwrap());
        }
        request.metadata_mut().insert("x-earmark-attributes", MetadataValue::from_static("tenant=globex"));
        request
    }
}

fn labelled(key: &mut CreateKey) {
    key.labels = Labels::new([("tenant", "acme"), ("plan", "pro")]).unwrap();
    key.may_set = MaySet::new(["user"]).unwrap();
}

/// A server with a policy, where `acme` and `globex` share the namespace `team`.
async fn open() -> KeyedServer {
    let keyed = KeyedServer::open().await;
    let template = |key: &str| json!({"key": key, "kind": "concurrency", "capacity": 1000, "timeout_seconds": 60});
    for key in ["t:{tenant}", "all:{tenant}:{plan}:{user}:{model}"] {
        let path = "/v1/admin/templates?namespace=team";
        let put = keyed.ask(Some(&keyed.root), "PUT", path, &template(key).to_string()).await;
        assert_eq!(put.status, 200, "{put:?}");
    }
    let body = json!({"policy": POLICY}).to_string();
    let put = keyed.ask(Some(&keyed.root), "PUT", "/v1/admin/policy?namespace=team", &body).await;
    assert_eq!(put.status, 200, "{put:?}");
    keyed
}

async fn over_http(
    keyed: &KeyedServer,
    sender: &Sender,
    carrier: Carrier,
    attributes: &Value,
) -> Result<Value, String> {
    let lease = keyed.server.lease();
    let bounds = |mut body: Value| {
        body["input_tokens_max"] = json!(1);
        body["output_tokens_max"] = json!(1);
        body
    };
    let (path, body) = match carrier {
        Carrier::Call => ("/v1/calls", bounds(json!({"lease_id": lease, "attributes": attributes}))),
        Carrier::Explain => ("/v1/calls/explain", bounds(json!({"attributes": attributes}))),
        Carrier::Extend => ("/v1/calls/extend", json!({"lease_id": lease, "extension": 1, "attributes": attributes})),
        Carrier::Complete => {
            ("/v1/calls/complete", json!({"lease_id": lease, "attributes": attributes, "outcome": "unknown"}))
        }
    };
    let answer = keyed.ask_with(&sender.headers(), "POST", path, &body.to_string()).await;
    match answer.status {
        403 => Err(answer.problem(403, "forbidden")),
        200 => Ok(answer.json()),
        _ => panic!("{carrier:?} {attributes}: {answer:?}"),
    }
}

async fn over_grpc(
    client: &mut CallsServiceClient<Channel>,
    lease: String,
    sender: &Sender,
    carrier: Carrier,
    attributes: &Value,
) -> Result<Vec<String>, String> {
    let texts = attributes.as_object().unwrap().iter();
    let attributes: HashMap<String, String> =
        texts.map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned())).collect();
    let (input_tokens_max, output_tokens_max) = (1, 1);
    let answer: Result<Vec<String>, Status> = match carrier {
        Carrier::Call => {
            let message =
                v1::CallRequest { lease_id: lease, job_id: None, attributes, input_tokens_max, output_tokens_max };
            let keys = |answer: v1::CallResponse| answer.requirements.into_iter().map(|part| part.key).collect();
            client.call(sender.request(message)).await.map(|answer| keys(answer.into_inner()))
        }
        Carrier::Explain => {
            let message =
                v1::ExplainCallRequest { attributes, input_tokens_max, output_tokens_max, ..Default::default() };
            let keys = |answer: v1::ExplainCallResponse| answer.limits.into_iter().map(|limit| limit.key).collect();
            client.explain_call(sender.request(message)).await.map(|answer| keys(answer.into_inner()))
        }
        Carrier::Extend => {
            let message = v1::ExtendCallRequest { lease_id: lease, extension: 1, attributes, ..Default::default() };
            client.extend_call(sender.request(message)).await.map(|_| Vec::new())
        }
        Carrier::Complete => {
            let outcome = v1::CallOutcome::Unknown.into();
            let message = v1::CompleteCallRequest { lease_id: lease, attributes, outcome, ..Default::default() };
            client.complete_call(sender.request(message)).await.map(|_| Vec::new())
        }
    };
    answer.map_err(|status| {
        assert_eq!(status.code(), Code::PermissionDenied, "{carrier:?}: {status:?}");
        status.message().to_owned()
    })
}

/// The keys that a call takes, in an answer over HTTP.
fn keys(answer: &Value) -> Vec<String> {
    let list = if answer["requirements"].is_array() { &answer["requirements"] } else { &answer["limits"] };
    list.as_array().into_iter().flatten().map(|part| part["key"].as_str().unwrap().to_owned()).collect()
}

/// Every attribute with a foreign and, if there is one, its own value; whether a direct caller and whether a gateway may
/// state it for this client.
const CASES: [(&str, &str, bool, bool); 13] = [
    ("tenant", "globex", false, false),
    ("tenant", "Acme", false, false),
    ("tenant", "acme ", false, false),
    ("tenant", "acme", true, true),
    ("plan", "free", false, false),
    ("plan", "pro", true, true),
    ("key", "4m8qk2v7d1xz", false, false),
    ("feature", "chat", false, false),
    ("user", "u1", true, true),
    ("model", "gpt-4o", true, true),
    ("provider", "openai", true, true),
    ("alias", "fast", false, true),
    ("operation", "chat", false, true),
];

#[tokio::test]
async fn a_tenant_cannot_pose_as_another_by_any_attribute_over_either_protocol() {
    let keyed = open().await;
    let mut grpc = CallsServiceClient::new(calls::channel(&keyed.server).await);
    let gateways = [keyed.key(Role::Gateway, "default").await, keyed.key(Role::Gateway, "team").await];
    let mut senders = Vec::new();
    for role in [Role::Caller, Role::Admin] {
        senders.push(Sender { key: keyed.key_of(role, "team", labelled).await, client: None });
    }
    for (gateway, role) in [(0, Role::Client), (1, Role::Client), (0, Role::Caller), (1, Role::Admin)] {
        let client = Some(keyed.key_of(role, "team", labelled).await);
        senders.push(Sender { key: gateways[gateway].clone(), client });
    }
    for sender in &senders {
        let is_through = sender.client.is_some();
        let own = sender.client.as_ref().unwrap_or(&sender.key).split('_').nth(1).unwrap().to_owned();
        let own = [("key", own.as_str(), false, false)];
        for (name, value, directly, through) in CASES.into_iter().chain(own) {
            for carrier in CARRIERS {
                // A caller may not explain, and a reader may explain what its labels do not contradict.
                let is_allowed = if is_through { through } else { directly };
                if carrier == Carrier::Explain && !is_through {
                    continue;
                }
                let attributes = json!({(name): value});
                let by_http = over_http(&keyed, sender, carrier, &attributes).await;
                let by_grpc = over_grpc(&mut grpc, keyed.server.lease(), sender, carrier, &attributes).await;
                let what = format!("{carrier:?} {attributes} through {is_through}: {by_http:?} {by_grpc:?}");
                assert_eq!(by_http.is_ok(), is_allowed, "{what}");
                match (by_http, by_grpc) {
                    (Ok(answer), Ok(names)) => {
                        if matches!(carrier, Carrier::Call | Carrier::Explain) {
                            assert_eq!(keys(&answer), names, "{what}");
                            assert!(names.contains(&"t:acme".to_owned()), "{what}");
                            assert!(!names.iter().any(|name| name.contains("globex")), "{what}");
                        }
                    }
                    (Err(one), Err(other)) => {
                        assert_eq!(one, other);
                        assert!(one.starts_with(&format!("attributes: {name}: ")), "{what}");
                    }
                    _ => panic!("{what}"),
                }
            }
        }
    }
    let usage = keyed.ask(Some(&keyed.root), "GET", "/v1/usage?namespace=team&prefix=t:", "").await.text;
    assert!(usage.contains("t:acme") && !usage.contains("globex"), "{usage}");
}

#[tokio::test]
async fn a_reader_with_labels_explains_no_call_of_another_tenant() {
    let keyed = open().await;
    let mut grpc = CallsServiceClient::new(calls::channel(&keyed.server).await);
    for role in [Role::Reader, Role::Writer, Role::Admin] {
        let sender = Sender { key: keyed.key_of(role, "team", labelled).await, client: None };
        for (name, value, is_allowed) in [("tenant", "globex", false), ("key", "x", false), ("feature", "chat", true)] {
            let attributes = json!({(name): value});
            let by_http = over_http(&keyed, &sender, Carrier::Explain, &attributes).await;
            let by_grpc = over_grpc(&mut grpc, String::new(), &sender, Carrier::Explain, &attributes).await;
            assert_eq!((by_http.is_ok(), by_grpc.is_ok()), (is_allowed, is_allowed), "{role} {attributes}");
        }
    }
    // Without labels a reader asks about any tenant.
    let sender = Sender { key: keyed.key(Role::Reader, "team").await, client: None };
    let explained = over_http(&keyed, &sender, Carrier::Explain, &json!({"tenant": "globex"})).await.unwrap();
    assert_eq!(keys(&explained), ["t:globex"]);
}

/// A client that completes its own call as `refused` would pay nothing.
#[tokio::test]
async fn a_call_of_a_gateway_is_settled_by_gateways_only() {
    let keyed = open().await;
    let gateway = keyed.key(Role::Gateway, "default").await;
    let client = keyed.key_of(Role::Caller, "team", labelled).await;
    let sender = Sender { key: gateway.clone(), client: Some(client.clone()) };
    let lease = keyed.server.lease();
    let body = json!({"lease_id": lease, "attributes": {}, "input_tokens_max": 1, "output_tokens_max": 1}).to_string();
    let called = keyed.ask_with(&sender.headers(), "POST", "/v1/calls", &body).await.json();
    assert_eq!(called["allowed"], true, "{called}");
    let completed = json!({"lease_id": lease, "attributes": {}, "outcome": "refused"});
    let extended = json!({"lease_id": lease, "extension": 1, "attributes": {}});
    let admin = keyed.key_of(Role::Admin, "team", labelled).await;
    for key in [&client, &admin] {
        for (path, body) in [
            ("/v1/calls/complete", &completed),
            ("/v1/calls/extend", &extended),
            ("/v1/complete", &json!({"lease_id": lease, "actuals": []})),
            ("/v1/extend", &json!({"lease_id": lease, "extension": 1})),
        ] {
            let refused = keyed.ask(Some(key), "POST", path, &body.to_string()).await;
            assert_eq!(refused.status, 403, "{path} {refused:?}");
        }
    }
    let usage = keyed.ask(Some(&keyed.root), "GET", "/v1/admin/limits/t:acme/usage?namespace=team", "").await.json();
    assert_eq!(usage["reserved"], 1);
    // The gateway states all attributes, with the key, once the client's key is revoked.
    keyed.revoke(&client).await;
    let id = client.split('_').nth(1).unwrap();
    let mut full = completed.clone();
    full["attributes"] = json!({"tenant": "acme", "plan": "pro", "key": id});
    full["namespace"] = json!("team");
    let mut wrong = full.clone();
    wrong["attributes"]["tenant"] = json!("globex");
    let refused = keyed.ask(Some(&gateway), "POST", "/v1/calls/complete", &wrong.to_string()).await;
    assert_eq!(refused.status, 400, "{refused:?}");
    let done = keyed.ask(Some(&gateway), "POST", "/v1/calls/complete", &full.to_string()).await.json();
    assert_eq!(done["reconciled"], true, "{done}");
}

/// The answers to a caller that changes the lease of a gateway: single, in a batch, over gRPC and on a stream.
#[tokio::test]
async fn a_lease_of_a_gateway_is_changed_by_gateways_only_by_every_way() {
    let keyed = open().await;
    let (gateway, other) = (keyed.key(Role::Gateway, "team").await, keyed.key(Role::Gateway, "default").await);
    let lease = keyed.server.lease();
    let body = json!({"lease_id": lease, "requirements": [{"key": "t:acme", "amount": 2}]});
    let taken = keyed.ask(Some(&gateway), "POST", "/v1/reserve", &body.to_string()).await.json();
    assert_eq!(taken["allowed"], true, "{taken}");
    let complete = json!({"lease_id": lease, "actuals": []});
    let extend = json!({"lease_id": lease, "extension": 1});
    let mut limits = calls::limits(&keyed.server).await;
    for role in [Role::Caller, Role::Admin] {
        let key = keyed.key(role, "team").await;
        for (path, body) in [("/v1/complete", &complete), ("/v1/extend", &extend), ("/v1/reserve", &body)] {
            let refused = keyed.ask(Some(&key), "POST", path, &body.to_string()).await.problem(403, "forbidden");
            assert!(refused.starts_with("lease_id: a gateway made this lease"), "{refused}");
            let batch = json!({"requests": [body]}).to_string();
            let refused = keyed.ask(Some(&key), "POST", &format!("{path}/batch"), &batch).await.json();
            assert_eq!(refused["results"][0]["error"], "invalid_request", "{path}");
        }
        let refused = limits.complete(with(Some(&key), calls::complete(&lease, &[]))).await;
        assert!(calls::refused(refused, Code::PermissionDenied).starts_with("lease_id: "));
        let refused = limits.extend(with(Some(&key), calls::extend(&lease, 1))).await;
        assert!(calls::refused(refused, Code::PermissionDenied).starts_with("lease_id: "));
        let refused = limits.reserve(with(Some(&key), calls::reserve(&lease, &[("t:acme", 2)]))).await;
        assert!(calls::refused(refused, Code::PermissionDenied).starts_with("lease_id: "));
    }
    let path = "/v1/admin/limits/t:acme/usage?namespace=team";
    assert_eq!(keyed.ask(Some(&keyed.root), "GET", path, "").await.json()["reserved"], 2);
    // Another gateway may: the one that made it may be gone.
    let message = v1::CompleteRequest { namespace: Some("team".into()), ..calls::complete(&lease, &[]) };
    assert!(limits.complete(with(Some(&other), message)).await.unwrap().into_inner().reconciled);
    // A lease of a caller stays its own, and a gateway may complete it.
    let (caller, lease) = (keyed.key(Role::Caller, "team").await, keyed.server.lease());
    let body = json!({"lease_id": lease, "requirements": [{"key": "t:acme", "amount": 2}]}).to_string();
    assert_eq!(keyed.ask(Some(&caller), "POST", "/v1/reserve", &body).await.json()["allowed"], true);
    let complete = json!({"lease_id": lease, "actuals": []}).to_string();
    assert_eq!(keyed.ask(Some(&gateway), "POST", "/v1/complete", &complete).await.json()["reconciled"], true);
}

#[tokio::test]
async fn a_client_reads_nothing_of_a_gateways_lease_and_a_tenants_admin_puts_no_policy() {
    let keyed = open().await;
    let (gateway, client) =
        (keyed.key(Role::Gateway, "default").await, keyed.key_of(Role::Client, "team", labelled).await);
    let sender = Sender { key: gateway, client: Some(client.clone()) };
    let lease = keyed.server.lease();
    let body = json!({"lease_id": lease, "requirements": [{"key": "t:acme", "amount": 1}]}).to_string();
    assert_eq!(keyed.ask_with(&sender.headers(), "POST", "/v1/reserve", &body).await.json()["allowed"], true);
    let path = format!("/v1/leases/{lease}");
    let refused = keyed.ask(Some(&client), "GET", &path, "").await.problem(403, "forbidden");
    assert!(refused.ends_with("this key has role client, which calls through a gateway only"), "{refused}");
    keyed.ask_with(&sender.headers(), "GET", &path, "").await.problem(403, "forbidden");
    let body = json!({"policy": "unmatched = \"allow\""}).to_string();
    for role in Role::ALL {
        let key = keyed.key_of(role, "team", labelled).await;
        for path in ["/v1/admin/policy", "/v1/admin/policy?namespace=team"] {
            keyed.ask(Some(&key), "PUT", path, &body).await.problem(403, "forbidden");
        }
        let message = v1::PutPolicyRequest { policy: "unmatched = \"allow\"".into(), ..Default::default() };
        let mut limits = calls::limits(&keyed.server).await;
        let refused = limits.put_policy(with(Some(&key), message)).await;
        calls::refused(refused, Code::PermissionDenied);
    }
    let kept = keyed.ask(Some(&keyed.root), "GET", "/v1/admin/policy?namespace=team", "").await.json();
    assert_eq!(kept["policy"], POLICY);
}
