//! A tree that follows all rules, and for each rule trees that break it.

use super::{Tree, check};

const ARCHITECTURE: &str = "\
# Architecture

| crate | purpose | may depend on |
|---|---|---|
| `core` | the heart | none |
| `server` | the rest | `core` |
| `xtask` | chores | — |

See [decisions](docs/adr/README.md), [one](docs/adr/0001-one.md#context) and <https://example.org>.
";
const DENIES: &str = "[package]\nname = \"earmark-core\"\n[lints.clippy]\ntoo_many_lines = \"deny\"\n";
const SERVER: &str = "\
[package]
name = \"earmark-server\"
[dependencies]
earmark-core.workspace = true
other = \"1\"
[dev-dependencies]
xtask = \"0\"
[lints]
workspace = true
";

const GOOD: [(&str, &str); 10] = [
    ("ARCHITECTURE.md", ARCHITECTURE),
    ("Cargo.toml", "[workspace.lints.clippy]\ntoo_many_lines = \"deny\"\n"),
    ("clippy.toml", "too-many-lines-threshold = 70\n"),
    ("crates/core/Cargo.toml", DENIES),
    ("crates/core/clippy.toml", "too-many-lines-threshold = 70 # as everywhere\n"),
    ("crates/server/Cargo.toml", SERVER),
    ("docs/adr/0001-one.md", "# One\n\nStatus: accepted\n"),
    ("docs/adr/0002-two.md", "# Two and `more`\n\nStatus: accepted\n"),
    ("docs/adr/README.md", "- [One](0001-one.md)\n- [Two and `more`](0002-two.md)\n- [up](../../ARCHITECTURE.md)\n"),
    ("xtask/Cargo.toml", "[package]\nname = \"xtask\"\n[lints]\nworkspace = true\n"),
];

/// Checks the good tree with `changes`. An empty text removes the file.
fn broken(changes: &[(&str, &str)], expected: &[&str]) {
    let kept = GOOD.iter().filter(|(path, _)| !changes.iter().any(|(changed, _)| changed == path));
    let files: Vec<_> = kept.chain(changes.iter().filter(|(_, text)| !text.is_empty())).copied().collect();
    let mut found: Vec<String> = check(&Tree::of(&files)).iter().map(ToString::to_string).collect();
    found.sort();
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

#[test]
fn a_tidy_tree_has_no_violations() {
    broken(&[], &[]);
}

#[test]
fn a_file_that_is_too_long_is_found() {
    broken(&[("crates/core/src/lib.rs", &"\n".repeat(600))], &[]);
    broken(
        &[("crates/core/src/lib.rs", &"\n".repeat(601))],
        &["crates/core/src/lib.rs:601: found 601 lines, allowed are 600"],
    );
    let filled = |lines: usize| ARCHITECTURE.to_owned() + &"\n".repeat(lines - ARCHITECTURE.lines().count());
    broken(&[("ARCHITECTURE.md", &filled(400))], &[]);
    broken(&[("ARCHITECTURE.md", &filled(401))], &["ARCHITECTURE.md:401: found 401 lines, allowed are 400"]);
}

#[test]
fn a_crate_that_escapes_the_count_of_lines_is_found() {
    broken(
        &[("clippy.toml", "a = 1\ntoo-many-lines-threshold = 100\n")],
        &["clippy.toml:2: too-many-lines-threshold: found 100, allowed is 70"],
    );
    broken(
        &[("crates/core/clippy.toml", "a = 1\n")],
        &["crates/core/clippy.toml:1: too-many-lines-threshold: found nothing, allowed is 70"],
    );
    broken(&[("clippy.toml", "")], &["clippy.toml:1: missing; it must set too-many-lines-threshold"]);
    for manifest in ["[workspace]\n", "[workspace.lints.clippy]\ntoo_many_lines = \"warn\"\n"] {
        broken(
            &[("Cargo.toml", manifest)],
            &["Cargo.toml:1: [workspace.lints.clippy] must have too_many_lines = \"deny\""],
        );
    }
    for lints in ["", "[lints]\nworkspace = false\n", "[lints.clippy]\ntoo_many_lines = \"allow\"\n"] {
        broken(
            &[("xtask/Cargo.toml", &format!("[package]\nname = \"xtask\"\n{lints}"))],
            &["xtask/Cargo.toml:1: must have `[lints] workspace = true`, or too_many_lines = \"deny\" of its own"],
        );
    }
}

#[test]
fn an_index_of_decisions_that_differs_from_its_folder_is_found() {
    for (text, expected) in [
        ("- [One](0001-one.md)\n", &["docs/adr/README.md:1: 0002-two.md is not listed"][..]),
        (
            "- [One](0001-one.md)\n- [Two](0002-two.md)\n",
            &["docs/adr/README.md:2: found the title \"Two\", 0002-two.md has \"Two and `more`\""],
        ),
        (
            "- [One](0001-one.md)\n- [One](0001-one.md)\n- [Two and `more`](0002-two.md)\n",
            &["docs/adr/README.md:2: 0001-one.md is listed twice"],
        ),
        (
            "- [One](0001-one.md)\n- [Two and `more`](0002-two.md)\n- [Three](0003-three.md)\n",
            &[
                "docs/adr/README.md:3: 0003-three.md is listed and does not exist",
                "docs/adr/README.md:3: the link to 0003-three.md is broken; \
                 allowed are files and folders of this tree",
            ],
        ),
    ] {
        broken(&[("docs/adr/README.md", text)], expected);
    }
    broken(
        &[("ARCHITECTURE.md", &ARCHITECTURE.replace("docs/adr/README.md", "docs")), ("docs/adr/README.md", "")],
        &["docs/adr/README.md:1: missing; it must list the decisions"],
    );
}

#[test]
fn a_decision_without_its_number_title_or_status_is_found() {
    let index = |entries: &str| format!("- [One](0001-one.md)\n- [Two and `more`](0002-two.md)\n{entries}");
    let three = "# Three\n\nStatus: accepted\n";
    broken(
        &[("docs/adr/0002-three.md", three), ("docs/adr/README.md", &index("- [Three](0002-three.md)"))],
        &["docs/adr/0002-two.md:1: the number 0002 is taken"],
    );
    broken(
        &[("docs/adr/0004-three.md", three), ("docs/adr/README.md", &index("- [Three](0004-three.md)"))],
        &["docs/adr/0004-three.md:1: found the number 0004, the next one is 0003"],
    );
    for name in ["three.md", "3-three.md", "0003-Three.md", "0003.md", "0003-.md"] {
        broken(
            &[(&format!("docs/adr/{name}"), three)],
            &[
                &format!("docs/adr/README.md:1: {name} is not listed"),
                &format!("docs/adr/{name}:1: the name must be NNNN-title.md, the title in lower case with hyphens"),
            ],
        );
    }
    for text in ["# One\n", "# One\n\nStatus:\n", "# One\n\nThe Status: none\n"] {
        broken(
            &[("docs/adr/0001-one.md", text)],
            &["docs/adr/0001-one.md:1: has no status line, such as `Status: accepted`"],
        );
    }
    broken(
        &[("docs/adr/0001-one.md", "One\n\nStatus: accepted\n")],
        &["docs/adr/0001-one.md:1: has no title, a line that starts with `# `"],
    );
}

#[test]
fn a_dependency_that_the_table_does_not_allow_is_found_however_it_is_written() {
    for (dependency, line) in [
        ("[dependencies]\nearmark-server = { path = \"../server\" }", 6),
        ("[dependencies]\nearmark-server.workspace = true", 6),
        ("[dependencies]\n\"earmark-server\" = \"1\"", 6),
        ("[dependencies]\nserver = { package = \"earmark-server\", version = \"1\" }", 6),
        ("[dependencies]\nserver.package = \"earmark-server\"", 6),
        ("[dependencies.earmark-server]\nworkspace = true", 6),
        ("[dependencies.server]\nversion = \"1\"\npackage = \"earmark-server\"", 7),
        ("[target.'cfg(unix)'.dependencies]\nearmark-server.workspace = true", 6),
        ("[target.'cfg(unix)'.dependencies.earmark-server]\nworkspace = true", 6),
    ] {
        broken(
            &[("crates/core/Cargo.toml", &format!("{DENIES}{dependency}\n"))],
            &[&format!("crates/core/Cargo.toml:{line}: depends on `server`, ARCHITECTURE.md:5 allows none")],
        );
    }
    broken(
        &[("crates/core/Cargo.toml", &format!("{DENIES}[dev-dependencies.earmark-server]\nversion = \"1\"\n"))],
        &[],
    );
}

#[test]
fn a_table_of_crates_that_says_more_or_less_than_the_tree_is_found() {
    let row = |from: &str, to: &str| [("ARCHITECTURE.md", ARCHITECTURE.replace(from, to))];
    for ([(path, text)], expected) in [
        (
            row("| the rest | `core` |", "| the rest | `core`, `xtask` |"),
            &["ARCHITECTURE.md:6: `server` may depend on `xtask` and does not, \
               crates/server/Cargo.toml has `core`"][..],
        ),
        (
            row("| the rest | `core` |", "| the rest | none |"),
            &["crates/server/Cargo.toml:4: depends on `core`, ARCHITECTURE.md:6 allows none"],
        ),
        (
            row("| `server` | the rest | `core` |\n", ""),
            &["crates/server/Cargo.toml:1: `server` has no row in the table of ARCHITECTURE.md"],
        ),
        (
            row("| `xtask` | chores | — |\n", ""),
            &["xtask/Cargo.toml:1: `xtask` has no row in the table of ARCHITECTURE.md"],
        ),
        (row("| `xtask`", "| `node` | soon | none |\n| `xtask`"), &["ARCHITECTURE.md:7: there is no crate `node`"]),
        (row("| `xtask`", "| `core` | again | none |\n| `xtask`"), &["ARCHITECTURE.md:7: `core` has two rows"]),
        (
            row("| the heart | none |", "| the heart | no runtime |"),
            &[
                "ARCHITECTURE.md:5: a row names one crate, its purpose, and crates in backticks or none",
                "crates/core/Cargo.toml:1: `core` has no row in the table of ARCHITECTURE.md",
            ],
        ),
        (
            row("| crate |", "| Crate |"),
            &["ARCHITECTURE.md:1: must have a table with the header | crate | purpose | may depend on |"],
        ),
    ] {
        broken(&[(path, &text)], expected);
    }
    broken(&[("crates/node/src/lib.rs", "//! Node.\n")], &["crates/node/Cargo.toml:1: missing; every crate needs one"]);
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    for good in [
        "[a](#b)",
        "[a](https://example.org/x.md)",
        "[a](mailto:a@example.org)",
        "[a](../ARCHITECTURE.md)",
        "[a](adr)",
        "[a](/crates/core/)",
        "`[a](b.md)`",
    ] {
        broken(&[("docs/testing.md", good)], &[]);
    }
    for (bad, target) in [
        ("\n[a](b.md)", "b.md"),
        ("\n[a](ARCHITECTURE.md#x)", "ARCHITECTURE.md"),
        ("\n[a](../../main/ARCHITECTURE.md)", "../../main/ARCHITECTURE.md"),
        ("\n[a]: ../crate", "../crate"),
    ] {
        broken(
            &[("docs/testing.md", bad)],
            &[&format!(
                "docs/testing.md:2: the link to {target} is broken; allowed are files and folders of this tree"
            )],
        );
    }
}
