//! Starts a server to check, and runs commands with a timeout.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use crate::run::{self, Failure};

/// Timeout for the server to print its address.
const START_MAX: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(50);

pub(crate) fn run_for(command: &mut Command, time_max: Duration) -> Result<ExitStatus, Failure> {
    let failed = |command: &Command, source| Failure::Start { line: run::line(command), source };
    let mut child = Guard(command.spawn().map_err(|source| failed(command, source))?);
    let start = Instant::now();
    loop {
        match child.0.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if start.elapsed() < time_max => std::thread::sleep(LOOK),
            Ok(None) => {
                return Err(Failure::Server(format!("was still being checked after {}", run::time(time_max))));
            }
            Err(source) => return Err(failed(command, source)),
        }
    }
}

/// A child process, killed on drop.
pub(crate) struct Guard(Child);

impl Guard {
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Builds the server and returns its path.
pub(crate) fn build() -> Result<PathBuf, Failure> {
    // The same packages and targets as the tests: another selection has other features, and builds every dependency
    // again.
    run::run(&mut run::command("cargo", "build --workspace --bins --tests --locked"))?;
    Ok(std::env::current_exe().map(|xtask| xtask.with_file_name("earmark")).unwrap_or_default())
}

/// A server on a free port.
pub(crate) struct Server {
    process: Guard,
    pub(crate) url: String,
    /// The key, if the server requires one.
    pub(crate) key: Option<String>,
}

/// Whether a server requires a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Callers {
    Anyone,
    WithKey,
}

impl Server {
    pub(crate) fn build(callers: Callers) -> Result<Server, Failure> {
        Server::start(&build()?, callers)
    }

    fn start(binary: &Path, callers: Callers) -> Result<Server, Failure> {
        let mut command = Command::new(binary);
        command.args(["serve", "--in-memory", "--listen", "127.0.0.1:0", "--log-level", "warn"]);
        if callers == Callers::WithKey {
            command.arg("--bootstrap-key");
        }
        let (process, receiver) = spawn(&mut command)?;
        // The server prints its key before its address.
        let key = match callers {
            Callers::Anyone => None,
            Callers::WithKey => {
                let key = receiver.recv_timeout(START_MAX);
                Some(key.map_err(|_| Failure::Server("did not print its key".into()))?)
            }
        };
        Ok(Server { process, url: printed_url(&receiver)?, key })
    }

    pub(crate) fn must_be_running(&mut self) -> Result<(), Failure> {
        match self.process.0.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(Failure::Server(format!("exited during the check ({status})"))),
            Err(error) => Err(Failure::Server(format!("cannot be waited for: {error}"))),
        }
    }
}

/// Starts a program that prints its address, and returns the address.
pub(crate) fn start_listening(command: &mut Command) -> Result<(Guard, String), Failure> {
    let (process, receiver) = spawn(command)?;
    Ok((process, printed_url(&receiver)?))
}

/// Starts a server with a gateway in its process, and returns the addresses of both.
pub(crate) fn start_with_gateway(command: &mut Command) -> Result<(Guard, String, String), Failure> {
    let (process, receiver) = spawn(command)?;
    Ok((process, printed_url(&receiver)?, printed_url(&receiver)?))
}

/// Starts a program, and sends the address and the key that it prints.
fn spawn(command: &mut Command) -> Result<(Guard, Receiver<String>), Failure> {
    let line = run::line(command);
    let spawned = command.stdout(Stdio::piped()).spawn();
    let mut process = Guard(spawned.map_err(|source| Failure::Start { line, source })?);
    let (sender, receiver) = std::sync::mpsc::channel();
    let lines = process.0.stdout.take().map(|stdout| BufReader::new(stdout).lines());
    // Drains standard output, because the process would block on a full pipe.
    std::thread::spawn(move || {
        for line in lines.into_iter().flatten().map_while(Result::ok) {
            if let Some(said) = url(&line).or_else(|| key(&line)) {
                _ = sender.send(said.to_owned());
            }
        }
    });
    Ok((process, receiver))
}

fn printed_url(receiver: &Receiver<String>) -> Result<String, Failure> {
    receiver.recv_timeout(START_MAX).map_err(|_| Failure::Server("did not print its address".into()))
}

/// The address in `Earmark 0.1.0 listens on http://127.0.0.1:7878`.
fn url(line: &str) -> Option<&str> {
    let (_, url) = line.split_once("listens on ")?;
    url.split_whitespace().next().filter(|url| url.starts_with("http://"))
}

/// The key in `key:    emk_...`.
fn key(line: &str) -> Option<&str> {
    line.strip_prefix("key:").map(str::trim).filter(|key| key.starts_with("emk_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_and_key_are_found_in_the_output() {
        assert_eq!(url("Earmark 0.1.0 listens on http://127.0.0.1:7878"), Some("http://127.0.0.1:7878"));
        assert_eq!(url("try: curl http://127.0.0.1:7878/healthz"), None);
        assert_eq!(url("Earmark listens on nothing"), None);
        assert_eq!(key("key:    emk_a_b"), Some("emk_a_b"));
        assert_eq!(key("keys: none"), None);
    }

    #[test]
    fn a_command_that_runs_too_long_is_killed() {
        let status = run_for(&mut run::command("true", ""), Duration::from_secs(20)).unwrap();
        assert!(status.success());
        let failure = run_for(&mut run::command("sleep", "60"), Duration::from_millis(100)).unwrap_err();
        assert_eq!(failure.to_string(), "the checked server was still being checked after 0.1 s");
    }

    #[test]
    fn a_server_that_prints_nothing_or_does_not_exist_is_a_failure() {
        let silent = Server::start(Path::new("true"), Callers::Anyone).err().unwrap();
        assert_eq!(silent.to_string(), "the checked server did not print its address");
        let absent = Server::start(Path::new("no-such-program"), Callers::Anyone).err().unwrap().to_string();
        assert!(absent.starts_with("`no-such-program serve "), "{absent}");
    }
}
