//! A writer that is killed during its writes, and continues.
//!
//! ```sh
//! cargo run -p earmark-client --example killed_writer
//! ```
//!
//! The server runs in this process. The writer is a child process that is killed with SIGKILL five times. It issues the
//! amounts 1 to 200 to an account, each of which must arrive exactly once.

use std::error::Error;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use earmark_admission::{Backend, LocalBook, LocalOptions};
use earmark_client::core::{GrantTerms, Operation, Overdraft};
use earmark_client::{Client, ClientOptions, ContentHash, Deadline, Fate, Scope, Writer, WriterOptions};
use earmark_server::{Server, ServerOptions};

type Failed = Box<dyn Error + Send + Sync>;

/// The environment variable that makes this program the writer: the URL, the last number to write, and the folder.
const CHILD: &str = "EARMARK_EXAMPLE_WRITER";
const WRITES: u64 = 200;
/// The number of kills.
pub const KILLS: u64 = 5;
/// The writer is killed this many writes before its goal.
const BEFORE_GOAL: u64 = 10;
/// The writer is stuck if it takes longer.
const LIFE_MAX: Duration = Duration::from_secs(60);

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

fn scope() -> Result<Scope, Failed> {
    Ok(Scope { namespace: "default".parse()?, vault: Some("main".parse()?) })
}

/// The operations of one write.
pub fn issue(number: u64) -> Result<Vec<Operation>, Failed> {
    let (account, asset) = ("acme".parse()?, "usd".parse()?);
    Ok(vec![Operation::Issue {
        account,
        asset,
        amount: number.into(),
        memo: format!("number {number}"),
        terms: GrantTerms::PLAIN,
    }])
}

/// The options of the writer, with its sequence file in `folder`.
pub fn options(folder: &Path) -> Result<WriterOptions, Failed> {
    Ok(WriterOptions::new(folder.join("sequence"), scope()?, "billing".parse()?))
}

/// The number of writes that the writer has noted as done, in a file of its own.
pub fn done(folder: &Path) -> u64 {
    std::fs::read_to_string(folder.join("done")).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn note(folder: &Path, done: u64) -> Result<(), Failed> {
    let beside = folder.join("done.new");
    std::fs::write(&beside, done.to_string())?;
    Ok(std::fs::rename(beside, folder.join("done"))?)
}

/// Writes the missing numbers up to `until`.
pub async fn write(url: &str, folder: &Path, until: u64) -> Result<(), Failed> {
    let client = Client::new(ClientOptions::of(&[url])?)?;
    let mut writer = Writer::open(&client, options(folder)?, soon()).await?;
    if let Some(unfinished) = writer.unfinished() {
        // The writer was killed before the answer, or before it noted the answer.
        let next = done(folder) + 1;
        let is_next = unfinished.content == ContentHash::of(&issue(next)?);
        if writer.settle(soon()).await? == Some(Fate::Committed) && is_next {
            note(folder, next)?;
        }
    }
    for number in done(folder) + 1..=until {
        writer.write(issue(number)?, soon()).await?;
        note(folder, number)?;
    }
    Ok(writer.close().await?)
}

/// A server with an empty account. It stops with its runtime.
pub async fn serve(folder: &Path) -> Result<(String, Client), Failed> {
    let backend: Arc<dyn Backend> = Arc::new(LocalBook::open(LocalOptions::default()).await?);
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = Server::bind(ServerOptions { listen, ..ServerOptions::default() }, backend).await?;
    let url = format!("http://{}", server.local_addr());
    tokio::spawn(server.run(std::future::pending()));
    let client = Client::new(ClientOptions::of(&[&url])?)?;
    let options = WriterOptions::new(folder.join("setup"), scope()?, "setup".parse()?);
    let mut setup = Writer::open(&client, options, soon()).await?;
    let open = Operation::OpenAccount { account: "acme".parse()?, overdraft: Overdraft::Deny, plan: None };
    setup.write(vec![open], soon()).await?;
    Ok((url, client))
}

/// Runs the server and kills the writer. Returns the number of kills and the balance of the account.
async fn watch(arguments: &[&str]) -> Result<(u64, i128), Failed> {
    let folder = tempfile::tempdir()?;
    let (url, client) = serve(folder.path()).await?;
    let mut kills = 0;
    for life in 1..=KILLS + 1 {
        let goal = WRITES * life / (KILLS + 1);
        let orders = format!("{url} {goal} {}", folder.path().display());
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.args(arguments).env(CHILD, orders).stdout(Stdio::null()).spawn()?;
        let start = Instant::now();
        // The last writer may finish. The others wait at their goal until they are killed.
        let is_last = life > KILLS;
        while is_last || done(folder.path()) + BEFORE_GOAL < goal {
            match child.try_wait()? {
                Some(status) if status.success() && is_last => break,
                Some(status) => return Err(format!("the writer ended early: {status}").into()),
                None if start.elapsed() > LIFE_MAX => return Err("the writer is stuck".into()),
                None => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
        if !is_last {
            child.kill()?;
            child.wait()?;
            kills += 1;
        }
    }
    let balances = client.balances(&"main".parse()?, &"acme".parse()?, soon()).await?;
    Ok((kills, balances.first().map_or(0, |one| one.available)))
}

/// Runs the writer if the environment variable is set, else the server; `arguments` start this program again.
pub fn run(arguments: &[&str]) -> Result<Option<(u64, i128)>, Failed> {
    let runtime = tokio::runtime::Runtime::new()?;
    match std::env::var(CHILD) {
        Ok(orders) => {
            let mut words = orders.splitn(3, ' ');
            let (Some(url), Some(goal), Some(folder)) = (words.next(), words.next(), words.next()) else {
                return Err(format!("{CHILD} has the form URL NUMBER FOLDER").into());
            };
            let goal = goal.parse()?;
            runtime.block_on(async {
                write(url, Path::new(folder), goal).await?;
                if goal < WRITES {
                    tokio::time::sleep(LIFE_MAX).await;
                }
                Ok(None)
            })
        }
        Err(_) => runtime.block_on(watch(arguments)).map(Some),
    }
}

/// The expected balance.
pub const EXPECTED: i128 = (WRITES * (WRITES + 1) / 2) as i128;

#[allow(dead_code, reason = "a test runs the example without `main`")]
fn main() -> Result<(), Failed> {
    if let Some((kills, available)) = run(&[])? {
        println!("killed {kills} times; the account has {available}, and should have {EXPECTED}");
    }
    Ok(())
}
