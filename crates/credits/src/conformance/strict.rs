//! What a store gets wrong that was tried with a few small rows, one caller and good manners.

use std::sync::Arc;

use earmark_core::{Actor, ClientId, Operation, Standing, TxId};

use super::clerk::{
    Clerk, account, again, change, entry, home, moving, opening, posting, record, taking, ticket, usd,
    usd_key,
};
use super::together::at_once;
use crate::model::{ClaimKind, Entry, EntryBody, Need, Plan, TotalsChange, Transaction};
use crate::store::{Change, FindRecord, Store};

/// A thousand inputs, outputs and changes are one step each.
pub async fn a_thousand_rows_are_changed_by_one_step(store: &dyn Store) {
    let clerk = Clerk(store);
    clerk.opens(&["acme", "bob"]).await;
    let many: Vec<i128> = (1..=1_000).collect();
    let inputs = clerk.issues("acme", &many).await;
    let naming = ticket();
    let outputs = (0..1_000).map(|place| posting(naming, place, "bob", i128::from(place) + 1)).collect();
    let total = many.iter().sum::<i128>();
    let entries = vec![entry(vec![change("acme", -total, 0), change("bob", total, 0)])];
    let plan = Plan { inputs, outputs, entries, ..Plan::default() };
    let (saga, plan) = clerk.ready(plan).await;
    assert_eq!(clerk.decide(saga, &plan).await, 1);
    assert_eq!(clerk.finish(saga, &plan).await, [1_000, 1_000, 0, 1, 1]);
    assert_eq!((clerk.large("acme").await, clerk.large("bob").await), (vec![], vec![1_000, 999, 998]));
    let funds = store.funds(account("bob"), super::clerk::NOW).await.expect("a store that answers");
    assert_eq!(funds[0].active, total);
}

/// Whoever was not answered sends the same list again, whether or not the first was made.
pub async fn a_list_that_is_made_again_changes_nothing_more(store: &dyn Store) {
    let clerk = Clerk(store);
    clerk.opens(&["acme"]).await;
    let inputs = clerk.issues("acme", &[5]).await;
    let (saga, naming) = (ticket(), ticket());
    let totals = vec![TotalsChange { asset: usd_key(), issued: 0, retired: 1 }];
    let entries = vec![entry(vec![change("acme", -1, 0)])];
    let outputs = vec![posting(naming, 0, "acme", 4)];
    let plan = Arc::new(Plan { inputs, outputs, entries, totals, ..Plan::default() });
    let of = || Arc::clone(&plan);
    let gather = || vec![Change::Begin(record(saga, &plan)), Change::Reserve(saga, of())];
    let commit = || {
        let steps = [Change::Finalize, Change::Create, Change::Record].map(|step| step(saga, of()));
        [vec![Change::Decide(saga, of())], steps.to_vec()].concat()
    };
    assert_eq!((clerk.all(gather()).await, clerk.all(gather()).await), (vec![1, 1], vec![0, 0]));
    assert_eq!((clerk.all(commit()).await, clerk.all(commit()).await), (vec![1, 1, 1, 1], vec![0, 0, 0, 0]));
    assert_eq!((clerk.one(Change::End(saga)).await, clerk.one(Change::End(saga)).await), (1, 0));
    let late = [gather(), commit(), vec![Change::Abort(saga), Change::Release(saga.rid), Change::End(saga)]];
    // The gate is free, so a late copy passes it; it finds its input consumed, and must not decide.
    assert_eq!(clerk.all(late.concat()).await, [1, 0, 0, 0, 0, 0, 1, 0, 1]);
    let census = store.count(home()).await.expect("a store that answers");
    assert_eq!((census.assets[0].sums.retired, census.assets[0].live, census.uneven), (1, 4, vec![]));
}

/// Text from outside is text, whatever it looks like.
pub async fn any_text_is_kept_as_it_is(store: &dyn Store) {
    let clerk = Clerk(store);
    clerk.opens(&["acme"]).await;
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
        };
        let transaction = Transaction {
            tx_id: TxId(7),
            client: ClientId::new("billing").expect("a valid client"),
            sequence: 1,
            actor: Actor::new("user:1").expect("a valid actor"),
            operations: vec![issue],
        };
        let entries = vec![Entry { body: EntryBody::Transaction(transaction), ..entry(vec![]) }];
        let plan = Arc::new(Plan { entries: entries.clone(), ..Plan::default() });
        let saga = ticket();
        assert_eq!(clerk.begin(saga, &plan).await, 1);
        let stored = store.record(FindRecord::Gate(saga.gate)).await.expect("a store that answers");
        assert_eq!(stored.expect("a record").record.plan, plan);
        assert_eq!(clerk.decide(saga, &plan).await, 1);
        clerk.finish(saga, &plan).await;
        let stored = store.entries(saga.gate).await.expect("a store that answers");
        assert_eq!(*stored[0].entry, entries[0]);
    }
    // Names are of few letters, and some of these mean something to a database.
    clerk.opens(&["select", "null", "a-b", "a.b", "a_b", "a+b", "a@b", "x:y", "100"]).await;
    assert!(clerk.account("a_b").await.is_some());
    assert_eq!(clerk.account("axb").await, None);
}

