//! Throughput of one durable node: reserves of four limits, in batches, through its backend.
//!
//! `cargo bench -p earmark-node --bench node` prints a table. With a number, `-- 10000000`, it creates that many live
//! leases and measures a snapshot and a restart with them; `-- derived 9999000` creates that many derived limits instead,
//! which takes about 2 GiB of memory; `-- statement 1000000` writes that many entries of one account and reads its
//! statement; `-- replaced 1000000` creates that many live leases on two nodes and measures how long a third one with an
//! empty folder takes to catch up. The data folder is a temporary folder; `TMPDIR` chooses another disk.

#![allow(clippy::unwrap_used, reason = "a benchmark that fails says where")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use earmark_admission::{
    AccountPath, Amount, Backend, Cluster, CompleteRequest, PutLimitRequest, PutTemplateRequest, ReserveAnswer,
    ReserveRequest, StatementQuery, WriteAnswer, WriteRequest, statement,
};
use earmark_core::{
    AccountName, Actor, AssetName, ClientId, CreditTerms, Definition, GrantTerms, Kind, LeaseId, LimitKey,
    NamespaceName, Operation, Overdraft, Principal, REQUIREMENTS_MAX, SettleLabels, Template, UnixMs, VaultName,
    WriteId,
};
use earmark_node::{Disk, Fault, Node, NodeBackend, NodeError, NodeOptions, RealDisk};

const SECONDS: u64 = 5;
const LIMITS: usize = 4;

fn key(place: usize) -> LimitKey {
    LimitKey::new(&format!("global:llm:openai:gpt-4o:limit-{place}")).unwrap()
}

fn namespace() -> NamespaceName {
    NamespaceName::new(NamespaceName::DEFAULT).unwrap()
}

fn wall_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

fn requests(count: usize, next: &mut u128) -> Vec<ReserveRequest> {
    let now = UnixMs::new(wall_ms());
    let request = |_| {
        *next += 1;
        let requirements = (0..LIMITS).map(|place| Amount { key: key(place), amount: 1 }).collect();
        let lease = LeaseId::from_parts(now, *next);
        ReserveRequest { namespace: namespace(), lease, job: None, call: None, by_gateway: false, requirements }
    };
    (0..count).map(request).collect()
}

async fn caller(backend: Arc<NodeBackend>, batch: usize, number: u128, until: Instant) -> (u64, Vec<u64>) {
    let mut next = number << 64;
    let (mut allowed, mut micros) = (0, Vec::new());
    while Instant::now() < until {
        let requests = requests(batch, &mut next);
        let started = Instant::now();
        let answers = backend.reserve(Principal::System, requests).await;
        micros.push(u64::try_from(started.elapsed().as_micros()).unwrap());
        allowed += answers.iter().filter(|answer| matches!(answer, Ok(ReserveAnswer::Allowed { .. }))).count() as u64;
    }
    (allowed, micros)
}

/// Median time of 500 synced appends.
fn fsync_us(folder: &std::path::Path) -> u64 {
    std::fs::create_dir_all(folder).unwrap();
    let disk = RealDisk::new(folder).unwrap();
    let file = disk.open("fsync", true).unwrap();
    let mut micros: Vec<u64> = (0..500_u64)
        .map(|place| {
            let started = Instant::now();
            file.write_at(&[7; 512], place * 512).unwrap();
            file.sync().unwrap();
            u64::try_from(started.elapsed().as_micros()).unwrap()
        })
        .collect();
    micros.sort_unstable();
    micros[micros.len() / 2]
}

async fn open(folder: &std::path::Path) -> Node {
    let disk = Arc::new(RealDisk::new(folder).unwrap());
    // The folder stays locked until the previous node is fully dropped.
    let node = loop {
        match Node::open(NodeOptions::new(Arc::clone(&disk) as _)).await {
            Err(NodeError::Fault(Fault::InUse { .. })) => tokio::time::sleep(Duration::from_millis(5)).await,
            opened => break opened.unwrap(),
        }
    };
    while node.status().leader.is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    node
}

