//! Short words for the cases.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use earmark_core::{
    AccountName, AssetName, ClientId, LeaseId, LimitKey, NamespaceName, Overdraft, Standing, UnixMs,
    VaultName,
};

use crate::id::{GateId, OwnerId, ReservationId};
use crate::model::{
    Account, AccountChange, AccountKey, AssetKey, Claim, ClaimKind, ClientKey, Entry, EntryBody, LeaseKey,
    LivePosting, Plan, Posting, PostingHold, Record, Ticket, TotalsChange, VaultKey,
};
use crate::store::{Change, FindRecord, Purse, PurseQuery, Store, Survey};

/// No two ids of a test run are the same.
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

pub(super) fn limit(name: &str) -> LimitKey {
    LimitKey::new(name).expect("a valid key")
}

pub(super) fn lease() -> LeaseKey {
    LeaseKey { namespace: home().namespace, lease: LeaseId::from_parts(NOW, next()) }
}

pub(super) fn ticket() -> Ticket {
    // The time of a ULID is in its upper bits, and postings are named by what follows.
    let rid = ReservationId((u128::from(NOW.get()) << 80) | (next() << 20));
    Ticket { gate: GateId(next()), rid, owner: OWNER }
}

/// Another attempt at the same.
pub(super) fn again(ticket: Ticket) -> Ticket {
    Ticket { gate: ticket.gate, ..self::ticket() }
}

pub(super) fn record(ticket: Ticket, plan: &Arc<Plan>) -> Arc<Record> {
    Arc::new(Record { ticket, lease: None, begun_at: NOW, plan: Arc::clone(plan) })
}

pub(super) fn entry(changes: Vec<AccountChange>) -> Entry {
    Entry { home: home(), at: NOW, body: EntryBody::Ended { lease: lease().lease }, changes }
}

pub(super) fn change(name: &str, amount: i128, held: i128) -> AccountChange {
    AccountChange { account: account(name).account, asset: usd(), amount, held }
}

/// A posting of usd that no lease holds.
pub(super) fn posting(ticket: Ticket, place: u16, owner: &str, amount: i128) -> Posting {
    Posting { id: ticket.rid.posting(place), account: account(owner), asset: usd(), amount, hold: None }
}

pub(super) fn held(posting: Posting, lease: &LeaseKey, ends_at: UnixMs) -> Posting {
    let hold = PostingHold { lease: lease.lease, limit: limit("usd"), ends_at };
    Posting { hold: Some(hold), ..posting }
}

pub(super) fn opening(name: &str) -> Claim {
    Claim {
        account: account(name),
        kind: ClaimKind::Opening,
        from: Standing::Open,
        to: Standing::Open,
        overdraft: Overdraft::Deny,
    }
}

pub(super) fn moving(name: &str, kind: ClaimKind, from: Standing, to: Standing) -> Claim {
    Claim { kind, from, to, ..opening(name) }
}

/// A plan that takes these and writes one line down.
pub(super) fn taking(inputs: &[Posting]) -> Arc<Plan> {
    Arc::new(Plan { inputs: inputs.to_vec(), entries: vec![entry(vec![])], ..Plan::default() })
}

pub(super) struct Clerk<'a>(pub(super) &'a dyn Store);

