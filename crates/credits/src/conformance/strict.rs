//! Errors that appear only with many rows, odd text or concurrent callers.

use std::sync::Arc;

use earmark_core::{AccountStatus, Actor, ClientId, GrantTerms, Operation, TxId};

use super::concurrent::concurrently;
use super::driver::{
    StoreDriver, account, again, change, entry, home, moving, opening, posting, record, taking, token, usd, usd_key,
};
use crate::model::{ClaimKind, Entry, EntryBody, Need, Plan, TotalsChange, Transaction};
use crate::store::{Change, FindRecord, Store};

/// One step changes a thousand inputs, outputs or effects.
pub async fn a_thousand_rows_are_changed_by_one_step(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&["acme", "bob"]).await;
    let many: Vec<i128> = (1..=1_000).collect();
    let inputs = driver.issue("acme", &many).await;
    let naming = token();
    let outputs = (0..1_000).map(|place| posting(naming, place, "bob", i128::from(place) + 1)).collect();
    let total = many.iter().sum::<i128>();
    let entries = vec![entry(vec![change("acme", -total, 0), change("bob", total, 0)])];
    let plan = Plan { inputs, outputs, entries, ..Plan::default() };
    let (saga, plan) = driver.prepare(plan).await;
    assert_eq!(driver.decide(saga, &plan).await, 1);
    assert_eq!(driver.finish(saga, &plan).await, [1_000, 1_000, 0, 1, 1]);
    assert_eq!((driver.large("acme").await, driver.large("bob").await), (vec![], vec![1_000, 999, 998]));
    let funds =
        store.funds(account("bob"), crate::store::AsOf::at(super::driver::NOW)).await.expect("a store that answers");
    assert_eq!(funds[0].active, total);
}

/// A caller without an answer repeats its list, whether or not the first was made.
pub async fn a_list_that_is_made_again_changes_nothing_more(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&["acme"]).await;
    let inputs = driver.issue("acme", &[5]).await;
    let (saga, naming) = (token(), token());
    let totals = vec![TotalsChange { asset: usd_key(), issued: 0, retired: 1, expired: 0 }];
    let entries = vec![entry(vec![change("acme", -1, 0)])];
    let outputs = vec![posting(naming, 0, "acme", 4)];
    let plan = Arc::new(Plan { inputs, outputs, entries, totals, ..Plan::default() });
    let of = || Arc::clone(&plan);
    let prepare = || vec![Change::Begin(record(saga, &plan)), Change::Reserve(saga, of())];
    let commit = || {
        let steps = [Change::Finalize, Change::Create, Change::Record].map(|step| step(saga, of()));
        [vec![Change::Decide(saga, of())], steps.to_vec()].concat()
    };
    assert_eq!((driver.write(prepare()).await, driver.write(prepare()).await), (vec![1, 1], vec![0, 0]));
    assert_eq!((driver.write(commit()).await, driver.write(commit()).await), (vec![1, 1, 1, 1], vec![0, 0, 0, 0]));
    assert_eq!((driver.write_one(Change::End(saga)).await, driver.write_one(Change::End(saga)).await), (1, 0));
    let late = [prepare(), commit(), vec![Change::Abort(saga), Change::Release(saga.rid), Change::End(saga)]];
    // The gate is free, so a delayed copy passes it. Its input is consumed, so it must not decide.
    assert_eq!(driver.write(late.concat()).await, [1, 0, 0, 0, 0, 0, 1, 0, 1]);
    let census = store.census(home()).await.expect("a store that answers");
    assert_eq!((census.assets[0].sums.retired, census.assets[0].live, census.uneven), (1, 4, vec![]));
}

/// Any text is stored unchanged.
pub async fn any_text_is_kept_as_it_is(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&["acme"]).await;
    let long = "\u{1F4B0}".repeat(1_000);
    for memo in [
        "'; drop table postings; --",
        "\"}],\"do\":\"end\"",
        "$1 ? ?1 :a @b {} %s \\ \\\\ \\u0000 \\x00",
        "\0\u{1}\u{7f}\u{80}\u{feff}\u{202e}\u{10ffff}\r\n\t",
        "null",
        "",
        long.as_str(),
    ] {
        let amount = 1;
        let issue = Operation::Issue {
            account: account("acme").account,
            asset: usd(),
            amount,
            memo: memo.to_owned(),
            terms: GrantTerms::PLAIN,
        };
        let transaction = Transaction {
            tx_id: TxId(7),
            id: earmark_core::WriteId::Sequence {
                client: ClientId::new("billing").expect("a valid client"),
                sequence: 1,
            },
            actor: Actor::new("user:1").expect("a valid actor"),
            operations: vec![issue],
        };
        let entries = vec![Entry { body: EntryBody::Transaction(transaction), ..entry(vec![]) }];
        let plan = Arc::new(Plan { entries: entries.clone(), ..Plan::default() });
        let saga = token();
        assert_eq!(driver.begin(saga, &plan).await, 1);
        let stored = store.record(FindRecord::Gate(saga.gate)).await.expect("a store that answers");
        assert_eq!(stored.expect("a record").record.plan, plan);
        assert_eq!(driver.decide(saga, &plan).await, 1);
        driver.finish(saga, &plan).await;
        let stored = store.entries(saga.gate).await.expect("a store that answers");
        assert_eq!(*stored[0].entry, entries[0]);
    }
    // Some names have a meaning in SQL.
    driver.open_accounts(&["select", "null", "a-b", "a.b", "a_b", "a+b", "a@b", "x:y", "100"]).await;
    assert!(driver.account("a_b").await.is_some());
    assert_eq!(driver.account("axb").await, None);
}