/// An account has one saga that changes it.
pub async fn of_many_at_once_one_claims_an_account(store: &dyn Store) {
    let clerk = &Clerk(store);
    clerk.opens(&["acme"]).await;
    for claim in [moving("acme", ClaimKind::Changing, Standing::Open, Standing::Frozen), opening("new")] {
        let claims = vec![claim];
        let plan = Arc::new(Plan { claims, ..Plan::clone(&taking(&[])) });
        let counts = at_once(|_| async {
            let saga = ticket();
            let steps = vec![Change::Begin(record(saga, &plan)), Change::Claim(saga, Arc::clone(&plan))];
            clerk.all(steps).await
        })
        .await;
        assert!(counts.iter().all(|counts| counts[0] == 1));
        assert_eq!(counts.iter().map(|counts| counts[1]).sum::<u64>(), 1);
    }
}

/// Copies of the same step of the same saga: one of them makes it.
pub async fn of_many_at_once_one_makes_each_step(store: &dyn Store) {
    let clerk = &Clerk(store);
    clerk.opens(&["acme"]).await;
    let inputs = clerk.issues("acme", &[5, 6]).await;
    let naming = ticket();
    let needs = vec![Need { account: account("acme"), spends: true }];
    let outputs = vec![posting(naming, 0, "acme", 11)];
    let totals = vec![TotalsChange { asset: usd_key(), issued: 3, retired: 3 }];
    let (saga, plan) = (ticket(), Plan { needs, outputs, totals, ..Plan::clone(&taking(&inputs)) });
    let plan = Arc::new(plan);
    let of = || Arc::clone(&plan);
    clerk.begin(saga, &plan).await;
    for (step, expected) in [
        (Change::Reserve(saga, of()), 2),
        (Change::Decide(saga, of()), 1),
        (Change::Finalize(saga, of()), 2),
        (Change::Create(saga, of()), 1),
        (Change::Record(saga, of()), 1),
        (Change::End(saga), 1),
    ] {
        let counts = at_once(|_| clerk.one(step.clone())).await;
        assert_eq!(counts.iter().sum::<u64>(), expected, "{step:?}");
    }
    let census = store.count(home()).await.expect("a store that answers");
    assert_eq!((census.assets[0].sums.issued, census.assets[0].sums.retired), (14, 3));
    assert_eq!(store.entries(saga.gate).await.expect("a store that answers").len(), 1);
}

/// Deciding and giving up at the same moment: one of them, and the postings go one way.
pub async fn of_deciding_and_giving_up_at_once_one_happens(store: &dyn Store) {
    let clerk = &Clerk(store);
    clerk.opens(&["acme"]).await;
    for _ in 0..8 {
        let inputs = clerk.issues("acme", &[1]).await;
        let (saga, plan) = clerk.ready(Plan::clone(&taking(&inputs))).await;
        let counts = at_once(|place| {
            let decide =
                vec![Change::Decide(saga, Arc::clone(&plan)), Change::Finalize(saga, Arc::clone(&plan))];
            let give_up = vec![Change::Abort(saga), Change::Release(saga.rid)];
            clerk.all(if place % 2 == 0 { decide } else { give_up })
        })
        .await;
        let sum = |of: usize, column: usize| {
            counts.iter().skip(of).step_by(2).map(|counts| counts[column]).sum::<u64>()
        };
        let (decided, finalized, aborted, released) = (sum(0, 0), sum(0, 1), sum(1, 0), sum(1, 1));
        assert_eq!((decided + aborted, finalized + released), (1, 1));
        assert_eq!((decided, aborted), (finalized, released));
    }
}

/// A retry that comes while the first is being carried out finds the gate shut, or the entry there.
pub async fn of_many_attempts_at_once_one_entry_comes(store: &dyn Store) {
    let clerk = &Clerk(store);
    clerk.opens(&["acme"]).await;
    let (gate, plan) = (ticket(), taking(&[]));
    let counts = at_once(|_| async {
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
        clerk.all(steps).await
    })
    .await;
    assert_eq!(counts.iter().map(|counts| counts[2]).sum::<u64>(), 1, "{counts:?}");
    assert_eq!(store.entries(gate.gate).await.expect("a store that answers").len(), 1);
    assert_eq!(store.record(FindRecord::Gate(gate.gate)).await, Ok(None));
}
