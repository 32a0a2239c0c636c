//! Concurrent changes.

use std::sync::Arc;

use futures_util::future::join_all;

use super::driver::{StoreDriver, again, taking, token};
use crate::model::Plan;
use crate::store::{Change, Store};

/// Concurrent calls per case.
pub(super) const MANY: usize = 24;

/// Runs the same work [`MANY`] times concurrently and returns the results in order.
pub(super) async fn concurrently<T, F: Future<Output = T>>(work: impl Fn(usize) -> F) -> Vec<T> {
    join_all((0..MANY).map(work)).await
}

/// One record is inserted.
pub async fn of_many_at_once_one_passes_the_gate(store: &dyn Store) {
    let driver = &StoreDriver(store);
    let (gate, plan) = (token(), taking(&[]));
    let counts = concurrently(|_| driver.begin(again(gate), &plan)).await;
    assert_eq!((counts.len(), counts.iter().sum::<u64>()), (MANY, 1));
}

/// One attempt reserves each posting, and the others learn it from the count.
pub async fn of_many_at_once_one_reserves_a_posting(store: &dyn Store) {
    let driver = &StoreDriver(store);
    driver.open_accounts(&["acme"]).await;
    let postings = driver.issue("acme", &[1, 2, 3]).await;
    let plan = taking(&postings);
    let counts = concurrently(|_| async {
        let saga = token();
        let prepare = vec![Change::Begin(super::driver::record(saga, &plan)), Change::Reserve(saga, Arc::clone(&plan))];
        driver.write(prepare).await[1]
    })
    .await;
    assert_eq!(counts.iter().sum::<u64>(), 3);
    assert_eq!(driver.large("acme").await, [0_i128; 0]);
}

/// No smaller number appears after a larger one was visible.
pub async fn many_entries_at_once_have_numbers_without_gaps(store: &dyn Store) {
    let driver = &StoreDriver(store);
    driver.open_accounts(&["acme"]).await;
    let saga = |_| async {
        let plan = Plan::clone(&taking(&[]));
        let done = driver.execute(Plan { entries: [plan.entries.clone(), plan.entries].concat(), ..Plan::default() });
        let gate = done.await.gate;
        let entries = store.entries(gate).await.expect("a store that answers");
        entries.iter().map(|stored| stored.number).collect::<Vec<_>>()
    };
    let mut numbers = concurrently(saga).await.concat();
    numbers.sort_unstable();
    let first = numbers[0];
    let expected: Vec<u64> = (first..).take(2 * MANY).collect();
    assert_eq!(numbers, expected);
}
