//! The log lines of requests. nextest runs each test in its own process, so each has its own log.

use std::io;
use std::sync::{Arc, Mutex, OnceLock};

use earmark_admission::{BackendError, ManualClock};
use serde_json::Value;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::support::{Broken, KeyedServer, Nodes, START_MS, TestServer, Wire, reserve, session};

/// The JSON log lines.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Lines;

    fn make_writer(&'a self) -> Lines {
        self.clone()
    }
}

static LINES: OnceLock<Lines> = OnceLock::new();

impl Lines {
    /// Captures all log lines from now on.
    fn listen() -> &'static Lines {
        Lines::listen_at(LevelFilter::TRACE)
    }

    fn listen_at(level: LevelFilter) -> &'static Lines {
        LINES.get_or_init(|| {
            let lines = Lines::default();
            tracing_subscriber::fmt().json().with_max_level(level).with_writer(lines.clone()).init();
            lines
        })
    }

    /// The level and fields of the lines with this message and request id.
    fn of(&self, request_id: &str, message: &str) -> Vec<(String, Value)> {
        let bytes = self.0.lock().unwrap();
        let lines = std::str::from_utf8(&bytes).unwrap().lines();
        let lines = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
        let lines = lines.filter(|line| line["fields"]["message"] == message);
        let lines = lines.filter(|line| line["fields"]["request_id"] == request_id);
        lines.map(|line| (line["level"].as_str().unwrap().to_owned(), line["fields"].clone())).collect()
    }
}

#[tokio::test]
async fn a_request_is_found_by_its_id_with_its_lease_and_job() {
    let lines = Lines::listen();
    let server = TestServer::open().await;
    let mut body = reserve(&server.lease(), &[("a", 1)]);
    body["job_id"] = "job:7".into();
    let text = body.to_string();
    let mut wire = Wire::to(server.address).await;
    wire.send(&format!(
        "POST /v1/reserve HTTP/1.1\r\nhost: localhost\r\nx-request-id: mine-1\r\ncontent-length: {}\r\n\r\n{text}",
        text.len()
    ))
    .await;
    assert_eq!(wire.answer().await.status, 200);

    let reserves = lines.of("mine-1", "reserve");
    assert_eq!(reserves.len(), 1);
    let (level, fields) = &reserves[0];
    assert_eq!(level, "DEBUG");
    assert_eq!(fields["lease"], body["lease_id"]);
    assert_eq!(fields["job_id"], "job:7");
    let (level, fields) = &lines.of("mine-1", "reserve denied or failed")[0];
    assert_eq!(level, "INFO");
    assert_eq!((&fields["job_id"], &fields["error"]), (&"job:7".into(), &"unknown_limit_key:a".into()));
    let (level, fields) = &lines.of("mine-1", "answered")[0];
    assert_eq!(level, "DEBUG");
    assert_eq!(fields["status"], 200);
}

#[tokio::test]
async fn what_fails_is_a_warning_with_the_answer_in_it() {
    let lines = Lines::listen();
    let broken = Arc::new(Broken(BackendError::Failed("the ledger broke".into())));
    let server = TestServer::on(ManualClock::at(START_MS), broken, TestServer::options()).await;
    let answer = server.ask("GET", "/v1/admin/limits", "").await;
    assert_eq!(answer.status, 500);
    let (level, fields) = &lines.of(answer.header("x-request-id").unwrap(), "answered")[0];
    assert_eq!(level, "WARN");
    assert!(fields["answer"].as_str().unwrap().contains("the ledger broke"), "{fields}");
}

/// Requests rejected with 403 and 429 were logged without their actor.
#[tokio::test]
async fn whoever_is_refused_is_named_if_they_are_known() {
    let lines = Lines::listen();
    let keyed = KeyedServer::with(|options| options.requests_per_second = Some(2)).await;
    let caller = keyed.key(earmark_core::Role::Caller, "default").await;
    let id = caller.split('_').nth(1).unwrap();
    let mut seen = Vec::new();
    for _ in 0..20 {
        let answer = keyed.ask(Some(&caller), "GET", "/v1/admin/limits", "").await;
        let (_, fields) = &lines.of(answer.header("x-request-id").unwrap(), "answered")[0];
        assert_eq!(fields["actor"], format!("client:{id}"), "{fields}");
        seen.push(answer.status);
    }
    assert!(seen.contains(&403) && seen.contains(&429), "{seen:?}");
    let answer = keyed.ask(Some("emk_x"), "GET", "/v1/admin/limits", "").await;
    let (_, fields) = &lines.of(answer.header("x-request-id").unwrap(), "answered")[0];
    assert_eq!((answer.status, &fields["actor"]), (401, &Value::from("-")));
}

