//! The file that keeps the numbers of a writer.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use earmark_core::ClientId;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Unfinished;
use super::content::ContentHash;
use crate::ask::Scope;

const VERSION: u32 = 1;
/// Far more than a record takes; a larger file is something else.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// What a writer does between a call and its answer, in this order. A process may end between any two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
    /// The new record is to be written, in a file beside the old one.
    Writing,
    /// It is written, and perhaps not on disk.
    Written,
    /// It is on disk, under the name of the other file.
    Flushed,
    /// It has taken the place of the old one.
    Renamed,
    /// It is certain to be found there.
    Stored,
    /// The write is to be sent.
    Sending,
    /// The write was answered.
    Answered,
    /// A fence is to be sent.
    SendingFence,
    /// The fence was answered.
    AnsweredFence,
}

/// Why the file of a writer cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SequenceFileError {
    /// Another process has it.
    #[error("{path}: another process writes with it; only one may")]
    InUse {
        /// The file that is locked.
        path: PathBuf,
    },
    /// It is damaged, or none of ours.
    #[error(
        "{path}: {why}. If it cannot be restored, remove it: the writer then goes on behind what the server has, and \
         the write that was under way may have happened or not"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// It belongs to another writer.
    #[error("{path}: it belongs to {found}, and not to {wanted}")]
    OtherWriter {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        found: String,
        /// Whose it should be.
        wanted: String,
    },
    /// The system refused something.
    #[error("{path}: {what}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The runtime was stopped before the file was written.
    #[error("the runtime has stopped")]
    Stopped,
}

/// What the file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// The last number that is known to be committed.
    pub(super) committed: u64,
    /// The write that was under way.
    pub(super) unfinished: Option<Unfinished>,
    /// Later records have higher ones, within the life of a process.
    pub(super) stamp: u64,
}

/// The record as it is written.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    namespace: String,
    vault: Option<String>,
    client_id: String,
    committed: u64,
    unfinished: Option<UnfinishedDocument>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct UnfinishedDocument {
    sequence: u64,
    content: String,
    is_fenced: bool,
}

