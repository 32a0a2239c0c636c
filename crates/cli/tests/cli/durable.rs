//! A node on its data folder: restarts, refused starts and disk failures.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::ask::free;
use crate::support::{Server, TIMEOUT, run, wait};

const PUT: &str = "limits put --key a --kind rolling --capacity 7 --window 3600";

/// The content of every file in a folder; `None` if the folder does not exist.
fn content(folder: &Path) -> Option<BTreeMap<String, Vec<u8>>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).ok()? {
        let path = entry.unwrap().path();
        match content(&path) {
            Some(inner) => found.extend(inner),
            None => _ = found.insert(path.display().to_string(), fs::read(&path).unwrap()),
        }
    }
    Some(found)
}

#[test]
fn the_data_of_a_lost_cluster_starts_a_new_one() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (folder.path().join("old"), folder.path().join("new"));
    let server = Server::on(&old, &[]);
    server.line(PUT).ends(0);
    server.line("reserve --key a=5").ends(0);
    let paths = ["recover", "--from", old.to_str().unwrap(), "--to", new.to_str().unwrap(), "--json"];
    let refused = run(&paths).ends(2);
    assert!(refused.stderr.contains("in use by another process"), "{}", refused.stderr);
    assert!(!new.exists());
    server.kill();

    assert_eq!(run(&paths).ends(0).json()["node_id"], 1);
    let again = run(&paths).ends(2);
    assert!(again.stderr.contains("new"), "{}", again.stderr);
    let server = Server::on(&new, &[]);
    assert_eq!(server.reserved("a"), 5);
    let missing = run(&["recover", "--from", "nowhere", "--to", "anywhere"]).ends(2);
    assert!(missing.stderr.contains("--from: nowhere is not a folder"), "{}", missing.stderr);
}

#[test]
fn what_was_acknowledged_survives_a_stop_and_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("new/data");
    let server = Server::on(&data, &[]);
    for part in [&format!("data:   {}\n", data.display()), "node:   1 of cluster ", ", leader\n", "peers:  none"] {
        assert!(server.banner.contains(part), "{part}: {}", server.banner);
    }
    let identity = server.banner.lines().find(|line| line.starts_with("node:")).unwrap().to_owned();
    server.line(PUT).ends(0);
    server.line("reserve --key a=2").ends(0);
    server.stop();

    let server = Server::on(&data, &[]);
    assert!(server.banner.contains(&identity), "{}", server.banner);
    assert_eq!(server.reserved("a"), 2);
    server.line("reserve --key a=3").ends(0);
    server.kill();

    let server = Server::on(&data, &[]);
    assert_eq!(server.reserved("a"), 5);
    server.line("reserve --key a=3").ends(3);
}

#[test]
fn a_repeated_key_gets_the_first_answer_after_a_stop_a_kill_and_a_recovery() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (folder.path().join("old"), folder.path().join("new"));
    let paid = concat!(
        "write --json --vault main --idempotency-key evt_1 ",
        r#"--op {"open_account":{"account":"acme","overdraft":"deny"}} "#,
        r#"--op {"issue":{"account":"acme","asset":"usd","amount":"5"}}"#
    );
    let server = Server::on(&old, &[]);
    let first = server.line(paid).ends(0).json();
    assert_eq!(first["success"]["results"][0]["account"], "acme", "{first}");
    server.stop();
    let server = Server::on(&old, &[]);
    assert_eq!(server.line(paid).ends(0).json(), first);
    server.kill();
    run(&["recover", "--from", old.to_str().unwrap(), "--to", new.to_str().unwrap()]).ends(0);
    let server = Server::on(&new, &[]);
    assert_eq!(server.line(paid).ends(0).json(), first);
}

#[test]
fn a_lease_shows_its_job_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::on(folder.path(), &[]);
    server.line(PUT).ends(0);
    let reserved = server.line("reserve --key a=2 --job nightly --json").ends(0).json();
    let lease = reserved["lease_id"].as_str().unwrap().to_owned();
    server.stop();
    let server = Server::on(folder.path(), &[]);
    let text = server.earmark(&["lease", &lease]).ends(0).stdout;
    assert!(text.contains("is live, reserved at ") && text.contains(", job nightly\n  2 of a\n"), "{text}");
    assert_eq!(server.earmark(&["lease", &lease, "--json"]).ends(0).json()["job_id"], "nightly");
    let unknown = server.line("lease 01ARZ3NDEKTSV4RRFFQ69G5FAV").ends(1);
    assert!(unknown.stderr.contains("lease not found, or forgotten since"), "{}", unknown.stderr);
}

