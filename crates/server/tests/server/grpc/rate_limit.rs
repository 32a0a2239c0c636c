//! Envoy's rate limit service.

mod bad_input;
mod held;
mod replaced;

use earmark_core::Role;
use earmark_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use earmark_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use earmark_proto::envoy::service::ratelimit::v3::rate_limit_response::{Code as Limited, rate_limit::Unit};
use earmark_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use earmark_proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use serde_json::{Value, json};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::grpc::calls::{channel, refused};
use crate::support::{KeyedServer, START_MS, TestServer};

const POLICY: &str = r#"
unmatched = "allow"

[[rules]]
name   = "tenant"
when   = 'tenant != ""'
limits = [ { key = "tenant:{tenant}:rpm", amount = "requests" } ]

[[rules]]
name   = "model"
when   = 'model != "" && tier != "banned"'
limits = [ { key = "{model}:tpm", amount = "tokens" } ]

[[rules]]
name   = "slots"
when   = 'slots == "yes"'
limits = [ { key = "slots", amount = "requests" } ]

[[rules]]
name = "banned"
when = 'tier == "banned"'
deny = "the tier banned may not call"

[[rules]]
name   = "paid"
when   = 'paid == "yes"'
limits = [ { key = "acme:usd", amount = "cost" } ]

[[prices]]
model = "gpt"
asset = "usd"
input = 1_000_000
output = 2_000_000
"#;

/// The clock of the test moved to the wall time, which is that of the leases that the server makes.
fn to_wall_time(server: &TestServer) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    server.clock.advance_ms(u64::try_from(now.as_millis()).unwrap() - START_MS);
}

async fn prepare(server: &TestServer) {
    to_wall_time(server);
    let tenant = json!({"key": "tenant:{tenant}:rpm", "kind": "rolling", "capacity": 10, "window_seconds": 60});
    server.ok("PUT", "/v1/admin/templates", &tenant).await;
    server.put_rolling("gpt:tpm", 1_000, 60).await;
    server.put_rolling("day:tpm", u64::from(u32::MAX) * 2, 86_400).await;
    server.put_concurrency("slots", 2, 60).await;
    let operations = json!([
        {"open_account": {"account": "acme", "overdraft": "deny"}},
        {"issue": {"account": "acme", "asset": "usd", "amount": "1000"}},
    ]);
    let write =
        json!({"namespace": "default", "vault": "main", "client_id": "c", "sequence": 1, "operations": operations});
    server.ok("POST", "/v1/write", &write).await;
    let credit = json!({"key": "acme:usd", "kind": "credit", "timeout_seconds": 60, "vault": "main", "account": "acme",
        "asset": "usd"});
    server.ok("PUT", "/v1/admin/limits", &credit).await;
    server.ok("PUT", "/v1/admin/policy", &json!({"policy": POLICY})).await;
}

async fn opened() -> (TestServer, RateLimitServiceClient<Channel>) {
    let server = TestServer::open().await;
    prepare(&server).await;
    let client = RateLimitServiceClient::new(channel(&server).await);
    (server, client)
}

/// A descriptor of entries such as `tenant=acme model=gpt`.
fn descriptor(text: &str) -> RateLimitDescriptor {
    let entry = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap();
        Entry { key: key.into(), value: value.into() }
    };
    RateLimitDescriptor { entries: text.split_whitespace().map(entry).collect(), ..Default::default() }
}

fn with_hits(text: &str, hits: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(hits), ..descriptor(text) }
}

fn asked(descriptors: Vec<RateLimitDescriptor>, hits_addend: u32) -> RateLimitRequest {
    RateLimitRequest { domain: "default".into(), descriptors, hits_addend }
}

async fn ask(client: &mut RateLimitServiceClient<Channel>, descriptors: Vec<RateLimitDescriptor>) -> RateLimitResponse {
    client.should_rate_limit(asked(descriptors, 0)).await.unwrap().into_inner()
}

fn codes(answer: &RateLimitResponse) -> (Limited, Vec<Limited>) {
    (answer.overall_code(), answer.statuses.iter().map(|status| status.code()).collect())
}

fn header<'a>(answer: &'a RateLimitResponse, name: &str) -> Option<&'a str> {
    answer.response_headers_to_add.iter().find(|header| header.key == name).map(|header| header.value.as_str())
}

fn body(answer: &RateLimitResponse) -> Value {
    serde_json::from_slice(&answer.raw_body).unwrap()
}

async fn reserved(server: &TestServer, key: &str) -> u64 {
    let usage = server.ok("GET", &format!("/v1/admin/limits/{key}/usage"), &Value::Null).await;
    usage["reserved"].as_u64().unwrap()
}

