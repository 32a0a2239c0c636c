//! Online backups.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;

use earmark_admission::{BackupMade, BackupName, ClusterError, create_private_dir, restrict};

use super::{Node, NodeError};
use crate::backup::{Backup, write_out};
use crate::disk::{Disk, RealDisk};
use crate::fault::Fault;

impl Node {
    /// Writes everything acknowledged so far into an empty folder, as a new one-node cluster. Requests continue;
    /// their changes are not included.
    ///
    /// # Errors
    /// If the folder is in use or cannot be written, or the acknowledged state cannot be confirmed.
    pub async fn backup(&self, target: Arc<dyn Disk>) -> Result<Backup, NodeError> {
        self.host.reads.barrier().await.map_err(NodeError::Invalid)?;
        Ok(self.write_backup(target).await?)
    }

    async fn write_backup(&self, target: Arc<dyn Disk>) -> Result<Backup, Fault> {
        let (applied_state, segment_bytes) = (Arc::clone(&self.proposer.applied_state), self.journal_segment_bytes);
        let its_target = Arc::clone(&target);
        let written = target.run(move || {
            let frozen = applied_state.freeze();
            write_out(&applied_state, frozen, &its_target, segment_bytes)
        });
        written.await
    }

    /// Writes a named backup into the configured folder. A failed backup is removed, so that it does not fill the
    /// disk.
    pub(super) async fn back_up(&self, name: Option<BackupName>) -> Result<BackupMade, ClusterError> {
        let unavailable = |error: &dyn std::fmt::Display| ClusterError::Unavailable(error.to_string());
        let Some(backups) = self.backups.clone() else {
            return Err(ClusterError::Refused("this node has no folder for backups".into()));
        };
        let Ok(_one_at_a_time) = self.backing_up.try_lock() else {
            return Err(ClusterError::Unavailable("this node is writing another backup".into()));
        };
        self.host.reads.barrier().await.map_err(ClusterError::Unavailable)?;
        let name = name.unwrap_or_else(|| BackupName::of_time(self.proposer.clock.wall()));
        let path = backups.join(name.as_str());
        let shown = path.display().to_string();
        let claimed = blocking({
            let path = path.clone();
            move || claim(&backups, &path)
        });
        claimed.await.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                ClusterError::Refused(format!("{shown} exists already; choose another name"))
            }
            _ => unavailable(&format!("cannot make {shown}: {error}")),
        })?;
        let written = match RealDisk::new(&path) {
            Ok(disk) => self.write_backup(Arc::new(disk)).await.map_err(|fault| unavailable(&fault)),
            Err(error) => Err(unavailable(&error)),
        };
        match written {
            Ok(Backup { identity, index, journal }) => {
                let bytes = blocking(move || size(&path)).await.map_err(|error| unavailable(&error))?;
                let (cluster, journal_records) = (identity.cluster, journal.records);
                Ok(BackupMade { name, path: shown, bytes, index, journal_records, cluster })
            }
            Err(error) => {
                // A leftover is not a data folder and only blocks its name.
                _ = blocking(move || fs::remove_dir_all(path)).await;
                Err(error)
            }
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await?
}

/// Creates a folder that did not exist, and syncs its parents.
fn claim(backups: &Path, path: &Path) -> io::Result<()> {
    create_private_dir(backups)?;
    fs::create_dir(path)?;
    restrict(path);
    let above = std::path::absolute(backups)?;
    above.ancestors().take(2).try_for_each(|folder| File::open(folder)?.sync_all())
}

fn size(path: &Path) -> io::Result<u64> {
    let mut sum = 0_u64;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let len = if entry.file_type()?.is_dir() { size(&entry.path())? } else { entry.metadata()?.len() };
        sum = sum.saturating_add(len);
    }
    Ok(sum)
}
