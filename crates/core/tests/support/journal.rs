//! The balances that follow from the journal.

use std::collections::BTreeMap;

use earmark_core::{
    AccountId, AssetId, Charge, Definition, HoldEntry, JournalRecord, LeaseId, LimitKey, Moment, NamespaceId,
    SettleEntry, SettleReason,
};

#[derive(Default)]
pub struct Journal {
    sums: BTreeMap<(AccountId, AssetId), i128>,
    /// Holds without a recorded end.
    open: BTreeMap<(NamespaceId, LeaseId, LimitKey), HoldEntry>,
    /// Settlements recorded in the last step.
    pub settled: Vec<SettleEntry>,
    /// The definition of each limit before its first change in the last transaction.
    pub replaced: BTreeMap<LimitKey, Option<Definition>>,
    pub transactions: usize,
    pub releases: usize,
}

impl Journal {
    /// Adds the records of one step; fails on a contradiction.
    pub fn add(&mut self, records: Vec<JournalRecord>) -> Result<(), String> {
        self.settled.clear();
        for record in records {
            let what = format!("{record:?} after {:?}", self.settled);
            match record {
                JournalRecord::Transaction(written) => {
                    self.transactions += 1;
                    self.replaced.clear();
                    for change in written.limit_changes() {
                        self.replaced.entry(change.key.clone()).or_insert_with(|| change.old.cloned());
                    }
                    for change in written.changes {
                        self.change(change.account, change.asset, change.amount);
                    }
                }
                JournalRecord::Hold(hold) => {
                    self.change(hold.account, hold.asset, -i128::from(hold.amount));
                    let is_growth = hold.extension > 0;
                    let hold = HoldEntry { extension: 0, ..hold };
                    match self.open.get_mut(&key(&hold)) {
                        None => drop(self.open.insert(key(&hold), hold)),
                        Some(open) if is_growth && open.account == hold.account => open.amount += hold.amount,
                        Some(_) => return Err(format!("one hold twice: {what}")),
                    }
                }
                JournalRecord::Release(hold) => {
                    self.releases += 1;
                    self.close(&hold).map_err(|why| format!("{why}: {what}"))?;
                    self.change(hold.account, hold.asset, hold.amount.into());
                }
                JournalRecord::Expire(expire) => self.change(expire.account, expire.asset, -expire.amount),
                JournalRecord::Plan(plan) => self.change(plan.account, plan.asset, plan.amount),
                JournalRecord::Key(_)
                | JournalRecord::Limit(_)
                | JournalRecord::Template(_)
                | JournalRecord::Pause(_)
                | JournalRecord::Quotas(_)
                | JournalRecord::Policy(_) => {
                    return Err(format!("a change that no script made: {what}"));
                }
                JournalRecord::Settle(settle) => {
                    let is_open = self.open.contains_key(&key(&settle.hold));
                    if is_open != (settle.held > 0) {
                        return Err(format!("what was held is not what was written down: {what}"));
                    }
                    if is_open {
                        self.close(&settle.hold).map_err(|why| format!("{why}: {what}"))?;
                    }
                    let hold = settle.hold.clone();
                    let returned = i128::from(settle.held) - i128::from(settle.paid);
                    self.change(hold.account, hold.asset, returned);
                    self.change(settle.revenue, hold.asset, settle.paid.into());
                    self.settled.push(settle);
                }
            }
        }
        Ok(())
    }

    fn close(&mut self, hold: &HoldEntry) -> Result<(), &'static str> {
        let opened = self.open.remove(&key(hold)).ok_or("no such hold")?;
        if (HoldEntry { at: hold.at, ..opened }) != *hold || opened.at.log > hold.at.log {
            return Err("another hold than was made");
        }
        Ok(())
    }

    fn change(&mut self, account: AccountId, asset: AssetId, amount: i128) {
        let sum = self.sums.entry((account, asset)).or_default();
        // Balances at the ends of the range add up in any order.
        *sum = sum.wrapping_add(amount);
    }

    /// Balance of an account by the journal, held credit included.
    pub fn amount(&self, account: AccountId, asset: AssetId) -> i128 {
        let held = self.open.values().filter(|hold| hold.account == account && hold.asset == asset);
        let sum = self.sums.get(&(account, asset)).copied().unwrap_or(0);
        held.fold(sum, |sum, hold| sum.wrapping_add(hold.amount.into()))
    }

    /// Number of holds without a recorded end.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// Whether the settlements of the last step match the charges of the outcome, and those of timeouts. Zero costs are
    /// not recorded.
    pub fn says(&self, at: Moment, charges: &[Charge], timeouts: &[Charge]) -> bool {
        let is_said = |charges: &[Charge], is_timeout: bool| {
            let told = charges.iter().filter(|charge| charge.cost > 0);
            let told = told.map(|c| (at, c.cost, c.paid, c.debt, c.uncollected));
            let settled = self.settled.iter().filter(|s| (s.reason == SettleReason::Timeout) == is_timeout);
            settled.map(|s| (s.hold.at, s.paid + s.uncollected, s.paid, s.debt, s.uncollected)).eq(told)
        };
        is_said(charges, false) && is_said(timeouts, true)
    }
}

fn key(hold: &HoldEntry) -> (NamespaceId, LeaseId, LimitKey) {
    (hold.namespace, hold.lease, hold.limit.clone())
}
