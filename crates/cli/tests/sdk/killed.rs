//! A writer process that is killed between any two steps and continues.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use earmark_client::core::{Operation, Overdraft};
use earmark_client::{Client, ClientOptions, ContentHash, Fate, Step, Writer, WriterError, WriterOptions};
use tempfile::TempDir;

use crate::history;
use crate::served::Server;
use crate::support::soon;
use crate::writers::{issue, scope};

/// Environment variable that makes this binary the writer: URL, folder, last write, recovery and step to stop at.
pub const CHILD: &str = "EARMARK_SDK_WRITER";

const STEPS: [Step; 9] = [
    Step::Writing,
    Step::Written,
    Step::Flushed,
    Step::Renamed,
    Step::Stored,
    Step::Sending,
    Step::Answered,
    Step::SendingFence,
    Step::AnsweredFence,
];
const ACCOUNT: &str = "ledger";
/// Writes added by one round.
const WRITES: u64 = 3;
/// The writer stops at the second occurrence of a step, in the middle of its writes.
const OCCURRENCE: u64 = 2;

/// How the writer finishes an unfinished write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Repeats,
    Settles,
}

fn spawn(server: &Server, folder: &Path, until: u64, manner: Manner, stop: Option<(Step, u64)>) -> Child {
    let stop = stop.map_or("never".to_owned(), |(step, occurrence)| format!("{step:?}:{occurrence}"));
    let orders = format!("{} {} {until} {manner:?} {stop}", server.url(), folder.display());
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["a_writer_killed_between_any_two_steps_goes_on_where_it_was", "--exact", "--nocapture"]);
    command.env(CHILD, orders).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()
}

/// Runs a writer process and kills it when it reaches its step. Returns whether it was killed.
fn live(mut child: Child) -> bool {
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let mut said = Vec::new();
    for line in stdout.lines() {
        let line = line.unwrap();
        if line.ends_with("SDK: stopped") {
            child.kill().unwrap();
            child.wait().unwrap();
            return true;
        }
        said.push(line);
    }
    assert!(child.wait().unwrap().success(), "{}", said.join("\n"));
    false
}

pub fn parent() {
    let server = Server::start(&["--log-level", "error"]);
    let folder = TempDir::new().unwrap();
    let mut until = 0;
    let mut kills = 0;
    for manner in [Manner::Repeats, Manner::Settles] {
        for step in STEPS {
            until += WRITES;
            let mut kills_here = 0;
            // Killed at the step, killed again during recovery, then run to the end.
            for stop in [Some((step, OCCURRENCE)), Some((step, 1)), None] {
                let was_killed = live(spawn(&server, folder.path(), until, manner, stop));
                kills_here += u64::from(was_killed);
                if was_killed && stop.is_none() {
                    panic!("it stopped without an order");
                }
            }
            // A process sends at most one fence, for the unfinished write of the process before.
            let expected = match step {
                Step::SendingFence | Step::AnsweredFence => 1..=2,
                _ => 2..=2,
            };
            assert!(expected.contains(&kills_here), "{manner:?}: {kills_here} kills at {step:?}");
            kills += kills_here;
        }
    }
    let memos: Vec<String> = (1..=until).map(|count| count.to_string()).collect();
    history::check(&server.address, ACCOUNT, &memos, 0);
    println!("{until} writes, {kills} kills");
}

/// The writer process: writes up to a number and records the acknowledged writes.
pub fn child(orders: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(write(orders));
}

fn observer(stop: &str) -> Option<Arc<dyn Fn(Step) + Send + Sync>> {
    let (name, occurrence) = stop.split_once(':')?;
    let (name, occurrence) = (name.to_owned(), occurrence.parse::<u64>().unwrap());
    let count = AtomicU64::new(0);
    Some(Arc::new(move |step| {
        if format!("{step:?}") == name && count.fetch_add(1, Ordering::SeqCst) + 1 == occurrence {
            println!("SDK: stopped");
            std::io::stdout().flush().unwrap();
            loop {
                std::thread::park();
            }
        }
    }))
}

/// The last acknowledged write, in a file.
struct Progress<'a>(&'a Path);

impl Progress<'_> {
    fn done(&self) -> u64 {
        std::fs::read_to_string(self.0).map_or(0, |text| text.trim().parse().unwrap())
    }

    fn set(&self, done: u64) {
        let beside = self.0.with_extension("new");
        std::fs::write(&beside, done.to_string()).unwrap();
        std::fs::rename(beside, self.0).unwrap();
    }
}

async fn write(orders: &str) {
    let words: Vec<&str> = orders.split(' ').collect();
    let [url, folder, until, manner, stop] = words[..] else { panic!("{orders}") };
    let (folder, until) = (Path::new(folder), until.parse::<u64>().unwrap());
    let manner = if manner == "Repeats" { Manner::Repeats } else { Manner::Settles };
    let client = Client::new(ClientOptions::of(&[url]).unwrap()).unwrap();
    open_account(&client, folder).await;
    let mut options = WriterOptions::new(folder.join("sequence"), scope(), ACCOUNT.parse().unwrap());
    options.observer = observer(stop);
    let mut writer = Writer::open(&client, options, soon()).await.unwrap();
    let path = folder.join("progress");
    let progress = Progress(&path);
    if let Some(unfinished) = writer.unfinished() {
        let next = progress.done() + 1;
        if unfinished.content == ContentHash::of(&operations(next)) {
            if finish(&mut writer, manner, next).await {
                progress.set(next);
            }
        } else {
            // The unfinished write is the last acknowledged one.
            assert_eq!(unfinished.content, ContentHash::of(&operations(progress.done())));
            assert_eq!(writer.settle(soon()).await.unwrap(), Some(Fate::Committed));
        }
    }
    for count in progress.done() + 1..=until {
        writer.write(operations(count), soon()).await.unwrap();
        progress.set(count);
    }
    println!("SDK: done");
}

fn operations(count: u64) -> Vec<Operation> {
    issue(ACCOUNT, &count.to_string())
}

/// Returns whether the unfinished write was committed.
async fn finish(writer: &mut Writer, manner: Manner, count: u64) -> bool {
    match manner {
        Manner::Repeats => match writer.repeat(operations(count), soon()).await {
            Ok(_) => true,
            Err(WriterError::Fenced { .. }) => false,
            Err(error) => panic!("{error}"),
        },
        Manner::Settles => writer.settle(soon()).await.unwrap() == Some(Fate::Committed),
    }
}

/// Opens the account with a separate writer that is never killed.
async fn open_account(client: &Client, folder: &Path) {
    let options = WriterOptions::new(folder.join("setup"), scope(), "setup".parse().unwrap());
    if options.path.exists() {
        return;
    }
    let mut writer = Writer::open(client, options, soon()).await.unwrap();
    let account = ACCOUNT.parse().unwrap();
    writer
        .write(vec![Operation::OpenAccount { account, overdraft: Overdraft::Deny, plan: None }], soon())
        .await
        .unwrap();
    writer.close().await.unwrap();
}
