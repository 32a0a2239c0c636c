//! The sequence file of a writer.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use earmark_admission::{create_private, private_file, restrict};
use earmark_core::ClientId;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Unfinished;
use super::content::ContentHash;
use crate::answer::Scope;

const VERSION: u32 = 1;
/// Bytes of a sequence file, far more than a record takes. A larger file is not a sequence file.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// The steps of a write, in this order. A process may be killed between any two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
    /// Before the new record is written to a second file.
    Writing,
    /// The record is written, but not flushed.
    Written,
    /// The record is on disk in the second file.
    Flushed,
    /// The second file has replaced the first.
    Renamed,
    /// The directory is flushed, so the record is durable.
    Stored,
    /// Before the write is sent.
    Sending,
    /// The write has an answer.
    Answered,
    /// Before a fence is sent.
    SendingFence,
    /// The fence has an answer.
    AnsweredFence,
}

/// Why a sequence file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SequenceFileError {
    /// Another process has locked the file.
    #[error("{path}: in use by another process; only one writer may use it")]
    InUse {
        /// The lock file.
        path: PathBuf,
    },
    /// The file is damaged, or is not a sequence file.
    #[error(
        "{path}: {why}. Restore the file, or remove it: the writer then continues after the last sequence of the \
         server, and the outcome of an unfinished write is lost"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The defect.
        why: String,
    },
    /// The file belongs to another writer.
    #[error("{path}: it belongs to {found}, not to {wanted}")]
    OtherWriter {
        /// The file.
        path: PathBuf,
        /// Its owner.
        found: String,
        /// The writer that opened it.
        wanted: String,
    },
    /// A system call failed.
    #[error("{path}: {what}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The operation.
        what: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// The runtime stopped before the file was written.
    #[error("the runtime has stopped")]
    Stopped,
}

/// The content of a sequence file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// The last sequence number that is known to be committed.
    pub(super) committed: u64,
    /// The unfinished write.
    pub(super) unfinished: Option<Unfinished>,
    /// The number of the store in this process.
    pub(super) stamp: u64,
}

/// The JSON of a record.
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

/// A locked sequence file.
pub(super) struct SequenceFile {
    path: PathBuf,
    beside: PathBuf,
    scope: Scope,
    client_id: ClientId,
    /// The number of the latest store, whether it succeeded or not.
    stamp: u64,
    /// Holds the lock. It is a file of its own, because every store replaces the other one.
    _lock: File,
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

impl SequenceFile {
    /// Takes the lock and reads the record.
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
        let lock = private_file().create(true).truncate(false).write(true).open(&lock_path);
        let lock = lock.map_err(failed("open"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(SequenceFileError::InUse { path: lock_path }),
            Err(TryLockError::Error(source)) => return Err(failed("lock")(source)),
        }
        [&lock_path, &path].into_iter().for_each(|path| restrict(path));
        let beside = suffixed(&path, ".new");
        let (scope, client_id) = (scope.clone(), client_id.clone());
        let file = SequenceFile { path, beside, scope, client_id, stamp: 0, _lock: lock };
        let record = file.read()?;
        Ok((file, record))
    }

    fn read(&self) -> Result<Option<Record>, SequenceFileError> {
        let failed = |source| SequenceFileError::Io { path: self.path.clone(), what: "read", source };
        match fs::metadata(&self.path) {
            Ok(about) if about.len() > FILE_BYTES_MAX => Err(self.damaged("it is larger than 64 KiB")),
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
        let text = std::str::from_utf8(bytes).map_err(|_| self.damaged("it is not UTF-8"))?;
        let mut lines = text.lines();
        let (Some(line), Some(sum), None) = (lines.next(), lines.next(), lines.next()) else {
            return Err(self.damaged("it does not have two lines"));
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
            let content = ContentHash::parse(&unfinished.content)
                .ok_or_else(|| self.damaged("the hash of its content is malformed"))?;
            let UnfinishedDocument { sequence, is_fenced, .. } = unfinished;
            match committed.checked_add(1) == Some(sequence) {
                true => Ok(Unfinished { sequence, content, is_fenced }),
                false => Err(self.damaged("its sequence numbers are not consecutive")),
            }
        });
        Ok(Record { committed, unfinished: unfinished.transpose()?, stamp: 0 })
    }

    fn owner(&self) -> String {
        let vault = self.scope.vault.as_ref().map(|vault| vault.as_str());
        owner(self.scope.namespace.as_str(), vault, self.client_id.as_str())
    }

    /// Replaces the record, unless a later store came first.
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

    /// Writes a second file, flushes it, renames it and flushes the directory, so that a crash leaves the old record or the
    /// new one, never a part.
    fn replace(&self, text: &str, reached: &dyn Fn(Step)) -> Result<(), SequenceFileError> {
        let failed = |path: &Path, what| {
            let path = path.to_owned();
            move |source| SequenceFileError::Io { path, what, source }
        };
        reached(Step::Writing);
        let mut file = create_private(&self.beside).map_err(failed(&self.beside, "create"))?;
        file.write_all(text.as_bytes()).map_err(failed(&self.beside, "write"))?;
        reached(Step::Written);
        file.sync_all().map_err(failed(&self.beside, "flush"))?;
        reached(Step::Flushed);
        fs::rename(&self.beside, &self.path).map_err(failed(&self.path, "replace"))?;
        reached(Step::Renamed);
        let folder = match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let flushed = File::open(folder).and_then(|folder| folder.sync_all());
        flushed.map_err(failed(folder, "flush the directory"))?;
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
