//! A cluster under load whose leader is killed, frozen or partitioned.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use earmark_client::core::{Operation, Overdraft};
use earmark_client::{Client, ClientOptions, Deadline, Limiter, LimiterOptions, Protocol, Writer, WriterOptions};
use tempfile::TempDir;
use tokio::sync::watch;

use crate::callers::{Known, a_job, prepare};
use crate::history;
use crate::nodes::{COUNT, Nodes};
use crate::random::Random;
use crate::served::wait;
use crate::support::soon;
use crate::writers::{issue, scope};

const CALLERS: u64 = 8;
/// Calls that must be admitted before and after the fault.
const CALLS_AFTER: u64 = 100;
/// Deadline of one call, longer than an election.
const PATIENCE: Duration = Duration::from_secs(30);

/// The fault of the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The process is killed.
    Dies,
    /// The process is frozen, with its connections open.
    Freezes,
    /// The leader answers clients, but reaches no other node.
    IsCutOff,
}

impl Trouble {
    fn start(self) -> Nodes {
        match self {
            Trouble::Dies | Trouble::Freezes => Nodes::start(),
            Trouble::IsCutOff => Nodes::behind_proxies(),
        }
    }

    fn strike(self, nodes: &mut Nodes, leader: usize) {
        match self {
            Trouble::Dies => nodes.kill(leader),
            Trouble::Freezes => nodes.signal(leader, "STOP"),
            Trouble::IsCutOff => {
                let links = nodes.links();
                for other in (0..COUNT).filter(|other| *other != leader) {
                    links.hold(leader, other, true);
                    links.hold(other, leader, true);
                }
            }
        }
    }
}

pub fn run(protocol: Protocol, trouble: Trouble) {
    let mut nodes = trouble.start();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let inside = runtime.enter();
    let mut urls: Vec<String> = nodes.urls().iter().map(|address| format!("http://{address}")).collect();
    // The client starts with the leader.
    urls.rotate_left(nodes.leader());
    let mut options = ClientOptions::of(&urls).unwrap();
    options.protocol = protocol;
    // The writer uses a separate client, so it must find the new leader by itself.
    let (client, writes) = (Client::new(options.clone()).unwrap(), Client::new(options).unwrap());
    let known = Arc::new(Known::default());
    let longest_ms = Arc::new(AtomicU64::new(0));
    let (stop, stopped) = watch::channel(false);
    let folder = TempDir::new().unwrap();
    let (limiter, callers, writer) = runtime.block_on(async {
        prepare(&client).await;
        let limiter = Limiter::new(&client, LimiterOptions::default()).unwrap();
        let callers: Vec<_> = (0..CALLERS)
            .map(|seed| {
                let (known, longest_ms) = (Arc::clone(&known), Arc::clone(&longest_ms));
                tokio::spawn(call(limiter.clone(), known, longest_ms, Random::new(seed), stopped.clone()))
            })
            .collect();
        let writer = tokio::spawn(write(writes, folder.path().join("seq"), stopped));
        (limiter, callers, writer)
    });
    let admitted = || known.admitted.load(Ordering::SeqCst);
    wait("the load has begun", || admitted() > CALLS_AFTER);
    let leader = nodes.leader();
    trouble.strike(&mut nodes, leader);
    let survivor = (leader + 1) % urls.len();
    let before = admitted();
    wait("calls go on", || admitted() > before + CALLS_AFTER);
    stop.send(true).unwrap();
    let memos = runtime.block_on(async {
        for caller in callers {
            caller.await.unwrap();
        }
        known.check(&client, &[limiter]).await;
        writer.await.unwrap()
    });
    // One more write opened the account.
    history::check(&nodes.urls()[survivor], "ledger", &memos, 1);
    println!(
        "{protocol:?}, the leader {trouble:?}: {} calls and {} writes, the longest call took {} ms",
        admitted(),
        memos.len(),
        longest_ms.load(Ordering::SeqCst)
    );
    drop(inside);
    runtime.shutdown_background();
}

/// Makes calls until the run stops. Every error fails the test.
async fn call(
    limiter: Limiter,
    known: Arc<Known>,
    longest_ms: Arc<AtomicU64>,
    mut random: Random,
    stopped: watch::Receiver<bool>,
) {
    let what = a_job();
    while !*stopped.borrow() {
        let start = Instant::now();
        let guard = limiter.acquire(&what, Deadline::after(PATIENCE)).await.unwrap();
        longest_ms.fetch_max(u64::try_from(start.elapsed().as_millis()).unwrap(), Ordering::SeqCst);
        known.took();
        known.finish(guard, &mut random).await;
    }
}

async fn write(client: Client, path: std::path::PathBuf, stopped: watch::Receiver<bool>) -> Vec<String> {
    let options = WriterOptions::new(path, scope(), "ledger".parse().unwrap());
    let mut writer = Writer::open(&client, options, soon()).await.unwrap();
    let open = Operation::OpenAccount { account: "ledger".parse().unwrap(), overdraft: Overdraft::Deny, plan: None };
    writer.write(vec![open], soon()).await.unwrap();
    let mut memos = Vec::new();
    while !*stopped.borrow() {
        let memo = memos.len().to_string();
        writer.write(issue("ledger", &memo), Deadline::after(PATIENCE)).await.unwrap();
        memos.push(memo);
    }
    writer.close().await.unwrap();
    memos
}
