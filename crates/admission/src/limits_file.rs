//! The limits file: the wanted limits, for a backend that keeps nothing else on disk.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use earmark_core::Definition;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::document::LimitDocument;

/// The version that is written, and the newest that is read.
const VERSION: u32 = 1;

/// Why the limits file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LimitsFileError {
    /// It cannot be read.
    #[error("cannot read the limits file {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It is not what it should be.
    #[error("the limits file {} is damaged in line {line}: {what}; correct it, nothing was overwritten", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        line: usize,
        /// Which field, and what is wrong with it.
        what: String,
    },
    /// It is of a version to come.
    #[error("the limits file {} has version {found}, this program reads up to {VERSION}: use a newer one", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// It cannot be written.
    #[error("cannot write the limits file {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// The file as it is written.
#[derive(Serialize)]
struct Content {
    version: u32,
    limits: Vec<LimitDocument>,
}

/// The file as it is read: first its frame, then each limit by itself, so that an error has its line.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Frame<'a> {
    #[serde(default = "current_version")]
    version: u32,
    #[serde(borrow)]
    limits: Vec<&'a RawValue>,
}

fn current_version() -> u32 {
    VERSION
}

/// The version of a file whose other fields may be unknown here.
#[derive(Deserialize)]
struct VersionOnly {
    version: u32,
}

/// What is wrong, and in which line.
struct Damage {
    line: usize,
    what: String,
}

/// Reads the wanted limits. A file that is not there yet holds none.
pub(crate) fn read(path: &Path) -> Result<Vec<Definition>, LimitsFileError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(LimitsFileError::Read { path: path.to_owned(), source }),
    };
    if let Ok(VersionOnly { version: found }) = serde_json::from_str(&text)
        && found > VERSION
    {
        return Err(LimitsFileError::Newer { path: path.to_owned(), found });
    }
    parse(&text).map_err(|Damage { line, what }| LimitsFileError::Damaged {
        path: path.to_owned(),
        line,
        what,
    })
}

fn parse(text: &str) -> Result<Vec<Definition>, Damage> {
    let frame: Frame<'_> = serde_json::from_str(text)
        .map_err(|error| Damage { line: error.line(), what: without_place(&error) })?;
    if frame.version != VERSION {
        let what = format!("version: found {}, allowed is {VERSION}", frame.version);
        return Err(Damage { line: line_of(text, text, "version"), what });
    }
    let mut keys = BTreeSet::new();
    let mut limits = Vec::new();
    for raw in frame.limits {
        let damage = |what: String| {
            let field = what.split(':').next().unwrap_or_default();
            Damage { line: line_of(text, raw.get(), field), what }
        };
        if !raw.get().starts_with('{') {
            return Err(damage(format!("limits: found {}, allowed are objects", raw.get())));
        }
        let limit: LimitDocument =
            serde_json::from_str(raw.get()).map_err(|error| damage(without_place(&error)))?;
        if !keys.insert(limit.key().clone()) {
            return Err(damage(format!("key: {} is there twice", limit.key())));
        }
        limits.push(limit.into_definition());
    }
    Ok(limits)
}

/// What a JSON error says, without the line that it counts from the start of a part.
fn without_place(error: &serde_json::Error) -> String {
    let message = error.to_string();
    message.rsplit_once(" at line ").map_or(message.clone(), |(what, _)| what.to_owned())
}

/// The line in `text` in which `part`, a piece of it, names `field`; the line in which it starts if it does
/// not.
fn line_of(text: &str, part: &str, field: &str) -> usize {
    let start = (part.as_ptr() as usize).saturating_sub(text.as_ptr() as usize);
    let inside = part.find(&format!("\"{field}\"")).unwrap_or(0);
    let before = text.get(..start.saturating_add(inside)).unwrap_or_default();
    before.matches('\n').count().saturating_add(1)
}

/// Writes the wanted limits: aside, synced, renamed. After a crash there is the old file or the new one.
pub(crate) fn write(path: &Path, limits: &[Definition]) -> Result<(), LimitsFileError> {
    let content = Content { version: VERSION, limits: limits.iter().map(LimitDocument::of).collect() };
    write_aside(path, &content).map_err(|source| LimitsFileError::Write { path: path.to_owned(), source })
}

fn write_aside(path: &Path, content: &Content) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let aside = path.with_file_name(name);
    let mut bytes = serde_json::to_vec_pretty(content)?;
    bytes.push(b'\n');
    let mut file = File::create(&aside)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    std::fs::rename(&aside, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Vec<Definition>, String> {
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
        let limits = read_text(&format!(r#"{{"limits":[{RPM}]}}"#)).unwrap();
        write(&path, &limits).unwrap();
        assert_eq!(read(&path).unwrap(), limits);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_file_is_refused_with_its_line_and_field() {
        for (text, message) in [
            (
                "{\"limits\":[\n{\"key\":\"a\",\n\"kind\":\"rolling\",\n\"window_seconds\":0}\n]}",
                "in line 4: window_seconds: found 0",
            ),
            (&format!("{{\"limits\":[{RPM},\n{RPM}\n]}}"), "in line 2: key: rpm is there twice"),
            ("{\"limits\":[\n{\"key\":\"a\",\"kind\":\"x\"}\n]}", "in line 2: kind: found \"x\""),
            ("{\"limits\":[\n\n{\"kind\":\"rolling\"}\n]}", "in line 3: key: found none"),
            ("{\"limits\":[\n7\n]}", "in line 2: limits: found 7, allowed are objects"),
            ("{\"limits\":[[\"a\",\"rolling\",1,60]]}", "in line 1: limits: found [\"a\""),
            ("{\"limits\":[", "in line 1: EOF while parsing a list"),
            ("", "in line 1: EOF while parsing a value"),
            ("{}", "in line 1: missing field `limits`"),
            (
                "{\"limits\":[],\n\"extra\":1}",
                "in line 2: unknown field `extra`, expected `version` or `limits`",
            ),
            ("{\n\"version\":0,\"limits\":[]}", "in line 2: version: found 0, allowed is 1"),
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
    fn a_file_that_cannot_be_written_is_named() {
        let error = write(Path::new("/proc/nowhere/limits.json"), &[]).unwrap_err().to_string();
        assert!(error.starts_with("cannot write the limits file /proc/nowhere/limits.json: "), "{error}");
    }
}
