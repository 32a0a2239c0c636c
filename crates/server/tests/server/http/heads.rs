//! Request heads that two readers could understand differently, sent as raw bytes.

use earmark_core::Role;

use crate::support::{KeyedServer, TestServer, Wire};

const TWICE: &str = "content-length: found it with transfer-encoding, allowed is one of them";
const CHUNKED: &str = "2\r\n{}\r\n0\r\n\r\n";

/// `[::1].evil.example` and `localhost:evil.example` passed as loopback, so that a page behind DNS rebinding could call
/// an open server.
#[tokio::test]
async fn only_loopback_hosts_call_an_open_server() {
    let server = TestServer::open().await;
    let status = async |lines: &str| {
        let mut wire = Wire::to(server.address).await;
        wire.send(&format!("GET /v1/admin/limits HTTP/1.1\r\n{lines}\r\n")).await;
        wire.answer().await.status
    };
    for good in ["host: localhost\r\n", "host: [::1]:7878\r\n", "host: 127.0.0.1:1\r\norigin: http://127.0.0.1:1\r\n"] {
        assert_eq!(status(good).await, 200, "{good}");
    }
    for host in ["[::1].evil.example", "[::1]:80.evil.example", "localhost:evil.example", "127.0.0.1:1@evil.example"] {
        assert_eq!(status(&format!("host: {host}\r\n")).await, 403, "{host}");
    }
    for lines in [
        "host: localhost\r\nhost: localhost\r\n",
        "host: localhost\r\nhost: evil.example\r\n",
        "host: evil.example\r\nhost: localhost\r\n",
        "host: localhost\r\norigin: http://localhost\r\norigin: http://evil.example\r\n",
    ] {
        assert_eq!(status(lines).await, 403, "{lines}");
    }
}

#[tokio::test]
async fn a_host_or_origin_twice_is_refused_with_credentials_too() {
    let keyed = KeyedServer::open().await;
    let key = keyed.key(Role::Reader, "default").await;
    for (name, headers) in [("host", "host: b\r\n"), ("origin", "origin: http://a\r\norigin: http://a\r\n")] {
        for path in ["/v1/admin/limits", "/healthz", "/nowhere"] {
            let headers = format!("authorization: Bearer {key}\r\n{headers}");
            let answer = keyed.ask_with(&headers, "GET", path, "").await;
            assert_eq!(answer.problem(400, "invalid_request"), format!("{name}: given twice; give it once"), "{path}");
        }
    }
}

/// A proxy that goes by one header and a server that goes by the other see different requests.
#[tokio::test]
async fn a_body_with_two_lengths_is_refused_and_the_connection_closed() {
    let server = TestServer::open().await;
    let (length, encoding) = ("content-length: 12\r\n", "Transfer-Encoding: chunked\r\n");
    let head = "POST /v1/reserve HTTP/1.1\r\nhost: localhost\r\n";
    for both in [[length, encoding], [encoding, length]] {
        let mut wire = Wire::to(server.address).await;
        wire.send(&format!("{head}{}\r\n{CHUNKED}", both.concat())).await;
        assert_eq!(wire.answer().await.problem(400, "invalid_request"), TWICE);
        assert!(wire.is_closed().await);
        // Behind another request on the same connection.
        let mut wire = Wire::to(server.address).await;
        wire.send("GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        assert_eq!(wire.answer().await.status, 200);
        wire.send(&format!("{head}{}\r\n{CHUNKED}", both.concat())).await;
        assert_eq!(wire.answer().await.problem(400, "invalid_request"), TWICE);
    }
    // One of them is fine, one after the other on the same connection.
    let mut wire = Wire::to(server.address).await;
    for _ in 0..2 {
        for (framing, body) in [(encoding, CHUNKED), ("content-length: 2\r\n", "{}")] {
            wire.send(&format!("{head}{framing}\r\n{body}")).await;
            assert_eq!(wire.answer().await.problem(400, "invalid_request"), "lease_id is required");
        }
    }
    // hyper itself refuses two different lengths, and an encoding other than chunked.
    for framing in ["content-length: 2\r\ncontent-length: 3\r\n", "transfer-encoding: gzip\r\n"] {
        let mut wire = Wire::to(server.address).await;
        wire.send(&format!("{head}{framing}\r\n{{}}")).await;
        assert_eq!(wire.answer().await.status, 400, "{framing}");
    }
}
