//! Every kind of task, and the state that callers can see.

use earmark_admission::{BackendError, HoldAnswer, SettleAnswer, WriteAnswer};
use earmark_core::{LeaseId, Overage, VaultName};

use super::process::{
    Fixture, HoldSpec, TestProcess, close, freeze, hold_of, issue, lease, open, open_overdrawn, retire, transfer,
    unfreeze,
};
use crate::model::{Account, AccountKey};
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
}

pub(super) const TASK_KINDS: [TaskKind; 21] = [
    TaskKind::OpensAndIssues,
    TaskKind::Fences,
    TaskKind::Transfers,
    TaskKind::Retires,
    TaskKind::CoversADebt,
    TaskKind::SpendsAnOverdraft,
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
];

/// The answer to a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Write(WriteAnswer),
    Hold(HoldAnswer),
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
    entries: Vec<usize>,
    accounts: Vec<Option<Account>>,
    last: u64,
    hold: String,
}

const SHORT: HoldSpec = HoldSpec { timeout_seconds: 30, ..hold_of("acme", 400) };

impl Scenario {
    pub(super) fn new(kind: TaskKind) -> Scenario {
        Scenario { kind, lease: lease() }
    }

    /// Creates the accounts and holds that the task needs.
    pub(super) async fn prepare(&self, fixture: &Fixture, process: &TestProcess) {
        if self.kind != TaskKind::OpensAndIssues {
            let overdrawn = [open_overdrawn("carl"), issue("carl", 100)];
            process
                .write_next([vec![open("acme"), open("bob"), issue("acme", 1_000)], overdrawn.to_vec()].concat())
                .await;
        }
        match self.kind {
            TaskKind::OpensAndIssues
            | TaskKind::Fences
            | TaskKind::Transfers
            | TaskKind::Retires
            | TaskKind::SpendsAnOverdraft
            | TaskKind::Freezes
            | TaskKind::Closes
            | TaskKind::Holds
            | TaskKind::IsRefused
            | TaskKind::HoldsAndSettles
            | TaskKind::MarksAnUnknownLease => {}
            TaskKind::Unfreezes => drop(process.write_next(vec![freeze("acme")]).await),
            TaskKind::CoversADebt => {
                let lease = process.holds(&[hold_of("acme", 1_000)]).await;
                process.settle(lease, &[("acme", 1_200)]).await;
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
        }
    }

    /// Runs or repeats the task.
    pub(super) async fn act(&self, process: &TestProcess) -> Result<Reply, BackendError> {
        let write = async |sequence, operations| process.try_write(sequence, operations).await.map(Reply::Write);
        let hold = async |parts: &[HoldSpec]| process.try_hold(self.lease, parts).await.map(Reply::Hold);
        let settle = async |actuals: &[(&str, u64)], is_release| {
            let reply = process.try_settle(self.lease, actuals, is_release).await;
            reply.map(|_: SettleAnswer| Reply::Settle)
        };
        match self.kind {
            TaskKind::OpensAndIssues => write(1, vec![open("acme"), open("bob"), issue("acme", 1_000)]).await,
            TaskKind::Fences => write(2, vec![]).await,
            TaskKind::Transfers => write(2, vec![transfer("acme", "bob", 300)]).await,
            TaskKind::Retires => write(2, vec![retire("acme", 1_000)]).await,
            TaskKind::CoversADebt => write(2, vec![issue("acme", 500)]).await,
            TaskKind::SpendsAnOverdraft => write(2, vec![transfer("carl", "bob", 250)]).await,
            TaskKind::Freezes => write(2, vec![freeze("acme"), issue("acme", 1)]).await,
            TaskKind::Unfreezes => write(3, vec![unfreeze("acme"), transfer("acme", "bob", 1)]).await,
            TaskKind::Closes => write(2, vec![transfer("acme", "bob", 1_000), close("acme"), open("new")]).await,
            TaskKind::Holds => hold(&[hold_of("acme", 400)]).await,
            TaskKind::HoldsInTwoVaults => {
                let elsewhere = HoldSpec { name: "there", vault: EU, ..hold_of("acme", 20) };
                hold(&[hold_of("acme", 100), elsewhere, hold_of("carl", 300)]).await
            }
            TaskKind::IsRefused => hold(&[hold_of("bob", 1), hold_of("acme", 100)]).await,
            TaskKind::SettlesLess => settle(&[("acme", 150)], false).await,
            TaskKind::SettlesMore => settle(&[("acme", 700)], false).await,
            TaskKind::SettlesWhatIsNotThere | TaskKind::SettlesWithoutDebt => settle(&[("acme", 1_500)], false).await,
            TaskKind::SettlesLate => settle(&[], false).await,
            TaskKind::GivesBack => settle(&[], true).await,
            TaskKind::MarksAnUnknownLease => settle(&[("acme", 1)], false).await,
            // The process that settles also made the hold, and remembers it.
            TaskKind::HoldsAndSettles => {
                self.half(process).await?;
                settle(&[("acme", 150)], false).await
            }
            TaskKind::Sweeps => match process.credits.maintain().await {
                Ok(()) => Ok(Reply::Swept),
                Err(error) => Err(BackendError::Failed(error)),
            },
        }
    }

    /// Runs the first of two commits.
    pub(super) async fn half(&self, process: &TestProcess) -> Result<(), BackendError> {
        match self.kind {
            TaskKind::SettlesLate => process.credits.maintain().await.map_err(BackendError::Failed),
            TaskKind::HoldsAndSettles => process.try_hold(self.lease, &[SHORT]).await.map(drop),
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
        let (mut balances, mut entries) = (Vec::new(), Vec::new());
        for (home, name) in &all {
            balances.push(process.balance_in(home, name).await);
            entries.push(process.history(home, name).await);
        }
        // Callers cannot see whether the row of `revenue` exists.
        let keys = main[..4].iter().map(|(_, name)| fixture.account(name));
        let survey = Survey { accounts: keys.collect::<Vec<AccountKey>>(), ..Survey::default() };
        let accounts = fixture.store.survey(survey).await.expect("a store that answers").accounts;
        let last = process.last().await;
        let hold = format!("{:?}", {
            use earmark_admission::Credits;
            process.credits.holds(fixture.namespace.clone(), self.lease, Vec::new()).await
        });
        View { balances, entries, accounts, last, hold }
    }
}
