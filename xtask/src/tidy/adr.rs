//! The index of docs/adr matches its files.

use std::collections::BTreeMap;

use super::markdown::{Link, links};
use super::{Tree, Violation};

const FOLDER: &str = "docs/adr";
const INDEX: &str = "README.md";

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let index_path = format!("{FOLDER}/{INDEX}");
    let Some(index) = tree.text(&index_path) else {
        return vec![Violation::new(&index_path, 1, "missing; it must list the decisions")];
    };
    let files: BTreeMap<&str, &str> =
        tree.inside(FOLDER).filter(|(name, _)| name.ends_with(".md") && *name != INDEX).collect();

    let mut violations = numbers(files.keys().copied());
    violations.extend(files.iter().flat_map(|(name, text)| shape(name, text)));
    // Links to other files are not entries.
    let listed: Vec<Link<'_>> = links(index).into_iter().filter(|link| number(link.target).is_some()).collect();
    for (place, link) in listed.iter().enumerate() {
        let what = match files.get(link.target) {
            _ if listed[..place].iter().any(|earlier| earlier.target == link.target) => {
                format!("{} is listed twice", link.target)
            }
            None => format!("{} is listed and does not exist", link.target),
            Some(text) => match title(text) {
                Some(title) if title != link.text => {
                    format!("found the title {:?}, {} has {title:?}", link.text, link.target)
                }
                _ => continue,
            },
        };
        violations.push(Violation::new(&index_path, link.line, what));
    }
    for name in files.keys().filter(|name| !listed.iter().any(|link| link.target == **name)) {
        violations.push(Violation::new(&index_path, 1, format!("{name} is not listed")));
    }
    violations
}

/// Checks that the files are numbered from 1 without a gap.
fn numbers<'a>(names: impl Iterator<Item = &'a str>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut last = 0;
    for name in names {
        let what = match number(name) {
            None => "the name must be NNNN-title.md, the title in lower case with hyphens".to_owned(),
            Some(found) if found == last => format!("the number {found:04} is taken"),
            Some(found) => {
                let next = last + 1;
                last = found;
                if found == next {
                    continue;
                }
                format!("found the number {found:04}, the next one is {next:04}")
            }
        };
        violations.push(Violation::new(&format!("{FOLDER}/{name}"), 1, what));
    }
    violations
}

fn number(name: &str) -> Option<u32> {
    let (number, title) = name.strip_suffix(".md")?.split_once('-')?;
    let is_title = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_name = number.len() == 4
        && number.bytes().all(|byte| byte.is_ascii_digit())
        && !title.is_empty()
        && title.bytes().all(is_title);
    if is_name { number.parse().ok() } else { None }
}

fn shape(name: &str, text: &str) -> Vec<Violation> {
    let path = format!("{FOLDER}/{name}");
    let mut violations = Vec::new();
    if title(text).is_none() {
        violations.push(Violation::new(&path, 1, "has no title, a line that starts with `# `"));
    }
    let has_status =
        text.lines().filter_map(|line| line.strip_prefix("Status:")).any(|status| !status.trim().is_empty());
    if !has_status {
        violations.push(Violation::new(&path, 1, "has no status line, such as `Status: accepted`"));
    }
    violations
}

fn title(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("# ")).map(str::trim)
}
