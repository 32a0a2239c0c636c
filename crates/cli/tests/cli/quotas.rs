//! Quotas of a tenant over HTTP, wherever its credit is kept.

use serde_json::Value;

use crate::support::{Ran, Server};

/// Two tenants with a vault each.
struct Tenants<'a>(&'a Server);

impl Tenants<'_> {
    fn write(&self, namespace: &str, id: &str, operation: &str) -> Ran {
        let words = format!("write --namespace {namespace} --vault x {id}");
        self.0.earmark(&words.split(' ').chain(["--op", operation]).collect::<Vec<_>>())
    }

    fn opens(&self, namespace: &str, id: &str, account: &str) -> Ran {
        self.write(namespace, id, &format!(r#"{{"open_account":{{"account":"{account}","overdraft":"deny"}}}}"#))
    }

    fn used(&self, namespace: &str, kind: &str) -> (u64, u64) {
        let answer: Value = self.0.line(&format!("quota get {namespace} --json")).ends(0).json();
        let usage = &answer["quotas"][kind];
        (usage["used"].as_u64().unwrap(), usage["quota"].as_u64().unwrap())
    }
}

/// One tenant uses up each of its quotas, and is refused by name; another one goes on.
fn a_tenant_fills_its_share_only(server: &Server) {
    let tenants = Tenants(server);
    for namespace in ["greedy", "honest"] {
        let open = r#"{"open_vault":{"vault":"x"}}"#;
        let words = ["write", "--namespace", namespace, "--client", "root", "--sequence", "1", "--op", open];
        server.earmark(&words).ends(0);
    }
    let quotas = "--quota accounts=3 --quota clients=3 --quota idempotency_keys=1";
    server.line(&format!("quota set greedy {quotas}")).ends(0);
    // `revenue` is an account of the vault, and `root` a client of the namespace.
    tenants.opens("greedy", "--client a --sequence 1", "p").ends(0);
    tenants.opens("greedy", "--idempotency-key evt_1", "q").ends(0);
    let issue = r#"{"issue":{"account":"p","asset":"usd","amount":"1"}}"#;
    tenants.write("greedy", "--client b --sequence 1", issue).ends(0);
    let beyond_accounts = tenants.opens("greedy", "--client a --sequence 2", "r").ends(1);
    assert!(beyond_accounts.stderr.contains("(QUOTA_EXCEEDED)"), "{beyond_accounts:?}");
    assert!(beyond_accounts.stderr.contains("quota_exceeded:accounts"), "{beyond_accounts:?}");
    let beyond_clients = tenants.write("greedy", "--client c --sequence 1", issue).ends(1);
    assert!(beyond_clients.stderr.contains("(TOO_MANY_CLIENTS)"), "{beyond_clients:?}");
    let beyond_keys = tenants.write("greedy", "--idempotency-key evt_2", issue).ends(1);
    assert!(beyond_keys.stderr.contains("(TOO_MANY_KEYS)"), "{beyond_keys:?}");
    let metrics = server.get("/metrics");
    for (kind, quota) in [("accounts", 3), ("clients", 3), ("idempotency_keys", 1)] {
        assert_eq!(tenants.used("greedy", kind), (quota, quota), "{kind}");
        let gauge = format!("earmark_quota_used{{namespace=\"greedy\",kind=\"{kind}\"}} {quota}\n");
        assert!(metrics.contains(&gauge), "{metrics}");
    }
    // Its existing accounts, clients and keys still work. The other namespace has its whole quota.
    tenants.opens("greedy", "--idempotency-key evt_1", "q").ends(0);
    tenants.write("greedy", "--client a --sequence 2", issue).ends(0);
    for number in 0..5 {
        tenants.opens("honest", &format!("--client c-{number} --sequence 1"), &format!("a-{number}")).ends(0);
        tenants.opens("honest", &format!("--idempotency-key evt_{number}"), &format!("b-{number}")).ends(0);
    }
    assert_eq!([tenants.used("honest", "accounts").0, tenants.used("honest", "clients").0], [11, 6]);
}

/// Regression: one writer filled a database with accounts, clients and keys, which nobody counted.
#[test]
fn a_tenant_fills_its_share_only_in_a_book_and_in_a_database() {
    a_tenant_fills_its_share_only(&Server::start(&[]));
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("credit.db").display());
    let server = Server::start(&["--credits", &url]);
    a_tenant_fills_its_share_only(&server);
    let issue = r#"{"issue":{"account":"p","asset":"usd","amount":"1"}}"#;
    server.kill();
    // The counters are in the database; a Book in memory has forgotten the quotas.
    let server = Server::start(&["--credits", &url]);
    let open = r#"{"open_vault":{"vault":"x"}}"#;
    server.earmark(&["write", "--namespace", "greedy", "--client", "root", "--sequence", "1", "--op", open]).ends(0);
    server.line("quota set greedy --quota accounts=3 --quota clients=3 --quota idempotency_keys=1").ends(0);
    let tenants = Tenants(&server);
    assert!(tenants.write("greedy", "--idempotency-key evt_2", issue).ends(1).stderr.contains("(TOO_MANY_KEYS)"));
    tenants.opens("greedy", "--client a --sequence 3", "r").ends(1);
}
