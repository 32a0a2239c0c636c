//! `cargo xtask licences`: checks the licences of the dependencies, and advisories where `cargo audit` is installed.
//!
//! `cargo tree` lists the dependencies for the platform it runs on, with default features. Dependencies for other
//! platforms only are not checked.

use std::path::PathBuf;

use crate::run::{self, Failure};

/// Allowed licences: permissive ones that require attribution at most.
const ALLOWED: [&str; 10] = [
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
    "0BSD",
];

pub(crate) fn check() -> Result<(), Failure> {
    // Downloads packages that are missing, which no step before it does.
    let mut tree = run::command("cargo", "tree --workspace --prefix none -e normal,build,dev --locked");
    tree.args(["-f", "{p}|{l}"]);
    let listed = run::output(&mut tree).ok_or_else(|| {
        Failure::Missing(vec!["`cargo tree`, which lists the licences; try `cargo fetch --locked`".into()])
    })?;
    let refused = refused(&listed);
    refused.iter().for_each(|line| println!("{line}"));
    if !refused.is_empty() {
        return Err(Failure::Untidy { violations: refused.len() });
    }
    advisories()
}

/// Checks advisories against a local copy of the database. It is not fetched here, so that `verify` depends on the tree
/// alone.
fn advisories() -> Result<(), Failure> {
    if run::output(&mut run::command("cargo", "audit --version")).is_none() {
        println!("advisories not checked: `cargo audit` is not installed");
        return Ok(());
    }
    if !database().is_some_and(|folder| folder.is_dir()) {
        println!("advisories not checked: no advisory database; run `cargo audit` once");
        return Ok(());
    }
    run::run(&mut run::command("cargo", "audit --no-fetch --stale"))
}

/// The advisory database of `cargo audit`.
fn database() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    home.map(|home| home.join("advisory-db"))
}

/// One message for each package whose licence is not allowed. Lines are `package|licence`, and a repeated package ends
/// with `(*)`.
fn refused(listed: &str) -> Vec<String> {
    let mut refused: Vec<String> = Vec::new();
    for line in listed.lines().map(|line| line.trim_end_matches(" (*)")) {
        let Some((package, licence)) = line.split_once('|') else { continue };
        let what = format!("{package}: found the licence {licence:?}, allowed are {}", ALLOWED.join(", "));
        if !is_allowed(licence) && !refused.contains(&what) {
            refused.push(what);
        }
    }
    refused
}

/// Whether the allowed licences satisfy an SPDX expression. A slash is an old form of `OR`.
fn is_allowed(expression: &str) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let (is_met, rest) = any_of(&words);
    is_met && rest.is_empty() && !words.is_empty()
}

/// Parses terms joined by `OR`, which binds less tightly than `AND`. Returns whether they are met, and the words left.
fn any_of<'a>(words: &'a [&'a str]) -> (bool, &'a [&'a str]) {
    let (mut is_met, mut rest) = all_of(words);
    while let [or, after @ ..] = rest
        && *or == "OR"
    {
        let (other, left) = all_of(after);
        is_met |= other;
        rest = left;
    }
    (is_met, rest)
}

/// Parses terms joined by `AND`.
fn all_of<'a>(words: &'a [&'a str]) -> (bool, &'a [&'a str]) {
    let (mut is_met, mut rest) = term(words);
    while let [and, after @ ..] = rest
        && *and == "AND"
    {
        let (other, left) = term(after);
        is_met &= other;
        rest = left;
    }
    (is_met, rest)
}

/// Parses one licence, with its exception if any, or an expression in parentheses.
fn term<'a>(words: &'a [&'a str]) -> (bool, &'a [&'a str]) {
    match words {
        ["(", inner @ ..] => match any_of(inner) {
            (is_met, [")", rest @ ..]) => (is_met, rest),
            (_, rest) => (false, rest),
        },
        // An exception only adds permissions.
        [name, with, _, rest @ ..] if *with == "WITH" => (ALLOWED.contains(name), rest),
        [name, rest @ ..] => (ALLOWED.contains(name), rest),
        [] => (false, &[]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_allowed_or_not() {
        for (expression, is_met) in [
            ("MIT", true),
            ("MIT OR GPL-3.0", true),
            ("GPL-3.0 OR MIT", true),
            ("MIT/Apache-2.0", true),
            ("MIT AND GPL-3.0", false),
            ("(MIT OR GPL-3.0) AND Unicode-3.0", true),
            ("(MIT OR GPL-3.0) AND GPL-2.0", false),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("GPL-3.0", false),
            ("", false),
            ("(MIT", false),
            ("MIT MIT", false),
        ] {
            assert_eq!(is_allowed(expression), is_met, "{expression}");
        }
    }

    #[test]
    fn a_refused_package_is_named_once() {
        let listed = "a v1.0.0|MIT\nb v2.0.0|GPL-3.0\nb v2.0.0|GPL-3.0 (*)\nc v1.0.0|\n";
        let refused = refused(listed);
        assert_eq!(refused.len(), 2);
        assert!(refused[0].starts_with("b v2.0.0: found the licence \"GPL-3.0\", allowed are Apache-2.0"));
        assert!(refused[1].starts_with("c v1.0.0: found the licence \"\""));
    }
}
