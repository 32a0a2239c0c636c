//! The limits file, definition files, and the log.

use std::io::Write;
use std::process::Stdio;

use serde_json::Value;

use crate::support::{Ran, Server, command, run};

#[test]
fn limits_are_written_to_their_file_and_read_at_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits.json");
    let path = path.to_str().unwrap();
    let server = Server::start(&["--limits", path]);
    assert!(
        server.banner.contains(&format!("limits: 0 read from {path}, which is updated on every change")),
        "{}",
        server.banner
    );
    server.line("limits put --key a --kind rolling --capacity 7 --window 60").ends(0);
    server.signal("TERM");
    server.wait().ends(0);

    let server = Server::start(&["--limits", path]);
    let limit = server.line("limits get a --json").ends(0).json();
    assert_eq!(limit["limit"]["definition"]["capacity"], 7);
}

#[test]
fn a_damaged_limits_file_stops_the_start_and_is_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits.json");
    let text = "{\"limits\":[\n{\"key\":\"a\",\"kind\":\"rolling\",\"capacity\":0,\"window_seconds\":1}]}\n";
    std::fs::write(&path, text).unwrap();
    let words = ["serve", "--in-memory", "--listen", "127.0.0.1:0", "--limits", path.to_str().unwrap()];
    let ran = run(&words).ends(2);
    for part in [path.to_str().unwrap(), "line 2", "capacity: found 0"] {
        assert!(ran.stderr.contains(part), "{part}: {ran:?}");
    }
    assert_eq!(ran.stdout, "");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_definition_is_taken_from_a_file_or_the_standard_input() {
    let server = Server::start(&[]);
    let definition = r#"{"key":"a","kind":"rolling","capacity":7,"window_seconds":60}"#;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.json");
    std::fs::write(&path, definition).unwrap();
    server.earmark(&["limits", "put", "--file", path.to_str().unwrap()]).ends(0);

    let put = |text: &str| {
        let mut command = command(&["limits", "put", "--file", "-", "--server", &server.url()]);
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        Ran::of(child.wait_with_output().unwrap())
    };
    assert_eq!(put(&definition.replace('7', "8")).ends(0).stdout, "a is active: 8 in any 1 min\n");
    let unknown = put(&definition.replace("capacity", "capacitance")).ends(2);
    assert!(unknown.stderr.contains("--file: -: unknown field `capacitance`"), "{unknown:?}");
}

#[test]
fn the_log_goes_to_the_standard_error_as_json_where_asked() {
    let server = Server::start(&["--log-format", "json", "--log-level", "debug"]);
    server.line("reserve --key a=1").ends(1);
    server.signal("TERM");
    let ran = server.wait().ends(0);
    let logged: Vec<Value> = ran.stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for message in ["listening", "reserve"] {
        assert!(logged.iter().any(|line| line["message"] == message), "{message}: {}", ran.stderr);
    }
}
