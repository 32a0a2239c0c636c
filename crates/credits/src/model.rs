//! The rows of credit: accounts, postings, entries, and saga records with their plans.

mod posting;
mod usage;

use std::sync::Arc;

use earmark_core::{
    AccountName, AccountStatus, Actor, AssetName, ClientId, ClientOwner, CreditShortage, GrantTerms, LeaseId, LimitKey,
    Moment, NamespaceName, Operation, Overdraft, SettleLabels, TxId, UnixMs, VaultName, WriteId,
};

use serde::{Deserialize, Serialize};

use crate::document::{
    OverdraftDocument, ShortageDocument, StatusDocument, grant_terms, moment, operations, optional_text, settle_labels,
    text, tx_id, unix_ms, write_id,
};
use crate::id::{GateId, OwnerId, ReservationId};
pub use posting::{AccountPlan, GrantShare, LivePosting, Posting, PostingHold, PostingState};
pub use usage::{Growth, UsageKey, UsageKind};

/// A vault of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct VaultKey {
    /// The namespace.
    #[serde(with = "text")]
    pub namespace: NamespaceName,
    /// The vault's name.
    #[serde(with = "text")]
    pub vault: VaultName,
}

/// An account of a vault.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AccountKey {
    /// The vault.
    #[serde(flatten)]
    pub home: VaultKey,
    /// Its name.
    #[serde(with = "text")]
    pub account: AccountName,
}

/// An asset of a vault.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AssetKey {
    /// The vault.
    #[serde(flatten)]
    pub home: VaultKey,
    /// Its name.
    #[serde(with = "text")]
    pub asset: AssetName,
}

/// A client that numbers its transactions in a vault.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClientKey {
    /// The vault.
    #[serde(flatten)]
    pub home: VaultKey,
    /// Its name.
    #[serde(with = "text")]
    pub client: ClientId,
}

/// A lease of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseKey {
    /// The namespace.
    pub namespace: NamespaceName,
    /// The lease.
    pub lease: LeaseId,
}

/// A stored account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// Its standing. An account claimed for opening does not exist for other sagas.
    pub standing: AccountStatus,
    /// Whether its balance may go below zero.
    pub overdraft: Overdraft,
    /// The saga attempt that is about to change it.
    pub claim: Option<(ReservationId, ClaimKind)>,
}

/// The change that a saga is about to make to a claimed account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimKind {
    /// Opening it. The row is deleted if the saga fails.
    Opening,
    /// Freezing or unfreezing it. Until then its old standing applies.
    Changing,
    /// Closing it. New sagas cannot use it; it closes once no other saga names it.
    Closing,
}

/// An account that a plan opens, changes or closes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The account.
    #[serde(flatten)]
    pub account: AccountKey,
    /// The change.
    pub kind: ClaimKind,
    /// The standing that the claim requires; for an account to open, its first standing.
    #[serde(with = "StatusDocument")]
    pub from: AccountStatus,
    /// The standing after the commit.
    #[serde(with = "StatusDocument")]
    pub to: AccountStatus,
    /// Only used when the account is opened.
    #[serde(with = "OverdraftDocument")]
    pub overdraft: Overdraft,
}

/// An account that a plan uses. At the point of no return it must exist and be usable, unless the same saga claimed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Need {
    /// The account.
    #[serde(flatten)]
    pub account: AccountKey,
    /// Whether the plan spends from it other than to settle a lease. Then it must not be frozen.
    pub spends: bool,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A line of the ledger. Entries are never changed or deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its vault.
    #[serde(flatten)]
    pub home: VaultKey,
    /// Its time: log time decides its order within a commit, wall time is shown.
    #[serde(flatten, with = "moment")]
    pub at: Moment,
    /// Its content.
    #[serde(flatten)]
    pub body: EntryBody,
    /// Its effects, one per account and asset, in that order.
    pub changes: Vec<AccountChange>,
}

/// The effect of an entry on one asset of one account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountChange {
    /// The account.
    #[serde(with = "text")]
    pub account: AccountName,
    /// The asset.
    #[serde(with = "text")]
    pub asset: AssetName,
    /// Change of the spendable amount.
    #[serde(with = "text")]
    pub amount: i128,
    /// Change of the held amount.
    #[serde(with = "text")]
    pub held: i128,
}

