//! Every saga that there is, as something to do and what can be seen of it.

use earmark_admission::{BackendError, HoldAnswer, SettleAnswer, WriteAnswer};
use earmark_core::{LeaseId, Overage, VaultName};

use super::bank::{
    Bank, On, Town, close, freeze, issue, lease, on, open, open_overdrawn, retire, transfer, unfreeze,
};
use crate::model::{Account, AccountKey};
use crate::store::Survey;

/// Where another vault is.
const EU: &str = "eu";

/// Something that is done by one saga, or by a few.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
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

pub(super) const DEEDS: [Deed; 21] = [
    Deed::OpensAndIssues,
    Deed::Fences,
    Deed::Transfers,
    Deed::Retires,
    Deed::CoversADebt,
    Deed::SpendsAnOverdraft,
    Deed::Freezes,
    Deed::Unfreezes,
    Deed::Closes,
    Deed::Holds,
    Deed::HoldsInTwoVaults,
    Deed::IsRefused,
    Deed::SettlesLess,
    Deed::SettlesMore,
    Deed::SettlesWhatIsNotThere,
    Deed::SettlesWithoutDebt,
    Deed::SettlesLate,
    Deed::GivesBack,
    Deed::MarksAnUnknownLease,
    Deed::Sweeps,
    Deed::HoldsAndSettles,
];

/// What somebody was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Write(WriteAnswer),
    Hold(HoldAnswer),
    /// What a settlement paid is told once.
    Settle,
    Swept,
}

/// A deed, about one lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scenario {
    pub(super) deed: Deed,
    lease: LeaseId,
}

/// All that can be seen from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct View {
    purses: Vec<Option<(i128, i128, i128)>>,
    entries: Vec<usize>,
    accounts: Vec<Option<Account>>,
    last: u64,
    hold: String,
}

const SHORT: On = On { timeout_seconds: 30, ..on("acme", 400) };

impl Scenario {
    pub(super) fn new(deed: Deed) -> Scenario {
        Scenario { deed, lease: lease() }
    }

    /// What must be there before.
    pub(super) async fn prepare(&self, town: &Town, bank: &Bank) {
        if self.deed != Deed::OpensAndIssues {
            let overdrawn = [open_overdrawn("carl"), issue("carl", 100)];
            bank.does([vec![open("acme"), open("bob"), issue("acme", 1_000)], overdrawn.to_vec()].concat())
                .await;
        }
        match self.deed {
            Deed::OpensAndIssues
            | Deed::Fences
            | Deed::Transfers
            | Deed::Retires
            | Deed::SpendsAnOverdraft
            | Deed::Freezes
            | Deed::Closes
            | Deed::Holds
            | Deed::IsRefused
            | Deed::HoldsAndSettles
            | Deed::MarksAnUnknownLease => {}
            Deed::Unfreezes => drop(bank.does(vec![freeze("acme")]).await),
            Deed::CoversADebt => {
                let lease = bank.holds(&[on("acme", 1_000)]).await;
                bank.settle(lease, &[("acme", 1_200)]).await;
            }
            Deed::HoldsInTwoVaults => bank.does_in(EU, vec![open("acme"), issue("acme", 50)]).await,
            Deed::SettlesLess | Deed::SettlesMore | Deed::SettlesWhatIsNotThere | Deed::GivesBack => {
                assert_eq!(bank.hold(self.lease, &[SHORT]).await, HoldAnswer::Held);
            }
            Deed::SettlesWithoutDebt => {
                let hold = On { overage: Overage::Deny, ..SHORT };
                assert_eq!(bank.hold(self.lease, &[hold]).await, HoldAnswer::Held);
            }
            Deed::SettlesLate | Deed::Sweeps => {
                assert_eq!(bank.hold(self.lease, &[SHORT]).await, HoldAnswer::Held);
                town.clock.advance_ms(30_000);
            }
        }
    }

