//! Returns a hold that timed out.

use earmark_core::{EntryPurpose, Overdraft};

use super::hold::need;
use super::{entry_gate, lease_key, or_itself};
use crate::coin_selection::{BalanceChange, PostingIds};
use crate::id::GateId;
use crate::model::{AccountChange, Entry, EntryBody, LeaseKey, Plan, Posting, VaultKey};
use crate::saga::{Draft, Engine, Proposal, Task, TaskError};
use crate::store::Survey;

/// Returns a held posting to its account.
pub(crate) struct ReleaseTask {
    posting: Posting,
    gate: GateId,
    lease: LeaseKey,
}

impl ReleaseTask {
    /// `None` if no lease holds the posting.
    pub(crate) fn new(posting: Posting) -> Option<ReleaseTask> {
        let hold = posting.hold.as_ref()?;
        let home: &VaultKey = &posting.account.home;
        let gate = entry_gate(home, EntryPurpose::Release(hold.lease, &hold.limit));
        let lease = lease_key(&home.namespace, hold.lease);
        Some(ReleaseTask { posting, gate, lease })
    }
}

impl Task for ReleaseTask {
    /// Whether this task returned it.
    type Answer = bool;

    fn key(&self) -> GateId {
        self.gate
    }

    async fn propose(&self, engine: &Engine, attempt: u32) -> Result<Proposal<bool>, TaskError> {
        if attempt > 1 {
            let held = engine.call(engine.store.held(self.lease.clone())).await?;
            if !held.iter().any(|(posting, _)| posting.id == self.posting.id) {
                return Ok(Proposal::Answer(false));
            }
        }
        let entries = engine.call(engine.store.lease(self.lease.clone())).await?;
        let terms = entries.iter().find_map(|stored| match &stored.entry.body {
            EntryBody::Hold { terms, .. }
                if Some(&terms.limit) == self.posting.hold.as_ref().map(|hold| &hold.limit) =>
            {
                (stored.entry.home == self.posting.account.home).then(|| terms.clone())
            }
            _ => None,
        });
        // Without an entry nothing was held. The audit reports the posting.
        let Some(terms) = terms else { return Ok(Proposal::Answer(false)) };
        let (account, asset, amount) = (self.posting.account.clone(), self.posting.asset.clone(), self.posting.amount);
        let change = BalanceChange {
            account: account.clone(),
            asset: asset.clone(),
            change: amount,
            overdraft: Overdraft::Deny,
            is_deposit: false,
        };
        let moves = [change];
        let (posting_sets, permits) = engine.posting_queries(&moves, attempt > 1);
        let found = engine.call(engine.store.survey(Survey { posting_sets, ..Survey::default() })).await?;
        let rid = engine.new_rid();
        let selected = engine.select_postings(&mut PostingIds::new(rid), &moves, &found.posting_sets).await?;
        let selection = match selected.or_propose(|_, _| Proposal::Answer(false)) {
            Ok(selection) => selection,
            Err(proposal) => return Ok(proposal),
        };
        let change = AccountChange { account: account.account.clone(), asset, amount, held: amount.saturating_neg() };
        let entry = Entry {
            home: account.home.clone(),
            at: engine.time.moment(),
            body: EntryBody::Release { terms, actor: or_itself(None) },
            changes: vec![change],
        };
        let mut plan = Plan {
            inputs: [vec![self.posting.clone()], selection.inputs].concat(),
            outputs: selection.outputs,
            entries: vec![entry],
            ..Plan::default()
        };
        need(&mut plan, &account, false);
        let (gate, lease) = (self.gate, Some(self.lease.clone()));
        Ok(Proposal::Commit(Box::new(Draft { gate, rid, lease, plan, taken: selection.taken, permits })))
    }

    async fn done(&self, _: &Engine, _: GateId, _: &Plan) -> Result<bool, TaskError> {
        Ok(true)
    }
}
