//! The storage interface of a saga: conditional changes, whole commits and reads.

use std::sync::Arc;

use earmark_admission::{AccountQuery, Answer, CreditCursor, EntryOrder};
use earmark_core::{AccountName, AccountStatus, Actor, AssetName, NamespaceName, UnixMs};

use crate::id::{GateId, OwnerId, PostingId, ReservationId};
use crate::model::{
    Account, AccountKey, AssetKey, Client, ClientKey, LeaseKey, LivePosting, Phase, Plan, Posting, PostingHold,
    PostingState, Record, SagaToken, StoredEntry, StoredRecord, Transaction, UsageKey, VaultKey,
};

/// Changes per [`Store::write`] call.
pub const CHANGES_MAX: usize = 16;

/// Changes read at each end of an account's history to list the assets it has had. Reading the whole history would take
/// too long: it may have millions of changes.
pub const CHANGES_SEEN_MAX: usize = 256;

/// Why a store call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The queue or a lock is full. Nothing was done; retry.
    #[error("the store is busy: {0}")]
    Busy(&'static str),
    /// The store is down, starting, or cut off by the network. Nothing was done.
    #[error("the store cannot be reached: {0}")]
    Unreachable(String),
    /// The store rejected the call: disk full, read-only, or a missing permission. Nothing was done.
    #[error("the store refused the call: {0}")]
    Refused(String),
    /// No answer in time, or the connection broke. The change may or may not have been made.
    #[error("the store does not answer: {0}")]
    Unavailable(String),
    /// A row is damaged, or a newer version wrote it.
    #[error("the store has damaged or unknown data: {0}")]
    Corrupt(String),
}

impl StoreError {
    /// Whether a retry can succeed without an operator.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            StoreError::Busy(_) | StoreError::Unreachable(_) | StoreError::Unavailable(_) => true,
            StoreError::Refused(_) | StoreError::Corrupt(_) => false,
        }
    }
}

/// One conditional change, which is one step of a saga. It happens as a whole or not at all, and returns the number of
/// rows it changed. The saga decides what that number means.
///
/// A step with a [`SagaToken`] changes nothing unless the saga record has the same gate, reservation id and owner, and
/// is in the phase that the step requires. So a delayed step of an owner that lost its saga changes nothing.
#[derive(Clone, Debug)]
pub enum Change {
    /// Inserts a vault and its account `revenue` if they are missing. Rows: the rows inserted.
    OpenVault(VaultKey),
    /// Inserts the saga record in phase `reserving`, unless a record of the same gate, or of the same client, exists.
    /// Rows: 1 or 0.
    Begin(Arc<Record>),
    /// Phase `reserving`. Claims the accounts that the plan opens, freezes, unfreezes or closes. An account to open is
    /// inserted if it is missing. Any other is marked if it is unclaimed and has the standing that the plan expects.
    /// Rows: the accounts claimed.
    Claim(SagaToken, Arc<Plan>),
    /// Phase `reserving`. Turns the plan's active inputs into pending ones of this reservation id. Rows: the inputs
    /// reserved.
    Reserve(SagaToken, Arc<Plan>),
    /// The point of no return: turns phase `reserving` into `finalizing`. It requires that this reservation id holds
    /// all inputs and claims of the plan, that no entry has this gate, that every account meets the plan's needs,
    /// that the client's last sequence is one less than the plan's, and that the counters have room for the plan's
    /// growth. It adds the growth to the counters. Rows: 1 or 0.
    ///
    /// An account meets a need if this reservation id claimed it. Otherwise it must exist, not be claimed for opening
    /// or closing, not be closed, and, if the plan spends from it, not be frozen.
    Decide(SagaToken, Arc<Plan>),
    /// Phase `finalizing`. Turns the plan's inputs that are pending with this reservation id into inactive ones. Rows:
    /// the inputs consumed.
    Finalize(SagaToken, Arc<Plan>),
    /// Phase `finalizing`. Inserts the plan's outputs that are missing, as active postings. Rows: the outputs inserted.
    Create(SagaToken, Arc<Plan>),
    /// Phase `finalizing`. Gives the accounts that this reservation id claimed their new standing and removes the
    /// claims. Rows: the accounts changed.
    Apply(SagaToken, Arc<Plan>),
    /// Phase `finalizing`. If no entry has this gate: inserts the plan's entries under the next numbers of their
    /// vaults, adds to the issued and retired totals, and advances the client's sequence. Rows: the entries inserted.
    Record(SagaToken, Arc<Plan>),
    /// Turns phase `reserving` into `releasing`. Rows: 1 or 0.
    Abort(SagaToken),
    /// Turns the postings that are pending with this reservation id back into active ones, unless a record in phase
    /// `reserving` or `finalizing` has this id. Rows: the postings released.
    Release(ReservationId),
    /// Removes the claims of this reservation id under the same condition, and deletes accounts that were being opened.
    /// Rows: the accounts unclaimed.
    Unclaim(ReservationId),
    /// Inserts the first overdraft mark of an account and an asset, or the first plan mark of an account, unless a posting
    /// has this id. Rows: 1 or 0.
    ///
    /// A mark is a posting of amount 0. A plan that takes a capped account below zero, or that issues or changes the plan
    /// of an account, consumes the mark and creates the next. So two such plans cannot both commit.
    Mark(Box<Posting>),
    /// Moves the ends of holds and records their usage, if every posting is active and has the extension that was read.
    /// Rows: the postings changed; all or 0.
    Renew(Vec<Renewal>),
    /// Deletes the record if it is in phase `releasing`, or in phase `finalizing` with its entry written. Rows: 1 or 0.
    End(SagaToken),
    /// Gives the record to another owner if the heartbeat of its owner is older than a time, or missing. Rows: 1 or 0.
    TakeOver {
        /// The record, with its current owner.
        token: SagaToken,
        /// The new owner.
        to: OwnerId,
        /// The owner must have no heartbeat at this time or later.
        expired_since: UnixMs,
    },
    /// Records a heartbeat of an owner. Rows: 1.
    Heartbeat(OwnerId, UnixMs),
    /// Deletes the heartbeat row of an owner that shuts down or is dead. Rows: 1, or 0 if it has none.
    Leave(OwnerId),
}