    /// Does it, or does it again.
    pub(super) async fn act(&self, bank: &Bank) -> Result<Told, BackendError> {
        let write = async |sequence, operations| bank.try_write(sequence, operations).await.map(Told::Write);
        let hold = async |parts: &[On]| bank.try_hold(self.lease, parts).await.map(Told::Hold);
        let settle = async |actuals: &[(&str, u64)], is_release| {
            let told = bank.try_settle(self.lease, actuals, is_release).await;
            told.map(|_: SettleAnswer| Told::Settle)
        };
        match self.deed {
            Deed::OpensAndIssues => write(1, vec![open("acme"), open("bob"), issue("acme", 1_000)]).await,
            Deed::Fences => write(2, vec![]).await,
            Deed::Transfers => write(2, vec![transfer("acme", "bob", 300)]).await,
            Deed::Retires => write(2, vec![retire("acme", 1_000)]).await,
            Deed::CoversADebt => write(2, vec![issue("acme", 500)]).await,
            Deed::SpendsAnOverdraft => write(2, vec![transfer("carl", "bob", 250)]).await,
            Deed::Freezes => write(2, vec![freeze("acme"), issue("acme", 1)]).await,
            Deed::Unfreezes => write(3, vec![unfreeze("acme"), transfer("acme", "bob", 1)]).await,
            Deed::Closes => write(2, vec![transfer("acme", "bob", 1_000), close("acme"), open("new")]).await,
            Deed::Holds => hold(&[on("acme", 400)]).await,
            Deed::HoldsInTwoVaults => {
                let elsewhere = On { name: "there", vault: EU, ..on("acme", 20) };
                hold(&[on("acme", 100), elsewhere, on("carl", 300)]).await
            }
            Deed::IsRefused => hold(&[on("bob", 1), on("acme", 100)]).await,
            Deed::SettlesLess => settle(&[("acme", 150)], false).await,
            Deed::SettlesMore => settle(&[("acme", 700)], false).await,
            Deed::SettlesWhatIsNotThere | Deed::SettlesWithoutDebt => settle(&[("acme", 1_500)], false).await,
            Deed::SettlesLate => settle(&[], false).await,
            Deed::GivesBack => settle(&[], true).await,
            Deed::MarksAnUnknownLease => settle(&[("acme", 1)], false).await,
            // The process that settles is the one that has held, and remembers.
            Deed::HoldsAndSettles => {
                self.half(bank).await?;
                settle(&[("acme", 150)], false).await
            }
            Deed::Sweeps => match bank.credits.tend().await {
                Ok(()) => Ok(Told::Swept),
                Err(error) => Err(BackendError::Failed(error)),
            },
        }
    }

    /// Does the first half of a deed that is two sagas.
    pub(super) async fn half(&self, bank: &Bank) -> Result<(), BackendError> {
        match self.deed {
            Deed::SettlesLate => bank.credits.tend().await.map_err(BackendError::Failed),
            Deed::HoldsAndSettles => bank.try_hold(self.lease, &[SHORT]).await.map(drop),
            _ => Ok(()),
        }
    }

    /// Whether what was told the first time is told again.
    pub(super) fn is_told_again(&self, first: &Told, again: &Told) -> bool {
        first == again
    }

    /// Looks at everything.
    pub(super) async fn view(&self, town: &Town, bank: &Bank) -> View {
        let main = ["acme", "bob", "carl", "new", "revenue"].map(|name| (VaultName::MAIN, name));
        let all = [main.as_slice(), &[(EU, "acme"), (EU, "revenue")]].concat();
        let (mut purses, mut entries) = (Vec::new(), Vec::new());
        for (home, name) in &all {
            purses.push(bank.purse_in(home, name).await);
            entries.push(bank.history(home, name).await);
        }
        // That a vault is known by its account `revenue` is nothing that anybody can see.
        let keys = main[..4].iter().map(|(_, name)| town.account(name));
        let survey = Survey { accounts: keys.collect::<Vec<AccountKey>>(), ..Survey::default() };
        let accounts = town.store.survey(survey).await.expect("a store that answers").accounts;
        let last = bank.last().await;
        let hold = format!("{:?}", {
            use earmark_admission::Credits;
            bank.credits.holds(town.namespace.clone(), self.lease).await
        });
        View { purses, entries, accounts, last, hold }
    }
}
