//! What callers rely on, one story each.

use std::sync::Arc;
use std::time::Duration;

use earmark_admission::{BackendError, Clock, Credits, HoldAnswer, HoldState, WriteAnswer};
use earmark_core::{CreditShortage, Overage, WriteError};

use super::bank::{
    Bank, On, Town, close, freeze, impatient, issue, lease, limit, on, open, options, retire, soon, transfer,
    usd,
};
use super::faulty::{Faulty, Mode, When};
use super::many::begin;
use crate::gather::SPLIT;
use crate::id::{GateId, OwnerId, ReservationId};
use crate::model::{AccountChange, AssetKey, Entry, EntryBody, Plan, Posting, Record, Ticket, TotalsChange};
use crate::saga::Options;
use crate::store::{Change, Gone, Store};

/// A day, in milliseconds.
const DAY_MS: u64 = 86_400_000;
/// The place of the decision among the calls of the first write of a client: a look, the count of clients, the record,
/// what it needs, the decision.
const DECISION: u64 = 5;

/// A process that is stopped on one side of its decision, and what it was asked.
async fn stopped(
    town: &Town,
    when: When,
    call: u64,
    sequence: u64,
    operations: Vec<earmark_core::Operation>,
) -> (Arc<Faulty>, tokio::task::JoinHandle<Result<WriteAnswer, BackendError>>) {
    let faulty = Faulty::new(Arc::clone(&town.store));
    let bank = town.bank_on(Arc::clone(&faulty) as Arc<dyn Store>, options()).await;
    faulty.plan(call, when, Mode::Stop);
    let act = tokio::spawn(async move { bank.try_write_as("other", sequence, operations).await });
    faulty.stopped().await;
    (faulty, act)
}

/// Entries are kept for ever, and so is what was answered.
pub async fn the_same_write_a_day_later_has_the_same_receipt(store: Arc<dyn Store>) {
    let town = Town::new(&store);
    let bank = town.bank().await;
    let operations = || vec![open("acme"), issue("acme", 100)];
    let first = bank.commit(1, operations()).await;
    bank.commit(2, vec![issue("acme", 1)]).await;
    town.clock.advance_ms(DAY_MS);
    assert_eq!(bank.commit(1, operations()).await, first);
    let next = town.bank().await;
    assert_eq!(next.commit(1, operations()).await, first);
    assert_eq!((next.purse("acme").await, next.last().await), ((101, 0), 2));
    assert_eq!((first.log_index, first.sequence, first.actor.as_str()), (1, 1, "system:test"));
}

/// One number, one content.
pub async fn another_content_under_a_number_is_refused(store: Arc<dyn Store>) {
    let town = Town::new(&store);
    let bank = town.bank().await;
    bank.commit(1, vec![open("acme"), issue("acme", 100)]).await;
    let reused = WriteError::SequenceReused { last_committed_sequence: 1 };
    assert_eq!(bank.refuse(1, vec![open("acme"), issue("acme", 101)]).await, reused);
    assert_eq!(bank.refuse(3, vec![]).await, WriteError::SequenceGap { last_committed_sequence: 1 });
    assert_eq!(bank.refuse(0, vec![]).await.code(), "INVALID");
    assert_eq!(bank.refuse(2, vec![open("acme")]).await, WriteError::Conflict { operation: 0 });
    assert_eq!(bank.purse("acme").await, (100, 0));
}

/// A denial spends its lease.
pub async fn a_refused_hold_stays_refused(store: Arc<dyn Store>) {
    let town = Town::new(&store);
    let (bank, other) = (town.bank().await, town.bank().await);
    bank.does(vec![open("acme"), issue("acme", 10)]).await;
    let lease = lease();
    let refused = HoldAnswer::Refused { key: limit("acme"), why: CreditShortage::NotEnough };
    assert_eq!(bank.hold(lease, &[on("acme", 11)]).await, refused);
    bank.does(vec![issue("acme", 100)]).await;
    assert_eq!(bank.hold(lease, &[on("acme", 11)]).await, refused);
    assert_eq!(other.hold(lease, &[on("acme", 11)]).await, refused);
    let state = bank.credits.holds(town.namespace.clone(), lease).await;
    let why = CreditShortage::NotEnough;
    assert_eq!(state, Ok(HoldState::Refused { key: limit("acme"), why }));
    assert!(!bank.settle(lease, &[]).await.is_known);
    assert_eq!(bank.purse("acme").await, (110, 0));
}