/// The flags were refused on a durable server.
#[test]
fn a_flag_changes_the_setting_of_the_data_folder_and_a_start_without_it_keeps_it() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let settings = |server: &Server| server.line("cluster status --json").ends(0).json()["settings"].clone();
    let is_set = |server: &Server, wanted: u64| wait("the setting", || settings(server)["leases_max"] == wanted);
    let server = Server::on(&data, &["--leases-max", "1", "--retention", "1m"]);
    is_set(&server, 1);
    assert_eq!(settings(&server)["retention_ms"], 60_000);
    server.line(PUT).ends(0);
    server.line("reserve --key a=1").ends(0);
    let refused = server.line("reserve --key a=1").ends(1);
    assert!(refused.stderr.contains("overloaded"), "{}", refused.stderr);
    server.stop();

    let server = Server::on(&data, &[]);
    is_set(&server, 1);
    assert!(server.line("cluster status").ends(0).stdout.contains("retention 1 min, at most 1 leases"));
    server.stop();

    let server = Server::on(&data, &["--leases-max", "9"]);
    is_set(&server, 9);
    server.line("reserve --key a=1").ends(0);
}

#[test]
fn a_refused_start_leaves_no_trace() {
    let folder = tempfile::tempdir().unwrap();
    let (file, strange) = (folder.path().join("file"), folder.path().join("strange"));
    fs::write(&file, "x").unwrap();
    fs::create_dir(&strange).unwrap();
    fs::write(strange.join("photo.jpg"), "x").unwrap();
    let made = folder.path().join("made");
    Server::on(&made, &["--node-id", "7"]).kill();
    let newer = folder.path().join("newer");
    fs::create_dir(&newer).unwrap();
    fs::write(newer.join("identity"), later_format(&fs::read(made.join("identity")).unwrap())).unwrap();
    let founder = free();
    let other = Server::on(&folder.path().join("other"), &["--peer-listen", &founder, "--bootstrap", &founder]);
    let others = other.banner.split("connect to ").nth(1).unwrap().lines().next().unwrap().to_owned();
    let (mine, nobody) = (free(), free());
    let joins = |to: &str| format!("--node-id 7 --peer-listen {mine} --join {to}");

    for (data, words, code, message) in [
        ("absent", &*format!("--listen {}", other.address), 1, &*format!("cannot listen on {}", other.address)),
        ("absent", &*joins(&nobody), 1, &*format!("cannot join a cluster: {nobody} cannot be reached")),
        ("absent", "--peer-listen 192.0.2.1:7", 2, "Other addresses need certificates"),
        ("absent", "--peer-listen 127.0.0.1:7101 --peer-advertise 192.0.2.1:0", 2, "--peer-advertise: found port 0"),
        ("absent", "--peer-listen 127.0.0.1:7101 --bootstrap-key", 2, "keys protect nothing"),
        ("absent", "--tls-cert no-such-file --tls-key no-such-key", 2, "cannot read a certificate"),
        ("absent", "--limits no-such-file", 2, "cannot read the limits file no-such-file"),
        ("absent", &format!("--peer-listen {others} --bootstrap {others}"), 1, "cannot listen for other nodes at"),
        ("absent", &format!("--peer-listen {mine}"), 2, "Name the founders of a new cluster with --bootstrap"),
        ("absent", &format!("--peer-listen {mine} --bootstrap {mine},{mine}"), 2, "a founder is named twice"),
        (
            "absent",
            &format!("--peer-listen {mine} --bootstrap {mine} --node-id 2"),
            2,
            "--node-id: found 2, but this node is number 1 of --bootstrap",
        ),
        ("absent", &format!("--peer-listen {mine} --join no-such-host.invalid"), 1, "cannot be reached"),
        ("file", "", 2, "--data: cannot use"),
        ("/proc/absent", "", 2, "its folder is not there and cannot be made"),
        ("strange", "", 2, "is not an Earmark data folder: it contains photo.jpg"),
        ("newer", "", 2, "Use a newer version"),
        ("made", "--node-id 8", 2, "belongs to node 7, not to node 8"),
        ("made", &joins(&others), 2, "belongs to cluster"),
    ] {
        let before = content(folder.path().join(data).as_path());
        let data_path = folder.path().join(data);
        let mut all = vec!["serve", "--data", data_path.to_str().unwrap()];
        all.extend(words.split_whitespace());
        if !words.contains("--listen") {
            all.extend(["--listen", "127.0.0.1:0"]);
        }
        let ran = run(&all).ends(code);
        assert!(ran.stderr.contains(message), "{data} {words}: {ran:?}");
        assert_eq!(ran.stdout, "", "{data} {words}");
        assert!(content(&data_path) == before, "{data} {words}: the folder changed");
    }
    assert!(!folder.path().join("absent").exists());
}