async fn put_limits(backend: &NodeBackend, window_seconds: u32) {
    for place in 0..LIMITS {
        let definition = Definition::new(key(place), Kind::Rolling { window_seconds }, u64::MAX / 4);
        let request = PutLimitRequest { namespace: namespace(), definition, expected_revision: None };
        backend.put_limit(Principal::System, request).await.unwrap();
    }
}

/// Derives limits, 32 with each reserve. Each holds something.
async fn derive_limits(backend: &NodeBackend, limits: u64) {
    let key = LimitKey::pattern("user:{user}:tpm").unwrap();
    let template = Definition { key, ..Definition::new(self::key(0), Kind::Rolling { window_seconds: 86_400 }, 1_000) };
    let template = Template::new(template).unwrap();
    let request = PutTemplateRequest { namespace: namespace(), template, expected_revision: None };
    backend.put_template(Principal::System, request).await.unwrap();
    let all: Vec<u64> = (0..limits.div_ceil(REQUIREMENTS_MAX as u64)).collect();
    for batch in all.chunks(128) {
        let now = UnixMs::new(wall_ms());
        let user = |number: u64| LimitKey::new(&format!("user:{number:014}:tpm")).unwrap();
        let request = |first: &u64| {
            let users = (0..REQUIREMENTS_MAX as u64).map(|user| first * REQUIREMENTS_MAX as u64 + user);
            let requirements = users.map(|number| Amount { key: user(number), amount: 1 }).collect();
            let lease = LeaseId::from_parts(now, u128::from(*first) | 1 << 79);
            ReserveRequest { namespace: namespace(), lease, job: None, call: None, by_gateway: false, requirements }
        };
        let answers = backend.reserve(Principal::System, batch.iter().map(request).collect()).await;
        let is_allowed = |answer: &_| matches!(answer, Ok(ReserveAnswer::Allowed { .. }));
        assert!(answers.iter().all(is_allowed), "{:?}", answers.iter().find(|answer| !is_allowed(answer)));
    }
}

/// The resident memory of this process in KiB.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Holds and settles credit until an account has this many entries. Every settlement has two labels.
async fn write_entries(backend: &NodeBackend, account: &AccountPath, entries: u64) {
    let asset = AssetName::new("usd").unwrap();
    let (vault, name) = (account.vault.clone(), account.account.clone());
    let issue = Operation::Issue {
        account: name.clone(),
        asset: asset.clone(),
        amount: 1 << 60,
        memo: String::new(),
        terms: GrantTerms::PLAIN,
    };
    let open = Operation::OpenAccount { account: name.clone(), overdraft: Overdraft::Deny, plan: None };
    let write = WriteRequest {
        namespace: namespace(),
        vault: Some(vault.clone()),
        id: WriteId::Sequence { client: ClientId::new("bench").unwrap(), sequence: 1 },
        operations: vec![open, issue],
        actor: Actor::new("system:bench").unwrap(),
    };
    assert!(matches!(backend.write(Principal::System, write).await.unwrap(), WriteAnswer::Committed(_)));
    let revenue = AccountName::new(AccountName::REVENUE).unwrap();
    let on_timeout = earmark_core::OnTimeout::default();
    let terms = CreditTerms { timeout_seconds: 600, vault, account: name, asset, revenue, on_timeout };
    let definition = Definition::new(key(0), Kind::Credit(terms), 0);
    let put = PutLimitRequest { namespace: namespace(), definition, expected_revision: None };
    backend.put_limit(Principal::System, put).await.unwrap();
    for batch in 0..(entries / 2).div_ceil(1_024) {
        let now = UnixMs::new(wall_ms());
        let leases: Vec<LeaseId> =
            (0..1_024).map(|place| LeaseId::from_parts(now, u128::from(batch) << 16 | place)).collect();
        let requirements = || vec![Amount { key: key(0), amount: 9 }];
        let hold = |lease: &LeaseId| ReserveRequest {
            namespace: namespace(),
            lease: *lease,
            job: None,
            call: None,
            by_gateway: false,
            requirements: requirements(),
        };
        backend.reserve(Principal::System, leases.iter().map(hold).collect()).await;
        let settle = |(place, lease): (usize, &LeaseId)| CompleteRequest {
            namespace: namespace(),
            lease: *lease,
            job: None,
            claim: earmark_core::LeaseClaim::default(),
            actuals: vec![Amount { key: key(0), amount: 7 }],
            labels: SettleLabels::new([("model", format!("model-{}", place % 20)), ("user", format!("u{place}"))])
                .unwrap(),
        };
        let paid = backend.complete(Principal::System, leases.iter().enumerate().map(settle).collect()).await;
        assert!(paid.iter().all(|answer| answer.as_ref().is_ok_and(|answer| answer.reconciled)));
    }
}

