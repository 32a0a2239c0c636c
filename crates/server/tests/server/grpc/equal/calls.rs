//! Calls, their extensions and ends.

use earmark_proto::v1;
use serde_json::{Value, json};

use super::message::{of_complete, of_extend, of_reserve};
use super::{Ask, compare};
use crate::http::calls::{call, prepare};
use crate::support::TestServer;

fn attributes(json: &Value) -> std::collections::HashMap<String, String> {
    let pairs = json["attributes"].as_object().into_iter().flatten();
    pairs.map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned())).collect()
}

fn tokens(json: &Value) -> Option<u32> {
    json.as_u64().map(|tokens| u32::try_from(tokens).unwrap())
}

fn text(json: &Value) -> Option<String> {
    json.as_str().map(Into::into)
}

fn usage(json: &Value) -> Option<v1::CallUsage> {
    json.is_object().then(|| v1::CallUsage {
        input_tokens: tokens(&json["input_tokens"]).unwrap(),
        output_tokens: tokens(&json["output_tokens"]).unwrap(),
        cached_input_tokens: tokens(&json["cached_input_tokens"]),
        cache_write_tokens: tokens(&json["cache_write_tokens"]),
        cache_write_1h_tokens: tokens(&json["cache_write_1h_tokens"]),
        reasoning_tokens: tokens(&json["reasoning_tokens"]),
        service_tier: text(&json["service_tier"]),
    })
}

fn part(key: &str, name: &str, amount: u64, namespace: Option<&str>) -> Value {
    let mut json = json!({"key": key, name: amount});
    if let Some(namespace) = namespace {
        json["namespace"] = json!(namespace);
    }
    json
}

fn call_request(body: &Value) -> v1::CallRequest {
    v1::CallRequest {
        lease_id: text(&body["lease_id"]).unwrap_or_default(),
        job_id: text(&body["job_id"]),
        attributes: attributes(body),
        input_tokens_max: tokens(&body["input_tokens_max"]).unwrap(),
        output_tokens_max: tokens(&body["output_tokens_max"]).unwrap(),
    }
}

fn of_call(answer: v1::CallResponse) -> Value {
    let mut json = of_reserve(answer.reserve.unwrap());
    let parts = answer.requirements.iter();
    json["requirements"] = parts.map(|it| part(&it.key, "amount", it.amount, it.namespace.as_deref())).collect();
    if let Some(revision) = answer.policy_revision {
        json["policy_revision"] = json!(revision);
    }
    json
}

fn complete_request(body: &Value) -> v1::CompleteCallRequest {
    let outcome = format!("CALL_OUTCOME_{}", body["outcome"].as_str().unwrap().to_uppercase());
    v1::CompleteCallRequest {
        lease_id: text(&body["lease_id"]).unwrap_or_default(),
        attributes: attributes(body),
        usage: usage(&body["usage"]),
        outcome: v1::CallOutcome::from_str_name(&outcome).unwrap().into(),
        policy_revision: body["policy_revision"].as_u64(),
        namespace: text(&body["namespace"]),
        labels: super::message::labels(body),
    }
}

fn of_completed(answer: v1::CompleteCallResponse) -> Value {
    let mut json = of_complete(answer.complete.unwrap());
    let parts = answer.actuals.iter();
    json["actuals"] =
        parts.map(|it| part(&it.key, "actual_amount", it.actual_amount, it.namespace.as_deref())).collect();
    json["cost"] = json!(answer.cost);
    json
}

pub(super) async fn over_grpc(ask: &Ask, server: &TestServer) -> Result<Value, tonic::Status> {
    let mut client = crate::grpc::calls::calls(server).await;
    Ok(match ask {
        Ask::Call(body) => of_call(client.call(call_request(body)).await?.into_inner()),
        Ask::CallBatch(bodies) => {
            let requests = bodies.iter().map(call_request).collect();
            let answer = client.call_batch(v1::CallBatchRequest { requests }).await?.into_inner();
            json!({"results": answer.results.into_iter().map(of_call).collect::<Vec<_>>()})
        }
        Ask::ExtendCall(body) => {
            let request = v1::ExtendCallRequest {
                lease_id: text(&body["lease_id"]).unwrap_or_default(),
                extension: tokens(&body["extension"]).unwrap(),
                attributes: attributes(body),
                add_output_tokens: tokens(&body["add_output_tokens"]).unwrap_or(0),
                used: usage(&body["used"]),
                policy_revision: body["policy_revision"].as_u64(),
                namespace: text(&body["namespace"]),
            };
            of_extend(client.extend_call(request).await?.into_inner())
        }
        Ask::CompleteCall(body) => of_completed(client.complete_call(complete_request(body)).await?.into_inner()),
        Ask::CompleteCallBatch(bodies) => {
            let requests = bodies.iter().map(complete_request).collect();
            let answer = client.complete_call_batch(v1::CompleteCallBatchRequest { requests }).await?.into_inner();
            json!({"results": answer.results.into_iter().map(of_completed).collect::<Vec<_>>()})
        }
        Ask::ExplainCall(body) => {
            let request = v1::ExplainCallRequest {
                attributes: attributes(body),
                input_tokens_max: tokens(&body["input_tokens_max"]).unwrap(),
                output_tokens_max: tokens(&body["output_tokens_max"]).unwrap(),
                namespace: None,
            };
            of_explanation(&client.explain_call(request).await?.into_inner())
        }
        other => panic!("not of this service: {other:?}"),
    })
}

