//! `cargo xtask deploy`: checks what is in `deploy/`: the image, the unit, the package and the manifests.
//!
//! The checks use the debug binary of the tests, because a release build takes longer than all of them. A check whose
//! tool is missing is skipped by name, with the way to get the tool.

mod image;
mod manifests;
mod package;
mod unit;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::{self, Failure};
use crate::served;

/// The result of a check that did not fail.
enum Checked {
    Passed(String),
    /// The missing tool, and how to get it.
    Skipped(String),
}

/// Installs what is missing, as root on Debian. The check that needs a missing tool reports it.
pub(crate) fn prepare() {
    let missing: Vec<&str> = [
        ("systemd-analyze", "systemd"),
        ("buildah", "buildah"),
        ("lintian", "lintian"),
        ("dpkg-deb", "dpkg"),
        ("fakeroot", "fakeroot"),
    ]
    .iter()
    .filter(|(program, _)| !has(program))
    .map(|(_, package)| *package)
    .collect();
    if !missing.is_empty() {
        run::apt_install(&format!("--no-install-recommends {}", missing.join(" ")));
    }
    if !manifests::has_kubectl() {
        run::apt_install("--no-install-recommends kubernetes-client");
    }
    let found = ["systemd-analyze", "buildah", "lintian", "dpkg-deb"].map(|program| (program, has(program)));
    let found = found
        .into_iter()
        .chain([("kubectl", manifests::has_kubectl()), ("cargo-deb", package::install_cargo_deb().is_some())]);
    for (program, is_found) in found {
        println!("{program}: {}", if is_found { "found" } else { "missing; its checks are skipped" });
    }
}

/// Checks `deploy/` with a binary; without one, with that of the tests.
pub(crate) fn check(binary: Option<PathBuf>) -> Result<(), Failure> {
    let binary = binary.map_or_else(served::build, Ok)?;
    let scratch = Scratch::new()?;
    type Check = fn(&Path, &Path) -> Result<Checked, Failure>;
    let checks: [(&str, Check); 4] =
        [("manifests", manifests::check), ("unit", unit::check), ("package", package::check), ("image", image::check)];
    for (name, check) in checks {
        let folder = scratch.0.join(name);
        fs::create_dir_all(&folder).map_err(write_failed(&folder))?;
        match check(&binary, &folder)? {
            Checked::Passed(what) => println!("{name}: {what}"),
            Checked::Skipped(why) => println!("skipped: {name}: {why}"),
        }
    }
    Ok(())
}

/// A folder for the files of the checks, outside of the work tree. Removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Scratch, Failure> {
        let path = std::env::temp_dir().join(format!("earmark-deploy-{}", std::process::id()));
        fs::create_dir_all(&path).map_err(write_failed(&path))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A leftover in the folder for temporary files is harmless.
        _ = fs::remove_dir_all(&self.0);
    }
}

fn write_failed(path: &Path) -> impl Fn(std::io::Error) -> Failure {
    let path = path.to_owned();
    move |source| Failure::Write { path: path.clone(), source }
}

fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|source| Failure::Read { path: path.to_owned(), source })
}

fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).map_err(write_failed(folder))?;
    }
    fs::copy(from, to).map(drop).map_err(write_failed(to))
}

/// Whether a program is on the PATH.
fn has(program: &str) -> bool {
    run::output(Command::new(program).arg("--version")).is_some()
}

fn failed(what: String) -> Failure {
    Failure::Deploy(what)
}

/// The shared libraries of a program, with its loader; none of a static one.
fn libraries(binary: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut ldd = Command::new("ldd");
    let output = ldd.arg(binary).output().map_err(|source| Failure::Start { line: run::line(&ldd), source })?;
    let is_static = String::from_utf8_lossy(&output.stderr).contains("not a dynamic executable");
    if !output.status.success() && !is_static {
        return Err(failed(format!("`{}` failed", run::line(&ldd))));
    }
    Ok(paths(&String::from_utf8_lossy(&output.stdout)))
}

fn paths(listed: &str) -> Vec<PathBuf> {
    listed.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_the_paths_that_ldd_lists() {
        let listed =
            "\tlinux-vdso.so.1 (0x7ffd)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x7f)\n\t/lib64/ld-linux.so.2 (0x7f)\n";
        assert_eq!(paths(listed), ["/lib/x/libc.so.6", "/lib64/ld-linux.so.2"].map(PathBuf::from));
    }
}
