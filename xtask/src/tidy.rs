//! `cargo xtask tidy`: rules that neither cargo nor clippy checks.
//!
//! Every check is a function of the [`Tree`], so each test gives it a tree that breaks its rule.

mod adr;
mod crates;
mod language;
mod length;
mod links;
mod lints;
mod markdown;
mod toml;
mod tree;

use std::fmt;

use crate::run::{self, Failure};
use tree::Tree;

/// A broken rule with its location.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Violation {
    path: String,
    line: usize,
    what: String,
}

impl Violation {
    fn new(path: &str, line: usize, what: impl Into<String>) -> Violation {
        Violation { path: path.to_owned(), line, what: what.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

pub(crate) fn tidy() -> Result<(), Failure> {
    let tree = Tree::read(run::root())?;
    let violations = check(&tree);
    for violation in &violations {
        println!("{violation}");
    }
    match violations.len() {
        0 => {
            println!("tidy: {} files, no violations", tree.len());
            Ok(())
        }
        violations => Err(Failure::Untidy { violations }),
    }
}

fn check(tree: &Tree) -> Vec<Violation> {
    let checks: [fn(&Tree) -> Vec<Violation>; 6] =
        [length::check, lints::check, adr::check, crates::check, language::check, links::check];
    let mut violations: Vec<Violation> = checks.iter().flat_map(|check| check(tree)).collect();
    violations.sort();
    violations
}

#[cfg(test)]
mod tests;