/// The content of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EntryBody {
    /// A sequenced write.
    Transaction(Transaction),
    /// Credit was reserved for a lease.
    Hold {
        /// The terms of the hold.
        #[serde(flatten)]
        terms: HoldTerms,
        /// The caller.
        #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_text")]
        actor: Option<Actor>,
    },
    /// A lease reported its cost.
    Settle(Settlement),
    /// Held credit was returned: the hold timed out, cost nothing, or its growth was refused by the limits.
    Release {
        /// The terms of the hold. The amount is what was returned.
        #[serde(flatten)]
        terms: HoldTerms,
        /// Why.
        #[serde(default, skip_serializing_if = "is_default")]
        reason: EntryReason,
        /// The caller, or Earmark itself after a timeout.
        #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_text")]
        actor: Option<Actor>,
    },
    /// A lease asked for more credit than there was. The refusal is final.
    Refused {
        /// The lease.
        #[serde(with = "text")]
        lease: LeaseId,
        /// The limit on the account that was short.
        #[serde(with = "text")]
        limit: LimitKey,
        /// Why the account could not pay.
        #[serde(with = "ShortageDocument")]
        why: CreditShortage,
    },
    /// Credit of a grant expired.
    Expire(Expiry),
    /// A plan issued its period.
    Plan(PlanIssue),
    /// A lease ended without a hold or a charge.
    Ended {
        /// The lease.
        #[serde(with = "text")]
        lease: LeaseId,
    },
}

impl EntryBody {
    /// The lease that the entry is about, if any.
    #[must_use]
    pub fn lease(&self) -> Option<LeaseId> {
        match self {
            EntryBody::Hold { terms, .. } | EntryBody::Release { terms, .. } => Some(terms.lease),
            EntryBody::Settle(settlement) => Some(settlement.hold.lease),
            EntryBody::Refused { lease, .. } | EntryBody::Ended { lease } => Some(*lease),
            EntryBody::Transaction(_) | EntryBody::Expire(_) | EntryBody::Plan(_) => None,
        }
    }
}

/// Credit of a grant that expired.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expiry {
    /// The account.
    #[serde(with = "text")]
    pub account: AccountName,
    /// The asset.
    #[serde(with = "text")]
    pub asset: AssetName,
    /// The amount.
    #[serde(with = "text")]
    pub amount: i128,
    /// The priority and the expiry.
    #[serde(flatten, with = "grant_terms")]
    pub terms: GrantTerms,
}

/// The credit that a plan issued.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanIssue {
    /// The account.
    #[serde(with = "text")]
    pub account: AccountName,
    /// The asset.
    #[serde(with = "text")]
    pub asset: AssetName,
    /// The new credit; 0 if it would have exceeded a bound.
    #[serde(with = "text")]
    pub amount: i128,
    /// The unused credit of the last period that it kept.
    #[serde(with = "text")]
    pub carried: i128,
    /// The priority and the expiry of both.
    #[serde(flatten, with = "grant_terms")]
    pub terms: GrantTerms,
}

/// A committed sequenced write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transaction {
    /// Its id.
    #[serde(with = "tx_id")]
    pub tx_id: TxId,
    /// Its identity in the vault.
    #[serde(flatten, with = "write_id")]
    pub id: WriteId,
    /// The caller.
    #[serde(with = "text")]
    pub actor: Actor,
    /// The operations as requested.
    #[serde(with = "operations")]
    pub operations: Vec<Operation>,
}

/// The terms of a hold. Settling needs nothing else, even if the limit is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldTerms {
    /// The lease.
    #[serde(with = "text")]
    pub lease: LeaseId,
    /// The limit of kind `credit`.
    #[serde(with = "text")]
    pub limit: LimitKey,
    /// The account that pays.
    #[serde(with = "text")]
    pub account: AccountName,
    /// The asset.
    #[serde(with = "text")]
    pub asset: AssetName,
    /// The amount held.
    pub amount: u64,
    /// The account that is paid.
    #[serde(with = "text")]
    pub revenue: AccountName,
    /// Whether the payer goes into debt for a cost beyond the hold.
    pub keeps_debt: bool,
    /// When the hold times out, unless an extension moves its end.
    #[serde(rename = "ends_at_unix_ms", with = "unix_ms")]
    pub ends_at: UnixMs,
    /// Whether a timeout costs the whole hold, and not only the reported usage.
    #[serde(default, skip_serializing_if = "is_default")]
    pub charges: bool,
    /// The extension that added the amount; 0 for the reserve.
    #[serde(default, skip_serializing_if = "is_default")]
    pub extension: u32,
}

/// Why a hold was settled or returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryReason {
    /// The lease completed, or was given up.
    #[default]
    Complete,
    /// The hold timed out.
    Timeout,
    /// The lease completed after the timeout of this hold.
    Late,
    /// The limits refused the extension that had grown the hold. The lease goes on.
    Returned,
}