fn of_explanation(answer: &v1::ExplainCallResponse) -> Value {
    let rules: Vec<Value> =
        answer.rules.iter().map(|rule| json!({"name": rule.name, "matched": rule.matched})).collect();
    let limit = |limit: &v1::ExplainedLimit| {
        let mut json = json!({"key": limit.key, "amount": limit.amount});
        if let (Some(capacity), Some(available), Some(fits)) = (limit.capacity, limit.available, limit.fits) {
            (json["capacity"], json["available"], json["fits"]) = (json!(capacity), json!(available), json!(fits));
        }
        json
    };
    let limits: Vec<Value> = answer.limits.iter().map(limit).collect();
    let mut json = json!({"allowed": answer.allowed, "error": answer.error, "rules": rules, "limits": limits});
    if let Some(message) = &answer.message {
        json["message"] = json!(message);
    }
    if let Some(cost) = &answer.cost {
        json["cost"] = json!(cost);
    }
    if let Some(revision) = answer.policy_revision {
        json["policy_revision"] = json!(revision);
    }
    json
}

fn asks(lease: &[String]) -> Vec<Ask> {
    let acme = "tenant=acme model=gpt-4o provider=openai user=u1";
    let of = |place: usize, name: &str, more: Value| {
        let mut body = call(&lease[place], acme, 0, 0);
        let fields = body.as_object_mut().unwrap();
        fields.remove("input_tokens_max");
        fields.remove("output_tokens_max");
        fields.extend(more.as_object().unwrap().clone());
        match name {
            "extend" => Ask::ExtendCall(body),
            _ => Ask::CompleteCall(body),
        }
    };
    let usage = json!({"input_tokens": 900, "output_tokens": 50, "cached_input_tokens": 10, "reasoning_tokens": 5});
    let mut job = call(&lease[4], acme, 1, 1);
    job["job_id"] = json!("a b");
    let mut asks = vec![
        Ask::Call(call(&lease[0], acme, 1_000, 100)),
        Ask::Call(call(&lease[0], acme, 1_000, 100)),
        Ask::Call(call(&lease[0], acme, 1_000, 101)),
        Ask::Call(call("x", acme, 1, 1)),
        Ask::Call(job),
        Ask::Call(call(&lease[1], acme, 9_500, 0)),
        Ask::Call(call(&lease[2], acme, 10_001, 0)),
        of(0, "extend", json!({"extension": 1, "add_output_tokens": 10, "used": usage})),
        of(0, "extend", json!({"extension": 1, "add_output_tokens": 10, "used": usage})),
        of(0, "extend", json!({"extension": 2, "add_output_tokens": 9_999})),
        of(0, "extend", json!({"extension": 0})),
        of(0, "extend", json!({"extension": 3, "attributes": {"tenant": "globex"}})),
        of(0, "complete", json!({"outcome": "refused", "usage": usage})),
        of(0, "complete", json!({"outcome": "done", "attributes": {"tenant": "globex"}})),
        of(0, "complete", json!({"outcome": "done", "usage": usage})),
        of(0, "complete", json!({"outcome": "done", "usage": usage, "policy_revision": 999})),
        of(3, "complete", json!({"outcome": "unknown"})),
        Ask::Usage("gpt-4o:tpm"),
    ];
    // The third one has no room, and the last ones refuse their whole batch.
    let [first, second, third] = [6, 7, 8].map(|place| call(&lease[place], acme, 3_000, 500));
    let ends = |outcome: &str| {
        [6, 7, 8].map(|place| json!({"lease_id": lease[place], "attributes": first["attributes"], "outcome": outcome}))
    };
    asks.extend([
        Ask::CallBatch(vec![first.clone(), second, third]),
        Ask::CallBatch(vec![first.clone(), call("x", acme, 1, 1)]),
        Ask::CallBatch(vec![first.clone(), call(&lease[5], "Tenant=a", 1, 1)]),
        Ask::CallBatch(Vec::new()),
        Ask::CompleteCallBatch(ends("unknown").to_vec()),
        Ask::CompleteCallBatch(ends("done").to_vec()),
        Ask::CompleteCallBatch(vec![json!({"lease_id": "x", "attributes": {}, "outcome": "done"})]),
        Ask::Usage("gpt-4o:tpm"),
    ]);
    for text in ["", "tenant=acme", "tenant=acme model=o1", "tenant=acme model=gpt-4o plan=free", "Tenant=a", acme] {
        asks.push(Ask::Call(call(&lease[5], text, 1, 1)));
        let mut body = call("", text, 1, 1);
        body.as_object_mut().unwrap().remove("lease_id");
        asks.push(Ask::ExplainCall(body));
    }
    asks
}

#[tokio::test]
async fn calls_are_the_same_over_http_and_grpc() {
    let (http, grpc) = (TestServer::open().await, TestServer::open().await);
    let leases: Vec<String> = (0..9).map(|_| http.lease()).collect();
    for server in [&http, &grpc] {
        prepare(server).await;
    }
    compare(&asks(&leases), &http, &grpc).await;
}
