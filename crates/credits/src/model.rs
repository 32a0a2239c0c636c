//! The rows: accounts, postings, entries, and the record of a saga with its plan.

use std::sync::Arc;

use earmark_core::{
    AccountName, Actor, AssetName, ClientId, CreditShortage, LeaseId, LimitKey, NamespaceName, Operation,
    Overdraft, Standing, TxId, UnixMs, VaultName,
};

use crate::id::{GateId, OwnerId, PostingId, ReservationId};

/// Where credit lives.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VaultKey {
    /// The namespace.
    pub namespace: NamespaceName,
    /// The vault of it.
    pub vault: VaultName,
}

/// An account.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccountKey {
    /// Where it is.
    pub home: VaultKey,
    /// Its name.
    pub account: AccountName,
}

/// What is counted in a vault.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AssetKey {
    /// Where it is counted.
    pub home: VaultKey,
    /// Its name.
    pub asset: AssetName,
}

/// A client that counts its transactions in a vault.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientKey {
    /// Where it counts.
    pub home: VaultKey,
    /// Its name.
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

/// An account, as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// Where it stands. While it is claimed for opening it does not exist for anybody else.
    pub standing: Standing,
    /// Whether it may go below zero.
    pub overdraft: Overdraft,
    /// The attempt that is about to change it, and how.
    pub claim: Option<(ReservationId, ClaimKind)>,
}

/// What a saga is about to do to an account that it claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimKind {
    /// It is being opened, and goes away again if that fails.
    Opening,
    /// It is being frozen or unfrozen. Until then it stands as it stood.
    Changing,
    /// It is being closed. New sagas do not touch it, and it is closed when no saga names it any more.
    Closing,
}

/// An account operation of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The account.
    pub account: AccountKey,
    /// What happens to it.
    pub kind: ClaimKind,
    /// Where it must stand for the claim to be made; of an account that is opened, where it will stand at first.
    pub from: Standing,
    /// Where it stands afterwards.
    pub to: Standing,
    /// Of an account that is opened; otherwise of no meaning.
    pub overdraft: Overdraft,
}

/// What must be true of an account when a saga passes the point of no return. An account that the saga itself has
/// claimed is as the saga wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// The account.
    pub account: AccountKey,
    /// Whether it must not even be frozen, for something goes out of it that is not the cost of a lease.
    pub spends: bool,
}

/// A signed amount of one asset. Only its state ever changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Posting {
    /// Its name.
    pub id: PostingId,
    /// Whose it is. What a lease holds still belongs to the account it was taken from.
    pub account: AccountKey,
    /// What it is.
    pub asset: AssetName,
    /// How much, never zero; below zero if it is owed.
    pub amount: i128,
    /// The lease that holds it, if one does.
    pub hold: Option<PostingHold>,
}

/// What holds a posting, and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostingHold {
    /// The lease. Its namespace is that of the account.
    pub lease: LeaseId,
    /// The limit of kind `credit`.
    pub limit: LimitKey,
    /// When it goes back.
    pub ends_at: UnixMs,
}

/// Where a posting stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostingState {
    /// It can be reserved.
    Active,
    /// A saga is about to consume it.
    Pending(ReservationId),
    /// A saga has consumed it, for ever.
    Inactive(ReservationId),
}

/// A posting that was not consumed, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LivePosting {
    /// Its name.
    pub id: PostingId,
    /// How much.
    pub amount: i128,
    /// Who is about to consume it, if somebody is.
    pub reserved_by: Option<ReservationId>,
}

/// Something that happened, for ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where.
    pub home: VaultKey,
    /// When.
    pub at: UnixMs,
    /// What.
    pub body: EntryBody,
    /// What it did, to each account and asset once, in order of account and asset.
    pub changes: Vec<AccountChange>,
}

/// What an entry did to one asset of one account of its vault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountChange {
    /// The account.
    pub account: AccountName,
    /// The asset.
    pub asset: AssetName,
    /// What it added to what can be spent, or took from it if below zero.
    pub amount: i128,
    /// What it added to what leases hold, or took from it if below zero.
    pub held: i128,
}

/// What an entry is. Rows of versions that did not write actors down for leases have none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryBody {
    /// A sequenced write.
    Transaction(Transaction),
    /// Credit was set aside for a lease.
    Hold {
        /// What it holds.
        terms: HoldTerms,
        /// Who had it set aside.
        actor: Option<Actor>,
    },
    /// A lease said what it cost.
    Settle(Settlement),
    /// All that was held went back, for its time was over or it cost nothing.
    Release {
        /// What it held.
        terms: HoldTerms,
        /// Who said that it cost nothing, or Earmark itself if its time was over.
        actor: Option<Actor>,
    },
    /// A lease asked for credit that was not there. It will not get any.
    Refused {
        /// The lease.
        lease: LeaseId,
        /// The limit on the account that has too little.
        limit: LimitKey,
        /// What is wrong with the account.
        why: CreditShortage,
    },
    /// A lease has ended, and nothing of it was held or charged.
    Ended {
        /// The lease.
        lease: LeaseId,
    },
}

