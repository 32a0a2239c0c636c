//! `/console`: the files of the console.

use std::net::{Ipv4Addr, SocketAddr};

use crate::support::{Answer, KeyedServer, TestServer, Wire};

fn has(answer: &Answer, header: &str, value: &str) -> bool {
    answer.header(header).is_some_and(|found| found.contains(value))
}

#[tokio::test]
async fn the_page_and_its_modules_are_served_without_credentials_under_a_strict_policy() {
    let keyed = KeyedServer::open().await;
    for (path, kind) in [
        ("/console", "text/html"),
        ("/console/", "text/html"),
        ("/console/app.js", "text/javascript"),
        ("/console/style.css", "text/css"),
    ] {
        let answer = keyed.ask(None, "GET", path, "").await;
        assert_eq!(answer.status, 200, "{path}");
        assert!(has(&answer, "content-type", kind), "{answer:?}");
        let policy = answer.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        assert!(policy.ends_with("require-trusted-types-for 'script'; trusted-types 'none'"), "{policy}");
        assert!(has(&answer, "x-content-type-options", "nosniff"));
    }
    let info = keyed.ask(None, "GET", "/console/server.json", "").await.json();
    assert_eq!(info, serde_json::json!({"needs_key": true, "has_cluster": false}));
    keyed.ask(None, "GET", "/console/none.js", "").await.problem(404, "not_found");
    keyed.ask(None, "POST", "/console", "").await.problem(405, "method_not_allowed");
}

#[tokio::test]
async fn beyond_loopback_the_console_is_off_unless_it_is_asked_for() {
    for (is_asked_for, status) in [(false, 404), (true, 200)] {
        let keyed = KeyedServer::with(|options| {
            options.listen = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
            options.is_plaintext_allowed = true;
            options.console = is_asked_for;
        })
        .await;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, keyed.server.address.port()));
        assert_eq!(Wire::to(address).await.ask("GET", "/console", "").await.status, status);
    }
}

#[tokio::test]
async fn requests_for_the_console_are_counted_apart() {
    let server = TestServer::open().await;
    server.ask("GET", "/console", "").await;
    let counted = "earmark_http_requests_total{route=\"console\",status=\"200\"}";
    assert_eq!(server.metric(counted).await, 1.0);
}
