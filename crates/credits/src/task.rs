//! What can happen: transactions, holds, settlements, releases.

mod hold;
mod lease;
mod release;
mod settle;
mod transaction;

pub(crate) use hold::HoldTask;
pub(crate) use lease::{LeaseStory, Part};
pub(crate) use release::ReleaseTask;
pub(crate) use settle::SettleTask;
pub(crate) use transaction::{TransactionTask, receipt};

use earmark_core::{Actor, Label, NamespaceName, What};

use crate::id::GateId;
use crate::model::{Account, AccountKey, ClaimKind, HoldTerms, LeaseKey, VaultKey};
use crate::saga::{Engine, Trouble};
use crate::store::{Change, Survey, Surveyed};

/// What the holds of a lease share: whoever passes it first decides what the lease is.
pub(crate) fn lease_gate(lease: &LeaseKey) -> GateId {
    Label::Lease(&lease.namespace, lease.lease).id().into()
}

/// What a settlement passes: that of the first hold, in order of limit.
fn settle_gate(home: &VaultKey, hold: &HoldTerms) -> GateId {
    entry_gate(home, What::Settle(hold.lease, &hold.limit))
}

fn entry_gate(home: &VaultKey, what: What<'_>) -> GateId {
    Label::Entry(&home.namespace, &home.vault, what).id().into()
}

fn lease_key(namespace: &NamespaceName, lease: earmark_core::LeaseId) -> LeaseKey {
    LeaseKey { namespace: namespace.clone(), lease }
}

/// What follows from time alone is done by Earmark itself, and says so: a row that names nobody is of a version that wrote
/// no names down.
fn or_itself(actor: Option<Actor>) -> Option<Actor> {
    actor.or_else(|| Actor::new(Actor::ITSELF).ok())
}

/// An account as a plan may see it.
#[derive(Clone, Copy, Debug)]
enum Seen {
    /// It was never opened, or is only being opened.
    Missing,
    /// It is being closed, and nobody knows yet whether it will be.
    InDoubt,
    /// It is there.
    There(Account),
}

fn seen(account: Option<Account>) -> Seen {
    match account {
        None => Seen::Missing,
        Some(account) => match account.claim {
            Some((_, ClaimKind::Opening)) => Seen::Missing,
            Some((_, ClaimKind::Closing)) => Seen::InDoubt,
            Some((_, ClaimKind::Changing)) | None => Seen::There(account),
        },
    }
}

impl Engine {
    /// Looks at the rows. Every vault has an account `revenue`, also one that nobody has written to here yet.
    async fn survey(&self, survey: Survey) -> Result<Surveyed, Trouble> {
        let found = self.call(self.store.survey(survey.clone())).await?;
        let is_revenue = |key: &AccountKey| key.account.as_str() == earmark_core::AccountName::REVENUE;
        let accounts = survey.accounts.iter().zip(&found.accounts);
        let mut missing: Vec<&VaultKey> = accounts
            .filter(|(key, account)| account.is_none() && is_revenue(key))
            .map(|(key, _)| &key.home)
            .collect();
        missing.dedup();
        if missing.is_empty() {
            return Ok(found);
        }
        self.write(missing.into_iter().cloned().map(Change::OpenVault).collect()).await?;
        Ok(self.call(self.store.survey(survey)).await?)
    }
}
