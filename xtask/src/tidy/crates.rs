//! The crates depend on each other exactly as the table in ARCHITECTURE.md says.

use std::collections::BTreeMap;

use super::toml::entries;
use super::{Tree, Violation};

const ARCHITECTURE: &str = "ARCHITECTURE.md";
const HEADER: [&str; 3] = ["crate", "purpose", "may depend on"];
const NONE: [&str; 3] = ["none", "—", "-"];

/// One row of the table.
struct Row<'a> {
    line: usize,
    name: &'a str,
    may_depend_on: Vec<&'a str>,
}

/// A crate of the workspace, by the name of its folder.
struct Crate<'a> {
    name: &'a str,
    manifest_path: String,
    manifest: &'a str,
}

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let architecture = tree.text(ARCHITECTURE).unwrap_or("");
    let mut violations = Vec::new();
    let Some(rows) = table(architecture, &mut violations) else {
        let what = format!("must have a table with the header | {} |", HEADER.join(" | "));
        return vec![Violation::new(ARCHITECTURE, 1, what)];
    };
    let crates = crates(tree, &mut violations);
    let folders: BTreeMap<&str, &str> =
        crates.iter().filter_map(|one| Some((package(one.manifest)?, one.name))).collect();

    for (place, row) in rows.iter().enumerate() {
        if !crates.iter().any(|one| one.name == row.name) {
            violations.push(Violation::new(ARCHITECTURE, row.line, format!("there is no crate `{}`", row.name)));
        }
        if rows[..place].iter().any(|earlier| earlier.name == row.name) {
            violations.push(Violation::new(ARCHITECTURE, row.line, format!("`{}` has two rows", row.name)));
        }
    }
    for one in &crates {
        match rows.iter().find(|row| row.name == one.name) {
            Some(row) => violations.extend(compare(row, one, &folders)),
            None => {
                let what = format!("`{}` has no row in the table of {ARCHITECTURE}", one.name);
                violations.push(Violation::new(&one.manifest_path, 1, what));
            }
        }
    }
    violations
}

/// Compares the row and the manifest of a crate.
fn compare(row: &Row<'_>, one: &Crate<'_>, folders: &BTreeMap<&str, &str>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut used = Vec::new();
    for (line, package) in dependencies(one.manifest) {
        let Some(&name) = folders.get(package) else { continue };
        if !row.may_depend_on.contains(&name) {
            let what = format!("depends on `{name}`, {ARCHITECTURE}:{} allows {}", row.line, list(&row.may_depend_on));
            violations.push(Violation::new(&one.manifest_path, line, what));
        }
        used.push(name);
    }
    for name in row.may_depend_on.iter().filter(|name| !used.contains(name)) {
        let what =
            format!("`{}` may depend on `{name}` and does not, {} has {}", row.name, one.manifest_path, list(&used));
        violations.push(Violation::new(ARCHITECTURE, row.line, what));
    }
    violations
}

fn list(names: &[&str]) -> String {
    if names.is_empty() { "none".to_owned() } else { format!("`{}`", names.join("`, `")) }
}

fn crates<'a>(tree: &'a Tree, violations: &mut Vec<Violation>) -> Vec<Crate<'a>> {
    let in_crates = tree.folders("crates").into_iter().map(|name| (name, format!("crates/{name}/Cargo.toml")));
    let mut crates = Vec::new();
    for (name, manifest_path) in in_crates.chain([("xtask", "xtask/Cargo.toml".to_owned())]) {
        match tree.text(&manifest_path) {
            Some(manifest) => crates.push(Crate { name, manifest_path, manifest }),
            None => violations.push(Violation::new(&manifest_path, 1, "missing; every crate needs one")),
        }
    }
    crates
}

/// The rows of the table; `None` if there is no table.
fn table<'a>(architecture: &'a str, violations: &mut Vec<Violation>) -> Option<Vec<Row<'a>>> {
    let mut lines = (1..).zip(architecture.lines());
    lines.find(|(_, line)| cells(line) == HEADER)?;
    let mut rows = Vec::new();
    // Skip the separator line after the header.
    for (line, text) in lines.skip(1).take_while(|(_, line)| line.starts_with('|')) {
        match *cells(text).as_slice() {
            [first, _, last] if quoted(first).len() == 1 && (!quoted(last).is_empty() || NONE.contains(&last)) => {
                let may_depend_on = quoted(last).into_iter().filter(|name| *name != "none").collect();
                rows.push(Row { line, name: quoted(first)[0], may_depend_on });
            }
            _ => {
                let what = "a row names one crate, its purpose, and crates in backticks or none";
                violations.push(Violation::new(ARCHITECTURE, line, what));
            }
        }
    }
    Some(rows)
}

fn cells(line: &str) -> Vec<&str> {
    let inner = line.trim().strip_prefix('|').and_then(|rest| rest.strip_suffix('|'));
    inner.map(|inner| inner.split('|').map(str::trim).collect()).unwrap_or_default()
}

fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// The package name of a manifest.
fn package(manifest: &str) -> Option<&str> {
    let entry = entries(manifest).into_iter().find(|entry| (entry.section, entry.key) == ("package", "name"))?;
    Some(entry.value.trim_matches('"'))
}

/// The normal dependencies of a manifest with their lines. Reads every TOML form of a dependency, so that none evades the
/// rule.
fn dependencies(manifest: &str) -> Vec<(usize, &str)> {
    let mut dependencies: Vec<(usize, &str)> = Vec::new();
    for entry in entries(manifest) {
        let is_table = entry.section == "dependencies" || entry.section.ends_with(".dependencies");
        let (name, option) = match own_section(entry.section) {
            Some(name) => (name, entry.key),
            None if is_table => entry.key.split_once('.').unwrap_or((entry.key, "")),
            None => continue,
        };
        let package = if option == "package" { Some(entry.value) } else { renamed(entry.value) };
        let found = package.unwrap_or(name).trim_matches('"');
        if !dependencies.iter().any(|(_, name)| *name == found) {
            dependencies.push((entry.line, found));
        }
    }
    dependencies
}

/// The name in a header like `dependencies.name`.
fn own_section(section: &str) -> Option<&str> {
    let of_target = || section.split_once(".dependencies.").map(|(_, name)| name);
    section.strip_prefix("dependencies.").or_else(of_target)
}

/// The package in a value like `{ package = "name", .. }`.
fn renamed(value: &str) -> Option<&str> {
    let after = value.split_once("package")?.1.trim_start().strip_prefix('=')?;
    after.trim_start().strip_prefix('"')?.split('"').next()
}
