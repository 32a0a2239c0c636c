//! Helpers that write an entry.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use earmark_core::{
    AccountName, AccountStatus, AssetName, GrantTerms, LeaseId, NamespaceName, Overdraft, UnixMs, VaultName,
};
use earmark_credits::{
    AccountChange, AccountKey, AssetKey, Change, Claim, ClaimKind, Entry, EntryBody, GateId, OwnerId, Plan, Posting,
    Record, ReservationId, SagaToken, Store, StoreError, TotalsChange, VaultKey,
};

static NEXT: AtomicU64 = AtomicU64::new(1);

pub(crate) fn home() -> VaultKey {
    let namespace = NamespaceName::new("default").expect("a valid name");
    VaultKey { namespace, vault: VaultName::new("main").expect("a valid vault") }
}

pub(crate) fn account(name: &str) -> AccountKey {
    AccountKey { home: home(), account: AccountName::new(name).expect("a valid account") }
}

fn usd() -> AssetName {
    AssetName::new("usd").expect("a valid asset")
}

pub(crate) fn token() -> SagaToken {
    let next = u128::from(NEXT.fetch_add(1, Ordering::Relaxed)) | (u128::from(std::process::id()) << 40);
    SagaToken { gate: GateId(next), rid: ReservationId((1 << 120) | (next << 20)), owner: OwnerId(1) }
}

pub(crate) fn begin(token: SagaToken, plan: &Arc<Plan>) -> Change {
    Change::Begin(record(token, plan))
}

/// A plan that freezes accounts.
pub(crate) fn freezing(names: &[&str]) -> Arc<Plan> {
    let claim = |name: &&str| Claim {
        account: account(name),
        kind: ClaimKind::Changing,
        from: AccountStatus::Open,
        to: AccountStatus::Frozen,
        overdraft: Overdraft::Deny,
    };
    let entries = issuing(token(), 1).entries.clone();
    Arc::new(Plan { claims: names.iter().map(claim).collect(), entries, ..Plan::default() })
}

/// A plan that issues an amount to `revenue`.
pub(crate) fn issuing(token: SagaToken, amount: i128) -> Arc<Plan> {
    let (id, account) = (token.rid.posting(0), account("revenue"));
    let (asset, terms) = (usd(), GrantTerms::PLAIN);
    let posting = Posting { id, account, asset, amount, terms, hold: None, plan: None };
    let change = AccountChange { account: posting.account.account.clone(), asset: usd(), amount, held: 0 };
    let at = UnixMs::new(1_700_000_000_000).into();
    let entry =
        Entry { home: home(), at, body: EntryBody::Ended { lease: LeaseId::from_u128(1) }, changes: vec![change] };
    let asset = AssetKey { home: home(), asset: usd() };
    Arc::new(Plan {
        outputs: vec![posting],
        entries: vec![entry],
        totals: vec![TotalsChange { asset, issued: amount, retired: 0, expired: 0 }],
        ..Plan::default()
    })
}

/// The record of a plan.
pub(crate) fn record(token: SagaToken, plan: &Arc<Plan>) -> Arc<Record> {
    let begun_at = UnixMs::new(1_700_000_000_000);
    Arc::new(Record { token, lease: None, begun_at, plan: Arc::clone(plan) })
}

/// Issues an amount.
pub(crate) async fn issue(store: &dyn Store, amount: i128) -> Result<bool, StoreError> {
    let token = token();
    store.commit(record(token, &issuing(token, amount))).await
}

/// The sum of all postings, which must equal that of all entries.
pub(crate) async fn total(store: &dyn Store) -> i128 {
    let census = store.census(home()).await.expect("a store that answers");
    assert_eq!(census.uneven, []);
    let Some(usd) = census.assets.first() else { return 0 };
    assert_eq!((usd.live, usd.entered), (usd.sums.issued, usd.sums.issued));
    usd.live
}

/// Issues 0 to 19 while a lock is held, so that they are committed together. Zero violates a check, and only it is refused.
pub(crate) async fn one_is_refused<T>(store: Arc<dyn Store>, unlock: impl Future<Output = T>, why: &str) {
    let calls = (0..20).map(|amount| {
        let store = Arc::clone(&store);
        tokio::spawn(async move { issue(&*store, amount).await })
    });
    let calls: Vec<_> = calls.collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    unlock.await;
    for (call, amount) in calls.into_iter().zip(0..) {
        match (call.await.expect("no panic"), amount) {
            (Err(StoreError::Refused(found)), 0) => assert!(found.contains(why), "{found}"),
            (made, _) => assert_eq!(made, Ok(true)),
        }
    }
    assert_eq!(total(&*store).await, 190);
}
