//! The limits file: the limits of an in-memory backend, which keeps nothing else on disk.
//!
//! `{"version": 1, "limits": [...], "namespaces": [{"namespace": "team", "limits": [...]}]}`. The first list has the
//! limits of namespace `default`.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use earmark_core::{Definition, LimitKey, NamespaceName};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::backend::LimitError;
use crate::document::{AnyDocument, LimitDocument};
use crate::private_files::create_private;

/// The version of the format.
const VERSION: u32 = 1;

/// Why the limits file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LimitsFileError {
    /// The file cannot be read.
    #[error("cannot read the limits file {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// The content is invalid.
    #[error("limits file {}, line {line}: {what}; correct it, nothing was overwritten", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// The field and what is wrong with it.
        what: String,
    },
    /// The Book refuses one of its limits.
    #[error("the limits file {} cannot be used: {key}: {source}; nothing was overwritten", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// The limit.
        key: LimitKey,
        /// The reason.
        source: LimitError,
    },
    /// The file has a newer format.
    #[error("the limits file {} has version {found}, this program reads up to {VERSION}: use a newer one", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The file cannot be written.
    #[error("cannot write the limits file {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
}

/// The content, as written.
#[derive(Serialize)]
struct Content<'a> {
    version: u32,
    limits: Vec<LimitDocument>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    namespaces: Vec<NamespaceContent<'a>>,
}

#[derive(Serialize)]
struct NamespaceContent<'a> {
    namespace: &'a str,
    limits: Vec<LimitDocument>,
}

/// The content, as read: the outer object first, then each limit on its own, so that an error has its line.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Frame<'a> {
    #[serde(default = "current_version")]
    version: Value,
    #[serde(borrow)]
    limits: Vec<&'a RawValue>,
    #[serde(borrow, default)]
    namespaces: Vec<NamespaceFrame<'a>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NamespaceFrame<'a> {
    #[serde(borrow)]
    namespace: &'a RawValue,
    #[serde(borrow)]
    limits: Vec<&'a RawValue>,
}

fn current_version() -> Value {
    VERSION.into()
}

/// The version of a file that may have unknown fields.
#[derive(Deserialize)]
struct VersionOnly {
    version: u32,
}

/// Limits and templates with their namespaces. The key of a template has placeholders.
pub type NamespacedLimits = Vec<(NamespaceName, Definition)>;

/// An error and its line.
struct Damage {
    line: usize,
    what: String,
}

/// The limits file of a backend.
pub(crate) struct LimitsFile {
    path: PathBuf,
    /// Why the last write failed, if it did.
    behind: Mutex<Option<String>>,
}

