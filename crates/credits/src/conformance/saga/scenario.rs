//! Every kind of task, and the state that callers can see.

use earmark_admission::{BackendError, Clock, Credits, GrowAnswer, HoldAnswer, RenewAnswer, SettleAnswer, WriteAnswer};
use earmark_core::{
    GrantInfo, GrantTerms, IdempotencyKey, LeaseId, LimitKey, OnTimeout, Operation, Overage, UnixMs, VaultName, WriteId,
};

use super::process::{
    Fixture, HoldSpec, RenewSpec, START_MS, TestProcess, close, freeze, grant, hold_of, hourly, issue, lease, monthly,
    open, open_capped, open_overdrawn, open_with, renewal, retire, set_plan, transfer, unfreeze, usage,
};
use crate::model::{Account, AccountKey, AccountPlan, LeaseKey, PostingHold, UsageKey, UsageKind};
use crate::store::Survey;

/// The second vault.
const EU: &str = "eu";

/// A task of one commit or of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskKind {
    OpensAndIssues,
    Fences,
    Transfers,
    Retires,
    CoversADebt,
    SpendsAnOverdraft,
    SpendsUpToACap,
    Freezes,
    Unfreezes,
    Closes,
    Holds,
    HoldsInTwoVaults,
    IsRefused,
    SettlesLess,
    SettlesMore,
    SettlesWhatIsNotThere,
    SettlesWithoutDebt,
    SettlesLate,
    GivesBack,
    MarksAnUnknownLease,
    Sweeps,
    HoldsAndSettles,
    Grows,
    GrowsANewLimit,
    GrowsFromNothing,
    GrowsAgain,
    Returns,
    ReturnsEverything,
    Renews,
    RenewsWhatWasReturned,
    SettlesWhatHasGrown,
    PaysAtTheTimeout,
    OwesAtTheTimeout,
    PaysTheWholeHold,
    SettlesLateAfterUsage,
    IssuesAGrant,
    TransfersAGrant,
    HoldsGrants,
    GrowsFromGrants,
    SettlesGrants,
    SettlesBeyondGrants,
    ReturnsGrants,
    ExpiresGrants,
    SettlesAfterTheExpiry,
    SetsAPlan,
    OpensWithAPlan,
    ChangesAPlan,
    ClosesWithAPlan,
    IssuesAPlan,
    WritesByAKey,
}

pub(super) const TASK_KINDS: [TaskKind; 50] = [
    TaskKind::OpensAndIssues,
    TaskKind::Fences,
    TaskKind::Transfers,
    TaskKind::Retires,
    TaskKind::CoversADebt,
    TaskKind::SpendsAnOverdraft,
    TaskKind::SpendsUpToACap,
    TaskKind::Freezes,
    TaskKind::Unfreezes,
    TaskKind::Closes,
    TaskKind::Holds,
    TaskKind::HoldsInTwoVaults,
    TaskKind::IsRefused,
    TaskKind::SettlesLess,
    TaskKind::SettlesMore,
    TaskKind::SettlesWhatIsNotThere,
    TaskKind::SettlesWithoutDebt,
    TaskKind::SettlesLate,
    TaskKind::GivesBack,
    TaskKind::MarksAnUnknownLease,
    TaskKind::Sweeps,
    TaskKind::HoldsAndSettles,
    TaskKind::Grows,
    TaskKind::GrowsANewLimit,
    TaskKind::GrowsFromNothing,
    TaskKind::GrowsAgain,
    TaskKind::Returns,
    TaskKind::ReturnsEverything,
    TaskKind::Renews,
    TaskKind::RenewsWhatWasReturned,
    TaskKind::SettlesWhatHasGrown,
    TaskKind::PaysAtTheTimeout,
    TaskKind::OwesAtTheTimeout,
    TaskKind::PaysTheWholeHold,
    TaskKind::SettlesLateAfterUsage,
    TaskKind::IssuesAGrant,
    TaskKind::TransfersAGrant,
    TaskKind::HoldsGrants,
    TaskKind::GrowsFromGrants,
    TaskKind::SettlesGrants,
    TaskKind::SettlesBeyondGrants,
    TaskKind::ReturnsGrants,
    TaskKind::ExpiresGrants,
    TaskKind::SettlesAfterTheExpiry,
    TaskKind::SetsAPlan,
    TaskKind::OpensWithAPlan,
    TaskKind::ChangesAPlan,
    TaskKind::ClosesWithAPlan,
    TaskKind::IssuesAPlan,
    TaskKind::WritesByAKey,
];

