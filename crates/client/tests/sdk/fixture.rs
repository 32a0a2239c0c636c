//! Servers in this process: real ones, and ones that answer from a script.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use earmark_admission::{Backend, LocalBook, LocalOptions};
use earmark_client::core::{GrantTerms, Operation, Overdraft};
use earmark_client::{
    BackoffOptions, Client, ClientOptions, Deadline, Limiter, LimiterOptions, Protocol, Scope, Writer, WriterOptions,
};
use earmark_server::{Server, ServerOptions};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::support::proxy::{Proxy, message};
use crate::support::soon;

/// A server with an empty Book. It stops when it is dropped.
pub struct TestServer {
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
}

impl TestServer {
    pub async fn start() -> TestServer {
        let backend: Arc<dyn Backend> = Arc::new(LocalBook::open(LocalOptions::default()).await.unwrap());
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let options = ServerOptions { listen, ..ServerOptions::default() };
        let server = Server::bind(options, backend).await.unwrap();
        let address = server.local_addr();
        let (stop, stopped) = oneshot::channel();
        tokio::spawn(server.run(async move { _ = stopped.await }));
        TestServer { address, stop: Some(stop) }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn client(&self, protocol: Protocol) -> Client {
        client_of(&[self.url()], protocol)
    }

    /// A proxy without random faults in front of the server.
    pub async fn proxy(&self) -> Proxy {
        Proxy::http(&self.address.to_string(), 1, 0).await
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            _ = stop.send(());
        }
    }
}

pub fn client_of(urls: &[String], protocol: Protocol) -> Client {
    let mut options = ClientOptions::of(urls).unwrap();
    options.protocol = protocol;
    Client::new(options).unwrap()
}

pub fn limiter(client: &Client) -> Limiter {
    Limiter::new(client, LimiterOptions::default()).unwrap()
}

/// A client over each protocol, and one of a Book in this process.
pub async fn each_way() -> Vec<(&'static str, Client, Option<TestServer>)> {
    let (http, grpc) = (TestServer::start().await, TestServer::start().await);
    let local = Client::local(earmark_client::LocalOptions::default()).unwrap();
    vec![
        ("http", http.client(Protocol::Http), Some(http)),
        ("grpc", grpc.client(Protocol::Grpc), Some(grpc)),
        ("local", local, None),
    ]
}

/// The status and the body of a scripted response. `None` closes the connection without one.
pub type Reply = Option<(u16, String)>;

pub const ALLOWED: &str = r#"{"allowed":true,"retry_after_ms":0,"reserved_at_unix_ms":1,"error":""}"#;
pub const COMPLETED: &str = r#"{"ok":true,"error":"","reconciled":true}"#;

pub fn ok(body: &str) -> Reply {
    Some((200, body.to_owned()))
}

/// A refused reserve, or a denied one if `error` is empty.
pub fn refused(error: &str, retry_after_ms: u64) -> String {
    format!(
        r#"{{"allowed":false,"retry_after_ms":{retry_after_ms},"reserved_at_unix_ms":0,"error":"{error}","limited_by":["a"]}}"#
    )
}

