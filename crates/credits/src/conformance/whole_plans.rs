//! Plans that a store commits as a whole.

use std::sync::Arc;

use earmark_core::AccountStatus;

use super::concurrent::concurrently;
use super::driver::{
    NOW, StoreDriver, account, again, amounts, change, client, entry, held, lease, moving, opening, owner, posting,
    record, taking, token, usd_key, vault,
};
use super::sample::bodies;
use crate::model::{ClaimKind, Client, Entry, Need, Plan, PostingState, SagaToken, SequenceClaim, TotalsChange};
use crate::store::{AssetSums, FindRecord, Store, Survey};

impl StoreDriver<'_> {
    /// Commits a plan and returns whether it took effect. Either way no saga is left in progress.
    pub(super) async fn commit(&self, saga: SagaToken, plan: &Arc<Plan>) -> bool {
        let committed = self.0.commit(record(saga, plan)).await.expect("a store that answers");
        let stored = self.0.record(FindRecord::Gate(saga.gate)).await.expect("a store that answers");
        assert!(stored.is_none_or(|stored| stored.record.token.rid != saga.rid), "no record is left");
        committed
    }
}

/// A commit writes the same rows as the single steps.
pub async fn a_whole_plan_is_written_as_by_steps(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&["acme", "bob"]).await;
    let inputs = driver.issue("acme", &[5, 6]).await;
    let (saga, of_lease) = (token(), lease());
    let here = bodies().into_iter().map(|body| Entry { body, ..entry(vec![change("acme", -7, 4)]) });
    let elsewhere = Entry { home: vault("eu"), ..entry(vec![change("zoe", i128::MIN, i128::MAX)]) };
    let entries: Vec<Entry> = here.chain([elsewhere, entry(vec![])]).collect();
    let hold = held(posting(saga, 1, "acme", 4), &of_lease, NOW.plus_ms(60_000));
    let plan = Arc::new(Plan {
        inputs: inputs.clone(),
        outputs: vec![posting(saga, 0, "bob", 7), hold.clone()],
        entries: entries.clone(),
        needs: vec![Need { account: account("acme"), spends: true }, Need { account: account("bob"), spends: false }],
        totals: vec![TotalsChange { asset: usd_key(), issued: i128::MAX, retired: 3, expired: 4 }],
        sequence_claim: Some(SequenceClaim { client: client("billing"), sequence: 1, owner: owner() }),
        ..Plan::default()
    });
    assert!(driver.commit(saga, &plan).await);
    let stored = store.entries(saga.gate).await.expect("a store that answers");
    assert_eq!(stored.iter().map(|stored| Entry::clone(&stored.entry)).collect::<Vec<_>>(), entries);
    let numbers: Vec<u64> = stored.iter().map(|stored| stored.number).collect();
    let (last, first) = (numbers[numbers.len() - 1], numbers[0]);
    assert_eq!((numbers[numbers.len() - 2], last - first), (1, entries.len() as u64 - 2), "{numbers:?}");
    assert_eq!((driver.large("acme").await, driver.large("bob").await), (vec![], vec![7]));
    assert_eq!(store.held(of_lease).await, Ok(vec![(hold, PostingState::Active)]));
    let survey = Survey { assets: vec![usd_key()], client: Some(client("billing")), ..Survey::default() };
    let found = store.survey(survey).await.expect("a store that answers");
    // The issued total saturates.
    let sums = AssetSums { issued: i128::MAX, retired: 3, expired: 4 };
    let written = Client { last_sequence: 1, owner: owner() };
    assert_eq!((found.assets, found.client), (vec![Some(sums)], Some(written)));
    let next = driver.execute(Plan::clone(&taking(&[]))).await;
    assert_eq!(store.entries(next.gate).await.expect("a store that answers")[0].number, last + 1);
    assert!(!driver.commit(again(saga), &plan).await, "it happened");
    assert_eq!(store.entries(saga.gate).await, Ok(stored));
}

