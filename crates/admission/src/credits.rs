//! The trait of credit that is kept outside the command that reserves: in a Book or in a SQL database.

use std::sync::Arc;

use earmark_core::{
    Actor, BalanceInfo, ClientClaim, ClientId, ClientOwner, CreditShortage, CreditTerms, Definition, GrantInfo,
    InvalidWrite, LeaseId, LimitKey, NamespaceName, Principal, QUOTA_MAX, SettleLabels, UnixMs, Usage, VaultName,
    WriteError,
};

use crate::backend::{AccountPath, Amount, Answer, Answers, BackendError, Refusal};
use crate::callers::{ChangePage, ChangeQuery};
use crate::credit_lists::{AccountPage, AccountQuery, EntryQuery};
use crate::writes::{Audit, CreditReadError, CreditRoom, EntryPage, WriteAnswer, WriteRequest};

/// Keeps accounts and credit holds, in a Book or in a SQL database.
///
/// Every call may be repeated: the same hold or settlement of a lease has one effect and one answer.
pub trait Credits: Send + Sync + 'static {
    /// Holds all amounts of each lease or none. A refusal is remembered with its lease. Answers are in request order.
    ///
    /// `actor` is the authorized caller, `None` for Earmark itself. It is recorded with the effects of this request,
    /// not with those of an earlier attempt.
    fn hold(&self, actor: Option<Actor>, requests: Vec<HoldRequest>) -> Answers<'_, HoldAnswer>;

    /// Holds more for each lease, all amounts or none: the first step of an extension. The limits judge the number, so
    /// gaps are allowed, and a number below the last one answers `Held` and changes nothing. A repeated number holds
    /// nothing more. A lease without holds gets its first ones. A refusal is not remembered: the limits do that.
    /// Answers are in request order.
    fn grow(&self, actor: Option<Actor>, requests: Vec<GrowRequest>) -> Answers<'_, GrowAnswer> {
        drop(actor);
        Box::pin(std::future::ready(requests.iter().map(|_| Err(cannot_extend())).collect()))
    }

    /// Returns the growth of a number that the limits denied or refused. The next [`grow`](Credits::grow) with this
    /// number holds again. Nothing changes if [`renew`](Credits::renew) confirmed the growth, or nothing was grown.
    fn shrink(&self, actor: Option<Actor>, request: ShrinkRequest) -> Answer<'_, Result<(), BackendError>> {
        drop((actor, request));
        Box::pin(std::future::ready(Err(cannot_extend())))
    }

    /// Confirms the growth of each lease, moves the ends of its holds and records its usage: the last step of an
    /// extension, which the limits have accepted. A repeated number answers the same ends. Answers are in request order.
    fn renew(&self, actor: Option<Actor>, requests: Vec<RenewRequest>) -> Answers<'_, RenewAnswer> {
        drop(actor);
        Box::pin(std::future::ready(requests.iter().map(|_| Err(cannot_extend())).collect()))
    }

    /// Charges the cost of each lease and releases the rest of its hold. An unknown lease is marked as ended, so that a
    /// hold that arrives later is refused. Answers are in request order. `actor` is recorded as in a hold.
    fn settle(&self, actor: Option<Actor>, requests: Vec<SettleRequest>) -> Answers<'_, SettleAnswer>;

    /// The state of the credit holds of a lease. `requirements` are all those of its reserve.
    fn holds(
        &self,
        namespace: NamespaceName,
        lease: LeaseId,
        requirements: Vec<Amount>,
    ) -> Answer<'_, Result<HoldState, BackendError>>;

    /// Applies a transaction of a vault exactly once. `writer` is authorized; here it claims its client id.
    fn write(&self, writer: Writer, request: WriteRequest) -> Answer<'_, Result<WriteAnswer, BackendError>>;

    /// The last sequence number that a client committed in a vault; 0 before the first.
    fn client_state(
        &self,
        namespace: NamespaceName,
        vault: VaultName,
        client: ClientId,
    ) -> Answer<'_, Result<u64, CreditReadError>>;

    /// The balances of an account, ordered by asset.
    fn balances(&self, account: AccountPath) -> Answer<'_, Result<Vec<BalanceInfo>, CreditReadError>>;

    /// The grants of an account, by asset and then in spending order. Plain credit is one of them.
    fn grants(&self, account: AccountPath) -> Answer<'_, Result<Vec<GrantInfo>, CreditReadError>>;

    /// The account of a credit limit as a limit: `available` is 0 for an unknown, frozen or closed account, and amounts
    /// saturate at 64 bits.
    fn usage(&self, namespace: NamespaceName, limit: Arc<Definition>) -> Answer<'_, Result<Usage, BackendError>>;

    /// The largest hold that would succeed now; see [`Backend::credit_room`](crate::Backend::credit_room).
    fn room(&self, namespace: NamespaceName, terms: CreditTerms) -> Answer<'_, Result<CreditRoom, BackendError>>;

    /// A page of the accounts of a vault with their balances, ordered by name.
    fn accounts(
        &self,
        namespace: NamespaceName,
        vault: VaultName,
        query: AccountQuery,
    ) -> Answer<'_, Result<AccountPage, CreditReadError>>;

    /// A page of an account's history.
    fn entries(&self, account: AccountPath, query: EntryQuery) -> Answer<'_, Result<EntryPage, CreditReadError>>;

    /// A page of committed transactions, newest first. Limits are not changed here, so the key of the query is ignored.
    fn changes(&self, query: ChangeQuery) -> Answer<'_, Result<ChangePage, BackendError>>;

    /// Recounts a vault and compares it with its journal.
    fn audit(&self, namespace: NamespaceName, vault: VaultName) -> Answer<'_, Result<Audit, CreditReadError>>;

    /// The accounts, clients and keys of namespaces that quotas bound, in the order of the request. Zeros for credit in
    /// the registry's Book, which counts it itself.
    fn counts(&self, namespaces: Vec<NamespaceName>) -> Answer<'_, Result<Vec<CreditCounts>, BackendError>> {
        let counts = vec![CreditCounts::default(); namespaces.len()];
        Box::pin(std::future::ready(Ok(counts)))
    }

    /// Whether credit does not expire, because clocks differ.
    fn is_expiry_waiting(&self) -> bool {
        false
    }

    /// Whether the credit store can serve.
    ///
    /// # Errors
    /// The reason, for an operator.
    fn ready(&self) -> Result<(), String>;

    /// Finishes pending requests and refuses new ones.
    fn shut_down(&self) -> Answer<'_, ()>;
}