/// The statement of an account with many entries: entries per second, and memory.
async fn run_statement(entries: u64) {
    let folder = tempfile::tempdir().unwrap();
    let node = open(&folder.path().join("data")).await;
    let backend = node.backend();
    let name = |text: &str| AccountName::new(text).unwrap();
    let vault = VaultName::new(VaultName::MAIN).unwrap();
    let account = AccountPath { namespace: namespace(), vault, account: name("acme") };
    write_entries(&backend, &account, entries).await;
    for group_by in [None, Some("model".to_owned()), Some("user".to_owned())] {
        let (before, started) = (resident_kib(), Instant::now());
        let query = StatementQuery { group_by: group_by.clone(), ..StatementQuery::default() };
        let found = statement(&*backend, account.clone(), query).await.unwrap();
        let seconds = started.elapsed().as_secs_f64();
        let groups = found.assets[0].groups.len();
        assert_eq!(i128::from(found.assets[0].moved.settlements) * 7, found.assets[0].moved.spent);
        println!(
            "statement by {group_by:?}: {:.0} entries/s, {groups} groups, {} KiB more memory",
            2.0 * found.assets[0].moved.settlements as f64 / seconds,
            resident_kib().saturating_sub(before),
        );
    }
    node.shut_down().await;
}

/// Many live leases or derived limits: how long a snapshot delays callers, and how long a restart takes.
async fn run_big(count: u64, is_derived: bool) {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let node = open(&data).await;
    let backend = node.backend();
    put_limits(&backend, 86_400).await;
    let mut next = 1 << 64;
    if is_derived {
        derive_limits(&backend, count).await;
        println!("{count} derived limits live");
    } else {
        for _ in 0..count.div_ceil(2_048) {
            backend.reserve(Principal::System, requests(2_048, &mut next)).await;
        }
        println!("{count} leases of four limits live");
    }
    let mut quiet = Vec::new();
    for _ in 0..2_000 {
        let started = Instant::now();
        backend.reserve(Principal::System, requests(64, &mut next)).await;
        quiet.push(started.elapsed());
    }
    let snapshot = tokio::spawn({
        let started = Instant::now();
        let node = Arc::new(node);
        let its_node = Arc::clone(&node);
        async move {
            its_node.snapshot().await.unwrap();
            drop(its_node);
            (node, started.elapsed())
        }
    });
    let mut busy = Vec::new();
    while !snapshot.is_finished() {
        let started = Instant::now();
        backend.reserve(Principal::System, requests(64, &mut next)).await;
        busy.push(started.elapsed());
    }
    let (node, took) = snapshot.await.unwrap();
    let most = |times: &[Duration]| times.iter().max().copied().unwrap_or_default();
    println!(
        "a snapshot takes {took:.1?}; the longest reserve of 64 takes {:.1?} meanwhile, {:.1?} without",
        most(&busy),
        most(&quiet)
    );
    node.shut_down().await;
    drop((node, backend));
    let started = Instant::now();
    let node = open(&data).await;
    node.backend().reserve(Principal::System, requests(1, &mut next)).await;
    println!("a start takes {:.1?} until the first reserve is answered", started.elapsed());
    node.shut_down().await;
}