/// The answer to a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Write(WriteAnswer),
    Hold(HoldAnswer),
    Grow(GrowAnswer),
    Returned,
    Renew(RenewAnswer),
    /// Only the first answer reports the amount paid.
    Settle,
    Swept,
}

/// A task for one lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scenario {
    pub(super) kind: TaskKind,
    lease: LeaseId,
}

/// The state visible from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct View {
    balances: Vec<Option<(i128, i128, i128)>>,
    grants: Vec<GrantInfo>,
    plans: Vec<Option<AccountPlan>>,
    entries: Vec<usize>,
    accounts: Vec<Option<Account>>,
    last: u64,
    /// The counters of the namespace, and the assets of both vaults.
    used: Vec<u64>,
    hold: String,
    /// Limit, amount, end, usage, kept amount and extension of each hold.
    held: Vec<(LimitKey, i128, PostingHold)>,
}

const SHORT: HoldSpec = HoldSpec { timeout_seconds: 30, ..hold_of("acme", 400) };
/// A hold that outlasts the tasks that sweep: they would sweep those of other tasks too.
const LONG: HoldSpec = hold_of("acme", 400);
/// The amount that an extension adds to it.
const MORE: HoldSpec = hold_of("acme", 100);
/// A limit that the lease did not hold, in another vault. It sorts first.
const OTHER: HoldSpec = HoldSpec { name: "a", vault: EU, ..hold_of("acme", 20) };

/// When grants expire, after the start.
const EXPIRES_AFTER_MS: u64 = 40_000;

/// Moves the ends to 100 seconds after the start, whenever it is made: a lease lives for a day at most.
const RENEWAL: RenewSpec<'static> = RenewSpec {
    reserved_at: UnixMs::new(START_MS + 100_000 - 24 * 60 * 60 * 1_000),
    timeout_seconds: Some(24 * 60 * 60),
    used: &[("acme", 250)],
    ..renewal(1)
};

async fn write_by_key(process: &TestProcess) -> Result<Reply, BackendError> {
    let key = IdempotencyKey::new("evt_1").expect("a valid key");
    process.try_write_by(WriteId::Key(key), vec![open("new"), issue("acme", 5)]).await.map(Reply::Write)
}

impl Scenario {
    pub(super) fn new(kind: TaskKind) -> Scenario {
        Scenario { kind, lease: lease() }
    }

    /// Two grants that are spent before plain credit, and one that is spent after it. Only the tasks about expiry reach
    /// theirs: a sweep would take those of other tasks too.
    fn granted(&self) -> Vec<Operation> {
        let is_short = matches!(self.kind, TaskKind::ExpiresGrants | TaskKind::SettlesAfterTheExpiry);
        let after_ms = if is_short { EXPIRES_AFTER_MS } else { 1_000 * EXPIRES_AFTER_MS };
        let expires_at = Some(UnixMs::new(START_MS + after_ms));
        [(100, 3, None), (250, 7, expires_at), (50, 200, expires_at)]
            .map(|(amount, priority, expires_at)| grant("acme", amount, GrantTerms::new(priority, expires_at)))
            .to_vec()
    }

