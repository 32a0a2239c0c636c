//! Starts a server process and runs client commands.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::ask::ask;

/// Test timeout, generous for a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// `earmark` with these arguments and a clean environment.
pub(crate) fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_earmark"));
    command
        .args(words)
        .env_remove("EARMARK_SERVER")
        .env_remove("EARMARK_KEY")
        .env_remove("EARMARK_KEY_FILE")
        .env_remove("EARMARK_CREDITS_URL")
        .env_remove("RUST_LOG")
        .env_remove("OTEL_EXPORTER_OTLP_ENDPOINT")
        .stdin(Stdio::null());
    command
}

/// Runs `earmark` without a server.
pub(crate) fn run(words: &[&str]) -> Ran {
    let piped = command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = piped.unwrap();
    let start = Instant::now();
    // A command that hangs is killed, and its exit code fails the test.
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > TIMEOUT * 2 {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ran::of(child.wait_with_output().unwrap())
}

/// Waits for a condition, and fails after a minute.
pub(crate) fn wait(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < TIMEOUT * 2, "timeout waiting for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Output and exit code of a command.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    pub(crate) fn of(output: Output) -> Ran {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// Standard output, which must be one JSON object on one line.
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.stdout.trim_end().lines().count(), 1, "{self:?}");
        let value: Value = serde_json::from_str(&self.stdout).unwrap();
        assert!(value.is_object(), "{self:?}");
        value
    }

    /// Asserts the exit code.
    pub(crate) fn ends(self, code: i32) -> Ran {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }
}

/// A process of `earmark serve`, killed on drop.
pub(crate) struct Server {
    child: Child,
    /// Drains standard error, because the process would block on a full pipe.
    logged: Option<JoinHandle<String>>,
    stdout: BufReader<ChildStdout>,
    pub(crate) banner: String,
    pub(crate) address: String,
    url: String,
}

impl Server {
    /// Starts a server in memory on a free port.
    pub(crate) fn start(words: &[&str]) -> Server {
        let all = [&["serve", "--in-memory", "--listen", "127.0.0.1:0"], words].concat();
        Server::of(&mut command(&all))
    }

    /// Starts a server on a data folder and a free port.
    pub(crate) fn on(data: &Path, words: &[&str]) -> Server {
        let all = [&["serve", "--listen", "127.0.0.1:0", "--data", data.to_str().unwrap()], words].concat();
        Server::of(&mut command(&all))
    }

    /// Starts a server with a command that runs `earmark serve`.
    pub(crate) fn of(command: &mut Command) -> Server {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let logged = std::thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).unwrap();
            text
        });
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut banner = String::new();
        while !banner.contains("try: ") {
            if stdout.read_line(&mut banner).unwrap() == 0 {
                let ended = child.wait().unwrap();
                panic!("no banner, {ended}: {banner}{}", logged.join().unwrap());
            }
        }
        let url = banner.split("listens on ").nth(1).unwrap().lines().next().unwrap().to_owned();
        let address = url.split("://").nth(1).unwrap().to_owned();
        Server { child, logged: Some(logged), stdout, banner, address, url }
    }

    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }

    /// Runs a client command against the server.
    pub(crate) fn earmark(&self, words: &[&str]) -> Ran {
        Ran::of(command(words).env("EARMARK_SERVER", self.url()).output().unwrap())
    }

    /// Runs a client command given as one line without quotes.
    pub(crate) fn line(&self, line: &str) -> Ran {
        self.earmark(&line.split_whitespace().collect::<Vec<_>>())
    }

    /// Opens the account acme and issues credit to it, as the first write of client b.
    pub(crate) fn issue_credit(&self, amount: u64) -> Ran {
        let open = r#"{"open_account":{"account":"acme","overdraft":"deny"}}"#;
        let issue = format!(r#"{{"issue":{{"account":"acme","asset":"usd","amount":"{amount}"}}}}"#);
        let write = ["write", "--client", "b", "--sequence", "1", "--vault", "main", "--op", open, "--op", &issue];
        self.earmark(&write)
    }

    /// Reserves and returns the lease.
    pub(crate) fn reserve(&self, keys: &str) -> String {
        let answer = self.line(&format!("reserve {keys} --json")).ends(0).json();
        answer["lease_id"].as_str().unwrap().to_owned()
    }

    /// The body of a GET request.
    pub(crate) fn get(&self, path: &str) -> String {
        ask(&self.address, "GET", path, "", TIMEOUT).unwrap().body
    }

    /// The reserved amount of a limit.
    pub(crate) fn reserved(&self, key: &str) -> u64 {
        let limit = self.line(&format!("limits get {key} --json")).ends(0).json();
        limit["usage"]["reserved"].as_u64().unwrap()
    }

    /// The available and the held credit of acme.
    pub(crate) fn credit(&self) -> (u64, u64) {
        let json = self.line("balance --account acme --json").ends(0).json();
        let amount = |name: &str| json["balances"][0][name].as_str().unwrap().parse().unwrap();
        (amount("available"), amount("held"))
    }

    /// Stops the server with SIGTERM.
    pub(crate) fn stop(self) {
        self.signal("TERM");
        assert_eq!(self.wait().ends(0).stdout, "stopped\n");
    }

    /// Kills the process with SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends a signal, such as TERM.
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([format!("-{name}"), self.child.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    /// Waits for the process to exit and returns its output after the banner.
    pub(crate) fn wait(mut self) -> Ran {
        let start = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(start.elapsed() < TIMEOUT, "the server does not exit");
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut stdout = String::new();
        self.stdout.read_to_string(&mut stdout).unwrap();
        let stderr = self.logged.take().unwrap().join().unwrap();
        Ran { code: self.child.wait().unwrap().code(), stdout, stderr }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have exited already.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
