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
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use earmark_admission::{create_private_dir, private_file, restrict};

use crate::space::DiskSpace;

/// Pause between attempts of a write that found the disk full.
const FULL_RETRY: Duration = Duration::from_millis(200);

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

    /// The space of the file system; `None` where it is not known.
    fn space(&self) -> io::Result<Option<DiskSpace>> {
        Ok(None)
    }

    /// Ends the waits of writes that found the disk full. They fail then.
    fn stop_waiting(&self) {}

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
    patience: Arc<Patience>,
}

/// Whether writes wait while the disk is full.
#[derive(Debug, Default)]
struct Patience {
    /// They wait for space, instead of failing.
    waits: AtomicBool,
    /// Writes that wait now.
    waiting: AtomicUsize,
}

impl Patience {
    /// Repeats an attempt until it does not find the disk full. Each attempt must do the same.
    fn wait_for_space<T>(&self, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        let is_full =
            |error: &io::Error| matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        let first = attempt();
        if !first.as_ref().is_err_and(|error| is_full(error) && self.waits.load(Ordering::Relaxed)) {
            return first;
        }
        tracing::warn!("the data disk is full; writes wait until there is space");
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let last = loop {
            std::thread::sleep(FULL_RETRY);
            match attempt() {
                Err(error) if is_full(&error) && self.waits.load(Ordering::Relaxed) => {}
                last => break last,
            }
        };
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        last
    }
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
            _ => Ok(RealDisk { root: root.to_owned(), patience: Arc::default() }),
        }
    }

    /// Lets writes wait for space when the disk is full, instead of failing.
    #[must_use]
    pub fn waiting_for_space(self) -> RealDisk {
        self.patience.waits.store(true, Ordering::Relaxed);
        self
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
        let path = self.root.join(path);
        let open = || private_file().read(true).write(true).create(create).truncate(false).open(&path);
        let file = self.patience.wait_for_space(open)?;
        Ok(Arc::new(RealFile { file, patience: Arc::clone(&self.patience) }))
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

    fn space(&self) -> io::Result<Option<DiskSpace>> {
        let found = rustix::fs::statvfs(&self.root)?;
        let is_full = self.patience.waiting.load(Ordering::Relaxed) > 0;
        let free = if is_full { 0 } else { found.f_bavail.saturating_mul(found.f_frsize) };
        Ok(Some(DiskSpace { free, total: found.f_blocks.saturating_mul(found.f_frsize) }))
    }

    fn stop_waiting(&self) {
        self.patience.waits.store(false, Ordering::Relaxed);
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
struct RealFile {
    file: File,
    patience: Arc<Patience>,
}

impl DiskFile for RealFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.patience.wait_for_space(|| self.file.write_all_at(bytes, offset))
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        self.file.metadata().map(|metadata| metadata.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> io::Error {
        io::ErrorKind::StorageFull.into()
    }

    /// A full disk stopped the node.
    #[test]
    fn a_write_to_a_full_disk_waits_for_space() -> io::Result<()> {
        let patience = Patience { waits: AtomicBool::new(true), ..Patience::default() };
        let mut attempts = 0;
        let written = patience.wait_for_space(|| {
            attempts += 1;
            if attempts < 3 { Err(full()) } else { Ok(attempts) }
        });
        assert_eq!(written?, 3);
        assert_eq!(patience.waiting.load(Ordering::Relaxed), 0);
        let other = patience.wait_for_space(|| Err::<(), _>(io::ErrorKind::PermissionDenied.into()));
        assert_eq!(other.map_err(|error| error.kind()), Err(io::ErrorKind::PermissionDenied));
        Ok(())
    }

    #[test]
    fn a_stopping_node_does_not_wait_for_space() -> io::Result<()> {
        let disk = RealDisk::new(Path::new("/dev"))?.waiting_for_space();
        let file = disk.open("full", false)?;
        let write = std::thread::spawn(move || file.write_at(b"x", 0));
        while disk.patience.waiting.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(disk.space()?.map(|space| space.free), Some(0));
        disk.stop_waiting();
        let failed = write.join().map_err(|_| io::Error::other("the writer panicked"))?;
        assert_eq!(failed.map_err(|error| error.kind()), Err(io::ErrorKind::StorageFull));
        Ok(())
    }
}
