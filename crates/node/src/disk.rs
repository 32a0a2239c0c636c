//! File system interface. All storage goes through it, so that tests can lose, tear and refuse writes.

use std::any::Any;
use std::fmt::Debug;
use std::fs::{self, File, TryLockError};
use std::future::Future;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use earmark_admission::{create_private_dir, private_file, restrict};

/// One folder. Paths are relative to it and use `/`.
pub trait Disk: Debug + Send + Sync + 'static {
    /// Opens a file for reading and writing; creates it if `create` is set.
    fn open(&self, path: &str, create: bool) -> io::Result<Arc<dyn DiskFile>>;

    /// Creates a folder and its parents.
    fn create_dir(&self, path: &str) -> io::Result<()>;

    /// File names of a folder, sorted.
    fn list(&self, path: &str) -> io::Result<Vec<String>>;

    /// Renames a file and replaces the target.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, path: &str) -> io::Result<()>;

    /// Syncs the directory entries of a folder.
    fn sync_dir(&self, path: &str) -> io::Result<()>;

    /// Creates a lock file and holds it until the returned value is dropped. `None` if another process holds it. The
    /// default is for disks that only one process can see.
    fn lock(&self, path: &str) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        let _ = path;
        Ok(Some(Box::new(())))
    }

    /// Runs blocking work away from the async worker threads.
    fn offload(&self, work: Box<dyn FnOnce() + Send>) -> Pin<Box<dyn Future<Output = ()> + Send>>;

    /// The path as shown to users.
    fn show(&self, path: &str) -> String;
}

/// An open file.
#[allow(clippy::len_without_is_empty, reason = "nobody asks whether a file is empty")]
pub trait DiskFile: Debug + Send + Sync {
    /// Fills the buffer from an offset.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file is shorter, or if the file system fails.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all bytes at an offset.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Syncs the file's contents.
    ///
    /// # Errors
    /// If the file system fails; writes since the last sync may then be lost.
    fn sync(&self) -> io::Result<()>;

    /// Truncates or extends the file.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// File length in bytes.
    fn len(&self) -> io::Result<u64>;
}

/// A folder of the real file system.
#[derive(Debug)]
pub struct RealDisk {
    root: PathBuf,
}

impl RealDisk {
    /// A folder that exists, or is created by the first lock.
    ///
    /// # Errors
    /// If the path is not a folder.
    pub fn new(root: &Path) -> io::Result<RealDisk> {
        match fs::metadata(root) {
            Ok(found) if !found.is_dir() => Err(io::ErrorKind::NotADirectory.into()),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(RealDisk { root: root.to_owned() }),
        }
    }

    /// Creates the folder and syncs its parents. Without that sync a crash could lose the whole folder.
    fn make(&self) -> io::Result<()> {
        let root = std::path::absolute(&self.root)?;
        let is_there = root.ancestors().position(Path::exists).unwrap_or(0);
        create_private_dir(&root)?;
        root.ancestors().skip(1).take(is_there).try_for_each(|above| File::open(above)?.sync_all())
    }
}

impl Disk for RealDisk {
    fn open(&self, path: &str, create: bool) -> io::Result<Arc<dyn DiskFile>> {
        let file = private_file().read(true).write(true).create(create).truncate(false).open(self.root.join(path))?;
        Ok(Arc::new(RealFile(file)))
    }

    fn create_dir(&self, path: &str) -> io::Result<()> {
        create_private_dir(&self.root.join(path))
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
        let file = private_file().write(true).create(true).truncate(false).open(self.root.join(path))?;
        match file.try_lock() {
            Ok(()) => {
                restrict(&self.root);
                Ok(Some(Box::new(file)))
            }
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn offload(&self, work: Box<dyn FnOnce() + Send>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let task = tokio::task::spawn_blocking(work);
        Box::pin(async move {
            // Work that panicked has dropped its reply channel, which its caller notices.
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
