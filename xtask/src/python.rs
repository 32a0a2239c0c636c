//! Python environments in the user's cache: one with the tools that check the server and the Python client, and one with
//! the server of llama.cpp.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::{self, Failure};

/// An environment: its folder in the cache, and all packages with their versions, in the format of `pip freeze`.
pub(crate) struct Environment {
    folder: &'static str,
    requirements: &'static str,
}

/// The tools of `cargo xtask verify`.
const TOOLS: Environment = Environment { folder: "verify-venv", requirements: include_str!("../requirements.txt") };
/// The server of llama.cpp. pip compiles it, which takes many minutes.
pub(crate) const LLAMA: Environment =
    Environment { folder: "llama-venv", requirements: include_str!("../requirements-llama.txt") };

/// Records the requirements of the environment. Written last, so that a partial environment is rebuilt.
const STAMP: &str = "earmark-requirements.txt";

/// Creates the environment of the tools if it is missing or was created for other requirements.
pub(crate) fn prepare() -> Result<(), Failure> {
    TOOLS.prepare()
}

/// A program of the environment of the tools, such as `python`.
pub(crate) fn program(name: &str) -> Command {
    let mut command = Command::new(TOOLS.program(name));
    command.env("NO_PROXY", "127.0.0.1");
    command
}

/// An interpreter of this minor version of Python 3: on the path, or one that pyenv has installed.
pub(crate) fn interpreter(minor: u32) -> Option<PathBuf> {
    let name = format!("python3.{minor}");
    let root = std::env::var_os("PYENV_ROOT").map(PathBuf::from);
    let root = root.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".pyenv")))?;
    let installed = fs::read_dir(root.join("versions")).into_iter().flatten().flatten();
    let kept = installed.map(|version| version.path().join("bin").join(&name)).filter(|path| path.exists());
    // A program of pyenv on the path may refuse to run.
    let answers = |path: &PathBuf| run::output(Command::new(path).arg("--version")).is_some();
    std::iter::once(PathBuf::from(&name)).chain(kept).find(answers)
}

impl Environment {
    /// Creates the environment if it is missing or was created for other requirements.
    pub(crate) fn prepare(&self) -> Result<(), Failure> {
        let folder = self.path().ok_or_else(|| missing("a cache folder"))?;
        let stamp = folder.join(STAMP);
        if fs::read_to_string(&stamp).is_ok_and(|made_for| made_for == self.requirements) {
            println!("python: {}", folder.display());
            return Ok(());
        }
        println!("python: installing in {}", folder.display());
        if run::run(&mut venv(&folder)).is_err() {
            run::apt_install("python3-venv");
            run::run(&mut venv(&folder)).map_err(|_| missing("python3 with venv and pip"))?;
        }
        let wanted = folder.join("wanted.txt");
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| Failure::Write { path, source }
        };
        fs::write(&wanted, self.requirements).map_err(failed(&wanted))?;
        let mut pip = Command::new(folder.join("bin/pip"));
        pip.args(["install", "--quiet", "--disable-pip-version-check", "--requirement"]).arg(&wanted);
        run::run(&mut pip).map_err(|_| missing("a package index that pip reaches"))?;
        fs::rename(&wanted, &stamp).map_err(failed(&stamp))
    }

    /// The path of a program, such as `python`.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.path().unwrap_or_default().join("bin").join(name)
    }

    fn path(&self) -> Option<PathBuf> {
        run::cache(|name| std::env::var(name).ok()).map(|cache| cache.join(self.folder))
    }
}

fn venv(environment: &Path) -> Command {
    let mut venv = Command::new("python3");
    venv.args(["-m", "venv", "--clear"]).arg(environment);
    venv
}

fn missing(what: &str) -> Failure {
    let how = "on Debian and Ubuntu `apt-get install python3-venv` as root, elsewhere https://www.python.org, \
               and pip must reach a package index";
    Failure::Missing(vec![format!("{what}, for the tools that check the server and the Python client: {how}")])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_is_pinned() {
        let packages: Vec<&str> = [TOOLS, LLAMA]
            .iter()
            .flat_map(|one| one.requirements.lines())
            .filter(|line| !line.starts_with('#'))
            .collect();
        assert!(packages.iter().all(|line| line.contains("==")), "{packages:?}");
        for package in
            ["schemathesis==", "grpcio==", "grpcio-tools==", "mypy==", "basedpyright==", "openai==", "anthropic=="]
        {
            assert!(packages.iter().any(|line| line.starts_with(package)), "{packages:?}");
        }
    }
}
