//! A Python environment in the user's cache, with the tools that check the server and the Python client.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::{self, Failure};

/// All packages with their versions, in the format of `pip freeze`.
const REQUIREMENTS: &str = include_str!("../requirements.txt");
/// Records the requirements of the environment. Written last, so that a partial environment is rebuilt.
const STAMP: &str = "earmark-requirements.txt";

/// Creates the environment if it is missing or was created for other requirements.
pub(crate) fn prepare() -> Result<(), Failure> {
    let environment = environment().ok_or_else(|| missing("a cache folder"))?;
    let stamp = environment.join(STAMP);
    if fs::read_to_string(&stamp).is_ok_and(|made_for| made_for == REQUIREMENTS) {
        println!("python: {}", environment.display());
        return Ok(());
    }
    println!("python: installing in {}", environment.display());
    if run::run(&mut venv(&environment)).is_err() {
        run::apt_install("python3-venv");
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

/// A program of the environment, such as `python`.
pub(crate) fn program(name: &str) -> Command {
    let environment = environment().unwrap_or_default();
    let mut command = Command::new(environment.join("bin").join(name));
    command.env("NO_PROXY", "127.0.0.1");
    command
}

fn environment() -> Option<PathBuf> {
    run::cache(|name| std::env::var(name).ok()).map(|cache| cache.join("verify-venv"))
}

fn venv(environment: &Path) -> Command {
    let mut venv = Command::new("python3");
    venv.args(["-m", "venv", "--clear"]).arg(environment);
    venv
}

pub(crate) fn missing(what: &str) -> Failure {
    let how = "on Debian and Ubuntu `apt-get install python3-venv` as root, elsewhere https://www.python.org, \
               and pip must reach a package index";
    Failure::Missing(vec![format!("{what}, for the tools that check the server and the Python client: {how}")])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_is_pinned() {
        let packages: Vec<&str> = REQUIREMENTS.lines().filter(|line| !line.starts_with('#')).collect();
        assert!(packages.iter().all(|line| line.contains("==")), "{packages:?}");
        for package in
            ["schemathesis==", "grpcio==", "grpcio-tools==", "mypy==", "basedpyright==", "openai==", "anthropic=="]
        {
            assert!(packages.iter().any(|line| line.starts_with(package)), "{packages:?}");
        }
    }
}
