//! `cargo xtask python`: checks the types of the Python client, tests it against a server, and installs its packages.
//!
//! Nothing is written into the work tree: caches and packages go into folders of their own.

use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::python;
use crate::run::{self, Failure};
use crate::served::{self, Callers, Server, run_for};

/// The client, from the repository root.
const CLIENT: &str = "clients/python";
/// Seconds after which the check is killed. It takes two minutes on two cores.
const SECONDS_MAX: u64 = 600;

/// The minor versions of Python 3 that the package declares.
const VERSIONS: RangeInclusive<u32> = 10..=14;

/// The commands of one check, with the time that they have together.
struct Check {
    folder: PathBuf,
    end: Instant,
}

pub(crate) fn check() -> Result<(), Failure> {
    let server = served::build()?;
    let folder = std::env::temp_dir().join(format!("earmark-python-{}", std::process::id()));
    fs::create_dir_all(&folder).map_err(|source| Failure::Write { path: folder.clone(), source })?;
    let check = Check { folder, end: Instant::now() + Duration::from_secs(SECONDS_MAX) };
    let checked = check.source(&server).and_then(|()| check.packages());
    _ = fs::remove_dir_all(&check.folder);
    checked
}

impl Check {
    /// Types and tests.
    fn source(&self, server: &Path) -> Result<(), Failure> {
        let cache = run::cache(|name| std::env::var(name).ok()).unwrap_or_else(|| self.folder.clone());
        let mut mypy = python::program("mypy");
        self.run(mypy.arg("--cache-dir").arg(cache.join("verify-mypy")))?;
        let mut pyright = python::program("basedpyright");
        self.run(pyright.arg("--pythonpath").arg(python::program("python").get_program()))?;
        let pytest = |more: &[&str]| {
            let mut pytest = python::program("python");
            pytest.args(["-m", "pytest", "--quiet", "-p", "earmark.pytest_plugin", "-o", "addopts=", "-o"]);
            pytest.arg(format!("cache_dir={}", self.folder.join("pytest").display())).args(more);
            self.run(pytest.env("EARMARK_BIN", server).env("PYTHONPATH", run::root().join(CLIENT).join("src")))
        };
        // Like the tests in Rust: they wait for real timers and processes.
        pytest(&[]).or_else(|_| {
            println!("python: the failed tests run once more; a test that passes now is flaky: look into it");
            pytest(&["--last-failed", "--last-failed-no-failures", "none"])
        })
    }

    /// Builds the packages, and installs one after the other into an environment without anything else. The wheel is
    /// tried with every version of Python that the machine has.
    fn packages(&self) -> Result<(), Failure> {
        let built = self.folder.join("built");
        let mut build = python::program("python");
        // Without isolation: the environment has the build backend.
        self.run(build.args(["-m", "build", "--no-isolation", "--outdir"]).arg(&built))?;
        let mut server = Server::build(Callers::Anyone)?;
        let [wheel, source] = files(&built)?;
        let environment = self.environment("default", Path::new("python3"))?;
        self.install(&environment, &wheel, "--quiet", &server.url)?;
        self.install(&environment, &source, "--quiet --force-reinstall --no-deps", &server.url)?;
        for minor in VERSIONS {
            let Some(interpreter) = python::interpreter(minor) else {
                println!("python: 3.{minor} is not on this machine; the package was not tried with it");
                continue;
            };
            let environment = self.environment(&format!("3.{minor}"), &interpreter)?;
            self.install(&environment, &wheel, "--quiet", &server.url)?;
        }
        server.must_be_running()
    }

    /// An environment without packages.
    fn environment(&self, name: &str, interpreter: &Path) -> Result<PathBuf, Failure> {
        let environment = self.folder.join(name);
        self.run(Command::new(interpreter).args(["-m", "venv", "--clear"]).arg(&environment))?;
        Ok(environment)
    }

    /// Installs a package and uses it.
    fn install(&self, environment: &Path, package: &Path, options: &str, server: &str) -> Result<(), Failure> {
        let mut pip = Command::new(environment.join("bin/pip"));
        pip.args(["install", "--disable-pip-version-check"]).args(options.split(' ')).arg(package);
        self.run(&mut pip)?;
        let mut smoke = Command::new(environment.join("bin/python"));
        self.run(smoke.args(["tests/smoke.py", server]).env("NO_PROXY", "127.0.0.1"))
    }

    fn run(&self, command: &mut Command) -> Result<(), Failure> {
        command.current_dir(run::root().join(CLIENT)).env("PYTHONDONTWRITEBYTECODE", "1");
        let left = self.end.saturating_duration_since(Instant::now());
        let status = run_for(command, left)?;
        if status.success() { Ok(()) } else { Err(Failure::Ended { line: run::line(command), status }) }
    }
}

/// The wheel and the source distribution.
fn files(folder: &Path) -> Result<[PathBuf; 2], Failure> {
    let failed = |source| Failure::Read { path: folder.to_owned(), source };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        found.push(entry.map_err(failed)?.path());
    }
    found.sort();
    // The name of the wheel goes on with `-`, that of the source distribution with `.`.
    found.try_into().map_err(|found| Failure::Package(format!("found {found:?}, wanted are a wheel and an sdist")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_declares_the_versions_that_it_is_tried_with() {
        let project = include_str!("../../clients/python/pyproject.toml");
        let declared: Vec<String> =
            project.lines().filter(|line| line.contains(":: Python :: 3.")).map(str::to_owned).collect();
        let tried: Vec<String> =
            VERSIONS.map(|minor| format!("    \"Programming Language :: Python :: 3.{minor}\",")).collect();
        assert_eq!(declared, tried);
        assert!(project.contains(&format!("requires-python = \">=3.{}\"", VERSIONS.start())));
    }

    #[test]
    fn the_wheel_comes_first_and_anything_else_is_a_failure() {
        let folder = std::env::temp_dir().join(format!("earmark-python-test-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (wheel, source) = (folder.join("earmark-0.1.0-py3-none-any.whl"), folder.join("earmark-0.1.0.tar.gz"));
        fs::write(&source, "").unwrap();
        assert!(files(&folder).unwrap_err().to_string().ends_with("wanted are a wheel and an sdist"));
        fs::write(&wheel, "").unwrap();
        assert_eq!(files(&folder).unwrap(), [wheel, source]);
        fs::remove_dir_all(&folder).unwrap();
    }
}
