//! Every crate lets clippy limit the lines of functions.

use super::toml::entries;
use super::{Tree, Violation};

const FUNCTION_LINES_MAX: &str = "70";
const THRESHOLD: &str = "too-many-lines-threshold";
const LINT: &str = "too_many_lines";

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations: Vec<Violation> =
        tree.named("clippy.toml").filter_map(|(path, text)| threshold(path, text)).collect();
    // Crates without their own clippy.toml use this one.
    if tree.text("clippy.toml").is_none() {
        violations.push(Violation::new("clippy.toml", 1, format!("missing; it must set {THRESHOLD}")));
    }
    for (path, text) in tree.named("Cargo.toml") {
        let is_root = path == "Cargo.toml";
        let is_member = path == "xtask/Cargo.toml" || path.starts_with("crates/");
        if is_root && !denies(text, "workspace.lints.clippy") {
            let what = format!("[workspace.lints.clippy] must have {LINT} = \"deny\"");
            violations.push(Violation::new(path, 1, what));
        }
        if is_member && !inherits(text) && !denies(text, "lints.clippy") {
            let what = format!("must have `[lints] workspace = true`, or {LINT} = \"deny\" of its own");
            violations.push(Violation::new(path, 1, what));
        }
    }
    violations
}

fn threshold(path: &str, text: &str) -> Option<Violation> {
    let entry = entries(text).into_iter().find(|entry| entry.key == THRESHOLD);
    let (line, found) = entry.map_or((1, "nothing"), |entry| (entry.line, entry.value));
    (found != FUNCTION_LINES_MAX)
        .then(|| Violation::new(path, line, format!("{THRESHOLD}: found {found}, allowed is {FUNCTION_LINES_MAX}")))
}

fn inherits(text: &str) -> bool {
    entries(text).iter().any(|entry| {
        let is_key = (entry.section, entry.key) == ("lints", "workspace")
            || (entry.section, entry.key) == ("", "lints.workspace");
        is_key && entry.value == "true"
    })
}

fn denies(text: &str, section: &str) -> bool {
    entries(text).iter().any(|entry| entry.section == section && entry.key == LINT && entry.value.contains("\"deny\""))
}
