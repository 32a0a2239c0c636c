//! `cargo xtask plant`: plants bugs in a copy of the tree and checks that the simulation finds them.

mod bugs;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bugs::{BUGS, Bug};

use crate::run::{self, Failure};

/// The files and folders needed to build the simulation.
const PARTS: [&str; 7] = [".cargo", "Cargo.lock", "Cargo.toml", "clippy.toml", "crates", "rustfmt.toml", "xtask"];
/// Seconds per bug to search for a seed that finds it. Seeds are not recorded: any change of the node gives them another
/// meaning. Most bugs are found by the first few.
const SEARCH_SECONDS: u64 = 600;
/// Steps per simulation.
const STEPS: u64 = 1_500;

/// The bug to plant; `None` plants all, one after another.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plant {
    pub(crate) only: Option<String>,
}

pub(crate) fn plant(plant: &Plant) -> Result<(), Failure> {
    let chosen: Vec<&Bug> = BUGS.iter().filter(|bug| plant.only.as_ref().is_none_or(|only| only == bug.name)).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = BUGS.iter().map(|bug| bug.name).collect();
        return Err(Failure::Usage(format!("unknown bug, allowed are {}", names.join(", "))));
    }
    let copy_root = std::env::temp_dir().join("earmark-plant");
    let mut missed = Vec::new();
    for bug in chosen {
        println!("\n{}: {}", bug.name, bug.what);
        copy_all(&copy_root)?;
        apply(bug, &copy_root)?;
        let mut simulation = simulation(bug, &copy_root);
        println!("{}", run::line(&simulation));
        let output = simulation.output().map_err(|source| start(&simulation, source))?;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        match found(&format!("{stderr}\n{stdout}")) {
            Some(how) if !output.status.success() => println!("found: {how}"),
            _ => {
                println!(
                    "{}",
                    stderr.lines().chain(stdout.lines()).map(|line| format!("  {line}\n")).collect::<String>()
                );
                missed.push(bug.name.to_owned());
            }
        }
    }
    if missed.is_empty() { Ok(()) } else { Err(Failure::NotFound(missed)) }
}

fn start(command: &Command, source: std::io::Error) -> Failure {
    Failure::Start { line: run::line(command), source }
}

/// The finding in the output of the simulation; `None` if it did not build.
fn found(stderr: &str) -> Option<String> {
    let why = stderr.lines().find(|line| line.starts_with("seed ") || line.contains(" panicked at "))?;
    let again = stderr.lines().find(|line| line.starts_with("again: ")).unwrap_or("");
    Some(format!("{why}\n{again}"))
}

fn simulation(bug: &Bug, copy_root: &Path) -> Command {
    let mut command = run::command("cargo", "test --locked -p earmark-node --test sim");
    command.arg(bug.test).args(["--", "--nocapture"]).current_dir(copy_root);
    // Cargo compares only modification times, so two copies of a tree must not share a target folder.
    command.env("CARGO_TARGET_DIR", copy_root.join("target")).env("EARMARK_SIM_STEPS", STEPS.to_string());
    command.env("EARMARK_SOAK_SECONDS", SEARCH_SECONDS.to_string()).env("EARMARK_START_SEED", "1");
    command
}

/// Copies the tree. Unchanged files keep their modification time, so that cargo does not rebuild them.
fn copy_all(copy_root: &Path) -> Result<(), Failure> {
    PARTS.iter().try_for_each(|part| copy(&run::root().join(part), &copy_root.join(part)))
}

fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    if from.is_dir() {
        fs::create_dir_all(to).map_err(|source| Failure::Write { path: to.to_owned(), source })?;
        let entries = fs::read_dir(from).map_err(|source| Failure::Read { path: from.to_owned(), source })?;
        for entry in entries.flatten() {
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    let bytes = fs::read(from).map_err(|source| Failure::Read { path: from.to_owned(), source })?;
    if fs::read(to).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    fs::write(to, bytes).map_err(|source| Failure::Write { path: to.to_owned(), source })
}

fn apply(bug: &Bug, copy_root: &Path) -> Result<(), Failure> {
    for edit in bug.edits {
        let path: PathBuf = copy_root.join(edit.path);
        let text = fs::read_to_string(&path).map_err(|source| Failure::Read { path: path.clone(), source })?;
        let changed = text.replacen(edit.from, edit.to, 1);
        fs::write(&path, changed).map_err(|source| Failure::Write { path, source })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bug whose source text is gone would not be planted, and look like one that the simulation missed.
    #[test]
    fn every_bug_matches_the_source_once() {
        for bug in &BUGS {
            for edit in bug.edits {
                let text = fs::read_to_string(run::root().join(edit.path)).unwrap();
                assert_eq!(text.matches(edit.from).count(), 1, "{}: {}", bug.name, edit.path);
            }
        }
    }

    #[test]
    fn a_finding_is_distinguished_from_a_build_failure() {
        let stderr = "1 ms c0 asks\nseed 7 of 3 nodes: lost\nagain: EARMARK_SEED=7";
        assert_eq!(found(stderr).as_deref(), Some("seed 7 of 3 nodes: lost\nagain: EARMARK_SEED=7"));
        assert_eq!(found("error: could not compile"), None);
    }
}
