//! Backups of a node that runs.

use std::sync::Arc;

use super::{Node, NodeError};
use crate::backup::{Backup, write_out};
use crate::disk::Disk;
use crate::machine::offload;

impl Node {
    /// Writes everything that was acknowledged so far into an empty folder, as that of a new cluster with one node.
    /// Requests are served meanwhile; what they change is not in it.
    ///
    /// # Errors
    /// When the folder is in use or cannot be written, or this node cannot know what was acknowledged.
    pub async fn backup(&self, target: Arc<dyn Disk>) -> Result<Backup, NodeError> {
        self.keeper.reads.fresh().await.map_err(NodeError::Invalid)?;
        let (shelf, segment_bytes) = (Arc::clone(&self.proposer.shelf), self.journal_segment_bytes);
        let its_target = Arc::clone(&target);
        let written = offload(&*target, move || {
            let frozen = shelf.freeze();
            write_out(&shelf, frozen, &its_target, segment_bytes)
        });
        Ok(written.await?)
    }
}
