//! Credit by the command line: writes, balances and audits.

use serde_json::{Value, json};

use crate::support::{Server, run};

const OPEN: &str = r#"{"open_account":{"account":"acme","overdraft":"deny"}}"#;
const ISSUE: &str = r#"{"issue":{"account":"acme","asset":"usd","amount":"5000000"}}"#;

#[test]
fn a_write_is_committed_once_and_shows_in_the_balance_and_the_audit() {
    let server = Server::start(&[]);
    let first = server.issue_credit(5_000_000).ends(0);
    assert!(first.stdout.starts_with("committed, 2 operations, sequence 1, transaction 0"), "{first:?}");
    assert_eq!(server.issue_credit(5_000_000).ends(0).stdout, first.stdout);
    let balance = server.line("balance --account acme").ends(0);
    assert_eq!(balance.stdout, "ASSET  AVAILABLE  HELD\nusd    5,000,000  0\n");
    let json = server.line("balance --vault main --account acme --json").ends(0).json();
    assert_eq!(json, json!({"balances": [{"asset": "usd", "available": "5000000", "held": "0", "pending": "0"}]}));
    assert_eq!(server.line("balance --account revenue").ends(0).stdout, "revenue has no credit\n");
    let audit = server.line("audit").ends(0);
    assert!(audit.stdout.starts_with("main is balanced\nASSET  ISSUED     RETIRED  EXPIRED  LIVE\n"), "{audit:?}");
    let json = server.line("audit --vault main --json").ends(0).json();
    assert_eq!(json["balanced"], true);
}

#[test]
fn a_call_holds_credit_beside_a_limit_and_pays_what_it_cost() {
    let server = Server::start(&[]);
    server.issue_credit(5_000_000).ends(0);
    let put = server.line("limits put --key acme:usd --kind credit --account acme --asset usd --timeout 600");
    let said = "acme:usd is active: usd of acme in main, each held for at most 10 min, paid to revenue\n";
    assert_eq!(put.ends(0).stdout, said);
    server.line("limits put --key rpm --kind rolling --capacity 2 --window 60").ends(0);
    let list = server.line("limits list").ends(0);
    assert!(list.stdout.contains("acme:usd  credit   usd of acme in main  10 min"), "{list:?}");
    let get = server.line("limits get acme:usd --json").ends(0).json();
    assert_eq!(get["limit"]["definition"]["account"], "acme");
    assert_eq!(get["usage"]["available"], 5_000_000);

    let reserved = server.line("reserve --key rpm=1 --key acme:usd=2000000 --json").ends(0).json();
    let balance = server.line("balance --account acme").ends(0);
    assert_eq!(balance.stdout, "ASSET  AVAILABLE  HELD\nusd    3,000,000  2,000,000\n");
    let short = server.line("reserve --key rpm=1 --key acme:usd=3000001").ends(3);
    assert!(
        short.stdout.contains("because:    the account has too little credit (insufficient_credit:acme:usd)\n"),
        "{short:?}"
    );
    assert!(short.stdout.contains("limited by: acme:usd\ntry again:  in 10"), "{short:?}");
    let lease = reserved["lease_id"].as_str().unwrap();
    server.line(&format!("complete --lease {lease} --actual acme:usd=1500000")).ends(0);
    let balance = server.line("balance --account acme").ends(0);
    assert_eq!(balance.stdout, "ASSET  AVAILABLE  HELD\nusd    3,500,000  0\n");
    assert!(server.line("audit").ends(0).stdout.starts_with("main is balanced\n"));
}

#[test]
fn operations_come_from_a_file_as_well() {
    let server = Server::start(&[]);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("operations.json");
    std::fs::write(&file, format!("[{OPEN}, {ISSUE}]")).unwrap();
    let words = ["write", "--client", "b", "--sequence", "1", "--vault", "main", "--json", "--file"];
    let done = server.earmark(&[&words[..], &[file.to_str().unwrap()]].concat()).ends(0).json();
    assert_eq!(done["success"]["results"][0], json!({"account": "acme"}));
}

