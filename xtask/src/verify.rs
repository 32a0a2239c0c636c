//! `cargo xtask verify`: everything that must hold before a change goes in, and exactly what CI runs.

mod steps;

use std::io::stdout;
use std::time::{Duration, Instant};

use crate::postgres;
use crate::run::{self, Failure};
use crate::tigerbeetle;
use steps::{Report, Step, follow};

/// Steps that run at once. Most wait for timers or for one process, so that two of them use two cores well.
const LANES: usize = 2;

pub(crate) fn verify() -> Result<(), Failure> {
    let start = Instant::now();
    let before = work_tree();
    let has_nextest = run::output(&mut run::command("cargo", "nextest --version")).is_some();
    let (first, rest) = (first(), rest(has_nextest));
    let mut report = Report::new(stdout(), first.len() + rest.len());
    let result = follow(first, 1, &mut report).and_then(|()| follow(rest, LANES, &mut report));
    println!("\n{}", summary(&report.times));
    result?;
    unchanged(before.as_deref(), work_tree().as_deref())?;
    tigerbeetle::report();
    println!("verify passed in {}", run::time(start.elapsed()));
    Ok(())
}

/// The steps that run alone: those of a few seconds, so that their failures show at once, and those that use all cores.
fn first() -> Vec<Step> {
    let clippy = "clippy --workspace --all-targets --locked -- -D warnings";
    vec![
        Step::task("setup", "setup"),
        Step::new("format", run::command("cargo", "fmt --all --check")),
        Step::task("tidy", "tidy"),
        Step::task("licences", "licences"),
        Step::new("clippy", run::command("cargo", clippy)),
        // All programs of the tests and the tasks, so that no step beside another waits for cargo.
        Step::new("build", run::command("cargo", "test --workspace --locked --no-run")),
    ]
}

/// The steps that run side by side. The tests take about as long as all others together.
fn rest(has_nextest: bool) -> Vec<Step> {
    // Not --all-targets: that would run the benches too.
    let tests = if has_nextest {
        "nextest run --workspace --locked"
    } else {
        "test --workspace --lib --bins --tests --examples --locked"
    };
    let mut docs = run::command("cargo", "doc --workspace --no-deps --locked");
    docs.env("RUSTDOCFLAGS", "-D warnings");
    vec![
        Step::new("tests", run::command("cargo", tests)).run_by(postgres::with_server),
        Step::new("doc tests", run::command("cargo", "test --doc --workspace --locked")),
        Step::new("docs", docs),
        Step::task("api", "api"),
        Step::task("grpc", "grpc"),
        Step::task("python", "python"),
        Step::task("typescript", "typescript"),
        Step::task("gateway", "gateway"),
        Step::task("console", "console"),
        Step::task("monitoring", "monitoring --check"),
        Step::task("envoy", "envoy"),
        Step::task("deploy", "deploy"),
    ]
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
        rest(has_nextest).into_iter().map(|step| step.line).collect()
    }

    #[test]
    fn nextest_runs_the_tests_where_present_and_cargo_where_not() {
        assert_eq!(lines(true)[0], "cargo nextest run --workspace --locked");
        assert_eq!(lines(false)[0], "cargo test --workspace --lib --bins --tests --examples --locked");
        for lines in [lines(true), lines(false)] {
            assert!(lines.contains(&"cargo test --doc --workspace --locked".to_owned()));
        }
    }

    #[test]
    fn every_task_of_a_step_is_one_that_this_program_knows() {
        let steps = first().into_iter().chain(rest(true));
        let tasks: Vec<String> =
            steps.filter_map(|step| Some(step.line.strip_prefix("cargo xtask ")?.to_owned())).collect();
        assert_eq!(tasks.len(), 12);
        for task in tasks {
            let words: Vec<&str> = task.split(' ').collect();
            assert!(!matches!(crate::parse(&words).unwrap(), crate::Task::Help), "{task}");
        }
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
