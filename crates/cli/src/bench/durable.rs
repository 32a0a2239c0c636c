//! A node for the length of a run, in a folder of its own, and what its disk takes for one flush.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use earmark_admission::{Backend, LocalBook, LocalOptions};
use earmark_node::{Node, NodeOptions, RealDisk};

use crate::failure::Failure;

/// So many flushes tell what one takes.
const FLUSHES: usize = 500;
/// A slow disk is not kept busy for longer than this.
const FLUSHES_TIME: Duration = Duration::from_secs(2);
/// About what an entry with a few reserves takes.
const FLUSHED_BYTES: [u8; 512] = [0x5a; 512];

/// A folder that is gone with this.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    /// Makes a new one in `folder`, which is made too if it is not there.
    pub(super) fn make(folder: &Path) -> Result<Scratch, Failure> {
        let path = folder.join(format!("earmark-bench-{}", ulid::Ulid::generate()));
        let made = fs::create_dir_all(&path);
        made.map_err(|error| Failure::Usage(format!("--data: cannot make {}: {error}", path.display())))?;
        Ok(Scratch(path))
    }

    /// What one flush of a few bytes takes here: the median of many.
    pub(super) fn fsync_p50(&self) -> Result<Duration, Failure> {
        let measured = self.flushes();
        let mut taken = measured.map_err(|source| Failure::System { what: "flushing a file", source })?;
        taken.sort_unstable();
        Ok(taken.get(taken.len() / 2).copied().unwrap_or_default())
    }

    fn flushes(&self) -> io::Result<Vec<Duration>> {
        let mut file = File::create(self.0.join("flushed"))?;
        let start = Instant::now();
        let mut taken = Vec::with_capacity(FLUSHES);
        while taken.len() < FLUSHES && start.elapsed() < FLUSHES_TIME {
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
            eprintln!("earmark: {} is still there: {error}", self.0.display());
        }
    }
}

/// What is measured: a Book in memory, or a node.
pub(super) struct Subject {
    pub(super) backend: Arc<dyn Backend>,
    node: Option<Node>,
}

impl Subject {
    /// Opens one with room for so many reserves at once: a node if there is a folder for it.
    pub(super) async fn open(scratch: Option<&Scratch>, reserves: usize) -> Result<Subject, Failure> {
        let Some(Scratch(path)) = scratch else {
            let defaults = LocalOptions::default();
            let queue_max = defaults.queue_max.max(reserves);
            let book = LocalBook::open(LocalOptions { queue_max, ..defaults }).await?;
            return Ok(Subject { backend: Arc::new(book), node: None });
        };
        let data = path.join("data");
        let disk =
            RealDisk::new(&data).map_err(|source| Failure::System { what: "the data folder", source })?;
        let mut options = NodeOptions::new(Arc::new(disk));
        options.queue_max = options.queue_max.max(reserves);
        let node = Node::open(options).await?;
        Ok(Subject { backend: node.backend(), node: Some(node) })
    }

    /// Something that is not a node.
    pub(super) fn of(backend: Arc<dyn Backend>) -> Subject {
        Subject { backend, node: None }
    }

    /// Finishes what is under way. What stopped a node is an error.
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
    fn a_scratch_folder_tells_what_a_flush_takes_and_is_gone_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        let scratch = Scratch::make(&folder.path().join("new")).unwrap();
        assert!(scratch.fsync_p50().unwrap() > Duration::ZERO);
        let path = scratch.0.clone();
        assert!(path.exists());
        drop(scratch);
        assert!(!path.exists());
    }
}