/// The caller of a write to a vault.
#[derive(Clone)]
pub struct Writer {
    /// Its right. The registry's Book judges by it who owns a client id.
    pub by: Principal,
    /// Its claim to the client id, for credit outside of the registry's Book. `None` if it may write with any client id
    /// and owns none.
    pub claim: Option<ClientClaim>,
    /// Whether an owner of a client id still counts, by the keys in the registry.
    pub is_owner_valid: Arc<dyn Fn(&ClientOwner) -> bool + Send + Sync>,
    /// The most that the namespace may have outside of the registry's Book.
    pub quotas: CreditCounts,
}

/// Rows of credit of one namespace, as quotas count them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreditCounts {
    /// Accounts, without the `revenue` of each vault, which the registry counts.
    pub accounts: u64,
    /// Clients of vaults.
    pub clients: u64,
    /// Idempotency keys in vaults.
    pub idempotency_keys: u64,
}

impl Writer {
    /// Earmark itself, which owns no client id.
    #[must_use]
    pub fn system() -> Writer {
        let quotas = CreditCounts { accounts: QUOTA_MAX, clients: QUOTA_MAX, idempotency_keys: QUOTA_MAX };
        Writer { by: Principal::System, claim: None, is_owner_valid: Arc::new(|_| true), quotas }
    }

    /// The owner of the client id once the write is committed, if the writer claims it.
    ///
    /// # Errors
    /// When the client id belongs to somebody else.
    pub fn claim(&self, client: &ClientId, current: Option<&ClientOwner>) -> Result<Option<ClientOwner>, WriteError> {
        let Some(claim) = &self.claim else { return Ok(None) };
        if claim.is_taken(current, |owner| (self.is_owner_valid)(owner)) {
            return Err(WriteError::Invalid(InvalidWrite::ClientClaimed { client: client.clone() }));
        }
        Ok(Some(claim.owner.clone()))
    }
}

/// Holds credit for a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldRequest {
    /// The namespace of the vaults and of the lease.
    pub namespace: NamespaceName,
    /// The lease, which the limits have allowed.
    pub lease: LeaseId,
    /// The holds, ordered by key: at least one, keys unique.
    pub holds: Vec<HoldPart>,
}

/// An amount to hold for one credit limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldPart {
    /// The credit limit as defined now. Settlement and timeout of the hold use this copy.
    pub limit: Arc<Definition>,
    /// The amount; at least 1.
    pub amount: u64,
}

/// The answer to a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HoldAnswer {
    /// All amounts are held, by this request or by its first attempt.
    Held,
    /// Nothing is held. The refusal is final for this lease.
    Refused {
        /// The credit limit of the account with too little; the first by key if there are several.
        key: LimitKey,
        /// The state of the account.
        why: CreditShortage,
    },
    /// The hold was settled or released: the lease has ended.
    Ended,
}

fn cannot_extend() -> BackendError {
    BackendError::Failed("this credit store cannot extend holds".into())
}

/// Holds more credit for a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrowRequest {
    /// The namespace of the vaults and of the lease.
    pub namespace: NamespaceName,
    /// The lease, which is allowed.
    pub lease: LeaseId,
    /// The number of the extension.
    pub number: u32,
    /// The holds to add, ordered by key; may be empty, keys unique. With none, only the ends are checked.
    pub holds: Vec<HoldPart>,
    /// When the limits reserved the lease, if they know that it never had credit: these may be its first holds.
    pub first: Option<UnixMs>,
}