pub fn unauthorized() -> Reply {
    Some((401, r#"{"error":"unauthorized","message":"no such key"}"#.to_owned()))
}

pub fn unavailable() -> Reply {
    Some((503, r#"{"error":"unavailable","message":"no leader"}"#.to_owned()))
}

/// The last committed sequence of a client.
pub fn client_state(last: u64) -> Reply {
    ok(&format!(r#"{{"last_committed_sequence":{last}}}"#))
}

pub fn written(sequence: u64) -> Reply {
    ok(&format!(
        r#"{{"success":{{"tx_id":"t","sequence":{sequence},"log_index":1,"committed_at_unix_ms":1,"actor":"a","results":[]}}}}"#
    ))
}

pub fn write_refused(status: u16, code: &str, last: u64) -> Reply {
    let body = format!(r#"{{"error":{{"code":"{code}","message":"refused","last_committed_sequence":{last}}}}}"#);
    Some((status, body))
}

/// A server that answers from a script. It stops with its runtime.
pub struct ScriptedServer {
    pub url: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl ScriptedServer {
    /// Computes each response from the head and the body of its request.
    pub async fn by(answer: impl FnMut(&str) -> Reply + Send + 'static) -> ScriptedServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (seen, answer) = (Arc::clone(&requests), Arc::new(Mutex::new(answer)));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (seen, answer) = (Arc::clone(&seen), Arc::clone(&answer));
                tokio::spawn(async move {
                    let Ok(request) = message(&mut stream).await else { return };
                    let request = String::from_utf8(request).unwrap();
                    let reply = (*answer.lock().unwrap())(&request);
                    seen.lock().unwrap().push(request);
                    if let Some((status, body)) = reply {
                        let length = body.len();
                        let head =
                            format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
                        // The client may be gone.
                        _ = stream.write_all((head + &body).as_bytes()).await;
                    }
                });
            }
        });
        ScriptedServer { url, requests }
    }

    /// Answers one request after the other, and closes the connection after the last one.
    pub async fn list(replies: Vec<Reply>) -> ScriptedServer {
        let mut replies = replies.into_iter();
        ScriptedServer::by(move |_| replies.next().flatten()).await
    }

    pub fn client(&self) -> Client {
        client_of(std::slice::from_ref(&self.url), Protocol::Http)
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    /// The number of requests so far that begin with `start`.
    pub fn count(&self, start: &str) -> usize {
        self.requests().iter().filter(|request| request.starts_with(start)).count()
    }
}

/// A server with two accounts, a proxy in front of it, and a folder for sequence files.
pub struct WriterFixture {
    pub server: TestServer,
    pub proxy: Proxy,
    pub folder: TempDir,
}

impl WriterFixture {
    pub async fn new() -> WriterFixture {
        let server = TestServer::start().await;
        let fixture = WriterFixture { proxy: server.proxy().await, server, folder: TempDir::new().unwrap() };
        let setup = WriterOptions::new(fixture.path("setup"), scope(), "setup".parse().unwrap());
        let client = fixture.server.client(Protocol::Http);
        let open = |account: &str| Operation::OpenAccount {
            account: account.parse().unwrap(),
            overdraft: Overdraft::Deny,
            plan: None,
        };
        let mut setup = Writer::open(&client, setup, soon()).await.unwrap();
        setup.write(vec![open("acme"), open("bob")], soon()).await.unwrap();
        fixture
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A client through the proxy.
    pub fn client(&self) -> Client {
        client_of(&[self.proxy.url()], Protocol::Http)
    }

    /// A client through the proxy whose backoff leaves no time for a second attempt.
    pub fn impatient_client(&self) -> Client {
        let mut options = ClientOptions::of(&[self.proxy.url()]).unwrap();
        options.backoff = BackoffOptions { first: Duration::from_secs(60), longest: Duration::from_secs(60) };
        Client::new(options).unwrap()
    }

    pub async fn available(&self, account: &str) -> i128 {
        let client = self.server.client(Protocol::Http);
        let found = client.balances(&"main".parse().unwrap(), &account.parse().unwrap(), soon()).await;
        found.unwrap().first().map_or(0, |balance| balance.available)
    }
}

/// Enough time for one attempt on a busy machine.
pub fn shortly() -> Deadline {
    Deadline::after(Duration::from_millis(400))
}

pub fn scope() -> Scope {
    Scope { namespace: "default".parse().unwrap(), vault: Some("main".parse().unwrap()) }
}

pub fn writer_options(path: &Path) -> WriterOptions {
    WriterOptions::new(path, scope(), "billing".parse().unwrap())
}

pub fn issue(amount: u128) -> Vec<Operation> {
    let (account, asset) = ("acme".parse().unwrap(), "usd".parse().unwrap());
    vec![Operation::Issue { account, asset, amount, memo: String::new(), terms: GrantTerms::PLAIN }]
}
