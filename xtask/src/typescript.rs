//! `cargo xtask typescript`: compiles and tests the TypeScript client against a server, and installs its package.
//!
//! The check runs in a copy of the client, so that it writes nothing into the work tree. Its packages are installed in the
//! user's cache.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::run::{self, Failure};
use crate::served::{self, run_for};

/// The client and the scenarios that the clients of all languages run, from the repository root.
const CLIENT: &str = "clients/typescript";
const SCENARIOS: &str = "clients/scenarios.json";
/// Folders of the client that npm and the compiler write.
const WRITTEN: [&str; 2] = ["node_modules", "build"];

const MANIFEST: &str = include_str!("../../clients/typescript/package.json");
/// All packages with their versions and hashes.
const LOCK: &str = include_str!("../../clients/typescript/package-lock.json");
/// The folder of the client's packages in the user's cache.
const CLIENT_PACKAGES: &str = "verify-node";
/// Records the lock file of the installed packages. Written last, so that a partial installation is repeated.
const STAMP: &str = "earmark-package-lock.json";

/// The oldest major version of Node that the client supports.
const NODE_MIN: u32 = 20;
/// Seconds after which the check is killed. It takes about 20.
const SECONDS_MAX: u64 = 240;

/// Installs Node if it is missing, and the packages of the client.
pub(crate) fn prepare() -> Result<(), Failure> {
    install(CLIENT_PACKAGES, MANIFEST, LOCK).map(drop)
}

/// Installs Node if it is missing, and packages into a folder of the cache if they are missing or those of another lock
/// file. Returns the folder.
pub(crate) fn install(folder: &str, manifest: &str, lock: &str) -> Result<PathBuf, Failure> {
    if node().is_none() || run::output(&mut run::command("npm", "--version")).is_none() {
        run::apt_install("nodejs npm");
    }
    let version = node().ok_or_else(|| missing("node and npm"))?;
    if major(&version).is_none_or(|major| major < NODE_MIN) {
        return Err(missing(&format!("node {NODE_MIN} or later (found {version})")));
    }
    let packages = cached(folder)?;
    let stamp = packages.join(STAMP);
    if fs::read_to_string(&stamp).is_ok_and(|made_for| made_for == lock) {
        println!("node: {version}, packages in {}", packages.display());
        return Ok(packages);
    }
    println!("node: {version}, installing packages in {}", packages.display());
    let write = |name: &str, text: &str| {
        let path = packages.join(name);
        fs::write(&path, text).map_err(|source| Failure::Write { path, source })
    };
    fs::create_dir_all(&packages).map_err(|source| Failure::Write { path: packages.clone(), source })?;
    write("package.json", manifest)?;
    write("package-lock.json", lock)?;
    let mut npm = run::command("npm", "ci --ignore-scripts --no-audit --no-fund --loglevel error");
    run::run(npm.current_dir(&packages)).map_err(|_| missing("a package registry that npm reaches"))?;
    write(STAMP, lock)?;
    Ok(packages)
}

/// Compiles and tests a copy of the client.
pub(crate) fn check() -> Result<(), Failure> {
    let server = served::build()?;
    let folder = std::env::temp_dir().join(format!("earmark-typescript-{}", std::process::id()));
    let checked = check_in(&folder, &server);
    _ = fs::remove_dir_all(&folder);
    checked
}

fn check_in(folder: &Path, server: &Path) -> Result<(), Failure> {
    let client = folder.join(CLIENT);
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Failure::Write { path, source }
    };
    copy(&run::root().join(CLIENT), &client).map_err(failed(&client))?;
    fs::copy(run::root().join(SCENARIOS), folder.join(SCENARIOS)).map_err(failed(folder))?;
    let installed = packages()?.join("node_modules");
    std::os::unix::fs::symlink(installed, client.join("node_modules")).map_err(failed(&client))?;
    let mut test = run::command("npm", "test --silent");
    test.current_dir(&client).env("EARMARK_BIN", server).env("NO_PROXY", "127.0.0.1");
    let status = run_for(&mut test, Duration::from_secs(SECONDS_MAX))?;
    if status.success() {
        return Ok(());
    }
    Err(Failure::Ended { line: run::line(&test), status })
}

/// Copies a folder without the folders that npm and the compiler write.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if WRITTEN.iter().any(|written| entry.file_name() == *written) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            copy(&source, &target)?;
        } else {
            fs::copy(&source, &target)?;
        }
    }
    Ok(())
}

/// The folder with the packages of the client.
pub(crate) fn packages() -> Result<PathBuf, Failure> {
    cached(CLIENT_PACKAGES)
}

fn cached(folder: &str) -> Result<PathBuf, Failure> {
    let cache = run::cache(|name| std::env::var(name).ok()).ok_or_else(|| missing("a cache folder"))?;
    Ok(cache.join(folder))
}

fn node() -> Option<String> {
    run::output(&mut run::command("node", "--version")).map(|version| version.trim().to_owned())
}

/// The 20 in `v20.11.1`.
fn major(version: &str) -> Option<u32> {
    version.strip_prefix('v')?.split('.').next()?.parse().ok()
}

fn missing(what: &str) -> Failure {
    let how = "on Debian and Ubuntu `apt-get install nodejs npm` as root, elsewhere https://nodejs.org, and npm must reach \
               a package registry";
    Failure::Missing(vec![format!("{what}, for the tests of the TypeScript client and the console: {how}")])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_the_package_is_that_of_the_workspace() {
        let version = format!("\"version\": \"{}\"", env!("CARGO_PKG_VERSION"));
        assert!(MANIFEST.contains(&version), "package.json has another version than {version}");
        assert!(LOCK.contains(&version), "package-lock.json has another version than {version}");
    }

    #[test]
    fn the_major_version_of_node_is_read() {
        for (version, expected) in [("v20.11.1", Some(20)), ("v9.0.0", Some(9)), ("20.1", None), ("", None)] {
            assert_eq!(major(version), expected, "{version}");
        }
    }

    #[test]
    fn a_copy_has_no_written_folders() {
        let folder = std::env::temp_dir().join(format!("earmark-xtask-copy-{}", std::process::id()));
        let (from, to) = (folder.join("from"), folder.join("to"));
        for file in ["a.json", "src/b.ts", "node_modules/c.js", "build/d.js"] {
            let path = from.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "text").unwrap();
        }
        copy(&from, &to).unwrap();
        let has = |file: &str| to.join(file).exists();
        let found = [has("a.json"), has("src/b.ts"), has("node_modules"), has("build")];
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found, [true, true, false, false]);
    }
}
