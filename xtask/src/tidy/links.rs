//! Relative links in documents lead to existing files.

use super::markdown::links;
use super::{Tree, Violation};

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.named(".md") {
        for link in links(text) {
            let target = link.target.split('#').next().unwrap_or("");
            if target.is_empty() || has_scheme(target) {
                continue;
            }
            if !resolve(path, target).is_some_and(|file| tree.has(&file)) {
                let what = format!("the link to {target} is broken; allowed are files and folders of this tree");
                violations.push(Violation::new(path, link.line, what));
            }
        }
    }
    violations
}

/// Whether this is a URL such as `https://` or `mailto:`.
fn has_scheme(target: &str) -> bool {
    target.split_once(':').is_some_and(|(scheme, _)| scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

/// Resolves `target` in the file at `path` to a path from the root; `None` if it leaves the tree.
fn resolve(path: &str, target: &str) -> Option<String> {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    // A leading slash means the root.
    let folder = if target.starts_with('/') { "" } else { folder };
    let mut parts: Vec<&str> = Vec::new();
    for part in folder.split('/').chain(target.split('/')) {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}
