//! `apply`, `diff` and `export`: limits and templates as files; and `usage`.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::Value;
use tempfile::TempDir;

use crate::ask::ask;
use crate::support::{Server, TIMEOUT, command};

pub(crate) fn write(folder: &TempDir, name: &str, text: &str) -> String {
    let path: PathBuf = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Limits `a0000`, `a0001` and so on, four lines each, after one line.
fn many(count: usize) -> String {
    let limit = |number| format!("- key: a{number:05}\n  kind: rolling\n  capacity: 10\n  window_seconds: 60\n");
    format!("limits:\n{}", (0..count).map(limit).collect::<String>())
}

fn count(server: &Server) -> usize {
    server.line("limits list --json").ends(0).json()["limits"].as_array().unwrap().len()
}

const PLATFORM: &str = "
limits:
  - key: gpt-4o:rpm
    kind: rolling
    capacity: 600
    window_seconds: 60
    unit: requests
  - key: gpt-4o:calls
    kind: concurrency
    capacity: 8
    timeout_seconds: 600
templates:
  - key: user:{user}:rpm
    kind: rolling
    capacity: 60
    window_seconds: 60
namespaces:
  - namespace: team
    limits:
      - key: gpt-4o:rpm
        kind: rolling
        capacity: 60
        window_seconds: 60
";

#[test]
fn a_file_is_applied_once_and_then_there_is_no_difference() {
    let (server, folder) = (Server::start(&[]), TempDir::new().unwrap());
    let platform = PLATFORM.replace("user:{user}:rpm", "\"user:{user}:rpm\"");
    let file = write(&folder, "platform.yaml", &platform);
    let diff = server.earmark(&["diff", &file]).ends(2);
    assert!(diff.stdout.starts_with("default\n  + gpt-4o:calls\n      kind: concurrency\n"), "{diff:?}");
    assert!(diff.stdout.ends_with("4 to create, 0 to change, 0 to delete, 0 unchanged\n"), "{diff:?}");
    let dry = server.earmark(&["apply", "--dry-run", &file]).ends(0);
    assert!(dry.stdout.contains("dry run: 4 to create"), "{dry:?}");
    assert_eq!(count(&server), 0);
    let applied = server.earmark(&["apply", &file]).ends(0);
    assert_eq!(
        applied.stdout,
        "created gpt-4o:calls\ncreated gpt-4o:rpm\ncreated user:{user}:rpm\ncreated gpt-4o:rpm in team\n\
         4 created, 0 changed, 0 deleted, 0 unchanged\n"
    );
    assert!(applied.stderr.is_empty(), "{applied:?}");
    server.earmark(&["diff", &file]).ends(0);
    let again = server.earmark(&["apply", &file]).ends(0);
    assert_eq!(again.stdout, "0 created, 0 changed, 0 deleted, 4 unchanged\n");

    let changed = write(&folder, "changed.yaml", &platform.replace("capacity: 600", "capacity: 900"));
    let diff = server.earmark(&["diff", &changed]).ends(2);
    assert_eq!(
        diff.stdout,
        "default\n  ~ gpt-4o:rpm\n      capacity: 600 -> 900\n\
         0 to create, 1 to change, 0 to delete, 3 unchanged\n"
    );
    let json = server.earmark(&["diff", "--json", &changed]).ends(2).json();
    assert_eq!(json["change"][0]["fields"]["capacity"], serde_json::json!({"from": 600, "to": 900}));
    server.earmark(&["apply", &changed]).ends(0);

    for format in ["yaml", "toml", "json"] {
        let export = ["export", "--format", format, "--namespace", "default", "--namespace", "team"];
        let text = server.earmark(&export).ends(0).stdout;
        let exported = write(&folder, &format!("exported.{format}"), &text);
        let same = server.earmark(&["apply", "--prune", &exported]).ends(0);
        assert_eq!(same.stdout, "0 created, 0 changed, 0 deleted, 4 unchanged\n", "{text}");
        // An empty server becomes the same.
        let other = Server::start(&[]);
        other.earmark(&["apply", &exported]).ends(0);
        assert_eq!(other.earmark(&export).ends(0).stdout, text);
    }
}

#[test]
fn one_mistake_on_line_900_is_named_and_nothing_is_applied() {
    let (server, folder) = (Server::start(&[]), TempDir::new().unwrap());
    let text = many(300);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[899], "  capacity: 10");
    let mut wrong = lines.clone();
    wrong[899] = "  capacity: ten";
    let (good, bad) = (write(&folder, "good.yaml", "limits: []\n"), write(&folder, "limits.yaml", &wrong.join("\n")));
    let ran = server.earmark(&["apply", &good, &bad]).ends(2);
    let message = format!("earmark: {bad}:900: capacity: found \"ten\", allowed are integers from 1 to");
    assert!(ran.stderr.starts_with(&message), "{ran:?}");
    assert_eq!((ran.stderr.lines().count(), ran.stdout.as_str()), (1, ""));
    assert_eq!(count(&server), 0);
    server.earmark(&["diff", &bad]).ends(1);
}

/// Starts an apply, and returns once its first batch is committed.
fn begin(server: &Server, file: &str) -> (std::process::Child, BufReader<std::process::ChildStdout>) {
    let mut apply = command(&["apply", file]);
    let spawned = apply.env("EARMARK_SERVER", server.url()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = spawned.unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "created a00000\n");
    (child, stdout)
}