/// The new end and usage of the hold on a posting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// The posting.
    pub id: PostingId,
    /// The extension of its hold when it was read.
    pub read: u32,
    /// Its hold after the change. The lease and the limit are those of the posting.
    pub hold: PostingHold,
}

impl Change {
    /// The phase that a step requires of its record, if there is only one.
    pub(crate) fn required_phase(&self) -> Option<(&SagaToken, Phase)> {
        match self {
            Change::Claim(token, _) | Change::Reserve(token, _) => Some((token, Phase::Reserving)),
            Change::Decide(token, _) | Change::Abort(token) => Some((token, Phase::Reserving)),
            Change::Finalize(token, _) | Change::Create(token, _) => Some((token, Phase::Finalizing)),
            Change::Apply(token, _) | Change::Record(token, _) => Some((token, Phase::Finalizing)),
            Change::Begin(_) | Change::End(_) | Change::TakeOver { .. } | Change::OpenVault(_) => None,
            Change::Release(_) | Change::Unclaim(_) | Change::Renew(_) | Change::Mark(_) => None,
            Change::Heartbeat(..) | Change::Leave(_) => None,
        }
    }

    /// The gate of the saga that this change is a step of.
    pub(crate) fn gate(&self) -> Option<GateId> {
        match self {
            Change::Begin(record) => Some(record.token.gate),
            Change::End(token) | Change::TakeOver { token, .. } => Some(token.gate),
            _ => self.required_phase().map(|(token, _)| token.gate),
        }
    }
}

