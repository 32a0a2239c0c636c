//! The steps of `verify`: each runs a command, alone or beside others in a bounded number of lanes.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::run::{self, Failure};

/// A command to run, and its name.
pub(super) struct Step {
    pub(super) name: &'static str,
    /// The command to repeat it by.
    pub(super) line: String,
    command: Command,
    run: fn(&mut Command) -> Result<(), Failure>,
}

impl Step {
    pub(super) fn new(name: &'static str, command: Command) -> Step {
        Step { name, line: run::line(&command), command, run: run::run }
    }

    /// A task of this program, in a process of its own, whose output can be kept.
    pub(super) fn task(name: &'static str, words: &str) -> Step {
        let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("xtask"));
        let command = run::command(&program.to_string_lossy(), words);
        Step { line: format!("cargo xtask {words}"), ..Step::new(name, command) }
    }

    /// The same step, whose command is run by `run`.
    pub(super) fn run_by(self, run: fn(&mut Command) -> Result<(), Failure>) -> Step {
        Step { run, ..self }
    }

    /// Runs the command. Its output goes to the file, or without one to the terminal.
    fn run(&mut self, output: Option<&Path>) -> Result<(), Failure> {
        if let Some(path) = output {
            let failed = |source| Failure::Write { path: path.to_owned(), source };
            let file = File::create(path).map_err(failed)?;
            self.command.stdin(Stdio::null()).stderr(file.try_clone().map_err(failed)?).stdout(file);
        }
        (self.run)(&mut self.command)
    }
}

/// Progress of the steps, as the user sees it.
pub(super) struct Report<W> {
    out: W,
    /// Number of all steps.
    count: usize,
    begun: usize,
    /// How long each step took, in the order in which they ended.
    pub(super) times: Vec<(&'static str, Duration)>,
}

impl<W: Write> Report<W> {
    pub(super) fn new(out: W, count: usize) -> Report<W> {
        Report { out, count, begun: 0, times: Vec::new() }
    }

    fn line(&mut self, number: usize, text: &str) {
        let count = self.count;
        // A closed terminal does not end the checks.
        _ = writeln!(self.out, "[{number}/{count}] {text}");
    }
}

/// The steps that wait, those that run, and the first failure.
struct Queue<'a, W> {
    waiting: VecDeque<Step>,
    running: Vec<&'static str>,
    failure: Option<Failure>,
    report: &'a mut Report<W>,
}

impl<W: Write> Queue<'_, W> {
    /// The next step with its number; `None` at the end, or after a failure.
    fn next(&mut self, folder: Option<&Path>) -> Option<(usize, Step, Option<PathBuf>)> {
        if self.failure.is_some() {
            return None;
        }
        let step = self.waiting.pop_front()?;
        let output = folder.map(|folder| folder.join(step.name.replace(' ', "-") + ".log"));
        self.report.begun += 1;
        let number = self.report.begun;
        let shown = output.as_ref().map(|path| format!(" > {}", path.display())).unwrap_or_default();
        self.report.line(number, &format!("{}: {}{shown}", step.name, step.line));
        self.running.push(step.name);
        Some((number, step, output))
    }

    /// Shows the kept output of a step that ended, and how it ended.
    fn end(&mut self, number: usize, step: Step, time: Duration, output: Option<&Path>, result: Result<(), Failure>) {
        if let Some(mut kept) = output.and_then(|path| File::open(path).ok()) {
            _ = io::copy(&mut kept, &mut self.report.out);
        }
        let Step { name, line, .. } = step;
        self.running.retain(|running| *running != name);
        self.report.times.push((name, time));
        let how = if result.is_ok() { "ok in" } else { "failed after" };
        self.report.line(number, &format!("{name}: {how} {}", run::time(time)));
        if let Err(source) = result {
            if !self.running.is_empty() {
                self.report
                    .line(number, &format!("{name}: no other step begins; still running: {}", self.running.join(", ")));
            }
            self.failure.get_or_insert(Failure::Step { name, line, source: Box::new(source) });
        }
    }
}

/// Runs the steps in order, as many at once as there are lanes. After a failure no other step begins.
///
/// One lane shows the output of its step at once. Of several lanes each keeps the output of its step until that ends.
pub(super) fn follow<W: Write + Send>(steps: Vec<Step>, lanes: usize, report: &mut Report<W>) -> Result<(), Failure> {
    let folder = if lanes > 1 { Some(Folder::new()?) } else { None };
    let folder = folder.as_ref().map(|folder| folder.0.as_path());
    let queue = Mutex::new(Queue { waiting: steps.into(), running: Vec::new(), failure: None, report });
    std::thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                loop {
                    let next = lock(&queue).next(folder);
                    let Some((number, mut step, output)) = next else { break };
                    let start = Instant::now();
                    let result = step.run(output.as_deref());
                    lock(&queue).end(number, step, start.elapsed(), output.as_deref(), result);
                }
            });
        }
    });
    let failure = queue.into_inner().unwrap_or_else(PoisonError::into_inner).failure;
    failure.map_or(Ok(()), Err)
}