#[test]
fn an_apply_that_is_killed_is_continued_by_the_same_command() {
    let (server, folder) = (Server::start(&[]), TempDir::new().unwrap());
    let file = write(&folder, "limits.yaml", &many(10_000));
    let (mut child, _stdout) = begin(&server, &file);
    child.kill().unwrap();
    child.wait().unwrap();
    let continued = server.earmark(&["apply", "--json", &file]).ends(0).json();
    let (created, unchanged) =
        (continued["applied"]["created"].as_u64().unwrap(), continued["unchanged"].as_u64().unwrap());
    assert_eq!(created + unchanged, 10_000);
    assert!(unchanged >= 256 && created > 0, "{created} {unchanged}");
    assert_eq!(count(&server), 10_000);
    server.earmark(&["diff", &file]).ends(0);
}

#[test]
fn a_limit_that_somebody_changes_meanwhile_is_not_overwritten() {
    let (server, folder) = (Server::start(&[]), TempDir::new().unwrap());
    let file = write(&folder, "limits.yaml", &many(10_000));
    let (child, stdout) = begin(&server, &file);
    let other = r#"{"key":"a09999","kind":"rolling","capacity":77,"window_seconds":60}"#;
    assert_eq!(ask(&server.address, "PUT", "/v1/admin/limits", other, TIMEOUT).unwrap().status, 200);
    let rest = std::thread::spawn(move || stdout.lines().map(Result::unwrap).collect::<Vec<_>>());
    let ended = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("a09999 in default was changed meanwhile, to revision "), "{stderr}");
    assert!(stderr.contains(" by system:local, "), "{stderr}");
    assert!(stderr.contains("of 10,000 changes were applied; the same command continues with the rest"), "{stderr}");
    assert!(rest.join().unwrap().last().unwrap().ends_with(" unchanged"));
    let limit = server.line("limits get a09999 --json").ends(0).json();
    assert_eq!(limit["limit"]["definition"]["capacity"], 77);
    // The next run sees the other value first, and replaces it on purpose.
    server.earmark(&["apply", &file]).ends(0);
    server.earmark(&["diff", &file]).ends(0);
}

#[test]
fn pruning_deletes_only_from_named_lists_and_asks_first() {
    let (server, folder) = (Server::start(&[]), TempDir::new().unwrap());
    let platform = PLATFORM.replace("user:{user}:rpm", "\"user:{user}:rpm\"");
    server.earmark(&["apply", &write(&folder, "platform.yaml", &platform)]).ends(0);
    let rpm = "[[limits]]\nkey = \"gpt-4o:rpm\"\nkind = \"rolling\"\ncapacity = 600\nwindow_seconds = 60\nunit = \"requests\"\n";
    let file = write(&folder, "less.toml", rpm);
    let kept = server.earmark(&["diff", &file]).ends(0);
    assert!(kept.stdout.contains("1 more on the server are in no file (see --prune)"), "{kept:?}");
    let diff = server.earmark(&["diff", "--prune", &file]).ends(2);
    assert!(diff.stdout.starts_with("default\n  - gpt-4o:calls\n"), "{diff:?}");
    let refused = server.earmark(&["apply", "--prune", &file]).ends(2);
    assert!(refused.stderr.contains("--prune would delete 1 limit in default; there is no terminal"), "{refused:?}");
    assert_eq!(count(&server), 2);
    let pruned = server.earmark(&["apply", "--prune", "--yes", &file]).ends(0);
    assert_eq!(pruned.stdout, "deleted gpt-4o:calls\n0 created, 0 changed, 1 deleted, 1 unchanged\n");
    assert_eq!(count(&server), 1);
    assert!(server.line("templates list --json").ends(0).stdout.contains("user:{user}:rpm"));
    let none = write(&folder, "none.yaml", "templates: []\nnamespaces:\n- {namespace: team, limits: []}\n");
    let pruned = server.earmark(&["apply", "--prune", "--yes", &none]).ends(0);
    assert!(pruned.stdout.ends_with("0 created, 0 changed, 2 deleted, 0 unchanged\n"), "{pruned:?}");
    assert_eq!(count(&server), 1);
}

#[test]
fn usage_is_shown_by_key_and_by_what_is_full() {
    let server = Server::start(&[]);
    for (key, capacity) in [("a", "10"), ("b", "100"), ("team/c", "4")] {
        let put = ["limits", "put", "--key", key, "--kind", "concurrency", "--capacity", capacity, "--timeout", "1h"];
        server.earmark(&put).ends(0);
    }
    server.line("reserve --key a=5 --key b=10 --key team/c=4").ends(0);
    let list = server.line("usage").ends(0);
    assert_eq!(
        list.stdout,
        "KEY     KIND         FULL  RESERVED  CAPACITY  DEBT  STATUS\n\
         a       concurrency  50%   5         10        0     active\n\
         b       concurrency  10%   10        100       0     active\n\
         team/c  concurrency  100%  4         4         0     active\n"
    );
    let keys = |line: &str| -> Vec<String> {
        let listed = server.line(line).ends(0).json();
        let key = |limit: &Value| limit["key"].as_str().unwrap().to_owned();
        listed["usage"].as_array().unwrap().iter().map(key).collect()
    };
    assert_eq!(keys("usage --sort fullness --json"), ["team/c", "a", "b"]);
    assert_eq!(keys("usage --sort fullness --count 1 --json"), ["team/c"]);
    assert_eq!(keys("usage --prefix team/ --json"), ["team/c"]);
}
