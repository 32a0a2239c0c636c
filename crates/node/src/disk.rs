//! What the node asks of a file system. Everything it keeps goes through here, so that tests can lose, tear and
//! refuse what they like.

use std::any::Any;
use std::fmt::Debug;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::future::Future;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

/// One folder. Paths are relative to it, with `/` between their parts.
pub trait Disk: Debug + Send + Sync + 'static {
    /// Opens a file to read and write; makes it if it is not there and `create` says so.
    ///
    /// # Errors
    /// What the file system says.
    fn open(&self, path: &str, create: bool) -> io::Result<Arc<dyn DiskFile>>;

    /// Makes a folder and those above it, if they are not there.
    ///
    /// # Errors
    /// What the file system says.
    fn create_dir(&self, path: &str) -> io::Result<()>;

    /// The names in a folder, sorted.
    ///
    /// # Errors
    /// What the file system says.
    fn list(&self, path: &str) -> io::Result<Vec<String>>;

    /// Gives a file another name, in the place of what had it.
    ///
    /// # Errors
    /// What the file system says.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// What the file system says.
    fn remove(&self, path: &str) -> io::Result<()>;

    /// Waits until the names in a folder are on disk.
    ///
    /// # Errors
    /// What the file system says.
    fn sync_dir(&self, path: &str) -> io::Result<()>;

    /// Makes a file that only one process at a time holds, until it drops what this gives. `None` if another has it.
    /// A disk that no other process can see has nobody to keep out.
    ///
    /// # Errors
    /// What the file system says.
    fn lock(&self, path: &str) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        let _ = path;
        Ok(Some(Box::new(())))
    }

    /// Runs work that blocks, away from the threads that serve.
    fn offload(&self, work: Box<dyn FnOnce() + Send>) -> Pin<Box<dyn Future<Output = ()> + Send>>;

    /// The path as a person knows it.
    fn show(&self, path: &str) -> String;
}

/// An open file.
#[allow(clippy::len_without_is_empty, reason = "nobody asks whether a file is empty")]
pub trait DiskFile: Debug + Send + Sync {
    /// Reads exactly so many bytes from a place.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file is shorter; what the file system says.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all the bytes at a place.
    ///
    /// # Errors
    /// What the file system says.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Waits until what was written is on disk.
    ///
    /// # Errors
    /// What the file system says; what was written since the last time may then be lost.
    fn sync(&self) -> io::Result<()>;

    /// Makes the file so long.
    ///
    /// # Errors
    /// What the file system says.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// How long the file is.
    ///
    /// # Errors
    /// What the file system says.
    fn len(&self) -> io::Result<u64>;
}

/// A folder of the file system.
#[derive(Debug)]
pub struct RealDisk {
    root: PathBuf,
}

impl RealDisk {
    /// A folder that is there, or is made when the first thing is put into it.
    ///
    /// # Errors
    /// If there is something else in its place.
    pub fn new(root: &Path) -> io::Result<RealDisk> {
        match fs::metadata(root) {
            Ok(found) if !found.is_dir() => Err(io::ErrorKind::NotADirectory.into()),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(RealDisk { root: root.to_owned() }),
        }
    }

    /// Makes the folder, and waits until its name is on disk too: without it all that is in it would be lost.
    fn make(&self) -> io::Result<()> {
        let root = std::path::absolute(&self.root)?;
        let is_there = root.ancestors().position(Path::exists).unwrap_or(0);
        fs::create_dir_all(&root)?;
        root.ancestors().skip(1).take(is_there).try_for_each(|above| File::open(above)?.sync_all())
    }
}

impl Disk for RealDisk {
    fn open(&self, path: &str, create: bool) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(create)
            .truncate(false)
            .open(self.root.join(path))?;
        Ok(Arc::new(RealFile(file)))
    }

    fn create_dir(&self, path: &str) -> io::Result<()> {
        fs::create_dir_all(self.root.join(path))
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(self.root.join(path)) {
            Err(error) if path.is_empty() && error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut names = Vec::new();
        for entry in entries {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.root.join(from), self.root.join(to))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        fs::remove_file(self.root.join(path))
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        File::open(self.root.join(path))?.sync_all()
    }

    fn lock(&self, path: &str) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        let unmade = |error: io::Error| {
            io::Error::new(error.kind(), format!("its folder is not there and cannot be made: {error}"))
        };
        self.make().map_err(unmade)?;
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(self.root.join(path))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn offload(&self, work: Box<dyn FnOnce() + Send>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let task = tokio::task::spawn_blocking(work);
        Box::pin(async move {
            // Work that panicked has dropped whatever it was to answer with, and its caller sees that.
            let _ = task.await;
        })
    }

    fn show(&self, path: &str) -> String {
        self.root.join(path).display().to_string()
    }
}

#[derive(Debug)]
struct RealFile(File);

impl DiskFile for RealFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        self.0.metadata().map(|metadata| metadata.len())
    }
}
