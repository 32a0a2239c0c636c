//! The tasks: transactions, holds, settlements and releases.

mod hold;
mod lease;
mod release;
mod settle;
mod transaction;

pub(crate) use hold::HoldTask;
pub(crate) use lease::{LeaseStatus, Part};
pub(crate) use release::ReleaseTask;
pub(crate) use settle::SettleTask;
pub(crate) use transaction::{TransactionTask, receipt};

use earmark_core::{Actor, EntryPurpose, Label, NamespaceName};

use crate::id::GateId;
use crate::model::{Account, AccountKey, ClaimKind, HoldTerms, LeaseKey, VaultKey};
use crate::saga::{Engine, TaskError};
use crate::store::{Change, Survey, Surveyed};

/// The gate that all holds of a lease share. The first saga to pass it decides what the lease is.
pub(crate) fn lease_gate(lease: &LeaseKey) -> GateId {
    Label::Lease(&lease.namespace, lease.lease).id().into()
}

/// The gate of a settlement: that of the lease's first hold, ordered by limit.
fn settle_gate(home: &VaultKey, hold: &HoldTerms) -> GateId {
    entry_gate(home, EntryPurpose::Settle(hold.lease, &hold.limit))
}

fn entry_gate(home: &VaultKey, what: EntryPurpose<'_>) -> GateId {
    Label::Entry(&home.namespace, &home.vault, what).id().into()
}

fn lease_key(namespace: &NamespaceName, lease: earmark_core::LeaseId) -> LeaseKey {
    LeaseKey { namespace: namespace.clone(), lease }
}

/// Names Earmark itself as the actor of what follows from time alone.
fn or_itself(actor: Option<Actor>) -> Option<Actor> {
    actor.or_else(|| Actor::new(Actor::ITSELF).ok())
}

/// An account as a plan may use it.
#[derive(Clone, Copy, Debug)]
enum AccountView {
    /// It does not exist, or is only being opened.
    Missing,
    /// Another saga is closing it; the outcome is open.
    InDoubt,
    /// It exists.
    Present(Account),
}

fn account_view(account: Option<Account>) -> AccountView {
    match account {
        None => AccountView::Missing,
        Some(account) => match account.claim {
            Some((_, ClaimKind::Opening)) => AccountView::Missing,
            Some((_, ClaimKind::Closing)) => AccountView::InDoubt,
            Some((_, ClaimKind::Changing)) | None => AccountView::Present(account),
        },
    }
}

impl Engine {
    /// Reads the rows for a plan. Inserts the account `revenue` of vaults that have none yet.
    async fn survey(&self, survey: Survey) -> Result<Surveyed, TaskError> {
        let found = self.call(self.store.survey(survey.clone())).await?;
        let is_revenue = |key: &AccountKey| key.account.as_str() == earmark_core::AccountName::REVENUE;
        let accounts = survey.accounts.iter().zip(&found.accounts);
        let mut missing: Vec<&VaultKey> =
            accounts.filter(|(key, account)| account.is_none() && is_revenue(key)).map(|(key, _)| &key.home).collect();
        missing.dedup();
        if missing.is_empty() {
            return Ok(found);
        }
        self.write(missing.into_iter().cloned().map(Change::OpenVault).collect()).await?;
        Ok(self.call(self.store.survey(survey)).await?)
    }
}
