//! `earmark backup` and `earmark restore`.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::ask::free;
use crate::support::{Ran, Server, command, run};

/// A server with credit and a reservation, and the file of its backup.
fn backed_up(folder: &TempDir) -> (Server, PathBuf) {
    let server = Server::on(&folder.path().join("data"), &[]);
    server.line("limits put --key a --kind rolling --capacity 10 --window 1h").ends(0);
    server.reserve("--key a=4");
    server.issue_credit(700).ends(0);
    let file = folder.path().join("backup.tar");
    let made = server.earmark(&["backup", file.to_str().unwrap(), "--json"]).ends(0).json();
    assert!(made["bytes"].as_u64().unwrap() > 1_000, "{made}");
    (server, file)
}

fn restore(file: &Path, to: &Path) -> Ran {
    run(&["restore", file.to_str().unwrap(), to.to_str().unwrap(), "--json"])
}

#[test]
fn a_restored_server_has_everything_that_was_acknowledged_before_the_backup() {
    let folder = TempDir::new().unwrap();
    let (server, file) = backed_up(&folder);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!folder.path().join("data/backups/.sending").exists(), "the node keeps no copy");
    server.line("limits put --key later --kind rolling --capacity 1 --window 1h").ends(0);
    let again = server.earmark(&["backup", file.to_str().unwrap()]).ends(2);
    assert!(again.stderr.contains("the file exists"), "{again:?}");
    let nowhere = folder.path().join("missing/b.tar");
    let lost = server.earmark(&["backup", nowhere.to_str().unwrap()]).ends(2);
    assert!(lost.stderr.contains("missing/b.tar: No such file or directory"), "{lost:?}");
    let to = folder.path().join("restored");
    let made = restore(&file, &to).ends(0).json();
    assert!(!to.join(".restoring").exists());
    let restored = Server::on(&to, &[]);
    assert_eq!((restored.reserved("a"), restored.credit()), (4, (700, 0)));
    restored.line("limits get later").ends(1);
    assert!(restored.banner.contains(made["cluster_id"].as_str().unwrap()), "{}", restored.banner);
    let other = restore(&file, &folder.path().join("other")).ends(0).json();
    assert_ne!(made["cluster_id"], other["cluster_id"], "each restore is a cluster of its own");
}

#[test]
fn a_backup_on_standard_output_is_the_same_archive() {
    let folder = TempDir::new().unwrap();
    let (server, file) = backed_up(&folder);
    let piped = folder.path().join("piped.tar");
    let out = File::create(&piped).unwrap();
    let ran = command(&["backup"]).env("EARMARK_SERVER", server.url()).stdout(out).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    // Each backup has ids of its own, so that only their sizes are equal.
    assert_eq!(fs::metadata(&piped).unwrap().len(), fs::metadata(&file).unwrap().len());
    let mut restore = command(&["restore", "-", folder.path().join("restored").to_str().unwrap()]);
    let ran = restore.stdin(File::open(&piped).unwrap()).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    let json = server.line("backup --json").ends(2);
    assert!(json.stderr.contains("--json: name a file"), "{json:?}");
}

#[test]
fn a_folder_keeps_the_newest_backups_and_foreign_files() {
    let folder = TempDir::new().unwrap();
    let (server, file) = backed_up(&folder);
    let backups = folder.path().join("backups");
    fs::create_dir(&backups).unwrap();
    let old = ["earmark-20260101T000000Z.tar", "earmark-20260102T000000Z.tar"].map(|name| backups.join(name));
    let foreign = ["earmark-mine.tar", "other.tar", "earmark-20260101T000000Z.tar.age"].map(|name| backups.join(name));
    let [killed, running] = ["earmark-20260101T000000Z.tar.partial", "earmark-20260102T000000Z.tar.partial"];
    let (killed, running) = (backups.join(killed), backups.join(running));
    old.iter().chain(&foreign).chain([&killed, &running]).for_each(|path| fs::write(path, "").unwrap());
    let lock = File::open(&running).unwrap();
    lock.lock().unwrap();
    let made = server.earmark(&["backup", backups.to_str().unwrap(), "--keep", "2", "--json"]).ends(0).json();
    assert!(Path::new(made["path"].as_str().unwrap()).is_file(), "{made}");
    assert!(!old[0].exists() && old[1].exists() && foreign.iter().all(|path| path.exists()));
    assert!(!killed.exists(), "killed backups once filled the disk");
    assert!(running.exists(), "another backup is being written");
    let ran = server.earmark(&["backup", file.to_str().unwrap(), "--keep", "2"]).ends(2);
    assert!(ran.stderr.contains("--keep: name a folder"), "{ran:?}");
}

