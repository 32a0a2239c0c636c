//! Online backups.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use earmark_admission::{BackupMade, BackupName, ClusterError, FileStream, create_private_dir, restrict};
use tokio::sync::OwnedMutexGuard;

use super::{Node, NodeError};
use crate::archive::Packer;
use crate::backup::{Backup, write_out};
use crate::disk::{Disk, RealDisk};
use crate::fault::Fault;

/// The folder of an archive that is being sent, in that of the backups. No backup can have this name.
const SENDING: &str = ".sending";

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
        let _one_at_a_time = self.backup_turn()?;
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

    /// Writes a backup into a folder of its own and packs it. The folder is removed with the archive.
    pub(super) async fn archive_backup(&self) -> Result<Box<dyn FileStream>, ClusterError> {
        let unavailable = |error: &dyn std::fmt::Display| ClusterError::Unavailable(error.to_string());
        let Some(backups) = self.backups.clone() else {
            return Err(ClusterError::Refused("this node has no folder for backups".into()));
        };
        let turn = self.backup_turn()?;
        self.host.reads.barrier().await.map_err(ClusterError::Unavailable)?;
        let path = backups.join(SENDING);
        let claimed = blocking({
            let path = path.clone();
            move || {
                // A process that was killed leaves its folder.
                if path.exists() {
                    fs::remove_dir_all(&path)?;
                }
                claim(&backups, &path)
            }
        });
        claimed.await.map_err(|error| unavailable(&format!("cannot make {}: {error}", path.display())))?;
        let folder = SentFolder { path: path.clone(), _turn: turn };
        let disk = RealDisk::new(&path).map_err(|error| unavailable(&error))?;
        self.write_backup(Arc::new(disk)).await.map_err(|fault| unavailable(&fault))?;
        let packer = blocking(move || Packer::new(&path)).await.map_err(|error| unavailable(&error))?;
        Ok(Box::new(SentBackup { packer, _folder: folder }))
    }

    pub(super) fn backup_turn(&self) -> Result<OwnedMutexGuard<()>, ClusterError> {
        let turn = Arc::clone(&self.backing_up).try_lock_owned();
        turn.map_err(|_| ClusterError::Unavailable("this node is making another backup".into()))
    }
}

/// A backup on its way to the caller.
struct SentBackup {
    packer: Packer,
    _folder: SentFolder,
}

impl FileStream for SentBackup {
    fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        self.packer.next()
    }
}

/// The folder of an archive, removed on drop. One exists at a time.
struct SentFolder {
    path: PathBuf,
    _turn: OwnedMutexGuard<()>,
}

impl Drop for SentFolder {
    fn drop(&mut self) {
        // A leftover is removed before the next archive.
        _ = fs::remove_dir_all(&self.path);
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
