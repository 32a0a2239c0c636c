//! Plans: grants that come once per period.

use earmark_core::{
    CarryOver, GrantTerms, InvalidOperation, Kind, Operation, Overdraft, Period, Plan, PlanInfo, UnixMs, VaultName,
};

use super::Harness;
use super::credit_driver::{MAIN, account, credit, open, path, retire, usd, vault};
use super::driver::{Driver, namespace};
use super::grants::{grant, invalid};
use crate::credit_lists::{AccountQuery, EntryQuery};
use crate::writes::EntryKind;

const HOUR_MS: u64 = 3_600_000;

fn hourly(amount: u64, carry_over: CarryOver) -> Plan {
    Plan { asset: usd(), amount, period: Period::Hour, utc_offset_minutes: 0, carry_over }
}

fn open_with(name: &str, plan: Plan) -> Operation {
    Operation::OpenAccount { account: account(name), overdraft: Overdraft::Deny, plan: Some(plan) }
}

fn set(plan: Option<Plan>) -> Operation {
    Operation::SetPlan { account: account("acme"), plan }
}

fn close() -> Operation {
    Operation::CloseAccount { account: account("acme") }
}

impl<H: Harness> Driver<'_, H> {
    /// Opens `acme` with a plan and a credit limit `usd` on it. Returns the end of the first period.
    async fn plans(&self, plan: Plan) -> UnixMs {
        self.does(MAIN, vec![open_with("acme", plan.clone())]).await;
        self.try_put(credit("usd", VaultName::MAIN, "acme", 60), None).await.expect("a limit that can be put");
        let calendar = Kind::Calendar { period: plan.period, utc_offset_minutes: plan.utc_offset_minutes };
        calendar.period_end(self.now()).expect("a calendar limit")
    }

    /// A decision about the account, which applies what is due on it.
    async fn touch(&self) {
        self.does(MAIN, vec![grant("acme", 1, GrantTerms::new(0, None)), retire("acme", 1)]).await;
    }

    /// Waits until a time.
    async fn wait_until(&self, at: UnixMs) {
        self.0.advance_ms(at.ms_since(self.now())).await;
        self.touch().await;
    }

    async fn left(&self) -> i128 {
        self.usd_of(VaultName::MAIN, "acme").await
    }

    /// The issued and carried amounts of plans, and expired amounts as negative ones, after an entry. Entries of one
    /// time come in any order.
    async fn moved(&self, after: &mut u64) -> Vec<(i128, i128)> {
        let page = self.0.backend().entries(path(VaultName::MAIN, "acme"), EntryQuery::oldest_first(*after, 1_000));
        let page = page.await.expect("an account that exists");
        *after = page.entries.last().map_or(*after, |entry| entry.number);
        let moved = page.entries.iter().filter_map(|entry| match &entry.what {
            EntryKind::Plan { carried, .. } => Some((entry.changes[0].amount, *carried)),
            EntryKind::Expire(_) => Some((entry.changes[0].amount, 0)),
            _ => None,
        });
        let mut moved: Vec<(i128, i128)> = moved.collect();
        moved.sort_unstable_by(|a, b| b.cmp(a));
        moved
    }

    /// The plan that the list of accounts shows.
    async fn plan(&self) -> Option<PlanInfo> {
        let query = AccountQuery { prefix: Some(account("acme")), after: None, page_size: 1 };
        let page = self.0.backend().accounts(namespace(), vault(VaultName::MAIN), query).await;
        page.expect("a vault that exists").accounts[0].plan.clone()
    }
}

/// A plan issues its whole amount at once, and then each period once.
pub async fn a_plan_issues_once_per_period(harness: &impl Harness) {
    let driver = Driver(harness);
    let plan = hourly(100, CarryOver::None);
    let end = driver.plans(plan.clone()).await;
    let mut after = 0;
    assert_eq!((driver.moved(&mut after).await, driver.left().await), (vec![(100, 0)], 100));
    assert_eq!(driver.plan().await, Some(PlanInfo { plan, next_at: Some(end) }));
    driver.wait_until(UnixMs::new(end.get() - 1)).await;
    assert_eq!(driver.moved(&mut after).await, []);
    for hour in 0..3 {
        driver.wait_until(end.plus_ms(hour * HOUR_MS)).await;
        assert_eq!((driver.moved(&mut after).await, driver.left().await), (vec![(100, 0), (-100, 0)], 100));
        driver.wait_until(driver.now().plus_ms(1)).await;
        assert_eq!(driver.moved(&mut after).await, []);
    }
    // A reserve is a decision about the account too.
    driver.does(MAIN, vec![retire("acme", 100)]).await;
    harness.advance_ms(HOUR_MS).await;
    driver.admit(&[("usd", 100)]).await;
    assert_eq!(driver.moved(&mut after).await, [(100, 0)]);
    assert_eq!(driver.sums_of("acme").await.2, 300);
    driver.is_balanced().await;
}

