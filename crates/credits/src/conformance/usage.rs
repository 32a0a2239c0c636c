//! Counters and their bounds.

use std::sync::Arc;

use super::concurrent::{MANY, concurrently};
use super::driver::{StoreDriver, again, home, opening, taking, token};
use crate::model::{Growth, Plan, UsageKey, UsageKind};
use crate::store::{Change, Store};

fn clients() -> UsageKey {
    UsageKey { namespace: None, vault: None, kind: UsageKind::Clients }
}

fn accounts() -> UsageKey {
    UsageKey::of(&home().namespace, UsageKind::Accounts)
}

fn assets() -> UsageKey {
    UsageKey { vault: Some(home().vault), ..UsageKey::of(&home().namespace, UsageKind::Assets) }
}

/// A plan of one entry that adds to each counter, up to a maximum.
fn growing(growth: &[(UsageKey, u64, u64)]) -> Arc<Plan> {
    let growth = growth.iter().cloned().map(|(key, added, max)| Growth { key, added, max });
    Arc::new(Plan { growth: growth.collect(), ..Plan::clone(&taking(&[])) })
}

impl StoreDriver<'_> {
    async fn used(&self) -> Vec<u64> {
        let keys = vec![clients(), accounts(), assets()];
        self.0.usage(keys).await.expect("a store that answers")
    }

    /// Makes all steps of a saga, and aborts it if it is not decided. Returns whether it is.
    async fn grow(&self, plan: &Arc<Plan>) -> bool {
        let (token, plan) = self.prepare(Plan::clone(plan)).await;
        let is_decided = self.decide(token, &plan).await == 1;
        if is_decided {
            self.finish(token, &plan).await;
        } else {
            self.abort(token).await;
        }
        is_decided
    }
}

/// The decision counts, once; a plan that is not decided counts nothing.
pub async fn rows_are_counted_with_the_decision(store: &dyn Store) {
    let driver = StoreDriver(store);
    assert_eq!(driver.used().await, [0, 0, 0], "a counter without a row");
    let growth = [(clients(), 1, 1), (accounts(), 2, 9), (assets(), 3, 9)];
    let (aborted, plan) = driver.prepare(Plan::clone(&growing(&growth))).await;
    driver.abort(aborted).await;
    assert_eq!(driver.decide(aborted, &plan).await, 0);
    assert_eq!(driver.used().await, [0, 0, 0]);
    let (token, plan) = driver.prepare(Plan::clone(&growing(&growth))).await;
    assert_eq!((driver.decide(token, &plan).await, driver.decide(token, &plan).await), (1, 0));
    assert_eq!(driver.used().await, [1, 2, 3]);
    driver.finish(token, &plan).await;
    driver.finish(token, &plan).await;
    assert!(!driver.commit(again(token), &plan).await, "it happened");
    assert_eq!(driver.used().await, [1, 2, 3]);
    let whole = growing(&[(accounts(), 3, 5)]);
    assert!(driver.commit(super::driver::token(), &whole).await);
    assert_eq!(driver.used().await, [1, 5, 3]);
    assert_eq!(store.usage(vec![]).await, Ok(vec![]));
    assert_eq!(store.usage(vec![assets(), clients(), assets()]).await, Ok(vec![3, 1, 3]));
}

/// A plan for which one of its counters has no room changes none of them, by steps or as a whole.
pub async fn a_plan_beyond_a_maximum_is_not_decided(store: &dyn Store) {
    let driver = StoreDriver(store);
    for added in [(accounts(), 6, 5), (assets(), 1, 0)] {
        assert!(!driver.grow(&growing(&[(clients(), 1, 9), added.clone()])).await, "a counter without a row");
        assert!(!driver.commit(token(), &growing(&[(clients(), 1, 9), added])).await);
    }
    assert!(driver.grow(&growing(&[(accounts(), 4, 5)])).await);
    for plan in [growing(&[(clients(), 1, 9), (accounts(), 2, 5)]), growing(&[(accounts(), 1, 4)])] {
        assert!(!driver.grow(&plan).await);
        assert!(!driver.commit(token(), &plan).await);
    }
    assert_eq!(driver.used().await, [0, 4, 0]);
    // A maximum below the use stops growth only.
    assert!(driver.commit(token(), &taking(&[])).await);
    assert!(driver.commit(token(), &growing(&[(accounts(), 1, 5)])).await);
    assert!(!driver.grow(&growing(&[(accounts(), 1, 5)])).await);
    assert_eq!(driver.used().await, [0, 5, 0]);
}

/// As many plans grow as there is room for, however they commit.
pub async fn of_many_at_once_as_many_grow_as_there_is_room(store: &dyn Store) {
    const ROOM: u64 = 9;
    let driver = &StoreDriver(store);
    driver.open_accounts(&["acme"]).await;
    let grown = concurrently(|number| async move {
        let plan = growing(&[(clients(), 1, u64::MAX >> 11), (accounts(), 1, ROOM)]);
        match number % 3 {
            0 => driver.commit(token(), &plan).await,
            1 => driver.grow(&plan).await,
            // All steps in one list, as a process sends them.
            _ => {
                let claims = vec![opening(&format!("new-{number}"))];
                let (saga, plan) = (token(), Arc::new(Plan { claims, ..Plan::clone(&plan) }));
                let counts = driver.write(super::driver::steps(saga, &plan)).await;
                if counts[3] == 0 {
                    driver.write(vec![Change::Abort(saga), Change::Unclaim(saga.rid), Change::End(saga)]).await;
                }
                counts[3] == 1
            }
        }
    })
    .await;
    let grown = grown.into_iter().filter(|is_grown| *is_grown).count() as u64;
    assert!(ROOM < MANY as u64);
    assert_eq!((grown, driver.used().await), (ROOM, vec![ROOM, ROOM, 0]));
}
