//! Postings: reserved by one, given back by that one, or consumed.

use std::sync::Arc;

use super::clerk::{Clerk, again, record, taking, ticket};
use crate::model::{Plan, Posting};
use crate::store::{Change, Store};

/// The saga learns from the count what it got.
pub async fn all_some_or_none_of_the_inputs_are_reserved(store: &dyn Store) {
    let clerk = Clerk(store);
    clerk.opens(&["acme"]).await;
    let postings = clerk.issues("acme", &[1, 2, 3, 4]).await;
    let (first, all) = (ticket(), taking(&postings[..2]));
    clerk.begin(first, &all).await;
    assert_eq!(clerk.one(Change::Reserve(first, Arc::clone(&all))).await, 2);
    // Ours already: the count does not say so, and the saga looks.
    assert_eq!(clerk.one(Change::Reserve(first, all)).await, 0);
    let (second, some) = (ticket(), taking(&postings[1..]));
    clerk.begin(second, &some).await;
    assert_eq!(clerk.one(Change::Reserve(second, some)).await, 2);
    let (third, none) = (ticket(), taking(&postings));
    clerk.begin(third, &none).await;
    assert_eq!(clerk.one(Change::Reserve(third, none)).await, 0);
    assert_eq!(clerk.large("acme").await, [0_i128; 0]);
}

/// What is not written down is not reserved.
pub async fn reserving_needs_its_record(store: &dyn Store) {
    let clerk = Clerk(store);
    clerk.opens(&["acme"]).await;
    let postings = clerk.issues("acme", &[1]).await;
    let (saga, plan) = (ticket(), taking(&postings));
    let reserve = |ticket| Change::Reserve(ticket, Arc::clone(&plan));
    assert_eq!(clerk.one(reserve(saga)).await, 0);
    clerk.begin(saga, &plan).await;
    assert_eq!(clerk.one(reserve(again(saga))).await, 0);
    assert_eq!(clerk.one(Change::Abort(saga)).await, 1);
    assert_eq!(clerk.one(reserve(saga)).await, 0);
    assert_eq!(clerk.large("acme").await, [1]);
}

/// A partial reserve is undone by the same reservation id only.
pub async fn a_release_gives_back_what_that_attempt_took_and_nothing_else(store: &dyn Store) {
    let clerk = Clerk(store);
    clerk.opens(&["acme"]).await;
    let postings = clerk.issues("acme", &[1, 2, 3]).await;
    let reserved = |postings: &[Posting]| Plan::clone(&taking(postings));
    let (first, _) = clerk.ready(reserved(&postings[..2])).await;
    let (second, plan) = clerk.ready(reserved(&postings[2..])).await;
    assert_eq!(clerk.give_up(first).await, [1, 2, 0, 1]);
    assert_eq!(clerk.large("acme").await, [2, 1]);
    assert_eq!(clerk.one(Change::Release(first.rid)).await, 0);
    assert_eq!(clerk.decide(second, &plan).await, 1);
    assert_eq!(clerk.finish(second, &plan).await, [1, 0, 0, 1, 1]);
    assert_eq!(clerk.one(Change::Release(second.rid)).await, 0);
    assert_eq!(clerk.large("acme").await, [2, 1]);
}

/// A late copy of a release must not undo what was decided since.
pub async fn nothing_is_released_while_its_saga_may_still_happen(store: &dyn Store) {
    let clerk = Clerk(store);
    clerk.opens(&["acme"]).await;
    let postings = clerk.issues("acme", &[1]).await;
    let (saga, plan) = clerk.ready(Plan::clone(&taking(&postings))).await;
    assert_eq!(clerk.one(Change::Release(saga.rid)).await, 0);
    assert_eq!(clerk.decide(saga, &plan).await, 1);
    assert_eq!(clerk.one(Change::Release(saga.rid)).await, 0);
    assert_eq!(clerk.one(Change::Abort(saga)).await, 0);
    assert_eq!(clerk.finish(saga, &plan).await, [1, 0, 0, 1, 1]);
}

/// What is reserved by nobody can be found and given back.
pub async fn reserved_rows_without_a_record_are_orphans(store: &dyn Store) {
    let clerk = Clerk(store);
    clerk.opens(&["acme"]).await;
    let postings = clerk.issues("acme", &[1]).await;
    let claims = vec![super::clerk::opening("new")];
    let (saga, _) = clerk.ready(Plan { claims, ..Plan::clone(&taking(&postings)) }).await;
    let (other, plan) = clerk.ready(Plan::clone(&taking(&[]))).await;
    assert_eq!(store.orphans(9).await, Ok(vec![]));
    // The record goes without what it reserved: no saga does that, a late step may.
    assert_eq!(clerk.all(vec![Change::Abort(saga), Change::End(saga)]).await, [1, 1]);
    assert_eq!(store.orphans(9).await, Ok(vec![saga.rid]));
    assert_eq!(clerk.one(Change::Begin(record(again(saga), &plan))).await, 1);
    assert_eq!(store.orphans(9).await, Ok(vec![saga.rid]));
    assert_eq!(clerk.all(vec![Change::Release(saga.rid), Change::Unclaim(saga.rid)]).await, [1, 1]);
    assert_eq!((store.orphans(9).await, clerk.account("new").await), (Ok(vec![]), None));
    assert_eq!(clerk.large("acme").await, [1]);
    clerk.give_up(other).await;
}