/// No transaction spans two vaults, and a lease does.
pub async fn a_hold_of_several_vaults_is_all_or_nothing(store: Arc<dyn Store>) {
    let town = Town::new(&store);
    let bank = town.bank().await;
    bank.does(vec![open("acme"), issue("acme", 100)]).await;
    bank.does_in("eu", vec![open("acme"), issue("acme", 10)]).await;
    let there = |amount| On { name: "there", vault: "eu", ..on("acme", amount) };
    let why = CreditShortage::NotEnough;
    let refused = HoldAnswer::Refused { key: limit("there"), why };
    assert_eq!(bank.hold(lease(), &[on("acme", 50), there(11)]).await, refused);
    assert_eq!((bank.purse("acme").await, bank.purse_in("eu", "acme").await), ((100, 0), Some((10, 0, 0))));
    let lease = bank.holds(&[on("acme", 50), there(10)]).await;
    assert_eq!((bank.purse("acme").await, bank.purse_in("eu", "acme").await), ((50, 50), Some((0, 10, 0))));
    let answer = bank.settle(lease, &[("acme", 20), ("nothing", 1)]).await;
    assert_eq!((answer.paid, answer.debt, answer.ignored), (30, 0, vec![limit("nothing")]));
    assert_eq!((bank.purse("acme").await, bank.purse("revenue").await), ((80, 0), (20, 0)));
    assert_eq!(bank.purse_in("eu", "revenue").await, Some((10, 0, 0)));
    bank.audits("main").await;
    bank.audits("eu").await;
}

/// Whoever is first, the lease pays once.
pub async fn a_hold_that_ran_out_against_its_settlement(store: Arc<dyn Store>) {
    let town = Town::new(&store);
    let (bank, other) = (town.bank().await, town.bank().await);
    bank.does(vec![open("acme"), issue("acme", 100_000)]).await;
    let mut paid = 0;
    for round in 0..12 {
        let hold = On { timeout_seconds: 10, overage: Overage::Deny, ..on("acme", 300) };
        let lease = bank.holds(&[hold]).await;
        // Once just before its time is over, once just after.
        town.clock.advance_ms(if round % 2 == 0 { 9_999 } else { 10_000 });
        let (answer, ()) = tokio::join!(bank.settle(lease, &[("acme", 200)]), async {
            town.clock.advance_ms(1);
            other.tend().await;
        });
        assert_eq!((answer.is_known, answer.paid, answer.uncollected), (true, 200, 0));
        paid += 200;
        assert_eq!(bank.hold(lease, &[hold]).await, HoldAnswer::Ended);
        assert_eq!((bank.purse("acme").await, bank.purse("revenue").await), ((100_000 - paid, 0), (paid, 0)));
    }
    bank.audits("main").await;
}

/// A reserve that arrives after its complete must not hold what nobody will settle.
pub async fn a_lease_that_was_settled_first_holds_nothing(store: Arc<dyn Store>) {
    let town = Town::new(&store);
    let (bank, other) = (town.bank().await, town.bank().await);
    bank.does(vec![open("acme"), issue("acme", 100)]).await;
    let early = lease();
    assert!(!bank.settle(early, &[]).await.is_known);
    assert_eq!(other.hold(early, &[on("acme", 1)]).await, HoldAnswer::Ended);
    assert_eq!(bank.credits.holds(town.namespace.clone(), early).await, Ok(HoldState::Ended));
    // Both at once: it is held and settled, or it is neither.
    for _ in 0..10 {
        let (before, both) = (bank.purse("revenue").await.0, lease());
        let holds = [on("acme", 1)];
        let (hold, settle) = tokio::join!(bank.hold(both, &holds), other.settle(both, &[]));
        let paid = bank.purse("revenue").await.0 - before;
        match hold {
            HoldAnswer::Held => assert_eq!((settle.is_known, settle.paid, paid), (true, 1, 1)),
            HoldAnswer::Ended => assert_eq!(paid, i128::from(settle.paid)),
            HoldAnswer::Refused { .. } => panic!("{hold:?}"),
        }
    }
    assert_eq!(bank.purse("acme").await.1, 0);
}

