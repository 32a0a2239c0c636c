//! `cargo xtask soak`: the random tests, for much longer than `verify` can afford.

use std::process::Command;
use std::time::Instant;

use crate::run::{self, Failure};

/// How long a soak takes unless told otherwise.
pub(crate) const MINUTES_DEFAULT: u64 = 10;
/// The longest soak: a week.
pub(crate) const MINUTES_MAX: u64 = 7 * 24 * 60;

/// The tests that read `EARMARK_SOAK_SECONDS` and print their seeds and counts. Cargo runs them one
/// after the other, so they share the time.
const TESTS: [&str; 2] = ["model", "fuzz"];

pub(crate) fn soak(minutes: u64) -> Result<(), Failure> {
    let mut tests = command(minutes);
    println!("soak for {minutes} min: {}", run::line(&tests));
    let start = Instant::now();
    run::run(&mut tests)?;
    println!("soak passed in {}; its seeds and counts belong in docs/testing.md", run::time(start.elapsed()));
    Ok(())
}

fn command(minutes: u64) -> Command {
    let seconds = minutes * 60 / TESTS.len() as u64;
    let tests = TESTS.map(|test| format!("--test {test}")).join(" ");
    let args = format!("test --release --locked -p earmark-core {tests} -- --nocapture");
    let mut command = run::command("cargo", &args);
    command.env("EARMARK_SOAK_SECONDS", seconds.to_string());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tests_share_the_minutes() {
        assert_eq!(
            run::line(&command(10)),
            "EARMARK_SOAK_SECONDS=\"300\" cargo test --release --locked -p earmark-core \
             --test model --test fuzz -- --nocapture"
        );
    }
}
