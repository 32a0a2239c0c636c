//! What a saga asks of whatever keeps the rows: single conditional changes, and reads.

use std::sync::Arc;

use earmark_admission::{Answer, CreditCursor};
use earmark_core::{AccountName, AssetName, NamespaceName, UnixMs};

use crate::id::{GateId, OwnerId, PostingId, ReservationId};
use crate::model::{
    Account, AccountKey, AssetKey, ClientKey, LeaseKey, LivePosting, Plan, Posting, PostingState, Record,
    StoredEntry, StoredRecord, Ticket, Transaction, VaultKey,
};

/// The most changes of one list.
pub const CHANGES_MAX: usize = 16;

/// So many changes at each end of the history of an account are looked at to find out which assets it has had. An account
/// begins with its assets, and what it had last it had not long ago; a history may have millions of changes in between.
pub const CHANGES_SEEN_MAX: usize = 256;

/// Why a store gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Too much is waiting, and nothing was done.
    #[error("the store is busy: {0}")]
    Busy(&'static str),
    /// There is no way to it now: it is down, it is starting, the network is cut. Nothing was done.
    #[error("the store cannot be reached: {0}")]
    Unreachable(String),
    /// The store said no: it is full, it is read-only, a right is missing. Nothing was done.
    #[error("the store refuses: {0}")]
    Refused(String),
    /// There was no answer in time, or the connection is gone. A change may have been made or not.
    #[error("the store does not answer: {0}")]
    Unavailable(String),
    /// What is stored cannot be, or was written by a newer version.
    #[error("the store holds what it cannot: {0}")]
    Corrupt(String),
}

impl StoreError {
    /// Whether it may go away by itself. What is refused, or cannot be read, stays so until somebody sees to it.
    #[must_use]
    pub const fn is_passing(&self) -> bool {
        match self {
            StoreError::Busy(_) | StoreError::Unreachable(_) | StoreError::Unavailable(_) => true,
            StoreError::Refused(_) | StoreError::Corrupt(_) => false,
        }
    }
}

/// One conditional change: a step of a saga. Each is made as a whole or not at all, and says how many rows it changed.
/// Whether that is as it should be is for the saga to judge.
///
/// A step with a [`Ticket`] changes nothing unless the record of that gate has that reservation id and that owner, and
/// is in the phase that the step says. So a late step of an owner that was taken over changes nothing. A list that begins its
/// own record is late only if nobody waits for it any more; it may still happen, once.
#[derive(Clone, Debug)]
pub enum Change {
    /// Makes a vault and its account `revenue` known, unless they are. Rows: what was added.
    OpenVault(VaultKey),
    /// The gate. Inserts the record in phase `reserving`, unless there is one of the same gate, or one whose plan has a
    /// turn of the same client. Rows: 1 or 0.
    Begin(Arc<Record>),
    /// Phase `reserving`. Claims the accounts that the plan opens, freezes, unfreezes or closes: inserts those that are
    /// opened, unless they are there; marks the others, where nobody has claimed them and they stand where the
    /// plan says. Rows: the accounts that were claimed.
    Claim(Ticket, Arc<Plan>),
    /// Phase `reserving`. The inputs of the plan that are active become pending, with this reservation id. Rows: those
    /// that did.
    Reserve(Ticket, Arc<Plan>),
    /// The point of no return: phase `reserving` becomes `finalizing`, if all inputs and claims of the plan are this
    /// reservation id's, no entry has this gate, every account is as the plan needs it, and the client of its turn has
    /// committed the number before. Rows: 1 or 0.
    ///
    /// An account is as needed if the same reservation id has claimed it; or if it is there, is not claimed for opening
    /// or closing, is not closed, and, where the plan spends from it, is not frozen.
    Decide(Ticket, Arc<Plan>),
    /// Phase `finalizing`. The inputs of the plan that are pending with this reservation id become inactive. Rows: those
    /// that did.
    Finalize(Ticket, Arc<Plan>),
    /// Phase `finalizing`. Inserts the outputs of the plan that are not there, active. Rows: those that were not.
    Create(Ticket, Arc<Plan>),
    /// Phase `finalizing`. The accounts that this reservation id has claimed stand where the plan says, and are no longer
    /// claimed. Rows: those that were.
    Apply(Ticket, Arc<Plan>),
    /// Phase `finalizing`. If no entry has this gate: inserts the entries of the plan, each under the next number of its
    /// vault, counts what is issued and retired, and advances the client to the number of its turn; all of it or nothing.
    /// Rows: the entries.
    Record(Ticket, Arc<Plan>),
    /// Phase `reserving` becomes `releasing`. Rows: 1 or 0.
    Abort(Ticket),
    /// Unless a record in phase `reserving` or `finalizing` has this reservation id: the postings that are pending with it
    /// become active. Rows: those that did.
    Release(ReservationId),
    /// Under the same condition: the accounts that are claimed with this reservation id are no longer; those that were
    /// being opened are deleted. Rows: those that were claimed.
    Unclaim(ReservationId),
    /// Deletes the record, if it is in phase `releasing`, or in phase `finalizing` with an entry of its gate. Rows: 1 or
    /// 0.
    End(Ticket),
    /// Gives the record to another owner, if its own was last heard of before a time, or never. Rows: 1 or 0.
    TakeOver {
        /// The record, with the owner that it has.
        ticket: Ticket,
        /// Who drives it from now on.
        to: OwnerId,
        /// The owner must not have been heard of at this time or later.
        silent_since: UnixMs,
    },
    /// An owner lives. Rows: 1.
    Beat(OwnerId, UnixMs),
    /// An owner is gone, and will not be heard of again. Rows: 1, or 0 if it was not known.
    Leave(OwnerId),
}