impl LimitsFile {
    /// Reads the limits and checks that the file can be written. A missing file has no limits.
    pub(crate) fn open(path: &Path) -> Result<(LimitsFile, NamespacedLimits), LimitsFileError> {
        // Replace the target of a symbolic link, not the link.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let limits = read(&path)?;
        let aside = aside(&path);
        let is_writable = create_private(&aside).and_then(|_| std::fs::remove_file(&aside));
        is_writable.map_err(|source| LimitsFileError::Write { path: path.clone(), source })?;
        Ok((LimitsFile { path, behind: Mutex::new(None) }, limits))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the limits to a temporary file, syncs it and renames it. After a crash either version is complete.
    pub(crate) fn write(&self, limits: &[(NamespaceName, Definition)]) -> Result<(), LimitsFileError> {
        let mut content = Content { version: VERSION, limits: Vec::new(), namespaces: Vec::new() };
        for of_one in limits.chunk_by(|(name, _), (next, _)| name == next) {
            let limits = of_one.iter().map(|(_, definition)| LimitDocument::of(definition)).collect();
            match of_one.first() {
                Some((name, _)) if name.is_default() => content.limits = limits,
                Some((name, _)) => {
                    content.namespaces.push(NamespaceContent { namespace: name.as_str(), limits });
                }
                None => {}
            }
        }
        let written = write_aside(&self.path, &content)
            .map_err(|source| LimitsFileError::Write { path: self.path.clone(), source });
        *self.behind.lock().unwrap_or_else(PoisonError::into_inner) = written.as_ref().err().map(ToString::to_string);
        written
    }

    /// Why the last write failed, if it did.
    pub(crate) fn behind(&self) -> Option<String> {
        self.behind.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Reads the limits of an existing file, for a backend that stores its limits elsewhere.
///
/// # Errors
/// When the file cannot be used.
pub fn read_limits(path: &Path) -> Result<NamespacedLimits, LimitsFileError> {
    if let Err(source) = std::fs::metadata(path) {
        return Err(LimitsFileError::Read { path: path.to_owned(), source });
    }
    read(path)
}

fn read(path: &Path) -> Result<NamespacedLimits, LimitsFileError> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(LimitsFileError::Read { path: path.to_owned(), source }),
    };
    if let Ok(VersionOnly { version: found }) = serde_json::from_slice(&bytes)
        && found > VERSION
    {
        return Err(LimitsFileError::Newer { path: path.to_owned(), found });
    }
    let damaged = |Damage { line, what }| LimitsFileError::Invalid { path: path.to_owned(), line, what };
    let text = std::str::from_utf8(&bytes).map_err(|error| {
        let line = lines(&bytes[..error.valid_up_to()]);
        damaged(Damage { line, what: "the text is not UTF-8".into() })
    })?;
    parse(text).map_err(damaged)
}

fn parse(text: &str) -> Result<NamespacedLimits, Damage> {
    if !text.trim_start().starts_with('{') && !text.trim().is_empty() {
        return Err(Damage { line: 1, what: "expected an object with the field limits".into() });
    }
    let frame: Frame<'_> =
        serde_json::from_str(text).map_err(|error| Damage { line: error.line(), what: without_place(&error) })?;
    if frame.version != VERSION {
        let what = format!("version: found {}, allowed is {VERSION}", frame.version);
        return Err(Damage { line: line_of(text, text, "version").unwrap_or(1), what });
    }
    let default =
        NamespaceName::new(NamespaceName::DEFAULT).map_err(|error| Damage { line: 1, what: error.to_string() })?;
    let mut lists = vec![(default, frame.limits)];
    for of_one in frame.namespaces {
        let name: Result<String, _> = serde_json::from_str(of_one.namespace.get());
        let name = name.map_err(|error| without_place(&error));
        let name = name.and_then(|name| NamespaceName::new(&name).map_err(|error| error.to_string()));
        let line = line_of(text, of_one.namespace.get(), "").unwrap_or(1);
        let name = name.map_err(|error| Damage { line, what: format!("namespace: {error}") })?;
        lists.push((name, of_one.limits));
    }
    let mut keys = BTreeSet::new();
    let mut limits = Vec::new();
    for (name, raw) in lists.iter().flat_map(|(name, list)| list.iter().map(move |raw| (name, *raw))) {
        let AnyDocument(limit) = serde_json::from_str(raw.get()).map_err(|error| {
            let what = without_place(&error);
            let field = what.split(':').next().unwrap_or_default();
            let start = line_of(text, raw.get(), "").unwrap_or(1);
            let line = line_of(text, raw.get(), field);
            Damage { line: line.unwrap_or(start.saturating_add(error.line()).saturating_sub(1)), what }
        })?;
        if !keys.insert((name.clone(), limit.key.clone())) {
            let line = line_of(text, raw.get(), "key").unwrap_or(1);
            return Err(Damage { line, what: format!("key: {} is defined twice", limit.key) });
        }
        limits.push((name.clone(), limit));
    }
    Ok(limits)
}

/// The message of a JSON error without its position, which counts from the start of a part.
fn without_place(error: &serde_json::Error) -> String {
    let message = error.to_string();
    message.rsplit_once(" at line ").map_or(message.clone(), |(what, _)| what.to_owned())
}

/// The line in `text` of a field of `part`, a slice of `text`. With an empty field name, the line where `part` starts.
fn line_of(text: &str, part: &str, field: &str) -> Option<usize> {
    let start = (part.as_ptr() as usize).checked_sub(text.as_ptr() as usize)?;
    let name = format!("\"{field}\"");
    // A field name is followed by a colon, unlike a string value.
    let is_field = |place: &usize| part[place.saturating_add(name.len())..].trim_start().starts_with(':');
    let inside = match field {
        "" => 0,
        _ => part.match_indices(&name).map(|(place, _)| place).find(is_field)?,
    };
    text.as_bytes().get(..start.saturating_add(inside)).map(lines)
}

/// The line number after these bytes.
fn lines(before: &[u8]) -> usize {
    before.iter().filter(|byte| **byte == b'\n').count().saturating_add(1)
}

fn aside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
}

