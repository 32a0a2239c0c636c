//! This test binary as a child process that runs a single ignored test.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use earmark_admission::SystemClock;
use earmark_credits::{Options, PostgresOptions, PostgresStore, SagaCredits, SqliteOptions, SqliteStore, Store};

/// Environment variable: `sqlite:<path>` or a database URL.
const STORE: &str = "EARMARK_TEST_STORE";
/// Environment variable: the number of the child process.
const NUMBER: &str = "EARMARK_TEST_NUMBER";

static PROCESSES: AtomicU64 = AtomicU64::new(1);

/// The store and the unique number of this child process; `None` if a user started it.
pub(crate) fn assignment() -> Option<(String, String)> {
    Some((std::env::var(STORE).ok()?, std::env::var(NUMBER).ok()?))
}

pub(crate) async fn open(store: &str) -> Arc<dyn Store> {
    open_as(store, PostgresOptions::default()).await
}

pub(crate) async fn open_as(store: &str, options: PostgresOptions) -> Arc<dyn Store> {
    if let Some(path) = store.strip_prefix("sqlite:") {
        let file = SqliteOptions { keeps_time: options.keeps_time, ..SqliteOptions::default() };
        let opened = SqliteStore::open(path.as_ref(), file).await;
        return Arc::new(opened.expect("a store"));
    }
    let opened = PostgresStore::open(store, options).await;
    Arc::new(opened.expect("a store"))
}

pub(crate) async fn start(store: &str, options: Options) -> SagaCredits {
    let started = SagaCredits::start(open(store).await, Arc::new(SystemClock::new()), options).await;
    started.expect("a store that answers")
}

/// Writes a line to the parent. The final dot marks a complete line.
pub(crate) fn report(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("\n{line}.\n").as_bytes()).expect("the parent reads");
    out.flush().expect("the parent reads");
}

/// The complete lines of a child process, until it ends.
pub(crate) fn lines_of(out: ChildStdout) -> impl Iterator<Item = String> {
    let lines = BufReader::new(out).lines().map_while(Result::ok);
    lines.filter_map(|line| line.strip_suffix('.').map(ToOwned::to_owned))
}

/// Starts a child process that runs one test.
pub(crate) fn spawn(test: &str, store: &str) -> Child {
    run(Command::new(std::env::current_exe().expect("this program")), test, store)
}

/// Starts a child process through a shell script.
pub(crate) fn spawn_by(script: &str, test: &str, store: &str) -> Child {
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).arg(std::env::current_exe().expect("this program"));
    run(shell, test, store)
}

fn run(mut worker: Command, test: &str, store: &str) -> Child {
    let number = PROCESSES.fetch_add(1, Ordering::Relaxed);
    worker.args(["--exact", test, "--ignored", "--nocapture"]);
    worker.env(STORE, store).env(NUMBER, number.to_string());
    worker.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    worker.spawn().expect("a process")
}