/// Once, a look at a lease read its postings before its entries. A copy of a hold that another process carried out in
/// between was told that its lease had ended, for its entry was there and its posting was not.
pub async fn a_lease_that_is_looked_at_while_it_is_held_has_not_ended(store: Arc<dyn Store>) {
    for is_settled in [false, true] {
        let town = Town::new(&store);
        let bank = town.bank().await;
        bank.does(vec![open("acme"), issue("acme", 100)]).await;
        let (lease, namespace) = (lease(), town.namespace.clone());
        if is_settled {
            assert_eq!(bank.hold(lease, &[on("acme", 10)]).await, HoldAnswer::Held);
        }
        let faulty = Faulty::new(Arc::clone(&store));
        let other = town.bank_on(Arc::clone(&faulty) as Arc<dyn Store>, options()).await;
        faulty.plan(1, When::After, Mode::Stop);
        let look = tokio::spawn(async move { other.credits.holds(namespace, lease).await });
        faulty.stopped().await;
        if is_settled {
            bank.settle(lease, &[]).await;
        } else {
            assert_eq!(bank.hold(lease, &[on("acme", 10)]).await, HoldAnswer::Held);
        }
        faulty.mend();
        let state = look.await.expect("no panic").expect("a store that answers");
        let allowed = if is_settled {
            [HoldState::Held, HoldState::Ended]
        } else {
            [HoldState::Unknown, HoldState::Held]
        };
        assert!(allowed.contains(&state), "{state:?}");
    }
}

/// Parallel calls of one tenant seldom meet.
pub async fn a_deposit_is_split_and_change_is_one_posting(store: Arc<dyn Store>) {
    let town = Town::new(&store);
    let bank = town.bank().await;
    bank.does(vec![open("acme"), open("bob"), issue("acme", 1_000_000)]).await;
    assert_eq!(town.postings("acme").await, SPLIT);
    bank.does(vec![transfer("acme", "bob", 10_000)]).await;
    assert_eq!((town.postings("acme").await, town.postings("bob").await), (SPLIT, SPLIT));
    bank.does(vec![transfer("acme", "bob", 10_000)]).await;
    assert_eq!((town.postings("acme").await, town.postings("bob").await), (SPLIT, SPLIT + 1));
    bank.holds(&[on("acme", 1_000)]).await;
    assert_eq!((town.postings("acme").await, bank.purse("acme").await), (SPLIT, (979_000, 1_000)));
    bank.does(vec![retire("acme", 979_000)]).await;
    assert_eq!(town.postings("acme").await, 0);
}

/// Under steady traffic the number of live postings stays bounded, of who pays and of who is paid.
pub async fn small_postings_do_not_pile_up(store: Arc<dyn Store>) {
    let town = Town::new(&store);
    let bank = town.bank().await;
    bank.does(vec![open("acme"), issue("acme", 1_000_000)]).await;
    let mut most = (0, 0);
    for _ in 0..30 {
        let call = async || {
            let lease = bank.holds(&[on("acme", 10)]).await;
            bank.settle(lease, &[("acme", 7)]).await;
        };
        tokio::join!(call(), call(), call(), call(), call(), call(), call(), call());
        let now = (town.postings("acme").await, town.postings("revenue").await);
        most = (most.0.max(now.0), most.1.max(now.1));
    }
    assert!(most.0 <= 96, "{most:?}");
    assert!(most.1 <= 96, "{most:?}");
    assert_eq!(bank.purse("revenue").await, (30 * 8 * 7, 0));
    bank.audits("main").await;
}

/// An account may have been filled by somebody who splits more than we do.
pub async fn thousands_of_small_postings_are_spent(store: Arc<dyn Store>) {
    let town = Town::new(&store);
    let bank = town.bank().await;
    bank.does(vec![open("acme"), open("bob")]).await;
    for _ in 0..6 {
        litter(&town, "acme", 500).await;
    }
    assert_eq!(town.postings("acme").await, 3_000);
    bank.does(vec![transfer("acme", "bob", 2_500)]).await;
    assert_eq!((bank.purse("acme").await, bank.purse("bob").await), ((500, 0), (2_500, 0)));
    bank.audits("main").await;
}