    /// Creates the accounts and holds that the task needs.
    pub(super) async fn prepare(&self, fixture: &Fixture, process: &TestProcess) {
        if self.kind != TaskKind::OpensAndIssues {
            let overdrawn = [open_overdrawn("carl"), issue("carl", 100)];
            process
                .write_next([vec![open("acme"), open("bob"), issue("acme", 1_000)], overdrawn.to_vec()].concat())
                .await;
        }
        if self.prepare_grants(fixture, process).await || self.prepare_plans(fixture, process).await {
            return;
        }
        match self.kind {
            TaskKind::Unfreezes => drop(process.write_next(vec![freeze("acme")]).await),
            TaskKind::SpendsUpToACap => drop(process.write_next(vec![open_capped("new", 200)]).await),
            TaskKind::CoversADebt => {
                let lease = process.holds(&[hold_of("acme", 1_000)]).await;
                process.settle(lease, &[("acme", 1_200)]).await;
            }
            TaskKind::Grows | TaskKind::Renews => {
                assert_eq!(process.hold(self.lease, &[LONG]).await, HoldAnswer::Held);
            }
            TaskKind::GrowsANewLimit | TaskKind::GrowsAgain | TaskKind::RenewsWhatWasReturned => {
                process.write_in(EU, vec![open("acme"), issue("acme", 50)]).await;
                assert_eq!(process.hold(self.lease, &[LONG]).await, HoldAnswer::Held);
                if self.kind != TaskKind::GrowsANewLimit {
                    assert_eq!(process.grow(self.lease, 1, &[MORE, OTHER]).await, GrowAnswer::Held);
                    process.shrink(self.lease, 1, &[MORE, OTHER]).await;
                }
            }
            TaskKind::Returns | TaskKind::SettlesWhatHasGrown => {
                process.write_in(EU, vec![open("acme"), issue("acme", 50)]).await;
                assert_eq!(process.hold(self.lease, &[LONG]).await, HoldAnswer::Held);
                assert_eq!(process.grow(self.lease, 1, &[MORE, OTHER]).await, GrowAnswer::Held);
            }
            TaskKind::ReturnsEverything => {
                assert_eq!(process.grow(self.lease, 1, &[MORE]).await, GrowAnswer::Held);
            }
            TaskKind::PaysAtTheTimeout | TaskKind::SettlesLateAfterUsage | TaskKind::OwesAtTheTimeout => {
                let used = if self.kind == TaskKind::OwesAtTheTimeout { 1_100 } else { 250 };
                assert_eq!(process.hold(self.lease, &[SHORT]).await, HoldAnswer::Held);
                process.renew(self.lease, usage(1, &[("acme", used)])).await;
                fixture.clock.advance_ms(30_000);
            }
            TaskKind::PaysTheWholeHold => {
                let hold = HoldSpec { on_timeout: OnTimeout::Charge, ..SHORT };
                assert_eq!(process.hold(self.lease, &[hold]).await, HoldAnswer::Held);
                fixture.clock.advance_ms(30_000);
            }
            TaskKind::HoldsInTwoVaults => process.write_in(EU, vec![open("acme"), issue("acme", 50)]).await,
            TaskKind::SettlesLess | TaskKind::SettlesMore | TaskKind::SettlesWhatIsNotThere | TaskKind::GivesBack => {
                assert_eq!(process.hold(self.lease, &[SHORT]).await, HoldAnswer::Held);
            }
            TaskKind::SettlesWithoutDebt => {
                let hold = HoldSpec { overage: Overage::Deny, ..SHORT };
                assert_eq!(process.hold(self.lease, &[hold]).await, HoldAnswer::Held);
            }
            TaskKind::SettlesLate | TaskKind::Sweeps => {
                assert_eq!(process.hold(self.lease, &[SHORT]).await, HoldAnswer::Held);
                fixture.clock.advance_ms(30_000);
            }
            // The others need the accounts alone.
            _ => {}
        }
    }

    /// Creates what a task about grants needs; returns whether it is one.
    async fn prepare_grants(&self, fixture: &Fixture, process: &TestProcess) -> bool {
        let is_held = match self.kind {
            TaskKind::IssuesAGrant => return true,
            TaskKind::TransfersAGrant | TaskKind::HoldsGrants | TaskKind::ExpiresGrants => false,
            TaskKind::GrowsFromGrants
            | TaskKind::SettlesGrants
            | TaskKind::SettlesBeyondGrants
            | TaskKind::ReturnsGrants
            | TaskKind::SettlesAfterTheExpiry => true,
            _ => return false,
        };
        process.write_next(self.granted()).await;
        if is_held {
            assert_eq!(process.hold(self.lease, &[LONG]).await, HoldAnswer::Held);
        }
        if matches!(self.kind, TaskKind::ExpiresGrants | TaskKind::SettlesAfterTheExpiry) {
            fixture.clock.advance_ms(EXPIRES_AFTER_MS);
        }
        if self.kind == TaskKind::SettlesAfterTheExpiry {
            // Free credit expires before the task.
            process.maintain().await;
        }
        true
    }