/// One saga at a time changes an account.
pub async fn of_many_at_once_one_claims_an_account(store: &dyn Store) {
    let driver = &StoreDriver(store);
    driver.open_accounts(&["acme"]).await;
    for claim in [moving("acme", ClaimKind::Changing, AccountStatus::Open, AccountStatus::Frozen), opening("new")] {
        let claims = vec![claim];
        let plan = Arc::new(Plan { claims, ..Plan::clone(&taking(&[])) });
        let counts = concurrently(|_| async {
            let saga = token();
            let steps = vec![Change::Begin(record(saga, &plan)), Change::Claim(saga, Arc::clone(&plan))];
            driver.write(steps).await
        })
        .await;
        assert!(counts.iter().all(|counts| counts[0] == 1));
        assert_eq!(counts.iter().map(|counts| counts[1]).sum::<u64>(), 1);
    }
}

/// Of concurrent copies of one step, one takes effect.
pub async fn of_many_at_once_one_makes_each_step(store: &dyn Store) {
    let driver = &StoreDriver(store);
    driver.open_accounts(&["acme"]).await;
    let inputs = driver.issue("acme", &[5, 6]).await;
    let naming = token();
    let needs = vec![Need { account: account("acme"), spends: true }];
    let outputs = vec![posting(naming, 0, "acme", 11)];
    let totals = vec![TotalsChange { asset: usd_key(), issued: 3, retired: 3, expired: 0 }];
    let (saga, plan) = (token(), Plan { needs, outputs, totals, ..Plan::clone(&taking(&inputs)) });
    let plan = Arc::new(plan);
    let of = || Arc::clone(&plan);
    driver.begin(saga, &plan).await;
    for (step, expected) in [
        (Change::Reserve(saga, of()), 2),
        (Change::Decide(saga, of()), 1),
        (Change::Finalize(saga, of()), 2),
        (Change::Create(saga, of()), 1),
        (Change::Record(saga, of()), 1),
        (Change::End(saga), 1),
    ] {
        let counts = concurrently(|_| driver.write_one(step.clone())).await;
        assert_eq!(counts.iter().sum::<u64>(), expected, "{step:?}");
    }
    let census = store.census(home()).await.expect("a store that answers");
    assert_eq!((census.assets[0].sums.issued, census.assets[0].sums.retired), (14, 3));
    assert_eq!(store.entries(saga.gate).await.expect("a store that answers").len(), 1);
}

/// Of a concurrent decision and abort one takes effect, and the postings follow it.
pub async fn of_deciding_and_giving_up_at_once_one_happens(store: &dyn Store) {
    let driver = &StoreDriver(store);
    driver.open_accounts(&["acme"]).await;
    for _ in 0..8 {
        let inputs = driver.issue("acme", &[1]).await;
        let (saga, plan) = driver.prepare(Plan::clone(&taking(&inputs))).await;
        let counts = concurrently(|place| {
            let decide = vec![Change::Decide(saga, Arc::clone(&plan)), Change::Finalize(saga, Arc::clone(&plan))];
            let abort = vec![Change::Abort(saga), Change::Release(saga.rid)];
            driver.write(if place % 2 == 0 { decide } else { abort })
        })
        .await;
        let sum =
            |of: usize, column: usize| counts.iter().skip(of).step_by(2).map(|counts| counts[column]).sum::<u64>();
        let (decided, finalized, aborted, released) = (sum(0, 0), sum(0, 1), sum(1, 0), sum(1, 1));
        assert_eq!((decided + aborted, finalized + released), (1, 1));
        assert_eq!((decided, aborted), (finalized, released));
    }
}

/// A concurrent retry finds the gate taken or the entry written.
pub async fn of_many_attempts_at_once_one_entry_comes(store: &dyn Store) {
    let driver = &StoreDriver(store);
    driver.open_accounts(&["acme"]).await;
    let (gate, plan) = (token(), taking(&[]));
    let counts = concurrently(|_| async {
        let saga = again(gate);
        let of = || Arc::clone(&plan);
        let steps = vec![
            Change::Begin(record(saga, &plan)),
            Change::Decide(saga, of()),
            Change::Record(saga, of()),
            Change::End(saga),
            Change::Abort(saga),
            Change::End(saga),
        ];
        driver.write(steps).await
    })
    .await;
    assert_eq!(counts.iter().map(|counts| counts[2]).sum::<u64>(), 1, "{counts:?}");
    assert_eq!(store.entries(gate.gate).await.expect("a store that answers").len(), 1);
    assert_eq!(store.record(FindRecord::Gate(gate.gate)).await, Ok(None));
}
