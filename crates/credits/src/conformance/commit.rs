//! The point of no return and the steps after it.

use std::sync::Arc;

use earmark_core::AccountStatus;

use super::driver::{
    StoreDriver, again, change, client, entry, home, moving, opening, owner, posting, steps, taking, token, usd_key,
    vault,
};
use super::sample::bodies;
use crate::model::{ClaimKind, Client, Entry, Need, Plan, SequenceClaim, TotalsChange};
use crate::store::{AssetSums, Change, FindRecord, Store, Survey};

/// A single conditional change decides.
pub async fn deciding_happens_once_and_never_after_giving_up(store: &dyn Store) {
    let driver = StoreDriver(store);
    let (first, plan) = driver.prepare(Plan::clone(&taking(&[]))).await;
    assert_eq!(driver.decide(again(first), &plan).await, 0);
    assert_eq!(driver.decide(first, &plan).await, 1);
    assert_eq!((driver.decide(first, &plan).await, driver.write_one(Change::Abort(first)).await), (0, 0));
    let (second, plan) = driver.prepare(Plan::clone(&taking(&[]))).await;
    assert_eq!(driver.write_one(Change::Abort(second)).await, 1);
    assert_eq!((driver.write_one(Change::Abort(second)).await, driver.decide(second, &plan).await), (0, 0));
}

/// Frozen, closed, closing, opening and unknown accounts, and accounts claimed by the same saga.
pub async fn deciding_needs_the_accounts_as_the_plan_does(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&["open", "cold", "gone", "busy", "going"]).await;
    let claim = |claims| Plan { claims, ..Plan::clone(&taking(&[])) };
    let freeze = |name| moving(name, ClaimKind::Changing, AccountStatus::Open, AccountStatus::Frozen);
    let close = |name| moving(name, ClaimKind::Closing, AccountStatus::Open, AccountStatus::Closed);
    driver.execute(claim(vec![freeze("cold"), close("gone")])).await;
    let (other, _) = driver.prepare(claim(vec![freeze("busy"), close("going"), opening("coming")])).await;
    for (name, pays, spends) in [
        ("open", 1, 1),
        ("cold", 1, 0),
        ("busy", 1, 1),
        ("gone", 0, 0),
        ("going", 0, 0),
        ("coming", 0, 0),
        ("nobody", 0, 0),
    ] {
        for (is_spent, expected) in [(false, pays), (true, spends)] {
            let need = Need { account: super::driver::account(name), spends: is_spent };
            let fine = Need { account: super::driver::account("open"), spends: true };
            let plan = Plan { needs: vec![fine, need], ..Plan::clone(&taking(&[])) };
            let (saga, plan) = driver.prepare(plan).await;
            assert_eq!(driver.decide(saga, &plan).await, expected, "{name} {is_spent}");
            if expected == 0 {
                driver.abort(saga).await;
            }
        }
    }
    driver.abort(other).await;
    let claims = vec![close("open"), opening("coming"), freeze("busy")];
    let needs = claims.iter().map(|claim| Need { account: claim.account.clone(), spends: true }).collect();
    driver.execute(Plan { needs, ..claim(claims) }).await;
}

/// Another process may have committed a sequence since the plan was made.
pub async fn deciding_needs_the_next_sequence_of_the_client(store: &dyn Store) {
    let driver = StoreDriver(store);
    let sequence_claim = |sequence| {
        let sequence_claim = Some(SequenceClaim { client: client("billing"), sequence, owner: None });
        Plan { sequence_claim, ..Plan::clone(&taking(&[])) }
    };
    for (sequence, expected) in [(2, 0), (1, 1), (1, 0), (3, 0), (2, 1)] {
        let (saga, plan) = driver.prepare(sequence_claim(sequence)).await;
        assert_eq!(driver.decide(saga, &plan).await, expected, "{sequence}");
        match expected {
            0 => assert_eq!(driver.abort(saga).await, [1, 0, 0, 1]),
            _ => assert_eq!(driver.finish(saga, &plan).await, [0, 0, 0, 1, 1]),
        }
    }
}

/// A retry of a committed saga finds the gate free, and must not commit again.
pub async fn what_happened_is_not_decided_again(store: &dyn Store) {
    let driver = StoreDriver(store);
    let done = driver.execute(Plan::clone(&taking(&[]))).await;
    let (retry, plan) = (again(done), taking(&[]));
    assert_eq!(driver.begin(retry, &plan).await, 1);
    assert_eq!(driver.decide(retry, &plan).await, 0);
    assert_eq!(driver.abort(retry).await, [1, 0, 0, 1]);
    assert_eq!(store.entries(done.gate).await.expect("a store that answers").len(), 1);
}

