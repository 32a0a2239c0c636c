//! `cargo xtask plant`: puts bugs into a copy of the tree, and sees that the simulation finds them.

mod bugs;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bugs::{BUGS, Bug};

use crate::run::{self, Failure};

/// The folders and files that the simulation is built from.
const PARTS: [&str; 7] =
    [".cargo", "Cargo.lock", "Cargo.toml", "clippy.toml", "crates", "rustfmt.toml", "xtask"];
/// A search for a seed takes so long at most, per bug.
const SEARCH_SECONDS: u64 = 600;
/// As long as the seeds below were found with.
const STEPS: u64 = 1_500;

/// Which bugs, and whether their seeds are known.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plant {
    pub(crate) only: Option<String>,
    pub(crate) search: bool,
}

pub(crate) fn plant(plant: &Plant) -> Result<(), Failure> {
    let chosen: Vec<&Bug> =
        BUGS.iter().filter(|bug| plant.only.as_ref().is_none_or(|only| only == bug.name)).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = BUGS.iter().map(|bug| bug.name).collect();
        return Err(Failure::Usage(format!("no such bug, allowed are {}", names.join(", "))));
    }
    let garden = std::env::temp_dir().join("earmark-plant");
    let mut missed = Vec::new();
    for bug in chosen {
        println!("\n{}: {}", bug.name, bug.what);
        copy_all(&garden)?;
        sow(bug, &garden)?;
        let mut simulation = simulation(bug, &garden, plant.search);
        println!("{}", run::line(&simulation));
        let output = simulation.output().map_err(|source| start(&simulation, source))?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let heard = String::from_utf8_lossy(&output.stdout).into_owned();
        match found(&format!("{said}\n{heard}")) {
            Some(how) if !output.status.success() => println!("found: {how}"),
            _ => {
                println!(
                    "{}",
                    said.lines().chain(heard.lines()).map(|line| format!("  {line}\n")).collect::<String>()
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

/// What the simulation says when something is wrong; a bug that keeps it from being built is not found.
fn found(said: &str) -> Option<String> {
    let why = said.lines().find(|line| line.starts_with("seed ") || line.contains(" panicked at "))?;
    let again = said.lines().find(|line| line.starts_with("again: ")).unwrap_or("");
    Some(format!("{why}\n{again}"))
}

fn simulation(bug: &Bug, garden: &Path, search: bool) -> Command {
    let mut command = run::command("cargo", "test --locked -p earmark-node --test sim");
    command.arg(bug.test).args(["--", "--nocapture"]).current_dir(garden);
    // Cargo tells two copies of a tree apart by the times of their files alone, so they must not share a folder.
    command.env("CARGO_TARGET_DIR", garden.join("target")).env("EARMARK_SIM_STEPS", STEPS.to_string());
    if search {
        command.env("EARMARK_SOAK_SECONDS", SEARCH_SECONDS.to_string()).env("EARMARK_START_SEED", "1");
    } else {
        command.env("EARMARK_SEED", bug.seed.to_string());
    }
    command
}

/// Makes the copy equal to the tree. A file that is so already keeps its time, so that it is not built again.
fn copy_all(garden: &Path) -> Result<(), Failure> {
    PARTS.iter().try_for_each(|part| copy(&run::root().join(part), &garden.join(part)))
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

fn sow(bug: &Bug, garden: &Path) -> Result<(), Failure> {
    for edit in bug.edits {
        let path: PathBuf = garden.join(edit.path);
        let text =
            fs::read_to_string(&path).map_err(|source| Failure::Read { path: path.clone(), source })?;
        let changed = text.replacen(edit.from, edit.to, 1);
        fs::write(&path, changed).map_err(|source| Failure::Write { path, source })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bug whose place is gone would be planted nowhere, and look as if it had been missed.
    #[test]
    fn every_bug_has_its_place_in_the_source() {
        for bug in &BUGS {
            for edit in bug.edits {
                let text = fs::read_to_string(run::root().join(edit.path)).unwrap();
                assert_eq!(text.matches(edit.from).count(), 1, "{}: {}", bug.name, edit.path);
            }
        }
    }

    #[test]
    fn what_the_simulation_found_is_told_from_what_did_not_compile() {
        let said = "1 ms c0 asks\nseed 7 of 3 nodes: lost\nagain: EARMARK_SEED=7";
        assert_eq!(found(said).as_deref(), Some("seed 7 of 3 nodes: lost\nagain: EARMARK_SEED=7"));
        assert_eq!(found("error: could not compile"), None);
    }
}
