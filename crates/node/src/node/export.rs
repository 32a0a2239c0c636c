//! Audit exports of a running node.

use std::io;
use std::sync::Arc;

use earmark_admission::{ClusterError, FileStream};
use tokio::sync::OwnedMutexGuard;

use super::Node;
use crate::export::{Export, ExportHeader};
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
        let cluster = self.identity.cluster;
        let its_state = Arc::clone(&applied_state);
        let key = applied_state.disk.run(move || SigningKey::open(&*its_state.disk, cluster));
        let key = key.await.map_err(|fault| ClusterError::Unavailable(fault.to_string()))?;
        let (state, frozen) = applied_state.freeze();
        let header = ExportHeader {
            cluster,
            node: self.identity.node,
            log_index: state.applied.map_or(0, |id| id.index),
            at_unix_ms: self.proposer.clock.wall().get(),
            journal: state.journal,
            public_key: key.public,
        };
        let records = applied_state.journal.read_stream(1, state.journal);
        Ok(Box::new(SentExport { export: Export::new(header, records, frozen, key), _turn: turn }))
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
