//! What must be as right for thousands as it is for a few.

use std::sync::Arc;

use earmark_admission::WriteAnswer;
use earmark_core::WriteError;

use super::bank::{Town, impatient, issue, on, open, open_overdrawn, options, transfer, usd};
use super::faulty::{Faulty, Mode, When};
use super::story::litter;
use crate::id::{GateId, ReservationId};
use crate::model::{LivePosting, Plan, Posting, Record, Ticket};
use crate::store::{Change, Filter, PurseQuery, RecordPage, Store, Survey};

/// More than are looked at in one go.
const MANY: usize = 150;
/// The place among the calls of a first write at which its inputs are reserved, and nothing is decided: a look, the count of
/// clients, the record, what it needs, the decision.
const DECISION: u64 = 5;

/// They did: whoever came while another was at it gathered nothing, and with hundreds of callers that was nearly everybody.
pub async fn small_postings_do_not_pile_up_where_many_come_at_once(store: Arc<dyn Store>) {
    let town = Town::new(&store);
    let faulty = Faulty::new(Arc::clone(&store));
    let bank = Arc::new(town.bank_on(Arc::clone(&faulty) as Arc<dyn Store>, options()).await);
    bank.does(vec![open("acme")]).await;
    // All of a round look before the first of them writes.
    faulty.crowd();
    for sequence in 1..=10 {
        let deposits = (0..MANY).map(|caller| {
            let (bank, client) = (Arc::clone(&bank), format!("till-{caller}"));
            tokio::spawn(async move { bank.try_write_as(&client, sequence, vec![issue("acme", 1)]).await })
        });
        for deposit in deposits.collect::<Vec<_>>() {
            let told = deposit.await.expect("no panic");
            assert!(matches!(told, Ok(WriteAnswer::Committed(_))), "{told:?}");
        }
    }
    let left = town.postings("acme").await;
    assert!(left <= 4 * MANY, "{left}");
    assert_eq!(bank.purse("acme").await, (10 * MANY as i128, 0));
    bank.audits("main").await;
}

/// One hold that could not be given back, for somebody was at work on what its account owes, kept all that ended after it
/// from being given back, in every round again.
pub async fn an_account_that_is_busy_keeps_no_hold_of_others(store: Arc<dyn Store>) {
    let town = Town::new(&store);
    let bank = town.bank_on(Arc::clone(&store), impatient()).await;
    bank.does(vec![open_overdrawn("acme"), open("bob"), issue("bob", 100)]).await;
    bank.does(vec![transfer("acme", "bob", 50)]).await;
    bank.holds(&[on("acme", 5)]).await;
    town.clock.advance_ms(1);
    bank.holds(&[on("bob", 20)]).await;
    let faulty = Faulty::new(Arc::clone(&store));
    let slow = Arc::new(town.bank_on(Arc::clone(&faulty) as Arc<dyn Store>, options()).await);
    faulty.plan(DECISION, When::Before, Mode::Stop);
    let act = tokio::spawn({
        let slow = Arc::clone(&slow);
        async move { slow.try_write_as("other", 1, vec![issue("acme", 1)]).await }
    });
    faulty.stopped().await;
    town.clock.advance_ms(61_000);
    let now = earmark_admission::Clock::now(&*town.clock).log;
    store.write(vec![Change::Beat(slow.credits.owner(), now)]).await.expect("a sign of life");
    bank.tend().await;
    let held = async |name: &str| store.funds(town.account(name), now).await.expect("a store that answers");
    assert_eq!(held("bob").await.iter().map(|funds| funds.due).sum::<i128>(), 0);
    assert_eq!(held("acme").await.iter().map(|funds| funds.due).sum::<i128>(), 5);
    faulty.mend();
    act.await.expect("no panic").expect("a store that answers");
    bank.tend().await;
    assert_eq!((bank.purse("acme").await, bank.purse("bob").await), ((-49, 0), (150, 0)));
    bank.audits("main").await;
}

/// They were given back one after the other, each commit waiting for the disk by itself: a hundred a second beside other traffic, so
/// that a service with more leases than that, whose callers had died, was never done with them.
pub async fn holds_that_ended_are_given_back_side_by_side(store: Arc<dyn Store>) {
    let town = Town::new(&store);
    let faulty = Faulty::new(Arc::clone(&store));
    let bank = town.bank_on(Arc::clone(&faulty) as Arc<dyn Store>, options()).await;
    bank.does(vec![open("acme"), issue("acme", 1_000)]).await;
    for _ in 0..MANY {
        bank.holds(&[on("acme", 2)]).await;
    }
    assert_eq!(bank.purse("acme").await, (700, 300));
    town.clock.advance_ms(61_000);
    faulty.crowd();
    bank.tend().await;
    assert!(faulty.most_at_once() > 4, "{}", faulty.most_at_once());
    let now = earmark_admission::Clock::now(&*town.clock).log;
    let funds = store.funds(town.account("acme"), now).await.expect("a store that answers");
    assert_eq!(funds.iter().map(|funds| (funds.active, funds.due)).collect::<Vec<_>>(), [(1_000, 0)]);
    bank.audits("main").await;
}

