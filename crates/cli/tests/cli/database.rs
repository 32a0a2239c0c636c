//! Credit in a database, with limits in the Book.

#[path = "../../../credits/src/conformance/server.rs"]
#[allow(dead_code, unreachable_pub, reason = "the tests of credit use all of it")]
pub(crate) mod postgres;

use std::path::Path;

use crate::ask::free;
use crate::keys::namespaces_are_apart;
use crate::support::{Ran, Server, run, wait};

const SLOTS: &str = "limits put --key slots --kind concurrency --capacity 3 --timeout 3600";
const USD: &str = "limits put --key usd --kind credit --account acme --asset usd --timeout 600";
const ISSUE: &str = r#"{"issue":{"account":"acme","asset":"usd","amount":"100"}}"#;

fn serve(data: &Path, words: &[&str]) -> Ran {
    run(&[&["serve", "--listen", "127.0.0.1:0", "--data", data.to_str().unwrap()], words].concat())
}

#[test]
fn credit_in_a_file_outlives_a_server_that_keeps_everything_else_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("credit.db").display());
    let server = Server::start(&["--credits", &url]);
    assert!(server.banner.contains(&format!("credit: in {url}\n")), "{}", server.banner);
    assert_eq!(server.get("/readyz"), r#"{"status":"ready"}"#);
    let first = server.issue_credit(100).ends(0).stdout;
    server.line(SLOTS).ends(0);
    server.line(USD).ends(0);
    let lease = server.reserve("--key slots=1 --key usd=60");
    assert_eq!((server.credit(), server.reserved("slots")), ((40, 60), 1));
    let short = server.line("reserve --key slots=1 --key usd=41").ends(3);
    assert!(short.stdout.contains("insufficient_credit:usd"), "{short:?}");
    assert_eq!((server.credit(), server.reserved("slots")), ((40, 60), 1));
    server.line(&format!("complete --lease {lease} --actual usd=25")).ends(0);
    assert_eq!((server.credit(), server.reserved("slots")), ((75, 0), 0));
    server.kill();

    let server = Server::start(&["--credits", &url]);
    assert_eq!(server.credit(), (75, 0));
    assert_eq!(server.issue_credit(100).ends(0).stdout, first);
    assert!(server.line("audit").ends(0).stdout.starts_with("main is balanced\n"));
}

#[test]
fn a_node_whose_credit_is_in_a_file_goes_on_with_both_after_it_was_killed() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("credit.db").display());
    let data = folder.path().join("data");
    let server = Server::on(&data, &["--credits", &url]);
    server.issue_credit(100).ends(0);
    server.line(SLOTS).ends(0);
    server.line(USD).ends(0);
    let lease = server.reserve("--key slots=1 --key usd=60");
    server.kill();

    let server = Server::on(&data, &["--credits", &url]);
    assert_eq!((server.credit(), server.reserved("slots")), ((40, 60), 1));
    server.line(&format!("reserve --lease {lease} --key slots=1 --key usd=60")).ends(0);
    let other = server.line(&format!("reserve --lease {lease} --key slots=1 --key usd=61"));
    assert_ne!(other.code, Some(0), "{other:?}");
    server.line(&format!("complete --lease {lease} --actual usd=25")).ends(0);
    assert_eq!((server.credit(), server.reserved("slots")), ((75, 0), 0));
}

#[test]
fn a_folder_is_served_with_the_credit_that_it_belongs_to_and_with_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("credit.db").display());
    let (apart, together) = (folder.path().join("apart"), folder.path().join("together"));
    let server = Server::on(&apart, &["--credits", &url]);
    server.issue_credit(100).ends(0);
    server.stop();
    let ran = serve(&apart, &[]).ends(2);
    assert!(ran.stderr.contains("a database keeps the credit of this server: name it with --credits"), "{ran:?}");
    let server = Server::on(&together, &[]);
    server.issue_credit(100).ends(0);
    server.stop();
    let ran = serve(&together, &["--credits", &url]).ends(2);
    assert!(ran.stderr.contains("this server already has credit"), "{ran:?}");
    // The refused starts changed nothing.
    assert_eq!(Server::on(&together, &[]).credit(), (100, 0));
    assert_eq!(Server::on(&apart, &["--credits", &url]).credit(), (100, 0));
}

