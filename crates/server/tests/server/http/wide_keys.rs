//! Keys and accounts with every allowed character, over both protocols. A path is decoded exactly once and never
//! normalised.

use std::fmt::Write as _;

use earmark_proto::v1;
use serde_json::{Value, json};

use crate::grpc::calls;
use crate::support::TestServer;

/// Names with every allowed character, and names that URLs treat specially.
fn names() -> Vec<String> {
    let punctuation = ":._@+-/|=~%";
    let each = punctuation.chars().map(|character| format!("x{character}y"));
    let special = [
        ".",
        "..",
        "/",
        "//",
        "a/b",
        "a%2Fb",
        "a%2fb",
        "a%252Fb",
        "a//b",
        "a/./b",
        "a/../b",
        "../a",
        "a/",
        "%",
        "%%",
        "%zz",
        "k=v",
        "k+v",
        "k%20v",
        "~",
        "a|b",
        "usage",
        "a/usage",
        "abcXYZ019",
    ];
    each.chain(special.map(str::to_owned)).collect()
}

/// All bytes but letters and digits, percent-encoded.
fn encoded(name: &str) -> String {
    name.bytes().fold(String::new(), |mut text, byte| {
        if byte.is_ascii_alphanumeric() {
            text.push(byte.into());
        } else {
            _ = write!(text, "%{byte:02X}");
        }
        text
    })
}

#[tokio::test]
async fn every_key_is_read_changed_and_deleted_as_itself() {
    let server = TestServer::open().await;
    let mut grpc = calls::limits(&server).await;
    let mut keys = names();
    for (capacity, key) in (1..).zip(&keys) {
        server.put_rolling(key, capacity, 60).await;
    }
    for (capacity, key) in (1..).zip(&keys) {
        let path = format!("/v1/admin/limits/{}", encoded(key));
        let limit = server.ok("GET", &path, &Value::Null).await;
        assert_eq!(limit["limit"]["definition"]["key"], *key);
        assert_eq!(limit["limit"]["definition"]["capacity"], capacity, "{key}");
        let get = v1::GetLimitRequest { key: key.clone(), namespace: None };
        let limit = grpc.get_limit(get).await.unwrap().into_inner().limit.unwrap();
        assert_eq!(limit.definition.unwrap().capacity, Some(capacity), "{key}");
        let usage = server.ok("GET", &format!("{path}/usage"), &Value::Null).await;
        assert_eq!(usage["capacity"], capacity, "{key}");
        let changes = server.ok("GET", &format!("/v1/audit?key={}", encoded(key)), &Value::Null).await;
        assert_eq!(changes["entries"].as_array().unwrap().len(), 1, "{key}: {changes}");
    }
    keys.sort();
    assert_eq!(paged(&server, None).await, keys);
    let begins: Vec<String> = keys.iter().filter(|key| key.starts_with("a/")).cloned().collect();
    assert_eq!(paged(&server, Some("a/")).await, begins);

    while let Some(key) = keys.pop() {
        let path = format!("/v1/admin/limits/{}", encoded(&key));
        assert_eq!(server.ok("DELETE", &path, &Value::Null).await["status"], "deleted");
        assert_eq!(paged(&server, None).await, keys);
    }
}

/// The keys of all pages of two limits each.
async fn paged(server: &TestServer, prefix: Option<&str>) -> Vec<String> {
    let prefix = prefix.map(|prefix| format!("&prefix={}", encoded(prefix))).unwrap_or_default();
    let (mut keys, mut after) = (Vec::new(), String::new());
    loop {
        let page = server.ok("GET", &format!("/v1/admin/limits?page_size=2{prefix}{after}"), &Value::Null).await;
        let limits = page["limits"].as_array().unwrap();
        keys.extend(limits.iter().map(|limit| limit["definition"]["key"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={}", encoded(next)),
            None => return keys,
        }
    }
}

#[tokio::test]
async fn every_key_is_reserved_denied_and_completed_as_itself() {
    let server = TestServer::open().await;
    let mut grpc = calls::limits(&server).await;
    for key in names() {
        server.put_rolling(&key, 1, 60).await;
        let lease = server.lease();
        assert_eq!(server.reserve(&lease, &[(&key, 1)]).await["allowed"], true, "{key}");
        let denied = server.reserve(&server.lease(), &[(&key, 1)]).await;
        assert_eq!(denied["limited_by"], json!([key]));
        let never = server.reserve(&server.lease(), &[(&key, 2)]).await;
        assert_eq!(never["error"], format!("exceeds_capacity:{key}"));
        let read = server.ok("GET", &format!("/v1/leases/{lease}"), &Value::Null).await;
        assert_eq!(read["lease"]["requirements"][0]["key"], *key);
        let completed = grpc.complete(calls::complete(&lease, &[(&key, 0)])).await.unwrap().into_inner();
        assert!(completed.reconciled, "{key}");
        let series = format!("earmark_denials_total{{namespace=\"default\",key=\"{key}\",reason=\"capacity\"}}");
        assert_eq!(server.metric(&series).await, 2.0);
    }
    let unknown = server.reserve(&server.lease(), &[("no/such|key", 1)]).await;
    assert_eq!(unknown["error"], "unknown_limit_key:no/such|key");
}

#[tokio::test]
async fn every_account_is_read_as_itself() {
    let server = TestServer::open().await;
    let mut grpc = calls::ledger(&server).await;
    let accounts = names();
    let operations = accounts.iter().flat_map(|account| {
        let amount = account.len().to_string();
        [
            json!({"open_account": {"account": account, "overdraft": "deny"}}),
            json!({"issue": {"account": account, "asset": "usd", "amount": amount}}),
        ]
    });
    let body = json!({
        "namespace": "default", "vault": "main", "client_id": "c", "sequence": 1,
        "operations": operations.collect::<Vec<_>>(),
    });
    server.ok("POST", "/v1/write", &body).await;
    for account in &accounts {
        let amount = account.len().to_string();
        let path = format!("/v1/vaults/main/accounts/{}", encoded(account));
        let balances = server.ok("GET", &format!("{path}/balances"), &Value::Null).await;
        assert_eq!(balances["balances"][0]["available"], amount, "{account}");
        let entries = server.ok("GET", &format!("{path}/entries"), &Value::Null).await;
        assert_eq!(entries["entries"].as_array().unwrap().len(), 1, "{account}");
        let request = v1::GetBalancesRequest { namespace: None, vault: "main".into(), account: account.clone() };
        let balances = grpc.get_balances(request).await.unwrap().into_inner().balances;
        assert_eq!(balances[0].available, amount, "{account}");
    }
}

/// A slash that is not encoded separates segments. Decoding a path twice would read `a%252Fb` as `a/b`.
#[tokio::test]
async fn a_path_is_decoded_once_and_its_dots_and_slashes_stay() {
    let server = TestServer::open().await;
    for (capacity, key) in [(1, "a/b"), (2, "a%2Fb"), (3, ".."), (4, "a")] {
        server.put_rolling(key, capacity, 60).await;
    }
    for (path, capacity) in [("a%2Fb", 1), ("a%2fb", 1), ("a%252Fb", 2), ("..", 3), ("%2e%2E", 3), ("a", 4)] {
        let limit = server.ok("GET", &format!("/v1/admin/limits/{path}"), &Value::Null).await;
        assert_eq!(limit["limit"]["definition"]["capacity"], capacity, "{path}");
    }
    for path in ["a/b", "/a", "a/", "./a", "../limits/a", "a%252525Fb"] {
        assert_eq!(server.ask("GET", &format!("/v1/admin/limits/{path}"), "").await.status, 404, "{path}");
    }
}