/// Issues an amount in postings of one.
pub(super) async fn litter(town: &Town, name: &str, count: u16) {
    let rid = ReservationId(ulid::Ulid::generate().0);
    let ticket = Ticket { gate: GateId(rid.0), rid, owner: OwnerId(1) };
    let account = town.account(name);
    let posting = |place| Posting {
        id: rid.posting(place),
        account: account.clone(),
        asset: usd(),
        amount: 1,
        hold: None,
    };
    let (amount, held) = (i128::from(count), 0);
    let change = AccountChange { account: account.account.clone(), asset: usd(), amount, held };
    let at = earmark_admission::Clock::now(&*town.clock).log;
    let entry =
        Entry { home: town.home(), at, body: EntryBody::Ended { lease: lease() }, changes: vec![change] };
    let asset = AssetKey { home: town.home(), asset: usd() };
    let plan = Arc::new(Plan {
        outputs: (0..count).map(posting).collect(),
        entries: vec![entry],
        totals: vec![TotalsChange { asset, issued: amount, retired: 0 }],
        ..Plan::default()
    });
    let record = Record { ticket, lease: None, begun_at: at, plan: Arc::clone(&plan) };
    let steps = vec![
        Change::Begin(Arc::new(record)),
        Change::Decide(ticket, Arc::clone(&plan)),
        Change::Create(ticket, Arc::clone(&plan)),
        Change::Record(ticket, plan),
        Change::End(ticket),
    ];
    assert_eq!(town.store.write(steps).await, Ok(vec![1, 1, count.into(), 1, 1]));
}

/// A tenant with thirty thousand holds and nothing left had all of them added up for each call that was refused, and for each that
/// cost more than it had held: its own calls took a sixth of a second, and those of all others forty times as long as before.
pub async fn what_is_held_is_not_counted_for_who_is_refused_or_pays_more(store: Arc<dyn Store>) {
    let town = Town::new(&store);
    let faulty = Faulty::new(Arc::clone(&store));
    let bank = town.bank_on(Arc::clone(&faulty) as Arc<dyn Store>, options()).await;
    bank.does(vec![open("acme"), issue("acme", 100)]).await;
    let lease = bank.holds(&[on("acme", 40)]).await;
    bank.holds(&[on("acme", 40)]).await;
    let refused = bank.hold(self::lease(), &[on("acme", 30)]).await;
    assert!(matches!(refused, HoldAnswer::Refused { .. }), "{refused:?}");
    let refused = bank.refuse(2, vec![retire("acme", 30)]).await;
    assert_eq!(refused, WriteError::InsufficientCredit { operation: 0 });
    bank.settle(lease, &[("acme", 55)]).await;
    assert_eq!(faulty.looks_at_all(), 0);
    assert_eq!(bank.purse("acme").await, (5, 40));
    assert_eq!(faulty.looks_at_all(), 1);
}

/// Whoever has not decided when the account freezes is refused.
pub async fn an_account_is_frozen_in_the_middle_of_a_saga(store: Arc<dyn Store>) {
    for (when, expected) in [(When::Before, Err("ACCOUNT_FROZEN")), (When::After, Ok(()))] {
        let town = Town::new(&store);
        let bank = town.bank().await;
        bank.does(vec![open("acme"), open("bob"), issue("acme", 100)]).await;
        let (faulty, act) = stopped(&town, when, DECISION, 1, vec![transfer("acme", "bob", 40)]).await;
        bank.does(vec![freeze("acme")]).await;
        faulty.mend();
        let told = act.await.expect("no panic").expect("a store that answers");
        let told = match &told {
            WriteAnswer::Committed(_) => Ok(()),
            WriteAnswer::Refused(error) => Err(error.code()),
        };
        assert_eq!(told, expected, "{when:?}");
        let moved = if expected.is_ok() { 40 } else { 0 };
        assert_eq!((bank.purse("acme").await, bank.purse("bob").await), ((100 - moved, 0), (moved, 0)));
        bank.audits("main").await;
    }
}

/// A saga that was there first, and has not decided: the account closes, and the saga is refused.
pub async fn an_account_closes_against_a_saga_that_names_it(store: Arc<dyn Store>) {
    let town = Town::new(&store);
    let bank = town.bank().await;
    bank.does(vec![open("acme"), issue("revenue", 1)]).await;
    // An issue reserves nothing, so its decision is one call earlier.
    let (faulty, act) = stopped(&town, When::Before, DECISION - 1, 1, vec![issue("acme", 5)]).await;
    let wake = async {
        tokio::time::sleep(Duration::from_millis(60)).await;
        faulty.mend();
        act.await.expect("no panic").expect("a store that answers")
    };
    let (closed, told) = tokio::join!(bank.does(vec![close("acme")]), wake);
    assert_eq!(closed.sequence, 2);
    assert_eq!(told, WriteAnswer::Refused(WriteError::AccountClosed { operation: 0 }));
    assert_eq!(bank.purse("acme").await, (0, 0));
    bank.audits("main").await;
}

