//! Keys on the command line, a hostile server, the permissions of files, and the password of a database.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::{Ran, Server, command, run};

const KEY: &str = "emk_4m8qk2v7d1xz_0123456789abcdefghjkmnpqrstvwxyz0123456789abcdefghjk";
/// A title for the terminal, a cleared screen in C1 form, a reversed text, an invisible mark and a line of its own.
const HOSTILE: &str = "a\u{1b}]0;owned\u{7}\u{9b}2J\u{202e}cod\u{2066}x\u{200f}\u{61c}\nearmark: all is well\r";

/// Other users of the machine read the command line, and the shell keeps it.
#[test]
fn a_key_on_the_command_line_is_refused_and_not_repeated() {
    let encoded = KEY.replace('_', "%5F");
    for words in [
        &["limits", "get", KEY][..],
        &["reserve", "--key", &format!("{KEY}=1")],
        &["reserve", "--key", "a=1", "--job", KEY],
        &["key", "create", "--name", KEY, "--role", "reader"],
        &["write", "--client", "c", "--sequence", "1", "--op", &format!(r#"{{"open_vault":{{"vault":"{KEY}"}}}}"#)],
        &["balance", "--account", &encoded],
        &["limits", "list", "--server", &format!("http://{KEY}@127.0.0.1:1")],
        &["serve", "--data", &format!("/tmp/{KEY}")],
        &["serve", "--data", &format!("--data=./{KEY}/x")],
        &["limits", "get", "emk_4m8q"],
        &["limits", "get", "emi_0123456789abcdefghjkmnpqrstvwxyz0123456789abcdefghjk"],
        &[KEY],
    ] {
        let ran = run(words).ends(2);
        assert!(ran.stderr.contains("an argument looks like an API key; other users see the command line"), "{ran:?}");
        assert!(!format!("{ran:?}").contains("4m8qk2v7d1xz"), "{ran:?}");
    }
    // A key to revoke is sent as its id, and a damaged one is not repeated.
    let ran = run(&["key", "revoke", &KEY[..40]]).ends(2);
    assert!(ran.stderr.contains("emk_***") && !ran.stderr.contains("4m8qk2v7d1xz"), "{ran:?}");
}

/// A folder named like the start of a key was refused.
#[test]
fn a_path_may_be_named_like_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("emk_data");
    fs::create_dir(&data).unwrap();
    for argument in [data.display().to_string(), format!("--limits={}/limits.json", data.display())] {
        let ran = run(&["serve", "--in-memory", "--no-such-flag", &argument]).ends(2);
        assert!(ran.stderr.contains("--no-such-flag"), "{ran:?}");
    }
}

/// Answers every request with this body.
fn hostile_server(status: &'static str, body: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = [0; 4096];
            _ = stream.read(&mut head);
            let length = body.len();
            let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\n");
            _ = stream.write_all(format!("{head}content-length: {length}\r\n\r\n{body}").as_bytes());
        }
    });
    url
}

fn check_is_clean(line: &str, ran: &Ran) {
    let hidden =
        |c: char| (c.is_control() && c != '\n') || matches!(c, '\u{202e}' | '\u{2066}' | '\u{200f}' | '\u{61c}');
    assert!(!ran.stdout.contains(hidden), "{line}: {ran:?}");
    assert!(!ran.stderr.contains(hidden), "{line}: {ran:?}");
    let is_faked = |text: &str| text.lines().any(|line| line == "earmark: all is well");
    assert!(!is_faked(&ran.stdout) && !is_faked(&ran.stderr), "{line}: {ran:?}");
}

/// A hostile server could clear the screen, retitle the terminal, and show other text than it sent.
#[test]
fn the_texts_of_a_hostile_server_are_shown_with_escapes() {
    let limit = json!({"definition": {"key": HOSTILE, "kind": HOSTILE, "capacity": 1, "unit": HOSTILE,
        "description": HOSTILE, "overage": HOSTILE}, "status": HOSTILE, "pending_decrease_to": null, "revision": 1});
    let usage = json!({"limits": [limit], "limit": limit, "capacity": 1, "reserved": 0, "available": 1, "debt": 0,
        "status": HOSTILE, "pending_decrease_to": null, "ok": true});
    let key = json!({"key_id": HOSTILE, "name": HOSTILE, "role": HOSTILE, "namespace": HOSTILE, "client_id": HOSTILE,
        "labels": {(HOSTILE): HOSTILE}, "may_set": [HOSTILE], "created_at_unix_ms": 1, "created_by": HOSTILE, "expires_at_unix_ms": null, "revoked_at_unix_ms": null});
    let denied = json!({"allowed": false, "error": HOSTILE, "message": HOSTILE, "limited_by": [HOSTILE],
        "retry_after_ms": 1, "ok": false, "reconciled": false});
    let write = json!({"error": {"code": HOSTILE, "message": HOSTILE}});
    let entry = json!({"place": HOSTILE, "at_unix_ms": 1, "actor": HOSTILE, "namespace": HOSTILE, "vault": HOSTILE,
        "summary": HOSTILE});
    let problem = json!({"error": HOSTILE, "message": HOSTILE});
    let balances = json!({"balances": [{"asset": HOSTILE, "available": HOSTILE, "held": "1", "pending": "1"}]});
    let audit = json!({"balanced": true, "assets": [], "message": HOSTILE});
    for (line, status, body) in [
        ("limits list", "200 OK", usage.clone()),
        ("limits get a", "200 OK", usage.clone()),
        ("limits delete a", "200 OK", usage.clone()),
        ("limits put --key a --kind rolling --capacity 1 --window 1m", "200 OK", usage),
        ("key list", "200 OK", json!({"keys": [key]})),
        (
            "whoami",
            "200 OK",
            json!({"actor": HOSTILE, "namespace": HOSTILE, "role": HOSTILE,
            "labels": {(HOSTILE): HOSTILE}, "may_set": [HOSTILE]}),
        ),
        ("key create --name a --role reader", "200 OK", json!({"key": HOSTILE, "info": key})),
        ("reserve --key a=1", "200 OK", denied.clone()),
        ("complete --lease 01ARZ3NDEKTSV4RRFFQ69G5FAV", "200 OK", denied),
        ("write --client c --sequence 1", "409 Conflict", write),
        ("audit --changes", "200 OK", json!({"entries": [entry], "next": HOSTILE})),
        ("audit", "200 OK", audit),
        ("balance --account a", "200 OK", balances),
        ("limits list", "400 Bad Request", problem),
        ("limits list", "200 OK", Value::from(HOSTILE)),
        ("cluster status", "500 Broken", Value::from(HOSTILE)),
    ] {
        let url = hostile_server(status, body.to_string());
        for flags in ["", " --json"] {
            let line = format!("{line}{flags} --server {url}");
            let ran = run(&line.split_whitespace().collect::<Vec<_>>());
            check_is_clean(&line, &ran);
            assert!(format!("{}{}", ran.stdout, ran.stderr).contains("owned"), "{line}: {ran:?}");
            if !flags.is_empty() && status == "200 OK" && body.is_object() {
                assert!(ran.json().to_string().contains("\\u001b]0;owned"), "{line}: {ran:?}");
            }
        }
    }
}

