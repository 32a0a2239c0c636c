//! `cargo xtask soak`: runs the random tests for longer than `verify` can.

use std::process::Command;
use std::time::Instant;

use crate::run::{self, Failure};
use crate::tigerbeetle;

/// Default duration in minutes.
pub(crate) const MINUTES_DEFAULT: u64 = 10;
/// Longest duration in minutes: one week.
pub(crate) const MINUTES_MAX: u64 = 7 * 24 * 60;

/// Test binaries that read `EARMARK_SOAK_SECONDS` and print their seeds and counts: name, file, and number of tests. The
/// tests run one after another and share the time.
const TESTS: [(&str, &str, u64); 8] = [
    ("model", "core/tests/model.rs", 2),
    ("determinism", "core/tests/determinism.rs", 4),
    ("fuzz", "core/tests/fuzz.rs", 5),
    ("documents", "policy/tests/documents/main.rs", 1),
    ("sim", "node/tests/sim/main.rs", 5),
    // Its other tests try all their cases in a soak, whatever its duration.
    ("suite", "node/tests/suite/storage/crash.rs", 1),
    ("differential", "tigerbeetle/tests/differential/main.rs", 2),
    ("sdk", "cli/tests/sdk/main.rs", 2),
];

/// Process kills per database, for every duration.
const KILLS: u32 = 50;

pub(crate) fn soak(minutes: u64) -> Result<(), Failure> {
    let mut tests = command(minutes);
    println!("soak for {minutes} min: {}", run::line(&tests));
    let start = Instant::now();
    run::run(&mut tests)?;
    let mut kills = kills();
    println!("{KILLS} process kills and all faults per database: {}", run::line(&kills));
    run::run(&mut kills)?;
    tigerbeetle::report();
    println!("soak passed in {}; record its seeds and counts in docs/testing.md", run::time(start.elapsed()));
    Ok(())
}

fn command(minutes: u64) -> Command {
    let count: u64 = TESTS.iter().map(|(_, _, count)| count).sum();
    let files = TESTS.map(|(name, _, _)| format!("--test {name}")).join(" ");
    let args = format!(
        "test --release --locked -p earmark-core -p earmark-policy -p earmark-node -p earmark-tigerbeetle -p earmark {files} -- --nocapture \
         --test-threads=1"
    );
    let mut command = run::command("cargo", &args);
    command.env("EARMARK_SOAK_SECONDS", (minutes * 60 / count).to_string());
    command
}

/// The process kills, and a fault at every call of every saga, on every database.
fn kills() -> Command {
    let args =
        "test --release --locked -p earmark-credits --test suite -- kill:: every_saga_ --nocapture --test-threads=1";
    let mut command = run::command("cargo", args);
    command.env("EARMARK_FAULT_STRIDE", "1");
    command.env("EARMARK_KILLS", KILLS.to_string());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A test missing from the count would make the soak take longer than requested.
    #[test]
    fn every_test_that_soaks_is_counted() {
        for (_, file, count) in TESTS {
            let path = format!("{}/../crates/{file}", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(&path).unwrap();
            assert_eq!(text.matches(" each_seed(").count() as u64, count, "{file}");
        }
    }

    #[test]
    fn the_tests_share_the_minutes() {
        assert_eq!(
            run::line(&command(22)),
            "EARMARK_SOAK_SECONDS=\"60\" cargo test --release --locked -p earmark-core -p earmark-policy -p earmark-node \
             -p earmark-tigerbeetle -p earmark --test model --test determinism --test fuzz --test documents \
             --test sim --test suite --test differential --test sdk -- --nocapture --test-threads=1"
        );
    }
}
