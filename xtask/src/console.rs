//! `cargo xtask console`: checks the console in a real Chromium against a real server. Its data are made through the API.
//!
//! Where Chromium cannot be had, the check is skipped and says how to get it.

use std::path::PathBuf;
use std::time::Duration;

use crate::run::{self, Failure};
use crate::served::{self, run_for};
use crate::typescript;

/// The script, from the repository root.
const SCRIPT: &str = "xtask/console/check.mjs";
const MANIFEST: &str = include_str!("../console/package.json");
/// The driver of the browser and the checker of accessibility, with their versions and hashes.
const LOCK: &str = include_str!("../console/package-lock.json");
/// The folder of the packages in the user's cache.
const PACKAGES: &str = "verify-console";
/// Names the browser, if it is elsewhere.
const VARIABLE: &str = "CHROMIUM";
const CHROMIUM: &str = "/usr/bin/chromium";
/// Seconds after which the check is killed. It takes about 90.
const SECONDS_MAX: u64 = 600;

/// Options of the check.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// A folder for screenshots; none are made without it.
    pub(crate) screenshots: Option<String>,
    /// A server that is built already.
    pub(crate) binary: Option<String>,
}

impl Options {
    pub(crate) fn parse(args: &[&str]) -> Result<Options, Failure> {
        let mut options = Options::default();
        let mut rest = args;
        while let [name, value, more @ ..] = rest {
            match *name {
                "--screenshots" => options.screenshots = Some((*value).to_owned()),
                "--binary" => options.binary = Some((*value).to_owned()),
                _ => break,
            }
            rest = more;
        }
        match rest {
            [] => Ok(options),
            [found, ..] => {
                Err(Failure::Usage(format!("found {found:?}, allowed are --screenshots FOLDER and --binary FILE")))
            }
        }
    }
}

/// Installs the browser if that is possible, and the packages that drive it.
pub(crate) fn prepare() -> Result<(), Failure> {
    match chromium() {
        Some(chromium) => {
            println!("chromium: {chromium}");
            typescript::install(PACKAGES, MANIFEST, LOCK).map(drop)
        }
        None => {
            println!("{}", skipped());
            Ok(())
        }
    }
}

fn skipped() -> String {
    format!("skipped: console: no Chromium at {CHROMIUM}; `apt-get install chromium` as root, or name it in {VARIABLE}")
}

pub(crate) fn check(options: &Options) -> Result<(), Failure> {
    let Some(chromium) = chromium() else {
        println!("{}", skipped());
        return Ok(());
    };
    let packages = typescript::install(PACKAGES, MANIFEST, LOCK)?;
    let binary = match &options.binary {
        Some(binary) => std::path::absolute(binary).unwrap_or_else(|_| PathBuf::from(binary)),
        None => served::build()?,
    };
    let mut script = run::command("node", SCRIPT);
    script.arg(binary).arg(packages).args(&options.screenshots).env(VARIABLE, chromium).env("NO_PROXY", "127.0.0.1");
    let status = run_for(&mut script, Duration::from_secs(SECONDS_MAX))?;
    if status.success() { Ok(()) } else { Err(Failure::Ended { line: run::line(&script), status }) }
}

/// The browser, installed if that is possible.
fn chromium() -> Option<String> {
    let path = std::env::var(VARIABLE).unwrap_or_else(|_| CHROMIUM.to_owned());
    let is_there = || run::output(run::command(&path, "--version").env("HOME", "/nonexistent")).is_some();
    if !is_there() && path == CHROMIUM {
        run::apt_install("chromium");
    }
    is_there().then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_parsed_and_others_refused() {
        let parsed = Options::parse(&["--screenshots", "docs/console"]).unwrap();
        assert_eq!(parsed, Options { screenshots: Some("docs/console".into()), binary: None });
        for args in [&["--pictures", "x"][..], &["--binary"]] {
            let message = Options::parse(args).unwrap_err().to_string();
            assert_eq!(message, format!("found {:?}, allowed are --screenshots FOLDER and --binary FILE", args[0]));
        }
    }

    #[test]
    fn every_package_has_a_hash() {
        let entries = LOCK.matches("\"node_modules/").count();
        assert_eq!((entries, LOCK.matches("\"integrity\": \"sha512-").count()), (2, 2));
    }
}