/// Each condition alone prevents the commit, and a refused commit changes nothing.
pub async fn a_whole_plan_commits_only_as_by_steps(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&["open", "cold", "gone", "busy", "going"]).await;
    let claim = |claims| Plan { claims, ..Plan::clone(&taking(&[])) };
    let freeze = |name| moving(name, ClaimKind::Changing, AccountStatus::Open, AccountStatus::Frozen);
    let close = |name| moving(name, ClaimKind::Closing, AccountStatus::Open, AccountStatus::Closed);
    driver.execute(claim(vec![freeze("cold"), close("gone")])).await;
    driver.prepare(claim(vec![freeze("busy"), close("going"), opening("coming")])).await;
    let needing = |name, spends| {
        let needs = vec![Need { account: account("open"), spends: true }, Need { account: account(name), spends }];
        Arc::new(Plan { needs, ..Plan::clone(&taking(&[])) })
    };
    for (name, pays, spends) in [
        ("cold", true, false),
        ("busy", true, true),
        ("gone", false, false),
        ("going", false, false),
        ("coming", false, false),
        ("nobody", false, false),
    ] {
        assert_eq!(driver.commit(token(), &needing(name, false)).await, pays, "{name}");
        assert_eq!(driver.commit(token(), &needing(name, true)).await, spends, "{name}");
    }
    let sequence_claim = |sequence| {
        let sequence_claim = Some(SequenceClaim { client: client("billing"), sequence, owner: None });
        Arc::new(Plan { sequence_claim, ..Plan::clone(&taking(&[])) })
    };
    for (sequence, expected) in
        [(0, false), (2, false), (u64::MAX, false), (1, true), (1, false), (3, false), (2, true)]
    {
        assert_eq!(driver.commit(token(), &sequence_claim(sequence)).await, expected, "{sequence}");
    }
    let (under_way, _) = driver.prepare(Plan::clone(&sequence_claim(3))).await;
    assert!(!driver.commit(token(), &sequence_claim(3)).await, "its client has a saga in progress");
    assert!(!driver.commit(again(under_way), &taking(&[])).await, "its gate has a saga in progress");
    driver.abort(under_way).await;
    assert!(driver.commit(again(under_way), &sequence_claim(3)).await);

    let free = driver.issue("open", &[1, 2]).await;
    let (taken, _) = driver.prepare(Plan::clone(&taking(&free[..1]))).await;
    assert!(!driver.commit(token(), &taking(&free)).await, "one is reserved");
    driver.abort(taken).await;
    let unknown = [free.clone(), vec![posting(token(), 0, "open", 9)]].concat();
    assert!(!driver.commit(token(), &taking(&unknown)).await, "one is not there");
    assert_eq!(amounts(&driver.posting_set("open").await.large), [2, 1], "what was refused took nothing");
    assert!(driver.commit(token(), &taking(&free)).await);
    assert!(!driver.commit(token(), &taking(&free)).await, "both are consumed");
}

/// Every plan that can commit does, whatever else is committed at the same time.
pub async fn of_many_whole_plans_at_once_each_commits_or_not(store: &dyn Store) {
    let driver = &StoreDriver(store);
    driver.open_accounts(&["acme"]).await;
    let postings = &driver.issue("acme", &[1; 8]).await;
    let first = store.entries(driver.execute(Plan::clone(&taking(&[]))).await.gate).await;
    let first = first.expect("a store that answers")[0].number + 1;
    let gate = &token();
    let happened = concurrently(|place| async move {
        let (saga, inputs) = match place % 3 {
            // Two plans want each posting, one of them with a missing input; others share a gate.
            0 => (token(), vec![postings[place / 3].clone()]),
            1 => (token(), vec![postings[place / 3].clone(), posting(token(), 0, "acme", 1)]),
            _ => (again(*gate), vec![]),
        };
        let outputs = vec![posting(saga, 0, "acme", 10)];
        let plan = Arc::new(Plan { outputs, ..Plan::clone(&taking(&inputs)) });
        (place % 3, saga, driver.commit(saga, &plan).await)
    })
    .await;
    let count = |kind| happened.iter().filter(|(of, _, happened)| *of == kind && *happened).count();
    assert_eq!((count(0), count(1), count(2)), (8, 0, 1), "{happened:?}");
    let mut numbers = Vec::new();
    for (_, saga, _) in happened.iter().filter(|(.., happened)| *happened) {
        let stored = store.entries(saga.gate).await.expect("a store that answers");
        numbers.extend(stored.iter().map(|stored| stored.number));
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (first..first + 9).collect::<Vec<_>>());
    assert_eq!(driver.posting_set("acme").await.active, 9);
}
