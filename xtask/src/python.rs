//! A Python environment in the user's cache, with the tools that check the server.

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
    let environment = environment(|name| std::env::var(name).ok()).ok_or_else(|| missing("a cache folder"))?;
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
    let environment = environment(|name| std::env::var(name).ok()).unwrap_or_default();
    let mut command = Command::new(environment.join("bin").join(name));
    command.env("NO_PROXY", "127.0.0.1");
    command
}

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

fn missing(what: &str) -> Failure {
    let how = "on Debian and Ubuntu `apt-get install python3-venv` as root, elsewhere https://www.python.org, \
               and pip must reach a package index";
    Failure::Missing(vec![format!("{what}, for the tools that check the server: {how}")])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_is_in_the_users_cache() {
        let with = |variables: &'static [(&str, &str)]| {
            environment(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
        };
        let both = with(&[("XDG_CACHE_HOME", "/cache"), ("HOME", "/home/me")]);
        assert_eq!(both, Some(PathBuf::from("/cache/earmark/verify-venv")));
        let relative = with(&[("XDG_CACHE_HOME", "cache"), ("HOME", "/home/me")]);
        assert_eq!(relative, Some(PathBuf::from("/home/me/.cache/earmark/verify-venv")));
        assert_eq!(with(&[]), None);
    }

    #[test]
    fn every_version_is_pinned() {
        let packages: Vec<&str> = REQUIREMENTS.lines().filter(|line| !line.starts_with('#')).collect();
        assert!(packages.iter().all(|line| line.contains("==")), "{packages:?}");
        for package in ["schemathesis==", "grpcio==", "grpcio-tools=="] {
            assert!(packages.iter().any(|line| line.starts_with(package)), "{packages:?}");
        }
    }
}
