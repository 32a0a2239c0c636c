//! Many at once.

use std::sync::Arc;

use super::clerk::{Clerk, again, taking, ticket};
use crate::model::Plan;
use crate::store::{Change, Store};

/// So many.
pub(super) const MANY: usize = 24;

/// Runs the same work many times at once, and gives what each gave.
pub(super) async fn at_once<T, F: Future<Output = T>>(work: impl Fn(usize) -> F) -> Vec<T> {
    let mut running: Vec<_> = (0..MANY).map(|place| Box::pin(work(place))).collect();
    let mut done: Vec<Option<T>> = (0..MANY).map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (work, done) in running.iter_mut().zip(&mut done).filter(|(_, done)| done.is_none()) {
            if let std::task::Poll::Ready(result) = work.as_mut().poll(context) {
                *done = Some(result);
            }
        }
        if done.iter().all(Option::is_some) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}

/// One record, whoever comes.
pub async fn of_many_at_once_one_passes_the_gate(store: &dyn Store) {
    let clerk = &Clerk(store);
    let (gate, plan) = (ticket(), taking(&[]));
    let counts = at_once(|_| clerk.begin(again(gate), &plan)).await;
    assert_eq!((counts.len(), counts.iter().sum::<u64>()), (MANY, 1));
}

/// One owner, and the others learn that they are none.
pub async fn of_many_at_once_one_reserves_a_posting(store: &dyn Store) {
    let clerk = &Clerk(store);
    clerk.opens(&["acme"]).await;
    let postings = clerk.issues("acme", &[1, 2, 3]).await;
    let plan = taking(&postings);
    let counts = at_once(|_| async {
        let saga = ticket();
        let gather =
            vec![Change::Begin(super::clerk::record(saga, &plan)), Change::Reserve(saga, Arc::clone(&plan))];
        clerk.all(gather).await[1]
    })
    .await;
    assert_eq!(counts.iter().sum::<u64>(), 3);
    assert_eq!(clerk.large("acme").await, [0_i128; 0]);
}

/// Who has seen a number will never see a smaller one appear.
pub async fn many_entries_at_once_have_numbers_without_gaps(store: &dyn Store) {
    let clerk = &Clerk(store);
    clerk.opens(&["acme"]).await;
    let saga = |_| async {
        let plan = Plan::clone(&taking(&[]));
        let done =
            clerk.does(Plan { entries: [plan.entries.clone(), plan.entries].concat(), ..Plan::default() });
        let gate = done.await.gate;
        let entries = store.entries(gate).await.expect("a store that answers");
        entries.iter().map(|stored| stored.number).collect::<Vec<_>>()
    };
    let mut numbers = at_once(saga).await.concat();
    numbers.sort_unstable();
    let first = numbers[0];
    let expected: Vec<u64> = (first..).take(2 * MANY).collect();
    assert_eq!(numbers, expected);
}
