//! The quick start of README.md, by the command line.

use serde_json::json;

use crate::support::{Ran, Server};

const CALL: &str = "reserve --key gpt-4o:rpm=1 --key gpt-4o:tpm=6000 --key gpt-4o:concurrency=1 --key acme:tpd=6000";

/// A server with request, token and concurrency limits of a model, and a daily token limit of a tenant.
fn server() -> Server {
    let server = Server::start(&[]);
    for line in [
        "--key gpt-4o:rpm --kind rolling --capacity 60 --window 60 --unit requests",
        "--key gpt-4o:tpm --kind rolling --capacity 10k --window 1m --unit tokens",
        "--key gpt-4o:concurrency --kind concurrency --capacity 5 --timeout 10m",
        "--key acme:tpd --kind rolling --capacity 50k --window 1d --unit tokens --overage deny",
    ] {
        server.line(&format!("limits put {line}")).ends(0);
    }
    server
}

fn lease(ran: &Ran) -> String {
    let first = ran.stdout.lines().next().unwrap();
    first.split("lease ").nth(1).unwrap().to_owned()
}

#[test]
fn limits_are_put_reserved_at_once_denied_completed_and_free_again() {
    let server = server();
    let put = server.line("limits put --key gpt-4o:rpm --kind rolling --capacity 60 --window 60 --unit requests");
    assert_eq!(put.stdout, "gpt-4o:rpm is active: 60 requests in any 1 min\n");

    let allowed = server.line(CALL).ends(0);
    assert!(allowed.stdout.starts_with("allowed, lease 0"), "{allowed:?}");
    assert!(allowed.stdout.contains("earmark complete --lease 0"), "{allowed:?}");

    let denied = server.line(CALL).ends(3);
    assert!(denied.stdout.starts_with("denied, lease 0"), "{denied:?}");
    assert!(denied.stdout.contains("limited by: gpt-4o:tpm\n"), "{denied:?}");
    assert!(denied.stdout.contains("try again:  in "), "{denied:?}");

    let usage = |key: &str| server.earmark(&["limits", "get", key, "--json"]).ends(0).json()["usage"].clone();
    assert_eq!(usage("gpt-4o:tpm")["available"], 4_000);
    let lease = lease(&allowed);
    let words = "--actual gpt-4o:tpm=1200 --actual acme:tpd=1200";
    let completed = server.line(&format!("complete --lease {lease} {words}")).ends(0);
    assert_eq!(completed.stdout, format!("completed, lease {lease}\n"));
    assert_eq!(usage("gpt-4o:tpm")["available"], 8_800);
    assert_eq!(usage("gpt-4o:concurrency")["available"], 5);
    // The denied reserve took nothing.
    assert_eq!(usage("gpt-4o:rpm")["reserved"], 1);
    server.line(CALL).ends(0);

    let spent = server.line(&format!("{CALL} --lease {lease}")).ends(3);
    assert!(spent.stdout.contains("(lease_expired)"), "{spent:?}");
    let again = server.line(&format!("complete --lease {lease} {words}")).ends(0);
    assert!(again.stdout.starts_with("completed, lease "), "{again:?}");
}

#[test]
fn a_reserve_is_repeated_with_its_lease_and_refused_with_other_requirements() {
    let server = server();
    let first = server.line(&format!("{CALL} --job nightly --json")).ends(0).json();
    let lease = first["lease_id"].as_str().unwrap();
    let second = server.line(&format!("{CALL} --lease {lease} --json")).ends(0).json();
    assert_eq!(first, second);
    let other = server.line(&format!("reserve --key gpt-4o:rpm=2 --lease {lease}")).ends(1);
    assert!(other.stderr.contains("(invalid_request): lease_id: this lease was used for other"), "{other:?}");
    assert_eq!(other.stdout, "");
}

#[test]
fn an_amount_above_the_capacity_never_fits() {
    let server = server();
    let never = server.line("reserve --key gpt-4o:tpm=10001").ends(3);
    assert!(never.stdout.contains("never with this amount; it exceeds the capacity"), "{never:?}");
    let json = server.line("reserve --key gpt-4o:tpm=10001 --json").ends(3).json();
    assert_eq!((&json["allowed"], &json["never"]), (&json!(false), &json!(true)));
    assert_eq!(json["limited_by"], json!(["gpt-4o:tpm"]));
}

#[test]
fn every_command_prints_one_json_object() {
    let server = server();
    let json = |line: &str| server.line(&format!("{line} --json")).ends(0).json();
    assert_eq!(
        json("limits put --key x --kind rolling --capacity 1 --window 1"),
        json!({"ok": true, "status": "active"})
    );
    assert_eq!(
        json("limits get x"),
        json!({
            "limit": {
                "definition": {"key": "x", "kind": "rolling", "capacity": 1, "window_seconds": 1, "unit": "",
                    "description": "", "overage": "debt"},
                "status": "active", "pending_decrease_to": null, "revision": 5,
            },
            "usage": {"capacity": 1, "reserved": 0, "available": 1, "debt": 0, "status": "active",
                "pending_decrease_to": null},
        })
    );
    let limits = json("limits list");
    let keys: Vec<_> = limits["limits"].as_array().unwrap().iter().map(|limit| &limit["definition"]["key"]).collect();
    assert_eq!(keys, ["acme:tpd", "gpt-4o:concurrency", "gpt-4o:rpm", "gpt-4o:tpm", "x"]);
    assert_eq!(json("limits delete x"), json!({"ok": true, "status": "deleted"}));

    let reserved = json("reserve --key gpt-4o:tpm=1");
    assert_eq!((&reserved["allowed"], &reserved["error"]), (&json!(true), &json!("")));
    assert!(reserved["reserved_at_unix_ms"].as_u64().unwrap() > 1_700_000_000_000, "{reserved}");
    let lease = reserved["lease_id"].as_str().unwrap();
    assert_eq!(
        json(&format!("complete --lease {lease} --actual gpt-4o:tpm=1")),
        json!({"lease_id": lease, "ok": true, "error": "", "reconciled": true})
    );
}

#[test]
fn limits_are_listed_in_a_table_and_deleted_once_nothing_is_held() {
    let server = server();
    let list = server.line("limits list").ends(0);
    assert_eq!(
        list.stdout,
        "KEY                 KIND         CAPACITY       HELD FOR  OVERAGE  STATUS\n\
         acme:tpd            rolling      50,000 tokens  1 d       deny     active\n\
         gpt-4o:concurrency  concurrency  5              10 min    debt     active\n\
         gpt-4o:rpm          rolling      60 requests    1 min     debt     active\n\
         gpt-4o:tpm          rolling      10,000 tokens  1 min     debt     active\n"
    );
    let reserved = server.line("reserve --key gpt-4o:concurrency=2").ends(0);
    let get = server.line("limits get gpt-4o:concurrency").ends(0);
    assert!(get.stdout.contains("reserved:   2\navailable:  3\n"), "{get:?}");

    let deleting = server.line("limits delete gpt-4o:concurrency").ends(0);
    assert!(deleting.stdout.contains("deleted once its open reservations have ended"), "{deleting:?}");
    let refused = server.line("reserve --key gpt-4o:concurrency=1").ends(3);
    assert!(refused.stdout.contains("(limit_decreasing:gpt-4o:concurrency)"), "{refused:?}");
    server.line(&format!("complete --lease {}", lease(&reserved))).ends(0);
    let gone = server.line("limits get gpt-4o:concurrency").ends(1);
    assert!(gone.stderr.contains("404 not_found"), "{gone:?}");
}