/// A saga that has decided: the account is paid, and does not close.
pub async fn an_account_that_is_paid_while_it_closes_does_not_close(store: Arc<dyn Store>) {
    let town = Town::new(&store);
    let bank = town.bank().await;
    bank.does(vec![open("acme"), issue("revenue", 1)]).await;
    let (faulty, act) = stopped(&town, When::After, DECISION - 1, 1, vec![issue("acme", 5)]).await;
    let wake = async {
        tokio::time::sleep(Duration::from_millis(60)).await;
        faulty.mend();
        act.await.expect("no panic").expect("a store that answers")
    };
    let (refused, told) = tokio::join!(bank.refuse(2, vec![close("acme")]), wake);
    assert_eq!(refused, WriteError::Conflict { operation: 0 });
    assert!(matches!(told, WriteAnswer::Committed(_)), "{told:?}");
    assert_eq!(bank.purse("acme").await, (5, 0));
    bank.does(vec![retire("acme", 5), close("acme")]).await;
    bank.audits("main").await;
}

/// Whoever asks how far a client is learns of what it has under way, too.
pub async fn the_state_of_a_client_waits_for_what_is_under_way(store: Arc<dyn Store>) {
    for (when, expected) in [(When::Before, 0), (When::After, 1)] {
        let town = Town::new(&store);
        let bank = town.bank_on(Arc::clone(&store), impatient()).await;
        bank.does(vec![open("acme"), issue("acme", 100)]).await;
        let operations = vec![retire("acme", 10)];
        let (_faulty, _act) = stopped(&town, when, DECISION, 1, operations.clone()).await;
        let client = earmark_core::ClientId::new("other").expect("a valid client");
        let home = town.home();
        let last = || bank.credits.client_state(home.namespace.clone(), home.vault.clone(), client.clone());
        assert!(last().await.is_err(), "nobody knows yet");
        town.fall_silent();
        assert_eq!(soon(async || last().await).await, Ok(expected), "{when:?}");
        let again = soon(async || bank.try_write_as("other", 1, operations.clone()).await).await;
        assert!(matches!(again, Ok(WriteAnswer::Committed(_))), "{again:?}");
        assert_eq!(bank.purse("acme").await, (90, 0));
    }
}

/// It slept, its saga was given up, and what it had reserved is spent.
pub async fn a_process_that_wakes_up_too_late_changes_nothing(store: Arc<dyn Store>) {
    let town = Town::new(&store);
    let bank = town.bank().await;
    bank.does(vec![open("acme"), open("bob"), issue("acme", 100)]).await;
    let (faulty, act) = stopped(&town, When::Before, DECISION, 1, vec![transfer("acme", "bob", 60)]).await;
    assert_eq!(bank.purse_in("main", "acme").await, Some((0, 0, 100)));
    town.fall_silent();
    bank.tend().await;
    assert_eq!(bank.purse("acme").await, (100, 0));
    bank.does(vec![retire("acme", 100)]).await;
    faulty.mend();
    let told = act.await.expect("no panic").expect("a store that answers");
    assert_eq!(told, WriteAnswer::Refused(WriteError::InsufficientCredit { operation: 0 }));
    assert_eq!((bank.purse("acme").await, bank.purse("bob").await), ((0, 0), (0, 0)));
    bank.audits("main").await;
}

/// A reserve that was carried out after its saga was given up.
pub async fn orphans_are_given_back(store: Arc<dyn Store>) {
    let town = Town::new(&store);
    let bank = town.bank().await;
    bank.does(vec![open("acme"), issue("acme", 100)]).await;
    let find = crate::store::PurseQuery {
        account: town.account("acme"),
        asset: usd(),
        largest: 9,
        smallest: 0,
        count_max: 9,
    };
    let survey = crate::store::Survey { purses: vec![find], ..Default::default() };
    let found = town.store.survey(survey).await.expect("a store that answers").purses.remove(0);
    let ticket = begin(&town, &bank, &found.large).await;
    assert_eq!(town.store.write(vec![Change::Abort(ticket), Change::End(ticket)]).await, Ok(vec![1, 1]));
    assert_eq!(bank.purse_in("main", "acme").await, Some((0, 0, 100)));
    bank.tend().await;
    assert_eq!(bank.purse("acme").await, (100, 0));
}