impl Clerk<'_> {
    pub(super) async fn all(&self, changes: Vec<Change>) -> Vec<u64> {
        self.0.write(changes).await.expect("a store that answers")
    }

    pub(super) async fn one(&self, change: Change) -> u64 {
        let counts = self.all(vec![change]).await;
        assert_eq!(counts.len(), 1);
        counts[0]
    }

    pub(super) async fn begin(&self, ticket: Ticket, plan: &Arc<Plan>) -> u64 {
        self.one(Change::Begin(record(ticket, plan))).await
    }

    /// Begins, claims and reserves all that a plan needs.
    pub(super) async fn ready(&self, plan: Plan) -> (Ticket, Arc<Plan>) {
        let (ticket, plan) = (ticket(), Arc::new(plan));
        assert_eq!(self.begin(ticket, &plan).await, 1);
        assert_eq!(self.one(Change::Claim(ticket, Arc::clone(&plan))).await, plan.claims.len() as u64);
        assert_eq!(self.one(Change::Reserve(ticket, Arc::clone(&plan))).await, plan.inputs.len() as u64);
        (ticket, plan)
    }

    pub(super) async fn decide(&self, ticket: Ticket, plan: &Arc<Plan>) -> u64 {
        self.one(Change::Decide(ticket, Arc::clone(plan))).await
    }

    /// What is left to do after the decision, and how many rows each step changed.
    pub(super) async fn finish(&self, ticket: Ticket, plan: &Arc<Plan>) -> Vec<u64> {
        let plan = || Arc::clone(plan);
        let steps = vec![
            Change::Finalize(ticket, plan()),
            Change::Create(ticket, plan()),
            Change::Apply(ticket, plan()),
            Change::Record(ticket, plan()),
            Change::End(ticket),
        ];
        self.all(steps).await
    }

    /// Gives a saga up, and how many rows each step changed.
    pub(super) async fn give_up(&self, ticket: Ticket) -> Vec<u64> {
        let (release, unclaim) = (Change::Release(ticket.rid), Change::Unclaim(ticket.rid));
        self.all(vec![Change::Abort(ticket), release, unclaim, Change::End(ticket)]).await
    }

    /// Carries a plan out.
    pub(super) async fn does(&self, plan: Plan) -> Ticket {
        let (ticket, plan) = self.ready(plan).await;
        assert_eq!(self.decide(ticket, &plan).await, 1);
        self.finish(ticket, &plan).await;
        assert_eq!(self.0.record(FindRecord::Gate(ticket.gate)).await, Ok(None));
        ticket
    }

    pub(super) async fn opens(&self, names: &[&str]) {
        self.one(Change::OpenVault(home())).await;
        let claims = names.iter().map(|name| opening(name)).collect();
        self.does(Plan { claims, entries: vec![entry(vec![])], ..Plan::default() }).await;
    }

    /// Issues usd to an account, as postings of these amounts.
    pub(super) async fn issues(&self, name: &str, amounts: &[i128]) -> Vec<Posting> {
        let naming = ticket();
        let places = amounts.iter().zip(0_u16..);
        let outputs: Vec<Posting> =
            places.map(|(amount, place)| posting(naming, place, name, *amount)).collect();
        let issued = amounts.iter().sum();
        let totals = vec![TotalsChange { asset: usd_key(), issued, retired: 0 }];
        let entries = vec![entry(vec![change(name, issued, 0)])];
        self.does(Plan { outputs: outputs.clone(), entries, totals, ..Plan::default() }).await;
        outputs
    }

    pub(super) async fn account(&self, name: &str) -> Option<Account> {
        let survey = Survey { accounts: vec![account(name)], ..Survey::default() };
        self.0.survey(survey).await.expect("a store that answers").accounts[0]
    }

    pub(super) async fn purse(&self, name: &str) -> Purse {
        let (account, asset) = (account(name), usd());
        let query = PurseQuery { account, asset, largest: 3, smallest: 2, count_max: 10 };
        let survey = Survey { purses: vec![query], ..Survey::default() };
        let found = self.0.survey(survey).await.expect("a store that answers");
        found.purses.into_iter().next().expect("a purse for every question")
    }

    /// The amounts of the active postings above zero, the three largest at most.
    pub(super) async fn large(&self, name: &str) -> Vec<i128> {
        self.purse(name).await.large.iter().map(|posting| posting.amount).collect()
    }
}

pub(super) fn amounts(postings: &[LivePosting]) -> Vec<i128> {
    postings.iter().map(|posting| posting.amount).collect()
}