fn modes(path: &Path) -> Vec<(String, u32)> {
    let mut found = vec![(path.display().to_string(), fs::metadata(path).unwrap().permissions().mode() & 0o777)];
    if path.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| found.extend(modes(&entry.unwrap().path())));
    }
    found
}

fn check_is_private(folder: &Path) {
    let all = modes(folder);
    assert!(all.len() > 5, "{all:?}");
    for (path, mode) in all {
        let allowed = if Path::new(&path).is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode, allowed, "{path}");
    }
}

/// The data folder, its journal, the backups and the credit database were readable by every user of the machine.
#[test]
fn all_files_of_a_server_are_its_users_also_those_of_before() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let credits = format!("sqlite:{}", data.join("credit.db").display());
    fs::create_dir(&data).unwrap();
    fs::set_permissions(&data, Permissions::from_mode(0o755)).unwrap();
    let server = Server::on(&data, &[]);
    server.line("limits put --key a --kind rolling --capacity 7 --window 60").ends(0);
    server.line("cluster backup one").ends(0);
    check_is_private(&data);
    server.stop();
    for (path, _) in modes(&data) {
        let mode = if Path::new(&path).is_dir() { 0o775 } else { 0o664 };
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    }
    let server = Server::on(&data, &[]);
    server.line("cluster backup two").ends(0);
    check_is_private(&data);
    server.stop();
    // A database, its log and its index.
    let server = Server::start(&["--credits", &credits]);
    server.issue_credit(5).ends(0);
    check_is_private(&data);
    let recovered = folder.path().join("recovered");
    let (from, to) = (data.join("backups/two"), recovered.to_str().unwrap());
    run(&["recover", "--from", from.to_str().unwrap(), "--to", to]).ends(0);
    check_is_private(&recovered);
}

#[test]
fn a_key_file_that_others_can_read_gets_a_warning() {
    let server = Server::start(&["--bootstrap-key"]);
    let key = server.banner.lines().find_map(|line| line.strip_prefix("key:")).unwrap().trim().to_owned();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    fs::write(&path, &key).unwrap();
    for (mode, is_warned) in [(0o600, false), (0o400, false), (0o640, true), (0o604, true)] {
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let mut listing = command(&["limits", "list", "--server", &server.url()]);
        let ran = Ran::of(listing.env("EARMARK_KEY_FILE", &path).output().unwrap()).ends(0);
        assert_eq!(ran.stderr.contains("holds a secret that other users can read"), is_warned, "{mode:o}: {ran:?}");
        assert!(!ran.stderr.contains(&key), "{ran:?}");
    }
}

/// The password of PostgreSQL stood in the list of processes.
#[test]
fn the_url_of_a_database_comes_from_a_file_or_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let [of_file, of_environment] = ["file.db", "environment.db"].map(|name| folder.path().join(name));
    let path = folder.path().join("url");
    fs::write(&path, format!("sqlite:{}\n", of_file.display())).unwrap();
    Server::start(&["--credits-url-file", path.to_str().unwrap()]).stop();
    assert!(of_file.exists());
    let words = ["serve", "--in-memory", "--listen", "127.0.0.1:0"];
    let url = format!("sqlite:{}", of_environment.display());
    Server::of(command(&words).env("EARMARK_CREDITS_URL", &url)).stop();
    assert!(of_environment.exists());
    // Nothing listens there; the server waits for its database.
    let secret = "postgres://earmark:hunter2@127.0.0.1:1/money";
    for (flag, is_warned) in [(true, true), (false, false)] {
        let mut serve = command(&words);
        let serve = if flag { serve.args(["--credits", secret]) } else { serve.env("EARMARK_CREDITS_URL", secret) };
        let server = Server::of(serve.env("RUST_LOG", "trace"));
        server.signal("TERM");
        let ran = server.wait();
        assert_eq!(ran.stderr.contains("other users see the password"), is_warned, "{ran:?}");
        assert!(!ran.stderr.contains("hunter2"), "the password is in the log");
    }
    let missing = run(&["serve", "--in-memory", "--credits-url-file", "/no/such/file"]).ends(2);
    assert!(missing.stderr.contains("--credits-url-file: cannot read /no/such/file"), "{missing:?}");
}
