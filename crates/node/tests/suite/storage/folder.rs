//! Identity of the data folder: every refusal has its own error and writes nothing.

use std::sync::Arc;

use earmark_node::{Disk, Expected, Failure, Fault, Folder, Identity, LogOptions, LogStore, RealDisk};
use tempfile::TempDir;

use crate::support::disk::SimDisk;
use crate::support::log_driver::{CLUSTER, block_on, open};

const IDENTITY: Identity = Identity { cluster: CLUSTER, node: 3, incarnation: 77, is_founder: true };
const EXPECTED: Expected = Expected { cluster: Some(CLUSTER), node: Some(3) };

fn make(disk: &dyn Disk) -> Result<(), Fault> {
    IDENTITY.format(disk, |disk| LogStore::create(disk, CLUSTER))
}

fn made() -> SimDisk {
    let disk = SimDisk::new();
    make(&disk).unwrap();
    disk
}

/// Expects a refusal without any write.
fn refuse(disk: &SimDisk, expected: Expected) -> Fault {
    let changes = disk.changes();
    let fault = Folder::take(disk, expected).unwrap_err();
    assert_eq!(disk.changes(), changes, "something was written: {fault}");
    fault
}

#[test]
fn an_empty_folder_is_new_and_a_made_one_says_whose_it_is() {
    let disk = SimDisk::new();
    assert_eq!(Folder::take(&disk, EXPECTED).unwrap().0, Folder::New);
    make(&disk).unwrap();
    assert_eq!(Folder::take(&disk, EXPECTED).unwrap().0, Folder::Made(IDENTITY));
    assert_eq!(Folder::take(&disk, Expected::default()).unwrap().0, Folder::Made(IDENTITY));
}

#[test]
fn the_folder_of_another_cluster_or_node_is_refused() {
    let disk = made();
    let fault = refuse(&disk, Expected { cluster: Some(8), node: Some(3) });
    assert!(matches!(fault, Fault::OtherCluster { found: CLUSTER, expected: 8, .. }), "{fault}");
    let fault = refuse(&disk, Expected { cluster: Some(CLUSTER), node: Some(4) });
    assert_eq!(
        fault.to_string(),
        "sim:/identity belongs to node 3, not to node 4. Give each node its own data folder, or start this one with \
         the id that the folder has"
    );
}

#[test]
fn a_folder_of_a_newer_format_asks_for_a_newer_version() {
    let disk = made();
    let mut bytes = disk.bytes("identity");
    bytes[4] = 2;
    bytes.extend_from_slice(b"more than is known here");
    bytes[24] += 23;
    let len = bytes.len() - 4;
    let sum = crc32fast::hash(&bytes[..len]);
    bytes[len..].copy_from_slice(&sum.to_le_bytes());
    disk.put("identity", &bytes);
    let fault = refuse(&disk, EXPECTED);
    assert!(matches!(fault, Fault::NewerFormat { found: 2, known: 1, .. }), "{fault}");
}

#[test]
fn a_damaged_identity_is_no_new_folder() {
    let disk = made();
    disk.truncate("identity", 0);
    let fault = refuse(&disk, EXPECTED);
    assert!(matches!(fault, Fault::Damaged { .. }), "{fault}");
    disk.remove("identity").unwrap();
    let fault = refuse(&disk, EXPECTED);
    assert!(matches!(fault, Fault::Missing { .. }), "{fault}");
}

#[test]
fn a_strangers_folder_is_left_alone() {
    for name in ["thesis.txt", "identity.txt", "forming", "log"] {
        let disk = SimDisk::new();
        disk.put(name, b"the work of a lifetime");
        let fault = refuse(&disk, EXPECTED);
        let text = format!("sim:/ is not an Earmark data folder: it contains {name}.");
        assert!(fault.to_string().starts_with(&text), "{fault}");
    }
    let disk = SimDisk::new();
    disk.create_dir("lost+found").unwrap();
    assert_eq!(Folder::take(&disk, EXPECTED).unwrap().0, Folder::New);
}

#[test]
fn a_folder_in_use_is_refused_until_its_owner_lets_go() {
    let folder = TempDir::new().unwrap();
    let (one, other) = (RealDisk::new(folder.path()).unwrap(), RealDisk::new(folder.path()).unwrap());
    let (_, lock) = Folder::take(&one, EXPECTED).unwrap();
    let fault = Folder::take(&other, EXPECTED).unwrap_err();
    assert!(matches!(fault, Fault::InUse { .. }), "{fault}");
    assert!(fault.to_string().contains(&folder.path().display().to_string()), "{fault}");
    drop(lock);
    make(&other).unwrap();
    assert_eq!(Folder::take(&one, EXPECTED).unwrap().0, Folder::Made(IDENTITY));
}

#[test]
fn a_folder_whose_making_was_cut_off_is_new_or_whole() {
    block_on(async {
        let whole = {
            let disk = made();
            disk.changes()
        };
        let mut outcomes = [0, 0];
        for cut in 0..=whole {
            for seed in 0..40 {
                let disk = SimDisk::new();
                disk.cut_power_after(cut);
                let done = make(&disk).is_ok();
                if seed % 4 == 0 {
                    disk.kill()
                } else {
                    disk.crash(seed)
                }
                let what = format!("cut after {cut}, seed {seed}");
                match Folder::take(&disk, EXPECTED).unwrap_or_else(|fault| panic!("{what}: {fault}")).0 {
                    Folder::New => {
                        assert!(!done, "{what}");
                        outcomes[0] += 1;
                        make(&disk).unwrap();
                    }
                    Folder::Made(identity) => {
                        assert_eq!(identity, IDENTITY);
                        outcomes[1] += 1;
                    }
                }
                disk.crash(seed);
                assert_eq!(Folder::take(&disk, EXPECTED).unwrap().0, Folder::Made(IDENTITY), "{what}");
                open(&disk, LogOptions::default()).await.unwrap_or_else(|fault| panic!("{what}: {fault}"));
                assert!(!disk.paths().contains(&"forming".to_owned()), "{what}");
            }
        }
        assert!(outcomes[0] > 100 && outcomes[1] > 10, "{outcomes:?}");
    });
}

#[test]
fn a_log_on_real_files_is_there_after_it_was_closed_and_opened() {
    use crate::support::log_driver::{append, entry, id, read};
    use crate::support::random::Random;

    let folder = TempDir::new().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(folder.path()).unwrap());
        make(&*disk).unwrap();
        let options = LogOptions { segment_bytes: 5_000, cache_bytes: 1_000 };
        let mut store = LogStore::open(Arc::clone(&disk), CLUSTER, options, Failure::default()).await.unwrap();
        for index in 0..50 {
            assert!(append(&mut store, vec![entry(&mut Random::new(index), id(1, index), 1_000)]).await);
        }
        let log = read(&mut store).await;
        assert_eq!(log.entries.len(), 50);
        store.close().await.unwrap();
        let mut store = LogStore::open(disk, CLUSTER, options, Failure::default()).await.unwrap();
        assert_eq!(read(&mut store).await, log);
    });
}