impl Change {
    /// The gate of the saga that it is a step of.
    pub(crate) fn gate(&self) -> Option<GateId> {
        match self {
            Change::Begin(record) => Some(record.ticket.gate),
            Change::Claim(ticket, _)
            | Change::Reserve(ticket, _)
            | Change::Decide(ticket, _)
            | Change::Finalize(ticket, _)
            | Change::Create(ticket, _)
            | Change::Apply(ticket, _)
            | Change::Record(ticket, _)
            | Change::Abort(ticket)
            | Change::End(ticket)
            | Change::TakeOver { ticket, .. } => Some(ticket.gate),
            Change::OpenVault(_)
            | Change::Release(_)
            | Change::Unclaim(_)
            | Change::Beat(..)
            | Change::Leave(_) => None,
        }
    }
}

/// Whatever keeps the rows. It decides nothing.
///
/// Everybody's next read sees what a finished [`write`](Store::write) has changed. If [`Change::Record`] or
/// [`Change::OpenVault`] was among it, it is durable, with all that anybody was told to be finished before. Other changes may
/// be lost in a crash of the store, for nobody was promised anything yet; but never one without all that came after it, since
/// the order of the steps of a saga matters.
pub trait Store: Send + Sync + 'static {
    /// Makes changes, one after the other, and says of each how many rows it changed. The changes are no transaction:
    /// each sees the one before, and after an error any number of them, from the first on, may have been made. A
    /// store may make them all at once; and where they are a saga from its first step to its last, it may make none if
    /// the saga cannot happen, so that every count is 0 and there is no record to clean up.
    ///
    /// # Errors
    /// When a change was not made, or nobody knows.
    fn write(&self, changes: Vec<Change>) -> Answer<'_, Result<Vec<u64>, StoreError>>;

    /// All that a plan is made from, in one go. The parts need not be of the same moment: what was seen is only a
    /// proposal, and the steps of the saga find out whether it still holds.
    ///
    /// # Errors
    /// When the store does not answer.
    fn survey(&self, survey: Survey) -> Answer<'_, Result<Surveyed, StoreError>>;

    /// The entries of a gate, in the order of the plan; none if it never happened.
    ///
    /// # Errors
    /// When the store does not answer.
    fn entries(&self, gate: GateId) -> Answer<'_, Result<Vec<StoredEntry>, StoreError>>;

    /// All entries about a lease, in no particular order.
    ///
    /// # Errors
    /// When the store does not answer.
    fn lease(&self, lease: LeaseKey) -> Answer<'_, Result<Vec<StoredEntry>, StoreError>>;

    /// The postings that a lease holds and that nobody has consumed, in no particular order.
    ///
    /// # Errors
    /// When the store does not answer.
    fn held(&self, lease: LeaseKey) -> Answer<'_, Result<Vec<(Posting, PostingState)>, StoreError>>;

    /// The record of a saga.
    ///
    /// # Errors
    /// When the store does not answer.
    fn record(&self, find: FindRecord) -> Answer<'_, Result<Option<StoredRecord>, StoreError>>;

    /// Records, oldest first. One that cannot be read keeps nobody from the others.
    ///
    /// # Errors
    /// When the store does not answer.
    fn records(&self, filter: Filter, page: RecordPage) -> Answer<'_, Result<Records, StoreError>>;

    /// Processes whose row is of no use any more, so many at most.
    ///
    /// # Errors
    /// When the store does not answer.
    fn gone(&self, gone: Gone, max: usize) -> Answer<'_, Result<Vec<OwnerId>, StoreError>>;

    /// Reservation ids of pending postings and of claimed accounts that no record has, so many at most.
    ///
    /// # Errors
    /// When the store does not answer.
    fn orphans(&self, max: usize) -> Answer<'_, Result<Vec<ReservationId>, StoreError>>;

    /// Active postings that leases hold and whose time is over, those that ended first first, so many at most.
    ///
    /// # Errors
    /// When the store does not answer.
    fn due(&self, due: Due, max: usize) -> Answer<'_, Result<Vec<Posting>, StoreError>>;

    /// What an account has, in order of asset. Assets of which it has no posting that was not consumed are left out.
    ///
    /// # Errors
    /// When the store does not answer.
    fn funds(&self, account: AccountKey, now: UnixMs) -> Answer<'_, Result<Vec<Funds>, StoreError>>;

    /// What of one asset can be spent of an account, now or soon. What leases hold whose time is not over is not looked at:
    /// there may be any number of it, and whoever is refused asks this.
    ///
    /// # Errors
    /// When the store does not answer.
    fn reach(
        &self,
        account: AccountKey,
        asset: AssetName,
        now: UnixMs,
    ) -> Answer<'_, Result<Reach, StoreError>>;

    /// The assets that an account has had, in order, as far as its first and its last [`CHANGES_SEEN_MAX`] changes tell.
    ///
    /// # Errors
    /// When the store does not answer.
    fn assets_of(&self, account: AccountKey) -> Answer<'_, Result<Vec<AssetName>, StoreError>>;

    /// The entries that changed an account after a number of its vault, in order of number, so many at most.
    ///
    /// # Errors
    /// When the store does not answer.
    fn history(
        &self,
        account: AccountKey,
        after: u64,
        max: usize,
    ) -> Answer<'_, Result<Vec<StoredEntry>, StoreError>>;

    /// The transactions of a namespace, or of all, after a place. So many at most are looked at, those of other namespaces
    /// included. They are in an order in which nothing ever appears before a place that was given out; a store on which many
    /// commit at once tells of one only when nobody can come before it any more.
    ///
    /// # Errors
    /// When the store does not answer.
    fn transactions(
        &self,
        namespace: Option<NamespaceName>,
        after: CreditCursor,
        max: usize,
    ) -> Answer<'_, Result<Transactions, StoreError>>;

    /// Everything of a vault, counted at one moment.
    ///
    /// # Errors
    /// When the store does not answer.
    fn count(&self, home: VaultKey) -> Answer<'_, Result<Census, StoreError>>;

    /// How many clients there are, in all vaults.
    ///
    /// # Errors
    /// When the store does not answer.
    fn clients(&self) -> Answer<'_, Result<u64, StoreError>>;

    /// What time it is where the rows are, if those who share them must agree on that; else their own clock serves.
    ///
    /// # Errors
    /// When the store does not answer.
    fn time(&self) -> Answer<'_, Result<Option<UnixMs>, StoreError>>;

    /// Finishes what is under way and lets go of connections and files.
    fn close(&self) -> Answer<'_, ()>;
}

