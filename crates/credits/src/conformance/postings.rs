//! Postings: reserved, released or consumed.

use std::sync::Arc;

use earmark_core::CarryOver;

use super::driver::{NOW, StoreDriver, account, again, amounts, entry, posting, record, taking, token};
use super::sample::marking;
use crate::model::{Plan, Posting, PostingState};
use crate::store::{AsOf, Change, DueCursor, DueQuery, Store};

/// The row count tells the saga how many it reserved.
pub async fn all_some_or_none_of_the_inputs_are_reserved(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&["acme"]).await;
    let postings = driver.issue("acme", &[1, 2, 3, 4]).await;
    let (first, all) = (token(), taking(&postings[..2]));
    driver.begin(first, &all).await;
    assert_eq!(driver.write_one(Change::Reserve(first, Arc::clone(&all))).await, 2);
    // Already reserved by this saga; the count does not say so.
    assert_eq!(driver.write_one(Change::Reserve(first, all)).await, 0);
    let (second, some) = (token(), taking(&postings[1..]));
    driver.begin(second, &some).await;
    assert_eq!(driver.write_one(Change::Reserve(second, some)).await, 2);
    let (third, none) = (token(), taking(&postings));
    driver.begin(third, &none).await;
    assert_eq!(driver.write_one(Change::Reserve(third, none)).await, 0);
    assert_eq!(driver.large("acme").await, [0_i128; 0]);
}

/// Without a record nothing is reserved.
pub async fn reserving_needs_its_record(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&["acme"]).await;
    let postings = driver.issue("acme", &[1]).await;
    let (saga, plan) = (token(), taking(&postings));
    let reserve = |token| Change::Reserve(token, Arc::clone(&plan));
    assert_eq!(driver.write_one(reserve(saga)).await, 0);
    driver.begin(saga, &plan).await;
    assert_eq!(driver.write_one(reserve(again(saga))).await, 0);
    assert_eq!(driver.write_one(Change::Abort(saga)).await, 1);
    assert_eq!(driver.write_one(reserve(saga)).await, 0);
    assert_eq!(driver.large("acme").await, [1]);
}

/// Only the same reservation id releases a partial reserve.
pub async fn a_release_gives_back_what_that_attempt_took_and_nothing_else(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&["acme"]).await;
    let postings = driver.issue("acme", &[1, 2, 3]).await;
    let reserved = |postings: &[Posting]| Plan::clone(&taking(postings));
    let (first, _) = driver.prepare(reserved(&postings[..2])).await;
    let (second, plan) = driver.prepare(reserved(&postings[2..])).await;
    assert_eq!(driver.abort(first).await, [1, 2, 0, 1]);
    assert_eq!(driver.large("acme").await, [2, 1]);
    assert_eq!(driver.write_one(Change::Release(first.rid)).await, 0);
    assert_eq!(driver.decide(second, &plan).await, 1);
    assert_eq!(driver.finish(second, &plan).await, [1, 0, 0, 1, 1]);
    assert_eq!(driver.write_one(Change::Release(second.rid)).await, 0);
    assert_eq!(driver.large("acme").await, [2, 1]);
}

/// A delayed release must not undo a decision.
pub async fn nothing_is_released_while_its_saga_may_still_happen(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&["acme"]).await;
    let postings = driver.issue("acme", &[1]).await;
    let (saga, plan) = driver.prepare(Plan::clone(&taking(&postings))).await;
    assert_eq!(driver.write_one(Change::Release(saga.rid)).await, 0);
    assert_eq!(driver.decide(saga, &plan).await, 1);
    assert_eq!(driver.write_one(Change::Release(saga.rid)).await, 0);
    assert_eq!(driver.write_one(Change::Abort(saga)).await, 0);
    assert_eq!(driver.finish(saga, &plan).await, [1, 0, 0, 1, 1]);
}

