//! `cargo xtask soak`: the random tests, for much longer than `verify` can afford.

use std::process::Command;
use std::time::Instant;

use crate::run::{self, Failure};

/// How long a soak takes unless told otherwise.
pub(crate) const MINUTES_DEFAULT: u64 = 10;
/// The longest soak: a week.
pub(crate) const MINUTES_MAX: u64 = 7 * 24 * 60;

/// The files of tests that read `EARMARK_SOAK_SECONDS` and print their seeds and counts, and how many such
/// tests each has. They run one after the other, so they share the time.
const TESTS: [(&str, u64); 3] = [("model", 2), ("determinism", 4), ("fuzz", 5)];

pub(crate) fn soak(minutes: u64) -> Result<(), Failure> {
    let mut tests = command(minutes);
    println!("soak for {minutes} min: {}", run::line(&tests));
    let start = Instant::now();
    run::run(&mut tests)?;
    println!("soak passed in {}; its seeds and counts belong in docs/testing.md", run::time(start.elapsed()));
    Ok(())
}

fn command(minutes: u64) -> Command {
    let count: u64 = TESTS.iter().map(|(_, count)| count).sum();
    let files = TESTS.map(|(file, _)| format!("--test {file}")).join(" ");
    let args = format!("test --release --locked -p earmark-core {files} -- --nocapture --test-threads=1");
    let mut command = run::command("cargo", &args);
    command.env("EARMARK_SOAK_SECONDS", (minutes * 60 / count).to_string());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A test that is added to a file must be added to the count, or the soak takes longer than it says.
    #[test]
    fn every_test_that_soaks_is_counted() {
        for (file, count) in TESTS {
            let path = format!("{}/../crates/core/tests/{file}.rs", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(&path).unwrap();
            assert_eq!(text.matches(" each_seed(").count() as u64, count, "{file}");
        }
    }

    #[test]
    fn the_tests_share_the_minutes() {
        assert_eq!(
            run::line(&command(11)),
            "EARMARK_SOAK_SECONDS=\"60\" cargo test --release --locked -p earmark-core \
             --test model --test determinism --test fuzz -- --nocapture --test-threads=1"
        );
    }
}
