//! Audit exports of a running node.

use std::io;
use std::sync::Arc;

use earmark_admission::{ClusterError, FileStream, SigningKeyInfo};
use earmark_core::UnixMs;
use tokio::sync::OwnedMutexGuard;

use super::Node;
use super::cluster::cluster_error;
use crate::export::{Export, ExportHeader};
use crate::identity::Identity;
use crate::published_keys::NodeKey;
use crate::signing_key::SigningKey;

impl Node {
    /// Starts an export of everything acknowledged so far. Requests continue; their records are not included.
    pub(super) async fn start_export(&self) -> Result<Box<dyn FileStream>, ClusterError> {
        // Not the turn of backups: a slow reader of an export must not keep them from being made.
        let turn = Arc::clone(&self.exporting).try_lock_owned();
        let turn = turn.map_err(|_| ClusterError::Unavailable("this node is making another export".into()))?;
        self.host.reads.barrier().await.map_err(ClusterError::Unavailable)?;
        let applied_state = Arc::clone(&self.proposer.applied_state);
        if applied_state.lock().book.external_parts().credit {
            let why = "the credit is kept in a database (--credits), so the journal does not have it; audit the \
                       database instead";
            return Err(ClusterError::Refused(why.to_owned()));
        }
        let key = self.published_key().await?;
        let (state, frozen) = applied_state.freeze();
        let header = ExportHeader {
            cluster: self.identity.cluster,
            node: self.identity.node,
            log_index: state.applied.map_or(0, |id| id.index),
            at_unix_ms: self.proposer.clock.wall().get(),
            journal: state.journal,
            public_key: key.public,
        };
        let records = applied_state.journal.read_stream(1, state.journal);
        Ok(Box::new(SentExport { export: Export::new(header, records, frozen, key), _turn: turn }))
    }

    /// The key of this node. It is published before its first signature, so that every signature has a published key.
    async fn published_key(&self) -> Result<Arc<SigningKey>, ClusterError> {
        let applied_state = Arc::clone(&self.proposer.applied_state);
        let Identity { cluster, node, .. } = self.identity;
        let its_state = Arc::clone(&applied_state);
        let key = applied_state.disk.run(move || SigningKey::open(&*its_state.disk, cluster));
        let key = key.await.map_err(|fault| ClusterError::Unavailable(fault.to_string()))?;
        self.members.publish_key(NodeKey { key: key.public, cluster, node }).await.map_err(cluster_error)?;
        Ok(key)
    }

    /// The published keys of all nodes, those of removed ones too.
    pub(super) async fn published_keys(&self) -> Result<Vec<SigningKeyInfo>, ClusterError> {
        self.host.reads.barrier().await.map_err(ClusterError::Unavailable)?;
        let roster = self.proposer.applied_state.roster();
        let info = |(NodeKey { key, cluster, node }, at): &(NodeKey, UnixMs)| SigningKeyInfo {
            public_key: key.to_string(),
            cluster: *cluster,
            node: *node,
            published_at: *at,
            is_member: *cluster == self.identity.cluster && roster.membership.membership().get_node(node).is_some(),
        };
        Ok(roster.keys.iter().map(info).collect())
    }
}

/// An export on its way to the caller. One exists at a time, because it keeps a copy of the state.
struct SentExport {
    export: Export,
    _turn: OwnedMutexGuard<()>,
}

impl FileStream for SentExport {
    fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        self.export.next()
    }
}