/// What to look at before planning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Accounts.
    pub accounts: Vec<AccountKey>,
    /// Postings of accounts.
    pub purses: Vec<PurseQuery>,
    /// How far a client has counted.
    pub client: Option<ClientKey>,
    /// What was issued and retired of assets.
    pub assets: Vec<AssetKey>,
}

/// Which postings of an account to look at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PurseQuery {
    /// The account.
    pub account: AccountKey,
    /// The asset.
    pub asset: AssetName,
    /// So many of the largest.
    pub largest: usize,
    /// So many of the smallest.
    pub smallest: usize,
    /// Counts the others up to so many.
    pub count_max: usize,
}

/// What was found, in the order of what was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surveyed {
    /// Accounts; none where there is none.
    pub accounts: Vec<Option<Account>>,
    /// Postings of accounts, those that leases hold left out.
    pub purses: Vec<Purse>,
    /// The last number that the client committed; none if it never did.
    pub last_sequence: Option<u64>,
    /// What was issued and retired; none if the asset was never seen.
    pub assets: Vec<Option<AssetSums>>,
}

/// Postings of one account and asset that no lease holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Purse {
    /// All that are below zero, pending ones too.
    pub owed: Vec<LivePosting>,
    /// The largest active ones above zero, largest first.
    pub large: Vec<LivePosting>,
    /// The smallest active ones above zero, smallest first. They may be among the largest as well.
    pub small: Vec<LivePosting>,
    /// How many active ones above zero there are, counted up to the bound of the question.
    pub active: usize,
}

/// What was ever issued and retired of an asset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AssetSums {
    /// What was issued.
    pub issued: i128,
    /// What was retired.
    pub retired: i128,
}

