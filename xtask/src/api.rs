//! The running server against its own `/openapi.json`, by Schemathesis: requests that the document allows,
//! and many that it does not. Each answer must be one that is documented.
//!
//! Schemathesis comes from Python's registry, in an environment of its own in the user's cache.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::run::{self, Failure};

/// Every package and its version, as pip freezes them.
const REQUIREMENTS: &str = include_str!("../requirements.txt");
/// What the environment was made for; written last, so that half an environment is made again.
const STAMP: &str = "earmark-requirements.txt";

/// How long Schemathesis may go on asking.
const SECONDS: u64 = 40;
/// It is ended after so long, should it not end by itself.
const SECONDS_MAX: u64 = 120;
/// How long the server may take to say where it listens.
const START_MAX: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(50);

/// The same requests in every run; a failure names the seed and the request.
const SEED: u64 = 1;

/// Not asked for: that everything the document allows is accepted. It cannot say that no key may come twice,
/// how many bytes a text has, or that 1.0 is no integer here.
const EXCLUDED: &str = "positive_data_acceptance";

/// Makes the environment if it is not there, or was made for other versions.
pub(crate) fn prepare() -> Result<(), Failure> {
    let environment =
        environment(|name| std::env::var(name).ok()).ok_or_else(|| missing("a cache folder"))?;
    let stamp = environment.join(STAMP);
    if fs::read_to_string(&stamp).is_ok_and(|made_for| made_for == REQUIREMENTS) {
        println!("schemathesis: {}", environment.display());
        return Ok(());
    }
    println!("schemathesis: being installed in {}", environment.display());
    if run::run(&mut venv(&environment)).is_err() {
        install_venv();
        run::run(&mut venv(&environment)).map_err(|_| missing("python3 with venv and pip"))?;
    }
    let wanted = environment.join("wanted.txt");
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Failure::Write { path, source }
    };
    fs::write(&wanted, REQUIREMENTS).map_err(failed(&wanted))?;
    let mut pip = Command::new(environment.join("bin/pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check", "--requirement"]).arg(&wanted);
    run::run(&mut pip).map_err(|_| missing("a package index that pip reaches"))?;
    fs::rename(&wanted, &stamp).map_err(failed(&stamp))
}

/// Where the environment is kept, by the variables that say so.
fn environment(variable: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let cache = variable("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || variable("HOME").map(|home| Path::new(&home).join(".cache"));
    cache.or_else(home).map(|cache| cache.join("earmark/verify-venv"))
}

fn venv(environment: &Path) -> Command {
    let mut venv = Command::new("python3");
    venv.args(["-m", "venv", "--clear"]).arg(environment);
    venv
}

/// Where the system has a package for it and this is its administrator, it is installed.
fn install_venv() {
    let is_root = run::output(&mut run::command("id", "-u")).is_some_and(|id| id.trim() == "0");
    if is_root && run::output(&mut run::command("apt-get", "--version")).is_some() {
        println!("apt-get install -y python3-venv");
        // A machine may never have heard of its packages. If this fails, the next step says what is missing.
        _ = run::output(&mut run::command("apt-get", "update -q"));
        _ = run::output(&mut run::command("apt-get", "install -y -q python3-venv"));
    }
}

fn missing(what: &str) -> Failure {
    let how = "on Debian and Ubuntu `apt-get install python3-venv` as root, elsewhere https://www.python.org, \
               and pip must reach a package index";
    Failure::Missing(vec![format!("{what}, to install schemathesis, which checks the server: {how}")])
}

/// Starts the server and checks it.
pub(crate) fn check() -> Result<(), Failure> {
    run::run(&mut run::command("cargo", "build --package earmark --locked"))?;
    let binary = std::env::current_exe().map(|xtask| xtask.with_file_name("earmark")).unwrap_or_default();
    let mut server = Server::start(&binary)?;
    let folder = std::env::temp_dir().join(format!("earmark-verify-{}", std::process::id()));
    fs::create_dir_all(&folder).map_err(|source| Failure::Write { path: folder.clone(), source })?;
    let environment = environment(|name| std::env::var(name).ok()).unwrap_or_default();
    let mut schemathesis = schemathesis(&environment, &server.url);
    // It leaves notes wherever it runs.
    let checked = run_for(schemathesis.current_dir(&folder), Duration::from_secs(SECONDS_MAX));
    _ = fs::remove_dir_all(&folder);
    let checked = checked?;
    server.must_be_running()?;
    if checked.success() {
        return Ok(());
    }
    Err(Failure::Ended { line: run::line(&schemathesis), status: checked })
}

fn schemathesis(environment: &Path, url: &str) -> Command {
    let mut command = Command::new(environment.join("bin/schemathesis"));
    let args = format!(
        "run {url}/openapi.json --no-color --generation-database none --seed {SEED} --max-time {SECONDS} \
         --request-timeout 10 --exclude-checks {EXCLUDED}"
    );
    command.args(args.split_whitespace()).env("NO_PROXY", "127.0.0.1");
    command
}

/// Runs a command, but not for ever.
fn run_for(command: &mut Command, time_max: Duration) -> Result<ExitStatus, Failure> {
    let failed = |command: &Command, source| Failure::Start { line: run::line(command), source };
    let mut child = Guard(command.spawn().map_err(|source| failed(command, source))?);
    let start = Instant::now();
    loop {
        match child.0.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if start.elapsed() < time_max => std::thread::sleep(LOOK),
            Ok(None) => {
                return Err(Failure::Server(format!("was still asked after {}", run::time(time_max))));
            }
            Err(source) => return Err(failed(command, source)),
        }
    }
}

