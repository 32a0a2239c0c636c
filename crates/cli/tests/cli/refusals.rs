//! Refusals: messages and exit codes.

use std::io::{Read, Write};
use std::net::TcpListener;

use crate::support::{Ran, Server, command, run};

const LEASE: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAV";

#[test]
fn a_wrong_command_line_names_the_flag_what_was_found_and_what_is_allowed() {
    for (line, message) in [
        ("serve --data dir --in-memory", "'--data <DIR>' cannot be used with '--in-memory'"),
        ("serve --join 127.0.0.1:1 --node-id 2", "--peer-listen <ADDR>"),
        ("serve --bootstrap a,b", "--peer-listen <ADDR>"),
        ("serve --bootstrap a,,b --peer-listen 127.0.0.1:1", "found \"\", allowed is HOST:PORT"),
        ("serve --bootstrap a --join b --peer-listen 127.0.0.1:1", "cannot be used with"),
        ("serve --join a:x --peer-listen 127.0.0.1:1", "found \"a:x\", allowed is HOST:PORT"),
        ("serve --peer-advertise a_b! --peer-listen 127.0.0.1:1", "found \"a_b!\", allowed is HOST:PORT"),
        ("serve --peer-name a:0 --peer-listen 127.0.0.1:1", "--peer-advertise: found port 0"),
        ("serve --peer-listen 0.0.0.0:1", "Other addresses need certificates"),
        ("serve --peer-listen 127.0.0.1:0", "allowed are ports from 1"),
        ("serve --data no-such-folder --listen 0.0.0.0:0", "--bootstrap-key"),
        ("serve --hint-jitter-percent 101", "found \"101\", allowed are whole numbers from 0 to 100"),
        ("serve --in-memory --peer-advertise 127.0.0.1:1", "cannot be used with"),
        ("serve --in-memory --insecure-peers", "cannot be used with"),
        ("serve --in-memory --peer-cert a --peer-key b --peer-ca c", "cannot be used with"),
        ("serve --in-memory --role-claim a", "--issuer <URL>"),
        ("serve --in-memory --namespace-claim a", "--issuer <URL>"),
        ("serve --in-memory --listen localhost:1", "found \"localhost:1\", allowed is IP:PORT"),
        ("serve --in-memory --queue-max 0", "0 is not in 256..=16777216"),
        ("serve --in-memory --log-level loud", "found \"loud\", allowed are off, error, warn"),
        ("serve --in-memory --log-format xml", "[possible values: human, json]"),
        ("serve --in-memory --listen 0.0.0.0:0", "--bootstrap-key"),
        ("serve --in-memory --bootstrap-key --listen 0.0.0.0:0", "--insecure-plaintext"),
        ("serve --in-memory --issuer https://a", "--issuer-keys <FILE>"),
        ("serve --in-memory --tls-cert a", "--tls-key <FILE>"),
        ("key create --name a --role root", "[possible values: admin, writer, caller, reader, gateway, client]"),
        ("reserve", "--key <KEY=AMOUNT>"),
        ("reserve --key a=0", "amount: found \"0\", allowed are whole numbers from 1"),
        ("reserve --key a=1 --key a=2", "--key: found a twice"),
        ("reserve --key a=1 --lease x", "a ULID has 26 characters"),
        ("bench --http https://a:1", "measures without TLS"),
        ("reserve --key a=1 --server a:1", "allowed is http://HOST:PORT"),
        ("complete --actual a=1", "--lease <ULID>"),
        ("limits put --key a --kind rolling --capacity 1", "--window is required for a rolling limit"),
        ("limits put --file /no/such/file", "--file: cannot read /no/such/file"),
        ("limits put --key a --kind rolling --capacity 1 --window 1x", "such as 90, 60s or 1m"),
        ("key create --name a --role caller --label tenant", "found no =, allowed is NAME=VALUE"),
        ("key create --name a --role caller --label Tenant=a", "found the name \"Tenant\", allowed are 1 to 64 bytes"),
        ("key create --name a --role caller --label key=a", "found key, which the server sets"),
        ("key create --name a --role caller --label a=1 --label a=2", "--label: found a twice"),
        ("key create --name a --role caller --may-set a-b", "found the name \"a-b\""),
        ("serve --in-memory --attribute-claim tenant=org", "--issuer <URL>"),
        ("key create --name a --role reader --expires-in 1y", "found \"1y\", allowed are 1 s to 3,660 d"),
        ("limits get a!b", "limit key: found '!' at byte 1"),
        ("bench --seconds 0", "found \"0\", allowed are durations up to 1 h"),
        ("bench --limits 33", "33 is not in 1..=32"),
        ("bench --batch 257", "257 is not in 1..=256"),
        ("bench --in-process --http http://a:1", "cannot be used with"),
        ("write --client a", "--sequence <N>"),
        ("cluster add --node-id 2", "--address <ADDR>"),
        ("cluster remove --node-id 0", "0 is not in 1.."),
        ("cluster add --node-id 2 --address nowhere", "invalid value 'nowhere'"),
    ] {
        let ran = run(&line.split_whitespace().collect::<Vec<_>>()).ends(2);
        assert!(ran.stderr.contains(message), "{line}: {ran:?}");
    }
}