#[tokio::test]
async fn all_descriptors_are_one_reserve_and_hits_are_its_amounts() {
    let (server, mut client) = opened().await;
    let both = || vec![descriptor("tenant=acme"), with_hits("model=gpt", 400)];
    let answer = ask(&mut client, both()).await;
    assert_eq!(codes(&answer), (Limited::Ok, vec![Limited::Ok; 2]));
    assert_eq!((answer.raw_body.len(), answer.dynamic_metadata), (0, None), "nothing to tell and nothing to settle");
    assert_eq!((reserved(&server, "tenant:acme:rpm").await, reserved(&server, "gpt:tpm").await), (1, 400));
    let answer = client.should_rate_limit(asked(both(), 3)).await.unwrap().into_inner();
    assert_eq!(answer.overall_code(), Limited::Ok);
    assert_eq!((reserved(&server, "tenant:acme:rpm").await, reserved(&server, "gpt:tpm").await), (4, 800));

    let answer = ask(&mut client, both()).await;
    assert_eq!(codes(&answer), (Limited::OverLimit, vec![Limited::Ok, Limited::OverLimit]), "in the order of asking");
    assert_eq!((reserved(&server, "tenant:acme:rpm").await, reserved(&server, "gpt:tpm").await), (4, 800), "or none");
    assert_eq!(body(&answer)["limited_by"], json!(["gpt:tpm"]));
    assert_eq!(header(&answer, "content-type"), Some("application/json"));
    let wait: u64 = header(&answer, "retry-after-ms").unwrap().parse().unwrap();
    assert!(wait > 0 && wait <= 66_000, "{wait}");
    assert!(header(&answer, "retry-after").is_some() && header(&answer, "ratelimit").is_none());
    assert_eq!(answer.statuses[1].limit_remaining, 0);
    assert_eq!((&answer.statuses[1].current_limit, &answer.statuses[1].duration_until_reset), (&None, &None));
}

#[tokio::test]
async fn zero_hits_of_a_descriptor_check_and_take_nothing() {
    let (server, mut client) = opened().await;
    let check = || vec![with_hits("tenant=acme", 0)];
    assert_eq!(codes(&ask(&mut client, check()).await), (Limited::Ok, vec![Limited::Ok]));
    assert_eq!(reserved(&server, "tenant:acme:rpm").await, 0);
    let fill = ask(&mut client, vec![with_hits("tenant=acme", 10)]).await;
    assert_eq!(fill.overall_code(), Limited::Ok);
    let answer = ask(&mut client, check()).await;
    assert_eq!(codes(&answer), (Limited::OverLimit, vec![Limited::OverLimit]));
    assert_eq!(body(&answer)["limited_by"], json!(["tenant:acme:rpm"]));
    let mixed = vec![descriptor("model=gpt"), with_hits("tenant=acme", 0)];
    assert_eq!(codes(&ask(&mut client, mixed).await), (Limited::OverLimit, vec![Limited::Ok, Limited::OverLimit]));
    assert_eq!(reserved(&server, "gpt:tpm").await, 0, "a failed check takes nothing either");
    server.ok("POST", "/v1/admin/limits/gpt:tpm/pause", &json!({"for_ms": 60_000})).await;
    let answer = ask(&mut client, vec![with_hits("model=gpt", 0)]).await;
    assert_eq!(body(&answer)["error"], "limit_paused:gpt:tpm");
    let answer = ask(&mut client, vec![with_hits("model=other", 0)]).await;
    assert_eq!(body(&answer)["error"], "unknown_limit_key:other:tpm");
}

/// A check once took the balance of an account for all that it may spend.
#[tokio::test]
async fn a_check_counts_an_overdraft() {
    let (server, mut client) = opened().await;
    let operations = json!([{"open_account": {"account": "owing", "overdraft": {"limit": "250"}}}]);
    let write =
        json!({"namespace": "default", "vault": "main", "client_id": "c", "sequence": 2, "operations": operations});
    server.ok("POST", "/v1/write", &write).await;
    let credit = json!({"key": "acme:usd", "kind": "credit", "timeout_seconds": 60, "vault": "main", "account": "owing",
        "asset": "usd"});
    server.ok("PUT", "/v1/admin/limits", &credit).await;
    for (output, error) in [(100, None), (101, Some("insufficient_credit:acme:usd"))] {
        let paid = format!("paid=yes model=gpt earmark_input_tokens_max=50 earmark_output_tokens_max={output}");
        let answer = ask(&mut client, vec![with_hits(&paid, 0)]).await;
        let found = (answer.overall_code() == Limited::OverLimit).then(|| body(&answer)["error"].clone());
        assert_eq!(found, error.map(Value::from));
    }
}

