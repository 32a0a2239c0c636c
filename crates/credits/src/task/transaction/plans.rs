//! The plans of accounts that a transaction sets, changes or removes.

use earmark_core::{AssetName, Operation};

use super::TransactionTask;
use crate::coin_selection::{PostingIds, Selection, first_plan_mark};
use crate::model::{AccountKey, AccountPlan, Plan, Posting, PostingState};
use crate::saga::{Engine, TaskError};
use crate::store::Change;
use crate::task::hold::need;

/// The change of the plan of one account.
pub(super) struct PlanChange {
    mark: Posting,
    asset: AssetName,
    after: AccountPlan,
}

impl TransactionTask {
    /// The changes of plans, or `None` if an account must be read again. A plan that is due issues first.
    pub(super) async fn plan_changes(&self, engine: &Engine) -> Result<Option<Vec<PlanChange>>, TaskError> {
        let mut changes = Vec::new();
        for (name, terms) in Operation::plan_changes(&self.request.operations) {
            let account = AccountKey { home: self.home.clone(), account: name.clone() };
            let Some((mark, state)) = engine.call(engine.store.plan_mark(account.clone())).await? else {
                let Some(terms) = terms else { continue };
                engine.write(vec![Change::Mark(Box::new(first_plan_mark(&account, &terms.asset)))]).await?;
                return Ok(None);
            };
            let expiry = engine.time.as_of().expiry;
            if state != PostingState::Active || mark.terms.is_expired(expiry) && engine.issue(account).await? {
                return Ok(None);
            }
            let before = mark.plan.as_deref().cloned().unwrap_or_default();
            if before.terms.as_ref() == terms {
                continue;
            }
            // A plan that is set again before its period has ended counts as a change, one that is set later as a new one.
            let is_new = before.terms.is_none() && before.last_grant().is_some_and(|grant| grant.is_expired(expiry));
            let issued_until = before.issued_until.filter(|_| !is_new);
            let asset = terms.map_or_else(|| mark.asset.clone(), |terms| terms.asset.clone());
            changes.push(PlanChange { mark, asset, after: AccountPlan { terms: terms.cloned(), issued_until } });
        }
        Ok(Some(changes))
    }
}

/// Adds changes of plans to a plan. Returns whether no other call of this process uses the marks.
pub(super) fn add_changes(
    engine: &Engine,
    ids: &mut PostingIds,
    changes: Vec<PlanChange>,
    (plan, selection): (&mut Plan, &mut Selection),
) -> bool {
    for PlanChange { mark, asset, after } in changes {
        match engine.slot_table.of(&mark.account).take(vec![mark.id]) {
            Some(taken) => selection.taken.push(taken),
            None => return false,
        }
        plan.outputs.push(ids.plan_mark(&mark, &asset, after));
        need(plan, &mark.account, false);
        plan.inputs.push(mark);
    }
    true
}
