//! Compares an account's history with the acknowledged writes.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use crate::ask::ask;

const PATIENCE: Duration = Duration::from_secs(10);

/// The transactions of an account: sequence number and memo.
pub fn transactions(address: &str, account: &str) -> Vec<(u64, String)> {
    let (mut found, mut after) = (Vec::new(), 0);
    loop {
        let path = format!("/v1/vaults/main/accounts/{account}/entries?page_size=1000&after={after}");
        let answered = ask(address, "GET", &path, "", PATIENCE).unwrap();
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

/// Asserts that the account has exactly the transactions `memos`, in order, with rising sequence numbers. Every other
/// number of the client with the account's name must be a fence, except for `others` writes.
pub fn check(address: &str, account: &str, memos: &[String], others: usize) {
    let found = transactions(address, account);
    assert!(found.is_sorted_by(|a, b| a.0 < b.0), "numbers do not go up: {found:?}");
    let happened: Vec<&String> = found.iter().map(|(_, memo)| memo).collect();
    assert_eq!(happened, memos.iter().collect::<Vec<_>>(), "history and acknowledged writes differ");

    let last = last_committed(address, account);
    assert!(found.last().is_none_or(|(number, _)| *number <= last), "{found:?}, the last is {last}");
    let numbers: BTreeSet<u64> = found.iter().map(|(number, _)| *number).collect();
    let mut beside = Vec::new();
    for number in 1..=last {
        match (numbers.contains(&number), is_fence(address, account, number)) {
            (true, is_fence) => assert!(!is_fence, "number {number} has an entry and is a fence"),
            (false, true) => {}
            (false, false) => beside.push(number),
        }
    }
    assert_eq!(beside.len(), others, "numbers {beside:?} of {last} are neither fences nor among the entries");
}

fn last_committed(address: &str, client: &str) -> u64 {
    let path = format!("/v1/clients/{client}?namespace=default&vault=main");
    let answered = ask(address, "GET", &path, "", PATIENCE).unwrap();
    let state: Value = serde_json::from_str(&answered.body).unwrap();
    state["last_committed_sequence"].as_u64().unwrap()
}

/// Whether a committed number is a fence, a write without operations: repeating it then succeeds.
fn is_fence(address: &str, client: &str, number: u64) -> bool {
    let body = format!(
        r#"{{"namespace":"default","vault":"main","client_id":"{client}","sequence":{number},"operations":[]}}"#
    );
    let answered = ask(address, "POST", "/v1/write", &body, PATIENCE).unwrap();
    let answer: Value = serde_json::from_str(&answered.body).unwrap();
    match answer["success"]["sequence"].as_u64() {
        Some(found) => {
            assert_eq!(found, number, "{answer}");
            true
        }
        None => {
            assert_eq!(answer["error"]["code"], "SEQUENCE_REUSED", "number {number}: {answer}");
            false
        }
    }
}
