//! Helpers that build plans and drive a store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use earmark_core::{
    AccountName, AccountStatus, AssetName, ClientId, ClientOwner, GrantTerms, LeaseId, LimitKey, Moment, NamespaceName,
    Overdraft, UnixMs, VaultName,
};

use crate::id::{GateId, OwnerId, ReservationId};
use crate::model::{
    Account, AccountChange, AccountKey, AssetKey, Claim, ClaimKind, ClientKey, Entry, EntryBody, LeaseKey, LivePosting,
    Plan, Posting, PostingHold, Record, SagaToken, TotalsChange, VaultKey,
};
use crate::saga::abort_steps;
use crate::store::{Change, FindRecord, PostingQuery, PostingSet, Store, Survey};

/// Ids are unique within a test run.
static NEXT: AtomicU64 = AtomicU64::new(1);

pub(super) const OWNER: OwnerId = OwnerId(7);
pub(super) const NOW: UnixMs = UnixMs::new(1_700_000_000_000);

fn next() -> u128 {
    u128::from(NEXT.fetch_add(1, Ordering::Relaxed))
}

pub(super) fn home() -> VaultKey {
    vault(VaultName::MAIN)
}

pub(super) fn vault(name: &str) -> VaultKey {
    let namespace = NamespaceName::new(NamespaceName::DEFAULT).expect("a valid name");
    VaultKey { namespace, vault: VaultName::new(name).expect("a valid vault") }
}

pub(super) fn account(name: &str) -> AccountKey {
    AccountKey { home: home(), account: AccountName::new(name).expect("a valid account") }
}

pub(super) fn usd() -> AssetName {
    AssetName::new("usd").expect("a valid asset")
}

pub(super) fn usd_key() -> AssetKey {
    AssetKey { home: home(), asset: usd() }
}

pub(super) fn client(name: &str) -> ClientKey {
    ClientKey { home: home(), client: ClientId::new(name).expect("a valid client") }
}

/// The owner of a client id.
pub(super) fn owner() -> Option<ClientOwner> {
    Some(ClientOwner::Key("4m8qk2v7d1xz".parse().expect("a valid key id")))
}

pub(super) fn limit(name: &str) -> LimitKey {
    LimitKey::new(name).expect("a valid key")
}

pub(super) fn lease() -> LeaseKey {
    LeaseKey { namespace: home().namespace, lease: LeaseId::from_parts(NOW, next()) }
}

pub(super) fn token() -> SagaToken {
    // A ULID has its time in the upper bits; postings use the ids that follow.
    let rid = ReservationId((u128::from(NOW.get()) << 80) | (next() << 20));
    SagaToken { gate: GateId(next()), rid, owner: OWNER }
}

/// Another attempt at the same gate.
pub(super) fn again(token: SagaToken) -> SagaToken {
    SagaToken { gate: token.gate, ..self::token() }
}

pub(super) fn record(token: SagaToken, plan: &Arc<Plan>) -> Arc<Record> {
    Arc::new(Record { token, lease: None, begun_at: NOW, plan: Arc::clone(plan) })
}

pub(super) fn entry(changes: Vec<AccountChange>) -> Entry {
    // The clocks differ, so that a store that mixes them up is found.
    let at = Moment { log: NOW, wall: NOW.minus_ms(5) };
    Entry { home: home(), at, body: EntryBody::Ended { lease: lease().lease }, changes }
}

pub(super) fn change(name: &str, amount: i128, held: i128) -> AccountChange {
    AccountChange { account: account(name).account, asset: usd(), amount, held }
}

/// A posting of usd without a hold.
pub(super) fn posting(token: SagaToken, place: u16, owner: &str, amount: i128) -> Posting {
    Posting {
        id: token.rid.posting(place),
        account: account(owner),
        asset: usd(),
        amount,
        terms: GrantTerms::PLAIN,
        hold: None,
        plan: None,
    }
}

pub(super) fn held(posting: Posting, lease: &LeaseKey, ends_at: UnixMs) -> Posting {
    let amount = u64::try_from(posting.amount).expect("a held amount");
    let hold = PostingHold::new(lease.lease, limit("usd"), ends_at, (amount, false));
    Posting { hold: Some(hold), ..posting }
}

pub(super) fn opening(name: &str) -> Claim {
    Claim {
        account: account(name),
        kind: ClaimKind::Opening,
        from: AccountStatus::Open,
        to: AccountStatus::Open,
        overdraft: Overdraft::Deny,
    }
}

pub(super) fn moving(name: &str, kind: ClaimKind, from: AccountStatus, to: AccountStatus) -> Claim {
    Claim { kind, from, to, ..opening(name) }
}

/// A plan that consumes these inputs and writes one entry.
pub(super) fn taking(inputs: &[Posting]) -> Arc<Plan> {
    Arc::new(Plan { inputs: inputs.to_vec(), entries: vec![entry(vec![])], ..Plan::default() })
}

