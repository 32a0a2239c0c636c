//! The log of changes: transactions of vaults, with who made them.

use earmark_admission::{
    BackendError, ChangeCursor, ChangeEntry, ChangeKind, ChangePage, ChangePager, CreditCursor, summary,
};
use earmark_core::NamespaceName;

use super::{SagaCredits, describe};
use crate::saga::Trouble;
use crate::store::PlacedTransaction;

/// So many transactions are asked for at a time. Each may have 256 operations with a memo.
const CHUNK: usize = 100;
/// So often at most for one page: those of other namespaces have to be passed.
const CHUNKS_MAX: usize = 20;

impl SagaCredits {
    pub(super) async fn read_changes(
        &self,
        namespace: Option<NamespaceName>,
        after: CreditCursor,
        page_size: usize,
    ) -> Result<ChangePage, BackendError> {
        let mut pager = ChangePager::new(None, page_size);
        let mut after = after;
        for _ in 0..CHUNKS_MAX {
            let read = self.engine.store.transactions(namespace.clone(), after, CHUNK);
            let chunk = self.engine.call(read).await.map_err(|error| describe(Trouble::Store(error)))?;
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

fn change(found: PlacedTransaction) -> ChangeEntry {
    let PlacedTransaction { place, home, number, at, transaction } = found;
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