#[test]
fn the_environment_is_checked_like_the_flags() {
    let serve = command(&["serve", "--in-memory"]).env("RUST_LOG", "loud").output().unwrap();
    assert_eq!(serve.status.code(), Some(2));
    let mut list = command(&["limits", "list"]);
    let list = list.env("EARMARK_SERVER", "https://127.0.0.1:1").env("EARMARK_CA_FILE", "/no/such/file");
    let list = list.output().unwrap();
    let message = "EARMARK_CA_FILE: cannot read /no/such/file";
    assert!(Ran::of(list).ends(2).stderr.contains(message));
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty");
    std::fs::write(&empty, "").unwrap();
    for (variables, message) in [
        (&[("EARMARK_SERVER", "nonsense")][..], "found \"nonsense\", allowed is http://HOST:PORT"),
        (&[("EARMARK_KEY", "two words")], "EARMARK_KEY: found neither a key nor a session token"),
        (&[("EARMARK_KEY_FILE", "/no/such/file")], "EARMARK_KEY_FILE: cannot read /no/such/file"),
        (&[("EARMARK_KEY_FILE", empty.to_str().unwrap())], "EARMARK_KEY_FILE: found neither a key nor"),
        (&[("EARMARK_CERT_FILE", "/no/such/file")], "EARMARK_CERT_FILE and EARMARK_CERT_KEY_FILE: found one"),
        (
            &[
                ("EARMARK_SERVER", "https://127.0.0.1:1"),
                ("EARMARK_CERT_FILE", "/no/such/file"),
                ("EARMARK_CERT_KEY_FILE", "/no/such/file"),
            ],
            "EARMARK_CERT_FILE, EARMARK_CERT_KEY_FILE: cannot read a private key from /no/such/file",
        ),
    ] {
        let list = Ran::of(command(&["limits", "list"]).envs(variables.iter().copied()).output().unwrap()).ends(2);
        assert!(list.stderr.contains(message), "{variables:?}: {list:?}");
    }
    let serve = ["serve", "--in-memory", "--listen", "127.0.0.1:0"];
    for (variable, value, message) in [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector", "--otlp-endpoint: found \"collector\"; allowed are URLs"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "[possible values: grpc, http/protobuf]"),
        ("OTEL_TRACES_SAMPLER_ARG", "1.5", "found \"1.5\", allowed are numbers from 0 to 1"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "token", "OTEL_EXPORTER_OTLP_HEADERS: found an entry without ="),
    ] {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1");
        let refused = Ran::of(command(&serve).envs([endpoint, (variable, value)]).output().unwrap()).ends(2);
        assert!(refused.stderr.contains(message), "{variable}: {refused:?}");
    }
}

#[test]
fn a_server_that_is_not_there_is_named_with_how_to_start_one() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}");
    for line in ["limits list", "reserve --key a=1", &format!("complete --lease {LEASE}"), "bench"] {
        let flag = if line == "bench" { "--http" } else { "--server" };
        let words: Vec<&str> = line.split_whitespace().chain([flag, &url, "--json"]).collect();
        let ran = run(&words).ends(1);
        let start = format!("earmark serve --listen 127.0.0.1:{port}");
        assert!(ran.stderr.contains(&format!("cannot reach {url}: ")), "{ran:?}");
        assert!(ran.stderr.contains(&start), "{ran:?}");
        assert_eq!(ran.json()["error"], "unreachable");
    }
}

