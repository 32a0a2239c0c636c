//! Transactions of all vaults in commit order.

use std::sync::Arc;
use std::time::Duration;

use earmark_admission::CreditCursor;
use earmark_core::{Actor, ClientId, Moment, NamespaceName, TxId, VaultName};

use super::concurrent::{MANY, concurrently};
use super::driver::{NOW, StoreDriver, entry, home, token};
use crate::model::{Entry, EntryBody, Plan, Transaction, VaultKey};
use crate::store::{Change, Store};

/// Reads of a list that may lag behind, and the pause between them.
const LOOKS_MAX: u32 = 400;
const PAUSE: Duration = Duration::from_millis(25);

fn there(namespace: &str, vault: &str) -> VaultKey {
    let namespace = NamespaceName::new(namespace).expect("a valid name");
    VaultKey { namespace, vault: VaultName::new(vault).expect("a valid vault") }
}

/// An entry of the transaction with this sequence.
fn transaction(home: &VaultKey, sequence: u64) -> Entry {
    let body = EntryBody::Transaction(Transaction {
        tx_id: TxId(sequence.into()),
        client: ClientId::new("billing").expect("a valid client"),
        sequence,
        actor: Actor::new(&format!("user:{sequence}")).expect("a valid actor"),
        operations: vec![],
    });
    let at = Moment { log: NOW.plus_ms(sequence), wall: NOW.minus_ms(sequence) };
    Entry { home: home.clone(), at, body, changes: vec![] }
}

/// The sequences and cursors of all transactions, read `max` at a time.
async fn listed(
    store: &dyn Store,
    namespace: Option<&str>,
    after: CreditCursor,
    max: usize,
) -> Vec<(u64, CreditCursor)> {
    let namespace = namespace.map(|name| NamespaceName::new(name).expect("a valid name"));
    let (mut numbers, mut after) = (Vec::new(), after);
    loop {
        let page = store.transactions(namespace.clone(), after, max).await.expect("a store that answers");
        assert!(page.found.len() <= max);
        for found in page.found {
            assert_eq!(found.at, NOW.minus_ms(found.transaction.sequence));
            assert_eq!(found.transaction.actor.as_str(), format!("user:{}", found.transaction.sequence));
            assert!(namespace.as_ref().is_none_or(|name| *name == found.home.namespace));
            numbers.push((found.transaction.sequence, found.place));
        }
        match page.next {
            Some(next) => {
                assert_ne!(next, after, "it stands still");
                after = next;
            }
            None => return numbers,
        }
    }
}

/// Waits until `count` transactions are visible. A database withholds a commit until all earlier ones have ended.
async fn listed_once(store: &dyn Store, count: usize) -> Vec<(u64, CreditCursor)> {
    let mut found = Vec::new();
    for _ in 0..LOOKS_MAX {
        found = listed(store, None, CreditCursor::default(), 100).await;
        if found.len() >= count {
            break;
        }
        tokio::time::sleep(PAUSE).await;
    }
    found
}

/// Oldest first, none twice, and filtered by namespace.
pub async fn transactions_of_all_vaults_come_in_the_order_of_their_commits(store: &dyn Store) {
    let driver = StoreDriver(store);
    let homes = [home(), there("default", "eu"), there("a-team", "main")];
    for home in &homes {
        driver.write_one(Change::OpenVault(home.clone())).await;
    }
    assert_eq!(listed(store, None, CreditCursor::default(), 9).await, []);
    for (sequence, home) in (1..=9).zip(homes.iter().cycle()) {
        // Entries of leases are not listed.
        let entries = vec![entry(vec![]), transaction(home, sequence)];
        driver.execute(Plan { entries, ..Plan::default() }).await;
    }
    let all = listed_once(store, 9).await;
    let numbers = |found: &[(u64, CreditCursor)]| found.iter().map(|(number, _)| *number).collect::<Vec<_>>();
    assert_eq!(numbers(&all), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    for max in [1, 2, 4, 9, 10] {
        assert_eq!(listed(store, None, CreditCursor::default(), max).await, all, "{max} at a time");
        for (place, count) in all.iter().map(|(_, place)| *place).zip(1..) {
            assert_eq!(listed(store, None, place, max).await, all[count..], "{max} at a time after {place:?}");
        }
        let of_team = listed(store, Some("a-team"), CreditCursor::default(), max).await;
        assert_eq!(numbers(&of_team), [3, 6, 9]);
        let of_default = listed(store, Some("default"), of_team[0].1, max).await;
        assert_eq!(numbers(&of_default), [4, 5, 7, 8]);
        assert_eq!(listed(store, Some("nobody"), CreditCursor::default(), max).await, []);
    }
    // A later transaction appears after every cursor.
    driver.execute(Plan { entries: vec![transaction(&homes[2], 10)], ..Plan::default() }).await;
    let more = listed_once(store, 10).await;
    assert_eq!((&more[..9], more[9].0), (&all[..], 10));
    assert_eq!(listed(store, None, all[8].1, 1).await, more[9..]);
}

/// A reader that pages during concurrent commits sees each transaction once.
pub async fn transactions_that_commit_together_are_listed_once_each(store: &dyn Store) {
    const ROUNDS: u64 = 3;
    let driver = &StoreDriver(store);
    let homes = [home(), there("a-team", "main")];
    for home in &homes {
        driver.write_one(Change::OpenVault(home.clone())).await;
    }
    let write = async |sequence: u64| {
        let entries = vec![transaction(&homes[usize::from(sequence.is_multiple_of(3))], sequence)];
        let (token, plan) = (token(), Arc::new(Plan { entries, ..Plan::default() }));
        assert!(driver.commit(token, &plan).await);
    };
    let writing = async {
        for round in 0..ROUNDS {
            concurrently(|place| write(1 + round * MANY as u64 + place as u64)).await;
        }
    };
    let many = ROUNDS * MANY as u64;
    let reading = async {
        let (mut seen, mut after) = (Vec::new(), CreditCursor::default());
        for _ in 0..LOOKS_MAX {
            let found = listed(store, None, after, 7).await;
            after = found.last().map_or(after, |(_, place)| *place);
            seen.extend(found);
            if seen.len() as u64 >= many {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
        seen
    };
    let ((), seen) = tokio::join!(writing, reading);
    assert_eq!(listed(store, None, CreditCursor::default(), 100).await, seen);
    let mut numbers: Vec<u64> = seen.iter().map(|(number, _)| *number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=many).collect::<Vec<_>>());
    assert_eq!(listed(store, Some("a-team"), CreditCursor::default(), 3).await.len() as u64, many / 3);
}
