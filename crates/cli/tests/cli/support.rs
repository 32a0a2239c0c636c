//! A server to talk to, and commands to talk with.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

/// More than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// `earmark` with these words, and nothing from the environment of the tests.
pub(crate) fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_earmark"));
    command
        .args(words)
        .env_remove("EARMARK_SERVER")
        .env_remove("EARMARK_KEY")
        .env_remove("EARMARK_KEY_FILE")
        .env_remove("RUST_LOG")
        .stdin(Stdio::null());
    command
}

/// Runs `earmark` without a server.
pub(crate) fn run(words: &[&str]) -> Ran {
    let piped = command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = piped.unwrap();
    let start = Instant::now();
    // What should end and does not is ended, and seen by its exit code.
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > PATIENCE * 2 {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ran::of(child.wait_with_output().unwrap())
}

/// What a command printed and ended with.
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

    /// The standard output, which must be one JSON object on one line.
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.stdout.trim_end().lines().count(), 1, "{self:?}");
        let value: Value = serde_json::from_str(&self.stdout).unwrap();
        assert!(value.is_object(), "{self:?}");
        value
    }

    /// Fails unless it ended with `code`.
    pub(crate) fn ends(self, code: i32) -> Ran {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }
}

/// `earmark serve`, ended when it goes out of scope.
pub(crate) struct Server {
    child: Child,
    /// Reads what it logs, or a chatty one would wait for a reader.
    logged: Option<JoinHandle<String>>,
    stdout: BufReader<ChildStdout>,
    pub(crate) greeting: String,
    pub(crate) address: String,
    url: String,
}

impl Server {
    /// Starts it in memory on a free port, with more words if there are any.
    pub(crate) fn start(words: &[&str]) -> Server {
        let all = [&["serve", "--in-memory", "--listen", "127.0.0.1:0"], words].concat();
        Server::of(&mut command(&all))
    }

    /// Starts it on a data folder and a free port, with more words if there are any.
    pub(crate) fn on(data: &Path, words: &[&str]) -> Server {
        let all = [&["serve", "--listen", "127.0.0.1:0", "--data", data.to_str().unwrap()], words].concat();
        Server::of(&mut command(&all))
    }

    /// Starts it by a command that becomes `earmark serve`.
    pub(crate) fn of(command: &mut Command) -> Server {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let logged = std::thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).unwrap();
            text
        });
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut greeting = String::new();
        while !greeting.contains("try: ") {
            if stdout.read_line(&mut greeting).unwrap() == 0 {
                let ended = child.wait().unwrap();
                panic!("no greeting, {ended}: {greeting}{}", logged.join().unwrap());
            }
        }
        let url = greeting.split("listens on ").nth(1).unwrap().lines().next().unwrap().to_owned();
        let address = url.split("://").nth(1).unwrap().to_owned();
        Server { child, logged: Some(logged), stdout, greeting, address, url }
    }

    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }

    /// Runs a client command against it.
    pub(crate) fn earmark(&self, words: &[&str]) -> Ran {
        Ran::of(command(words).env("EARMARK_SERVER", self.url()).output().unwrap())
    }

    /// A client command, from a line without quotes.
    pub(crate) fn line(&self, line: &str) -> Ran {
        self.earmark(&line.split_whitespace().collect::<Vec<_>>())
    }

    /// Ends it as a power cut would.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends a signal by its name.
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([format!("-{name}"), self.child.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    /// Waits for its end and says what it printed since the greeting.
    pub(crate) fn wait(mut self) -> Ran {
        let start = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(start.elapsed() < PATIENCE, "it does not end");
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
        // It may have ended before.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
