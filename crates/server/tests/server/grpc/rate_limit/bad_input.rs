//! Mistakes of a configuration fail with a name; values that a client may have sent deny its request.

use earmark_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;

use super::*;

#[tokio::test]
async fn mistakes_of_a_configuration_are_refused_by_name() {
    let (server, mut client) = opened().await;
    let good = || descriptor("tenant=acme");
    let negative = RateLimitDescriptor { is_negative_hits: true, ..with_hits("tenant=acme", 5) };
    let zero_negative = RateLimitDescriptor { is_negative_hits: true, ..good() };
    let limit = Some(RateLimitOverride { requests_per_unit: 1_000, unit: 2 });
    let twice = RateLimitDescriptor { entries: [good().entries, good().entries].concat(), ..Default::default() };
    let held = |count: usize| {
        let list = vec![json!({"hits": 1, "attributes": {}}); count];
        let lease = json!({"lease_id": server.lease(), "policy_revision": 1, "descriptors": list}).to_string();
        RateLimitDescriptor { entries: vec![Entry { key: "earmark_lease".into(), value: lease }], ..Default::default() }
    };
    let many = (0..33).map(|number| format!("a{number}=x ")).collect::<String>();
    for (descriptors, message) in [
        (vec![], "descriptors: found 0, allowed are 1 to 32"),
        (vec![good(); 2_000], "descriptors: found 2000, allowed are 1 to 32"),
        (vec![RateLimitDescriptor::default()], "descriptors[0].entries: found none, allowed is at least one"),
        (vec![good(), negative], "descriptors[1].is_negative_hits: found negative hits"),
        (vec![zero_negative], "descriptors[0].is_negative_hits: found negative hits"),
        (vec![RateLimitDescriptor { limit, ..good() }], "descriptors[0].limit: overrides are not supported"),
        (
            vec![with_hits("tenant=acme", u64::from(u32::MAX) + 1)],
            "descriptors[0].hits_addend: found 4294967296, allowed are 0 to 4294967295",
        ),
        (vec![with_hits("tenant=acme", u64::MAX)], "descriptors[0].hits_addend: found 18446744073709551615"),
        (vec![descriptor(&many)], "descriptors[0].entries: found 33, allowed are 32"),
        (vec![twice], "descriptors[0].entries: found \"tenant\" twice"),
        (vec![descriptor("Tenant=acme")], "descriptors[0].entries: found the name \"Tenant\""),
        (vec![descriptor("earmark_leese=x")], "descriptors[0].entries: found \"earmark_leese\", allowed are"),
        (vec![descriptor("earmark_settle=soon")], "descriptors[0].entries: earmark_settle: found \"soon\""),
        (vec![descriptor("earmark_lease=01ARZ3NDEKTSV4RRFFQ69G5FAV")], "descriptors[0].earmark_lease: found no lease"),
        (vec![descriptor(r#"earmark_lease={"lease_id":"x"}"#)], "descriptors[0].earmark_lease: found no lease"),
        (
            vec![descriptor(r#"earmark_lease={"lease_id":"x","policy_revision":1,"descriptors":[]}"#)],
            "descriptors[0].earmark_lease: lease_id: found 1 bytes",
        ),
        // Each would be judged by the policy before the lease is looked at.
        (vec![held(33)], "descriptors[0].earmark_lease: descriptors: found 33, allowed are up to 32"),
    ] {
        let found = refused(client.should_rate_limit(asked(descriptors, 0)).await, Code::InvalidArgument);
        assert!(found.starts_with(message), "{found}");
    }
    let request = RateLimitRequest { domain: "no such/domain".into(), descriptors: vec![good()], hits_addend: 0 };
    let found = refused(client.should_rate_limit(request).await, Code::InvalidArgument);
    assert!(found.starts_with("domain: "), "{found}");
    assert_eq!(reserved(&server, "tenant:acme:rpm").await, 0, "nothing was taken");
}

/// Envoy lets a request pass when the service fails, so a client must not be able to make it fail.
#[tokio::test]
async fn a_value_that_a_client_sends_can_deny_its_request_and_never_fail_the_service() {
    let (server, mut client) = opened().await;
    let long = "x".repeat(257);
    let mut wide = descriptor("tenant=acme");
    wide.entries.push(Entry { key: "user".into(), value: "a\nb".into() });
    let mut empty = descriptor("tenant=acme");
    empty.entries.push(Entry { key: "user".into(), value: String::new() });
    let bounds = "tenant=acme earmark_input_tokens_max=4294967296 earmark_output_tokens_max=1";
    for (descriptor, message) in [
        (descriptor(&format!("tenant={long}")), "tenant: found 257 bytes"),
        (wide, "user: found the control character"),
        (empty, "user: found 0 bytes"),
        (descriptor(bounds), "earmark_input_tokens_max: found \"4294967296\", allowed are 0 to 4294967295"),
        (descriptor(&bounds.replace("4294967296", "-1")), "earmark_input_tokens_max: found \"-1\""),
        (descriptor("tenant=acme earmark_output_tokens_max=5"), "earmark_input_tokens_max is required"),
    ] {
        let answer = ask(&mut client, vec![descriptor]).await;
        assert_eq!(codes(&answer), (Limited::OverLimit, vec![Limited::OverLimit]), "{message}");
        let body = body(&answer);
        assert_eq!(body["error"], "invalid_request");
        assert!(body["message"].as_str().unwrap().contains(message), "{body}");
        assert_eq!(header(&answer, "x-should-retry"), Some("false"));
    }
    assert_eq!(reserved(&server, "tenant:acme:rpm").await, 0, "nothing was taken");
}