#[test]
fn a_database_that_cannot_be_used_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("notes.txt");
    std::fs::write(&file, "x".repeat(9_000)).unwrap();
    for (url, message) in [
        ("mysql://a:hunter2@localhost".to_owned(), "--credits: found \"mysql://...\", allowed"),
        ("sqlite:".to_owned(), "as a path, allowed is the path of a file"),
        (format!("sqlite:{}", file.display()), "--credits: cannot use sqlite:"),
        ("sqlite:/nowhere/at/all.db".to_owned(), "--credits: cannot use sqlite:/nowhere/at/all.db"),
    ] {
        let ran = run(&["serve", "--in-memory", "--listen", "127.0.0.1:0", "--credits", &url]).ends(2);
        assert!(ran.stderr.contains(message), "{url}: {ran:?}");
        assert!(!ran.stderr.contains("hunter2"), "{ran:?}");
        assert_eq!(ran.stdout, "");
    }
}

/// The change log with its actors, read in pages of one entry.
fn changes(server: &Server) -> Vec<String> {
    let (mut changes, mut after) = (Vec::new(), "0".to_owned());
    loop {
        let page = server.line(&format!("audit --changes --page-size 1 --after {after} --json")).ends(0).json();
        let entries = page["entries"].as_array().unwrap();
        let text = |entry: &serde_json::Value, name: &str| entry[name].as_str().unwrap().to_owned();
        changes.extend(entries.iter().map(|entry| text(entry, "summary") + " by " + &text(entry, "actor")));
        match page["next"].as_str() {
            Some(next) => after = next.to_owned(),
            None => return changes,
        }
    }
}

/// With credit in a database, the change log once lacked the transactions of vaults.
#[test]
fn the_change_log_is_one_list_wherever_credit_is_stored() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("credit.db").display());
    let data = folder.path().join("data");
    let server = Server::on(&data, &["--credits", &url]);
    server.line(SLOTS).ends(0);
    server.issue_credit(100).ends(0);
    server.line(USD).ends(0);
    // Holds and payments of leases are not in the change log.
    let lease = server.reserve("--key usd=60");
    server.line(&format!("complete --lease {lease} --actual usd=25")).ends(0);
    let words = ["write", "--client", "b", "--sequence", "2", "--vault", "main", "--op", ISSUE];
    server.earmark(&words).ends(0);
    server.line(&SLOTS.replace("--capacity ", "--capacity 1")).ends(0);
    let expected = [
        "put_limit slots by system:local",
        "issue 100 usd to acme by system:local",
        "put_limit usd by system:local",
        "open_account acme; issue 100 usd to acme by system:local",
        "put_limit slots by system:local",
    ];
    assert_eq!(changes(&server), expected);
    let all = server.line("audit --changes").ends(0).stdout;
    assert_eq!(all.matches("default/main").count(), 2, "{all}");
    server.kill();
    // A restart keeps the definitions before and after.
    let server = Server::on(&data, &["--credits", &url]);
    assert_eq!(changes(&server), expected);
    let of_slots = server.line("audit --changes --key slots --actor system:local").ends(0).stdout;
    assert_eq!(of_slots.lines().count(), 3, "{of_slots}");
    let newest = of_slots.lines().nth(1).unwrap();
    assert!(newest.contains("put_limit slots: capacity ") && newest.contains(" -> 1"), "{newest}");
    assert!(of_slots.lines().nth(2).unwrap().contains("put_limit slots: new, concurrency, capacity "), "{of_slots}");
    let json = server.line("audit --changes --key slots --json").ends(0).json();
    let capacities = |entry: usize| ["old", "new"].map(|of| json["entries"][entry][of]["capacity"].as_u64());
    assert_eq!((capacities(1)[0], capacities(0)[0]), (None, capacities(1)[1]), "{json}");
    assert_eq!(server.line("audit --changes --actor user:9").ends(0).stdout, "no changes\n");
    let wrong = server.line("audit --changes --actor bob").ends(2);
    assert!(wrong.stderr.contains("bob"), "{wrong:?}");
    server.line("audit --key slots").ends(2);
    let wrong = server.line("audit --changes --after yesterday").ends(2);
    assert!(wrong.stderr.contains("yesterday"), "{wrong:?}");
}