/// Steps 5 and 6 do nothing in any other phase.
pub async fn nothing_is_finished_that_was_not_decided(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&["acme"]).await;
    let inputs = driver.issue("acme", &[5]).await;
    let plan = Plan {
        outputs: vec![posting(token(), 0, "acme", 5)],
        claims: vec![opening("new")],
        ..Plan::clone(&taking(&inputs))
    };
    let (saga, plan) = driver.prepare(plan).await;
    assert_eq!(driver.finish(saga, &plan).await, [0; 5]);
    assert_eq!(driver.write_one(Change::Abort(saga)).await, 1);
    let steps = |change: fn(crate::model::SagaToken, Arc<Plan>) -> Change| change(saga, Arc::clone(&plan));
    for step in [Change::Finalize, Change::Create, Change::Apply, Change::Record].map(steps) {
        assert_eq!(driver.write_one(step).await, 0);
    }
    assert_eq!(store.entries(saga.gate).await, Ok(vec![]));
    driver.write(vec![Change::Release(saga.rid), Change::Unclaim(saga.rid), Change::End(saga)]).await;
    assert_eq!(driver.large("acme").await, [5]);
}

/// Recovery repeats all steps, whichever were made.
pub async fn finishing_again_changes_only_what_is_not_yet_changed(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&["acme"]).await;
    let inputs = driver.issue("acme", &[5, 6]).await;
    let naming = token();
    let plan = Plan {
        outputs: vec![posting(naming, 0, "acme", 4), posting(naming, 1, "new", 7)],
        claims: vec![opening("new")],
        entries: vec![entry(vec![change("acme", -7, 0), change("new", 7, 0)])],
        ..Plan::clone(&taking(&inputs))
    };
    let (saga, plan) = driver.prepare(plan).await;
    assert_eq!(driver.decide(saga, &plan).await, 1);
    let rows = [2, 2, 1, 1, 1];
    let step = |place: usize| {
        let plan = Arc::clone(&plan);
        match place {
            0 => Change::Finalize(saga, plan),
            1 => Change::Create(saga, plan),
            2 => Change::Apply(saga, plan),
            3 => Change::Record(saga, plan),
            _ => Change::End(saga),
        }
    };
    for last in 0..5 {
        for (place, count) in rows.iter().enumerate().take(last + 1) {
            let expected = if place == last { *count } else { 0 };
            assert_eq!(driver.write_one(step(place)).await, expected, "step {place} up to {last}");
        }
    }
    assert_eq!(driver.finish(saga, &plan).await, [0; 5]);
    assert_eq!((driver.large("acme").await, driver.large("new").await), (vec![4], vec![7]));
}

/// All steps may travel in one list, so the decision checks what was reserved and claimed.
pub async fn deciding_needs_all_that_the_plan_takes(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&["acme", "bob"]).await;
    let postings = driver.issue("acme", &[1, 2]).await;
    let freeze = |name| moving(name, ClaimKind::Changing, AccountStatus::Open, AccountStatus::Frozen);
    let claims = |claims| Plan { claims, ..Plan::clone(&taking(&[])) };
    let (other, _) = driver.prepare(Plan { claims: vec![freeze("bob")], ..Plan::clone(&taking(&postings[..1])) }).await;
    for plan in [Plan::clone(&taking(&postings)), claims(vec![freeze("acme"), freeze("bob")])] {
        let (in_steps, in_a_list, plan) = (token(), token(), Arc::new(plan));
        driver.begin(in_steps, &plan).await;
        assert_eq!(driver.decide(in_steps, &plan).await, 0, "nothing was taken");
        let take = |saga| vec![Change::Claim(saga, Arc::clone(&plan)), Change::Reserve(saga, Arc::clone(&plan))];
        assert_eq!(driver.write(take(in_steps)).await.iter().sum::<u64>(), 1);
        assert_eq!(driver.decide(in_steps, &plan).await, 0, "a part was taken");
        driver.abort(in_steps).await;
        let begin = vec![Change::Begin(super::driver::record(in_a_list, &plan))];
        let decide = vec![Change::Decide(in_a_list, Arc::clone(&plan)), Change::Record(in_a_list, Arc::clone(&plan))];
        let counts = driver.write([begin, take(in_a_list), decide].concat()).await;
        assert_eq!((counts[0], counts[1] + counts[2], &counts[3..]), (1, 1, &[0, 0][..]));
        driver.abort(in_a_list).await;
    }
    driver.abort(other).await;
    driver.execute(Plan { claims: vec![freeze("bob")], ..Plan::clone(&taking(&postings)) }).await;
}

/// It needs both the plan's ids and the reservation id.
pub async fn finishing_consumes_only_what_that_attempt_reserved(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&["acme"]).await;
    let postings = driver.issue("acme", &[1, 2, 3]).await;
    let (other, _) = driver.prepare(Plan::clone(&taking(&postings[..1]))).await;
    let (saga, plan) = driver.prepare(Plan::clone(&taking(&postings[1..2]))).await;
    assert_eq!(driver.decide(saga, &plan).await, 1);
    assert_eq!(driver.write_one(Change::Finalize(saga, taking(&postings))).await, 1);
    assert_eq!(driver.abort(other).await, [1, 1, 0, 1]);
    assert_eq!(driver.large("acme").await, [3, 1]);
}

