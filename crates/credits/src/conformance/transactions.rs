//! Transactions of all vaults, the latest commit first.

use std::sync::Arc;
use std::time::Duration;

use earmark_admission::CreditCursor;
use earmark_core::{Actor, ClientId, Moment, NamespaceName, TxId, VaultName};

use super::concurrent::{MANY, concurrently};
use super::driver::{NOW, StoreDriver, entry, home, token};
use crate::model::{Entry, EntryBody, Plan, Transaction, VaultKey};
use crate::store::{Change, Store, TransactionQuery};

/// Reads of a list that may lag behind, and the pause between them.
const LOOKS_MAX: u32 = 400;
const PAUSE: Duration = Duration::from_millis(25);

fn there(namespace: &str, vault: &str) -> VaultKey {
    let namespace = NamespaceName::new(namespace).expect("a valid name");
    VaultKey { namespace, vault: VaultName::new(vault).expect("a valid vault") }
}

/// The actor of the transaction with this sequence. Four take turns.
fn actor(sequence: u64) -> Actor {
    Actor::new(&format!("user:{}", sequence % 4)).expect("a valid actor")
}

/// An entry of the transaction with this sequence.
fn transaction(home: &VaultKey, sequence: u64) -> Entry {
    let body = EntryBody::Transaction(Transaction {
        tx_id: TxId(sequence.into()),
        id: earmark_core::WriteId::Sequence { client: ClientId::new("billing").expect("a valid client"), sequence },
        actor: actor(sequence),
        operations: vec![],
    });
    let at = Moment { log: NOW.plus_ms(sequence), wall: NOW.minus_ms(sequence) };
    Entry { home: home.clone(), at, body, changes: vec![] }
}

/// All transactions, read `max` at a time.
fn all(max: usize) -> TransactionQuery {
    TransactionQuery { namespace: None, actor: None, after: CreditCursor::default(), max }
}

/// The transactions of a namespace, read `max` at a time.
fn of(namespace: &str, max: usize) -> TransactionQuery {
    TransactionQuery { namespace: Some(namespace.parse().expect("a valid name")), ..all(max) }
}

/// The sequences and cursors of transactions.
async fn listed(store: &dyn Store, query: TransactionQuery) -> Vec<(u64, CreditCursor)> {
    let (mut numbers, mut query) = (Vec::new(), query);
    loop {
        let page = store.transactions(query.clone()).await.expect("a store that answers");
        assert!(page.found.len() <= query.max);
        for found in page.found {
            assert_eq!(found.at, NOW.minus_ms(found.transaction.id.sequence().unwrap_or(0)));
            assert_eq!(found.transaction.actor, actor(found.transaction.id.sequence().unwrap_or(0)));
            assert!(query.namespace.as_ref().is_none_or(|name| *name == found.home.namespace));
            assert!(query.actor.as_ref().is_none_or(|actor| *actor == found.transaction.actor));
            numbers.push((found.transaction.id.sequence().unwrap_or(0), found.place));
        }
        match page.next {
            Some(next) => {
                assert_ne!(next, query.after, "it stands still");
                query.after = next;
            }
            None => return numbers,
        }
    }
}

/// Waits until `count` transactions are visible. A database withholds a commit until all earlier ones have ended.
async fn listed_once(store: &dyn Store, count: usize) -> Vec<(u64, CreditCursor)> {
    let mut found = Vec::new();
    for _ in 0..LOOKS_MAX {
        found = listed(store, all(100)).await;
        if found.len() >= count {
            break;
        }
        tokio::time::sleep(PAUSE).await;
    }
    found
}

fn numbers(found: &[(u64, CreditCursor)]) -> Vec<u64> {
    found.iter().map(|(number, _)| *number).collect()
}

