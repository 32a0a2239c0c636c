//! Accounts that a saga opens, changes or closes.

use std::sync::Arc;

use earmark_core::{Overdraft, Standing};

use super::clerk::{Clerk, entry, moving, opening, ticket};
use crate::model::{Account, Claim, ClaimKind, Plan};
use crate::store::{Change, Store};

fn plan(claims: Vec<Claim>) -> Plan {
    Plan { claims, entries: vec![entry(vec![])], ..Plan::default() }
}

const OPEN: Account = Account { standing: Standing::Open, overdraft: Overdraft::Deny, claim: None };

/// Two sagas that change one account wait for each other.
pub async fn an_account_is_claimed_by_one_saga(store: &dyn Store) {
    let clerk = Clerk(store);
    clerk.opens(&["acme", "bob"]).await;
    let freeze = |name| moving(name, ClaimKind::Changing, Standing::Open, Standing::Frozen);
    let (first, _) = clerk.ready(plan(vec![freeze("acme")])).await;
    let claim = Some((first.rid, ClaimKind::Changing));
    assert_eq!(clerk.account("acme").await, Some(Account { claim, ..OPEN }));
    let second = ticket();
    let both = Arc::new(plan(vec![freeze("acme"), freeze("bob"), opening("revenue"), opening("new")]));
    let claim = Change::Claim(second, Arc::clone(&both));
    assert_eq!(clerk.one(claim.clone()).await, 0);
    clerk.begin(second, &both).await;
    // Of a list some can be claimed: `bob` to freeze, and `new`, which nobody has.
    assert_eq!(clerk.one(claim).await, 2);
    assert_eq!(clerk.give_up(second).await, [1, 0, 2, 1]);
    assert_eq!(clerk.account("bob").await, Some(OPEN));
    let third = ticket();
    let stale = Arc::new(plan(vec![moving("bob", ClaimKind::Changing, Standing::Frozen, Standing::Open)]));
    clerk.begin(third, &stale).await;
    assert_eq!(clerk.one(Change::Claim(third, stale)).await, 0);
}

/// A name that was claimed and given up is free.
pub async fn an_account_that_is_not_opened_after_all_was_never_there(store: &dyn Store) {
    let clerk = Clerk(store);
    clerk.opens(&[]).await;
    let new = Claim { overdraft: Overdraft::Allow, ..opening("new") };
    let (first, _) = clerk.ready(plan(vec![new.clone()])).await;
    let claimed = clerk.account("new").await.expect("an account that is being opened");
    assert_eq!(claimed.claim, Some((first.rid, ClaimKind::Opening)));
    assert_eq!(clerk.give_up(first).await, [1, 0, 1, 1]);
    assert_eq!(clerk.account("new").await, None);
    clerk.does(plan(vec![new])).await;
    assert_eq!(clerk.account("new").await, Some(Account { overdraft: Overdraft::Allow, ..OPEN }));
}

/// Also one that was about to close.
pub async fn a_claim_that_is_given_up_leaves_the_account_as_it_was(store: &dyn Store) {
    let clerk = Clerk(store);
    clerk.opens(&["acme"]).await;
    clerk.does(plan(vec![moving("acme", ClaimKind::Changing, Standing::Open, Standing::Frozen)])).await;
    let frozen = Some(Account { standing: Standing::Frozen, ..OPEN });
    assert_eq!(clerk.account("acme").await, frozen);
    let close = moving("acme", ClaimKind::Closing, Standing::Frozen, Standing::Closed);
    let (saga, _) = clerk.ready(plan(vec![close])).await;
    assert_eq!(clerk.one(Change::Unclaim(saga.rid)).await, 0);
    assert_eq!(clerk.give_up(saga).await, [1, 0, 1, 1]);
    assert_eq!(clerk.account("acme").await, frozen);
}

/// And may be claimed again, unless it is closed.
pub async fn a_claimed_account_stands_where_the_plan_says(store: &dyn Store) {
    let clerk = Clerk(store);
    clerk.opens(&["acme"]).await;
    let freeze = moving("acme", ClaimKind::Changing, Standing::Open, Standing::Frozen);
    let close = moving("acme", ClaimKind::Closing, Standing::Frozen, Standing::Closed);
    clerk.does(plan(vec![freeze])).await;
    clerk.does(plan(vec![close])).await;
    assert_eq!(clerk.account("acme").await, Some(Account { standing: Standing::Closed, ..OPEN }));
    let again = ticket();
    let open = Arc::new(plan(vec![opening("acme")]));
    clerk.begin(again, &open).await;
    assert_eq!(clerk.one(Change::Claim(again, open)).await, 0);
}