/// Unused credit carries over up to the cap, and missed periods count as if they had been issued.
pub async fn a_plan_carries_unused_credit_over_up_to_its_cap(harness: &impl Harness) {
    let driver = Driver(harness);
    let end = driver.plans(hourly(100, CarryOver::Max(250))).await;
    driver.does(MAIN, vec![retire("acme", 70)]).await;
    let mut after = 0;
    assert_eq!(driver.moved(&mut after).await, [(100, 0)]);
    let at = |hours: u64| end.plus_ms(hours * HOUR_MS);
    for (hour, moved, has) in [
        (0, vec![(100, 30)], 130),
        (1, vec![(100, 130)], 230),
        (2, vec![(100, 230)], 330),
        (3, vec![(100, 250), (-80, 0)], 350),
    ] {
        driver.wait_until(at(hour)).await;
        assert_eq!((driver.moved(&mut after).await, driver.left().await), (moved, has), "{hour}");
    }
    driver.does(MAIN, vec![retire("acme", 340)]).await;
    // Two missed periods: 10 + 100 + 100, then the new one.
    driver.wait_until(at(6)).await;
    assert_eq!((driver.moved(&mut after).await, driver.left().await), (vec![(300, 10)], 310));
    driver.wait_until(at(100)).await;
    assert_eq!((driver.moved(&mut after).await, driver.left().await), (vec![(100, 250), (-60, 0)], 350));
    driver.is_balanced().await;
}

/// Credit that is held at the end of a period survives, and expires when it returns.
pub async fn held_credit_of_a_plan_expires_when_it_returns(harness: &impl Harness) {
    let driver = Driver(harness);
    let end = driver.plans(hourly(100, CarryOver::Max(1_000))).await;
    harness.advance_ms(end.ms_since(driver.now()) - 1_000).await;
    let lease = driver.admit(&[("usd", 60)]).await;
    let mut after = 0;
    assert_eq!(driver.moved(&mut after).await, [(100, 0)]);
    driver.wait_until(end).await;
    assert_eq!((driver.moved(&mut after).await, driver.left().await), (vec![(100, 40)], 140));
    driver.complete(lease, &[("usd", 50)]).await;
    driver.wait_until(end.plus_ms(1)).await;
    assert_eq!((driver.moved(&mut after).await, driver.left().await), (vec![(-10, 0)], 140));
    assert_eq!(driver.usd_of(VaultName::MAIN, "revenue").await, 50);
    driver.is_balanced().await;
}

/// New terms hold from the next period on, also after a removal. No period is issued twice.
pub async fn new_terms_of_a_plan_hold_from_the_next_period(harness: &impl Harness) {
    let driver = Driver(harness);
    let end = driver.plans(hourly(100, CarryOver::None)).await;
    let mut after = 0;
    driver.does(MAIN, vec![set(Some(hourly(7, CarryOver::None)))]).await;
    driver.does(MAIN, vec![set(None)]).await;
    assert_eq!((driver.plan().await, driver.moved(&mut after).await), (None, vec![(100, 0)]));
    driver.does(MAIN, vec![set(Some(hourly(9, CarryOver::None)))]).await;
    assert_eq!(driver.moved(&mut after).await, [], "one issue in one period");
    driver.wait_until(end).await;
    assert_eq!((driver.moved(&mut after).await, driver.left().await), (vec![(9, 0), (-100, 0)], 9));
    driver.does(MAIN, vec![set(None)]).await;
    assert_eq!(driver.left().await, 9, "the credit stays until its end");
    driver.wait_until(end.plus_ms(HOUR_MS)).await;
    assert_eq!((driver.moved(&mut after).await, driver.left().await), (vec![(-9, 0)], 0));
    driver.does(MAIN, vec![set(Some(hourly(4, CarryOver::None)))]).await;
    assert_eq!(driver.moved(&mut after).await, [(4, 0)], "a new plan issues at once");
    driver.does(MAIN, vec![Operation::FreezeAccount { account: account("acme") }]).await;
    harness.advance_ms(HOUR_MS).await;
    driver.does(MAIN, vec![Operation::UnfreezeAccount { account: account("acme") }]).await;
    driver.touch().await;
    assert_eq!(driver.moved(&mut after).await, [(4, 0), (-4, 0)], "a frozen account gets its credit");
    driver.does(MAIN, vec![retire("acme", 4), close()]).await;
    assert_eq!(driver.plan().await, None);
    harness.advance_ms(HOUR_MS).await;
    driver.does(MAIN, vec![open("other")]).await;
    assert_eq!(driver.moved(&mut after).await, []);
    driver.is_balanced().await;
}

/// A refused write sets no plan, and bad plans are refused by name.
pub async fn bad_plans_are_refused_by_name(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.plans(hourly(100, CarryOver::None)).await;
    let before = driver.plan().await;
    let other = || Some(hourly(3, CarryOver::None));
    assert_eq!(driver.is_refused(vec![set(other()), retire("acme", 101)]).await.code(), "INSUFFICIENT_CREDIT");
    assert_eq!(driver.plan().await, before);
    let plan = hourly(1, CarryOver::None);
    for (plan, why) in [
        (Plan { amount: 0, ..plan.clone() }, InvalidOperation::AmountZero),
        (Plan { carry_over: CarryOver::Max(0), ..plan.clone() }, InvalidOperation::CarryOverZero),
        (Plan { utc_offset_minutes: 841, ..plan }, InvalidOperation::PlanUtcOffset { found: 841 }),
    ] {
        assert_eq!(driver.is_refused(vec![set(Some(plan.clone()))]).await, invalid(0, why.clone()));
        assert_eq!(driver.is_refused(vec![open_with("other", plan)]).await, invalid(0, why));
    }
    driver.does(MAIN, vec![retire("acme", 100), close()]).await;
    assert_eq!(driver.is_refused(vec![set(other())]).await.code(), "ACCOUNT_CLOSED");
}
