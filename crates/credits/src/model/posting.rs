//! Postings: signed amounts of accounts, with what they are held for, or the plan that they mark.

use earmark_core::{AssetName, GrantTerms, LeaseId, LimitKey, PRIORITY_DEFAULT, UnixMs};
use serde::{Deserialize, Serialize};

use super::{AccountKey, is_default};
use crate::document::{grant_terms, optional_ms, optional_plan, text, unix_ms};
use crate::id::{PostingId, ReservationId};

/// A signed amount of one asset. Only its state ever changes, and the end and usage of its hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Posting {
    /// Its id.
    #[serde(with = "text")]
    pub id: PostingId,
    /// Its owner. A held posting still belongs to the account it was taken from.
    #[serde(flatten)]
    pub account: AccountKey,
    /// Its asset.
    #[serde(with = "text")]
    pub asset: AssetName,
    /// Its amount; negative if owed. Only marks have 0: of an overdraft, or of a plan.
    #[serde(with = "text")]
    pub amount: i128,
    /// Its priority and expiry. Held credit is one posting, whose hold knows the terms of its shares.
    #[serde(default, skip_serializing_if = "is_default", with = "grant_terms")]
    pub terms: GrantTerms,
    /// The lease that holds it, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<PostingHold>,
    /// The plan of the account, if the posting is its plan mark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Box<AccountPlan>>,
}

/// The plan of an account, on its plan mark. A plan mark is a posting of amount 0 that expires when the plan is due. Each
/// issue and each change of the plan consumes it and creates the next.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountPlan {
    /// The terms; `None` if it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_plan")]
    pub terms: Option<earmark_core::Plan>,
    /// The end of the last issued period; `None` before the first.
    #[serde(default, rename = "issued_until_unix_ms", skip_serializing_if = "Option::is_none", with = "optional_ms")]
    pub issued_until: Option<UnixMs>,
}

impl AccountPlan {
    /// The terms of the mark: when the plan is due. One that was removed is never due.
    #[must_use]
    pub fn mark_terms(&self) -> GrantTerms {
        let due_at = match &self.terms {
            Some(_) => self.issued_until.unwrap_or_default(),
            None => UnixMs::new(UnixMs::MAX.get() - 1),
        };
        GrantTerms::new(PRIORITY_DEFAULT, Some(due_at))
    }

    /// The grant of the last issued period.
    #[must_use]
    pub fn last_grant(&self) -> Option<GrantTerms> {
        self.issued_until.map(|until| GrantTerms::new(PRIORITY_DEFAULT, Some(until)))
    }

    /// The expired grant that the plan will carry over once it can issue. It does not expire before.
    #[must_use]
    pub fn carried_grant(&self, expiry: UnixMs) -> Option<GrantTerms> {
        let carries = self.terms.as_ref().is_some_and(|terms| terms.carry_over.max() > 0);
        self.last_grant().filter(|grant| carries && grant.is_expired(expiry))
    }
}

/// The hold on a posting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PostingHold {
    /// The lease, in the namespace of the account.
    #[serde(with = "text")]
    pub lease: LeaseId,
    /// The limit of kind `credit`.
    #[serde(with = "text")]
    pub limit: LimitKey,
    /// When the hold times out.
    #[serde(rename = "ends_at_unix_ms", with = "unix_ms")]
    pub ends_at: UnixMs,
    /// The usage that the lease has reported. It may exceed the amount.
    #[serde(default, skip_serializing_if = "is_default")]
    pub used: u64,
    /// The part of the amount that is charged at the timeout, and so never becomes spendable.
    #[serde(default, skip_serializing_if = "is_default")]
    pub kept: u64,
    /// The last extension of the lease that moved the end or reported usage. A plan consumes a posting only if this is
    /// as it was read.
    #[serde(default, skip_serializing_if = "is_default")]
    pub extension: u32,
    /// The grants that it took from, in spending order. The rest of the amount is plain credit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shares: Vec<GrantShare>,
}

/// The part of a hold that one grant covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantShare {
    /// The priority and the expiry.
    #[serde(flatten, with = "grant_terms")]
    pub terms: GrantTerms,
    /// The amount.
    pub amount: u64,
}

impl PostingHold {
    /// A new hold. With `charges` its timeout costs all of `amount`.
    #[must_use]
    pub fn new(lease: LeaseId, limit: LimitKey, ends_at: UnixMs, (amount, charges): (u64, bool)) -> PostingHold {
        let kept = if charges { amount } else { 0 };
        PostingHold { lease, limit, ends_at, used: 0, kept, extension: 0, shares: Vec::new() }
    }

    /// The hold of another amount, or with more usage.
    #[must_use]
    pub fn with(&self, amount: u64, charges: bool, used: u64) -> PostingHold {
        let used = used.max(self.used);
        PostingHold { used, kept: if charges { amount } else { used.min(amount) }, ..self.clone() }
    }
}

impl Posting {
    /// The shares of a held posting in spending order, plain credit included.
    #[must_use]
    pub fn shares(&self) -> Vec<GrantShare> {
        let mut shares = self.hold.as_ref().map_or_else(Vec::new, |hold| hold.shares.clone());
        let in_grants = shares.iter().fold(0_u64, |sum, share| sum.saturating_add(share.amount));
        let plain = u64::try_from(self.amount).unwrap_or(0).saturating_sub(in_grants);
        if plain > 0 {
            let place = shares.partition_point(|share| share.terms < GrantTerms::PLAIN);
            shares.insert(place, GrantShare { terms: GrantTerms::PLAIN, amount: plain });
        }
        shares
    }

    /// The last extension of its hold; 0 without one.
    #[must_use]
    pub fn extension(&self) -> u32 {
        self.hold.as_ref().map_or(0, |hold| hold.extension)
    }
}

/// The state of a posting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostingState {
    /// It can be reserved.
    Active,
    /// A saga is about to consume it.
    Pending(ReservationId),
    /// A saga has consumed it for good.
    Inactive(ReservationId),
}

/// An unconsumed posting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LivePosting {
    /// Its id.
    pub id: PostingId,
    /// Its amount.
    pub amount: i128,
    /// Its priority and expiry.
    pub terms: GrantTerms,
    /// The attempt that reserved it, if any.
    pub reserved_by: Option<ReservationId>,
}