#[tokio::test]
async fn a_counted_request_frees_its_slots_and_pays_at_once() {
    let (server, mut client) = opened().await;
    for _ in 0..5 {
        let answer = ask(&mut client, vec![descriptor("slots=yes tenant=acme")]).await;
        assert_eq!(answer.overall_code(), Limited::Ok);
    }
    assert_eq!((reserved(&server, "slots").await, reserved(&server, "tenant:acme:rpm").await), (0, 5));
    let paid = "paid=yes model=gpt earmark_input_tokens_max=100 earmark_output_tokens_max=100";
    assert_eq!(ask(&mut client, vec![descriptor(paid)]).await.overall_code(), Limited::Ok);
    let balances = server.ok("GET", "/v1/vaults/main/accounts/acme/balances", &Value::Null).await;
    assert_eq!((&balances["balances"][0]["available"], &balances["balances"][0]["held"]), (&json!("700"), &json!("0")));
}

#[tokio::test]
async fn refusals_by_the_policy_are_denials_that_say_why() {
    let (_server, mut client) = opened().await;
    for (descriptors, statuses, error) in [
        (vec!["tenant=acme", "tier=banned"], vec![Limited::Ok, Limited::OverLimit], "denied_by_rule:banned"),
        (vec!["paid=yes model=gpt"], vec![Limited::OverLimit], "missing_attribute:earmark_output_tokens_max"),
        (vec!["model=none", "tenant=acme"], vec![Limited::OverLimit, Limited::Ok], "unknown_limit_key:none:tpm"),
    ] {
        let answer = ask(&mut client, descriptors.iter().map(|text| descriptor(text)).collect()).await;
        assert_eq!(codes(&answer), (Limited::OverLimit, statuses), "{descriptors:?}");
        assert_eq!(body(&answer)["error"], error);
        assert_eq!(header(&answer, "x-should-retry"), Some("false"));
    }
    let answer = ask(&mut client, vec![descriptor("something=else")]).await;
    assert_eq!(answer.overall_code(), Limited::Ok, "unmatched is allow");
}

#[tokio::test]
async fn what_is_left_is_told_only_where_it_may_be_and_fits_32_bits() {
    let server = TestServer::with(|_, options| options.reveals_remaining = true).await;
    prepare(&server).await;
    let mut client = RateLimitServiceClient::new(channel(&server).await);
    let answer = ask(&mut client, vec![descriptor("model=day"), with_hits("tenant=acme", 3)]).await;
    let [day, tenant] = &answer.statuses[..] else { panic!("{answer:?}") };
    let limit = day.current_limit.as_ref().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit(), limit.name.as_str()), (u32::MAX, Unit::Day, "day:tpm"));
    assert_eq!(day.limit_remaining, u32::MAX);
    let limit = tenant.current_limit.as_ref().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit(), tenant.limit_remaining), (10, Unit::Minute, 7));
    assert_eq!(tenant.duration_until_reset.unwrap().seconds, 60);
    assert!(header(&answer, "ratelimit").unwrap().contains("\"tenant:acme:rpm\";r=7"), "{answer:?}");
    let answer = ask(&mut client, vec![with_hits("tenant=acme", 8)]).await;
    assert_eq!((answer.overall_code(), answer.statuses[0].limit_remaining), (Limited::OverLimit, 7));
    let reset = answer.statuses[0].duration_until_reset.unwrap().seconds;
    assert!((1..=66).contains(&reset), "{reset}");
}

fn as_key(key: &str, request: RateLimitRequest) -> Request<RateLimitRequest> {
    let mut request = Request::new(request);
    request.metadata_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
    request
}

#[tokio::test]
async fn the_domain_is_the_namespace_of_a_gateways_key() {
    let keyed = KeyedServer::open().await;
    to_wall_time(&keyed.server);
    let mut client = RateLimitServiceClient::new(channel(&keyed.server).await);
    let mut ask = async |key: &str, domain: &str| -> Result<RateLimitResponse, Status> {
        let request = RateLimitRequest { domain: domain.into(), descriptors: vec![descriptor("a=b")], hits_addend: 0 };
        client.should_rate_limit(as_key(key, request)).await.map(tonic::Response::into_inner)
    };
    let team = keyed.key(Role::Gateway, "team").await;
    let answer = ask(&team, "team").await.unwrap();
    assert_eq!(body(&answer)["error"], "no_rule", "a namespace without a policy allows nothing");
    let message = refused(ask(&team, "other").await, Code::PermissionDenied);
    assert_eq!(message, "namespace: found other, this key belongs to namespace team");
    for role in [Role::Admin, Role::Caller, Role::Writer, Role::Reader, Role::Client] {
        let key = keyed.key(role, "team").await;
        let message = refused(ask(&key, "team").await, Code::PermissionDenied);
        assert!(message.starts_with("needs role gateway"), "{message}");
    }
    refused(ask("emk_wrong", "team").await, Code::Unauthenticated);
}
