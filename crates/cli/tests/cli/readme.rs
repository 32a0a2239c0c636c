//! Runs the examples of README.md and compares their output.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{Ran, Server};

const NODES: &str =
    "<!-- The test `readme` runs the next block and compares its output with the lines that start with `#: `. -->";
const START: &str =
    "<!-- The test `readme` runs the next block and compares its output with the lines that start with `# {`. -->";

/// The code blocks after `marker`.
fn blocks<'a>(readme: &'a str, marker: &str) -> Vec<&'a str> {
    let behind = readme.split(marker).skip(1);
    behind.map(|text| text.split("```sh\n").nth(1).unwrap().split("```").next().unwrap()).collect()
}

/// Replaces every number that depends on the time.
fn without_times(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    for field in ["\"retry_after_ms\":", "\"reserved_at_unix_ms\":", "\"ends_at_unix_ms\":"] {
        if let Some((before, after)) = rest.split_once(field) {
            kept += &format!("{before}{field}");
            let number = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            kept += if &after[..number] == "0" { "0" } else { "N" };
            rest = &after[number..];
        }
    }
    kept + rest
}

/// Whether bash and curl are installed.
fn has_shell() -> bool {
    let found = |program: &str| {
        let version = Command::new(program).arg("--version").stdout(Stdio::null()).status();
        version.is_ok_and(|status| status.success())
    };
    let has_both = found("bash") && found("curl");
    if !has_both {
        eprintln!("skipped: bash or curl is not installed");
    }
    has_both
}

fn readme() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    std::fs::read_to_string(root.join("README.md")).unwrap()
}

#[test]
fn three_nodes_continue_after_one_dies() {
    if !has_shell() {
        return;
    }
    let readme = readme();
    let [walk] = blocks(&readme, NODES)[..] else { panic!("README.md has one walk of nodes") };
    let folder = tempfile::tempdir().unwrap();
    let mut script = walk.to_owned();
    let first = 20_000 + u16::try_from(std::process::id() % 1_000).unwrap() * 10;
    let mut free = (first..32_000).filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    let mut named = Vec::new();
    for port in ["7878", "7879", "7880", "7101", "7102", "7103"] {
        let other = free.next().unwrap().to_string();
        script = script.replace(port, &other);
        named.push((port, other));
    }
    let binary = Path::new(env!("CARGO_BIN_EXE_earmark")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    // The trap kills the servers in every case.
    let script =
        format!("trap 'kill -9 $(jobs -p)' EXIT\nexport EARMARK_SERVER=http://127.0.0.1:{}\n{script}", named[0].1);
    let mut bash = Command::new("timeout");
    bash.args(["60", "bash", "-euc", &script]).current_dir(folder.path()).env("PATH", path);
    let ran = Ran::of(bash.output().unwrap()).ends(0);
    let mut printed = ran.stdout;
    for (port, other) in &named {
        printed = printed.replace(other, port);
    }
    let shown: Vec<&str> = walk.lines().filter_map(|line| line.strip_prefix("#: ")).collect();
    // Compare words, because a port of another length moves the columns.
    let words = |line: &str| {
        let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        // The lag of a follower varies.
        words.pop_if(|last| line.contains(" voter ") && last.parse::<u64>().is_ok());
        words
    };
    let printed: Vec<_> = printed.lines().map(words).collect();
    assert_eq!(printed, shown.into_iter().map(words).collect::<Vec<_>>());
    assert!(printed.len() >= 9, "{printed:?}");
}

#[test]
fn the_walks_of_the_readme_print_what_they_show() {
    if !has_shell() {
        return;
    }
    let readme = readme();
    let blocks = blocks(&readme, START);
    assert_eq!(blocks.len(), 4, "README.md has walks of a call, of limits, of credit and of a stream");
    // The other blocks use variables of the first.
    let walk = blocks.concat();
    let folder = tempfile::tempdir().unwrap();
    let server = Server::on(folder.path(), &[]);
    let script = walk.replace("127.0.0.1:7878", &server.address);
    assert_ne!(script, walk, "the address is in the first block");
    let binary = Path::new(env!("CARGO_BIN_EXE_earmark")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    let place = tempfile::tempdir().unwrap();
    let mut bash = Command::new("bash");
    bash.args(["-euc", &script]).current_dir(place.path());
    bash.env("PATH", path).env("EARMARK_SERVER", format!("http://{}", server.address));
    let ran = Ran::of(bash.output().unwrap()).ends(0);
    let shown: Vec<String> = walk
        .lines()
        .filter_map(|line| line.strip_prefix("# "))
        .filter(|line| line.starts_with('{'))
        .map(without_times)
        .collect();
    let printed: Vec<String> = ran.stdout.lines().map(without_times).collect();
    assert_eq!(printed, shown);
    assert!(printed.len() >= 8, "{printed:?}");
}

#[test]
fn times_are_left_out_of_the_comparison_and_zeros_are_not() {
    let text = r#"{"allowed":true,"retry_after_ms":0,"reserved_at_unix_ms":17,"error":""}"#;
    assert_eq!(without_times(text), r#"{"allowed":true,"retry_after_ms":0,"reserved_at_unix_ms":N,"error":""}"#);
    assert_eq!(without_times("{}"), "{}");
}
