//! Data of earlier versions: each folder in `tests/fixtures` was written by the version that it is named after, and this
//! version must open it. `cargo xtask fixtures` writes those of this version.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::database::postgres;
use crate::support::Server;

/// A data folder, as a compressed tar file.
const NODE: &str = "node.tar.gz";
/// A folder with the file of SQLite, as a compressed tar file.
const SQLITE: &str = "sqlite.tar.gz";
/// A dump of PostgreSQL, as compressed text.
const POSTGRES: &str = "postgres.sql.gz";
const LIMITS: [&str; 3] = [
    "limits put --key gpt:rpm --kind rolling --capacity 60 --window 1m --unit requests",
    "limits put --key slots --kind concurrency --capacity 3 --timeout 3600",
    "limits put --key usd --kind credit --account acme --asset usd --timeout 600",
];
const TEMPLATE: &str = "templates put --key user:{user}:tpd --kind calendar --capacity 1000 --period day";
const POLICY: &str =
    "unmatched = 'allow'\n\n[[rules]]\nname = 'all'\nlimits = [{ key = 'gpt:rpm', amount = 'requests' }]\n";

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// The folders of all versions, by name.
fn versions() -> Vec<PathBuf> {
    let found =
        fs::read_dir(fixtures()).expect("the data of earlier versions; cargo xtask fixtures writes that of this one");
    let mut versions: Vec<PathBuf> = found.map(|entry| entry.unwrap().path()).collect();
    versions.sort_unstable();
    assert!(!versions.is_empty(), "{} is empty", fixtures().display());
    versions
}

/// Unpacks the data folder that the last version in the list wrote.
pub(crate) fn unpack_node(to: &Path) {
    let version = versions().pop().unwrap();
    let folder = TempDir::new_in(to.parent().unwrap()).unwrap();
    unpack(&version.join(NODE), folder.path());
    fs::rename(folder.path().join("data"), to).unwrap();
}

/// Issues credit, spends a part of it by a lease, and returns the answer to the first write.
fn fill_credit(server: &Server) -> String {
    let receipt = server.issue_credit(700).ends(0).stdout;
    server.line(LIMITS[2]).ends(0);
    let lease = server.reserve("--key usd=60");
    server.line(&format!("complete --lease {lease} --actual usd=25")).ends(0);
    receipt
}

/// The answer to the write that issued credit. The repeated write must get the same answer from a later version.
fn receipt(version: &Path, store: &str) -> PathBuf {
    version.join(format!("{store}-receipt.txt"))
}

fn check_credit(server: &Server, version: &Path, store: &str) {
    assert_eq!(server.credit(), (675, 0), "{version:?}");
    let first = fs::read_to_string(receipt(version, store)).unwrap();
    assert_eq!(server.issue_credit(700).ends(0).stdout, first, "{version:?}");
    assert_eq!(server.credit(), (675, 0), "the repeated write changed nothing: {version:?}");
    assert!(server.line("audit").ends(0).stdout.starts_with("main is balanced\n"), "{version:?}");
}

fn program(name: &str, words: &[&str], folder: &Path) {
    let ran = Command::new(name).args(words).current_dir(folder).output().unwrap();
    assert!(ran.status.success(), "{name}: {ran:?}");
}

/// Writes an archive without what differs between machines.
fn pack(archive: &Path, words: &[&str], folder: &Path) {
    let same = ["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"];
    let tar = folder.join("archive");
    program("tar", &[&["cf", tar.to_str().unwrap()][..], &same, words].concat(), folder);
    compress(&tar, archive);
}

/// Compresses a file without its name and time.
fn compress(file: &Path, to: &Path) {
    program("gzip", &["-9nf", file.to_str().unwrap()], Path::new("."));
    fs::copy(format!("{}.gz", file.display()), to).unwrap();
}

fn unpack(archive: &Path, folder: &Path) {
    program("tar", &["xzf", archive.to_str().unwrap()], folder);
}

/// The URL of the file of SQLite in a folder of its own, because a stopped server leaves its last changes in a second file.
fn sqlite_url(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("sqlite/credit.db").display())
}

/// A client program of PostgreSQL: beside the server, or on the PATH.
fn client_program(name: &str) -> PathBuf {
    let beside = postgres::programs().map(|folder| folder.join(name)).filter(|path| path.is_file());
    beside.unwrap_or_else(|| PathBuf::from(name))
}