/// The record stays while a step may still be needed.
pub async fn a_record_goes_when_its_saga_is_over_and_not_before(store: &dyn Store) {
    let driver = StoreDriver(store);
    let (saga, plan) = driver.prepare(Plan::clone(&taking(&[]))).await;
    assert_eq!(driver.write_one(Change::End(saga)).await, 0);
    driver.decide(saga, &plan).await;
    assert_eq!(driver.write_one(Change::End(saga)).await, 0);
    driver.write_one(Change::Record(saga, plan)).await;
    assert_eq!(driver.write_one(Change::End(again(saga))).await, 0);
    assert_eq!(driver.write_one(Change::End(saga)).await, 1);
    assert_eq!(store.record(FindRecord::Gate(saga.gate)).await, Ok(None));
}

/// Each vault has its own numbers.
pub async fn entries_are_numbered_in_their_vault(store: &dyn Store) {
    let driver = StoreDriver(store);
    let elsewhere = Entry { home: vault("eu"), ..entry(vec![]) };
    driver.write(vec![Change::OpenVault(home()), Change::OpenVault(vault("eu"))]).await;
    let entries = vec![entry(vec![]), elsewhere, entry(vec![])];
    let first = driver.execute(Plan { entries, ..Plan::default() }).await;
    let second = driver.execute(Plan::clone(&taking(&[]))).await;
    let numbers = async |gate| {
        let entries = store.entries(gate).await.expect("a store that answers");
        assert!(entries.iter().all(|stored| stored.gate == gate));
        entries.iter().map(|stored| (stored.entry.home.clone(), stored.number)).collect::<Vec<_>>()
    };
    assert_eq!(numbers(first.gate).await, [(home(), 1), (vault("eu"), 1), (home(), 2)]);
    assert_eq!(numbers(second.gate).await, [(home(), 3)]);
}

/// Neither is visible without the other.
pub async fn totals_and_sequences_change_with_the_entry(store: &dyn Store) {
    let driver = StoreDriver(store);
    let look = async || {
        let survey = Survey { assets: vec![usd_key()], client: Some(client("billing")), ..Survey::default() };
        let found = store.survey(survey).await.expect("a store that answers");
        (found.assets[0], found.client)
    };
    for (sequence, issued, retired) in [(1, i128::MAX, 0), (2, 0, 7)] {
        let totals = vec![TotalsChange { asset: usd_key(), issued, retired, expired: 3 }];
        // The second write claims nothing, which leaves the owner as it is.
        let owner = owner().filter(|_| sequence == 1);
        let sequence_claim = Some(SequenceClaim { client: client("billing"), sequence, owner });
        let before = look().await;
        let plan = Plan { totals, sequence_claim, ..Plan::clone(&taking(&[])) };
        let (saga, plan) = driver.prepare(plan).await;
        driver.decide(saga, &plan).await;
        assert_eq!(look().await, before);
        driver.finish(saga, &plan).await;
    }
    let stored = Client { last_sequence: 2, owner: owner() };
    assert_eq!(look().await, (Some(AssetSums { issued: i128::MAX, retired: 7, expired: 6 }), Some(stored)));
}

/// Every kind of entry, with every field.
pub async fn entries_are_read_back_as_they_were_written(store: &dyn Store) {
    let driver = StoreDriver(store);
    for body in bodies() {
        let lease = body.lease();
        let entries = vec![Entry { body, ..entry(vec![change("acme", i128::MIN, i128::MAX)]) }];
        let saga = driver.execute(Plan { entries: entries.clone(), ..Plan::default() }).await;
        let stored = store.entries(saga.gate).await.expect("a store that answers");
        assert_eq!(stored.iter().map(|stored| Entry::clone(&stored.entry)).collect::<Vec<_>>(), entries);
        if let Some(lease) = lease {
            let key = crate::model::LeaseKey { namespace: home().namespace, lease };
            assert_eq!(store.lease(key).await, Ok(stored));
        }
    }
}

/// Each change sees the one before.
pub async fn changes_of_a_list_are_made_in_order(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&["acme"]).await;
    let inputs = driver.issue("acme", &[5]).await;
    let (saga, plan) = (token(), taking(&inputs));
    let mut prepare = steps(saga, &plan);
    let commit = prepare.split_off(3);
    assert_eq!(driver.write(prepare).await, [1, 0, 1]);
    assert_eq!(driver.write(commit).await, [1, 1, 0, 0, 1, 1]);
    assert_eq!(driver.write(vec![]).await, [0_u64; 0]);
}

/// The end of a list has no meaning: a change also sees the changes of earlier calls.
pub async fn a_list_may_be_cut_anywhere(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&["acme"]).await;
    for cut in 0..=9 {
        let (inputs, name) = (driver.issue("acme", &[5, 6]).await, format!("new-{cut}"));
        let saga = token();
        let plan = Arc::new(Plan {
            outputs: vec![posting(saga, 0, &name, 11)],
            claims: vec![opening(&name)],
            ..Plan::clone(&taking(&inputs))
        });
        let mut first = steps(saga, &plan);
        let second = first.split_off(cut);
        let counts = [driver.write(first).await, driver.write(second).await].concat();
        assert_eq!(counts, [1, 1, 2, 1, 2, 1, 1, 1, 1], "cut at {cut}");
        assert_eq!((driver.large("acme").await, driver.large(&name).await), (vec![], vec![11]));
    }
}
