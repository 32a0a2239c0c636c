//! Accounts that a saga opens, changes or closes.

use std::sync::Arc;

use earmark_core::{AccountStatus, Overdraft};

use super::driver::{StoreDriver, entry, moving, opening, token};
use crate::model::{Account, Claim, ClaimKind, Plan};
use crate::store::{Change, Store};

fn plan(claims: Vec<Claim>) -> Plan {
    Plan { claims, entries: vec![entry(vec![])], ..Plan::default() }
}

const OPEN: Account = Account { standing: AccountStatus::Open, overdraft: Overdraft::Deny, claim: None };

/// Two sagas cannot change one account at the same time.
pub async fn an_account_is_claimed_by_one_saga(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&["acme", "bob"]).await;
    let freeze = |name| moving(name, ClaimKind::Changing, AccountStatus::Open, AccountStatus::Frozen);
    let (first, _) = driver.prepare(plan(vec![freeze("acme")])).await;
    let claim = Some((first.rid, ClaimKind::Changing));
    assert_eq!(driver.account("acme").await, Some(Account { claim, ..OPEN }));
    let second = token();
    let both = Arc::new(plan(vec![freeze("acme"), freeze("bob"), opening("revenue"), opening("new")]));
    let claim = Change::Claim(second, Arc::clone(&both));
    assert_eq!(driver.write_one(claim.clone()).await, 0);
    driver.begin(second, &both).await;
    // Of the list, `bob` and `new` are free.
    assert_eq!(driver.write_one(claim).await, 2);
    assert_eq!(driver.abort(second).await, [1, 0, 2, 1]);
    assert_eq!(driver.account("bob").await, Some(OPEN));
    let third = token();
    let stale = Arc::new(plan(vec![moving("bob", ClaimKind::Changing, AccountStatus::Frozen, AccountStatus::Open)]));
    driver.begin(third, &stale).await;
    assert_eq!(driver.write_one(Change::Claim(third, stale)).await, 0);
}

/// An aborted claim leaves the name free.
pub async fn an_account_that_is_not_opened_after_all_was_never_there(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&[]).await;
    let new = Claim { overdraft: Overdraft::Limit(u64::MAX), ..opening("new") };
    let (first, _) = driver.prepare(plan(vec![new.clone()])).await;
    let claimed = driver.account("new").await.expect("an account that is being opened");
    assert_eq!(claimed.claim, Some((first.rid, ClaimKind::Opening)));
    assert_eq!(driver.abort(first).await, [1, 0, 1, 1]);
    assert_eq!(driver.account("new").await, None);
    driver.execute(plan(vec![new])).await;
    assert_eq!(driver.account("new").await, Some(Account { overdraft: Overdraft::Limit(u64::MAX), ..OPEN }));
}

/// The account keeps its standing, even if it was about to close.
pub async fn a_claim_that_is_given_up_leaves_the_account_as_it_was(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&["acme"]).await;
    driver.execute(plan(vec![moving("acme", ClaimKind::Changing, AccountStatus::Open, AccountStatus::Frozen)])).await;
    let frozen = Some(Account { standing: AccountStatus::Frozen, ..OPEN });
    assert_eq!(driver.account("acme").await, frozen);
    let close = moving("acme", ClaimKind::Closing, AccountStatus::Frozen, AccountStatus::Closed);
    let (saga, _) = driver.prepare(plan(vec![close])).await;
    assert_eq!(driver.write_one(Change::Unclaim(saga.rid)).await, 0);
    assert_eq!(driver.abort(saga).await, [1, 0, 1, 1]);
    assert_eq!(driver.account("acme").await, frozen);
}

/// The account can be claimed again, unless it is closed.
pub async fn a_claimed_account_stands_where_the_plan_says(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&["acme"]).await;
    let freeze = moving("acme", ClaimKind::Changing, AccountStatus::Open, AccountStatus::Frozen);
    let close = moving("acme", ClaimKind::Closing, AccountStatus::Frozen, AccountStatus::Closed);
    driver.execute(plan(vec![freeze])).await;
    driver.execute(plan(vec![close])).await;
    assert_eq!(driver.account("acme").await, Some(Account { standing: AccountStatus::Closed, ..OPEN }));
    let again = token();
    let open = Arc::new(plan(vec![opening("acme")]));
    driver.begin(again, &open).await;
    assert_eq!(driver.write_one(Change::Claim(again, open)).await, 0);
}