/// All steps of a saga, including those without rows.
pub(super) fn steps(token: SagaToken, plan: &Arc<Plan>) -> Vec<Change> {
    let of = || Arc::clone(plan);
    let mut steps = vec![
        Change::Begin(record(token, plan)),
        Change::Claim(token, of()),
        Change::Reserve(token, of()),
        Change::Decide(token, of()),
    ];
    steps.extend(finishing(token, plan));
    steps
}

/// The steps after the decision.
fn finishing(token: SagaToken, plan: &Arc<Plan>) -> Vec<Change> {
    let of = || Arc::clone(plan);
    vec![
        Change::Finalize(token, of()),
        Change::Create(token, of()),
        Change::Apply(token, of()),
        Change::Record(token, of()),
        Change::End(token),
    ]
}

pub(super) struct StoreDriver<'a>(pub(super) &'a dyn Store);

impl StoreDriver<'_> {
    pub(super) async fn write(&self, changes: Vec<Change>) -> Vec<u64> {
        self.0.write(changes).await.expect("a store that answers")
    }

    pub(super) async fn write_one(&self, change: Change) -> u64 {
        let counts = self.write(vec![change]).await;
        assert_eq!(counts.len(), 1);
        counts[0]
    }

    pub(super) async fn begin(&self, token: SagaToken, plan: &Arc<Plan>) -> u64 {
        self.write_one(Change::Begin(record(token, plan))).await
    }

    /// Begins a saga and takes everything that its plan needs.
    pub(super) async fn prepare(&self, plan: Plan) -> (SagaToken, Arc<Plan>) {
        let (token, plan) = (token(), Arc::new(plan));
        assert_eq!(self.begin(token, &plan).await, 1);
        assert_eq!(self.write_one(Change::Claim(token, Arc::clone(&plan))).await, plan.claims.len() as u64);
        assert_eq!(self.write_one(Change::Reserve(token, Arc::clone(&plan))).await, plan.inputs.len() as u64);
        (token, plan)
    }

    pub(super) async fn decide(&self, token: SagaToken, plan: &Arc<Plan>) -> u64 {
        self.write_one(Change::Decide(token, Arc::clone(plan))).await
    }

    /// Makes the steps after the decision and returns their row counts.
    pub(super) async fn finish(&self, token: SagaToken, plan: &Arc<Plan>) -> Vec<u64> {
        self.write(finishing(token, plan)).await
    }

    /// Aborts a saga and returns the row counts.
    pub(super) async fn abort(&self, token: SagaToken) -> Vec<u64> {
        self.write(abort_steps(token)).await
    }

    /// Executes a plan step by step.
    pub(super) async fn execute(&self, plan: Plan) -> SagaToken {
        let (token, plan) = self.prepare(plan).await;
        assert_eq!(self.decide(token, &plan).await, 1);
        self.finish(token, &plan).await;
        assert_eq!(self.0.record(FindRecord::Gate(token.gate)).await, Ok(None));
        token
    }

    pub(super) async fn open_accounts(&self, names: &[&str]) {
        self.write_one(Change::OpenVault(home())).await;
        let claims = names.iter().map(|name| opening(name)).collect();
        self.execute(Plan { claims, entries: vec![entry(vec![])], ..Plan::default() }).await;
    }

    /// Issues usd to an account as postings of these amounts.
    pub(super) async fn issue(&self, name: &str, amounts: &[i128]) -> Vec<Posting> {
        let naming = token();
        let places = amounts.iter().zip(0_u16..);
        let outputs: Vec<Posting> = places.map(|(amount, place)| posting(naming, place, name, *amount)).collect();
        let issued = amounts.iter().sum();
        let totals = vec![TotalsChange { asset: usd_key(), issued, retired: 0, expired: 0 }];
        let entries = vec![entry(vec![change(name, issued, 0)])];
        self.execute(Plan { outputs: outputs.clone(), entries, totals, ..Plan::default() }).await;
        outputs
    }

    pub(super) async fn account(&self, name: &str) -> Option<Account> {
        let survey = Survey { accounts: vec![account(name)], ..Survey::default() };
        self.0.survey(survey).await.expect("a store that answers").accounts[0]
    }

    pub(super) async fn posting_set(&self, name: &str) -> PostingSet {
        let (account, asset) = (account(name), usd());
        let query = PostingQuery { account, asset, largest: 3, smallest: 2, count_max: 10 };
        let survey = Survey { posting_sets: vec![query], ..Survey::default() };
        let found = self.0.survey(survey).await.expect("a store that answers");
        found.posting_sets.into_iter().next().expect("a posting set for every query")
    }

    /// The three largest active positive postings.
    pub(super) async fn large(&self, name: &str) -> Vec<i128> {
        self.posting_set(name).await.large.iter().map(|posting| posting.amount).collect()
    }
}

pub(super) fn amounts(postings: &[LivePosting]) -> Vec<i128> {
    postings.iter().map(|posting| posting.amount).collect()
}
