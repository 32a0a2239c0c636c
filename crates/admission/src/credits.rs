//! Credit that is kept outside the command that reserves: in a Book of its own right, or in a database.

use std::sync::Arc;

use earmark_core::{
    Actor, BalanceInfo, ClientId, CreditShortage, Definition, LeaseId, LimitKey, NamespaceName, Usage,
    VaultName,
};

use crate::backend::{AccountPath, Amount, Answer, BackendError};
use crate::callers::{ChangePage, CreditCursor};
use crate::writes::{Audit, CreditReadError, EntryPage, WriteAnswer, WriteRequest};

/// Whatever keeps accounts and holds: a Book, or a database.
///
/// Every call may be repeated: the same hold or settlement of a lease has one effect, and its answer stays the same.
pub trait Credits: Send + Sync + 'static {
    /// Sets aside all that each lease asks for, or nothing of it. A refusal is remembered with its lease. The answers
    /// are in the order of the requests. Whoever is behind it is written down with what it did, and not with what an
    /// earlier copy of it has done; nobody means Earmark itself. Their right was judged before.
    fn hold_by(
        &self,
        actor: Option<Actor>,
        requests: Vec<HoldRequest>,
    ) -> Answer<'_, Vec<Result<HoldAnswer, BackendError>>>;

    /// Pays what each lease cost, and gives the rest back. A lease that is not known here is marked, so that a hold of
    /// it that comes later finds that it has ended. The answers are in the order of the requests; whoever is behind it is
    /// written down as with a hold.
    fn settle_by(
        &self,
        actor: Option<Actor>,
        requests: Vec<SettleRequest>,
    ) -> Answer<'_, Vec<Result<SettleAnswer, BackendError>>>;

    /// The same as [`hold_by`](Credits::hold_by), of Earmark itself.
    fn hold(&self, requests: Vec<HoldRequest>) -> Answer<'_, Vec<Result<HoldAnswer, BackendError>>> {
        self.hold_by(None, requests)
    }

    /// The same as [`settle_by`](Credits::settle_by), of Earmark itself.
    fn settle(&self, requests: Vec<SettleRequest>) -> Answer<'_, Vec<Result<SettleAnswer, BackendError>>> {
        self.settle_by(None, requests)
    }

    /// What became of the holds of a lease.
    fn holds(&self, namespace: NamespaceName, lease: LeaseId) -> Answer<'_, Result<HoldState, BackendError>>;

    /// Applies a transaction of a vault, once.
    fn write(&self, request: WriteRequest) -> Answer<'_, Result<WriteAnswer, BackendError>>;

    /// The last number that a client committed in a vault; 0 before the first.
    fn client_state(
        &self,
        namespace: NamespaceName,
        vault: VaultName,
        client: ClientId,
    ) -> Answer<'_, Result<u64, CreditReadError>>;

    /// What an account has, in order of asset.
    fn balances(&self, account: AccountPath) -> Answer<'_, Result<Vec<BalanceInfo>, CreditReadError>>;

    /// What the account of a limit of kind `credit` has of the limit's asset, as a limit on it sees that: of an account
    /// that is unknown, frozen or closed nothing can be taken, and more than 64 bits can count is as much as they can.
    fn usage(
        &self,
        namespace: NamespaceName,
        limit: Arc<Definition>,
    ) -> Answer<'_, Result<Usage, BackendError>>;

    /// The history of an account after a number (0: from the oldest that is kept), so many entries at most.
    fn entries(
        &self,
        account: AccountPath,
        after: u64,
        page_size: usize,
    ) -> Answer<'_, Result<EntryPage, CreditReadError>>;

    /// The transactions that were committed after a place in a namespace, or in all of them, so many at most.
    fn changes(
        &self,
        namespace: Option<NamespaceName>,
        after: CreditCursor,
        page_size: usize,
    ) -> Answer<'_, Result<ChangePage, BackendError>>;

    /// Counts a vault anew.
    fn audit(&self, namespace: NamespaceName, vault: VaultName)
    -> Answer<'_, Result<Audit, CreditReadError>>;

    /// Whether it can serve; if not, why not.
    ///
    /// # Errors
    /// A sentence for an operator.
    fn ready(&self) -> Result<(), String>;

    /// Finishes what is under way and takes nothing more.
    fn shut_down(&self) -> Answer<'_, ()>;
}

/// Sets credit aside for a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldRequest {
    /// Where the vaults and the lease live.
    pub namespace: NamespaceName,
    /// The attempt, which the limits have let pass.
    pub lease: LeaseId,
    /// What to hold, in order of key: at least one, no key twice.
    pub holds: Vec<HoldPart>,
}

/// How much of whose credit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldPart {
    /// A limit of kind `credit`, as it is defined now. What becomes of the hold later follows from this copy of it.
    pub limit: Arc<Definition>,
    /// How much; at least 1.
    pub amount: u64,
}

/// The answer to a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HoldAnswer {
    /// All is held, now or since the first attempt.
    Held,
    /// Nothing is held, and never will be for this lease.
    Refused {
        /// The limit on the account that has too little; the first in order of key if there are several.
        key: LimitKey,
        /// What is wrong with the account.
        why: CreditShortage,
    },
    /// What was held was settled or went back: the lease has ended.
    Ended,
}

/// Says what a lease cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettleRequest {
    /// Where the vaults and the lease live.
    pub namespace: NamespaceName,
    /// The attempt that was allowed.
    pub lease: LeaseId,
    /// By key of a limit of kind `credit`. One that is missing costs all that was held; 0 costs nothing.
    pub actuals: Vec<Amount>,
    /// Whether a key without an actual costs nothing instead: the lease was denied or given up.
    pub is_release: bool,
}

/// What a settlement did. Of one that is asked for again it says only that the lease is known, so that what was paid is
/// counted once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SettleAnswer {
    /// Whether the lease held anything here, now or before.
    pub is_known: bool,
    /// Keys of the request that the lease does not hold anything of.
    pub ignored: Vec<LimitKey>,
    /// Credit that accounts had, and paid.
    pub paid: u64,
    /// Credit that accounts paid without having it, and owe.
    pub debt: u64,
    /// Credit that nobody paid: the account had too little and keeps no debt, or is closed.
    pub uncollected: u64,
}

/// What became of the holds of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HoldState {
    /// The lease never asked for credit here.
    Unknown,
    /// All is held.
    Held,
    /// It was refused, for good.
    Refused {
        /// The limit on the account that had too little.
        key: LimitKey,
        /// What was wrong with the account.
        why: CreditShortage,
    },
    /// It was settled, or went back.
    Ended,
}
