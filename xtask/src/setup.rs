//! The first step of `verify`: installs what the others need as far as it can, and names all that is missing at once.

use crate::console;
use crate::deploy;
use crate::envoy;
use crate::monitoring;
use crate::postgres;
use crate::python;
use crate::run::{self, Failure};
use crate::typescript;

/// A required program besides rustc and cargo. It must answer `--version`.
struct Program {
    name: &'static str,
    purpose: &'static str,
    /// The package of Debian that has it.
    package: &'static str,
}

/// Components of the Rust toolchain that a minimal installation lacks: their command of cargo, and their name.
const COMPONENTS: [(&str, &str); 2] = [("fmt", "rustfmt"), ("clippy", "clippy")];

const PROGRAMS: [Program; 4] = [
    Program { name: "cc", purpose: "a C compiler, which rustc links with", package: "build-essential" },
    Program { name: "git", purpose: "the check that nothing changed", package: "git" },
    Program { name: "curl", purpose: "the walks of README", package: "curl" },
    Program { name: "kill", purpose: "the tests that stop processes", package: "procps" },
];

/// Prepares all steps. Only what a step cannot do without is an error; what it skips by name is printed.
pub(crate) fn prepare() -> Result<(), Failure> {
    let prepared = [
        components(&COMPONENTS),
        programs(&PROGRAMS, run::apt_install),
        python::prepare(),
        typescript::prepare(),
        postgres::prepare(),
    ];
    let missing = missing(prepared)?;
    namespaces();
    monitoring::prepare();
    deploy::prepare();
    if missing.is_empty() {
        // Both need npm or pip.
        console::prepare()?;
        envoy::prepare();
        return Ok(());
    }
    Err(Failure::Missing(missing))
}

/// The missing things of all results, each once. Any other failure ends the setup.
fn missing(results: impl IntoIterator<Item = Result<(), Failure>>) -> Result<Vec<String>, Failure> {
    let mut missing: Vec<String> = Vec::new();
    for result in results {
        match result {
            Ok(()) => {}
            Err(Failure::Missing(names)) => missing.extend(names),
            Err(other) => return Err(other),
        }
    }
    missing.dedup();
    Ok(missing)
}

fn components(components: &[(&str, &str)]) -> Result<(), Failure> {
    let mut missing = Vec::new();
    for (command, name) in components {
        match run::output(&mut run::command("cargo", &format!("{command} --version"))) {
            Some(version) => println!("{name}: {}", version.trim()),
            None => missing.push(format!("{name} (`rustup component add {name}`)")),
        }
    }
    if missing.is_empty() { Ok(()) } else { Err(Failure::Missing(missing)) }
}

fn programs(programs: &[Program], install: impl Fn(&str)) -> Result<(), Failure> {
    let version = |program: &Program| run::output(&mut run::command(program.name, "--version"));
    let absent = programs.iter().filter(|program| version(program).is_none());
    let packages: Vec<&str> = absent.map(|program| program.package).collect();
    if !packages.is_empty() {
        install(&packages.join(" "));
    }
    let mut missing = Vec::new();
    for program in programs {
        let Program { name, purpose, package } = program;
        match version(program) {
            Some(version) => println!("{name}: {}", version.lines().next().unwrap_or("found")),
            None => missing.push(format!("{name} ({purpose}; on Debian `apt-get install {package}`)")),
        }
    }
    if missing.is_empty() { Ok(()) } else { Err(Failure::Missing(missing)) }
}

/// The test of nodes that move needs `ip`, and root.
fn namespaces() {
    let has_ip = || run::output(&mut run::command("ip", "-V")).is_some();
    if !has_ip() {
        run::apt_install("iproute2");
    }
    println!("ip: {}", if has_ip() { "found" } else { "missing; the test of nodes that move is skipped" });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_missing_is_named_at_once_and_each_thing_once() {
        assert!(programs(&[], |_| ()).is_ok());
        let absent = |name| Program { name, purpose: "a thing", package: "no-such-package" };
        let installed = std::cell::RefCell::new(String::new());
        let install = |packages: &str| installed.borrow_mut().push_str(packages);
        let failure = programs(&[absent("no-such-program"), absent("no-such-other")], install).unwrap_err();
        assert_eq!(installed.into_inner(), "no-such-package no-such-package");
        let of = |name: &str| format!("{name} (a thing; on Debian `apt-get install no-such-package`)");
        let expected = format!("missing on this machine: {}, {}", of("no-such-program"), of("no-such-other"));
        assert_eq!(failure.to_string(), expected);

        let failure = components(&[("no-such-command", "no-such-component")]).unwrap_err().to_string();
        assert_eq!(failure, "missing on this machine: no-such-component (`rustup component add no-such-component`)");

        let lacks = |name: &str| Err(Failure::Missing(vec![name.to_owned()]));
        assert_eq!(missing([lacks("a"), Ok(()), lacks("b"), lacks("b")]).unwrap(), ["a", "b"]);
        assert!(missing([lacks("a"), Err(Failure::Untidy { violations: 1 })]).is_err());
    }
}
