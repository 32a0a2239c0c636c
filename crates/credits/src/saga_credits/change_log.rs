//! The change log: transactions of vaults and their actors.

use earmark_admission::{
    BackendError, ChangeCursor, ChangeEntry, ChangeKind, ChangePage, ChangePager, CreditCursor, summary,
};
use earmark_core::NamespaceName;

use super::{SagaCredits, backend_error};
use crate::saga::TaskError;
use crate::store::LoggedTransaction;

/// Transactions per read. Each may have 256 operations with a memo.
const CHUNK: usize = 100;
/// Reads per page. Transactions of other namespaces have to be skipped.
const CHUNKS_MAX: usize = 20;

impl SagaCredits {
    pub(super) async fn read_changes(
        &self,
        namespace: Option<NamespaceName>,
        after: CreditCursor,
        page_size: usize,
    ) -> Result<ChangePage, BackendError> {
        let engine = self.engine()?;
        let mut pager = ChangePager::new(None, page_size);
        let mut after = after;
        for _ in 0..CHUNKS_MAX {
            let read = engine.store.transactions(namespace.clone(), after, CHUNK);
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
            after = next;
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
            client: transaction.client,
            sequence: transaction.sequence,
            operations: transaction.operations.iter().map(summary).collect(),
        },
    }
}