#[test]
fn a_refusal_of_the_server_is_a_failure_with_its_message() {
    let server = Server::start(&[]);
    let unknown = server.line("reserve --key nowhere=1").ends(1);
    assert!(unknown.stderr.contains("unknown_limit_key:nowhere"), "{unknown:?}");
    let json = server.line("reserve --key nowhere=1 --json").ends(1).json();
    assert_eq!(json["error"], "unknown_limit_key:nowhere");
    assert_eq!(json["lease_id"].as_str().unwrap().len(), 26);

    let old = server.line(&format!("reserve --key a=1 --lease {LEASE}")).ends(1);
    assert!(old.stderr.contains("lease_id: it was made at 2016-07-30T23:54:10Z ("), "{old:?}");
    // It once ended with 0, so scripts took it for a success.
    let unsettled = server.line(&format!("complete --lease {LEASE}")).ends(4);
    assert!(unsettled.stderr.contains("nothing was settled, lease "), "{unsettled:?}");
    assert_eq!(server.line(&format!("complete --lease {LEASE} --json")).ends(4).json()["reconciled"], false);

    let missing = server.line("limits get nowhere --json").ends(1);
    assert_eq!(missing.json()["error"], "not_found");
    server.line("limits delete nowhere").ends(1);
    server.line("limits put --key a --kind rolling --capacity 1 --window 1").ends(0);
    let other_kind = server.line("limits put --key a --kind concurrency --capacity 1 --timeout 1").ends(1);
    assert!(other_kind.stderr.contains("an existing limit keeps its kind"), "{other_kind:?}");
}

/// The URL of a fake server that sends `text` to every request.
fn answer(text: &str) -> String {
    let text = text.to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        _ = stream.read(&mut [0; 4_096]);
        _ = stream.write_all(text.as_bytes());
    });
    url
}

/// A node without a majority answers `UNAVAILABLE`, and the write may still be committed. `earmark write` once printed
/// "nothing was written", so a user would have used the sequence number for another write.
#[test]
fn a_write_with_an_unknown_outcome_is_reported_as_unknown() {
    let body = r#"{"error":{"code":"UNAVAILABLE","message":"nobody leads now"}}"#;
    let text = format!("HTTP/1.1 503 Service Unavailable\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    for json in [&[][..], &["--json"]] {
        let words = ["write", "--client", "a", "--sequence", "1", "--server", &answer(&text)];
        let ran = run(&[&words, json].concat()).ends(1);
        assert!(!ran.stderr.contains("nothing was written"), "{ran:?}");
        assert!(ran.stderr.contains("the outcome is unknown; run the same command again"), "{ran:?}");
        assert!(ran.stderr.contains("(UNAVAILABLE): nobody leads now"), "{ran:?}");
        assert_eq!(ran.stdout.contains("UNAVAILABLE"), !json.is_empty(), "{ran:?}");
    }
}

#[test]
fn an_answer_of_another_server_is_an_error_that_names_the_lease() {
    for (text, message) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", "unexpected answer from"),
        ("HTTP/1.1 502 Bad Gateway\r\ncontent-length: 5\r\n\r\nhello", "status 502: hello"),
        ("", "no answer from"),
        // The TLS alert that a TLS server sends to a plaintext client.
        ("\u{15}\u{3}\u{3}\0\u{2}\u{2}F", "a server with TLS needs a URL with https://"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nhello", "no answer from"),
    ] {
        let ran = run(&["reserve", "--key", "a=1", "--json", "--server", &answer(text)]).ends(1);
        assert!(ran.stderr.contains(message), "{text}: {ran:?}");
        let lease = ran.json()["lease_id"].as_str().unwrap().to_owned();
        assert!(
            ran.stderr.contains(&format!("the outcome is unknown, repeat the command with --lease {lease}")),
            "{ran:?}"
        );
    }
}