#[test]
fn a_damaged_or_cut_backup_and_a_folder_in_use_are_refused_without_trace() {
    let folder = TempDir::new().unwrap();
    let (server, file) = backed_up(&folder);
    server.stop();
    let whole = fs::read(&file).unwrap();
    let to = folder.path().join("restored");
    let refused = |bytes: &[u8], message: &str| {
        fs::write(&file, bytes).unwrap();
        let ran = restore(&file, &to).ends(2);
        assert!(ran.stderr.contains(message), "{ran:?}");
        assert!(!to.exists());
    };
    refused(&whole[..whole.len() / 2], "the archive ends early");
    let mut changed = whole.clone();
    changed[520] ^= 1;
    refused(&changed, "the checksum is wrong");
    refused(b"", "the archive ends early");
    refused(&[b'x'; 4096], "this is not an archive of `earmark backup`");
    fs::write(&file, &whole).unwrap();
    let ran = restore(&file, &folder.path().join("data")).ends(2);
    assert!(ran.stderr.contains("the folder is not empty"), "{ran:?}");
    let ran = restore(Path::new("/no/such/file"), &to).ends(2);
    assert!(ran.stderr.contains("/no/such/file"), "{ran:?}");
    restore(&file, &to).ends(0);
}

/// A restore once worked beside its folder, where a container cannot write.
#[test]
fn a_backup_is_restored_into_a_new_volume_and_writes_nowhere_else() {
    let folder = TempDir::new().unwrap();
    let (server, file) = backed_up(&folder);
    server.stop();
    let volume = folder.path().join("parent/volume");
    fs::create_dir_all(volume.join("lost+found")).unwrap();
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..600]).unwrap();
    restore(&file, &volume).ends(2);
    assert_eq!(names(&volume), ["lost+found"], "a refused backup leaves the volume as it was");

    fs::create_dir(volume.join(".restoring")).unwrap();
    let interrupted = restore(&file, &volume).ends(2);
    assert!(interrupted.stderr.contains("volume/.restoring: left by an interrupted restore"), "{interrupted:?}");
    let refused = run(&["serve", "--listen", "127.0.0.1:0", "--data", volume.to_str().unwrap()]).ends(2);
    assert!(refused.stderr.contains(".restoring"), "no server begins anew on it: {refused:?}");

    fs::remove_dir(volume.join(".restoring")).unwrap();
    fs::write(&file, &whole).unwrap();
    restore(&file, &volume).ends(0);
    assert_eq!(names(volume.parent().unwrap()), ["volume"]);
    assert!(names(&volume).contains(&"lost+found".to_owned()) && !volume.join(".restoring").exists());
    assert_eq!(Server::on(&volume, &[]).reserved("a"), 4);
}

fn names(folder: &Path) -> Vec<String> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_restored_backup_beside_its_living_original_can_neither_join_nor_disturb_it() {
    let folder = TempDir::new().unwrap();
    let (peers, others) = (free(), free());
    let original = Server::on(&folder.path().join("data"), &["--peer-listen", &peers, "--bootstrap", &peers]);
    original.issue_credit(700).ends(0);
    let file = folder.path().join("backup.tar");
    original.earmark(&["backup", file.to_str().unwrap()]).ends(0);
    let members = original.line("cluster status --json").ends(0).json()["members"].clone();
    let to = folder.path().join("restored");
    let made = restore(&file, &to).ends(0).json();

    // Told to join the original, it stays the cluster that it is.
    let restored = Server::on(&to, &["--peer-listen", &others, "--join", &peers]);
    let status = restored.line("cluster status --json").ends(0).json();
    assert_eq!((&status["cluster_id"], status["members"].as_array().unwrap().len()), (&made["cluster_id"], 1));
    restored.line("limits put --key a --kind rolling --capacity 10 --window 1h").ends(0);
    original.line(&format!("cluster add --node-id 2 --address {others}")).ends(1);
    restored.line(&format!("cluster add --node-id 2 --address {peers}")).ends(1);

    assert_eq!(original.line("cluster status --json").ends(0).json()["members"], members);
    original.line("limits get a").ends(1);
    assert_eq!((original.credit(), restored.credit()), ((700, 0), (700, 0)));
}

#[test]
fn only_an_admin_of_a_durable_server_gets_a_backup() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("backup.tar");
    let in_memory = Server::start(&[]);
    let ran = in_memory.earmark(&["backup", file.to_str().unwrap()]).ends(1);
    assert!(ran.stderr.contains("404 not_found") && !file.exists(), "{ran:?}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "no partial file stays");
    let keyed = Server::on(&folder.path().join("data"), &["--bootstrap-key"]);
    let ran = keyed.earmark(&["backup", file.to_str().unwrap()]).ends(1);
    assert!(ran.stderr.contains("401 unauthenticated") && !file.exists(), "{ran:?}");
}