/// The rows of credit: accounts, postings, entries and saga records. The single changes decide nothing; only
/// [`commit`](Store::commit) judges a whole plan.
///
/// A read fails when the store does not answer; a write also when it was not made, or when its outcome is unknown.
/// Every read that starts after a finished write sees its changes. A commit, [`Change::Record`] and
/// [`Change::OpenVault`] are durable when they return, with everything that finished before them. Other changes may be
/// lost in a crash of the store, but only together with all later ones, because the order of saga steps matters.
pub trait Store: Send + Sync + 'static {
    /// Makes changes in order and returns the rows that each changed. The list is not a transaction: each change sees
    /// the one before it, and after an error any prefix may have been made.
    fn write(&self, changes: Vec<Change>) -> Answer<'_, Result<Vec<u64>, StoreError>>;

    /// Commits the plan of a record as a whole; returns whether it took effect. The plan must claim no account.
    ///
    /// The conditions are those of [`Change::Begin`], [`Change::Reserve`] and [`Change::Decide`]. If one does not hold,
    /// nothing is written. Other processes never see the record.
    fn commit(&self, record: Arc<Record>) -> Answer<'_, Result<bool, StoreError>>;

    /// Reads everything that a plan is made from. The parts may be from different moments: the plan is a proposal, and
    /// the commit checks it again.
    fn survey(&self, survey: Survey) -> Answer<'_, Result<Surveyed, StoreError>>;

    /// The entries of a gate in the order of the plan; empty if the saga never committed.
    fn entries(&self, gate: GateId) -> Answer<'_, Result<Vec<StoredEntry>, StoreError>>;

    /// All entries about a lease, unordered.
    fn lease(&self, lease: LeaseKey) -> Answer<'_, Result<Vec<StoredEntry>, StoreError>>;

    /// The unconsumed postings that a lease holds, unordered.
    fn held(&self, lease: LeaseKey) -> Answer<'_, Result<Vec<(Posting, PostingState)>, StoreError>>;

    /// The record of a saga.
    fn record(&self, find: FindRecord) -> Answer<'_, Result<Option<StoredRecord>, StoreError>>;

    /// Saga records, oldest first. A record that cannot be read does not hide the others.
    fn records(&self, filter: Filter, page: RecordPage) -> Answer<'_, Result<Records, StoreError>>;

    /// Owners whose heartbeat row is no longer needed, at most `max`.
    fn stale_owners(&self, gone: StaleOwners, max: usize) -> Answer<'_, Result<Vec<OwnerId>, StoreError>>;

    /// Reservation ids of pending postings and claimed accounts that have no saga record, at most `max`.
    fn orphans(&self, max: usize) -> Answer<'_, Result<Vec<ReservationId>, StoreError>>;

    /// Active postings of holds that have timed out, earliest end first, at most `max`.
    fn due(&self, due: DueQuery, max: usize) -> Answer<'_, Result<Vec<Posting>, StoreError>>;

    /// The grants and holds of an account, and its plan mark: its unconsumed postings except plain credit, unordered.
    fn grants(&self, account: AccountKey) -> Answer<'_, Result<Vec<(Posting, PostingState)>, StoreError>>;

    /// Active grants whose expiry the query has reached, and marks of plans that are due, earliest first, at most `max`.
    /// Of an account they are unordered.
    fn expiring(&self, due: DueQuery, max: usize) -> Answer<'_, Result<Vec<Posting>, StoreError>>;

    /// The plan mark of an account; `None` if it never had a plan.
    fn plan_mark(&self, account: AccountKey) -> Answer<'_, Result<Option<(Posting, PostingState)>, StoreError>>;

    /// The sums of an account's unconsumed postings, ordered by asset.
    fn funds(&self, account: AccountKey, as_of: AsOf) -> Answer<'_, Result<Vec<Funds>, StoreError>>;

    /// The amounts of one asset that an account can spend now or soon. It does not read holds that have not timed out:
    /// there may be thousands, and every refused caller asks this.
    fn spendable(
        &self,
        account: AccountKey,
        asset: AssetName,
        as_of: AsOf,
    ) -> Answer<'_, Result<Spendable, StoreError>>;

    /// The assets in the first and last [`CHANGES_SEEN_MAX`] changes of an account, in order.
    fn assets_of(&self, account: AccountKey) -> Answer<'_, Result<Vec<AssetName>, StoreError>>;

    /// The accounts of a vault that match a query, ordered by name: one more than its page, if there are more.
    /// Accounts that are being opened are left out.
    fn accounts(
        &self,
        home: VaultKey,
        query: AccountQuery,
    ) -> Answer<'_, Result<Vec<(AccountName, AccountStatus)>, StoreError>>;

    /// Entries of an account by number.
    fn history(&self, account: AccountKey, query: HistoryQuery) -> Answer<'_, Result<Vec<StoredEntry>, StoreError>>;

    /// Transactions, the latest commit first. Transactions appear only before those already listed: a store with
    /// concurrent commits withholds a transaction until no earlier one can still commit.
    fn transactions(&self, query: TransactionQuery) -> Answer<'_, Result<Transactions, StoreError>>;

    /// The sums of a vault at one moment, for the audit.
    fn census(&self, home: VaultKey) -> Answer<'_, Result<Census, StoreError>>;

    /// The values of counters, in the order of the keys.
    fn usage(&self, keys: Vec<UsageKey>) -> Answer<'_, Result<Vec<u64>, StoreError>>;

    /// The store's clock, if processes that share the rows must use it; `None` if they use their own.
    fn time(&self) -> Answer<'_, Result<Option<UnixMs>, StoreError>>;

    /// Finishes the calls in progress, then closes connections and files.
    fn close(&self) -> Answer<'_, ()>;
}