/// Callers are told so, and the same request works later.
pub async fn a_store_that_was_gone_is_used_again_without_a_restart(store: Arc<dyn Store>) {
    let town = Town::new(&store);
    let faulty = Faulty::new(Arc::clone(&store));
    let bank: Bank = town.bank_on(Arc::clone(&faulty) as Arc<dyn Store>, options()).await;
    bank.does(vec![open("acme"), issue("acme", 100)]).await;
    assert_eq!(bank.credits.ready(), Ok(()));
    faulty.break_down();
    let lease = lease();
    let write = bank.try_write(2, vec![issue("acme", 1)]).await;
    assert!(matches!(&write, Err(BackendError::Failed(why)) if why.contains("does not answer")), "{write:?}");
    assert!(bank.try_hold(lease, &[on("acme", 10)]).await.is_err());
    assert!(bank.credits.tend().await.is_err());
    let why = bank.credits.ready().expect_err("a store that is gone");
    assert!(why.contains("it is gone"), "{why}");
    faulty.mend();
    bank.tend().await;
    assert_eq!(bank.credits.ready(), Ok(()));
    bank.commit(2, vec![issue("acme", 1)]).await;
    assert_eq!(bank.hold(lease, &[on("acme", 10)]).await, HoldAnswer::Held);
    assert_eq!(bank.purse("acme").await, (91, 10));
}

/// The row of a process that was killed stayed for ever, and every start adds one. A process whose clock had been a year ahead
/// when it died was never found silent.
pub async fn processes_that_are_gone_are_forgotten(store: Arc<dyn Store>) {
    let town = Town::new(&store);
    let (a, b) = (town.bank().await, town.bank().await);
    let ahead = OwnerId(7);
    store
        .write(vec![Change::Beat(ahead, town.clock.now().log.plus_ms(1 << 35))])
        .await
        .expect("a sign of life");
    b.credits.abandon();
    let gone = async || {
        let since = town.clock.now().log;
        let gone = Gone { silent_since: since, ahead_of: since.plus_ms(60_000) };
        store.gone(gone, 9).await.expect("a store that answers")
    };
    a.tend().await;
    assert_eq!(gone().await, [], "of the clock that was wrong nothing is left");
    town.clock.advance_ms(2 * 60 * 60 * 1_000);
    assert_eq!(gone().await.len(), 2, "neither has been heard of for two hours");
    a.tend().await;
    assert_eq!(gone().await, []);
    // It lived after all.
    b.tend().await;
    town.clock.advance_ms(1);
    let mut both = [a.credits.owner(), b.credits.owner()];
    both.sort_unstable();
    assert_eq!(gone().await, both);
}

/// The deadline began only when no other call of the process was about the same lease any more. Whoever came behind one that
/// the store kept waiting waited for that one first, and then for as long again.
pub async fn nobody_waits_beyond_the_deadline_for_a_call_about_the_same(store: Arc<dyn Store>) {
    let town = Town::new(&store);
    town.bank().await.does(vec![open("acme"), issue("acme", 100)]).await;
    let faulty = Faulty::new(Arc::clone(&store));
    let hurry = Options { deadline: Duration::from_millis(300), ..options() };
    let patient = Options { call_timeout: Duration::from_secs(3_600), ..hurry };
    let bank = Arc::new(town.bank_on(Arc::clone(&faulty) as _, patient).await);
    let lease = lease();
    faulty.plan(2, When::Before, Mode::Stop);
    let first = tokio::spawn({
        let bank = Arc::clone(&bank);
        async move { bank.try_hold(lease, &[on("acme", 10)]).await }
    });
    faulty.stopped().await;
    let holds = [on("acme", 10)];
    let second = bank.try_hold(lease, &holds);
    let second = tokio::time::timeout(Duration::from_secs(20), second).await.expect("an answer in time");
    assert!(matches!(second, Err(BackendError::Overloaded(_))), "{second:?}");
    faulty.mend();
    // It may have been told the same by now, and left nothing.
    let _ = first.await.expect("no panic");
    let patient = town.bank().await;
    assert_eq!(patient.hold(lease, &[on("acme", 10)]).await, HoldAnswer::Held);
    assert_eq!(patient.purse("acme").await, (90, 10));
}