#[test]
fn a_data_folder_of_each_version_opens_with_all_its_content() {
    for version in versions() {
        let folder = TempDir::new().unwrap();
        unpack(&version.join(NODE), folder.path());
        let server = Server::on(&folder.path().join("data"), &[]);
        check_credit(&server, &version, "node");
        for (line, part) in [
            ("limits get gpt:rpm --json", "\"capacity\":60"),
            ("limits get slots --json", "\"timeout_seconds\":3600"),
            ("templates list --json", "user:{user}:tpd"),
            ("policy get", "gpt:rpm"),
            ("quota get default --json", "\"limits\":{\"quota\":100"),
        ] {
            let ran = server.line(line).ends(0);
            assert!(ran.stdout.contains(part), "{version:?}: {line}: {ran:?}");
        }
        // It goes on: a decision, a restart, and the same state.
        server.reserve("--key gpt:rpm=1 --key slots=1");
        server.stop();
        assert_eq!(Server::on(&folder.path().join("data"), &[]).reserved("slots"), 1, "{version:?}");
    }
}

#[test]
fn a_credit_file_of_each_version_opens_with_all_its_content() {
    for version in versions() {
        let folder = TempDir::new().unwrap();
        unpack(&version.join(SQLITE), folder.path());
        let server = Server::start(&["--credits", &sqlite_url(folder.path())]);
        check_credit(&server, &version, "sqlite");
    }
}

#[test]
fn a_credit_database_of_each_version_opens_with_all_its_content() {
    for version in versions() {
        let database = postgres::Server::start_without_fsync().unwrap();
        let folder = TempDir::new().unwrap();
        let dump = folder.path().join(POSTGRES);
        fs::copy(version.join(POSTGRES), &dump).unwrap();
        program("gzip", &["-d", POSTGRES], folder.path());
        let mut psql = Command::new(client_program("psql"));
        let psql = psql.args(["--quiet", "--set", "ON_ERROR_STOP=1", "--file"]).arg(dump.with_extension(""));
        let loaded = psql.arg(database.url()).output().unwrap();
        assert!(loaded.status.success(), "{version:?}: {loaded:?}");
        let server = Server::start(&["--credits", &database.url()]);
        check_credit(&server, &version, "postgres");
    }
}

/// Run by `cargo xtask fixtures`.
#[test]
#[ignore = "writes into the work tree"]
fn the_fixtures_of_this_version_are_written() {
    let version = fixtures().join(env!("CARGO_PKG_VERSION"));
    fs::create_dir_all(&version).unwrap();
    let folder = TempDir::new().unwrap();
    let server = Server::on(&folder.path().join("data"), &["--decisions-bytes", "0"]);
    fs::write(receipt(&version, "node"), fill_credit(&server)).unwrap();
    LIMITS.iter().take(2).chain([&TEMPLATE]).for_each(|line| drop(server.line(line).ends(0)));
    let policy = folder.path().join("policy.toml");
    fs::write(&policy, POLICY).unwrap();
    server.earmark(&["policy", "put", policy.to_str().unwrap()]).ends(0);
    server.line("quota set default --quota limits=100").ends(0);
    server.stop();
    pack(&version.join(NODE), &["--exclude=lock", "data"], folder.path());

    fs::create_dir(folder.path().join("sqlite")).unwrap();
    let server = Server::start(&["--credits", &sqlite_url(folder.path())]);
    fs::write(receipt(&version, "sqlite"), fill_credit(&server)).unwrap();
    server.stop();
    pack(&version.join(SQLITE), &["sqlite"], folder.path());

    let database = postgres::Server::start_without_fsync().unwrap();
    let server = Server::start(&["--credits", &database.url()]);
    fs::write(receipt(&version, "postgres"), fill_credit(&server)).unwrap();
    server.stop();
    let mut dump = Command::new(client_program("pg_dump"));
    let dumped = dump.args(["--no-owner", "--no-privileges", "--inserts", &database.url()]).output().unwrap();
    assert!(dumped.status.success(), "{dumped:?}");
    // Newer servers write a random key around the dump, and settings that older ones do not know.
    let text = String::from_utf8(dumped.stdout).unwrap();
    let is_portable = |line: &&str| !line.starts_with('\\') && !line.contains("transaction_timeout");
    let text: Vec<&str> = text.lines().filter(is_portable).collect();
    let file = folder.path().join("postgres.sql");
    fs::write(&file, text.join("\n") + "\n").unwrap();
    compress(&file, &version.join(POSTGRES));
}