/// Newest first, none twice, and filtered by namespace and actor.
pub async fn transactions_of_all_vaults_come_latest_commit_first(store: &dyn Store) {
    let driver = StoreDriver(store);
    let homes = [home(), there("default", "eu"), there("a-team", "main")];
    for home in &homes {
        driver.write_one(Change::OpenVault(home.clone())).await;
    }
    assert_eq!(listed(store, all(9)).await, []);
    for (sequence, home) in (1..=9).zip(homes.iter().cycle()) {
        // Entries of leases are not listed.
        let entries = vec![entry(vec![]), transaction(home, sequence)];
        driver.execute(Plan { entries, ..Plan::default() }).await;
    }
    let found = listed_once(store, 9).await;
    assert_eq!(numbers(&found), [9, 8, 7, 6, 5, 4, 3, 2, 1]);
    for max in [1, 2, 4, 9, 10] {
        assert_eq!(listed(store, all(max)).await, found, "{max} at a time");
        for (after, count) in found.iter().map(|(_, place)| *place).zip(1..) {
            let rest = listed(store, TransactionQuery { after, ..all(max) }).await;
            assert_eq!(rest, found[count..], "{max} at a time behind {after:?}");
            // The position before a transaction.
            let before = CreditCursor { given: after.given - 1, ..after };
            let rest = listed(store, TransactionQuery { after: before, ..all(max) }).await;
            assert_eq!(rest, found[count - 1..], "{max} at a time from {after:?}");
        }
        assert_eq!(listed(store, TransactionQuery { after: CreditCursor::END, ..all(max) }).await, []);
        let of_team = listed(store, of("a-team", max)).await;
        assert_eq!(numbers(&of_team), [9, 6, 3]);
        let of_default = listed(store, TransactionQuery { after: of_team[1].1, ..of("default", max) }).await;
        assert_eq!(numbers(&of_default), [5, 4, 2, 1]);
        assert_eq!(listed(store, of("nobody", max)).await, []);
        for (sequence, expected) in [(0, vec![8, 4]), (1, vec![9, 5, 1]), (2, vec![6, 2])] {
            let by = |query| TransactionQuery { actor: Some(actor(sequence)), ..query };
            let of_actor = listed(store, by(all(max))).await;
            assert_eq!(numbers(&of_actor), expected, "{max} at a time");
            for (after, count) in of_actor.iter().map(|(_, place)| *place).zip(1..) {
                assert_eq!(listed(store, by(TransactionQuery { after, ..all(max) })).await, of_actor[count..]);
            }
            let of_team: Vec<u64> = expected.into_iter().filter(|number| number % 3 == 0).collect();
            assert_eq!(numbers(&listed(store, by(of("a-team", max))).await), of_team);
        }
        let nobody = Actor::new("user:nobody").ok();
        assert_eq!(listed(store, TransactionQuery { actor: nobody, ..all(max) }).await, []);
    }
    // A later transaction appears before all others.
    driver.execute(Plan { entries: vec![transaction(&homes[2], 10)], ..Plan::default() }).await;
    let more = listed_once(store, 10).await;
    assert_eq!((&more[1..], more[0].0), (&found[..], 10));
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
    // Reads from the newest transaction to the newest one that it has seen.
    let reading = async {
        let mut seen: Vec<(u64, CreditCursor)> = Vec::new();
        for _ in 0..LOOKS_MAX {
            let found = listed(store, all(7)).await;
            let count = found.len() - seen.len();
            assert_eq!(found[count..], seen, "a transaction appeared among those already listed");
            seen = found;
            if seen.len() as u64 >= many {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
        seen
    };
    let ((), seen) = tokio::join!(writing, reading);
    assert_eq!(listed(store, all(100)).await, seen);
    let mut numbers = numbers(&seen);
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=many).collect::<Vec<_>>());
    assert_eq!(listed(store, of("a-team", 3)).await.len() as u64, many / 3);
    let by = TransactionQuery { actor: Some(actor(0)), ..all(3) };
    assert_eq!(listed(store, by).await.len() as u64, many / 4);
}
