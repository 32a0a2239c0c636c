//! `decisions` and `top`, on disk and in memory.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{Server, run};

const PUT: &str = "limits put --key a:rpm --kind rolling --capacity 7 --window 3600";

fn leases(server: &Server, line: &str) -> Vec<String> {
    let found = server.line(line).ends(0).json();
    let lease = |one: &Value| one["lease_id"].as_str().unwrap().to_owned();
    found["decisions"].as_array().unwrap().iter().map(lease).collect()
}

fn deny(server: &Server) -> String {
    let denied = server.line("reserve --key a:rpm=9 --job nightly --json").ends(3).json();
    denied["lease_id"].as_str().unwrap().to_owned()
}

#[test]
fn decisions_survive_a_stop_and_a_kill_and_a_torn_end_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::on(folder.path(), &[]);
    server.line(PUT).ends(0);
    let first = deny(&server);
    server.stop();
    let server = Server::on(folder.path(), &[]);
    let second = deny(&server);
    // The list waits until the log has it, so the kill does not lose it.
    assert_eq!(leases(&server, "decisions --json"), [second.clone(), first.clone()]);
    server.kill();
    let log = folder.path().join("decisions");
    let newest = fs::read_dir(&log).unwrap().map(|entry| entry.unwrap().path()).max().unwrap();
    let mut bytes = fs::read(&newest).unwrap();
    bytes.extend_from_slice(b"torn");
    fs::write(&newest, bytes).unwrap();
    let server = Server::on(folder.path(), &[]);
    let third = deny(&server);
    assert_eq!(leases(&server, "decisions --json"), [third, second, first]);
}

#[test]
fn decisions_and_top_are_shown_filtered_and_followed() {
    let server = Server::start(&[]);
    server.line(PUT).ends(0);
    server.line("reserve --key a:rpm=2").ends(0);
    let lease = deny(&server);
    let list = server.line("decisions --key a: --outcome denied --since 1h --count 5").ends(0).stdout;
    assert!(list.starts_with("AT "), "{list}");
    assert!(list.contains("a:rpm (9 asked, 5 of 7 available)"), "{list}");
    assert!(list.contains("nightly") && list.contains(&lease), "{list}");
    for none in ["--key b", "--outcome overage", "--job other", "--actor user:7", "--until 1h"] {
        assert_eq!(server.line(&format!("decisions {none}")).ends(0).stdout, "no decisions\n", "{none}");
    }
    assert_eq!(server.line("top").ends(0).stdout, "KEY    TAKEN  ERROR\na:rpm  2      0\n");
    assert_eq!(server.line("top --of denied --within 1m").ends(0).stdout, "KEY    DENIALS  ERROR\na:rpm  1        0\n");
    assert_eq!(server.line("top --of debt").ends(0).stdout, "nothing counted\n");

    let mut follower = Command::new(env!("CARGO_BIN_EXE_earmark"))
        .args(["decisions", "--follow", "--json", "--server", &server.url()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    let mut next = || -> String {
        let line = lines.next().unwrap().unwrap();
        serde_json::from_str::<Value>(&line).unwrap()["lease_id"].as_str().unwrap().to_owned()
    };
    assert_eq!(next(), lease);
    let later = deny(&server);
    assert_eq!(next(), later);
    follower.kill().unwrap();
    follower.wait().unwrap();
}

#[test]
fn the_log_can_be_turned_off_and_wrong_bounds_are_refused() {
    let server = Server::start(&["--decisions-bytes", "0"]);
    let off = server.line("decisions").ends(1);
    assert!(off.stderr.contains("the decision log of this server is off"), "{}", off.stderr);
    for (flag, value) in [("--decisions-bytes", "1"), ("--decisions-bytes", "x"), ("--decisions-days", "0")] {
        let refused = run(&["serve", "--in-memory", flag, value]).ends(2);
        assert!(refused.stderr.contains(flag), "{}", refused.stderr);
    }
}