/// The identity file of a later version: a higher format number with a valid checksum.
fn later_format(identity: &[u8]) -> Vec<u8> {
    let mut bytes = identity[..identity.len() - 4].to_vec();
    bytes[4..8].copy_from_slice(&99_u32.to_le_bytes());
    let mut crc = !0_u32;
    for byte in &bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    bytes.extend_from_slice(&(!crc).to_le_bytes());
    bytes
}

#[test]
fn a_folder_serves_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::on(folder.path(), &[]);
    let words = ["serve", "--listen", "127.0.0.1:0", "--data", folder.path().to_str().unwrap()];
    let ran = run(&words).ends(2);
    assert!(ran.stderr.contains("is in use by another process"), "{ran:?}");
    server.line(PUT).ends(0);
}

#[test]
fn the_limits_file_is_put_where_it_differs_and_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let (data, file) = (folder.path().join("data"), folder.path().join("limits.json"));
    let limit = |capacity: u64| format!(r#"{{"key":"a","kind":"rolling","capacity":{capacity},"window_seconds":60}}"#);
    let words = ["--limits", file.to_str().unwrap()];
    let text = format!(r#"{{"limits":[{}, {}]}}"#, limit(7), limit(9).replace("\"a\"", "\"b\""));
    fs::write(&file, &text).unwrap();
    for put in [2, 0] {
        let server = Server::on(&data, &words);
        let told = format!("limits: with the data; {put} put from {}\n", file.display());
        assert!(server.banner.contains(&told), "{}", server.banner);
        server.line("limits put --key c --kind rolling --capacity 1 --window 60").ends(0);
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), text, "the file was rewritten");

    fs::write(&file, format!(r#"{{"limits":[{}]}}"#, limit(8))).unwrap();
    let server = Server::on(&data, &words);
    assert!(server.banner.contains("; 1 put from "), "{}", server.banner);
    let limits = server.line("limits list --json").ends(0).json();
    let capacities: Vec<_> =
        limits["limits"].as_array().unwrap().iter().map(|limit| limit["definition"]["capacity"].clone()).collect();
    assert_eq!(capacities, [8, 9, 1], "limits that the file does not name stay");
    server.kill();

    fs::write(&file, limit(8).replace("rolling", "concurrency").replace("window", "timeout")).unwrap();
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!(r#"{{"limits":[{text}]}}"#)).unwrap();
    let all = ["serve", "--listen", "127.0.0.1:0", "--data", data.to_str().unwrap(), "--limits"];
    let refused = run(&[&all[..], &[file.to_str().unwrap()]].concat()).ends(2);
    assert!(refused.stderr.contains("a: kind: an existing limit keeps its kind"), "{refused:?}");
    assert_eq!(refused.stdout, "");
}

#[test]
fn a_write_that_fails_stops_the_node_and_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    // `exec` keeps SIGXFSZ ignored, so a write beyond the limit fails as on a full disk.
    let script = "trap '' XFSZ; ulimit -f 8; exec \"$0\" serve --listen 127.0.0.1:0 --data \"$1\"";
    let mut command = Command::new("bash");
    command.args(["-c", script, env!("CARGO_BIN_EXE_earmark"), data]).env_remove("RUST_LOG").stdin(Stdio::null());
    let server = Server::of(&mut command);
    let mut acknowledged = 0;
    let start = Instant::now();
    let put = |capacity: u64| {
        let line = format!("limits put --key a --kind rolling --capacity {capacity} --window 3600");
        server.line(&format!("{line} --description {}", "x".repeat(200))).code
    };
    while put(acknowledged + 1) == Some(0) {
        acknowledged += 1;
        assert!(start.elapsed() < TIMEOUT, "no write fails");
    }
    let ran = server.wait().ends(1);
    assert!(ran.stderr.contains("earmark: node stopped: cannot write to "), "{ran:?}");
    assert!(ran.stderr.contains(&format!("{data}/log/")), "{ran:?}");
    assert!(!ran.stdout.contains("stopped"), "{ran:?}");

    let server = Server::on(folder.path(), &[]);
    let limit = server.line("limits get a --json").ends(0).json();
    let kept = limit["limit"]["definition"]["capacity"].as_u64().unwrap();
    assert!(acknowledged > 5 && kept >= acknowledged, "{kept} of {acknowledged}");
}

#[test]
fn a_damaged_folder_is_refused_with_the_name_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::on(folder.path(), &[]);
    (0..3).for_each(|_| _ = server.line(PUT).ends(0));
    server.kill();
    let log = folder.path().join("log/00000000000000000000.log");
    let mut bytes = fs::read(&log).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&log, bytes).unwrap();
    let words = ["serve", "--listen", "127.0.0.1:0", "--data", folder.path().to_str().unwrap()];
    let ran = run(&words).ends(2);
    assert!(ran.stderr.contains(&format!("{} is damaged at byte", log.display())), "{ran:?}");
}