/// A process that started behind one that had left twenty thousand sagas was not ready for a minute, in which it saw to four
/// thousand of them one after the other, and gave no sign of life.
pub async fn sagas_of_the_dead_are_finished_side_by_side(store: Arc<dyn Store>) {
    let town = Town::new(&store);
    let dead = town.bank().await;
    dead.does(vec![open("acme"), issue("acme", 1_000)]).await;
    for _ in 0..MANY {
        begin(&town, &dead, &[]).await;
    }
    dead.credits.abandon();
    town.fall_silent();
    let faulty = Faulty::new(Arc::clone(&store));
    faulty.crowd();
    let next = town.bank_on(Arc::clone(&faulty) as Arc<dyn Store>, options()).await;
    assert!(faulty.most_at_once() > 4, "{}", faulty.most_at_once());
    let of_all =
        Filter::Silent { but: next.credits.owner(), since: earmark_core::UnixMs::new(u64::MAX >> 20) };
    let left = store.records(of_all, RecordPage::first(9)).await.expect("a store that answers");
    assert_eq!(left.found.iter().filter(|left| left.record.ticket.owner == dead.credits.owner()).count(), 0);
}

/// Sixty-four were, in a second: whoever had left fifty thousand left their owners without them for a quarter of an hour.
pub async fn all_orphans_are_given_back_at_once(store: Arc<dyn Store>) {
    let town = Town::new(&store);
    let bank = town.bank().await;
    bank.does(vec![open("acme")]).await;
    litter(&town, "acme", u16::try_from(MANY).unwrap_or(0)).await;
    let (account, asset) = (town.account("acme"), usd());
    let query = PurseQuery { account, asset, largest: MANY, smallest: 0, count_max: 0 };
    let survey = Survey { purses: vec![query], ..Survey::default() };
    let found = store.survey(survey).await.expect("a store that answers").purses.remove(0).large;
    assert_eq!(found.len(), MANY);
    for live in &found {
        let ticket = begin(&town, &bank, std::slice::from_ref(live)).await;
        let dropped = store.write(vec![Change::Abort(ticket), Change::End(ticket)]).await;
        assert_eq!(dropped, Ok(vec![1, 1]));
    }
    assert_eq!(bank.purse_in("main", "acme").await, Some((0, 0, MANY as i128)));
    bank.tend().await;
    assert_eq!(bank.purse("acme").await, (MANY as i128, 0));
}

/// Sixty-four who paged through a history had all connections, one after the other, and whoever paid waited behind them: of six
/// hundred calls a second twenty were left.
pub async fn those_who_read_leave_connections_to_those_who_pay(store: Arc<dyn Store>) {
    let town = Town::new(&store);
    let faulty = Faulty::new(Arc::clone(&store));
    let bank = Arc::new(town.bank_on(Arc::clone(&faulty) as Arc<dyn Store>, options()).await);
    bank.does(vec![open("acme"), issue("acme", 1)]).await;
    faulty.crowd();
    let readers = (0..MANY).map(|_| {
        let bank = Arc::clone(&bank);
        tokio::spawn(async move { (bank.history("main", "acme").await, bank.purse("acme").await) })
    });
    for reader in readers.collect::<Vec<_>>() {
        assert_eq!(reader.await.expect("no panic"), (1, (1, 0)));
    }
    assert!((1..=2).contains(&faulty.most_at_once()), "{}", faulty.most_at_once());
}

/// All clients were counted for each new one that was turned away, and for each of many that came at once: a million rows.
pub async fn clients_are_counted_once_where_there_is_room_for_no_more(store: Arc<dyn Store>) {
    let town = Town::new(&store);
    let faulty = Faulty::new(Arc::clone(&store));
    let full = crate::saga::Options { clients_max: 1, ..options() };
    let bank = town.bank_on(Arc::clone(&faulty) as Arc<dyn Store>, full).await;
    bank.does(vec![open("acme"), issue("acme", 1)]).await;
    let mut calls = Vec::new();
    for client in ["b", "c", "d"] {
        faulty.count();
        let told = bank.try_write_as(client, 1, vec![]).await.expect("a store that answers");
        assert_eq!(told, WriteAnswer::Refused(WriteError::TooManyClients));
        calls.push(faulty.calls());
    }
    assert_eq!(calls[1..], [calls[0] - 1; 2]);
    bank.commit(2, vec![issue("acme", 1)]).await;
}

/// A saga that has reserved what it needs, and goes no further.
pub(super) async fn begin(town: &Town, bank: &super::bank::Bank, live: &[LivePosting]) -> Ticket {
    let input = |live: &LivePosting| Posting {
        id: live.id,
        account: town.account("acme"),
        asset: usd(),
        amount: live.amount,
        hold: None,
    };
    let rid = ReservationId(ulid::Ulid::generate().0);
    let ticket = Ticket { gate: GateId(rid.0), rid, owner: bank.credits.owner() };
    let plan = Arc::new(Plan { inputs: live.iter().map(input).collect(), ..Plan::default() });
    let begun_at = earmark_admission::Clock::now(&*town.clock).log;
    let record = Record { ticket, lease: None, begun_at, plan: Arc::clone(&plan) };
    let steps = vec![Change::Begin(Arc::new(record)), Change::Reserve(ticket, plan)];
    assert_eq!(town.store.write(steps).await, Ok(vec![1, live.len() as u64]));
    ticket
}
