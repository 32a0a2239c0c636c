//! The change log: transactions of vaults and their actors.

use earmark_admission::{
    BackendError, ChangeCursor, ChangeEntry, ChangeKind, ChangePage, ChangePager, ChangeQuery, summary,
};

use super::{SagaCredits, backend_error};
use crate::saga::TaskError;
use crate::store::{LoggedTransaction, TransactionQuery};

/// Transactions per read. Each may have 256 operations with a memo.
const CHUNK: usize = 100;
/// Reads per page. Transactions of other namespaces have to be skipped.
const CHUNKS_MAX: usize = 20;

impl SagaCredits {
    pub(super) async fn read_changes(&self, query: ChangeQuery) -> Result<ChangePage, BackendError> {
        let engine = self.engine()?;
        let (namespace, actor) = (query.namespace.clone(), query.actor.clone());
        let mut wanted = TransactionQuery { namespace, actor, after: query.after.credit, max: CHUNK };
        let mut pager = ChangePager::new(query);
        for _ in 0..CHUNKS_MAX {
            let read = engine.store.transactions(wanted.clone());
            let chunk = engine.call(read).await.map_err(|error| backend_error(TaskError::Store(error)))?;
            for found in chunk.found {
                if !pager.add(change(found)) {
                    return Ok(pager.finish());
                }
            }
            let Some(next) = chunk.next else { return Ok(pager.finish()) };
            pager.pass(ChangeCursor::of_credit(next));
            if pager.is_full() {
                break;
            }
            wanted.after = next;
        }
        Ok(pager.cut())
    }
}

fn change(found: LoggedTransaction) -> ChangeEntry {
    let LoggedTransaction { place, home, number, at, transaction } = found;
    ChangeEntry {
        place: ChangeCursor::of_credit(place),
        at,
        actor: transaction.actor,
        namespace: home.namespace,
        vault: Some(home.vault),
        what: ChangeKind::Transaction {
            tx_id: transaction.tx_id,
            log_index: number,
            id: transaction.id,
            operations: transaction.operations.iter().map(summary).collect(),
            limits: Vec::new(),
        },
    }
}
