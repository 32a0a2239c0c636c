//! Rules that replace others where one request matches both.

use super::held::{end, lease_of};
use super::*;

const POLICY: &str = r#"
unmatched = "allow"

[[rules]]
name   = "general"
when   = 'model != ""'
limits = [ { key = "{model}:tpm", amount = 500 } ]

[[rules]]
name   = "tokens"
when   = 'model != ""'
limits = [ { key = "{model}:tpm", amount = "tokens" } ]

[[rules]]
name     = "vip"
when     = 'plan == "vip"'
replaces = [ "general" ]
limits   = [ { key = "slots", amount = "requests" } ]
"#;

const HELD: &str = "model=gpt earmark_settle=at_end earmark_input_tokens_max=100 earmark_output_tokens_max=100";

async fn taken(descriptors: Vec<RateLimitDescriptor>) -> (TestServer, RateLimitServiceClient<Channel>, String) {
    let (server, mut client) = opened().await;
    server.ok("PUT", "/v1/admin/policy", &json!({"policy": POLICY})).await;
    let answer = ask(&mut client, descriptors).await;
    assert_eq!(answer.overall_code(), Limited::Ok, "{answer:?}");
    let lease = lease_of(&answer);
    (server, client, lease)
}

#[tokio::test]
async fn a_descriptor_replaces_the_rules_of_another_whether_it_takes_or_only_checks() {
    for (vip, tokens, slots) in [
        (None, 500, 0),
        (Some(descriptor("plan=vip")), 200, 1),
        (Some(with_hits("plan=vip", 0)), 200, 0),
        (Some(descriptor("plan=free")), 500, 0),
    ] {
        let descriptors = [Some(descriptor(HELD)), vip.clone()].into_iter().flatten().collect();
        let (server, mut client, lease) = taken(descriptors).await;
        assert_eq!((reserved(&server, "gpt:tpm").await, reserved(&server, "slots").await), (tokens, slots), "{vip:?}");
        // The lease settles by the rules that it was reserved by.
        let usage = "earmark_input_tokens=30 earmark_output_tokens=5";
        assert_eq!(ask(&mut client, vec![end(&lease, usage)]).await.overall_code(), Limited::Ok);
        let settled = if tokens == 500 { 500 } else { 35 };
        assert_eq!((reserved(&server, "gpt:tpm").await, reserved(&server, "slots").await), (settled, 0), "{vip:?}");
    }
}

#[tokio::test]
async fn a_descriptor_that_takes_replaces_the_rules_of_one_that_only_checks() {
    let (server, mut client) = opened().await;
    server.ok("PUT", "/v1/admin/policy", &json!({"policy": POLICY})).await;
    // 400 are left, so that a check of 500 fails, and one of 1 passes.
    let fill = vec![with_hits("model=gpt", 600), descriptor("plan=vip")];
    assert_eq!(ask(&mut client, fill).await.overall_code(), Limited::Ok);
    let check = || with_hits("model=gpt", 0);
    let answer = ask(&mut client, vec![check()]).await;
    assert_eq!(codes(&answer), (Limited::OverLimit, vec![Limited::OverLimit]));
    let answer = ask(&mut client, vec![check(), descriptor("plan=vip")]).await;
    assert_eq!(codes(&answer), (Limited::Ok, vec![Limited::Ok; 2]));
}