/// A node of a cluster. The first one starts it, the others join it.
async fn member(id: u64, data: &std::path::Path, first: Option<&Node>) -> Node {
    let options = NodeOptions {
        id: Some(id),
        peer_listen: Some("127.0.0.1:0".into()),
        bootstrap: if first.is_none() { vec!["127.0.0.1:0".into()] } else { Vec::new() },
        join: first.and_then(Node::peer_address).map(str::to_owned).into_iter().collect(),
        trusts_peers: true,
        ..NodeOptions::new(Arc::new(RealDisk::new(data).unwrap()))
    };
    let node = Node::open(options).await.unwrap();
    let is_voter = |node: &Node| {
        let status = node.status();
        status.leader.is_some() && status.members.iter().any(|member| member.node == id && member.is_voter)
    };
    while !is_voter(&node) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    node
}

/// How long a node with an empty folder takes to become a voter that has applied everything, by a snapshot.
async fn run_replaced(count: u64) {
    let folder = tempfile::tempdir().unwrap();
    let data = |id: u64| folder.path().join(id.to_string());
    let first = member(1, &data(1), None).await;
    let second = member(2, &data(2), Some(&first)).await;
    let backend = first.backend();
    put_limits(&backend, 86_400).await;
    let mut next = 1 << 64;
    for _ in 0..count.div_ceil(2_048) {
        backend.reserve(Principal::System, requests(2_048, &mut next)).await;
    }
    for node in [&first, &second] {
        node.snapshot().await.unwrap();
    }
    for round in 0..5 {
        let started = Instant::now();
        let third = member(3 + round, &data(3 + round), Some(&first)).await;
        let applied = first.status().applied_index;
        while third.status().applied_index < applied {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let took = started.elapsed();
        let has_snapshot = third.status().snapshot_index.is_some();
        println!("{count} leases: a new node has caught up after {took:.1?}, by a snapshot: {has_snapshot}");
        let leader = if first.status().leader == Some(1) { &first } else { &second };
        leader.remove(3 + round).await.unwrap();
        third.shut_down().await;
    }
}

async fn run(batch: usize, callers: u128) {
    let folder = tempfile::tempdir().unwrap();
    let fsync = fsync_us(&folder.path().join("fsync"));
    let node = open(&folder.path().join("data")).await;
    let backend = node.backend();
    put_limits(&backend, 60).await;
    let started = Instant::now();
    let until = started + Duration::from_secs(SECONDS);
    let tasks: Vec<_> =
        (0..callers).map(|number| tokio::spawn(caller(Arc::clone(&backend), batch, number + 1, until))).collect();
    let (mut allowed, mut micros) = (0, Vec::new());
    for task in tasks {
        let (count, times) = task.await.unwrap();
        allowed += count;
        micros.extend(times);
    }
    let seconds = started.elapsed().as_secs_f64();
    micros.sort_unstable();
    let at = |part: usize| micros[(micros.len() * part / 100).min(micros.len() - 1)];
    println!(
        "batch {batch:>5}  callers {callers:>3}  {:>9.0} reserves/s  p50 {:>6} us  p99 {:>6} us  fsync p50 {fsync} us",
        allowed as f64 / seconds,
        at(50),
        at(99),
    );
    node.shut_down().await;
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let is_derived = std::env::args().any(|argument| argument == "derived");
    let is_replaced = std::env::args().any(|argument| argument == "replaced");
    let is_statement = std::env::args().any(|argument| argument == "statement");
    if let Some(count) = std::env::args().find_map(|argument| argument.parse().ok()) {
        if is_statement {
            return runtime.block_on(run_statement(count));
        }
        if is_replaced {
            return runtime.block_on(run_replaced(count));
        }
        return runtime.block_on(run_big(count, is_derived));
    }
    runtime.block_on(async {
        run(1, 1).await;
        run(1, 64).await;
        run(2_048, 1).await;
        run(2_048, 2).await;
        run(2_048, 4).await;
    });
}