/// The times by which sums of credit are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsOf {
    /// Holds that end at this time or earlier have timed out.
    pub now: UnixMs,
    /// Grants that expire at this time or earlier have expired. It stands still while the clocks differ.
    pub expiry: UnixMs,
}

impl AsOf {
    /// One time for both.
    #[must_use]
    pub const fn at(now: UnixMs) -> AsOf {
        AsOf { now, expiry: now }
    }
}

/// Which entries of an account to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryQuery {
    /// The order of their numbers.
    pub order: EntryOrder,
    /// Only entries that follow this number in that order; 0 for all.
    pub after: u64,
    /// The most entries.
    pub max: usize,
}

/// The rows to read before planning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Accounts.
    pub accounts: Vec<AccountKey>,
    /// Spendable postings.
    pub posting_sets: Vec<PostingQuery>,
    /// The client whose last sequence and owner are needed.
    pub client: Option<ClientKey>,
    /// Assets whose issued and retired totals are needed.
    pub assets: Vec<AssetKey>,
}

/// Which spendable postings of an account to read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PostingQuery {
    /// The account.
    pub account: AccountKey,
    /// The asset.
    pub asset: AssetName,
    /// Number of largest postings.
    pub largest: usize,
    /// Number of smallest postings.
    pub smallest: usize,
    /// Count of active postings stops here.
    pub count_max: usize,
}

/// The rows found, in the order of the query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surveyed {
    /// Accounts; `None` if missing.
    pub accounts: Vec<Option<Account>>,
    /// Postings that no lease holds.
    pub posting_sets: Vec<PostingSet>,
    /// The client; `None` if it never committed.
    pub client: Option<Client>,
    /// Issued and retired totals; `None` if the asset is unknown.
    pub assets: Vec<Option<AssetSums>>,
}

/// The grant postings of one account and asset that a survey returns: the first in spending order. A grant has a few, and
/// an account has up to 64 grants.
pub const GRANT_POSTINGS_MAX: usize = 2_048;

/// Postings of one account and asset that no lease holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PostingSet {
    /// The grants in spending order, pending and expired ones included. All other lists have plain credit only.
    pub grants: Vec<LivePosting>,
    /// All negative postings, pending ones included.
    pub owed: Vec<LivePosting>,
    /// The overdraft mark, if the account ever needed one. It may be pending.
    pub mark: Option<LivePosting>,
    /// The plan mark, if the plan of the account is or was about this asset. It may be pending.
    pub plan_mark: Option<LivePosting>,
    /// The largest active positive postings, largest first.
    pub large: Vec<LivePosting>,
    /// The smallest active positive postings, smallest first. They may also be among the largest.
    pub small: Vec<LivePosting>,
    /// The number of active positive postings, up to the bound of the query.
    pub active: usize,
}

impl PostingSet {
    /// Adds a grant. The plan mark has the amount 0.
    pub(crate) fn add_grant(&mut self, posting: LivePosting) {
        match posting.amount {
            0 => self.plan_mark = Some(posting),
            _ => self.grants.push(posting),
        }
    }

    /// Adds a posting that is not positive. The overdraft mark has the amount 0.
    pub(crate) fn add_owed(&mut self, posting: LivePosting) {
        match posting.amount {
            0 => self.mark = Some(posting),
            _ => self.owed.push(posting),
        }
    }
}

/// The totals of an asset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AssetSums {
    /// Total ever issued.
    pub issued: i128,
    /// Total ever retired.
    pub retired: i128,
    /// Total that ever expired.
    pub expired: i128,
}

/// Which transactions to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionQuery {
    /// Those of this namespace; `None` for all.
    pub namespace: Option<NamespaceName>,
    /// Those of this actor, found by an index. A cursor belongs to the actor that it was made for.
    pub actor: Option<Actor>,
    /// Those behind this position.
    pub after: CreditCursor,
    /// Most transactions read, including those of other namespaces.
    pub max: usize,
}

/// A page of transactions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transactions {
    /// The matching transactions, the latest commit first.
    pub found: Vec<LoggedTransaction>,
    /// The cursor after the last transaction read, if there may be more.
    pub next: Option<CreditCursor>,
}

