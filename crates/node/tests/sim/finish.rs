//! Final comparison after all faults are repaired: every node has everything acknowledged, and all nodes agree.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use earmark_admission::{Backend, Cluster, EntryKind, EntryQuery, EntryView, PAGE_MAX};
use earmark_core::{AccountName, Operation};
use earmark_node::Node;
use tokio::time::sleep;

use crate::caller::{Caller, PURSE, WRITERS};
use crate::host::Host;
use crate::keyed::{HOOKS, PLANNED};
use crate::oracle::{RATE, SLOTS};
use crate::support::client::{namespace, path, vault};

/// Time to recover: a lossy connection is closed after 10 s, then the log catches up.
const HEALED: Duration = Duration::from_secs(60);
/// How long nodes must agree: longer than the longest hold.
const AGREED: Duration = Duration::from_secs(8);
/// Attempts to get snapshots of the same index. In a long run expiry ticks continue in between.
const SNAPSHOT_TRIES: usize = 20;
/// Number of newest leases to check.
const LEASES: usize = 200;
/// Number of newest writes to repeat on every node.
const WRITES: u64 = 10;

pub async fn compare(caller: &mut Caller) {
    settle_down(caller).await;
    let nodes = caller.context.hosts.len();
    for node in 0..nodes {
        for writer in 0..WRITERS {
            until_true(async || caller.read_client(node, writer).await).await;
            until_true(async || caller.read_balance(node, writer).await).await;
            let last = caller.context.oracle.borrow().writers[writer].committed();
            for sequence in last.saturating_sub(WRITES) + 1..=last {
                until_true(async || caller.write_again_at(node, writer, sequence).await).await;
            }
        }
    }
    let events = caller.context.oracle.borrow().events.len();
    for event in events.saturating_sub(WRITES as usize)..events {
        for node in 0..nodes {
            until_true(async || caller.deliver(node, event).await).await;
        }
    }
    let leases: Vec<_> = caller.context.oracle.borrow().leases.keys().rev().take(LEASES).copied().collect();
    for (place, lease) in leases.into_iter().enumerate() {
        until_true(async || caller.look_at(place % nodes, lease).await).await;
    }
    compare_journals(caller).await;
    compare_snapshots(caller).await;
    let mut oracle = caller.context.oracle.borrow_mut();
    oracle.check_capacity(&SLOTS);
    oracle.check_capacity(&RATE);
}

async fn until_true(mut happens: impl AsyncFnMut() -> bool) {
    while !happens().await {
        sleep(Duration::from_millis(20)).await;
    }
}

/// Leader, last index and applied index of a running node.
fn place(host: &Host) -> Option<(u64, u64, u64)> {
    let status = host.node()?.status();
    Some((status.leader?, status.last_log_index?, status.applied_index?))
}

/// Waits until all nodes have applied the same log for a while.
async fn settle_down(caller: &mut Caller) {
    let hosts = caller.context.hosts.clone();
    let step = Duration::from_millis(50);
    let (mut waited, mut agreed) = (Duration::ZERO, Duration::ZERO);
    while agreed < AGREED {
        let first = place(&hosts[0]);
        let agree = first.is_some_and(|(_, end, applied)| end == applied);
        if agree && hosts.iter().all(|host| place(host) == first) {
            agreed += step;
        }
        sleep(step).await;
        waited += step;
        if waited > HEALED {
            let places: Vec<_> = hosts.iter().map(place).collect();
            let why = || format!("the nodes do not come together: {places:?}");
            return caller.context.oracle.borrow_mut().must(false, why);
        }
    }
}

async fn history(caller: &mut Caller, node: usize, name: &str) -> Vec<EntryView> {
    let mut all = Vec::new();
    let mut after = 0;
    loop {
        let path = path(name);
        let ask = move |node: Arc<Node>| {
            let path = path.clone();
            async move { node.backend().entries(path, EntryQuery::oldest_first(after, PAGE_MAX)).await }
        };
        let page = caller.insist(node, ask).await;
        all.extend(page.entries);
        match page.next {
            Some(next) => after = next,
            None => return all,
        }
    }
}

