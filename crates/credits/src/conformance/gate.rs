//! Records: who may do what, and who drives it.

use std::sync::Arc;

use super::clerk::{
    Clerk, NOW, OWNER, account, again, client, home, posting, record, taking, ticket, usd_key,
};
use super::sample::full_plan;
use crate::id::OwnerId;
use crate::model::{Phase, Plan, Record, Turn};
use crate::store::{Change, Filter, FindRecord, Gone, RecordPage, Store, Survey};

/// A vault has an account that is paid.
pub async fn a_vault_is_opened_once_with_its_revenue(store: &dyn Store) {
    let clerk = Clerk(store);
    assert_eq!(clerk.one(Change::OpenVault(home())).await, 2);
    assert_eq!(clerk.one(Change::OpenVault(home())).await, 0);
    assert!(clerk.account("revenue").await.is_some());
    let survey = Survey { assets: vec![usd_key()], client: Some(client("billing")), ..Survey::default() };
    let found = store.survey(survey).await.expect("a store that answers");
    assert_eq!((found.assets, found.last_sequence), (vec![None], None));
}

/// Inserting the record is the gate.
pub async fn a_gate_lets_one_saga_in_at_a_time(store: &dyn Store) {
    let clerk = Clerk(store);
    let (first, plan) = (ticket(), taking(&[]));
    assert_eq!(clerk.begin(first, &plan).await, 1);
    let second = again(first);
    assert_eq!((clerk.begin(first, &plan).await, clerk.begin(second, &plan).await), (0, 0));
    let stored = store.record(FindRecord::Gate(first.gate)).await.expect("a store that answers");
    let stored = stored.expect("a record");
    assert_eq!((stored.record.ticket, stored.phase), (first, Phase::Reserving));
    assert_eq!(clerk.give_up(first).await, [1, 0, 0, 1]);
    assert_eq!(clerk.begin(second, &plan).await, 1);
}

/// The number of a client is claimed with the saga.
pub async fn a_client_has_one_saga_at_a_time(store: &dyn Store) {
    let clerk = Clerk(store);
    let turn = |name: &str, sequence| {
        let turn = Some(Turn { client: client(name), sequence });
        Arc::new(Plan { turn, ..Plan::clone(&taking(&[])) })
    };
    let first = ticket();
    assert_eq!(clerk.begin(first, &turn("billing", 1)).await, 1);
    assert_eq!(clerk.begin(ticket(), &turn("billing", 2)).await, 0);
    assert_eq!(clerk.begin(ticket(), &turn("other", 1)).await, 1);
    let found = store.record(FindRecord::Client(client("billing"))).await.expect("a store that answers");
    assert_eq!(found.expect("a record").record.ticket, first);
    clerk.give_up(first).await;
    assert_eq!(store.record(FindRecord::Client(client("billing"))).await, Ok(None));
    assert_eq!(clerk.begin(ticket(), &turn("billing", 1)).await, 1);
}

/// Whoever finishes a saga finds the whole plan in its record.
pub async fn a_record_is_read_back_as_it_was_written(store: &dyn Store) {
    let clerk = Clerk(store);
    let (ticket, lease) = (ticket(), super::clerk::lease());
    let plan = Arc::new(full_plan(ticket));
    let record = Arc::new(Record { lease: Some(lease), ..Record::clone(&record(ticket, &plan)) });
    assert_eq!(clerk.one(Change::Begin(Arc::clone(&record))).await, 1);
    let stored = store.record(FindRecord::Gate(ticket.gate)).await.expect("a store that answers");
    let stored = stored.expect("a record");
    assert_eq!((&stored.record, stored.phase), (&*record, Phase::Reserving));
}

/// Recovery, take-over and closing each ask for their records.
pub async fn records_are_listed_by_who_drives_them_and_what_they_touch(store: &dyn Store) {
    let clerk = Clerk(store);
    let (ours, theirs) = (ticket(), crate::model::Ticket { owner: OwnerId(8), ..ticket() });
    let plan = Arc::new(Plan { outputs: vec![posting(ours, 0, "acme", 1)], ..Plan::clone(&taking(&[])) });
    let later = Record { begun_at: NOW.plus_ms(5), ..Record::clone(&record(ours, &plan)) };
    clerk.one(Change::Begin(Arc::new(later))).await;
    clerk.one(Change::Begin(record(theirs, &plan))).await;
    let list = async |filter, max| {
        let found = store.records(filter, RecordPage::first(max)).await.expect("a store that answers");
        assert_eq!(found.unread, []);
        found.found.iter().map(|stored| stored.record.ticket.rid).collect::<Vec<_>>()
    };
    assert_eq!(list(Filter::Of(OWNER), 9).await, [ours.rid]);
    assert_eq!(list(Filter::Naming(account("acme")), 9).await, [theirs.rid, ours.rid]);
    assert_eq!(list(Filter::Naming(account("acme")), 1).await, [theirs.rid]);
    assert_eq!(list(Filter::Naming(account("acm")), 9).await, []);
    let silent = |since| Filter::Silent { but: OWNER, since };
    assert_eq!(list(silent(NOW), 9).await, [theirs.rid]);
    clerk.one(Change::Beat(OwnerId(8), NOW)).await;
    assert_eq!(list(silent(NOW), 9).await, []);
    assert_eq!(list(silent(NOW.plus_ms(1)), 9).await, [theirs.rid]);
}

