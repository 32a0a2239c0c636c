//! Disk usage as documented in `docs/operating.md`.

use earmark_admission::{Backend as _, ReserveAnswer};
use earmark_core::{Kind, Principal};

use crate::support::client::{TestClient, credit, definition, issue, lease, open, reserve_request, transfer};
use crate::support::disk::SimDisk;
use crate::support::sim_cluster::{Settings, SimCluster};

const FOUR: [(&str, u64); 4] = [("gpt-4o:rpm", 1), ("gpt-4o:tpm", 900), ("gpt-4o:now", 1), ("tenant:tpd", 900)];
const EACH: u64 = 200;

/// Bytes of the files in a folder.
fn taken(disk: &SimDisk, folder: &str) -> u64 {
    let paths = disk.paths().into_iter().filter(|path| path.starts_with(folder));
    paths.map(|path| disk.bytes(&path).len() as u64).sum()
}

/// Bytes of a folder in a new backup.
async fn backed_up(cluster: &SimCluster, folder: &str) -> u64 {
    let disk = SimDisk::new();
    cluster.node(1).backup(disk.mount()).await.unwrap();
    taken(&disk, folder)
}

async fn admit(client: &TestClient, parts: &[(&str, u64)]) {
    let requests = (0..EACH).map(|_| reserve_request(lease(), parts)).collect();
    for answer in client.0.reserve(Principal::System, requests).await {
        assert!(matches!(answer, Ok(ReserveAnswer::Allowed { .. })), "{answer:?}");
    }
}

/// Compares measured growth with the documented sizes.
struct Sizes(Vec<String>);

impl Sizes {
    fn compare(&mut self, what: &str, grown: u64, told: u64) {
        let each = grown as f64 / EACH as f64;
        println!("{what}: {each:.1} bytes");
        if (each - told as f64).abs() > told as f64 / 20.0 {
            self.0.push(format!("{what}: {each:.1} bytes, and not {told}"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_sizes_that_operators_are_told_are_right() {
    let cluster = SimCluster::of(1, Settings::default()).await;
    let client = cluster.client(1);
    for (name, _) in FOUR {
        let kind = Kind::Rolling { window_seconds: 86_400 };
        client.put(definition(name, kind, 1 << 40)).await;
    }
    client.write("setup", 1, vec![open("acme"), open("other"), issue("acme", 1 << 60)]).await;
    client.put(credit("acme:usd", "acme", 3_600)).await;
    let disk = &cluster.hosts[&1].disk;
    let mut sizes = Sizes(Vec::new());

    let (log, snapshot) = (taken(disk, "log/"), backed_up(&cluster, "snapshot/").await);
    for _ in 0..EACH {
        client.admit(&FOUR[..1]).await;
    }
    sizes.compare("a reserve of one limit, alone in its entry", taken(disk, "log/") - log, 102);
    sizes.compare("a live lease of one limit", backed_up(&cluster, "snapshot/").await - snapshot, 44);

    let (log, snapshot) = (taken(disk, "log/"), backed_up(&cluster, "snapshot/").await);
    admit(&client, &FOUR).await;
    sizes.compare("a reserve of four limits, many in an entry", taken(disk, "log/") - log, 91);
    sizes.compare("a live lease of four limits", backed_up(&cluster, "snapshot/").await - snapshot, 95);

    let (log, snapshot) = (taken(disk, "log/"), backed_up(&cluster, "snapshot/").await);
    let journal = backed_up(&cluster, "journal/").await;
    for sequence in 1..=EACH {
        client.write("billing", sequence, vec![transfer("acme", "other", 1)]).await;
    }
    sizes.compare("a transfer, alone in its entry", taken(disk, "log/") - log, 185);
    sizes.compare("a kept result of a write", backed_up(&cluster, "snapshot/").await - snapshot, 87);
    sizes.compare("a transfer in the journal", backed_up(&cluster, "journal/").await - journal, 213);

    let (journal, snapshot) = (backed_up(&cluster, "journal/").await, backed_up(&cluster, "snapshot/").await);
    let mut leases = Vec::new();
    for _ in 0..EACH {
        leases.push(client.admit(&[("acme:usd", 100)]).await.lease);
    }
    sizes.compare("a live lease with a hold", backed_up(&cluster, "snapshot/").await - snapshot, 87);
    sizes.compare("a hold in the journal", backed_up(&cluster, "journal/").await - journal, 91);
    let journal = backed_up(&cluster, "journal/").await;
    for lease in leases {
        client.complete(lease, &[("acme:usd", 40)]).await;
    }
    sizes.compare("a settlement in the journal", backed_up(&cluster, "journal/").await - journal, 127);
    assert!(sizes.0.is_empty(), "{:#?}", sizes.0);
}
