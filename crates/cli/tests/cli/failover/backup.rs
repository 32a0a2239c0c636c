//! Backups of running nodes, and restoring them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::load::{Load, amount, read};
use super::nodes::Nodes;

fn earmark(words: &[&str]) -> (Option<i32>, Value, String) {
    let ran = Command::new(env!("CARGO_BIN_EXE_earmark")).args(words).arg("--json").output().unwrap();
    let said = String::from_utf8(ran.stderr).unwrap();
    (ran.status.code(), serde_json::from_slice(&ran.stdout).unwrap_or_default(), said)
}

fn back_up(url: &str, name: &str) -> Value {
    let (code, made, said) = earmark(&["cluster", "backup", name, "--server", &format!("http://{url}")]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(made["name"], name);
    made
}

/// Recovers a backup into a data folder and starts a node on it.
fn restore(backup: &Value) -> Nodes {
    let folder = TempDir::new().unwrap();
    let to = folder.path().join("n0");
    let (code, made, said) =
        earmark(&["recover", "--from", backup["path"].as_str().unwrap(), "--to", to.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(made["last_log_index"], backup["last_log_index"]);
    assert_eq!(made["journal_records"], backup["journal_records"]);
    Nodes::alone(folder)
}

/// The bytes of the snapshot and the journal of a folder, without their headers.
fn content(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for inner in ["snapshot", "journal"] {
        for entry in fs::read_dir(folder.join(inner)).unwrap() {
            let path = entry.unwrap().path();
            let mut bytes = fs::read(&path).unwrap();
            // Magic, format, cluster and body length; then the body and a checksum.
            let header = u32::from_le_bytes(bytes[24..28].try_into().unwrap()) as usize + 32;
            bytes.drain(..header);
            found.insert(path.strip_prefix(folder).unwrap().to_owned(), bytes);
        }
    }
    found
}

/// Asserts that the backups of nodes at rest are equal to the byte, and returns one of them.
pub(super) fn assert_equal(nodes: &Nodes) -> PathBuf {
    let path = |url: &String| PathBuf::from(back_up(url, "at-rest")["path"].as_str().unwrap());
    let backups: Vec<PathBuf> = nodes.urls().iter().map(path).collect();
    let contents: Vec<_> = backups.iter().map(|backup| content(backup)).collect();
    assert!(contents[0].values().map(Vec::len).sum::<usize>() > 1_000);
    assert!(contents.iter().all(|other| *other == contents[0]), "the backups differ");
    backups[0].clone()
}

#[test]
fn a_backup_under_load_has_all_acknowledged_writes_and_no_partial_ones() {
    let mut nodes = Nodes::start();
    let load = Arc::new(Load::new(nodes.urls()));
    load.prepare();
    let workers = Load::start(&load);
    sleep(Duration::from_millis(700));
    let follower = (nodes.leader() + 1) % nodes.urls().len();
    let acknowledged = load.acknowledged();
    let backup = back_up(&nodes.urls()[follower], "under-load");
    let path = PathBuf::from(backup["path"].as_str().unwrap());
    assert_eq!(path, nodes.data(follower).join("backups/under-load"));
    assert!(backup["bytes"].as_u64().unwrap() > 1_000, "{backup}");
    let (code, refused, _) =
        earmark(&["cluster", "backup", "under-load", "--server", &format!("http://{}", nodes.urls()[follower])]);
    assert_eq!((code, &refused["error"]), (Some(1), &"conflict".into()));
    sleep(Duration::from_millis(700));
    let counts = load.finish(workers);
    nodes.settle();

    let restored = restore(&backup);
    let url = &restored.urls()[0];
    for (worker, before) in acknowledged.into_iter().enumerate() {
        let client = read(url, &format!("/v1/clients/transferrer-{worker}?namespace=default&vault=main"));
        let sequence = client["last_committed_sequence"].as_u64().unwrap();
        assert!(sequence >= before, "{before} were acknowledged, the backup has {sequence}");
        assert!(sequence < counts.sequences[worker], "the backup contains later writes");
        let balances = read(url, &format!("/v1/vaults/main/accounts/to-{worker}/balances"));
        let sum: u64 = (1..=sequence).map(amount).sum();
        assert_eq!(balances["balances"][0]["available"], sum.to_string(), "worker {worker}");
    }
    assert_eq!(read(url, "/v1/vaults/main/audit")["balanced"], true);
    load.check(&counts);
}

#[test]
fn idle_nodes_have_identical_backups_and_so_do_restored_nodes() {
    let mut nodes = Nodes::start();
    let load = Arc::new(Load::new(nodes.urls()));
    load.prepare();
    let workers = Load::start(&load);
    sleep(Duration::from_millis(500));
    let counts = load.finish(workers);
    nodes.settle();
    let backup = assert_equal(&nodes);

    let folder = TempDir::new().unwrap();
    let to = folder.path().join("n0");
    let (code, _, said) = earmark(&["recover", "--from", backup.to_str().unwrap(), "--to", to.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{said}");
    assert!(content(&to) == content(&backup), "the restored folder differs");
    let restored = Nodes::alone(folder);
    Load::new(restored.urls()).check(&counts);
}
