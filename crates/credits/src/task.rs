//! The tasks: transactions, holds, extensions, settlements, timeouts, expiries and issues of plans.

mod charge;
mod expire;
mod grow;
mod hold;
mod issue;
mod lease;
mod renew;
mod settle;
mod shrink;
mod timeout;
mod transaction;

pub(crate) use expire::ExpireTask;
pub(crate) use grow::GrowTask;
pub(crate) use hold::HoldTask;
pub(crate) use issue::IssueTask;
pub(crate) use lease::{LeaseStatus, Part};
pub(crate) use renew::{RenewTask, Renewed};
pub(crate) use settle::SettleTask;
pub(crate) use shrink::ShrinkTask;
pub(crate) use timeout::{TimeoutTask, is_covered};
pub(crate) use transaction::{TransactionTask, receipt};

use earmark_core::{Actor, EntryPurpose, Label, NamespaceName, VaultName};

use crate::id::GateId;
use crate::model::{Account, AccountKey, ClaimKind, LeaseKey, VaultKey};
use crate::saga::{Engine, TaskError};
use crate::store::{Change, Survey, Surveyed};

/// The gate that all holds of a lease share. The first saga to pass it decides what the lease is.
pub(crate) fn lease_gate(lease: &LeaseKey) -> GateId {
    Label::Lease(&lease.namespace, lease.lease).id().into()
}

/// The gate of the first hold, or of the end, of a lease that holds nothing. After all that it held was returned, the
/// next one counts.
fn first_gate(lease: &LeaseKey, returned: u32) -> GateId {
    match (returned, VaultName::new(VaultName::MAIN)) {
        (0, _) | (_, Err(_)) => lease_gate(lease),
        (_, Ok(vault)) => {
            Label::Entry(&lease.namespace, &vault, EntryPurpose::First(lease.lease, returned)).id().into()
        }
    }
}

/// The gate of a settlement: that of the lease's first hold, ordered by limit.
fn settle_gate(first: &Part) -> GateId {
    let (lease, limit) = (first.terms.lease, &first.terms.limit);
    let is_late = first.paid_at_timeout.is_some();
    entry_gate(&first.home, if is_late { EntryPurpose::Late(lease, limit) } else { EntryPurpose::Settle(lease, limit) })
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