#[test]
fn a_refused_write_ends_with_1_and_says_why() {
    let server = Server::start(&[]);
    let words = ["write", "--client", "b", "--sequence", "2", "--vault", "main"];
    let gap = server.earmark(&words).ends(1);
    assert!(gap.stderr.contains("nothing was written (SEQUENCE_GAP): sequence: "), "{gap:?}");
    let json = server.earmark(&[&words[..], &["--json"]].concat()).ends(1).json();
    assert_eq!(json["error"]["last_committed_sequence"], 0);
    let field = server.earmark(&["write", "--client", "b", "--sequence", "1", "--op", "{\"mint\":{}}"]).ends(1);
    assert!(field.stderr.contains("operations[0].mint: found an unknown field"), "{field:?}");
    let elsewhere = server.line("write --client b --sequence 1 --namespace elsewhere").ends(1);
    assert!(elsewhere.stderr.contains("(INVALID): namespace: no namespace has this name"), "{elsewhere:?}");
    server.line("write --client b --sequence 1 --namespace default").ends(0);
    let missing = server.line("balance --account nobody").ends(1);
    assert!(missing.stderr.contains("404 not_found"), "{missing:?}");
    server.line("audit --vault nowhere").ends(1);
}

#[test]
fn a_wrong_write_is_refused_before_it_is_sent() {
    for (words, message) in [
        (vec!["--sequence", "1", "--op", "x"], "--op: \"x\" is not valid JSON"),
        (vec!["--sequence", "0"], "found \"0\", allowed are whole numbers from 1"),
        (vec!["--sequence", "1", "--file", "/no/such/file"], "--file: cannot read /no/such/file"),
    ] {
        let ran = run(&[&["write", "--client", "b"], &words[..]].concat()).ends(2);
        assert!(ran.stderr.contains(message), "{ran:?}");
    }
}

/// Every line of the CSV once ended with the letters `\r`, because the text was made safe for a terminal.
#[test]
fn a_statement_as_csv_has_the_exact_bytes_of_the_server_in_a_pipe() {
    let server = Server::start(&[]);
    server.issue_credit(5).ends(0);
    let csv = server.line("statement acme --format csv").ends(0).stdout;
    assert_eq!(csv, server.get("/v1/vaults/main/accounts/acme/statement?format=csv"));
    assert!(csv.ends_with("\r\nusd,,,0,5,0,0,0,0,0,0,5,0\r\n"), "{csv:?}");
    let text = server.line("statement acme").ends(0).stdout;
    assert!(text.contains("issued   +5  usd\n"), "{text}");
}

/// Bad input of grants, plans and idempotency keys, from the command line.
#[test]
fn wrong_grants_plans_and_keys_change_nothing_and_say_why() {
    let server = Server::start(&[]);
    server.issue_credit(5).ends(0);
    let write = |key: &str, operation: Value| {
        let operation = operation.to_string();
        server.earmark(&["write", "--vault", "main", "--idempotency-key", key, "--op", &operation])
    };
    let issue = |field: &str, value: Value| {
        let mut issue = json!({"account": "acme", "asset": "usd", "amount": "7"});
        issue[field] = value;
        json!({"issue": issue})
    };
    let plan = |amount: &str| {
        let plan = json!({"asset": "usd", "amount": amount, "period": "day"});
        json!({"set_plan": {"account": "acme", "plan": plan}})
    };
    write("evt_1", issue("memo", json!("paid"))).ends(0);
    for (key, operation, message) in [
        ("evt_2", issue("expires_at_unix_ms", json!(5)), "expires_at_unix_ms: not in the future"),
        ("evt_2", issue("priority", json!(256)), "priority: found 256, allowed are integers from 0 to 255"),
        ("evt_2", plan("0"), "plan.amount: found \"0\", allowed are integers from 1"),
        ("evt_1", issue("memo", json!("other")), "(KEY_REUSED)"),
    ] {
        let refused = write(key, operation).ends(1);
        assert!(refused.stderr.contains(message), "{refused:?}");
    }
    let bad = write("a b", plan("1")).ends(2);
    assert!(bad.stderr.contains("--idempotency-key"), "{bad:?}");
    // The refused writes left their key free, and the same key is another one in another scope.
    write("evt_2", issue("memo", json!(""))).ends(0);
    server.line("write --idempotency-key evt_1").ends(0);
    let balance = server.line("balance --account acme --json").ends(0).json();
    assert_eq!(balance["balances"][0]["available"], "19");
}
