//! Cluster administration over HTTP.

use earmark_admission::ClusterError;
use serde_json::{Value, json};

use crate::support::{Nodes, TestServer};

const MEMBERS: &str = "/v1/admin/cluster/members";
const BACKUP: &str = "/v1/admin/cluster/backup";
const EXPORT: &str = "/v1/admin/audit/export";
const SECOND: &str = r#"{"node_id":2,"address":"127.0.0.1:7102"}"#;

#[tokio::test]
async fn a_status_says_who_leads_who_votes_and_who_is_behind() {
    let server = TestServer::with_nodes(Nodes(Ok(()))).await;
    let member = |node: u64, role: &str, lag: Value| json!({"node_id": node, "address": format!("127.0.0.1:710{node}"), "role": role, "lag": lag});
    assert_eq!(
        server.ok("GET", "/v1/admin/cluster", &Value::Null).await,
        json!({
            "cluster_id": "000000000000000000000000000000ab", "node_id": 1, "leader_id": 1, "term": 3,
            "last_log_index": 9, "applied_index": 8, "snapshot_index": null, "quorum_ack_ms": null,
            "members": [member(1, "leader", 0.into()), member(2, "voter", 4.into()), member(3, "learner", Value::Null)],
            "settings": {
                "retention_ms": 900_000, "leases_max": 1 << 26, "limits_max": 10_000_000, "hint_concurrency_base_ms": 50,
                "hint_concurrency_max_ms": 2_000, "hint_rolling_base_ms": 100, "hint_rolling_window_part": 10,
                "hint_rolling_max_ms": 5_000, "hint_jitter_percent": 20, "hint_decreasing_ms": 10_000,
            },
        })
    );
}

#[tokio::test]
async fn how_far_others_are_behind_is_among_the_metrics() {
    let server = TestServer::with_nodes(Nodes(Ok(()))).await;
    let text = server.ask("GET", "/metrics", "").await.text;
    let lags: Vec<&str> = text.lines().filter(|line| line.starts_with("earmark_node_peer_lag")).collect();
    assert_eq!(lags, ["earmark_node_peer_lag{peer=\"2\"} 4"]);
    assert!(text.contains("# TYPE earmark_node_peer_lag gauge\n"), "{text}");
}

#[tokio::test]
async fn members_come_and_go_or_the_answer_says_why_not() {
    let server = TestServer::with_nodes(Nodes(Ok(()))).await;
    assert_eq!(server.ask("POST", MEMBERS, SECOND).await.json(), json!({"ok": true}));
    assert_eq!(server.ask("DELETE", &format!("{MEMBERS}/2"), "").await.json(), json!({"ok": true}));
    let never = TestServer::with_nodes(Nodes(Err(ClusterError::Refused("used before".into())))).await;
    assert_eq!(never.ask("POST", MEMBERS, SECOND).await.problem(409, "conflict"), "used before");
    let later = TestServer::with_nodes(Nodes(Err(ClusterError::Unavailable("catching up".into())))).await;
    let message = later.ask("DELETE", &format!("{MEMBERS}/2"), "").await.problem(503, "unavailable");
    assert_eq!(message, "catching up; retry");
}

#[tokio::test]
async fn a_backup_is_made_under_a_name_or_the_time_or_the_answer_says_why_not() {
    let server = TestServer::with_nodes(Nodes(Ok(()))).await;
    for (body, name) in [(r#"{"name":"before-2.0"}"#, "before-2.0"), ("{}", "19700101T000000Z")] {
        assert_eq!(
            server.ask("POST", BACKUP, body).await.json(),
            json!({
                "name": name, "path": format!("data/backups/{name}"), "bytes": 7, "last_log_index": 8,
                "journal_records": 5, "cluster_id": "000000000000000000000000000000cd",
            })
        );
    }
    for name in ["", "..", "a/b", "-a", &"a".repeat(65)] {
        let body = json!({"name": name}).to_string();
        let message = server.ask("POST", BACKUP, &body).await.problem(400, "invalid_request");
        assert!(message.starts_with("name: found "), "{message}");
    }
    let message = server.ask("POST", BACKUP, r#"{"names":"a"}"#).await.problem(400, "invalid_request");
    assert!(message.starts_with("names: "), "{message}");
    let never = TestServer::with_nodes(Nodes(Err(ClusterError::Refused("it is there".into())))).await;
    assert_eq!(never.ask("POST", BACKUP, "{}").await.problem(409, "conflict"), "it is there");
    let later = TestServer::with_nodes(Nodes(Err(ClusterError::Unavailable("no leader".into())))).await;
    assert_eq!(later.ask("POST", BACKUP, "{}").await.problem(503, "unavailable"), "no leader; retry");
}

#[tokio::test]
async fn a_backup_and_an_export_are_streamed_or_the_answer_says_why_not() {
    for (path, content_type) in [(BACKUP, "application/x-tar"), (EXPORT, "application/octet-stream")] {
        is_streamed(path, content_type).await;
    }
    let server = TestServer::open().await;
    let message = server.ask("GET", EXPORT, "").await.problem(404, "not_found");
    assert_eq!(message, "this server runs in memory and keeps no journal; start it with --data");
}

async fn is_streamed(path: &str, content_type: &str) {
    let server = TestServer::with_nodes(Nodes(Ok(()))).await;
    let answer = server.ask("GET", path, "").await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some(content_type)));
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert_eq!(answer.text, "pieces, the end");
    let never = TestServer::with_nodes(Nodes(Err(ClusterError::Refused("no folder".into())))).await;
    assert_eq!(never.ask("GET", path, "").await.problem(409, "conflict"), "no folder");
    let later = TestServer::with_nodes(Nodes(Err(ClusterError::Unavailable("no leader".into())))).await;
    assert_eq!(later.ask("GET", path, "").await.problem(503, "unavailable"), "no leader; retry");
}