    /// Creates what a task about plans needs; returns whether it is one.
    async fn prepare_plans(&self, fixture: &Fixture, process: &TestProcess) -> bool {
        match self.kind {
            TaskKind::SetsAPlan | TaskKind::OpensWithAPlan => {}
            TaskKind::ChangesAPlan => drop(process.write_next(vec![set_plan("acme", monthly(100))]).await),
            TaskKind::ClosesWithAPlan => drop(process.write_next(vec![open_with("new", monthly(100))]).await),
            TaskKind::IssuesAPlan => {
                process.write_next(vec![set_plan("acme", hourly())]).await;
                process.write_next(vec![retire("acme", 30)]).await;
                fixture.clock.advance_ms(EXPIRES_AFTER_MS);
            }
            _ => return false,
        }
        true
    }

    /// Runs a task that writes about a plan. The sweep finishes what a process left.
    async fn write_plans(&self, process: &TestProcess) -> Result<Reply, BackendError> {
        let (sequence, operations) = match self.kind {
            TaskKind::SetsAPlan => (2, vec![set_plan("acme", monthly(100))]),
            TaskKind::OpensWithAPlan => (2, vec![open_with("new", monthly(100))]),
            TaskKind::ChangesAPlan => (3, vec![set_plan("acme", monthly(7))]),
            _ => (3, vec![retire("new", 100), close("new")]),
        };
        let reply = process.try_write(sequence, operations).await?;
        process.credits.maintain().await.map_err(BackendError::Failed)?;
        Ok(Reply::Write(reply))
    }