/// Transactions as they were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transactions {
    /// Those that were asked for, in order.
    pub found: Vec<PlacedTransaction>,
    /// The place of the last one that was looked at, if there may be more.
    pub next: Option<CreditCursor>,
}

/// A transaction, where it is among all of them, and where it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedTransaction {
    /// Its place.
    pub place: CreditCursor,
    /// Where it happened,
    pub home: VaultKey,
    /// the number of its entry there,
    pub number: u64,
    /// and when.
    pub at: UnixMs,
    /// What happened.
    pub transaction: Transaction,
}

/// How to find a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FindRecord {
    /// By what is to happen once.
    Gate(GateId),
    /// By the client whose turn it takes.
    Client(ClientKey),
}

/// Which records to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Of this owner.
    Of(OwnerId),
    /// Of owners, others than this one, that were not heard of at a time or later.
    Silent {
        /// Who asks.
        but: OwnerId,
        /// The time.
        since: UnixMs,
    },
    /// Whose plans touch an account, whoever owns them.
    Naming(AccountKey),
}

/// Which processes are gone: those that were not heard of for so long and have no record, and those whose last sign of life
/// comes from a clock that was wrong, so that they would not fall silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone {
    /// Not heard of at this time or later.
    pub silent_since: UnixMs,
    /// Heard of after this time, which has not come yet.
    pub ahead_of: UnixMs,
}

/// Which records of a list to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordPage {
    /// Those behind this place.
    pub after: RecordPlace,
    /// So many at most, those that cannot be read included.
    pub max: usize,
}

impl RecordPage {
    /// From the oldest on.
    #[must_use]
    pub fn first(max: usize) -> RecordPage {
        RecordPage { after: RecordPlace::default(), max }
    }
}

/// Where a record stands in a list: by when it was begun, then by its reservation id as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordPlace {
    /// Milliseconds since 1970.
    pub begun_at_ms: i64,
    /// The reservation id.
    pub rid: String,
}

impl Default for RecordPlace {
    /// Before all of them.
    fn default() -> RecordPlace {
        RecordPlace { begun_at_ms: -1, rid: String::new() }
    }
}

/// Records as they were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    /// Those that can be read, oldest first.
    pub found: Vec<StoredRecord>,
    /// The others: damaged, or written by a later version.
    pub unread: Vec<UnreadRecord>,
    /// The place of the last one, if there may be more.
    pub next: Option<RecordPlace>,
}

/// A record that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadRecord {
    /// Its gate, as it is stored.
    pub gate: String,
    /// What is wrong with it.
    pub why: StoreError,
}

/// Which holds to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// Those that end at this time or earlier.
    pub now: UnixMs,
    /// Of this account alone.
    pub account: Option<AccountKey>,
    /// Those behind this place.
    pub after: DuePlace,
}

/// Where a hold stands among those that end: by when it does, then by its posting. The default is before all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct DuePlace {
    /// When it ends.
    pub ends_at: UnixMs,
    /// Its posting.
    pub id: PostingId,
}

/// What an account has of one asset: the sums of its postings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Funds {
    /// The asset.
    pub asset: AssetName,
    /// Active, held by no lease.
    pub active: i128,
    /// Pending, held by no lease.
    pub pending: i128,
    /// Held by leases whose time is not over, active or pending.
    pub held: i128,
    /// Held by leases whose time is over, active or pending.
    pub due: i128,
}

/// What can be spent of one asset of an account, now or soon: the sums of its postings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Active, held by no lease.
    pub active: i128,
    /// Pending, held by no lease.
    pub pending: i128,
    /// Held by leases whose time is over, active or pending.
    pub due: i128,
}

/// A vault, counted at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// What was issued and retired, in order of asset, and what all postings that were not consumed add up to.
    pub assets: Vec<AssetCensus>,
    /// The first accounts whose entries do not add up to their postings.
    pub uneven: Vec<UnevenAccount>,
    /// The sagas under way that touch the vault.
    pub records: u64,
}

/// An asset, counted at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssetCensus {
    /// The asset.
    pub asset: AssetName,
    /// What was issued and retired.
    pub sums: AssetSums,
    /// What all postings that were not consumed add up to.
    pub live: i128,
    /// What all entries added to all accounts, held amounts included.
    pub entered: i128,
}

/// An account whose entries do not add up to its postings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnevenAccount {
    /// The account.
    pub account: AccountName,
    /// The asset.
    pub asset: AssetName,
    /// What its postings that were not consumed add up to.
    pub live: i128,
    /// What its entries added, held amounts included.
    pub entered: i128,
}
