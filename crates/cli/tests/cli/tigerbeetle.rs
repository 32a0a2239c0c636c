//! Limits on a real TigerBeetle cluster. Skipped without a tigerbeetle binary.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::ask::free;
use crate::support::{Server, run, wait};

const PUT: &str = "limits put --key slots --kind concurrency --capacity 3 --timeout 3600";

/// A TigerBeetle cluster of one replica.
struct Replica {
    binary: PathBuf,
    folder: TempDir,
    address: String,
    child: Option<Child>,
}

impl Replica {
    /// Formats a replica without starting it. Prints why the test is skipped if there is no binary.
    fn make() -> Option<Replica> {
        let on_path = || {
            let path = std::env::var_os("PATH")?;
            std::env::split_paths(&path).map(|folder| folder.join("tigerbeetle")).find(|file| file.is_file())
        };
        let Some(binary) = std::env::var_os("TB_BIN").map(PathBuf::from).or_else(on_path) else {
            eprintln!("skipped: no tigerbeetle binary; put one of 0.17.9 on the PATH or name it in TB_BIN");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let ledger = Replica { binary, folder, address: free(), child: None };
        let format = ["format", "--cluster=7", "--replica=0", "--replica-count=1", "--development"];
        let formatted = ledger.command(&format).status().unwrap();
        assert!(formatted.success());
        Some(ledger)
    }

    fn started() -> Option<Replica> {
        Replica::make().map(|mut ledger| {
            ledger.up();
            ledger
        })
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(words).arg(self.folder.path().join("0_0.tigerbeetle"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn up(&mut self) {
        let addresses = format!("--addresses={}", self.address);
        let start = ["start", &addresses, "--development", "--cache-grid=64MiB"];
        self.child = Some(self.command(&start).spawn().unwrap());
        wait("TigerBeetle to listen", || TcpStream::connect(&self.address).is_ok());
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn url(&self) -> String {
        format!("tigerbeetle://{}?cluster=7", self.address)
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.kill();
    }
}

fn is_ready(server: &Server) -> bool {
    server.get("/readyz") == r#"{"status":"ready"}"#
}

#[test]
fn leases_are_on_the_ledger_and_survive_a_process_that_keeps_nothing() {
    let Some(ledger) = Replica::started() else { return };
    let folder = tempfile::tempdir().unwrap();
    let limits = folder.path().join("limits.json");
    let words = ["--ledger", &ledger.url(), "--limits", limits.to_str().unwrap()];
    let server = Server::start(&words);
    let line = format!("leases: on {}, which enforces the limits\n", ledger.url());
    assert!(server.banner.contains(&line), "{}", server.banner);
    server.line(PUT).ends(0);
    let lease = server.reserve("--key slots=2");
    server.line("reserve --key slots=2").ends(3);
    server.kill();
    let server = Server::start(&words);
    wait("the ledger", || is_ready(&server));
    assert_eq!(server.reserved("slots"), 2);
    assert!(server.line(&format!("reserve --lease {lease} --key slots=2")).ends(0).stdout.starts_with("allowed"));
    server.line(&format!("complete --lease {lease}")).ends(0);
    assert_eq!(server.reserved("slots"), 0);
}

#[test]
fn a_node_defines_what_the_ledger_enforces_and_finishes_what_it_began_before_a_stop() {
    let Some(ledger) = Replica::started() else { return };
    let folder = tempfile::tempdir().unwrap();
    let words = ["--ledger", &ledger.url()];
    let server = Server::on(folder.path(), &words);
    server.line(PUT).ends(0);
    let lease = server.reserve("--key slots=2");
    let deleted = server.line("limits delete slots --json").ends(0).json();
    assert_eq!(deleted["status"], "decreasing");
    server.stop();

    let server = Server::on(folder.path(), &words);
    assert!(server.banner.contains("leases: on tigerbeetle://"), "{}", server.banner);
    wait("the ledger", || is_ready(&server));
    let limit = server.line("limits get slots --json").ends(0).json();
    assert_eq!(limit["limit"]["status"], "decreasing");
    server.line(&format!("complete --lease {lease}")).ends(0);
    wait("the limit to go", || server.line("limits get slots").code == Some(1));
    // A deleted key may be used for a limit of another kind.
    server.line("limits put --key slots --kind rolling --capacity 5 --window 60").ends(0);
    server.line("reserve --key slots=5").ends(0);
}

#[test]
fn a_ledger_that_is_gone_is_named_and_is_used_again_when_it_is_back() {
    let Some(mut ledger) = Replica::make() else { return };
    let server = Server::start(&["--ledger", &ledger.url()]);
    let why = server.get("/readyz");
    assert!(why.contains("limits: ") && why.contains(&ledger.address), "{why}");
    ledger.up();
    wait("the ledger", || is_ready(&server));
    server.line(PUT).ends(0);
    ledger.kill();
    let lost = server.line("reserve --key slots=1").ends(1);
    assert!(lost.stderr.contains("the outcome is unknown"), "{lost:?}");
    wait("a reason", || server.get("/readyz").contains("limits: "));
    ledger.up();
    let lease = lost.stderr.split("--lease ").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    wait("the same lease to be allowed", || {
        server.line(&format!("reserve --lease {lease} --key slots=1")).code == Some(0)
    });
    assert_eq!(server.reserved("slots"), 1);
}

#[test]
fn credit_is_held_in_the_folder_beside_limits_on_the_ledger() {
    let Some(ledger) = Replica::started() else { return };
    let folder = tempfile::tempdir().unwrap();
    let server = Server::on(folder.path(), &["--ledger", &ledger.url()]);
    server.issue_credit(100).ends(0);
    server.line(PUT).ends(0);
    server.line("limits put --key usd --kind credit --account acme --asset usd --timeout 600").ends(0);
    let short = server.line("reserve --key slots=1 --key usd=101").ends(3);
    assert!(short.stdout.contains("insufficient_credit:usd"), "{short:?}");
    assert_eq!(server.reserved("slots"), 0);
    let lease = server.reserve("--key slots=1 --key usd=60");
    assert_eq!(server.reserved("slots"), 1);
    server.line(&format!("complete --lease {lease} --actual usd=25")).ends(0);
    assert_eq!(server.reserved("slots"), 0);
    let balance = server.line("balance --account acme").ends(0);
    assert_eq!(balance.stdout, "ASSET  AVAILABLE  HELD\nusd    75         0\n");
    assert!(server.line("audit").ends(0).stdout.starts_with("main is balanced\n"));
}

/// The reserved slots, and the available and held credit of acme.
fn held(server: &Server) -> (u64, (u64, u64)) {
    (server.reserved("slots"), server.credit())
}

#[test]
fn limits_on_the_ledger_and_credit_in_a_database_are_held_and_given_back_together() {
    let Some(ledger) = Replica::started() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (data, url) = (folder.path().join("data"), format!("sqlite:{}", folder.path().join("credit.db").display()));
    let ledger_url = ledger.url();
    let words = ["--ledger", &ledger_url, "--credits", &url];
    let server = Server::on(&data, &words);
    assert!(server.banner.contains(&format!("leases: on {ledger_url}")), "{}", server.banner);
    assert!(server.banner.contains(&format!("credit: in {url}\n")), "{}", server.banner);
    let receipt = server.issue_credit(100).ends(0).stdout;
    server.line(PUT).ends(0);
    server.line("limits put --key usd --kind credit --account acme --asset usd --timeout 600").ends(0);
    wait("both parts", || is_ready(&server));

    let paid = server.reserve("--key slots=1 --key usd=60");
    assert_eq!(held(&server), (1, (40, 60)));
    // A refused hold releases the slot on TigerBeetle, and a denied slot holds no credit.
    let short = server.line("reserve --key slots=1 --key usd=41").ends(3);
    assert!(short.stdout.contains("insufficient_credit:usd"), "{short:?}");
    let full = server.line("reserve --key slots=3 --key usd=1").ends(3);
    assert!(full.stdout.contains("slots"), "{full:?}");
    assert_eq!(held(&server), (1, (40, 60)));
    server.line(&format!("complete --lease {paid} --actual usd=25")).ends(0);
    assert_eq!(held(&server), (0, (75, 0)));

    let kept = server.reserve("--key slots=2 --key usd=30");
    server.kill();
    let server = Server::on(&data, &words);
    wait("both parts", || is_ready(&server));
    assert_eq!(held(&server), (2, (45, 30)));
    server.line(&format!("reserve --lease {kept} --key slots=2 --key usd=30")).ends(0);
    let spent = server.line(&format!("reserve --lease {paid} --key slots=1 --key usd=60"));
    assert_ne!(spent.code, Some(0), "{spent:?}");
    for _ in 0..2 {
        server.line(&format!("complete --lease {kept} --actual usd=10")).ends(0);
        assert_eq!(held(&server), (0, (65, 0)));
    }
    assert_eq!(server.issue_credit(100).ends(0).stdout, receipt);
    assert!(server.line("audit").ends(0).stdout.starts_with("main is balanced\n"));
    // The server does not know all leases on TigerBeetle, so it does not report their number.
    let metrics = server.get("/metrics");
    assert!(metrics.contains("\nearmark_remembered_leases "), "{metrics}");
    assert!(!metrics.contains("\nearmark_live_leases "), "{metrics}");
    server.stop();
    for (flags, missing) in [(&words[..2], "--credits"), (&words[2..], "--ledger")] {
        let ran = serve(&data, flags).ends(2);
        assert!(ran.stderr.contains(&format!("with {missing}")), "{ran:?}");
    }
}

#[test]
fn a_folder_whose_limits_are_on_a_ledger_is_not_served_without_one() {
    let Some(ledger) = Replica::started() else { return };
    let folder = tempfile::tempdir().unwrap();
    let server = Server::on(folder.path(), &["--ledger", &ledger.url()]);
    server.line(PUT).ends(0);
    server.stop();
    let ran = serve(folder.path(), &[]).ends(2);
    assert!(
        ran.stderr.contains("TigerBeetle enforces the limits of this server: name its cluster with --ledger"),
        "{ran:?}"
    );
    let ran = serve(folder.path(), &["--ledger", "tigerbeetle://nowhere"]).ends(2);
    assert!(ran.stderr.contains("\"nowhere\" as an address"), "{ran:?}");
}

fn serve(data: &Path, words: &[&str]) -> crate::support::Ran {
    run(&[&["serve", "--listen", "127.0.0.1:0", "--data", data.to_str().unwrap()], words].concat())
}

/// Two nodes with different `--ledger` once both served. One enforced limits in the Book, the other on TigerBeetle, and
/// together they allowed twice the capacity. The test needs no running TigerBeetle.
#[test]
fn nodes_that_were_started_with_other_ledgers_refuse_and_say_why() {
    let folder = tempfile::tempdir().unwrap();
    let addresses = [free(), free(), free()];
    let ledger = format!("tigerbeetle://{}?cluster=7", free());
    let founder = ["--peer-listen", &addresses[0], "--bootstrap", &addresses[0]];
    let first = Server::on(&folder.path().join("n1"), &founder);
    first.line(PUT).ends(0);
    first.line("reserve --key slots=1").ends(0);
    let join = ["--join", &addresses[0]];
    let second = [&["--node-id", "2", "--peer-listen", &addresses[1], "--ledger", &ledger], &join[..]].concat();
    let second = Server::on(&folder.path().join("n2"), &second);
    wait("the first node to refuse", || first.get("/readyz").contains("name its cluster with --ledger"));
    let refused = first.line("reserve --key slots=1").ends(1);
    assert!(
        refused.stderr.contains("TigerBeetle enforces the limits of this server: name its cluster with --ledger"),
        "{refused:?}"
    );
    first.line("limits get slots").ends(1);
    // Every node still accepts limit definitions.
    first.line("limits put --key more --kind rolling --capacity 5 --window 60").ends(0);

    let other = format!("tigerbeetle://{}?cluster=8", free());
    let data = folder.path().join("n3");
    let third = ["--node-id", "3", "--peer-listen", &addresses[2], "--ledger", &other];
    let ran = serve(&data, &[&third[..], &join].concat()).ends(2);
    assert!(
        ran.stderr.contains("TigerBeetle cluster 7 enforces the limits of this server, but --ledger names cluster 8"),
        "{ran:?}"
    );
    assert!(second.get("/readyz").contains("limits: "));
}

#[test]
fn namespaces_are_apart_where_limits_are_on_a_ledger() {
    let Some(ledger) = Replica::started() else { return };
    let server = Server::start(&["--bootstrap-key", "--ledger", &ledger.url()]);
    crate::keys::namespaces_are_apart(&server);
}