/// Whoever goes through all of them meets each once, also where several were begun at the same moment.
pub async fn a_list_of_records_comes_in_pages(store: &dyn Store) {
    let clerk = Clerk(store);
    let mut begun = Vec::new();
    for delay_ms in [0, 0, 0, 1, 1, 7] {
        let (ticket, plan) = (ticket(), taking(&[]));
        let begun_at = NOW.plus_ms(delay_ms);
        clerk
            .one(Change::Begin(Arc::new(Record { begun_at, ..Record::clone(&record(ticket, &plan)) })))
            .await;
        begun.push(ticket.rid);
    }
    for filter in [Filter::Of(OWNER), Filter::Silent { but: OwnerId(8), since: NOW }] {
        for max in 1..=7 {
            let (mut found, mut page) = (Vec::new(), RecordPage::first(max));
            loop {
                let records = store.records(filter.clone(), page).await.expect("a store that answers");
                assert!(records.found.len() <= max, "{} of {max}", records.found.len());
                found.extend(records.found.iter().map(|stored| stored.record.ticket.rid));
                let Some(after) = records.next else { break };
                page = RecordPage { after, max };
            }
            assert_eq!(found, begun, "{filter:?} by {max}");
        }
    }
}

/// Of a process that lives nothing is taken.
pub async fn only_a_silent_owner_is_taken_over(store: &dyn Store) {
    let clerk = Clerk(store);
    let (ticket, to) = (ticket(), OwnerId(9));
    clerk.begin(ticket, &taking(&[])).await;
    clerk.one(Change::Beat(OWNER, NOW)).await;
    let take = |ticket, silent_since| Change::TakeOver { ticket, to, silent_since };
    assert_eq!(clerk.one(take(ticket, NOW)).await, 0);
    assert_eq!(clerk.one(take(again(ticket), NOW.plus_ms(1))).await, 0);
    assert_eq!(clerk.one(take(ticket, NOW.plus_ms(1))).await, 1);
    assert_eq!(clerk.one(take(ticket, NOW.plus_ms(1))).await, 0);
    let stored = store.record(FindRecord::Gate(ticket.gate)).await.expect("a store that answers");
    assert_eq!(stored.expect("a record").record.ticket.owner, to);
}

/// Processes come and go for years.
pub async fn processes_that_are_gone_are_listed(store: &dyn Store) {
    let clerk = Clerk(store);
    let (dead, alive, ahead) = (OwnerId(1), OwnerId(2), OwnerId(3));
    clerk.begin(ticket(), &taking(&[])).await;
    for (owner, at) in [(dead, NOW), (OWNER, NOW), (alive, NOW.plus_ms(10)), (ahead, NOW.plus_ms(1_000))] {
        clerk.one(Change::Beat(owner, at)).await;
    }
    let list = async |silent_since, ahead_of, max| {
        let gone = store.gone(Gone { silent_since, ahead_of }, max).await;
        gone.expect("a store that answers")
    };
    let never = NOW.plus_ms(1_000);
    assert_eq!(list(NOW, never, 9).await, []);
    assert_eq!(list(NOW.plus_ms(10), never, 9).await, [dead], "the other dead one has a record");
    assert_eq!(list(NOW.plus_ms(11), NOW.plus_ms(999), 9).await, [dead, alive, ahead]);
    assert_eq!(list(NOW.plus_ms(11), NOW.plus_ms(999), 2).await, [dead, alive]);
    // One that drives a saga, but whose clock was wrong, would never fall silent.
    assert_eq!(list(NOW, NOW.plus_ms(9), 9).await, [alive, ahead]);
}

/// It may have slept for an hour, and does not know.
pub async fn a_late_step_of_an_owner_that_was_taken_over_changes_nothing(store: &dyn Store) {
    let clerk = Clerk(store);
    clerk.opens(&["acme"]).await;
    let inputs = clerk.issues("acme", &[5]).await;
    let (late, plan) = (ticket(), taking(&inputs));
    clerk.begin(late, &plan).await;
    let ticket = crate::model::Ticket { owner: OwnerId(9), ..late };
    let take = |ticket, to| Change::TakeOver { ticket, to, silent_since: NOW };
    assert_eq!(clerk.one(take(late, OwnerId(9))).await, 1);
    let plan_of = || Arc::clone(&plan);
    assert_eq!(clerk.one(Change::Reserve(late, plan_of())).await, 0);
    assert_eq!(clerk.one(Change::Reserve(ticket, plan_of())).await, 1);
    assert_eq!((clerk.decide(late, &plan).await, clerk.one(Change::Abort(late)).await), (0, 0));
    assert_eq!(clerk.decide(ticket, &plan).await, 1);
    assert_eq!(clerk.finish(late, &plan).await, [0; 5]);
    assert_eq!(clerk.finish(ticket, &plan).await, [1, 0, 0, 1, 1]);
    assert_eq!(clerk.finish(ticket, &plan).await, [0; 5]);
}

/// Whoever shuts down need not be waited for.
pub async fn an_owner_that_left_is_silent(store: &dyn Store) {
    let clerk = Clerk(store);
    let ticket = ticket();
    clerk.begin(ticket, &taking(&[])).await;
    assert_eq!(clerk.one(Change::Beat(OWNER, NOW)).await, 1);
    assert_eq!(clerk.one(Change::Beat(OWNER, NOW.plus_ms(1))).await, 1);
    assert_eq!(clerk.one(Change::Leave(OWNER)).await, 1);
    assert_eq!(clerk.one(Change::Leave(OWNER)).await, 0);
    let take = Change::TakeOver { ticket, to: OwnerId(9), silent_since: NOW };
    assert_eq!(clerk.one(take).await, 1);
}
