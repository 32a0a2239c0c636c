//! Sequenced writes over both protocols to one server.

use serde_json::{Value, json};

use super::limits::limit;
use super::message::{of_write, write};
use super::{by_grpc, by_http};
use crate::grpc::calls;
use crate::support::TestServer;

/// A retry over the other protocol gets the answer of the first copy.
#[tokio::test]
async fn writes_are_the_same_over_http_and_grpc() {
    let server = TestServer::open().await;
    let mut client = calls::ledger(&server).await;
    let body = |vault: Value, sequence: u64, operations: Value| json!({"namespace": "default", "vault": vault, "client_id": "billing", "sequence": sequence, "operations": operations});
    let main = |sequence, operations| body(json!("main"), sequence, operations);
    let open = |account: &str| json!({"open_account": {"account": account, "overdraft": "deny"}});
    let issue = |account: &str, amount: &str| json!({"issue": {"account": account, "asset": "usd", "amount": amount}});
    let transfer = |from: &str, to: &str, amount: &str| json!({"transfer": {"from": from, "to": to, "asset": "usd", "amount": amount, "memo": "rent"}});
    let put =
        |revision: u64| json!({"put_limit": {"definition": limit("rpm", &json!({})), "expected_revision": revision}});
    for request in [
        main(1, json!([open("acme"), open("bob"), issue("acme", "10")])),
        main(2, json!([transfer("acme", "bob", "4"), {"retire": {"account": "bob", "asset": "usd", "amount": "1"}}])),
        main(1, json!([])),
        main(4, json!([])),
        main(0, json!([])),
        main(3, json!([issue("nobody", "1")])),
        main(3, json!([open("acme")])),
        main(3, json!([transfer("acme", "bob", "100")])),
        main(3, json!([transfer("acme", "acme", "1")])),
        main(3, json!([{"close_account": {"account": "acme"}}])),
        main(3, json!([{"freeze_account": {"account": "acme"}}, transfer("acme", "bob", "1")])),
        main(3, json!([put(0)])),
        main(3, json!([{}])),
        main(3, json!([open("a b")])),
        main(3, json!([issue("acme", "1"), {"issue": {"account": "acme", "asset": "USD", "amount": "1"}}])),
        main(3, json!([{"issue": {"account": "acme", "asset": "usd", "amount": "1", "memo": "m".repeat(257)}}])),
        main(3, json!([{"open_account": {"account": "late"}}])),
        main(3, json!(vec![issue("acme", "1"); 257])),
        main(3, json!(vec![issue("acme", "1"); 256])),
        body(json!("us"), 1, json!([])),
        body(json!("a:b"), 1, json!([])),
        body(Value::Null, 1, json!([{"open_vault": {"vault": "eu"}}, put(0)])),
        body(Value::Null, 2, json!([put(7)])),
        body(Value::Null, 2, json!([{"delete_limit": {"key": "rpm", "expected_revision": 1}}])),
    ] {
        let first = by_http(&server.ask("POST", "/v1/write", &request.to_string()).await);
        let second = by_grpc(client.write(write(&request)).await.map(|it| of_write(it.into_inner())));
        assert_eq!(first, second, "{request}");
        server.clock.advance_ms(1_000);
    }
}
