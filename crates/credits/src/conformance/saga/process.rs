//! Helpers: processes that share a store, and requests to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use earmark_admission::{
    AccountPath, Amount, BackendError, Clock, CreditCounts, Credits, EntryQuery, GrowAnswer, GrowRequest, HoldAnswer,
    HoldPart, HoldRequest, ManualClock, RenewAnswer, RenewRequest, SettleAnswer, SettleRequest, ShrinkRequest,
    Timeouts, WriteAnswer, WriteRequest, Writer,
};
use earmark_core::{
    AccountName, Actor, AssetName, CarryOver, ClientId, CreditTerms, Definition, GrantTerms, Kind, LeaseId, LimitKey,
    NamespaceName, OnTimeout, Operation, Overage, Overdraft, Period, Plan, Receipt, UnixMs, VaultName, WriteError,
    WriteId,
};

use crate::model::{AccountKey, VaultKey};
use crate::saga::Options;
use crate::saga_credits::SagaCredits;
use crate::store::{PostingQuery, Store, Survey};

static NEXT: AtomicU64 = AtomicU64::new(1);

/// Start time of every test.
pub(super) const START_MS: u64 = 1_700_000_000_000;

/// A store, a clock, and a namespace of its own.
pub(super) struct Fixture {
    pub(super) store: Arc<dyn Store>,
    pub(super) clock: Arc<ManualClock>,
    pub(super) namespace: NamespaceName,
}

/// A process that serves credit on the store of a fixture.
pub(super) struct TestProcess {
    pub(super) credits: SagaCredits,
    namespace: NamespaceName,
}

pub(super) fn account(name: &str) -> AccountName {
    AccountName::new(name).expect("a valid account")
}

pub(super) fn usd() -> AssetName {
    AssetName::new("usd").expect("a valid asset")
}

pub(super) fn limit(name: &str) -> LimitKey {
    LimitKey::new(name).expect("a valid key")
}

fn vault(name: &str) -> VaultName {
    VaultName::new(name).expect("a valid vault")
}

pub(super) fn lease() -> LeaseId {
    LeaseId::from_parts(UnixMs::new(START_MS), u128::from(NEXT.fetch_add(1, Ordering::Relaxed)))
}

pub(super) fn open(name: &str) -> Operation {
    Operation::OpenAccount { account: account(name), overdraft: Overdraft::Deny, plan: None }
}

pub(super) fn open_overdrawn(name: &str) -> Operation {
    Operation::OpenAccount { account: account(name), overdraft: Overdraft::Allow, plan: None }
}

pub(super) fn open_capped(name: &str, limit: u64) -> Operation {
    Operation::OpenAccount { account: account(name), overdraft: Overdraft::Limit(limit), plan: None }
}

pub(super) fn freeze(name: &str) -> Operation {
    Operation::FreezeAccount { account: account(name) }
}

pub(super) fn unfreeze(name: &str) -> Operation {
    Operation::UnfreezeAccount { account: account(name) }
}

pub(super) fn close(name: &str) -> Operation {
    Operation::CloseAccount { account: account(name) }
}

pub(super) fn issue(name: &str, amount: u128) -> Operation {
    Operation::Issue { account: account(name), asset: usd(), amount, memo: "bought".into(), terms: GrantTerms::PLAIN }
}

pub(super) fn grant(name: &str, amount: u128, terms: GrantTerms) -> Operation {
    Operation::Issue { account: account(name), asset: usd(), amount, memo: String::new(), terms }
}

/// A plan of which nothing is due in a test.
pub(super) fn monthly(amount: u64) -> Plan {
    Plan { asset: usd(), amount, period: Period::Month, utc_offset_minutes: 0, carry_over: CarryOver::None }
}

/// A plan whose first period ends 40 seconds after [`START_MS`].
pub(super) fn hourly() -> Plan {
    let carry_over = CarryOver::Max(1_000);
    Plan { asset: usd(), amount: 100, period: Period::Hour, utc_offset_minutes: 46, carry_over }
}

pub(super) fn set_plan(name: &str, plan: Plan) -> Operation {
    Operation::SetPlan { account: account(name), plan: Some(plan) }
}

pub(super) fn open_with(name: &str, plan: Plan) -> Operation {
    Operation::OpenAccount { account: account(name), overdraft: Overdraft::Deny, plan: Some(plan) }
}

pub(super) fn retire(name: &str, amount: u128) -> Operation {
    Operation::Retire { account: account(name), asset: usd(), amount, memo: String::new() }
}