fn write_aside(path: &Path, content: &Content<'_>) -> io::Result<()> {
    let aside = aside(path);
    let mut bytes = serde_json::to_vec_pretty(content)?;
    bytes.push(b'\n');
    let mut file = create_private(&aside)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    std::fs::rename(&aside, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<NamespacedLimits, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("limits.json");
        std::fs::write(&path, text).unwrap();
        let result = read(&path).map_err(|error| error.to_string());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "reading changes nothing");
        result
    }

    const RPM: &str = r#"{"key":"rpm","kind":"rolling","capacity":5,"window_seconds":60}"#;

    #[test]
    fn what_was_written_is_read_back_and_nothing_is_left_aside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("limits.json");
        assert_eq!(read(&path).unwrap(), []);
        let text = format!(r#"{{"limits":[{RPM}],"namespaces":[{{"namespace":"team","limits":[{RPM}]}}]}}"#);
        let limits = read_text(&text).unwrap();
        assert_eq!(limits.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["default", "team"]);
        let (file, none) = LimitsFile::open(&path).unwrap();
        assert_eq!(none, []);
        file.write(&limits).unwrap();
        assert_eq!(read(&path).unwrap(), limits);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_invalid_file_is_refused_with_its_line_and_field() {
        for (text, message) in [
            (
                "{\"limits\":[\n{\"key\":\"a\",\n\"kind\":\"rolling\",\n\"window_seconds\":0}\n]}",
                "line 4: window_seconds: found 0",
            ),
            (&format!("{{\"limits\":[{RPM},\n{RPM}\n]}}"), "line 2: key: rpm is defined twice"),
            ("{\"limits\":[\n{\"key\":\"a\",\"kind\":\"x\"}\n]}", "line 2: kind: found \"x\""),
            ("{\"limits\":[\n\n{\"kind\":\"rolling\"}\n]}", "line 3: key is required"),
            ("{\"limits\":[\n7\n]}", "line 2: invalid type: integer `7`, expected a limit, which is an object"),
            ("{\"limits\":[\n[\"a\",\"rolling\",1,60]]}", "line 2: invalid type: sequence"),
            ("[1,[]]", "line 1: expected an object with the field limits"),
            ("{\"version\":\"1\",\"limits\":[]}", "line 1: version: found \"1\", allowed is 1"),
            ("{\"limits\":[\n{\"key\":\"a\",\n\"kind\":\"rolling\",\n\"burst\":1}]}", "line 4: unknown field `burst`"),
            ("{\"limits\":[\n{\"key\":\"a\",\n\"key\":\"b\"}]}", "line 3: duplicate field `key`"),
            (
                "{\"limits\":[\n{\"key\":\"a\",\"unit\":\"capacity\",\n\"kind\":\"rolling\",\"window_seconds\":1,\n\"capacity\":0}]}",
                "line 4: capacity: found 0",
            ),
            ("{\"limits\":[", "line 1: EOF while parsing a list"),
            ("", "line 1: EOF while parsing a value"),
            ("{}", "line 1: missing field `limits`"),
            (
                "{\"limits\":[],\n\"extra\":1}",
                "line 2: unknown field `extra`, expected one of `version`, `limits`, `namespaces`",
            ),
            ("{\"limits\":[],\"namespaces\":[\n{\"namespace\":\"a b\",\"limits\":[]}]}", "line 2: namespace: "),
            (
                "{\"limits\":[],\"namespaces\":[{\"namespace\":\"a\",\n\"limits\":[{\"key\":\"k\",\"kind\":\"x\"}]}]}",
                "line 2: kind: found \"x\"",
            ),
            ("{\n\"version\":0,\"limits\":[]}", "line 2: version: found 0, allowed is 1"),
        ] {
            let error = read_text(text).unwrap_err();
            assert!(error.contains(message), "{text}: {error}");
            assert!(error.contains("limits.json"), "{error}");
        }
    }

    #[test]
    fn a_file_of_a_version_to_come_is_not_called_damaged() {
        let error = read_text("{\"version\":2,\"limits\":[],\"zones\":[]}").unwrap_err();
        assert!(error.contains("has version 2, this program reads up to 1"), "{error}");
    }

    #[test]
    fn bytes_that_are_no_text_are_found_in_their_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("limits.json");
        std::fs::write(&path, b"{\n\"limits\": \xff}").unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("line 2: the text is not UTF-8"), "{error}");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named_at_the_start() {
        let error = LimitsFile::open(Path::new("/proc/nowhere/limits.json")).err().unwrap().to_string();
        assert!(error.starts_with("cannot write the limits file /proc/nowhere/limits.json: "), "{error}");
    }

    #[cfg(unix)]
    /// A written file was readable by every user of the machine.
    #[test]
    fn a_file_that_is_written_is_its_owners() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("limits.json");
        std::fs::write(&path, "{\"limits\":[]}").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        LimitsFile::open(&path).unwrap().0.write(&[]).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
