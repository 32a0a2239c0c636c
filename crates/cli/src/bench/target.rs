//! The backend under test, its temporary folder, and the fsync time of its disk.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use earmark_admission::{Backend, LocalBook, LocalOptions};
use earmark_node::{Node, NodeOptions, RealDisk};

use crate::failure::Failure;
use crate::output;

/// Number of fsyncs of which the median is reported.
const FLUSHES: usize = 500;
/// Bytes per fsync, about the size of a log entry with a few reserves.
const FLUSHED_BYTES: [u8; 512] = [0x5a; 512];

/// A temporary folder, removed on drop.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    /// Creates a new subfolder of `folder`, which is created too if it is missing.
    pub(super) fn make(folder: &Path) -> Result<Scratch, Failure> {
        let path = folder.join(format!("earmark-bench-{}", ulid::Ulid::generate()));
        let made = fs::create_dir_all(&path);
        made.map_err(|error| Failure::Usage(format!("--data: cannot create {}: {error}", path.display())))?;
        Ok(Scratch(path))
    }

    /// The median time of one fsync, measured for at most `time_max`.
    pub(super) fn fsync_p50(&self, time_max: Duration) -> Result<Duration, Failure> {
        let measured = self.flushes(time_max);
        let mut taken = measured.map_err(|source| Failure::System { what: "flushing a file", source })?;
        taken.sort_unstable();
        Ok(taken.get(taken.len() / 2).copied().unwrap_or_default())
    }

    fn flushes(&self, time_max: Duration) -> io::Result<Vec<Duration>> {
        let mut file = File::create(self.0.join("flushed"))?;
        let start = Instant::now();
        let mut taken = Vec::with_capacity(FLUSHES);
        while taken.len() < FLUSHES && start.elapsed() < time_max {
            file.write_all(&FLUSHED_BYTES)?;
            let flush = Instant::now();
            file.sync_data()?;
            taken.push(flush.elapsed());
        }
        Ok(taken)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            output::complain(&format!("earmark: cannot remove {}: {error}", self.0.display()));
        }
    }
}

/// The backend under test: a Book in memory, a node, or TigerBeetle.
pub(super) struct Target {
    pub(super) backend: Arc<dyn Backend>,
    node: Option<Node>,
}

impl Target {
    /// Opens a node if there is a folder for it, else a Book in memory. The queue has room for `reserves`.
    pub(super) async fn open(scratch: Option<&Scratch>, reserves: usize) -> Result<Target, Failure> {
        let Some(Scratch(path)) = scratch else {
            let defaults = LocalOptions::default();
            let queue_max = defaults.queue_max.max(reserves);
            let book = LocalBook::open(LocalOptions { queue_max, ..defaults }).await?;
            return Ok(Target { backend: Arc::new(book), node: None });
        };
        let data = path.join("data");
        let disk = RealDisk::new(&data).map_err(|source| Failure::System { what: "the data folder", source })?;
        let mut options = NodeOptions::new(Arc::new(disk));
        options.queue_max = options.queue_max.max(reserves);
        let node = Node::open(options).await?;
        Ok(Target { backend: node.backend(), node: Some(node) })
    }

    /// A target that is not a node.
    pub(super) fn of(backend: Arc<dyn Backend>) -> Target {
        Target { backend, node: None }
    }

    /// Finishes open requests. Fails if the node has stopped with an error.
    pub(super) async fn shut_down(&self) -> Result<(), Failure> {
        let Some(node) = &self.node else {
            self.backend.shut_down().await;
            return Ok(());
        };
        node.shut_down().await;
        node.failure().get().map_or(Ok(()), |message| Err(Failure::NodeStopped(message.to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_folder_measures_fsync_and_is_removed_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        let scratch = Scratch::make(&folder.path().join("new")).unwrap();
        assert!(scratch.fsync_p50(Duration::from_millis(50)).unwrap() > Duration::ZERO);
        let path = scratch.0.clone();
        assert!(path.exists());
        drop(scratch);
        assert!(!path.exists());
    }
}