pub(super) fn transfer(from: &str, to: &str, amount: u128) -> Operation {
    let (from, to) = (account(from), account(to));
    Operation::Transfer { from, to, asset: usd(), amount, memo: String::new() }
}

/// A hold on the usd of an account, through a limit with the name of the account.
#[derive(Clone, Copy, Debug)]
pub(super) struct HoldSpec {
    pub(super) name: &'static str,
    pub(super) vault: &'static str,
    pub(super) payer: &'static str,
    pub(super) amount: u64,
    pub(super) timeout_seconds: u32,
    pub(super) overage: Overage,
    pub(super) on_timeout: OnTimeout,
}

pub(super) const fn hold_of(payer: &'static str, amount: u64) -> HoldSpec {
    let (vault, overage, on_timeout) = (VaultName::MAIN, Overage::Debt, OnTimeout::Release);
    HoldSpec { name: payer, vault, payer, amount, timeout_seconds: 60, overage, on_timeout }
}

impl HoldSpec {
    fn part(self) -> HoldPart {
        let terms = CreditTerms {
            timeout_seconds: self.timeout_seconds,
            vault: vault(self.vault),
            account: account(self.payer),
            asset: usd(),
            revenue: account(AccountName::REVENUE),
            on_timeout: self.on_timeout,
        };
        let limit = Definition { overage: self.overage, ..Definition::new(limit(self.name), Kind::Credit(terms), 0) };
        HoldPart { limit: Arc::new(limit), amount: self.amount }
    }
}

fn sorted(parts: &[HoldSpec]) -> Vec<HoldPart> {
    let mut holds: Vec<HoldPart> = parts.iter().map(|part| part.part()).collect();
    holds.sort_by(|a, b| a.limit.key.cmp(&b.limit.key));
    holds
}

/// The confirmation of an extension.
#[derive(Clone, Copy, Debug)]
pub(super) struct RenewSpec<'a> {
    pub(super) number: u32,
    pub(super) parts: &'a [HoldSpec],
    pub(super) reserved_at: UnixMs,
    pub(super) renew: bool,
    pub(super) used: &'a [(&'a str, u64)],
    pub(super) timeout_seconds: Option<u32>,
}

/// Moves all ends to 60 seconds from now.
pub(super) const fn renewal(number: u32) -> RenewSpec<'static> {
    let (reserved_at, timeout_seconds) = (UnixMs::new(START_MS), Some(60));
    RenewSpec { number, parts: &[], reserved_at, renew: true, used: &[], timeout_seconds }
}