impl EntryBody {
    /// The lease it is about, if it is about one.
    #[must_use]
    pub fn lease(&self) -> Option<LeaseId> {
        match self {
            EntryBody::Hold { terms, .. } | EntryBody::Release { terms, .. } => Some(terms.lease),
            EntryBody::Settle(settlement) => Some(settlement.hold.lease),
            EntryBody::Refused { lease, .. } | EntryBody::Ended { lease } => Some(*lease),
            EntryBody::Transaction(_) => None,
        }
    }
}

/// A sequenced write that was committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// Its own id.
    pub tx_id: TxId,
    /// Whose it is.
    pub client: ClientId,
    /// Its number among those of the client in the vault.
    pub sequence: u64,
    /// Who was behind it.
    pub actor: Actor,
    /// What was asked.
    pub operations: Vec<Operation>,
}

/// A hold, with all that settling it needs, whatever becomes of its limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldTerms {
    /// The lease.
    pub lease: LeaseId,
    /// The limit of kind `credit`.
    pub limit: LimitKey,
    /// Whose credit it is.
    pub account: AccountName,
    /// What.
    pub asset: AssetName,
    /// How much.
    pub amount: u64,
    /// Who is paid.
    pub revenue: AccountName,
    /// Whether the owner owes what it has not.
    pub keeps_debt: bool,
    /// When it goes back.
    pub ends_at: UnixMs,
}

/// What became of a hold whose lease was completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The hold.
    pub hold: HoldTerms,
    /// What was still held; 0 if its time was over.
    pub held: u64,
    /// Who was paid.
    pub revenue: AccountName,
    /// What was paid.
    pub paid: u64,
    /// How much of that the owner did not have, and owes.
    pub debt: u64,
    /// What it cost and nobody paid.
    pub uncollected: u64,
    /// Who said what it cost.
    pub actor: Option<Actor>,
}

/// An entry, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEntry {
    /// Its number in its vault, counted from 1. Who has seen a number will never see a smaller one appear.
    pub number: u64,
    /// What made it happen once. The entries of one saga have the same.
    pub gate: GateId,
    /// The entry.
    pub entry: Arc<Entry>,
}

/// A number of a client that a saga is about to commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The client.
    pub client: ClientKey,
    /// The number, one more than the last that was committed.
    pub sequence: u64,
}

/// What a saga adds to what was ever issued and retired of an asset. Both may be 0: the asset is to be known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TotalsChange {
    /// The asset.
    pub asset: AssetKey,
    /// What is issued.
    pub issued: i128,
    /// What is retired.
    pub retired: i128,
}

/// All that a saga will do once it has passed the point of no return. It is part of the record, so that anybody can
/// finish it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The postings that it consumes, and how much each of them is.
    pub inputs: Vec<Posting>,
    /// The postings that it creates.
    pub outputs: Vec<Posting>,
    /// What it writes down; at least one.
    pub entries: Vec<Entry>,
    /// What must be true of accounts, of each once.
    pub needs: Vec<Need>,
    /// What happens to accounts, to each once.
    pub claims: Vec<Claim>,
    /// What is issued and retired, of each asset once.
    pub totals: Vec<TotalsChange>,
    /// The number that it takes, if it is a sequenced write.
    pub turn: Option<Turn>,
}

/// How far a saga is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It gathers what it needs. Anybody may give it up.
    Reserving,
    /// It will happen. Anybody may finish it.
    Finalizing,
    /// It will not happen. Anybody may clean up after it.
    Releasing,
}

/// The record of a saga, as it is inserted in phase `reserving`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What is to happen once, the token of this attempt, and who drives it.
    pub ticket: Ticket,
    /// The lease that it is about, if it is about one.
    pub lease: Option<LeaseKey>,
    /// When it began.
    pub begun_at: UnixMs,
    /// What it will do.
    pub plan: Arc<Plan>,
}

/// The right to take a step of a saga: the step changes nothing unless the record says the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// What is to happen once.
    pub gate: GateId,
    /// The token of the attempt.
    pub rid: ReservationId,
    /// Who drives it.
    pub owner: OwnerId,
}

/// A record, and how far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRecord {
    /// The record. Its owner is the latest.
    pub record: Record,
    /// How far it is.
    pub phase: Phase,
}

impl Plan {
    /// Every account that the plan touches, each once, in order.
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
