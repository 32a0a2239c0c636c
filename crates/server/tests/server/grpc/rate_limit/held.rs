//! Leases that Envoy holds until the end of its stream.

use super::*;

const PAID: &str = "paid=yes slots=yes model=gpt tenant=acme earmark_settle=at_end earmark_input_tokens_max=100 \
                    earmark_output_tokens_max=100";

/// The lease in the metadata of an answer.
pub(super) fn lease_of(answer: &RateLimitResponse) -> String {
    text_of(answer, "lease")
}

fn text_of(answer: &RateLimitResponse, name: &str) -> String {
    match &answer.dynamic_metadata.as_ref().unwrap().fields[name].kind {
        Some(prost_types::value::Kind::StringValue(text)) => text.clone(),
        other => panic!("{other:?}"),
    }
}

/// The descriptor of the end of a stream.
pub(super) fn end(lease: &str, more: &str) -> RateLimitDescriptor {
    let mut end = descriptor(more);
    end.entries.push(Entry { key: "earmark_lease".into(), value: lease.into() });
    end
}

async fn balance(server: &TestServer) -> (String, String) {
    let balances = server.ok("GET", "/v1/vaults/main/accounts/acme/balances", &Value::Null).await;
    let text = |name: &str| balances["balances"][0][name].as_str().unwrap().to_owned();
    (text("available"), text("held"))
}

async fn all(server: &TestServer) -> (u64, u64, u64, (String, String)) {
    let limits = (reserved(server, "tenant:acme:rpm").await, reserved(server, "gpt:tpm").await);
    (limits.0, limits.1, reserved(server, "slots").await, balance(server).await)
}

fn state(rpm: u64, tpm: u64, slots: u64, available: &str, held: &str) -> (u64, u64, u64, (String, String)) {
    (rpm, tpm, slots, (available.into(), held.into()))
}

#[tokio::test]
async fn a_stream_holds_its_bound_and_settles_its_exact_usage() {
    let (server, mut client) = opened().await;
    let answer = ask(&mut client, vec![descriptor(PAID)]).await;
    assert_eq!(answer.overall_code(), Limited::Ok);
    assert_eq!(all(&server).await, state(1, 200, 1, "700", "300"));
    let lease = server.ok("GET", &format!("/v1/leases/{}", text_of(&answer, "lease_id")), &Value::Null).await;
    assert_eq!(lease["lease"]["state"], "live", "{lease}");

    let usage = "earmark_input_tokens=30 earmark_output_tokens=5 earmark_response=via_upstream_200";
    let settled = ask(&mut client, vec![end(&lease_of(&answer), usage)]).await;
    assert_eq!(codes(&settled), (Limited::Ok, vec![Limited::Ok]));
    assert_eq!(all(&server).await, state(1, 35, 0, "960", "0"), "30 input and 5 output tokens cost 40");
    let again = ask(&mut client, vec![end(&lease_of(&answer), usage)]).await;
    assert_eq!(again.overall_code(), Limited::Ok);
    assert_eq!(all(&server).await, state(1, 35, 0, "960", "0"), "a lost answer is repeated without harm");
}

#[tokio::test]
async fn an_end_without_a_whole_usage_settles_the_bound() {
    for more in ["x=y", "earmark_input_tokens=30", "earmark_input_tokens=30 earmark_output_tokens=many"] {
        let (server, mut client) = opened().await;
        let answer = ask(&mut client, vec![descriptor(PAID)]).await;
        ask(&mut client, vec![end(&lease_of(&answer), more)]).await;
        assert_eq!(all(&server).await, state(1, 200, 0, "700", "0"), "{more}");
    }
}