    /// Runs or repeats the task.
    pub(super) async fn act(&self, process: &TestProcess) -> Result<Reply, BackendError> {
        let write = async |sequence, operations| process.try_write(sequence, operations).await.map(Reply::Write);
        let hold = async |parts: &[HoldSpec]| process.try_hold(self.lease, parts).await.map(Reply::Hold);
        let grow = async |parts: &[HoldSpec]| process.try_grow(self.lease, 1, parts).await.map(Reply::Grow);
        let settle = async |actuals: &[(&str, u64)], is_release| {
            let reply = process.try_settle(self.lease, actuals, is_release).await;
            reply.map(|_: SettleAnswer| Reply::Settle)
        };
        let sweep = async |reply| process.credits.maintain().await.map_err(BackendError::Failed).map(|()| reply);
        match self.kind {
            TaskKind::OpensAndIssues => write(1, vec![open("acme"), open("bob"), issue("acme", 1_000)]).await,
            TaskKind::Fences => write(2, vec![]).await,
            TaskKind::Transfers => write(2, vec![transfer("acme", "bob", 300)]).await,
            TaskKind::WritesByAKey => write_by_key(process).await,
            TaskKind::Retires => write(2, vec![retire("acme", 1_000)]).await,
            TaskKind::CoversADebt => write(2, vec![issue("acme", 500)]).await,
            TaskKind::SpendsAnOverdraft => write(2, vec![transfer("carl", "bob", 250)]).await,
            TaskKind::SpendsUpToACap => write(3, vec![transfer("new", "bob", 200)]).await,
            TaskKind::Freezes => write(2, vec![freeze("acme"), issue("acme", 1)]).await,
            TaskKind::Unfreezes => write(3, vec![unfreeze("acme"), transfer("acme", "bob", 1)]).await,
            TaskKind::Closes => write(2, vec![transfer("acme", "bob", 1_000), close("acme"), open("new")]).await,
            TaskKind::Holds => hold(&[hold_of("acme", 400)]).await,
            TaskKind::HoldsInTwoVaults => {
                let elsewhere = HoldSpec { name: "there", vault: EU, ..hold_of("acme", 20) };
                hold(&[hold_of("acme", 100), elsewhere, hold_of("carl", 300)]).await
            }
            TaskKind::IsRefused => hold(&[hold_of("bob", 1), hold_of("acme", 100)]).await,
            TaskKind::SettlesLess | TaskKind::SettlesGrants => settle(&[("acme", 150)], false).await,
            TaskKind::SettlesMore => settle(&[("acme", 700)], false).await,
            TaskKind::SettlesWhatIsNotThere | TaskKind::SettlesWithoutDebt => settle(&[("acme", 1_500)], false).await,
            TaskKind::SettlesLate => settle(&[], false).await,
            TaskKind::Grows | TaskKind::GrowsFromNothing | TaskKind::GrowsFromGrants => grow(&[MORE]).await,
            TaskKind::GrowsANewLimit => grow(&[OTHER]).await,
            TaskKind::GrowsAgain => grow(&[MORE, OTHER]).await,
            TaskKind::Returns => process.try_shrink(self.lease, 1, &[MORE, OTHER]).await.map(|()| Reply::Returned),
            TaskKind::ReturnsEverything => process.try_shrink(self.lease, 1, &[MORE]).await.map(|()| Reply::Returned),
            TaskKind::Renews => process.try_renew(self.lease, RENEWAL).await.map(Reply::Renew),
            TaskKind::RenewsWhatWasReturned => {
                let parts = &[MORE, OTHER];
                process.try_renew(self.lease, RenewSpec { parts, ..RENEWAL }).await.map(Reply::Renew)
            }
            TaskKind::SettlesWhatHasGrown => settle(&[("acme", 450)], false).await,
            TaskKind::SettlesLateAfterUsage => settle(&[("acme", 300)], false).await,
            TaskKind::GivesBack | TaskKind::ReturnsGrants => settle(&[], true).await,
            TaskKind::MarksAnUnknownLease => settle(&[("acme", 1)], false).await,
            // The process that settles also made the hold, and remembers it.
            TaskKind::HoldsAndSettles => {
                process.try_hold(self.lease, &[LONG]).await?;
                settle(&[("acme", 150)], false).await
            }
            TaskKind::IssuesAGrant => {
                write(2, vec![grant("acme", 500, GrantTerms::new(3, None)), transfer("acme", "bob", 600)]).await
            }
            TaskKind::TransfersAGrant => write(3, vec![transfer("acme", "bob", 500), retire("acme", 20)]).await,
            TaskKind::HoldsGrants => hold(&[LONG]).await,
            TaskKind::SettlesBeyondGrants => settle(&[("acme", 1_500)], false).await,
            // The sweep finishes what a process left.
            TaskKind::SettlesAfterTheExpiry => {
                settle(&[("acme", 150)], false).await?;
                sweep(Reply::Settle).await
            }
            TaskKind::SetsAPlan | TaskKind::OpensWithAPlan | TaskKind::ChangesAPlan | TaskKind::ClosesWithAPlan => {
                self.write_plans(process).await
            }
            TaskKind::IssuesAPlan
            | TaskKind::ExpiresGrants
            | TaskKind::Sweeps
            | TaskKind::PaysAtTheTimeout
            | TaskKind::OwesAtTheTimeout
            | TaskKind::PaysTheWholeHold => sweep(Reply::Swept).await,
        }
    }

