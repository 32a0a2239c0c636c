//! The Debian package: built by cargo-deb, judged by lintian, installed and removed by dpkg in a root of its own.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Checked, copy, failed, has, libraries, read, write_failed};
use crate::run::{self, Failure};

/// Files that the package installs.
const FILES: [&str; 5] = [
    "usr/bin/earmark",
    "etc/earmark/earmark.toml",
    "usr/lib/systemd/system/earmark.service",
    "usr/lib/sysusers.d/earmark.conf",
    "usr/share/man/man1/earmark.1.gz",
];
/// The version of cargo-deb to install where it is missing.
const CARGO_DEB: &str = "3.8.0";
/// Programs of the maintainer scripts.
const PROGRAMS: [&str; 6] = ["sh", "chown", "chmod", "rm", "true", "systemd-sysusers"];

pub(super) fn check(binary: &Path, scratch: &Path) -> Result<Checked, Failure> {
    let Some(cargo_deb) = cargo_deb() else {
        return Ok(Checked::Skipped(format!("cargo-deb is missing; cargo install cargo-deb@{CARGO_DEB} --locked")));
    };
    if !has("dpkg-deb") {
        return Ok(Checked::Skipped("dpkg-deb is missing; apt-get install dpkg".into()));
    }
    if libraries(binary)?.is_empty() {
        return Ok(Checked::Skipped("the program is static; the package is linked with glibc".into()));
    }
    let package = scratch.join("earmark.deb");
    // The stripped binary of the tests stands for the one of a release.
    let target = scratch.join("target");
    fs::create_dir_all(target.join("release")).map_err(write_failed(&target))?;
    run::run(Command::new("strip").arg("-o").arg(target.join("release/earmark")).arg(binary))?;
    let mut build = Command::new(cargo_deb);
    build.current_dir(run::root()).args(["deb", "--package", "earmark", "--no-build", "--no-strip", "--locked"]);
    run::run(build.args(["--fast", "--output"]).arg(&package).env("CARGO_TARGET_DIR", &target))?;
    let lint = lint(&package)?;
    let installed = install(&package, scratch)?;
    Ok(Checked::Passed(format!("built, {lint}, {installed}")))
}

/// The program that builds the package: on the PATH, or in the user's cache.
fn cargo_deb() -> Option<PathBuf> {
    let cached = folder()?.join("bin/cargo-deb");
    let answers = |program: &PathBuf| run::output(Command::new(program).arg("--version")).is_some();
    [PathBuf::from("cargo-deb"), cached].into_iter().find(answers)
}

fn folder() -> Option<PathBuf> {
    run::cache(|name| std::env::var(name).ok()).map(|cache| cache.join(format!("cargo-deb-{CARGO_DEB}")))
}

/// Installs the program that builds the package into the user's cache, if it is missing.
pub(super) fn install_cargo_deb() -> Option<PathBuf> {
    if cargo_deb().is_none() {
        let folder = folder()?;
        println!("cargo-deb: installing in {}", folder.display());
        let mut install = run::command(
            "cargo",
            "install --quiet --locked --debug --no-default-features --features static-lzma --root",
        );
        // Not below a target folder that another check uses.
        install.arg(&folder).arg(format!("cargo-deb@{CARGO_DEB}")).env_remove("CARGO_TARGET_DIR");
        _ = run::run(&mut install);
    }
    cargo_deb()
}

fn lint(package: &Path) -> Result<String, Failure> {
    if !has("lintian") {
        return Ok("skipped: lintian (apt-get install lintian)".into());
    }
    let mut lintian = Command::new("lintian");
    lintian.args(["--allow-root", "--fail-on", "error,warning"]).arg(package);
    run::run(&mut lintian)?;
    Ok("lintian clean".into())
}

/// Installs, removes and purges the package in a root of its own. Only root can, because dpkg changes its root for the
/// maintainer scripts.
fn install(package: &Path, scratch: &Path) -> Result<String, Failure> {
    let is_root = run::output(&mut run::command("id", "-u")).is_some_and(|id| id.trim() == "0");
    let programs: Vec<PathBuf> = PROGRAMS.iter().filter_map(|name| which(name)).collect();
    if !is_root || programs.len() < PROGRAMS.len() {
        return Ok("skipped: the installation (run as root, with systemd installed)".into());
    }
    let root = scratch.join("root");
    prepare_root(&root, &programs)?;
    let dpkg = |words: &[&str], package: Option<&Path>| {
        let mut dpkg = Command::new("dpkg");
        dpkg.arg(format!("--root={}", root.display())).args(["--force-depends"]).args(words).args(package);
        run::run(dpkg.env("DEBIAN_FRONTEND", "noninteractive"))
    };
    let must = |is_so: bool, what: &str| if is_so { Ok(()) } else { Err(failed(format!("the package {what}"))) };
    dpkg(&["--install"], Some(package))?;
    let lacks: Vec<&str> = FILES.into_iter().filter(|file| !root.join(file).is_file()).collect();
    must(lacks.is_empty(), &format!("does not install {}", lacks.join(", ")))?;
    must(read(&root.join("etc/passwd"))?.contains("\nearmark:"), "does not create its user")?;
    let mode = fs::metadata(root.join("etc/earmark")).map_err(write_failed(&root))?.permissions().mode();
    must(mode & 0o007 == 0, "lets others read /etc/earmark")?;
    dpkg(&["--remove", "earmark"], None)?;
    must(!root.join("usr/bin/earmark").exists(), "leaves its program when it is removed")?;
    must(root.join("etc/earmark/earmark.toml").exists(), "loses its settings when it is removed")?;
    let data = root.join("var/lib/earmark");
    fs::create_dir_all(&data).map_err(write_failed(&data))?;
    dpkg(&["--purge", "earmark"], None)?;
    must(!root.join("etc/earmark/earmark.toml").exists(), "leaves its settings when it is purged")?;
    must(data.exists(), "removes the data when it is purged")?;
    Ok("installed, removed and purged by dpkg".into())
}

/// Makes a root with the programs of the maintainer scripts, their libraries, and an empty database of dpkg.
fn prepare_root(root: &Path, programs: &[PathBuf]) -> Result<(), Failure> {
    for folder in ["var/lib/dpkg/updates", "var/lib/dpkg/info", "var/log", "etc", "tmp", "dev", "usr/bin"] {
        fs::create_dir_all(root.join(folder)).map_err(write_failed(root))?;
    }
    let account = "root:x:0:0:root:/root:/bin/sh\n";
    for (file, text) in [
        ("var/lib/dpkg/status", ""),
        ("dev/null", ""),
        ("etc/passwd", account),
        ("etc/group", "root:x:0:\n"),
        ("etc/shadow", "root:*:::::::\n"),
    ] {
        fs::write(root.join(file), text).map_err(write_failed(&root.join(file)))?;
    }
    for program in programs {
        let name = program.file_name().unwrap_or_default();
        copy(program, &root.join("bin").join(name))?;
        for library in libraries(program)? {
            copy(&library, &root.join(library.strip_prefix("/").unwrap_or(&library)))?;
        }
    }
    Ok(())
}

/// The path of a program on the PATH.
fn which(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join(program)).find(|file| file.is_file())
}