#[tokio::test]
async fn an_error_of_the_upstream_releases_everything_and_one_of_envoy_does_not() {
    for (response, expected) in [
        ("via_upstream 429", state(0, 0, 0, "1000", "0")),
        ("via_upstream 200", state(1, 200, 0, "700", "0")),
        ("downstream_remote_disconnect 499", state(1, 200, 0, "700", "0")),
        ("response_timeout 504", state(1, 200, 0, "700", "0")),
    ] {
        let (server, mut client) = opened().await;
        let answer = ask(&mut client, vec![descriptor(PAID)]).await;
        let mut end = end(&lease_of(&answer), "");
        end.entries.push(Entry { key: "earmark_response".into(), value: response.into() });
        ask(&mut client, vec![end]).await;
        assert_eq!(all(&server).await, expected, "{response}");
    }
}

#[tokio::test]
async fn hits_alone_settle_tokens_and_leave_requests() {
    let (server, mut client) = opened().await;
    let held = vec![with_hits("tenant=acme", 2), with_hits("model=gpt earmark_settle=at_end", 500)];
    let answer = ask(&mut client, held).await;
    assert_eq!((reserved(&server, "tenant:acme:rpm").await, reserved(&server, "gpt:tpm").await), (2, 500));
    let mut end = end(&lease_of(&answer), "");
    end.hits_addend = Some(120);
    ask(&mut client, vec![end, descriptor("tenant=globex")]).await;
    assert_eq!((reserved(&server, "tenant:acme:rpm").await, reserved(&server, "gpt:tpm").await), (2, 120));
    assert_eq!(reserved(&server, "tenant:globex:rpm").await, 1, "other descriptors of the end are counted");
}

#[tokio::test]
async fn a_lost_end_runs_out_by_its_timeout() {
    let (server, mut client) = opened().await;
    ask(&mut client, vec![descriptor(PAID)]).await;
    server.clock.advance_ms(61_000);
    assert_eq!(all(&server).await, state(0, 0, 0, "1000", "0"), "on_timeout is release");
}

#[tokio::test]
async fn a_denied_request_has_no_lease_and_a_lease_of_other_attributes_is_refused() {
    let (server, mut client) = opened().await;
    let answer = ask(&mut client, vec![descriptor(PAID)]).await;
    let denied = ask(&mut client, vec![with_hits("tenant=acme earmark_settle=at_end", 11)]).await;
    assert_eq!((denied.overall_code(), denied.dynamic_metadata), (Limited::OverLimit, None));
    let forged = lease_of(&answer).replace("\"acme\"", "\"globex\"");
    let end = end(&forged, "earmark_input_tokens=0 earmark_output_tokens=0");
    refused(client.should_rate_limit(asked(vec![end], 0)).await, Code::InvalidArgument);
    assert_eq!(all(&server).await, state(1, 200, 1, "700", "300"));
}

#[tokio::test]
async fn a_retry_with_the_id_of_envoy_takes_once_and_gets_the_first_answer() {
    let id = "earmark_request_id=7f9c2ba4-e88f-427d-8b2d-1a2b3c4d5e6f";
    let (server, mut client) = opened().await;
    for text in [format!("{PAID} {id}"), format!("slots=yes tenant=globex {}", id.replace("7f9c", "8f9c"))] {
        let first = ask(&mut client, vec![descriptor(&text)]).await;
        assert_eq!(first.overall_code(), Limited::Ok);
        assert_eq!(ask(&mut client, vec![descriptor(&text)]).await, first, "{text}");
    }
    assert_eq!(all(&server).await, state(1, 200, 1, "700", "300"));
    assert_eq!(reserved(&server, "tenant:globex:rpm").await, 1, "also when the first was settled at once");
    let full = "tenant=full earmark_request_id=9f9c2ba4-e88f-427d-8b2d-1a2b3c4d5e6f";
    let first = ask(&mut client, vec![with_hits(full, 11)]).await;
    assert_eq!(first.overall_code(), Limited::OverLimit);
    assert_eq!(body(&ask(&mut client, vec![with_hits(full, 11)]).await), body(&first));
    for _ in 0..2 {
        ask(&mut client, vec![descriptor("tenant=other earmark_request_id=constant")]).await;
    }
    assert_eq!(reserved(&server, "tenant:other:rpm").await, 2, "an id that Envoy did not make identifies nothing");
}