/// A process that ends with us, whatever happens.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// A server on a free port.
struct Server {
    process: Guard,
    url: String,
}

impl Server {
    fn start(binary: &Path) -> Result<Server, Failure> {
        let mut command = Command::new(binary);
        command.args(["serve", "--in-memory", "--listen", "127.0.0.1:0", "--log-level", "warn"]);
        let line = run::line(&command);
        let spawned = command.stdout(Stdio::piped()).spawn();
        let mut process = Guard(spawned.map_err(|source| Failure::Start { line, source })?);
        let (sender, receiver) = std::sync::mpsc::channel();
        let lines = process.0.stdout.take().map(|stdout| BufReader::new(stdout).lines());
        // What it prints is read to the end, or it would have to wait for a reader.
        std::thread::spawn(move || {
            for line in lines.into_iter().flatten().map_while(Result::ok) {
                if let Some(url) = url(&line) {
                    _ = sender.send(url.to_owned());
                }
            }
        });
        let url = receiver.recv_timeout(START_MAX);
        let url = url.map_err(|_| Failure::Server("did not say where it listens".into()))?;
        Ok(Server { process, url })
    }

    fn must_be_running(&mut self) -> Result<(), Failure> {
        match self.process.0.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(Failure::Server(format!("ended while it was checked ({status})"))),
            Err(error) => Err(Failure::Server(format!("cannot be looked at: {error}"))),
        }
    }
}

/// The address in `Earmark 0.1.0 listens on http://127.0.0.1:7878`.
fn url(line: &str) -> Option<&str> {
    let (_, url) = line.split_once("listens on ")?;
    url.split_whitespace().next().filter(|url| url.starts_with("http://"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_is_in_the_users_cache() {
        let with = |variables: &'static [(&str, &str)]| {
            environment(|name| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            })
        };
        let both = with(&[("XDG_CACHE_HOME", "/cache"), ("HOME", "/home/me")]);
        assert_eq!(both, Some(PathBuf::from("/cache/earmark/verify-venv")));
        let relative = with(&[("XDG_CACHE_HOME", "cache"), ("HOME", "/home/me")]);
        assert_eq!(relative, Some(PathBuf::from("/home/me/.cache/earmark/verify-venv")));
        assert_eq!(with(&[]), None);
    }

    #[test]
    fn the_address_is_found_in_what_the_server_says() {
        assert_eq!(url("Earmark 0.1.0 listens on http://127.0.0.1:7878"), Some("http://127.0.0.1:7878"));
        assert_eq!(url("try: curl http://127.0.0.1:7878/healthz"), None);
        assert_eq!(url("Earmark listens on nothing"), None);
    }

    #[test]
    fn what_runs_too_long_is_ended() {
        let status = run_for(&mut run::command("true", ""), Duration::from_secs(20)).unwrap();
        assert!(status.success());
        let failure = run_for(&mut run::command("sleep", "60"), Duration::from_millis(100)).unwrap_err();
        assert_eq!(failure.to_string(), "the server that was checked was still asked after 0.1 s");
    }

    #[test]
    fn a_server_that_says_nothing_or_does_not_exist_is_a_failure() {
        let silent = Server::start(Path::new("true")).err().unwrap();
        assert_eq!(silent.to_string(), "the server that was checked did not say where it listens");
        let absent = Server::start(Path::new("no-such-program")).err().unwrap().to_string();
        assert!(absent.starts_with("`no-such-program serve "), "{absent}");
    }

    #[test]
    fn every_version_is_pinned() {
        let packages: Vec<&str> = REQUIREMENTS.lines().filter(|line| !line.starts_with('#')).collect();
        assert!(packages.iter().all(|line| line.contains("==")), "{packages:?}");
        assert!(packages.iter().any(|line| line.starts_with("schemathesis==")), "{packages:?}");
    }
}