/// The journal does not record who changed the members or made a backup, so the log must.
#[tokio::test]
async fn changes_of_the_cluster_are_logged_with_who_made_them_and_what_came_of_it() {
    let lines = Lines::listen();
    let server = TestServer::with_nodes(Nodes(Ok(()))).await;
    let refuses = earmark_admission::ClusterError::Refused("used before".into());
    let never = TestServer::with_nodes(Nodes(Err(refuses))).await;
    let member = r#"{"node_id":2,"address":"127.0.0.1:7102"}"#;
    for (server, method, path, body, what, result) in [
        (&server, "POST", "members", member, "add node 2 at 127.0.0.1:7102", "done"),
        (&server, "DELETE", "members/2", "", "remove node 2", "done"),
        (&server, "POST", "backup", r#"{"name":"mine"}"#, "back up as mine", "done"),
        (&server, "POST", "backup", "{}", "back up", "done"),
        (&server, "GET", "backup", "", "send a backup", "done"),
        (&never, "POST", "members", member, "add node 2 at 127.0.0.1:7102", "used before"),
    ] {
        let answer = server.ask(method, &format!("/v1/admin/cluster/{path}"), body).await;
        let id = answer.header("x-request-id").unwrap();
        for message in ["cluster change begins", "cluster change ended"] {
            let (level, fields) = &lines.of(id, message)[0];
            assert_eq!((level.as_str(), &fields["actor"]), ("INFO", &Value::from("system:local")));
            assert_eq!(fields["what"], what);
        }
        assert_eq!(lines.of(id, "cluster change ended")[0].1["result"], result);
    }
}

/// The log names an address with repeated failed logins, but not its credentials. The unit tests of
/// `failed_logins` check how often.
#[tokio::test]
async fn an_address_that_is_slowed_is_in_the_log() {
    let lines = Lines::listen();
    let keyed = KeyedServer::open().await;
    for _ in 0..7 {
        assert_eq!(keyed.ask(Some("guessed"), "GET", "/v1/admin/limits", "").await.status, 401);
    }
    let logged = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let said = logged.lines().filter(|line| line.contains("repeated failed logins")).collect::<Vec<_>>();
    assert!(!said.is_empty(), "{logged}");
    assert!(said[0].contains(r#""level":"WARN""#) && said[0].contains("127.0.0.1"), "{said:?}");
    assert!(!logged.contains("guessed"));
}

/// No log line of any level contains credentials, valid or not, over either protocol,
/// libraries included.
#[tokio::test]
async fn secrets_are_in_no_log_no_answer_and_no_metric() {
    let lines = Lines::listen();
    let keyed = KeyedServer::with(|options| options.issuer = Some(session::issuer())).await;
    let caller = keyed.key(earmark_core::Role::Caller, "default").await;
    let root = keyed.root.clone();
    let body = r#"{"name":"n","role":"reader"}"#;
    let made = keyed.ask(Some(&root), "POST", "/v1/admin/keys", body).await.json();
    let made = made["key"].as_str().unwrap().to_owned();
    let user = session::token(1, "ann", "admin", "default", 60);
    let forged = session::token(2, "eve", "admin", "default", 60);
    let wrong = format!("{root}x");
    // People paste a key where its id or another name belongs.
    let pasted = format!("/v1/admin/keys/{made}");
    let nowhere = format!("/v1/keys/{made}");
    let misread = format!("/v1/leases/{made}");
    let misspelt = format!(r#"{{"key":"{made} "}}"#);
    let mistaken = format!("/v1/admin/limits?key={made}");
    let nowhere_at_all = format!("/{made}/x");
    let of_limit = format!("/v1/admin/limits/{made}");
    let encoded = format!("/v1/admin/limits/{}", made.replace('_', "%5F"));
    let mut of_job = reserve(&keyed.server.lease(), &[("a", 1)]);
    of_job["job_id"] = made.clone().into();
    let mut answers = Vec::new();
    for (key, method, path, body) in [
        (Some(root.as_str()), "GET", "/v1/admin/keys", ""),
        (Some(&root), "GET", "/v1/audit", ""),
        (Some(&root), "GET", "/metrics", ""),
        (Some(&root), "GET", "/v1/admin/cluster", ""),
        (Some(&root), "POST", "/v1/write", "nonsense"),
        (Some(&caller), "POST", "/v1/reserve", "{}"),
        (Some(&caller), "GET", "/v1/admin/limits", ""),
        (Some(&made), "GET", "/v1/admin/limits", ""),
        (Some(&wrong), "GET", "/v1/admin/limits", ""),
        (Some(&user), "GET", "/v1/admin/limits", ""),
        (Some(&forged), "GET", "/v1/admin/limits", ""),
        (Some(&root), "GET", &of_limit, ""),
        (Some(&root), "GET", &encoded, ""),
        (Some(&root), "POST", "/v1/reserve", &of_job.to_string()),
        (Some(&root), "GET", &nowhere_at_all, ""),
        (Some(&root), "DELETE", pasted.as_str(), ""),
        (Some(&caller), "DELETE", &pasted, ""),
        (None, "DELETE", &pasted, ""),
        (Some(&root), "GET", &nowhere, ""),
        (Some(&root), "GET", &misread, ""),
        (Some(&root), "PUT", "/v1/admin/limits", &misspelt),
        (None, "GET", mistaken.as_str(), ""),
    ] {
        let answer = keyed.ask(key, method, path, body).await;
        answers.push(format!("{:?} {}", answer.headers, answer.text));
    }
    for key in [&root, &caller, &made, &wrong, &user, &forged] {
        answers.push(format!("{:?}", called(&keyed, key, "/earmark.v1.LimitsService/ListLimits").await));
        answers.push(format!("{:?}", called(&keyed, key, "/earmark.v1.LimitsService/Reserve").await));
    }
    answers.push(format!("{:?}", called(&keyed, &root, &nowhere_at_all).await));
    let gateway = keyed.key(earmark_core::Role::Gateway, "default").await;
    for (sender, client) in [(&gateway, &caller), (&gateway, &wrong), (&gateway, &gateway), (&root, &caller)] {
        answers.extend(answers_for(&keyed, sender, client).await);
    }
    let traced = format!("authorization: Bearer {root}\r\nx-request-id: {made}\r\n");
    answers.push(keyed.ask_with(&traced, "GET", "/v1/admin/limits", "").await.text);
    let path = format!("/v1/admin/keys/{}", made.split('_').nth(1).unwrap());
    answers.push(keyed.ask(Some(&root), "DELETE", &path, "").await.text);

    let logged = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    for what in ["create key", "revoke key", "user:ann", "/v1/admin/keys/emk_***", "h2::"] {
        assert!(logged.contains(what), "{what} is not in the log");
    }
    let keys = [&root, &caller, &made, &gateway].map(|key| key.split('_').nth(2).unwrap());
    let tokens = [&user, &forged].map(|token| token.rsplit('.').next().unwrap());
    keys.into_iter().chain(tokens).for_each(|secret| assert_hidden(secret, &logged, &answers));
    let actor = format!("client:{}", root.split('_').nth(1).unwrap());
    assert!(logged.contains(&actor), "the actor of every request is in the log");
}

fn assert_hidden(secret: &str, logged: &str, answers: &[String]) {
    let found = logged.lines().find(|line| line.contains(secret));
    assert_eq!(found, None, "a secret is in the log");
    answers.iter().for_each(|answer| assert!(!answer.contains(secret), "{answer}"));
}

/// Calls a gRPC method with an empty message.
async fn called(keyed: &KeyedServer, key: &str, path: &str) -> Result<(), tonic::Status> {
    let mut request = tonic::Request::new(());
    request.metadata_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
    send(keyed, request, path).await
}

/// The answers to requests of a gateway for its client, over both protocols.
async fn answers_for(keyed: &KeyedServer, gateway: &str, client: &str) -> Vec<String> {
    let headers = format!("authorization: Bearer {gateway}\r\nx-earmark-client-key: {client}\r\n");
    let mut answers = vec![format!("{:?}", called_for(keyed, gateway, client).await)];
    for (method, path) in [("GET", "/v1/whoami"), ("POST", "/v1/reserve")] {
        let answer = keyed.ask_with(&headers, method, path, "").await;
        answers.push(format!("{:?} {}", answer.headers, answer.text));
    }
    answers
}

/// Asks as a gateway who its client is.
async fn called_for(keyed: &KeyedServer, gateway: &str, client: &str) -> Result<(), tonic::Status> {
    let mut request = tonic::Request::new(());
    request.metadata_mut().insert("authorization", format!("Bearer {gateway}").parse().unwrap());
    request.metadata_mut().insert("x-earmark-client-key", client.parse().unwrap());
    send(keyed, request, "/earmark.v1.LimitsService/Whoami").await
}

async fn send(keyed: &KeyedServer, request: tonic::Request<()>, path: &str) -> Result<(), tonic::Status> {
    let url = format!("http://{}", keyed.server.address);
    let channel = tonic::transport::Endpoint::from_shared(url).unwrap().connect().await.unwrap();
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.unwrap();
    let codec: tonic_prost::ProstCodec<(), ()> = tonic_prost::ProstCodec::default();
    client.unary(request, path.parse().unwrap(), codec).await.map(drop)
}

/// Each malformed call of a public method wrote a line, so that a client without credentials could fill the disk.
#[tokio::test]
async fn malformed_calls_without_credentials_write_a_few_lines_and_a_count() {
    let (lines, start) = (Lines::listen_at(LevelFilter::WARN), std::time::Instant::now());
    let keyed = KeyedServer::open().await;
    let url = format!("http://{}", keyed.server.address);
    let channel = tonic::transport::Endpoint::from_shared(url).unwrap().connect().await.unwrap();
    let mut client = tonic::client::Grpc::new(channel);
    let path: axum::http::uri::PathAndQuery = "/grpc.health.v1.Health/Check".parse().unwrap();
    for _ in 0..200 {
        client.ready().await.unwrap();
        // A number where the message has a text.
        let codec: tonic_prost::ProstCodec<u64, ()> = tonic_prost::ProstCodec::default();
        let status = client.unary(tonic::Request::new(7), path.clone(), codec).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::Internal);
    }
    tokio::time::sleep(std::time::Duration::from_millis(1_500)).await;
    let logged = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let warnings = |text: &str| {
        let lines = logged.lines().filter(|line| line.contains(r#""level":"WARN""#) && line.contains(text));
        lines.count()
    };
    let most = 10 * (start.elapsed().as_secs() as usize + 2);
    assert!((1..most.min(200)).contains(&warnings("Health/Check")), "{} of {most}", warnings("Health/Check"));
    assert!(warnings("more failed requests in the last second") > 0, "{logged}");
    let metrics = keyed.ask(Some(&keyed.root), "GET", "/metrics", "").await.text;
    assert!(!metrics.contains("earmark_log_lines_dropped_total{kind=\"anonymous_grpc\"} 0\n"), "{metrics}");
}

/// A private key that every user of the machine can read was used without a word.
#[cfg(unix)]
#[tokio::test]
async fn a_private_key_that_others_can_read_gets_a_warning() {
    use std::os::unix::fs::PermissionsExt;
    let lines = Lines::listen();
    let folder = tempfile::tempdir().unwrap();
    let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| folder.path().join(name));
    std::fs::write(&cert, pair.cert.pem()).unwrap();
    std::fs::write(&key, pair.signing_key.serialize_pem()).unwrap();
    let warnings = |mode| {
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).unwrap();
        earmark_server::Tls::open(&cert, &key).unwrap();
        let logged = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        logged.matches("holds a secret that other users can read").count()
    };
    assert_eq!((warnings(0o600), warnings(0o640), warnings(0o400)), (0, 1, 1));
}

/// `Debug` output and errors of values that hold a secret.
#[tokio::test]
async fn secrets_are_in_nothing_that_is_printed_for_programmers() {
    let folder = tempfile::tempdir().unwrap();
    let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let pem = pair.signing_key.serialize_pem();
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| folder.path().join(name));
    std::fs::write(&cert, pair.cert.pem()).unwrap();
    std::fs::write(&key, &pem).unwrap();
    let tls = earmark_server::Tls::open(&cert, &key).unwrap();
    // The key in place of the certificate, and half of a key.
    let mistaken = earmark_server::Tls::open(&key, &key).unwrap_err();
    let half = folder.path().join("half.pem");
    std::fs::write(&half, &pem[..pem.len() / 2]).unwrap();
    let halved = earmark_server::Tls::open(&cert, &half).unwrap_err();
    let keyed = KeyedServer::open().await;
    let token = earmark_admission::Token::parse(&keyed.root).unwrap();
    let infos = earmark_admission::Keys::list(&*keyed.book, None).await.unwrap();
    let options = earmark_server::ServerOptions {
        issuer: Some(session::issuer()),
        tls: Some(Arc::new(tls)),
        ..TestServer::options()
    };
    let printed =
        format!("{token:?} {:?} {infos:?} {options:?} {mistaken} {mistaken:?} {halved} {halved:?}", token.hash());
    let hash = hex(token.hash().as_bytes());
    let lines = pem.lines().filter(|line| !line.starts_with("-----")).map(str::to_owned);
    let secrets = lines.chain([keyed.root.split('_').nth(2).unwrap().to_owned(), hash]);
    for secret in secrets {
        assert!(!printed.contains(&secret), "{printed}");
    }
    assert!(printed.contains(token.id().as_str()), "{printed}");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