/// A partial change log would look complete.
#[test]
fn the_change_log_fails_while_the_database_is_down() {
    let database = postgres::Server::start_without_fsync().unwrap();
    let server = Server::start(&["--credits", &database.url()]);
    server.line(SLOTS).ends(0);
    server.issue_credit(100).ends(0);
    wait("two changes", || changes(&server).len() == 2);
    database.stop().unwrap();
    let half = server.line("audit --changes").ends(1);
    assert!(half.stdout.is_empty() && half.stderr.contains("backend_error): the store"), "{half:?}");
    database.restart().unwrap();
    wait("the database", || server.line("audit --changes").code == Some(0));
    assert_eq!(changes(&server).len(), 2);
}

#[test]
fn namespaces_are_apart_where_credit_is_in_postgresql() {
    let database = postgres::Server::start_without_fsync().unwrap();
    namespaces_are_apart(&Server::start(&["--bootstrap-key", "--credits", &database.url()]));
}

/// The database may hold rows of other runs, so this test uses its own vault.
#[test]
fn two_servers_spend_from_one_database_of_postgresql() {
    let Some(url) = std::env::var_os("EARMARK_POSTGRES_URL") else {
        eprintln!("skipped: EARMARK_POSTGRES_URL names no PostgreSQL; cargo xtask verify starts one");
        return;
    };
    let url = url.to_str().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
    let vault = format!("run-{now}");
    let servers = [Server::start(&["--credits", url]), Server::start(&["--credits", url])];
    let usd = format!("{USD} --vault {vault}");
    let open = format!(r#"{{"open_vault":{{"vault":"{vault}"}}}}"#);
    for server in &servers {
        assert!(server.banner.contains("credit: in postgres://"), "{}", server.banner);
        server.earmark(&["write", "--client", "ops", "--sequence", "1", "--op", &open]).ends(0);
        server.line(&usd).ends(0);
    }
    let account = r#"{"open_account":{"account":"acme","overdraft":"deny"}}"#;
    let words = ["write", "--client", "b", "--sequence", "1", "--vault", &vault, "--op", account, "--op", ISSUE];
    let receipts = servers.each_ref().map(|server| server.earmark(&words).ends(0).stdout);
    assert_eq!(receipts[0], receipts[1]);
    let lease = servers[0].reserve("--key usd=60");
    servers[1].line("reserve --key usd=41").ends(3);
    servers[0].line(&format!("complete --lease {lease} --actual usd=25")).ends(0);
    servers[1].line("reserve --key usd=75").ends(0);
    let audit = servers[1].line(&format!("audit --vault {vault}")).ends(0);
    assert!(audit.stdout.contains("is balanced\n"), "{audit:?}");
}

/// A server once exited with code 2 if its database was down, so starting both at the same time failed.
#[test]
fn a_database_that_is_down_at_the_start_is_waited_for() {
    let database = postgres::Server::start_without_fsync().unwrap();
    database.stop().unwrap();
    let server = Server::start(&["--credits", &database.url()]);
    let why = server.get("/readyz");
    assert!(why.contains("credit: the store has not answered since the start"), "{why}");
    assert!(why.contains("cannot be reached"), "{why}");
    // Limits work meanwhile, and a write to credit fails with the reason.
    server.line(SLOTS).ends(0);
    server.line("reserve --key slots=1").ends(0);
    let early = server.issue_credit(100);
    assert!(early.code != Some(0) && format!("{early:?}").contains("cannot be reached"), "{early:?}");
    database.restart().unwrap();
    wait("the database", || server.get("/readyz") == r#"{"status":"ready"}"#);
    server.issue_credit(100).ends(0);
    server.line(USD).ends(0);
    server.line("reserve --key slots=1 --key usd=60").ends(0);
    assert_eq!((server.credit(), server.reserved("slots")), ((40, 60), 2));
}

#[test]
fn a_server_that_waits_for_its_database_can_be_stopped() {
    let nowhere = format!("postgres://postgres@{}/postgres", free());
    Server::start(&["--credits", &nowhere]).stop();
}

#[test]
fn a_database_that_refuses_the_connection_is_not_waited_for() {
    let database = postgres::Server::start_without_fsync().unwrap();
    let nowhere = database.url().replace("localhost/postgres", "localhost/nowhere");
    let nobody = database.url().replace("postgres@", "nobody@");
    for (url, message) in [(nowhere, "database \"nowhere\" does not exist"), (nobody, "role \"nobody\"")] {
        let ran = run(&["serve", "--in-memory", "--listen", "127.0.0.1:0", "--credits", &url]).ends(2);
        assert!(ran.stderr.contains("--credits: cannot use postgres://"), "{ran:?}");
        assert!(ran.stderr.contains(message), "{ran:?}");
    }
}