/// Postings that no saga owns can be found and released.
pub async fn reserved_rows_without_a_record_are_orphans(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&["acme"]).await;
    let postings = driver.issue("acme", &[1]).await;
    let claims = vec![super::driver::opening("new")];
    let (saga, _) = driver.prepare(Plan { claims, ..Plan::clone(&taking(&postings)) }).await;
    let (other, plan) = driver.prepare(Plan::clone(&taking(&[]))).await;
    assert_eq!(store.orphans(9).await, Ok(vec![]));
    // The record is deleted without releasing. No saga does that, but a delayed step may.
    assert_eq!(driver.write(vec![Change::Abort(saga), Change::End(saga)]).await, [1, 1]);
    assert_eq!(store.orphans(9).await, Ok(vec![saga.rid]));
    assert_eq!(driver.write_one(Change::Begin(record(again(saga), &plan))).await, 1);
    assert_eq!(store.orphans(9).await, Ok(vec![saga.rid]));
    assert_eq!(driver.write(vec![Change::Release(saga.rid), Change::Unclaim(saga.rid)]).await, [1, 1]);
    assert_eq!((store.orphans(9).await, driver.account("new").await), (Ok(vec![]), None));
    assert_eq!(driver.large("acme").await, [1]);
    driver.abort(other).await;
}

/// A plan mark is a posting of nothing that is due like a grant. It is inserted once, also after it was replaced.
pub async fn a_plan_is_marked_once(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&["acme"]).await;
    driver.issue("acme", &[5]).await;
    let naming = token();
    let mark = |place, until_ms: u64| {
        let until = (until_ms > 0).then(|| NOW.plus_ms(until_ms));
        marking(posting(naming, place, "acme", 0), CarryOver::Max(7), until)
    };
    let (first, next) = (mark(0, 0), mark(1, 20));
    let insert = || Change::Mark(Box::new(first.clone()));
    let found = async |name| store.plan_mark(account(name)).await.expect("a store that answers");
    assert_eq!(found("acme").await, None);
    assert_eq!((driver.write_one(insert()).await, driver.write_one(insert()).await), (1, 0));
    assert_eq!(found("acme").await, Some((first.clone(), PostingState::Active)));
    assert_eq!(found("bob").await, None);
    let due = |now| DueQuery { now, account: None, after: DueCursor::default() };
    assert_eq!(store.expiring(due(NOW), 9).await, Ok(vec![first.clone()]), "a plan that never issued is due");
    let entries = vec![entry(vec![])];
    driver.execute(Plan { inputs: vec![first.clone()], outputs: vec![next.clone()], entries, ..Plan::default() }).await;
    assert_eq!(driver.write_one(insert()).await, 0);
    assert_eq!(found("acme").await, Some((next.clone(), PostingState::Active)));
    assert_eq!(store.expiring(due(NOW.plus_ms(19)), 9).await, Ok(vec![]));
    assert_eq!(store.expiring(due(NOW.plus_ms(20)), 9).await, Ok(vec![next.clone()]));
    let posting_set = driver.posting_set("acme").await;
    assert_eq!(posting_set.plan_mark.map(|mark| (mark.id, mark.terms)), Some((next.id, next.terms)));
    assert_eq!((posting_set.grants, amounts(&posting_set.large), posting_set.mark), (vec![], vec![5], None));
    let funds = store.funds(account("acme"), AsOf::at(NOW.plus_ms(20))).await.expect("a store that answers").remove(0);
    assert_eq!((funds.active, funds.expired), (5, 0));
    let (saga, _) = driver.prepare(Plan::clone(&taking(std::slice::from_ref(&next)))).await;
    assert_eq!(found("acme").await, Some((next, PostingState::Pending(saga.rid))));
    driver.abort(saga).await;
}

/// An overdraft mark is a posting of nothing that is not counted. It is inserted once, also after it was replaced.
pub async fn an_overdraft_is_marked_once(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&["acme"]).await;
    let naming = token();
    let (mark, next, debt) =
        (posting(naming, 0, "acme", 0), posting(naming, 1, "acme", 0), posting(naming, 2, "acme", -5));
    let insert = || Change::Mark(Box::new(mark.clone()));
    assert_eq!(driver.posting_set("acme").await.mark, None);
    assert_eq!((driver.write_one(insert()).await, driver.write_one(insert()).await), (1, 0));
    let found = async || driver.posting_set("acme").await.mark.map(|mark| mark.id);
    assert_eq!(found().await, Some(mark.id));
    let entries = vec![entry(vec![])];
    driver
        .execute(Plan { inputs: vec![mark.clone()], outputs: vec![next.clone(), debt], entries, ..Plan::default() })
        .await;
    assert_eq!(driver.write_one(insert()).await, 0);
    assert_eq!(found().await, Some(next.id));
    let posting_set = driver.posting_set("acme").await;
    assert_eq!((amounts(&posting_set.owed), posting_set.active), (vec![-5], 0));
}