fn lock<T>(queue: &Mutex<T>) -> MutexGuard<'_, T> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder for the output of steps, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Folder, Failure> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("earmark-steps-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).map_err(|source| Failure::Write { path: path.clone(), source })?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(name: &'static str, script: &str) -> Step {
        let mut command = run::command("sh", "-c");
        command.arg(script);
        Step { line: format!("repeat {name}"), ..Step::new(name, command) }
    }

    /// Runs steps, and returns what was written, the names in the order in which they ended, and the result.
    fn followed(steps: Vec<Step>, lanes: usize) -> (String, Vec<&'static str>, Result<(), Failure>) {
        let mut report = Report::new(Vec::new(), steps.len());
        let result = follow(steps, lanes, &mut report);
        let ended = report.times.iter().map(|(name, _)| *name).collect();
        (String::from_utf8(report.out).unwrap(), ended, result)
    }

    #[test]
    fn in_one_lane_the_first_step_that_fails_is_the_last_that_runs() {
        let steps = vec![sh("one", "true"), sh("two", "exit 3"), sh("three", "true")];
        let (_, ended, result) = followed(steps, 1);
        assert_eq!(ended, ["one", "two"]);
        let failure = result.unwrap_err().to_string();
        assert_eq!(failure, "verify failed at two: `sh -c exit 3` failed (exit status: 3); repeat it by `repeat two`");
    }

    #[test]
    fn two_lanes_run_two_steps_at_once_and_no_more() {
        let folder = Folder::new().unwrap();
        let at = folder.0.display();
        // Each waits for the other one, for at most 10 seconds.
        let wait = "for i in $(seq 1000); do [ ! -e $other ] || exit 0; sleep 0.01; done; exit 1";
        let meet = |own: &str, other: &str| format!("cd {at} && touch {own} && other={other} && {wait}");
        let mut steps = vec![sh("one", &meet("one", "two")), sh("two", &meet("two", "one"))];
        let alone_or_beside_one =
            format!("cd {at} && mkdir run-$$ && sleep 0.05 && [ \"$(ls | grep -c run-)\" -le 2 ] && rmdir run-$$");
        steps.extend(["a", "b", "c", "d", "e"].map(|name| sh(name, &alone_or_beside_one)));
        let (_, ended, result) = followed(steps, 2);
        result.unwrap();
        assert_eq!(ended.len(), 7);
    }

    #[test]
    fn after_a_failure_running_steps_end_and_no_other_begins() {
        let folder = Folder::new().unwrap();
        let at = folder.0.display();
        let steps = vec![
            sh("long", &format!("until [ -e {at}/failed ]; do sleep 0.01; done; sleep 0.3; touch {at}/ended")),
            sh("bad", &format!("touch {at}/failed; exit 1")),
            sh("later", &format!("touch {at}/later")),
        ];
        let (text, ended, result) = followed(steps, 2);
        let left = ["ended", "later"].map(|file| folder.0.join(file).exists());
        assert_eq!((ended, left), (vec!["bad", "long"], [true, false]));
        assert!(text.contains("[2/3] bad: no other step begins; still running: long\n"), "{text}");
        let failure = result.unwrap_err().to_string();
        assert!(failure.starts_with("verify failed at bad: ") && failure.ends_with("; repeat it by `repeat bad`"));
    }

    #[test]
    fn the_output_of_steps_side_by_side_is_not_mixed_up() {
        let lines = |word: &str| format!("for i in 1 2 3; do echo {word} $i; sleep 0.05; done; echo {word} 4 >&2");
        let (text, _, result) = followed(vec![sh("x", &lines("x")), sh("y z", &lines("y"))], 2);
        result.unwrap();
        for whole in ["x 1\nx 2\nx 3\nx 4\n[1/2] x: ok in ", "y 1\ny 2\ny 3\ny 4\n[2/2] y z: ok in "] {
            assert!(text.contains(whole), "{text}");
        }
        assert!(text.contains("y z: repeat y z > ") && text.contains("/y-z.log\n"), "{text}");
    }

    #[test]
    fn a_step_that_cannot_start_fails_by_its_name() {
        let (_, _, result) = followed(vec![Step::new("absent", run::command("no-such-program", ""))], 2);
        let failure = result.unwrap_err().to_string();
        assert!(failure.starts_with("verify failed at absent: `no-such-program` could not be started: "), "{failure}");
    }
}
