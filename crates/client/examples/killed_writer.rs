//! A writer that is killed in the middle of its work, and continues.
//!
//! ```sh
//! cargo run -p earmark-client --example killed_writer
//! ```
//!
//! A server runs in this process; the writer is a process of its own, which is killed with SIGKILL again and again.
//! It writes the numbers 1 to 200 to an account, and every one of them must be there once.

use std::error::Error;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use earmark_admission::{Backend, LocalBook, LocalOptions};
use earmark_client::core::{Operation, Overdraft};
use earmark_client::{Client, ClientOptions, ContentHash, Deadline, Fate, Scope, Writer, WriterOptions};
use earmark_server::{Server, ServerOptions};

type Failed = Box<dyn Error + Send + Sync>;

/// What makes this program the writer: where the server is, how far to write, and where its files are.
const CHILD: &str = "EARMARK_EXAMPLE_WRITER";
const WRITES: u64 = 200;
/// How often the writer is killed.
pub const KILLS: u64 = 5;
/// So many writes before a life would have reached its goal it is killed.
const BEFORE_GOAL: u64 = 10;
/// A life that takes longer is stuck.
const LIFE_MAX: Duration = Duration::from_secs(60);

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

fn scope() -> Result<Scope, Failed> {
    Ok(Scope { namespace: "default".parse()?, vault: Some("main".parse()?) })
}

/// What one write is.
pub fn issue(number: u64) -> Result<Vec<Operation>, Failed> {
    let (account, asset) = ("acme".parse()?, "usd".parse()?);
    Ok(vec![Operation::Issue { account, asset, amount: number.into(), memo: format!("number {number}") }])
}

/// The writer, with its file in a folder.
pub fn options(folder: &Path) -> Result<WriterOptions, Failed> {
    Ok(WriterOptions::new(folder.join("sequence"), scope()?, "billing".parse()?))
}

/// How many writes the writer knows to be done. That is in a file of its own.
pub fn done(folder: &Path) -> u64 {
    std::fs::read_to_string(folder.join("done")).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn note(folder: &Path, done: u64) -> Result<(), Failed> {
    let beside = folder.join("done.new");
    std::fs::write(&beside, done.to_string())?;
    Ok(std::fs::rename(beside, folder.join("done"))?)
}

/// Writes what is missing up to a number.
pub async fn write(url: &str, folder: &Path, until: u64) -> Result<(), Failed> {
    let client = Client::new(ClientOptions::of(&[url])?)?;
    let mut writer = Writer::open(&client, options(folder)?, soon()).await?;
    if let Some(unfinished) = writer.unfinished() {
        // It was killed before it knew, or before it had noted that it knew.
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

/// A server with an empty account. It ends with its runtime.
pub async fn serve(folder: &Path) -> Result<(String, Client), Failed> {
    let backend: Arc<dyn Backend> = Arc::new(LocalBook::open(LocalOptions::default()).await?);
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = Server::bind(ServerOptions { listen, ..ServerOptions::default() }, backend).await?;
    let url = format!("http://{}", server.local_addr());
    tokio::spawn(server.run(std::future::pending()));
    let client = Client::new(ClientOptions::of(&[&url])?)?;
    let options = WriterOptions::new(folder.join("setup"), scope()?, "setup".parse()?);
    let mut setup = Writer::open(&client, options, soon()).await?;
    let open = Operation::OpenAccount { account: "acme".parse()?, overdraft: Overdraft::Deny };
    setup.write(vec![open], soon()).await?;
    Ok((url, client))
}

/// Runs the server, and kills the writer again and again; gives how often it was killed and what the account has.
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
        // The last one may reach its goal. The others wait there to be killed, however fast they are.
        let is_last = life > KILLS;
        while is_last || done(folder.path()) + BEFORE_GOAL < goal {
            match child.try_wait()? {
                Some(status) if status.success() && is_last => break,
                Some(status) => return Err(format!("the writer ended by itself: {status}").into()),
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

/// Is the writer if it was told to be, else the one who kills it; `arguments` make this program come here again.
pub fn run(arguments: &[&str]) -> Result<Option<(u64, i128)>, Failed> {
    let runtime = tokio::runtime::Runtime::new()?;
    match std::env::var(CHILD) {
        Ok(orders) => {
            let mut words = orders.splitn(3, ' ');
            let (Some(url), Some(goal), Some(folder)) = (words.next(), words.next(), words.next()) else {
                return Err("no orders".into());
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

/// What the account must have in the end.
pub const EXPECTED: i128 = (WRITES * (WRITES + 1) / 2) as i128;

#[allow(dead_code, reason = "the test of the examples calls what is in it")]
fn main() -> Result<(), Failed> {
    if let Some((kills, available)) = run(&[])? {
        println!("killed {kills} times; the account has {available}, and should have {EXPECTED}");
    }
    Ok(())
}