/// Checks that all nodes have the same history, with every acknowledged write once, and a balanced audit.
async fn compare_journals(caller: &mut Caller) {
    let nodes = caller.context.hosts.len();
    let own = (0..WRITERS).map(|writer| format!("w{writer}"));
    let others = ["pool", "purse", HOOKS, PLANNED, AccountName::REVENUE].map(str::to_owned);
    let mut more = 0;
    for name in own.chain(others) {
        let first = history(caller, 0, &name).await;
        for node in 1..nodes {
            let other = history(caller, node, &name).await;
            let mut oracle = caller.context.oracle.borrow_mut();
            oracle.must(first == other, || format!("n1 and n{} have another history of {name}", node + 1));
        }
        if let Some(writer) = name.strip_prefix('w').and_then(|writer| writer.parse::<usize>().ok()) {
            check_history(caller, writer, &first);
        }
        let mut oracle = caller.context.oracle.borrow_mut();
        match name.as_str() {
            HOOKS => more += oracle.check_events(&first),
            PLANNED => more += oracle.check_plans(&first),
            _ => {}
        }
    }
    for node in 0..nodes {
        let audit = caller.insist(node, async |node: Arc<Node>| node.backend().audit(namespace(), vault()).await).await;
        let mut oracle = caller.context.oracle.borrow_mut();
        let issued: u128 = oracle.writers.iter().flat_map(|writer| writer.sent.iter().flatten()).map(issues).sum();
        let found = audit.assets.first().map(|asset| asset.issued);
        oracle.must(audit.balanced, || format!("n{} does not add up: {audit:?}", node + 1));
        oracle.must(found == i128::try_from(PURSE + issued + more).ok(), || {
            format!("{issued}, {more} and {PURSE} were issued, and n{} says {found:?}", node + 1)
        });
    }
}

fn issues(operation: &Operation) -> u128 {
    match operation {
        Operation::Issue { amount, .. } => *amount,
        _ => 0,
    }
}

fn check_history(caller: &Caller, writer: usize, history: &[EntryView]) {
    let mut oracle = caller.context.oracle.borrow_mut();
    let mut found = BTreeMap::new();
    for entry in history {
        if let EntryKind::Transaction { id, receipt, .. } = &entry.what
            && id.client().is_some_and(|client| client.as_str() == format!("w{writer}"))
        {
            let is_new = found.insert(receipt.sequence, Arc::clone(receipt)).is_none();
            oracle.must(is_new, || format!("w{writer}: {:?} is in the history twice", receipt.sequence));
        }
    }
    let facts = oracle.writers[writer].clone();
    // A write without effect on the account is not in its history.
    for (receipt, around) in facts.receipts.iter().zip(facts.balances.windows(2)) {
        let held = found.get(&receipt.sequence);
        let holds = held.map_or(around[0] == around[1], |held| held == receipt);
        oracle.must(holds, || format!("w{writer}: {receipt:?} is {held:?} in the history"));
    }
}

/// Index and file of a snapshot.
type Snapshot = (Option<u64>, Option<Vec<u8>>);

async fn snapshots(caller: &mut Caller) -> Vec<Snapshot> {
    let mut snapshots = Vec::new();
    for node in 0..caller.context.hosts.len() {
        let made = caller.insist(node, async |node: Arc<Node>| node.snapshot().await).await;
        let disk = &caller.context.hosts[node].disk;
        let index = |path: &String| path.strip_prefix("snapshot/")?.split_once('-')?.0.parse::<u64>().ok();
        let path = disk.paths().into_iter().find(|path| index(path) == made);
        snapshots.push((made, path.map(|path| disk.bytes(&path))));
    }
    snapshots
}

/// Checks that all nodes have byte-identical snapshots.
async fn compare_snapshots(caller: &mut Caller) {
    let mut snapshots_of_all = snapshots(caller).await;
    for _ in 0..SNAPSHOT_TRIES {
        if snapshots_of_all.iter().all(|(made, _)| *made == snapshots_of_all[0].0) {
            break;
        }
        sleep(Duration::from_millis(100)).await;
        snapshots_of_all = snapshots(caller).await;
    }
    let snapshots = snapshots_of_all;
    let mut oracle = caller.context.oracle.borrow_mut();
    for (node, (made, bytes)) in snapshots.iter().enumerate() {
        oracle.must(bytes.is_some(), || format!("n{} has no snapshot of {made:?}", node + 1));
        let is_same = *made == snapshots[0].0 && *bytes == snapshots[0].1;
        oracle.must(is_same, || format!("n1 and n{} have other snapshots of {made:?}", node + 1));
    }
}
