//! Records the expiry of grants: what is free of an expired grant leaves its account and the total.

use std::collections::BTreeMap;

use earmark_core::{AssetName, EntryPurpose, GrantTerms};

use super::entry_gate;
use crate::id::{GateId, PostingId};
use crate::local_locks::TakenPostings;
use crate::model::{AccountChange, AccountKey, AssetKey, Entry, EntryBody, Expiry, Plan, Posting, TotalsChange};
use crate::saga::{Draft, Engine, Proposal, Task, TaskError};
use crate::store::{DueCursor, DueQuery};

/// Postings per plan. More are left to the next.
const EXPIRED_MAX: usize = 256;

/// Records the expiry of the grants of one account that are due.
///
/// Its gate is the first posting that is due, and it consumes all postings that it retires. So credit expires once,
/// however many processes try.
pub(crate) struct ExpireTask {
    account: AccountKey,
    gate: GateId,
}

impl ExpireTask {
    /// The task of an account, of which a posting is due.
    pub(crate) fn new(posting: &Posting) -> ExpireTask {
        ExpireTask { account: posting.account.clone(), gate: gate(posting) }
    }

    /// The grant that the plan of the account will carry over once it can issue. It does not expire before.
    async fn carried(&self, engine: &Engine) -> Result<Option<(AssetName, GrantTerms)>, TaskError> {
        let mark = engine.call(engine.store.plan_mark(self.account.clone())).await?;
        let Some(mark) = mark.map(|(mark, _)| mark) else { return Ok(None) };
        let grant = mark.plan.as_ref().and_then(|plan| plan.carried_grant(engine.time.as_of().expiry));
        Ok(grant.map(|grant| (mark.asset, grant)))
    }

    /// A plan that retires postings, with an entry for each grant.
    fn plan(&self, engine: &Engine, due: Vec<Posting>) -> Plan {
        let mut grants: BTreeMap<(AssetName, GrantTerms), i128> = BTreeMap::new();
        let mut assets: BTreeMap<AssetName, i128> = BTreeMap::new();
        for posting in &due {
            for sum in [
                grants.entry((posting.asset.clone(), posting.terms)).or_default(),
                assets.entry(posting.asset.clone()).or_default(),
            ] {
                *sum = sum.saturating_add(posting.amount);
            }
        }
        let (at, home, account) = (engine.time.moment(), &self.account.home, &self.account.account);
        let entry = |((asset, terms), amount): ((AssetName, GrantTerms), i128)| {
            let change = AccountChange {
                account: account.clone(),
                asset: asset.clone(),
                amount: amount.saturating_neg(),
                held: 0,
            };
            let body = EntryBody::Expire(Expiry { account: account.clone(), asset, amount, terms });
            Entry { home: home.clone(), at, body, changes: vec![change] }
        };
        let total = |(asset, expired): (AssetName, i128)| {
            let asset = AssetKey { home: home.clone(), asset };
            TotalsChange { asset, issued: 0, retired: 0, expired }
        };
        Plan {
            inputs: due,
            entries: grants.into_iter().map(entry).collect(),
            totals: assets.into_iter().map(total).collect(),
            ..Plan::default()
        }
    }
}

/// The gate of an expiry: that of the first posting.
fn gate(posting: &Posting) -> GateId {
    entry_gate(&posting.account.home, EntryPurpose::Expire(posting.id.0))
}

impl Task for ExpireTask {
    /// Whether this task recorded something.
    type Answer = bool;

    fn key(&self) -> GateId {
        self.gate
    }

    async fn propose(&self, engine: &Engine, _: u32) -> Result<Proposal<bool>, TaskError> {
        let account = Some(self.account.clone());
        let due = DueQuery { now: engine.time.as_of().expiry, account, after: DueCursor::default() };
        let mut due = engine.call(engine.store.expiring(due, EXPIRED_MAX)).await?;
        due.retain(|posting| posting.plan.is_none());
        if due.is_empty() {
            return Ok(Proposal::Answer(false));
        }
        if let Some(carried) = self.carried(engine).await? {
            due.retain(|posting| (&posting.asset, posting.terms) != (&carried.0, carried.1));
        }
        due.sort_unstable_by_key(|posting| posting.id);
        let Some(first) = due.first() else { return Ok(Proposal::Answer(false)) };
        let (gate, slots) = (gate(first), engine.slot_table.of(&self.account));
        let ids: Vec<PostingId> = due.iter().map(|posting| posting.id).collect();
        let Some(taken) = slots.take(ids) else { return Ok(Proposal::Wait(Some(slots))) };
        let taken: Vec<TakenPostings> = vec![taken];
        let plan = self.plan(engine, due);
        let draft = Draft { gate, rid: engine.new_rid(), lease: None, plan, taken, permits: Vec::new() };
        Ok(Proposal::Commit(Box::new(draft)))
    }

    async fn done(&self, _: &Engine, _: GateId, _: &Plan) -> Result<bool, TaskError> {
        Ok(true)
    }
}
