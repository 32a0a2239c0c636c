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
use std::time::Duration;

use earmark_admission::{Backend, LocalBook, LocalOptions};
use earmark_client::core::{Operation, Overdraft};
use earmark_client::{Client, ClientOptions, ContentHash, Deadline, Fate, Scope, Writer, WriterOptions};
use earmark_server::{Server, ServerOptions};

type Failed = Box<dyn Error + Send + Sync>;

/// What makes this program the writer: where the server is, and where its files are.
const CHILD: &str = "EARMARK_EXAMPLE_WRITER";
const WRITES: u64 = 200;
const KILLS: u64 = 5;

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

fn scope() -> Result<Scope, Failed> {
    Ok(Scope { namespace: "default".parse()?, vault: Some("main".parse()?) })
}

fn issue(number: u64) -> Result<Vec<Operation>, Failed> {
    let (account, asset) = ("acme".parse()?, "usd".parse()?);
    Ok(vec![Operation::Issue { account, asset, amount: number.into(), memo: format!("number {number}") }])
}

/// Writes what is missing. What it was told so far is in a file of its own.
async fn write(url: &str, folder: &Path) -> Result<(), Failed> {
    let client = Client::new(ClientOptions::of(&[url])?)?;
    let options = WriterOptions::new(folder.join("sequence"), scope()?, "billing".parse()?);
    let mut writer = Writer::open(&client, options, soon()).await?;
    let path = folder.join("done");
    let mut done: u64 = std::fs::read_to_string(&path).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    if let Some(unfinished) = writer.unfinished() {
        // It was killed before it knew, or before it had noted that it knew.
        let is_next = unfinished.content == ContentHash::of(&issue(done + 1)?);
        if is_next && writer.settle(soon()).await? == Some(Fate::Committed) {
            done += 1;
        } else if !is_next {
            writer.settle(soon()).await?;
        }
    }
    while done < WRITES {
        writer.write(issue(done + 1)?, soon()).await?;
        done += 1;
        let beside = folder.join("done.new");
        std::fs::write(&beside, done.to_string())?;
        std::fs::rename(beside, &path)?;
    }
    Ok(writer.close().await?)
}

/// Runs the server, and kills the writer again and again; gives how often it was killed and what the account has.
async fn watch(arguments: &[&str]) -> Result<(u64, i128), Failed> {
    let folder = tempfile::tempdir()?;
    let backend: Arc<dyn Backend> = Arc::new(LocalBook::open(LocalOptions::default()).await?);
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = Server::bind(ServerOptions { listen, ..ServerOptions::default() }, backend).await?;
    let url = format!("http://{}", server.local_addr());
    let serving = tokio::spawn(server.run(std::future::pending()));
    let client = Client::new(ClientOptions::of(&[&url])?)?;
    let options = WriterOptions::new(folder.path().join("setup"), scope()?, "setup".parse()?);
    let mut setup = Writer::open(&client, options, soon()).await?;
    let open = Operation::OpenAccount { account: "acme".parse()?, overdraft: Overdraft::Deny };
    setup.write(vec![open], soon()).await?;

    let mut kills = 0;
    loop {
        let orders = format!("{url} {}", folder.path().display());
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.args(arguments).env(CHILD, orders).stdout(Stdio::null()).spawn()?;
        if kills < KILLS {
            tokio::time::sleep(Duration::from_millis(40 + 30 * kills)).await;
            kills += u64::from(child.try_wait()?.is_none());
            child.kill()?;
        }
        let status = tokio::task::spawn_blocking(move || child.wait()).await??;
        if status.success() {
            break;
        }
    }
    let balances = client.balances(&"main".parse()?, &"acme".parse()?, soon()).await?;
    serving.abort();
    Ok((kills, balances.first().map_or(0, |one| one.available)))
}

/// Is the writer if it was told to be, else the one who kills it; `arguments` make this program come here again.
pub fn run(arguments: &[&str]) -> Result<Option<(u64, i128)>, Failed> {
    let runtime = tokio::runtime::Runtime::new()?;
    match std::env::var(CHILD) {
        Ok(orders) => {
            let (url, folder) = orders.split_once(' ').ok_or("no orders")?;
            runtime.block_on(write(url, Path::new(folder)))?;
            Ok(None)
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
