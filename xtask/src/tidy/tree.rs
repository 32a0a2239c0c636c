//! The files of the work tree.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use crate::run::{self, Failure};

/// File types that the checks read; for other files only the path is known.
const READ: [&str; 7] = [".md", ".proto", ".py", ".rs", ".sql", ".toml", ".ts"];
/// Folders that are skipped without git.
const SKIPPED: [&str; 3] = [".git", "node_modules", "target"];

/// Paths from the root, with `/`, and the text of each file.
#[derive(Debug, Default)]
pub(super) struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    /// Reads every file under `root` that git does not ignore.
    pub(super) fn read(root: &Path) -> Result<Tree, Failure> {
        let listing = "ls-files -z --cached --others --exclude-standard";
        let paths = match run::output(run::command("git", listing).current_dir(root)) {
            Some(listed) => listed.split_terminator('\0').map(str::to_owned).collect(),
            None => walk(root)?,
        };
        let mut tree = Tree::default();
        for path in paths {
            let file = root.join(&path);
            // Git lists deleted files until the deletion is committed.
            if file.symlink_metadata().is_err() {
                continue;
            }
            let text = if READ.iter().any(|end| path.ends_with(end)) {
                let bytes = fs::read(&file).map_err(|source| Failure::Read { path: file, source })?;
                String::from_utf8_lossy(&bytes).into_owned()
            } else {
                String::new()
            };
            tree.files.insert(path, text);
        }
        Ok(tree)
    }

    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Tree {
        Tree { files: files.iter().map(|&(path, text)| (path.to_owned(), text.to_owned())).collect() }
    }

    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    pub(super) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// All files with this name, or with this extension if `name` starts with a dot.
    pub(super) fn named(&self, name: &str) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str())).filter(move |(path, _)| {
            let last = path.rsplit('/').next().unwrap_or(path);
            if name.starts_with('.') { last.ends_with(name) } else { last == name }
        })
    }

    /// The files directly in `folder`, by name.
    pub(super) fn inside(&self, folder: &str) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().filter_map(move |(path, text)| {
            let name = path.strip_prefix(folder)?.strip_prefix('/')?;
            (!name.contains('/')).then_some((name, text.as_str()))
        })
    }

    /// The names of the subfolders of `folder`.
    pub(super) fn folders(&self, folder: &str) -> Vec<&str> {
        let mut names: Vec<&str> = self
            .files
            .keys()
            .filter_map(|path| Some(path.strip_prefix(folder)?.strip_prefix('/')?.split_once('/')?.0))
            .collect();
        names.dedup();
        names
    }

    /// Whether a file or folder exists at `path`; the root is the empty path.
    pub(super) fn has(&self, path: &str) -> bool {
        let is_inside = |file: &String| file.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
        path.is_empty() || self.files.contains_key(path) || self.files.keys().any(is_inside)
    }
}

/// All files under `root`, for a tree without git.
fn walk(root: &Path) -> Result<Vec<String>, Failure> {
    let mut paths = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let failed = |source: io::Error| Failure::Read { path: folder.clone(), source };
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let is_folder = entry.file_type().map_err(failed)?.is_dir();
            if !is_folder {
                let path = entry.path();
                let parts = path.strip_prefix(root).unwrap_or(&path).iter().map(|part| part.to_string_lossy());
                paths.push(parts.collect::<Vec<_>>().join("/"));
            } else if !SKIPPED.iter().any(|skipped| entry.file_name() == *skipped) {
                folders.push(entry.path());
            }
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_folders_are_found_by_path_and_by_name() {
        let tree = Tree::of(&[("a/b/c.rs", "1"), ("a/b/d.md", "2"), ("a/c.rs", "3"), ("ab.rs", "4")]);
        assert_eq!(tree.text("a/c.rs"), Some("3"));
        assert_eq!(tree.text("a"), None);
        assert_eq!(tree.named("c.rs").collect::<Vec<_>>(), [("a/b/c.rs", "1"), ("a/c.rs", "3")]);
        assert_eq!(tree.named(".rs").count(), 3);
        assert_eq!(tree.inside("a").collect::<Vec<_>>(), [("c.rs", "3")]);
        assert_eq!(tree.folders("a"), ["b"]);
        for (path, is_there) in [("", true), ("a", true), ("a/b", true), ("a/c.rs", true), ("b", false)] {
            assert_eq!(tree.has(path), is_there, "{path}");
        }
    }

    #[test]
    fn without_git_the_folders_are_walked_and_build_output_is_skipped() {
        let root = std::env::temp_dir().join(format!("earmark-xtask-walk-{}", std::process::id()));
        for folder in ["a/b", "target/debug", ".git"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        for file in ["a/b/c.rs", "d.md", "target/debug/e.rs", ".git/config"] {
            fs::write(root.join(file), "text").unwrap();
        }
        let mut paths = walk(&root).unwrap();
        paths.sort();
        let absent = walk(&root.join("absent")).unwrap_err().to_string();
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(paths, ["a/b/c.rs", "d.md"]);
        assert!(absent.contains("absent: cannot be read: "), "{absent}");
    }
}