/// The answer to [`GrowRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrowAnswer {
    /// All amounts are held, and all holds of the lease are alive. A lease without holds is alive.
    Held,
    /// Nothing more is held.
    Refused {
        /// The credit limit of the account with too little; the first by key.
        key: LimitKey,
        /// The state of the account.
        why: CreditShortage,
    },
    /// The lease was settled or released, or a hold of it has ended.
    Ended,
    /// This number was grown with other holds.
    Differs,
    /// The store refuses the holds by name. Nothing more is held, and the number stays free.
    Blocked(Refusal),
}

/// Returns the growth of one extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShrinkRequest {
    /// The namespace of the vaults and of the lease.
    pub namespace: NamespaceName,
    /// The lease.
    pub lease: LeaseId,
    /// The number of the extension.
    pub number: u32,
    /// The holds that [`grow`](Credits::grow) added.
    pub holds: Vec<HoldPart>,
}

/// Confirms an extension: moves the ends of the holds of a lease and records its usage.
#[derive(Clone, Debug)]
pub struct RenewRequest {
    /// The namespace of the vaults and of the lease.
    pub namespace: NamespaceName,
    /// The lease.
    pub lease: LeaseId,
    /// The number of the extension.
    pub number: u32,
    /// The growth of this number. It is held again if a copy of the request returned it meanwhile.
    pub holds: Vec<HoldPart>,
    /// When the lease was reserved, which bounds its end.
    pub reserved_at: UnixMs,
    /// Whether to move the ends.
    pub renew: bool,
    /// The usage by key. The largest report of a key counts. Keys without a hold are ignored.
    pub used: Vec<Amount>,
    /// The timeouts of the limits.
    pub timeouts: Timeouts,
}

/// The timeouts of credit limits as they are defined now.
#[derive(Clone)]
pub struct Timeouts(Arc<TimeoutOf>);

type TimeoutOf = dyn Fn(&LimitKey) -> Option<u32> + Send + Sync;

impl Timeouts {
    /// Timeouts in seconds by key; `None` if the limit was deleted. Then a hold keeps its own duration.
    pub fn new(of: impl Fn(&LimitKey) -> Option<u32> + Send + Sync + 'static) -> Timeouts {
        Timeouts(Arc::new(of))
    }

    /// The timeout of a limit in seconds; `None` if it was deleted.
    #[must_use]
    pub fn seconds(&self, key: &LimitKey) -> Option<u32> {
        (self.0)(key)
    }
}

impl std::fmt::Debug for Timeouts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Timeouts")
    }
}

/// The holds of a lease after an extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RenewAnswer {
    /// All holds are alive.
    Alive {
        /// When the first of them ends; `None` without holds.
        ends_at: Option<UnixMs>,
        /// Keys of `used` without a hold.
        ignored: Vec<LimitKey>,
        /// Keys of `used` whose amount exceeds the hold.
        above: Vec<LimitKey>,
    },
    /// The growth was returned by a copy of the request, and the account has too little by now.
    Refused {
        /// The credit limit of that account.
        key: LimitKey,
        /// The state of the account.
        why: CreditShortage,
    },
    /// The lease was settled or released, or a hold of it has ended.
    Ended,
}

/// Reports the cost of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettleRequest {
    /// The namespace of the vaults and of the lease.
    pub namespace: NamespaceName,
    /// The lease that was allowed.
    pub lease: LeaseId,
    /// The cost by key of a credit limit. A missing key costs the whole hold; 0 costs nothing.
    pub actuals: Vec<Amount>,
    /// Whether a missing key costs nothing instead, because the lease was denied or abandoned.
    pub is_release: bool,
    /// The labels of its entries.
    pub labels: SettleLabels,
}

/// The result of a settlement. A repeated settlement only says that the lease is known, so that payments are counted
/// once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SettleAnswer {
    /// Whether the lease has or had holds here.
    pub is_known: bool,
    /// Keys of the request that the lease holds nothing of.
    pub ignored: Vec<LimitKey>,
    /// Keys of the request below the usage that extensions reported, which is charged instead.
    pub raised: Vec<LimitKey>,
    /// Credit paid from the balance of accounts.
    pub paid: u64,
    /// Credit paid by overdraft.
    pub debt: u64,
    /// Credit that was not collected: the account had too little and no overdraft, or is closed.
    pub uncollected: u64,
}

/// The state of the credit holds of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HoldState {
    /// The lease has no holds here.
    Unknown,
    /// All amounts are held.
    Held,
    /// The hold was refused. This is final.
    Refused {
        /// The credit limit of the account with too little.
        key: LimitKey,
        /// The state of the account at that time.
        why: CreditShortage,
    },
    /// The hold was settled or released.
    Ended,
}