#[test]
fn a_node_reports_its_metrics() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::on(folder.path(), &[]);
    server.line(PUT).ends(0);
    wait("the metrics", || server.get("/metrics").contains("earmark_node_applied_index 2"));
    let text = server.get("/metrics");
    for (name, least) in [
        ("is_leader", 1.0),
        ("term", 1.0),
        ("last_log_index", 2.0),
        ("committed_index", 2.0),
        ("applied_index", 2.0),
        ("snapshot_index", 0.0),
        ("fsync_seconds_count", 2.0),
        ("apply_seconds_count", 1.0),
        ("log_bytes", 100.0),
        ("journal_bytes", 0.0),
        ("journal_records", 0.0),
        ("snapshot_bytes", 0.0),
    ] {
        let name = format!("earmark_node_{name}");
        let line = text.lines().find(|line| line.starts_with(&format!("{name} ")));
        let value: f64 = line.unwrap_or_else(|| panic!("{name} is missing: {text}"))[name.len() + 1..].parse().unwrap();
        assert!(value >= least, "{name} is {value}");
        let described = name.trim_end_matches("_count");
        assert!(text.contains(&format!("# HELP {described} ")), "{described}: {text}");
    }
    assert!(text.contains("earmark_node_fsync_seconds_bucket{le=\"0.0002\"}"), "{text}");
    assert_eq!(server.get("/readyz"), r#"{"status":"ready"}"#);
}

/// Keys with characters that URLs and shells treat specially.
const WIDE: [&str; 10] = [".", "..", "a/b", "a%2Fb", "a//b", "a/../b", "k=v", "k+v", "a|b", "~%"];

#[test]
fn keys_with_every_allowed_character_survive_a_backup_and_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::on(folder.path(), &[]);
    let (amounts, mut leases) = ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], Vec::new());
    for (key, amount) in WIDE.iter().zip(amounts) {
        let put = ["limits", "put", "--key", key, "--kind", "concurrency", "--capacity", "10", "--timeout", "1h"];
        server.earmark(&put).ends(0);
        let reserved = server.earmark(&["reserve", "--key", &format!("{key}={amount}"), "--json"]).ends(0).json();
        leases.push(reserved["lease_id"].as_str().unwrap().to_owned());
    }
    // A backup is made from a snapshot.
    server.line("cluster backup wide").ends(0);
    let copy = Server::on(&folder.path().join("backups/wide"), &[]);
    assert_eq!(copy.reserved("a/b"), 3);
    assert_eq!(copy.reserved("a%2Fb"), 4);
    copy.kill();
    server.kill();
    let server = Server::on(folder.path(), &[]);
    for (key, amount) in WIDE.iter().zip(amounts) {
        let limit = server.earmark(&["limits", "get", key, "--json"]).ends(0).json();
        assert_eq!(limit["limit"]["definition"]["key"], *key);
        assert_eq!(limit["usage"]["reserved"], amount, "{key}");
    }
    let listed = server.line("limits list --prefix a/ --json").ends(0).json();
    let listed: Vec<&str> =
        listed["limits"].as_array().unwrap().iter().map(|limit| limit["definition"]["key"].as_str().unwrap()).collect();
    assert_eq!(listed, ["a/../b", "a//b", "a/b"]);
    for (key, lease) in WIDE.iter().zip(&leases) {
        server.earmark(&["complete", "--lease", lease, "--actual", &format!("{key}=0")]).ends(0);
        server.earmark(&["limits", "delete", key]).ends(0);
        let changes = server.earmark(&["audit", "--changes", "--key", key, "--json"]).ends(0).json();
        assert_eq!(changes["entries"].as_array().unwrap().len(), 2, "{key}: {changes}");
    }
    assert_eq!(server.line("limits list --json").ends(0).json()["limits"].as_array().unwrap().len(), 0);
}
