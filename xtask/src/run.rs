//! Runs commands, and the errors of a task.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

/// Why a task failed.
#[derive(Debug)]
pub(crate) enum Failure {
    Usage(String),
    Start {
        line: String,
        source: io::Error,
    },
    Ended {
        line: String,
        status: ExitStatus,
    },
    Read {
        path: PathBuf,
        source: io::Error,
    },
    Write {
        path: PathBuf,
        source: io::Error,
    },
    /// The checked server misbehaved.
    Server(String),
    /// A client's packages were not built.
    Package(String),
    /// Something in `deploy/` is wrong.
    Deploy(String),
    /// Required programs are not installed.
    Missing(Vec<String>),
    /// The tree breaks rules; each violation was printed.
    Untidy {
        violations: usize,
    },
    /// `verify` changed these lines of `git status`.
    WorkTreeChanged(Vec<String>),
    /// The simulation missed these planted bugs.
    NotFound(Vec<String>),
    /// A step of `verify` failed.
    Step {
        name: &'static str,
        /// The command to repeat it by.
        line: String,
        source: Box<Failure>,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(what) => f.write_str(what),
            Failure::Start { line, source } => write!(f, "`{line}` could not be started: {source}"),
            Failure::Ended { line, status } => write!(f, "`{line}` failed ({status})"),
            Failure::Read { path, source } => write!(f, "{}: cannot be read: {source}", path.display()),
            Failure::Write { path, source } => write!(f, "{}: cannot be written: {source}", path.display()),
            Failure::Server(what) => write!(f, "the checked server {what}"),
            Failure::Package(what) => write!(f, "the packages of the client: {what}"),
            Failure::Deploy(what) => f.write_str(what),
            Failure::Missing(names) => write!(f, "missing on this machine: {}", names.join(", ")),
            Failure::Untidy { violations } => write!(f, "violations, listed above: {violations}"),
            Failure::WorkTreeChanged(lines) => {
                write!(f, "the work tree changed, though verify only reads: {}", lines.join(", "))
            }
            Failure::NotFound(names) => write!(f, "planted bugs not found: {}", names.join(", ")),
            Failure::Step { name, line, source } => {
                write!(f, "verify failed at {name}: {source}; repeat it by `{line}`")
            }
        }
    }
}

pub(crate) fn root() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// The folder of this repository in the user's cache, from the variables of the environment.
pub(crate) fn cache(variable: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let cache = variable("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || variable("HOME").map(|home| Path::new(&home).join(".cache"));
    cache.or_else(home).map(|cache| cache.join("earmark"))
}

/// `program` with space-separated `args`, in the repository root.
pub(crate) fn command(program: &str, args: &str) -> Command {
    let mut command = Command::new(program);
    command.args(args.split_whitespace()).current_dir(root());
    command
}

/// Runs `command` and shows its output.
pub(crate) fn run(command: &mut Command) -> Result<(), Failure> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::Ended { line: line(command), status }),
        Err(source) => Err(Failure::Start { line: line(command), source }),
    }
}

/// The standard output of `command`; `None` if it fails.
pub(crate) fn output(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// As root on Debian, installs packages, separated by spaces. A failure shows up later, as a missing program.
pub(crate) fn apt_install(packages: &str) {
    let is_root = output(&mut command("id", "-u")).is_some_and(|id| id.trim() == "0");
    if is_root && output(&mut command("apt-get", "--version")).is_some() {
        println!("apt-get install -y {packages}");
        // A new machine has no package list.
        _ = output(&mut command("apt-get", "update -q"));
        let mut install = command("apt-get", &format!("install -y -q {packages}"));
        _ = output(install.env("DEBIAN_FRONTEND", "noninteractive"));
    }
}

/// `command` as one would type it in the repository root.
pub(crate) fn line(command: &Command) -> String {
    let mut line = String::new();
    for (name, value) in command.get_envs() {
        let value = value.unwrap_or_default();
        line += &format!("{}={:?} ", name.to_string_lossy(), value.to_string_lossy());
    }
    line += &command.get_program().to_string_lossy();
    for arg in command.get_args() {
        line += " ";
        line += &arg.to_string_lossy();
    }
    line
}

/// Formats `duration` in tenths of a second, or in minutes from one minute on.
pub(crate) fn time(duration: Duration) -> String {
    match duration.as_secs() {
        0..60 => format!("{:.1} s", duration.as_secs_f64()),
        seconds => format!("{} min {:02} s", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_it_can_be_typed() {
        let mut doc = command("cargo", "doc --no-deps");
        assert_eq!(line(doc.env("RUSTDOCFLAGS", "-D warnings")), "RUSTDOCFLAGS=\"-D warnings\" cargo doc --no-deps");
    }

    #[test]
    fn a_command_that_fails_or_does_not_exist_is_a_failure_with_its_line() {
        assert!(run(&mut command("true", "")).is_ok());
        assert_eq!(run(&mut command("false", "x")).unwrap_err().to_string(), "`false x` failed (exit status: 1)");
        let absent = run(&mut command("no-such-program", "")).unwrap_err().to_string();
        assert!(absent.starts_with("`no-such-program` could not be started: "), "{absent}");
        assert_eq!(output(&mut command("no-such-program", "")), None);
        assert_eq!(output(&mut command("false", "")), None);
        assert_eq!(output(&mut command("echo", "a b")).as_deref(), Some("a b\n"));
    }

    #[test]
    fn the_cache_is_that_of_the_user() {
        let with = |variables: &'static [(&str, &str)]| {
            cache(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
        };
        let both = with(&[("XDG_CACHE_HOME", "/cache"), ("HOME", "/home/me")]);
        assert_eq!(both, Some(PathBuf::from("/cache/earmark")));
        let relative = with(&[("XDG_CACHE_HOME", "cache"), ("HOME", "/home/me")]);
        assert_eq!(relative, Some(PathBuf::from("/home/me/.cache/earmark")));
        assert_eq!(with(&[]), None);
    }

    #[test]
    fn times_are_rounded_and_have_units() {
        for (ms, text) in [(40, "0.0 s"), (1_260, "1.3 s"), (60_000, "1 min 00 s"), (605_900, "10 min 05 s")] {
            assert_eq!(time(Duration::from_millis(ms)), text);
        }
    }
}
