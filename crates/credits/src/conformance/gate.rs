//! Saga records: gates and owners.

use std::sync::Arc;

use super::driver::{NOW, OWNER, StoreDriver, account, again, client, home, posting, record, taking, token, usd_key};
use super::sample::full_plan;
use crate::id::OwnerId;
use crate::model::{Phase, Plan, Record, SequenceClaim};
use crate::store::{Change, Filter, FindRecord, RecordPage, StaleOwners, Store, Survey};

/// Every vault has an account for revenue.
pub async fn a_vault_is_opened_once_with_its_revenue(store: &dyn Store) {
    let driver = StoreDriver(store);
    assert_eq!(driver.write_one(Change::OpenVault(home())).await, 2);
    assert_eq!(driver.write_one(Change::OpenVault(home())).await, 0);
    assert!(driver.account("revenue").await.is_some());
    let survey = Survey { assets: vec![usd_key()], client: Some(client("billing")), ..Survey::default() };
    let found = store.survey(survey).await.expect("a store that answers");
    assert_eq!((found.assets, found.client), (vec![None], None));
}

/// Inserting the record passes the gate.
pub async fn a_gate_lets_one_saga_in_at_a_time(store: &dyn Store) {
    let driver = StoreDriver(store);
    let (first, plan) = (token(), taking(&[]));
    assert_eq!(driver.begin(first, &plan).await, 1);
    let second = again(first);
    assert_eq!((driver.begin(first, &plan).await, driver.begin(second, &plan).await), (0, 0));
    let stored = store.record(FindRecord::Gate(first.gate)).await.expect("a store that answers");
    let stored = stored.expect("a record");
    assert_eq!((stored.record.token, stored.phase), (first, Phase::Reserving));
    assert_eq!(driver.abort(first).await, [1, 0, 0, 1]);
    assert_eq!(driver.begin(second, &plan).await, 1);
}

/// The record claims the client's sequence.
pub async fn a_client_has_one_saga_at_a_time(store: &dyn Store) {
    let driver = StoreDriver(store);
    let sequence_claim = |name: &str, sequence| {
        let sequence_claim = Some(SequenceClaim { client: client(name), sequence, owner: None });
        Arc::new(Plan { sequence_claim, ..Plan::clone(&taking(&[])) })
    };
    let first = token();
    assert_eq!(driver.begin(first, &sequence_claim("billing", 1)).await, 1);
    assert_eq!(driver.begin(token(), &sequence_claim("billing", 2)).await, 0);
    assert_eq!(driver.begin(token(), &sequence_claim("other", 1)).await, 1);
    let found = store.record(FindRecord::Client(client("billing"))).await.expect("a store that answers");
    assert_eq!(found.expect("a record").record.token, first);
    driver.abort(first).await;
    assert_eq!(store.record(FindRecord::Client(client("billing"))).await, Ok(None));
    assert_eq!(driver.begin(token(), &sequence_claim("billing", 1)).await, 1);
}

/// A process that finishes a saga needs the whole plan.
pub async fn a_record_is_read_back_as_it_was_written(store: &dyn Store) {
    let driver = StoreDriver(store);
    let (token, lease) = (token(), super::driver::lease());
    let plan = Arc::new(full_plan(token));
    let record = Arc::new(Record { lease: Some(lease), ..Record::clone(&record(token, &plan)) });
    assert_eq!(driver.write_one(Change::Begin(Arc::clone(&record))).await, 1);
    let stored = store.record(FindRecord::Gate(token.gate)).await.expect("a store that answers");
    let stored = stored.expect("a record");
    assert_eq!((&stored.record, stored.phase), (&*record, Phase::Reserving));
}

/// Recovery, takeover and closing each list their records.
pub async fn records_are_listed_by_who_drives_them_and_what_they_touch(store: &dyn Store) {
    let driver = StoreDriver(store);
    let (ours, theirs) = (token(), crate::model::SagaToken { owner: OwnerId(8), ..token() });
    let plan = Arc::new(Plan { outputs: vec![posting(ours, 0, "acme", 1)], ..Plan::clone(&taking(&[])) });
    let later = Record { begun_at: NOW.plus_ms(5), ..Record::clone(&record(ours, &plan)) };
    driver.write_one(Change::Begin(Arc::new(later))).await;
    driver.write_one(Change::Begin(record(theirs, &plan))).await;
    let list = async |filter, max| {
        let found = store.records(filter, RecordPage::first(max)).await.expect("a store that answers");
        assert_eq!(found.unread, []);
        found.found.iter().map(|stored| stored.record.token.rid).collect::<Vec<_>>()
    };
    assert_eq!(list(Filter::OwnedBy(OWNER), 9).await, [ours.rid]);
    assert_eq!(list(Filter::Touching(account("acme")), 9).await, [theirs.rid, ours.rid]);
    assert_eq!(list(Filter::Touching(account("acme")), 1).await, [theirs.rid]);
    assert_eq!(list(Filter::Touching(account("acm")), 9).await, []);
    let silent = |since| Filter::Expired { except: OWNER, since };
    assert_eq!(list(silent(NOW), 9).await, [theirs.rid]);
    driver.write_one(Change::Heartbeat(OwnerId(8), NOW)).await;
    assert_eq!(list(silent(NOW), 9).await, []);
    assert_eq!(list(silent(NOW.plus_ms(1)), 9).await, [theirs.rid]);
}

