//! `earmark bench`, in runs of 0.2 s.

use serde_json::Value;

use crate::support::{Ran, Server, run, wait};

fn check(ran: &Ran, mode: &str) -> Value {
    let json = ran.json();
    assert_eq!(json["mode"], mode);
    for field in ["ops_per_s", "transfers_per_s", "p50_us", "p90_us", "p99_us", "max_us", "seconds"] {
        assert!(json[field].as_f64().unwrap() > 0.0, "{field}: {json}");
    }
    assert!(json["allowed"].as_u64().unwrap() > 0, "{json}");
    assert_eq!((json["denied"].as_u64(), json["errors"].as_u64()), (Some(0), Some(0)), "{json}");
    let per_op = json["transfers_per_s"].as_f64().unwrap() / json["ops_per_s"].as_f64().unwrap();
    assert_eq!(per_op.round() as u64, json["limits"].as_u64().unwrap());
    assert_eq!(ran.stderr, "", "--json prints no progress");
    json
}

#[test]
fn it_runs_in_process_and_over_http_to_a_server_of_its_own() {
    let words = |more: &[&'static str]| [&["bench", "--seconds", "0.2", "--json"], more].concat();
    let json = check(&run(&words(&["--in-process", "--connections", "4"])).ends(0), "in-process");
    assert_eq!((&json["batch"], &json["limits"], &json["connections"]), (&256.into(), &4.into(), &4.into()));
    let json = check(&run(&words(&["--limits", "6", "--complete"])).ends(0), "http-own-server");
    assert_eq!((&json["batch"], &json["limits"], &json["connections"]), (&1.into(), &6.into(), &64.into()));
    assert!(json["completed"].as_u64().unwrap() > 0, "{json}");
    check(&run(&words(&["--in-process", "--connections", "1", "--batch", "2", "--complete"])).ends(0), "in-process");
}

#[test]
fn it_runs_through_the_rust_client_with_shared_requests_and_without() {
    let words = |more: &[&'static str]| [&["bench", "--client", "--seconds", "0.2", "--json"], more].concat();
    for (more, batch) in [(&["--connections", "100"][..], 256), (&["--connections", "4", "--batch", "1"], 1)] {
        let json = check(&run(&words(more)).ends(0), "client-own-server");
        assert_eq!((&json["batch"], &json["complete"]), (&batch.into(), &true.into()), "{json}");
        assert!(json["completed"].as_u64().unwrap() > 0, "{json}");
    }
}

#[test]
fn it_measures_a_server_that_requires_a_key() {
    let words = ["bench", "--seconds", "0.2", "--json", "--connections", "4", "--key"];
    check(&run(&words).ends(0), "http-own-server");
    check(&run(&[&words[..], &["--client"]].concat()).ends(0), "client-own-server");
}

#[test]
fn it_measures_a_node_and_its_disk_and_removes_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let words = ["bench", "--seconds", "0.2", "--json", "--data", data, "--connections", "8"];
    let json = check(&run(&[&words[..], &["--in-process"]].concat()).ends(0), "in-process-durable");
    assert!(json["fsync_p50_us"].as_f64().unwrap() > 0.0, "{json}");
    let json = check(&run(&words).ends(0), "http-own-server-durable");
    assert!(json["fsync_p50_us"].as_f64().unwrap() > 0.0, "{json}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn it_runs_against_a_server_and_deletes_its_limits_afterwards() {
    let server = Server::start(&[]);
    let words = ["bench", "--seconds", "0.2", "--connections", "2", "--batch", "3", "--http", &server.url(), "--json"];
    check(&run(&words).ends(0), "http");
    let limits = server.line("limits list --json").ends(0).json();
    for limit in limits["limits"].as_array().unwrap() {
        assert_eq!(limit["pending_decrease_to"], 0, "{limit}");
    }
}

#[test]
fn it_shows_the_settings_the_progress_and_a_table() {
    let ran = run(&["bench", "--seconds", "1.1", "--connections", "1"]).ends(0);
    assert!(ran.stderr.contains("creating 1,060 limits named bench:"), "{ran:?}");
    assert!(ran.stderr.contains(", for 1.1 s\n"), "{ran:?}");
    assert!(ran.stderr.contains("   1 s: warm-up, "), "{ran:?}");
    for line in ["ops/s  ", "transfers/s  ", "p50  ", "p99  ", "allowed  ", "errors       0"] {
        assert!(ran.stdout.lines().any(|found| found.starts_with(line)), "{line}: {ran:?}");
    }
}

#[test]
fn it_ends_by_count_where_that_comes_first() {
    let ran = run(&["bench", "--in-process", "--seconds", "60", "--ops-max", "1", "--json"]).ends(0);
    assert_eq!(ran.json()["ended_early"], true);
}

#[test]
fn it_fails_when_the_server_goes_away() {
    let server = Server::start(&[]);
    let url = server.url();
    let bench =
        std::thread::spawn(move || run(&["bench", "--seconds", "60", "--connections", "2", "--http", &url, "--json"]));
    wait("the limits", || server.line("limits list").stdout.contains("bench:"));
    drop(server);
    // It reports the error, whether it was still creating limits or already measuring.
    let json = bench.join().unwrap().ends(1).json();
    assert!(json["errors"].as_u64().is_some_and(|errors| errors > 0) || json["error"].is_string(), "{json}");
}
