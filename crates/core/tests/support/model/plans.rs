//! Plans in the model: every period is walked.

use std::collections::BTreeMap;

use earmark_core::{
    AccountId, AccountStatus, AssetName, GRANTS_MAX, GrantTerms, Operation, PRIORITY_DEFAULT, Period, Plan, PlanInfo,
    UnixMs, VaultId,
};

use super::Model;
use super::calendar::period_end;

/// Due plans looked at per command.
const CLEAN: usize = 64;

#[derive(Clone, Debug)]
pub struct ModelPlan {
    /// `None` once it is removed.
    plan: Option<Plan>,
    /// The end of the last issued period.
    until: Option<UnixMs>,
    /// The time of the next look at it.
    look_at: UnixMs,
}

impl Model {
    pub fn plan_info(&self, id: AccountId) -> Option<PlanInfo> {
        let found = self.account(id).plan.as_ref()?;
        Some(PlanInfo { plan: found.plan.clone()?, next_at: found.until })
    }

    /// Changes plans as a committed transaction says. Of several changes of one plan the last counts.
    pub fn change_plans(&mut self, vault: VaultId, operations: &[Operation]) {
        let mut last = BTreeMap::new();
        for operation in operations {
            let _ = match operation {
                Operation::OpenAccount { account, plan: Some(plan), .. } => last.insert(account, Some(plan)),
                Operation::SetPlan { account, plan } => last.insert(account, plan.as_ref()),
                Operation::CloseAccount { account } => last.insert(account, None),
                _ => None,
            };
        }
        for (name, plan) in last {
            let id = self.find_account(vault, name).unwrap();
            for asset in self.vaults[vault.0 as usize].assets.clone() {
                self.apply_due(id, &asset.name);
            }
            let account = &mut self.accounts[id.0 as usize];
            let is_closed = account.standing == AccountStatus::Closed;
            let plan = plan.filter(|_| !is_closed).cloned();
            self.balances.extend(plan.iter().map(|plan| (id, plan.asset.clone())));
            match (&mut account.plan, plan) {
                (found, None) if is_closed => *found = None,
                (None, None) => {}
                (found @ Some(_), None) if found.as_ref().unwrap().until.is_none() => *found = None,
                (Some(found), plan @ None) => found.plan = plan,
                (found, Some(plan)) => {
                    let (until, look_at) =
                        found.as_ref().map_or((None, UnixMs::default()), |found| (found.until, found.look_at));
                    *found = Some(ModelPlan { plan: Some(plan), until, look_at });
                }
            }
            for asset in self.vaults[vault.0 as usize].assets.clone() {
                self.apply_due(id, &asset.name);
            }
        }
    }

    /// The expired grant that a plan carries over once it can issue.
    pub fn carried_terms(&self, id: AccountId, asset: &AssetName) -> Option<GrantTerms> {
        let found = self.account(id).plan.as_ref()?;
        let (plan, until) = (found.plan.as_ref()?, found.until?);
        let is_meant = plan.asset == *asset && plan.carry_over.max() > 0 && until <= self.expires_by(self.time());
        is_meant.then(|| GrantTerms::new(PRIORITY_DEFAULT, Some(until)))
    }

    /// Issues the current period of a plan.
    pub fn apply_plan(&mut self, id: AccountId, asset: &AssetName) {
        let now = self.time();
        let Some(found) = self.account(id).plan.clone() else { return };
        if self.is_expiry_waiting() || found.until.is_some_and(|until| until > now) {
            return;
        }
        let Some(plan) = found.plan else { return self.accounts[id.0 as usize].plan = None };
        if plan.asset != *asset {
            return;
        }
        let end_of = |time| period_end(plan.period, plan.utc_offset_minutes, time);
        // The rest of a period that new terms cut to less than half belongs to the next one.
        let half = match plan.period {
            Period::Hour => 30 * 60_000,
            Period::Day => 12 * 3_600_000,
            Period::Week => 84 * 3_600_000,
            Period::Month => 14 * 24 * 3_600_000,
        };
        let is_whole = |until: &UnixMs| end_of(*until).ms_since(*until) >= half;
        let start = found.until.map(|until| if is_whole(&until) { until } else { end_of(until) });
        let ends_at = end_of(start.map_or(now, |start| start.max(now)));
        let terms = GrantTerms::new(PRIORITY_DEFAULT, Some(ends_at));
        let is_new = !self.account(id).grants.contains_key(&(asset.clone(), terms));
        if is_new && self.kept_grants(id, asset) >= GRANTS_MAX {
            return self.accounts[id.0 as usize].plan.as_mut().unwrap().look_at = now.plus_ms(60_000);
        }
        let last = found.until.map(|until| GrantTerms::new(PRIORITY_DEFAULT, Some(until)));
        let free = last.map_or(0, |last| self.free_of(now, id, asset, last));
        let max = i128::from(plan.carry_over.max());
        let carried = free.min(max);
        // Every missed period is issued, and what exceeds the cap expires.
        let mut kept = carried;
        let mut missed = start.map(end_of);
        while let Some(end) = missed.filter(|end| *end < ends_at && kept < max) {
            kept = (kept + i128::from(plan.amount)).min(max);
            missed = Some(end_of(end));
        }
        let issued = kept - carried + i128::from(plan.amount);
        let state = self.accounts[id.0 as usize].plan.as_mut().unwrap();
        (state.until, state.look_at) = (Some(ends_at), ends_at);
        let vault = self.account(id).vault;
        let whole = self.amount(id, asset);
        let totals = self.vaults[vault.0 as usize].assets.iter_mut().find(|totals| totals.name == *asset).unwrap();
        let (Some(total), Some(_)) = (totals.issued.checked_add(issued), whole.checked_add(issued)) else { return };
        totals.issued = total;
        let grants = &mut self.accounts[id.0 as usize].grants;
        if let Some(last) = last.filter(|_| carried > 0) {
            *grants.get_mut(&(asset.clone(), last)).unwrap() -= carried;
        }
        *grants.entry((asset.clone(), terms)).or_default() += carried + issued;
        if is_new {
            self.queue.push((ends_at, id, asset.clone(), terms));
        }
    }

    /// Looks at the first due plans, in order.
    pub fn issue_due(&mut self) {
        for _ in 0..CLEAN {
            let now = self.time();
            let look_at = |id: &AccountId| self.account(*id).plan.as_ref().map(|plan| plan.look_at);
            let all = (0..).map(AccountId).take(self.accounts.len());
            let due = all.filter(|id| look_at(id).is_some_and(|at| at <= now));
            let Some(first) = due.min_by_key(|id| (look_at(id), *id)).filter(|_| !self.is_expiry_waiting()) else {
                return;
            };
            let plan = self.account(first).plan.as_ref().and_then(|plan| plan.plan.clone());
            match plan {
                Some(plan) => self.apply_due(first, &plan.asset),
                None => self.accounts[first.0 as usize].plan = None,
            }
        }
    }
}
