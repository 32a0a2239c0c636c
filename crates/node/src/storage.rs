//! Files of the data folder. Errors name the file; all formats share one file header and one record framing.

pub(crate) mod frame;
pub(crate) mod header;

use std::fmt::Display;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::disk::{Disk, DiskFile};
use crate::fault::{Fault, Operation};

/// An open file whose errors name it.
#[derive(Clone, Debug)]
pub(crate) struct StoredFile {
    file: Arc<dyn DiskFile>,
    path: String,
}

impl StoredFile {
    fn check<T>(&self, operation: Operation, result: io::Result<T>) -> Result<T, Fault> {
        result.map_err(|source| Fault::Io { operation, path: self.path.clone(), source })
    }

    /// The path as shown to users.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn len(&self) -> Result<u64, Fault> {
        self.check(Operation::Read, self.file.len())
    }

    /// Fills the buffer from an offset.
    pub(crate) fn read_into(&self, buffer: &mut [u8], offset: u64) -> Result<(), Fault> {
        self.check(Operation::Read, self.file.read_at(buffer, offset))
    }

    /// Reads up to `most` bytes at an offset; fewer at the end of the file.
    pub(crate) fn read(&self, offset: u64, most: usize) -> Result<Bytes, Fault> {
        let len = self.len()?.saturating_sub(offset).min(most as u64);
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(most)];
        self.read_into(&mut bytes, offset)?;
        Ok(bytes.into())
    }

    pub(crate) fn write(&self, bytes: &[u8], offset: u64) -> Result<(), Fault> {
        self.check(Operation::Write, self.file.write_at(bytes, offset))
    }

    pub(crate) fn sync(&self) -> Result<(), Fault> {
        self.check(Operation::Sync, self.file.sync())
    }

    pub(crate) fn set_len(&self, len: u64) -> Result<(), Fault> {
        self.check(Operation::Shorten, self.file.set_len(len))
    }

    pub(crate) fn damaged(&self, offset: u64, found: impl Display) -> Fault {
        Fault::Damaged { path: self.path.clone(), offset, found: found.to_string() }
    }
}

impl<'a> dyn Disk + 'a {
    /// Runs blocking work away from the async worker threads and returns its result.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        let (sender, receiver) = oneshot::channel();
        self.offload(Box::new(move || _ = sender.send(work()))).await;
        receiver.await.map_err(|_| Fault::Interrupted)?
    }

    pub(crate) fn check<T>(&self, operation: Operation, path: &str, result: io::Result<T>) -> Result<T, Fault> {
        result.map_err(|source| Fault::Io { operation, path: self.show(path), source })
    }

    pub(crate) fn open_file(&self, path: &str) -> Result<StoredFile, Fault> {
        match self.open(path, false) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Fault::Missing { path: self.show(path) }),
            other => Ok(StoredFile { file: self.check(Operation::Open, path, other)?, path: self.show(path) }),
        }
    }

    /// Creates an empty file, or empties an existing one.
    pub(crate) fn create_file(&self, path: &str) -> Result<StoredFile, Fault> {
        let file = self.check(Operation::Create, path, self.open(path, true))?;
        let file = StoredFile { file, path: self.show(path) };
        file.set_len(0)?;
        Ok(file)
    }

    /// Renames an open file. The caller syncs the folder.
    pub(crate) fn rename_file(&self, file: &mut StoredFile, from: &str, to: &str) -> Result<(), Fault> {
        self.check(Operation::Rename, from, self.rename(from, to))?;
        file.path = self.show(to);
        Ok(())
    }

    pub(crate) fn remove_file(&self, path: &str) -> Result<(), Fault> {
        self.check(Operation::Remove, path, self.remove(path))
    }

    pub(crate) fn make_folder(&self, path: &str) -> Result<(), Fault> {
        self.check(Operation::Create, path, self.create_dir(path))
    }

    pub(crate) fn list_folder(&self, path: &str) -> Result<Vec<String>, Fault> {
        self.check(Operation::List, path, self.list(path))
    }

    pub(crate) fn sync_folder(&self, path: &str) -> Result<(), Fault> {
        self.check(Operation::Sync, path, self.sync_dir(path))
    }
}
