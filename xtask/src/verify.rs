//! `cargo xtask verify`: everything that must hold before a change goes in, and exactly what CI runs.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::api;
use crate::console;
use crate::deploy;
use crate::envoy;
use crate::gateway;
use crate::grpc;
use crate::licences;
use crate::monitoring;
use crate::postgres;
use crate::python_client;
use crate::run::{self, Failure};
use crate::setup;
use crate::tidy;
use crate::tigerbeetle;
use crate::typescript;

/// The step that gets a PostgreSQL server.
const TESTS: &str = "tests";

struct Step<'a> {
    name: &'static str,
    /// The command to repeat it by.
    line: String,
    action: Box<dyn FnOnce() -> Result<(), Failure> + 'a>,
}

impl<'a> Step<'a> {
    fn new(name: &'static str, line: &str, action: impl FnOnce() -> Result<(), Failure> + 'a) -> Step<'a> {
        Step { name, line: line.to_owned(), action: Box::new(action) }
    }

    fn command(name: &'static str, mut command: Command) -> Step<'a> {
        Step::new(name, &run::line(&command), move || run::run(&mut command))
    }

    fn on_postgres(name: &'static str, mut command: Command) -> Step<'a> {
        Step::new(name, &run::line(&command), move || postgres::with_server(&mut command))
    }
}

pub(crate) fn verify() -> Result<(), Failure> {
    let start = Instant::now();
    let before = work_tree();
    let has_nextest = run::output(&mut run::command("cargo", "nextest --version")).is_some();

    let mut steps = vec![Step::new("setup", "what is needed besides Rust", setup::prepare)];
    steps.extend(cargo(has_nextest).into_iter().map(|(name, command)| match name {
        TESTS => Step::on_postgres(name, command),
        _ => Step::command(name, command),
    }));
    steps.push(Step::new("api", "cargo xtask api", api::check));
    steps.push(Step::new("grpc", "cargo xtask grpc", grpc::check));
    steps.push(Step::new("python", "cargo xtask python", python_client::check));
    steps.push(Step::new("typescript", "cargo xtask typescript", typescript::check));
    steps.push(Step::new("gateway", "cargo xtask gateway", gateway::check));
    steps.push(Step::new("console", "cargo xtask console", || console::check(&console::Options::default())));
    steps.push(Step::new("monitoring", "cargo xtask monitoring --check", monitoring::check));
    steps.push(Step::new("envoy", "cargo xtask envoy", envoy::check));
    steps.push(Step::new("deploy", "cargo xtask deploy", || deploy::check(None)));
    steps.push(Step::new("licences", "cargo xtask licences", licences::check));
    steps.push(Step::new("tidy", "cargo xtask tidy", tidy::tidy));
    steps.push(Step::new("work tree", "git status --porcelain", || {
        unchanged(before.as_deref(), work_tree().as_deref())
    }));

    let mut times = Vec::new();
    let result = follow(steps, &mut times);
    println!("\n{}", summary(&times));
    result?;
    tigerbeetle::report();
    println!("verify passed in {}", run::time(start.elapsed()));
    Ok(())
}

/// The steps that cargo does.
fn cargo(has_nextest: bool) -> Vec<(&'static str, Command)> {
    // Not --all-targets: that would run the benches too.
    let tests = if has_nextest {
        "nextest run --workspace --locked"
    } else {
        "test --workspace --lib --bins --tests --examples --locked"
    };
    let mut docs = run::command("cargo", "doc --workspace --no-deps --locked");
    docs.env("RUSTDOCFLAGS", "-D warnings");
    vec![
        ("format", run::command("cargo", "fmt --all --check")),
        ("clippy", run::command("cargo", "clippy --workspace --all-targets --locked -- -D warnings")),
        (TESTS, run::command("cargo", tests)),
        ("doc tests", run::command("cargo", "test --doc --workspace --locked")),
        ("docs", docs),
    ]
}

/// Takes the steps in order up to the first that fails, and notes how long each took.
fn follow(steps: Vec<Step<'_>>, times: &mut Vec<(&'static str, Duration)>) -> Result<(), Failure> {
    let count = steps.len();
    for (place, Step { name, line, action }) in (1..).zip(steps) {
        println!("\n[{place}/{count}] {name}: {line}");
        let start = Instant::now();
        let result = action();
        times.push((name, start.elapsed()));
        result.map_err(|source| Failure::Step { name, source: Box::new(source) })?;
        println!("[{place}/{count}] {name}: ok in {}", run::time(start.elapsed()));
    }
    Ok(())
}

fn summary(times: &[(&str, Duration)]) -> String {
    times.iter().map(|(name, duration)| format!("{name:<10} {:>12}\n", run::time(*duration))).collect()
}

/// The changes since the last commit; `None` without git. In a clean checkout, such as that of CI, it shows every change
/// to a file that git does not ignore.
fn work_tree() -> Option<String> {
    // Without optional locks, or looking could rewrite git's index under someone's commit.
    run::output(&mut run::command("git", "--no-optional-locks status --porcelain --untracked-files=all"))
}

fn unchanged(before: Option<&str>, after: Option<&str>) -> Result<(), Failure> {
    let (Some(before), Some(after)) = (before, after) else {
        println!("skipped: this is no git checkout");
        return Ok(());
    };
    let only_in = |one: &str, other: &str| -> Vec<String> {
        one.lines().filter(|line| !other.lines().any(|l| l == *line)).map(str::to_owned).collect()
    };
    let changes = [only_in(before, after), only_in(after, before)].concat();
    if changes.is_empty() { Ok(()) } else { Err(Failure::WorkTreeChanged(changes)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(has_nextest: bool) -> Vec<String> {
        cargo(has_nextest).iter().map(|(_, command)| run::line(command)).collect()
    }

    #[test]
    fn nextest_runs_the_tests_where_present_and_cargo_where_not() {
        assert_eq!(lines(true)[2], "cargo nextest run --workspace --locked");
        assert_eq!(lines(false)[2], "cargo test --workspace --lib --bins --tests --examples --locked");
        for lines in [lines(true), lines(false)] {
            assert!(lines.contains(&"cargo test --doc --workspace --locked".to_owned()));
        }
    }

    #[test]
    fn the_first_step_that_fails_is_the_last_that_runs() {
        let mut times = Vec::new();
        let steps = vec![
            Step::new("one", "", || Ok(())),
            Step::new("two", "", || Err(Failure::Untidy { violations: 3 })),
            Step::new("three", "", || panic!("ran after a failure")),
        ];
        let failure = follow(steps, &mut times).unwrap_err();
        assert_eq!(failure.to_string(), "verify failed at two: violations, listed above: 3");
        assert_eq!(times.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["one", "two"]);
    }

    #[test]
    fn the_summary_has_a_line_with_its_time_for_each_step() {
        let times = [("format", Duration::from_millis(400)), ("tests", Duration::from_secs(61))];
        assert_eq!(summary(&times), "format            0.4 s\ntests        1 min 01 s\n");
    }

    #[test]
    fn a_changed_work_tree_is_a_failure_that_says_what_changed() {
        assert!(unchanged(Some(" M a.rs\n"), Some(" M a.rs\n")).is_ok());
        assert!(unchanged(None, None).is_ok());
        let failure = unchanged(Some(" M a.rs\n"), Some("?? b.rs\n")).unwrap_err();
        assert_eq!(failure.to_string(), "the work tree changed, though verify only reads:  M a.rs, ?? b.rs");
    }
}
