//! The quick start in README.md is what it says it is.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{Ran, Server};

const START: &str = "<!-- The test `readme` runs the next block and compares its output with the lines that start with `# {`. -->";

/// The blocks behind the markers.
fn blocks(readme: &str) -> Vec<&str> {
    let behind = readme.split(START).skip(1);
    behind.map(|text| text.split("```sh\n").nth(1).unwrap().split("```").next().unwrap()).collect()
}

/// `text` with every number that depends on the time replaced.
fn without_times(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    for field in ["\"retry_after_ms\":", "\"reserved_at_unix_ms\":"] {
        if let Some((before, after)) = rest.split_once(field) {
            kept += &format!("{before}{field}");
            let number = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            kept += if &after[..number] == "0" { "0" } else { "N" };
            rest = &after[number..];
        }
    }
    kept + rest
}

#[test]
fn the_walks_of_the_readme_print_what_they_show() {
    let found = |program: &str| {
        let version = Command::new(program).arg("--version").stdout(Stdio::null()).status();
        version.is_ok_and(|status| status.success())
    };
    if !found("bash") || !found("curl") {
        eprintln!("skipped: there is no bash or no curl on this machine");
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    let blocks = blocks(&readme);
    assert_eq!(blocks.len(), 2, "README.md has a walk of limits and a walk of credit");
    // A reader runs the second in the shell of the first.
    let walk = blocks.concat();
    let server = Server::start(&[]);
    let script = walk.replace("127.0.0.1:7878", &server.address);
    assert_ne!(script, walk, "the address is in the first block");
    let ran = Ran::of(Command::new("bash").args(["-euc", &script]).output().unwrap()).ends(0);
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
    assert_eq!(
        without_times(text),
        r#"{"allowed":true,"retry_after_ms":0,"reserved_at_unix_ms":N,"error":""}"#
    );
    assert_eq!(without_times("{}"), "{}");
}
