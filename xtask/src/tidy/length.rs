//! Limits the length of files.

use super::{Tree, Violation};

const SOURCE_LINES_MAX: usize = 600;
const ARCHITECTURE_LINES_MAX: usize = 400;

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let sources = tree.named(".rs").chain(tree.named(".ts")).map(|file| (file, SOURCE_LINES_MAX));
    let architecture = tree.named("ARCHITECTURE.md").map(|file| (file, ARCHITECTURE_LINES_MAX));
    sources.chain(architecture).filter_map(|((path, text), max)| too_long(path, text, max)).collect()
}

fn too_long(path: &str, text: &str, max: usize) -> Option<Violation> {
    let found = text.lines().count();
    (found > max).then(|| Violation::new(path, max + 1, format!("found {found} lines, allowed are {max}")))
}
