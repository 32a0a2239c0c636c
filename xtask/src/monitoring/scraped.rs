//! A server with a gateway, and some traffic to scrape.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use super::metrics::Metrics;
use crate::run::{self, Failure};

/// Time for a process to answer.
const START_MAX: Duration = Duration::from_secs(30);
const ANSWER_MAX: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(100);

/// A child process with a folder of its own. Both are removed on drop.
pub(super) struct Started {
    process: Child,
    pub(super) address: String,
}

impl Started {
    /// Starts a program that listens on `address`, and waits until it answers at `path`.
    pub(super) fn new(mut command: Command, address: String, path: &str) -> Result<Started, Failure> {
        let line = run::line(&command);
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let mut started =
            Started { process: spawned.map_err(|source| Failure::Start { line: line.clone(), source })?, address };
        let mut waited = Duration::ZERO;
        while waited < START_MAX {
            if get(&started.address, path).is_ok() {
                return Ok(started);
            }
            if let Ok(Some(status)) = started.process.try_wait() {
                return Err(Failure::Ended { line, status });
            }
            sleep(LOOK);
            waited += LOOK;
        }
        Err(Failure::Server(format!("did not answer at {} within {}", started.address, run::time(START_MAX))))
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

/// An address on loopback that was free a moment ago.
pub(super) fn free_address() -> Result<String, Failure> {
    let bound = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    bound.map(|address| address.to_string()).map_err(|error| Failure::Server(format!("has no port: {error}")))
}

/// A node with a gateway in the same process.
pub(super) struct Scraped {
    server: Started,
    pub(super) gateway: String,
    pub(super) folder: PathBuf,
}

const UPSTREAM: &str = r#"
[[upstreams]]
name     = "local"
api      = "openai"
base_url = "http://127.0.0.1:9/v1"

[[models]]
name    = "m"
targets = ["local/m"]
max_input_tokens  = 1000
max_output_tokens = 1000
"#;

impl Scraped {
    pub(super) fn start(binary: &Path) -> Result<Scraped, Failure> {
        let folder = std::env::temp_dir().join(format!("earmark-monitoring-{}", std::process::id()));
        let (address, gateway) = (free_address()?, free_address()?);
        let config = folder.join("gateway.toml");
        let failed = |source| Failure::Write { path: config.clone(), source };
        fs::create_dir_all(&folder).map_err(failed)?;
        fs::write(&config, format!("listen = \"{gateway}\"\n{UPSTREAM}")).map_err(failed)?;
        let mut command = Command::new(binary);
        command.args(["serve", "--log-level", "warn", "--listen", &address]);
        command.arg("--data").arg(folder.join("data")).arg("--gateway").arg(&config);
        let server = Started::new(command, address, "/readyz")?;
        let scraped = Scraped { server, gateway, folder };
        scraped.use_it().map_err(|error| Failure::Server(format!("refused a request: {error}")))?;
        Ok(scraped)
    }

    pub(super) fn address(&self) -> &str {
        &self.server.address
    }

    /// Makes a limit, a template and a few decisions.
    fn use_it(&self) -> io::Result<()> {
        let rolling = r#""kind":"rolling","capacity":2,"window_seconds":3600"#;
        put(self.address(), "/v1/admin/limits", &format!(r#"{{"key":"gpt-4o:rpm",{rolling}}}"#))?;
        put(self.address(), "/v1/admin/templates", &format!(r#"{{"key":"user:{{user}}:rpm",{rolling}}}"#))?;
        Ok(())
    }

    /// The metrics that the server and the gateway describe.
    pub(super) fn metrics(&self) -> Result<Metrics, Failure> {
        let mut metrics = Metrics::default();
        for address in [self.address(), &self.gateway] {
            let text = get(address, "/metrics");
            metrics.read(&text.map_err(|error| Failure::Server(format!("has no metrics at {address}: {error}")))?);
        }
        Ok(metrics)
    }
}

impl Drop for Scraped {
    fn drop(&mut self) {
        _ = self.server.process.kill();
        _ = self.server.process.wait();
        _ = fs::remove_dir_all(&self.folder);
    }
}

/// The body of the answer to a GET, which must be a 200.
pub(super) fn get(address: &str, path: &str) -> io::Result<String> {
    ask(address, &format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"))
}

fn put(address: &str, path: &str, body: &str) -> io::Result<String> {
    let length = body.len();
    let head =
        format!("PUT {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    ask(address, &(head + body))
}

fn ask(address: &str, request: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    stream.write_all(request.as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    match text.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200 ") => Ok(body.to_owned()),
        _ => Err(io::Error::other(format!("found {:?}", text.lines().next().unwrap_or_default()))),
    }
}
