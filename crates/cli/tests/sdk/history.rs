//! What a server says has happened to an account.

use std::time::Duration;

use serde_json::Value;

use crate::ask::ask;

/// The transactions of an account: their number, and why.
pub fn transactions(address: &str, account: &str) -> Vec<(u64, String)> {
    let (mut found, mut after) = (Vec::new(), 0);
    loop {
        let path = format!("/v1/vaults/main/accounts/{account}/entries?page_size=1000&after={after}");
        let answered = ask(address, "GET", &path, "", Duration::from_secs(10)).unwrap();
        let page: Value = serde_json::from_str(&answered.body).unwrap();
        for entry in page["entries"].as_array().unwrap() {
            assert_eq!(entry["kind"], "transaction", "{entry}");
            let memo = entry["memos"][0].as_str().unwrap_or_default().to_owned();
            found.push((entry["sequence"].as_u64().unwrap(), memo));
        }
        match page["next"].as_u64() {
            Some(next) => after = next,
            None => return found,
        }
    }
}

/// Fails unless exactly these happened, in this order, under numbers that go up.
pub fn check(address: &str, account: &str, memos: &[String]) {
    let found = transactions(address, account);
    assert!(found.is_sorted_by(|a, b| a.0 < b.0), "numbers do not go up: {found:?}");
    let happened: Vec<&String> = found.iter().map(|(_, memo)| memo).collect();
    assert_eq!(happened, memos.iter().collect::<Vec<_>>(), "what happened, and what writers were told");
}