    /// Runs the first of two commits.
    pub(super) async fn half(&self, fixture: &Fixture, process: &TestProcess) -> Result<(), BackendError> {
        match self.kind {
            // For a process that starts while the clocks differ nothing expires.
            TaskKind::SettlesAfterTheExpiry => {
                let wall_ms = fixture.clock.now().wall.get();
                fixture.clock.set_wall(wall_ms + 3_600_000);
                let settled = fixture.process().await.try_settle(self.lease, &[("acme", 150)], false).await;
                fixture.clock.set_wall(wall_ms);
                settled.map(drop)
            }
            TaskKind::SetsAPlan | TaskKind::OpensWithAPlan => {
                let operation = match self.kind {
                    TaskKind::SetsAPlan => set_plan("acme", monthly(100)),
                    _ => open_with("new", monthly(100)),
                };
                let wall_ms = fixture.clock.now().wall.get();
                fixture.clock.set_wall(wall_ms + 3_600_000);
                let written = fixture.process().await.try_write(2, vec![operation]).await;
                fixture.clock.set_wall(wall_ms);
                written.map(drop)
            }
            TaskKind::SettlesLate | TaskKind::SettlesLateAfterUsage => {
                process.credits.maintain().await.map_err(BackendError::Failed)
            }
            TaskKind::RenewsWhatWasReturned => process.try_grow(self.lease, 1, &[MORE, OTHER]).await.map(drop),
            TaskKind::HoldsAndSettles => process.try_hold(self.lease, &[LONG]).await.map(drop),
            _ => Ok(()),
        }
    }

    /// Whether a retry gets the first answer again.
    pub(super) fn is_same_reply(&self, first: &Reply, again: &Reply) -> bool {
        first == again
    }

    /// Reads the visible state.
    pub(super) async fn view(&self, fixture: &Fixture, process: &TestProcess) -> View {
        let main = ["acme", "bob", "carl", "new", "revenue"].map(|name| (VaultName::MAIN, name));
        let all = [main.as_slice(), &[(EU, "acme"), (EU, "revenue")]].concat();
        let (mut balances, mut grants, mut entries) = (Vec::new(), Vec::new(), Vec::new());
        for (home, name) in &all {
            // A missing account has none.
            grants.extend(process.credits.grants(process.path(home, name)).await.unwrap_or_default());
            balances.push(process.balance_in(home, name).await);
            entries.push(process.history(home, name).await);
        }
        // Callers cannot see whether the row of `revenue` exists.
        let keys = main[..4].iter().map(|(_, name)| fixture.account(name));
        let survey = Survey { accounts: keys.collect::<Vec<AccountKey>>(), ..Survey::default() };
        let accounts = fixture.store.survey(survey).await.expect("a store that answers").accounts;
        let mut plans = Vec::new();
        for key in main[..4].iter().map(|(_, name)| fixture.account(name)) {
            let mark = fixture.store.plan_mark(key).await.expect("a store that answers");
            // Callers cannot see a mark that never had a plan.
            let plan = mark.and_then(|(mark, _)| mark.plan).filter(|plan| **plan != AccountPlan::default());
            plans.push(plan.map(|plan| *plan));
        }
        let last = process.last().await;
        let kinds = [UsageKind::Accounts, UsageKind::Clients, UsageKind::IdempotencyKeys];
        let mut counters = kinds.map(|kind| UsageKey::of(&fixture.namespace, kind)).to_vec();
        let assets = UsageKey::of(&fixture.namespace, UsageKind::Assets);
        counters
            .extend([VaultName::MAIN, EU].map(|name| UsageKey { vault: VaultName::new(name).ok(), ..assets.clone() }));
        let used = fixture.store.usage(counters).await.expect("a store that answers");
        let hold = format!("{:?}", { process.credits.holds(fixture.namespace.clone(), self.lease, Vec::new()).await });
        let key = LeaseKey { namespace: fixture.namespace.clone(), lease: self.lease };
        let held = fixture.store.held(key).await.expect("a store that answers");
        let held = held.into_iter().filter_map(|(posting, _)| {
            // Every attempt has its own time, and so its own end.
            let hold = PostingHold { lease: LeaseId::default(), ..posting.hold? };
            let ends_at = if hold.extension == 0 { UnixMs::default() } else { hold.ends_at };
            Some((hold.limit.clone(), posting.amount, PostingHold { ends_at, ..hold }))
        });
        let mut held: Vec<_> = held.collect();
        held.sort_by(|a, b| a.0.cmp(&b.0));
        View { balances, grants, plans, entries, accounts, last, used, hold, held }
    }
}