/// A transaction with its position in the order of all commits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedTransaction {
    /// Its cursor.
    pub place: CreditCursor,
    /// Its vault.
    pub home: VaultKey,
    /// The number of its entry in the vault.
    pub number: u64,
    /// Its wall time.
    pub at: UnixMs,
    /// The transaction.
    pub transaction: Transaction,
}

/// How to find a saga record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FindRecord {
    /// By its gate.
    Gate(GateId),
    /// By the client whose sequence it claims.
    Client(ClientKey),
}

/// Which saga records to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Records of this owner.
    OwnedBy(OwnerId),
    /// Records of other owners whose heartbeat is older than a time.
    Expired {
        /// The owner that asks.
        except: OwnerId,
        /// The time.
        since: UnixMs,
    },
    /// Records whose plan names an account, of any owner.
    Touching(AccountKey),
}

/// Owners whose heartbeat rows can be deleted: dead ones without a saga record, and those whose heartbeat lies in the
/// future because their clock was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaleOwners {
    /// No heartbeat at this time or later.
    pub expired_since: UnixMs,
    /// A heartbeat after this time comes from a wrong clock.
    pub ahead_of: UnixMs,
}

/// One page of a list of saga records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordPage {
    /// The page starts after this cursor.
    pub after: RecordCursor,
    /// Records per page, unreadable ones included.
    pub max: usize,
}

impl RecordPage {
    /// The page with the oldest records.
    #[must_use]
    pub fn first(max: usize) -> RecordPage {
        RecordPage { after: RecordCursor::default(), max }
    }
}

/// The position of a saga record in a list: start time, then reservation id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordCursor {
    /// Milliseconds since 1970.
    pub begun_at_ms: i64,
    /// The reservation id.
    pub rid: String,
}

impl Default for RecordCursor {
    /// Before the first record.
    fn default() -> RecordCursor {
        RecordCursor { begun_at_ms: -1, rid: String::new() }
    }
}

/// A page of saga records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    /// The readable records, oldest first.
    pub found: Vec<StoredRecord>,
    /// Records that are damaged or that a newer version wrote.
    pub unread: Vec<UnreadRecord>,
    /// The cursor after the last record, if there may be more.
    pub next: Option<RecordCursor>,
}

/// A saga record that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadRecord {
    /// Its gate, as stored.
    pub gate: String,
    /// Why it cannot be read.
    pub why: StoreError,
}

/// Which timed-out holds or expired grants to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueQuery {
    /// Holds that end, or grants that expire, at this time or earlier.
    pub now: UnixMs,
    /// Only those of this account.
    pub account: Option<AccountKey>,
    /// Only those after this cursor.
    pub after: DueCursor,
}

/// The position of a hold or grant in a list: end time, then posting id. The default is before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct DueCursor {
    /// End of the hold or grant.
    pub ends_at: UnixMs,
    /// Its posting.
    pub id: PostingId,
}

/// The sums of an account's postings of one asset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Funds {
    /// The asset.
    pub asset: AssetName,
    /// Active postings that no lease holds and that have not expired.
    pub active: i128,
    /// Grants that have expired, until their entry is written.
    pub expired: i128,
    /// Pending postings that no lease holds.
    pub pending: i128,
    /// Postings in holds that have not timed out, and the part of timed-out holds that will be charged.
    pub held: i128,
    /// The part of timed-out holds that will be returned.
    pub due: i128,
}

/// The amounts of one asset that an account can spend now or soon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spendable {
    /// Active postings that no lease holds and that have not expired.
    pub active: i128,
    /// Pending postings that no lease holds.
    pub pending: i128,
    /// The part of timed-out holds that will be returned.
    pub due: i128,
}

/// The sums of a vault at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Totals and sums of each asset, in order.
    pub assets: Vec<AssetCensus>,
    /// The first accounts whose entries and postings differ.
    pub uneven: Vec<UnevenAccount>,
    /// Sagas in progress that touch the vault.
    pub records: u64,
}

/// The sums of an asset at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssetCensus {
    /// The asset.
    pub asset: AssetName,
    /// The issued and retired totals.
    pub sums: AssetSums,
    /// The sum of all unconsumed postings.
    pub live: i128,
    /// The sum of all entries, held amounts included.
    pub entered: i128,
}

/// An account whose entries and postings differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnevenAccount {
    /// The account.
    pub account: AccountName,
    /// The asset.
    pub asset: AssetName,
    /// The sum of its unconsumed postings.
    pub live: i128,
    /// The sum of its entries, held amounts included.
    pub entered: i128,
}