/// The file, which no other process has.
pub(super) struct SequenceFile {
    path: PathBuf,
    beside: PathBuf,
    scope: Scope,
    client_id: ClientId,
    /// The latest record that was to be in the file, whether it got there or not.
    stamp: u64,
    /// The lock ends with it. It is on a file of its own, for the other is replaced all the time.
    _lock: File,
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

impl SequenceFile {
    /// Takes the lock, and reads what there is.
    pub(super) fn open(
        path: PathBuf,
        scope: &Scope,
        client_id: &ClientId,
    ) -> Result<(SequenceFile, Option<Record>), SequenceFileError> {
        let lock_path = suffixed(&path, ".lock");
        let failed = |what| {
            let path = lock_path.clone();
            move |source| SequenceFileError::Io { path, what, source }
        };
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(&lock_path);
        let lock = lock.map_err(failed("opening it"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(SequenceFileError::InUse { path: lock_path }),
            Err(TryLockError::Error(source)) => return Err(failed("locking it")(source)),
        }
        let beside = suffixed(&path, ".new");
        let (scope, client_id) = (scope.clone(), client_id.clone());
        let file = SequenceFile { path, beside, scope, client_id, stamp: 0, _lock: lock };
        let record = file.read()?;
        Ok((file, record))
    }

    fn read(&self) -> Result<Option<Record>, SequenceFileError> {
        let failed = |source| SequenceFileError::Io { path: self.path.clone(), what: "reading it", source };
        match fs::metadata(&self.path) {
            Ok(about) if about.len() > FILE_BYTES_MAX => Err(self.damaged("it is too large")),
            Ok(_) => {
                let text = fs::read(&self.path).map_err(failed)?;
                self.parse(&text).map(Some)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    fn damaged(&self, why: impl ToString) -> SequenceFileError {
        SequenceFileError::Damaged { path: self.path.clone(), why: why.to_string() }
    }

    fn parse(&self, bytes: &[u8]) -> Result<Record, SequenceFileError> {
        let text = std::str::from_utf8(bytes).map_err(|_| self.damaged("it is no text"))?;
        let mut lines = text.lines();
        let (Some(line), Some(sum), None) = (lines.next(), lines.next(), lines.next()) else {
            return Err(self.damaged("it has not two lines"));
        };
        if sum != checksum(line) {
            return Err(self.damaged("its checksum does not match"));
        }
        let document: Document = serde_json::from_str(line).map_err(|error| self.damaged(error))?;
        if document.version != VERSION {
            let found = document.version;
            return Err(self.damaged(format!("found version {found}, this program knows {VERSION}")));
        }
        let Document { namespace, vault, client_id, committed, unfinished, .. } = document;
        let found = owner(&namespace, vault.as_deref(), &client_id);
        let wanted = self.owner();
        if found != wanted {
            return Err(SequenceFileError::OtherWriter { path: self.path.clone(), found, wanted });
        }
        let unfinished = unfinished.map(|unfinished| {
            let content = ContentHash::parse(&unfinished.content).ok_or_else(|| self.damaged("no hash"))?;
            let UnfinishedDocument { sequence, is_fenced, .. } = unfinished;
            match committed.checked_add(1) == Some(sequence) {
                true => Ok(Unfinished { sequence, content, is_fenced }),
                false => Err(self.damaged("its numbers do not follow each other")),
            }
        });
        Ok(Record { committed, unfinished: unfinished.transpose()?, stamp: 0 })
    }

    fn owner(&self) -> String {
        let vault = self.scope.vault.as_ref().map(|vault| vault.as_str());
        owner(self.scope.namespace.as_str(), vault, self.client_id.as_str())
    }

    /// Replaces what the file says, unless something later was written meanwhile.
    pub(super) fn store(&mut self, record: Record, reached: &dyn Fn(Step)) -> Result<(), SequenceFileError> {
        if record.stamp < self.stamp {
            return Ok(());
        }
        self.stamp = record.stamp;
        let unfinished = record.unfinished.map(|unfinished| UnfinishedDocument {
            sequence: unfinished.sequence,
            content: unfinished.content.to_string(),
            is_fenced: unfinished.is_fenced,
        });
        let document = Document {
            version: VERSION,
            namespace: self.scope.namespace.to_string(),
            vault: self.scope.vault.as_ref().map(ToString::to_string),
            client_id: self.client_id.to_string(),
            committed: record.committed,
            unfinished,
        };
        let line = serde_json::to_string(&document).map_err(|error| self.damaged(error))?;
        let text = format!("{line}\n{}\n", checksum(&line));
        self.replace(&text, reached)
    }

    /// Written aside, flushed, renamed, and the folder flushed: whatever happens in between, the old record or the
    /// new one is there as a whole.
    fn replace(&self, text: &str, reached: &dyn Fn(Step)) -> Result<(), SequenceFileError> {
        let failed = |path: &Path, what| {
            let path = path.to_owned();
            move |source| SequenceFileError::Io { path, what, source }
        };
        reached(Step::Writing);
        let mut file = File::create(&self.beside).map_err(failed(&self.beside, "creating it"))?;
        file.write_all(text.as_bytes()).map_err(failed(&self.beside, "writing it"))?;
        reached(Step::Written);
        file.sync_all().map_err(failed(&self.beside, "flushing it"))?;
        reached(Step::Flushed);
        fs::rename(&self.beside, &self.path).map_err(failed(&self.path, "replacing it"))?;
        reached(Step::Renamed);
        let folder = match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let flushed = File::open(folder).and_then(|folder| folder.sync_all());
        flushed.map_err(failed(folder, "flushing the folder"))?;
        reached(Step::Stored);
        Ok(())
    }
}

fn owner(namespace: &str, vault: Option<&str>, client_id: &str) -> String {
    match vault {
        Some(vault) => format!("client {client_id} in vault {vault} of namespace {namespace}"),
        None => format!("client {client_id} in namespace {namespace}"),
    }
}

fn checksum(line: &str) -> String {
    let digest: [u8; 32] = Sha256::digest(line.as_bytes()).into();
    digest.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

#[cfg(test)]
mod tests;