/// Paging returns each record once, also when several began at the same time.
pub async fn a_list_of_records_comes_in_pages(store: &dyn Store) {
    let driver = StoreDriver(store);
    let mut begun = Vec::new();
    for delay_ms in [0, 0, 0, 1, 1, 7] {
        let (token, plan) = (token(), taking(&[]));
        let begun_at = NOW.plus_ms(delay_ms);
        driver.write_one(Change::Begin(Arc::new(Record { begun_at, ..Record::clone(&record(token, &plan)) }))).await;
        begun.push(token.rid);
    }
    for filter in [Filter::OwnedBy(OWNER), Filter::Expired { except: OwnerId(8), since: NOW }] {
        for max in 1..=7 {
            let (mut found, mut page) = (Vec::new(), RecordPage::first(max));
            loop {
                let records = store.records(filter.clone(), page).await.expect("a store that answers");
                assert!(records.found.len() <= max, "{} of {max}", records.found.len());
                found.extend(records.found.iter().map(|stored| stored.record.token.rid));
                let Some(after) = records.next else { break };
                page = RecordPage { after, max };
            }
            assert_eq!(found, begun, "{filter:?} by {max}");
        }
    }
}

/// A live owner keeps its sagas.
pub async fn only_a_silent_owner_is_taken_over(store: &dyn Store) {
    let driver = StoreDriver(store);
    let (token, to) = (token(), OwnerId(9));
    driver.begin(token, &taking(&[])).await;
    driver.write_one(Change::Heartbeat(OWNER, NOW)).await;
    let take = |token, expired_since| Change::TakeOver { token, to, expired_since };
    assert_eq!(driver.write_one(take(token, NOW)).await, 0);
    assert_eq!(driver.write_one(take(again(token), NOW.plus_ms(1))).await, 0);
    assert_eq!(driver.write_one(take(token, NOW.plus_ms(1))).await, 1);
    assert_eq!(driver.write_one(take(token, NOW.plus_ms(1))).await, 0);
    let stored = store.record(FindRecord::Gate(token.gate)).await.expect("a store that answers");
    assert_eq!(stored.expect("a record").record.token.owner, to);
}

/// Heartbeat rows must not accumulate for years.
pub async fn processes_that_are_gone_are_listed(store: &dyn Store) {
    let driver = StoreDriver(store);
    let (dead, alive, ahead) = (OwnerId(1), OwnerId(2), OwnerId(3));
    driver.begin(token(), &taking(&[])).await;
    for (owner, at) in [(dead, NOW), (OWNER, NOW), (alive, NOW.plus_ms(10)), (ahead, NOW.plus_ms(1_000))] {
        driver.write_one(Change::Heartbeat(owner, at)).await;
    }
    let list = async |expired_since, ahead_of, max| {
        let gone = store.stale_owners(StaleOwners { expired_since, ahead_of }, max).await;
        gone.expect("a store that answers")
    };
    let never = NOW.plus_ms(1_000);
    assert_eq!(list(NOW, never, 9).await, []);
    assert_eq!(list(NOW.plus_ms(10), never, 9).await, [dead], "the other dead one has a record");
    assert_eq!(list(NOW.plus_ms(11), NOW.plus_ms(999), 9).await, [dead, alive, ahead]);
    assert_eq!(list(NOW.plus_ms(11), NOW.plus_ms(999), 2).await, [dead, alive]);
    // An owner with a wrong clock would never count as dead.
    assert_eq!(list(NOW, NOW.plus_ms(9), 9).await, [alive, ahead]);
}

/// The owner may have been suspended for an hour.
pub async fn a_late_step_of_an_owner_that_was_taken_over_changes_nothing(store: &dyn Store) {
    let driver = StoreDriver(store);
    driver.open_accounts(&["acme"]).await;
    let inputs = driver.issue("acme", &[5]).await;
    let (late, plan) = (token(), taking(&inputs));
    driver.begin(late, &plan).await;
    let token = crate::model::SagaToken { owner: OwnerId(9), ..late };
    let take = |token, to| Change::TakeOver { token, to, expired_since: NOW };
    assert_eq!(driver.write_one(take(late, OwnerId(9))).await, 1);
    let plan_of = || Arc::clone(&plan);
    assert_eq!(driver.write_one(Change::Reserve(late, plan_of())).await, 0);
    assert_eq!(driver.write_one(Change::Reserve(token, plan_of())).await, 1);
    assert_eq!((driver.decide(late, &plan).await, driver.write_one(Change::Abort(late)).await), (0, 0));
    assert_eq!(driver.decide(token, &plan).await, 1);
    assert_eq!(driver.finish(late, &plan).await, [0; 5]);
    assert_eq!(driver.finish(token, &plan).await, [1, 0, 0, 1, 1]);
    assert_eq!(driver.finish(token, &plan).await, [0; 5]);
}

/// An owner that shut down is recovered at once.
pub async fn an_owner_that_left_is_silent(store: &dyn Store) {
    let driver = StoreDriver(store);
    let token = token();
    driver.begin(token, &taking(&[])).await;
    assert_eq!(driver.write_one(Change::Heartbeat(OWNER, NOW)).await, 1);
    assert_eq!(driver.write_one(Change::Heartbeat(OWNER, NOW.plus_ms(1))).await, 1);
    assert_eq!(driver.write_one(Change::Leave(OWNER)).await, 1);
    assert_eq!(driver.write_one(Change::Leave(OWNER)).await, 0);
    let take = Change::TakeOver { token, to: OwnerId(9), expired_since: NOW };
    assert_eq!(driver.write_one(take).await, 1);
}