/// The settlement of a hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settlement {
    /// The hold.
    pub hold: HoldTerms,
    /// Why it was settled.
    #[serde(default, skip_serializing_if = "is_default")]
    pub reason: EntryReason,
    /// The amount that was still held; 0 after a timeout.
    pub held: u64,
    /// The account that was paid.
    #[serde(with = "text")]
    pub revenue: AccountName,
    /// The amount paid.
    pub paid: u64,
    /// The part of it that the payer did not have and now owes.
    pub debt: u64,
    /// The part of the cost that nobody paid.
    pub uncollected: u64,
    /// The caller.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_text")]
    pub actor: Option<Actor>,
    /// The labels of the complete.
    #[serde(default, skip_serializing_if = "SettleLabels::is_empty", with = "settle_labels")]
    pub labels: SettleLabels,
}

/// An entry with its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEntry {
    /// Its number in its vault, from 1. No smaller number appears after a larger one was visible.
    pub number: u64,
    /// The gate of its saga. All entries of one saga share it.
    pub gate: GateId,
    /// The entry.
    pub entry: Arc<Entry>,
}

/// The sequence number of a client that a plan commits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequenceClaim {
    /// The client.
    #[serde(flatten)]
    pub client: ClientKey,
    /// The number: the client's last sequence plus one.
    pub sequence: u64,
    /// The new owner of the client id; `None` leaves the owner as it is.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_text")]
    pub owner: Option<ClientOwner>,
}

/// A stored client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// The last sequence that it committed.
    pub last_sequence: u64,
    /// The owner of the client id, if one has claimed it.
    pub owner: Option<ClientOwner>,
}

/// An addition to the totals of an asset. All may be 0, to register the asset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TotalsChange {
    /// The asset.
    #[serde(flatten)]
    pub asset: AssetKey,
    /// Amount issued.
    #[serde(with = "text")]
    pub issued: i128,
    /// Amount retired.
    #[serde(with = "text")]
    pub retired: i128,
    /// Amount expired.
    #[serde(default, skip_serializing_if = "is_default", with = "text")]
    pub expired: i128,
}

/// Everything that a saga does after the point of no return. The saga record contains it, so that any process can
/// finish the saga.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The postings that it consumes.
    pub inputs: Vec<Posting>,
    /// The postings that it creates.
    pub outputs: Vec<Posting>,
    /// The entries that it writes; at least one.
    pub entries: Vec<Entry>,
    /// The accounts that it uses, each once.
    pub needs: Vec<Need>,
    /// The accounts that it opens, changes or closes, each once.
    pub claims: Vec<Claim>,
    /// The totals that it changes, each asset once.
    pub totals: Vec<TotalsChange>,
    /// The client sequence that it commits, for a sequenced write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence_claim: Option<SequenceClaim>,
    /// The counted rows that it adds, each counter once, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub growth: Vec<Growth>,
}

/// The phase of a saga.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It reserves its inputs. Any process may abort it.
    Reserving,
    /// It will commit. Any process may finish it.
    Finalizing,
    /// It is aborted. Any process may clean up.
    Releasing,
}

/// A saga record, as inserted in phase `reserving`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The saga's gate, attempt and owner.
    pub token: SagaToken,
    /// The lease that it is about, if any.
    pub lease: Option<LeaseKey>,
    /// Its start time.
    pub begun_at: UnixMs,
    /// Its plan.
    pub plan: Arc<Plan>,
}

/// The fencing token of a saga step: the step changes nothing unless the record has the same token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SagaToken {
    /// The idempotency key of the saga.
    pub gate: GateId,
    /// The id of the attempt.
    pub rid: ReservationId,
    /// The process that drives the saga.
    pub owner: OwnerId,
}

/// A saga record and its phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRecord {
    /// The record, with its latest owner.
    pub record: Record,
    /// The phase.
    pub phase: Phase,
}

impl Plan {
    /// Every account that the plan names, each once, in order.
    #[must_use]
    pub fn accounts(&self) -> Vec<&AccountKey> {
        let postings = self.inputs.iter().chain(&self.outputs).map(|posting| &posting.account);
        let named = self.needs.iter().map(|need| &need.account);
        let mut accounts: Vec<&AccountKey> =
            postings.chain(named).chain(self.claims.iter().map(|claim| &claim.account)).collect();
        accounts.sort_unstable();
        accounts.dedup();
        accounts
    }
}