/// Reports usage and leaves the ends.
pub(super) const fn usage<'a>(number: u32, used: &'a [(&'a str, u64)]) -> RenewSpec<'a> {
    RenewSpec { renew: false, used, ..renewal(number) }
}

/// No background maintenance, and long deadlines.
pub(super) fn options() -> Options {
    Options { deadline: Duration::from_secs(30), heartbeat: Duration::from_secs(3_600), ..Options::default() }
}

/// The same with a short deadline.
pub(super) fn short_deadline() -> Options {
    Options { deadline: Duration::from_millis(40), ..options() }
}

/// Retries until there is an answer: on a slow machine one write may exceed a short deadline.
pub(super) async fn retry_until_ok<T, E>(ask: impl AsyncFn() -> Result<T, E>) -> Result<T, E> {
    let mut reply = ask().await;
    for _ in 0..100 {
        if reply.is_ok() {
            break;
        }
        reply = ask().await;
    }
    reply
}

impl Fixture {
    pub(super) fn new(store: &Arc<dyn Store>) -> Fixture {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let namespace = NamespaceName::new(&format!("n{number}")).expect("a valid name");
        Fixture { store: Arc::clone(store), clock: ManualClock::at(START_MS), namespace }
    }

    /// A process on the fixture's store.
    pub(super) async fn process(&self) -> TestProcess {
        self.process_on(Arc::clone(&self.store), options()).await
    }

    /// A process on another store with the same rows.
    pub(super) async fn process_on(&self, store: Arc<dyn Store>, options: Options) -> TestProcess {
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        let credits = SagaCredits::start(store, clock, options).await.expect("a store that answers");
        TestProcess { credits, namespace: self.namespace.clone() }
    }

    /// Lets the heartbeats of all processes expire.
    pub(super) fn expire_heartbeats(&self) {
        self.clock.advance_ms(options().owner_timeout_ms + 1);
    }

    pub(super) fn account(&self, name: &str) -> AccountKey {
        AccountKey { home: self.home(), account: account(name) }
    }

    pub(super) fn home(&self) -> VaultKey {
        VaultKey { namespace: self.namespace.clone(), vault: vault(VaultName::MAIN) }
    }

    /// The number of spendable usd postings of an account.
    pub(super) async fn postings(&self, name: &str) -> usize {
        let (account, asset) = (self.account(name), usd());
        let query = PostingQuery { account, asset, largest: 0, smallest: 0, count_max: 100_000 };
        let survey = Survey { posting_sets: vec![query], ..Survey::default() };
        self.store.survey(survey).await.expect("a store that answers").posting_sets[0].active
    }
}

impl TestProcess {
    pub(super) async fn try_write(
        &self,
        sequence: u64,
        operations: Vec<Operation>,
    ) -> Result<WriteAnswer, BackendError> {
        self.try_write_as("billing", sequence, operations).await
    }

    pub(super) async fn try_write_as(
        &self,
        client: &str,
        sequence: u64,
        operations: Vec<Operation>,
    ) -> Result<WriteAnswer, BackendError> {
        let client = ClientId::new(client).expect("a valid client");
        self.try_write_by(WriteId::Sequence { client, sequence }, operations).await
    }

    pub(super) async fn try_write_by(
        &self,
        id: WriteId,
        operations: Vec<Operation>,
    ) -> Result<WriteAnswer, BackendError> {
        self.write_within(Writer::system().quotas, id, operations).await
    }

    pub(super) async fn write_within(
        &self,
        quotas: CreditCounts,
        id: WriteId,
        operations: Vec<Operation>,
    ) -> Result<WriteAnswer, BackendError> {
        let request = WriteRequest {
            namespace: self.namespace.clone(),
            vault: Some(vault(VaultName::MAIN)),
            id,
            operations,
            actor: Actor::new("system:test").expect("a valid actor"),
        };
        self.credits.write(Writer { quotas, ..Writer::system() }, request).await
    }

    pub(super) async fn last(&self) -> u64 {
        let client = ClientId::new("billing").expect("a valid client");
        let last = self.credits.client_state(self.namespace.clone(), vault(VaultName::MAIN), client).await;
        last.expect("a store that answers")
    }

    pub(super) async fn commit(&self, sequence: u64, operations: Vec<Operation>) -> Arc<Receipt> {
        match self.try_write(sequence, operations).await.expect("a store that answers") {
            WriteAnswer::Committed(receipt) => receipt,
            WriteAnswer::Refused(error) => panic!("{error:?}"),
        }
    }

    pub(super) async fn refuse(&self, sequence: u64, operations: Vec<Operation>) -> WriteError {
        match self.try_write(sequence, operations).await.expect("a store that answers") {
            WriteAnswer::Committed(receipt) => panic!("{receipt:?}"),
            WriteAnswer::Refused(error) => error,
        }
    }

    /// Commits operations under the next sequence.
    pub(super) async fn write_next(&self, operations: Vec<Operation>) -> Arc<Receipt> {
        let last = self.last().await;
        self.commit(last + 1, operations).await
    }

    /// Commits operations in another vault.
    pub(super) async fn write_in(&self, home: &str, operations: Vec<Operation>) {
        let request = WriteRequest {
            namespace: self.namespace.clone(),
            vault: Some(vault(home)),
            id: earmark_core::WriteId::Sequence {
                client: ClientId::new("billing").expect("a valid client"),
                sequence: 1,
            },
            operations,
            actor: Actor::new("system:test").expect("a valid actor"),
        };
        let answer = self.credits.write(Writer::system(), request).await.expect("a store that answers");
        assert!(matches!(answer, WriteAnswer::Committed(_)), "{answer:?}");
    }

    pub(super) async fn try_hold(&self, lease: LeaseId, parts: &[HoldSpec]) -> Result<HoldAnswer, BackendError> {
        let request = HoldRequest { namespace: self.namespace.clone(), lease, holds: sorted(parts) };
        self.credits.hold(None, vec![request]).await.remove(0)
    }

    pub(super) async fn hold(&self, lease: LeaseId, parts: &[HoldSpec]) -> HoldAnswer {
        self.try_hold(lease, parts).await.expect("a store that answers")
    }

    /// Holds for a new lease.
    pub(super) async fn holds(&self, parts: &[HoldSpec]) -> LeaseId {
        let lease = lease();
        assert_eq!(self.hold(lease, parts).await, HoldAnswer::Held);
        lease
    }

    /// Holds more for an extension.
    pub(super) async fn try_grow(
        &self,
        lease: LeaseId,
        number: u32,
        parts: &[HoldSpec],
    ) -> Result<GrowAnswer, BackendError> {
        let request = GrowRequest {
            namespace: self.namespace.clone(),
            lease,
            number,
            holds: sorted(parts),
            first: Some(lease.time()),
        };
        self.credits.grow(None, vec![request]).await.remove(0)
    }

    pub(super) async fn grow(&self, lease: LeaseId, number: u32, parts: &[HoldSpec]) -> GrowAnswer {
        self.try_grow(lease, number, parts).await.expect("a store that answers")
    }

    /// Returns the growth of an extension.
    pub(super) async fn try_shrink(&self, lease: LeaseId, number: u32, parts: &[HoldSpec]) -> Result<(), BackendError> {
        let request = ShrinkRequest { namespace: self.namespace.clone(), lease, number, holds: sorted(parts) };
        self.credits.shrink(None, request).await
    }

    pub(super) async fn shrink(&self, lease: LeaseId, number: u32, parts: &[HoldSpec]) {
        self.try_shrink(lease, number, parts).await.expect("a store that answers");
    }

    /// Confirms an extension.
    pub(super) async fn try_renew(&self, lease: LeaseId, spec: RenewSpec<'_>) -> Result<RenewAnswer, BackendError> {
        let used = spec.used.iter().map(|(name, amount)| Amount { key: limit(name), amount: *amount });
        let request = RenewRequest {
            namespace: self.namespace.clone(),
            lease,
            number: spec.number,
            holds: sorted(spec.parts),
            reserved_at: spec.reserved_at,
            renew: spec.renew,
            used: used.collect(),
            timeouts: Timeouts::new(move |_| spec.timeout_seconds),
        };
        self.credits.renew(None, vec![request]).await.remove(0)
    }

    pub(super) async fn renew(&self, lease: LeaseId, spec: RenewSpec<'_>) -> RenewAnswer {
        self.try_renew(lease, spec).await.expect("a store that answers")
    }

    pub(super) async fn try_settle(
        &self,
        lease: LeaseId,
        actuals: &[(&str, u64)],
        is_release: bool,
    ) -> Result<SettleAnswer, BackendError> {
        let amount = |(name, amount): &(&str, u64)| Amount { key: limit(name), amount: *amount };
        let actuals = actuals.iter().map(amount).collect();
        let labels = earmark_core::SettleLabels::NONE;
        let request = SettleRequest { namespace: self.namespace.clone(), lease, actuals, is_release, labels };
        self.credits.settle(None, vec![request]).await.remove(0)
    }

    pub(super) async fn settle(&self, lease: LeaseId, actuals: &[(&str, u64)]) -> SettleAnswer {
        self.try_settle(lease, actuals, false).await.expect("a store that answers")
    }

    pub(super) fn path(&self, home: &str, name: &str) -> AccountPath {
        AccountPath { namespace: self.namespace.clone(), vault: vault(home), account: account(name) }
    }

    /// Available, held and pending usd of an account; `None` if it does not exist.
    pub(super) async fn balance_in(&self, home: &str, name: &str) -> Option<(i128, i128, i128)> {
        let balances = self.credits.balances(self.path(home, name)).await.ok()?;
        let found = balances.iter().find(|balance| balance.asset == usd());
        Some(found.map_or((0, 0, 0), |found| (found.available, found.held, found.pending)))
    }

    /// Available and held usd of an account.
    pub(super) async fn balance(&self, name: &str) -> (i128, i128) {
        let (available, held, pending) =
            self.balance_in(VaultName::MAIN, name).await.expect("an account that is there");
        assert_eq!(pending, 0, "no saga is in progress");
        (available, held)
    }

    pub(super) async fn history(&self, home: &str, name: &str) -> usize {
        let page = self.credits.entries(self.path(home, name), EntryQuery::oldest_first(0, 1_000)).await;
        page.map_or(0, |page| page.entries.len())
    }

    /// Asserts that the vault balances.
    pub(super) async fn assert_balanced(&self, home: &str) {
        let audit = self.credits.audit(self.namespace.clone(), vault(home)).await;
        let audit = audit.expect("a store that answers");
        assert!(audit.balanced, "{audit:?}");
    }

    pub(super) async fn maintain(&self) {
        self.credits.maintain().await.expect("a store that answers");
    }
}
