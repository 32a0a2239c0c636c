//! Relative links in the documents lead somewhere.

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
                let what =
                    format!("the link to {target} leads nowhere, allowed are files and folders of this tree");
                violations.push(Violation::new(path, link.line, what));
            }
        }
    }
    violations
}

/// Whether this is an address such as `https://` or `mailto:`.
fn has_scheme(target: &str) -> bool {
    target.split_once(':').is_some_and(|(scheme, _)| scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

/// What `target` means in the file at `path`, from the root; nothing if it leads out of the tree.
fn resolve(path: &str, target: &str) -> Option<String> {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    // A target that starts with a slash counts from the root.
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