#[tokio::test]
async fn an_invitation_is_for_one_node_and_one_hour_unless_said_otherwise() {
    const INVITATIONS: &str = "/v1/admin/cluster/invitations";
    let server = TestServer::with_nodes(Nodes(Ok(()))).await;
    for (body, made) in [
        (json!({}), "1_Some(3600)"),
        (json!({"uses": 3}), "3_Some(3600)"),
        (json!({"expires_seconds": 60}), "1_Some(60)"),
        (json!({"uses": 64, "expires_seconds": 0}), "64_None"),
    ] {
        let answer = server.ask("POST", INVITATIONS, &body.to_string()).await.json();
        assert!(answer["invitation"].as_str().is_some_and(|text| text.ends_with(made)), "{body}: {answer}");
    }
    for (body, wrong) in [
        (json!({"uses": 0}), "uses: found 0, allowed are integers from 1 to 64"),
        (json!({"uses": 65}), "uses: found 65, allowed are integers from 1 to 64"),
        (json!({"expires_seconds": 31_622_401}), "expires_seconds: found 31622401, allowed are integers from 0"),
        (json!({"node_id": 4}), "node_id: "),
    ] {
        let message = server.ask("POST", INVITATIONS, &body.to_string()).await.problem(400, "invalid_request");
        assert!(message.starts_with(wrong), "{body}: {message}");
    }
    let later = TestServer::with_nodes(Nodes(Err(ClusterError::Unavailable("no leader".into())))).await;
    assert_eq!(later.ask("POST", INVITATIONS, "{}").await.problem(503, "unavailable"), "no leader; retry");
    let memory = TestServer::open().await;
    assert_eq!(memory.ask("POST", INVITATIONS, "{}").await.status, 404);
}

#[tokio::test]
async fn invitations_are_listed_without_their_secret_and_revoked_by_id() {
    const INVITATIONS: &str = "/v1/admin/cluster/invitations";
    let server = TestServer::with_nodes(Nodes(Ok(()))).await;
    let listed = server.ask("GET", INVITATIONS, "").await.json();
    let one = json!({"id": "0123456789abcdef", "uses_left": 1, "expires_at_unix_ms": 7, "invited_by": "user:ann",
        "nodes": [4]});
    assert_eq!(listed["invitations"][0], one);
    assert_eq!(listed["invitations"][1]["expires_at_unix_ms"], Value::Null);
    let revoked = server.ask("DELETE", &format!("{INVITATIONS}/0123456789abcdef"), "").await;
    assert_eq!(revoked.json(), json!({"ok": true}));
    for id in ["x", "0123456789abcdeg", "+123456789abcdef", "0123456789abcdef0"] {
        let message = server.ask("DELETE", &format!("{INVITATIONS}/{id}"), "").await.problem(400, "invalid_request");
        assert!(message.starts_with("invitation_id: found "), "{message}");
    }
    let none = TestServer::with_nodes(Nodes(Err(ClusterError::Refused("no invitation has the id".into())))).await;
    none.ask("DELETE", &format!("{INVITATIONS}/0123456789abcdef"), "").await.problem(409, "conflict");
}

#[tokio::test]
async fn the_public_keys_of_nodes_are_listed() {
    const KEYS: &str = "/v1/admin/audit/keys";
    let server = TestServer::with_nodes(Nodes(Ok(()))).await;
    let listed = server.ask("GET", KEYS, "").await.json();
    let key = |node_id: u64, is_member: bool| {
        json!({"public_key": "5a".repeat(32), "cluster_id": format!("{:032x}", 0xab), "node_id": node_id,
            "published_at_unix_ms": 7, "is_member": is_member})
    };
    assert_eq!(listed, json!({"keys": [key(1, true), key(5, false)]}));
    let later = TestServer::with_nodes(Nodes(Err(ClusterError::Unavailable("no leader".into())))).await;
    assert_eq!(later.ask("GET", KEYS, "").await.problem(503, "unavailable"), "no leader; retry");
    assert_eq!(TestServer::open().await.ask("GET", KEYS, "").await.status, 404);
}

#[tokio::test]
async fn what_is_no_node_is_refused_with_what_is_allowed() {
    let server = TestServer::with_nodes(Nodes(Ok(()))).await;
    for (body, wrong) in [
        (json!({"node_id": 0, "address": "a:1"}), "node_id: found 0, allowed are integers from 1"),
        (json!({"node_id": "2", "address": "a:1"}), "node_id: found "),
        (json!({"node_id": 2}), "address is required"),
        (json!({"node_id": 2, "address": "a".repeat(257)}), "address: "),
        (json!({"node_id": 2, "address": "a:1", "role": "leader"}), "role: "),
    ] {
        let message = server.ask("POST", MEMBERS, &body.to_string()).await.problem(400, "invalid_request");
        assert!(message.starts_with(wrong), "{body}: {message}");
    }
    for id in ["0", "x", "-1", "18446744073709551616"] {
        let message = server.ask("DELETE", &format!("{MEMBERS}/{id}"), "").await.problem(400, "invalid_request");
        assert!(message.starts_with("node_id: found "), "{message}");
    }
}

#[tokio::test]
async fn a_server_without_nodes_says_so() {
    let server = TestServer::open().await;
    for (method, path, body) in [
        ("GET", "/v1/admin/cluster", ""),
        ("POST", MEMBERS, SECOND),
        ("DELETE", "/v1/admin/cluster/members/2", ""),
        ("POST", BACKUP, "{}"),
    ] {
        let message = server.ask(method, path, body).await.problem(404, "not_found");
        assert_eq!(message, "this server runs in memory and has no cluster");
    }
}
