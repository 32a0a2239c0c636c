//! Concurrent callers.

use std::sync::Arc;

use earmark_admission::{HoldAnswer, WriteAnswer};
use earmark_core::VaultName;

use super::process::{
    Fixture, TestProcess, hold_of, issue, lease, open, open_capped, open_overdrawn, options, transfer,
};
use crate::store::Store;

const CALLERS: usize = 64;
const ACCOUNTS: [&str; 10] = ["a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9"];

/// Makes the same call `count` times in parallel.
async fn in_parallel<F>(process: &Arc<TestProcess>, count: usize, call: impl Fn(Arc<TestProcess>) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let calls: Vec<_> = (0..count).map(|_| tokio::spawn(call(Arc::clone(process)))).collect();
    for call in calls {
        call.await.expect("a call that is served");
    }
}

/// Concurrent calls on one deposit do not fail each other.
pub async fn one_deposit_and_many_callers_at_once(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let process = Arc::new(fixture.process().await);
    process.write_next(vec![open("acme"), issue("acme", 64_000)]).await;
    in_parallel(&process, CALLERS, |process| async move {
        for _ in 0..3 {
            let lease = lease();
            assert_eq!(process.hold(lease, &[hold_of("acme", 100)]).await, HoldAnswer::Held);
            assert_eq!(process.settle(lease, &[("acme", 90)]).await.paid, 90);
        }
    })
    .await;
    let paid = 3 * 90 * CALLERS as i128;
    assert_eq!((process.balance("acme").await, process.balance("revenue").await), ((64_000 - paid, 0), (paid, 0)));
    process.assert_balanced("main").await;
}

/// The sums of an account were read from SQLite in several statements at different moments. A caller that read while a
/// posting was replaced by its change found neither, and was refused for good. Here everyone wants the one posting, to
/// its last unit.
pub async fn one_posting_and_many_callers_at_once(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let process = Arc::new(fixture.process().await);
    process.write_next(vec![open("acme"), issue("acme", 60)]).await;
    in_parallel(&process, 60, |process| async move {
        assert_eq!(process.hold(lease(), &[hold_of("acme", 1)]).await, HoldAnswer::Held);
    })
    .await;
    assert_eq!(process.balance("acme").await, (0, 60));
    let one_more = process.hold(lease(), &[hold_of("acme", 1)]).await;
    assert!(matches!(one_more, HoldAnswer::Refused { .. }), "{one_more:?}");
    process.assert_balanced("main").await;
}

/// An account that may go below zero was refused for good if another call used its postings.
pub async fn an_account_that_may_owe_is_never_short(store: Arc<dyn Store>) {
    let fixture = Fixture::new(&store);
    let process = Arc::new(fixture.process().await);
    process.write_next(vec![open_overdrawn("acme"), issue("acme", 100)]).await;
    in_parallel(&process, 40, |process| async move {
        assert_eq!(process.hold(lease(), &[hold_of("acme", 50)]).await, HoldAnswer::Held);
    })
    .await;
    assert_eq!(process.balance("acme").await, (100 - 40 * 50, 40 * 50));
    process.assert_balanced("main").await;
}

/// Spends randomly from a few accounts and transfers between them.
async fn spend(process: Arc<TestProcess>, caller: usize, rounds: usize) -> u64 {
    let mut random = caller as u64 * 2_654_435_761 + 1;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let client = format!("caller-{caller}");
    let (mut sequence, mut paid) = (0, 0);
    for _ in 0..rounds {
        let (from, to) = (ACCOUNTS[next(10) as usize], ACCOUNTS[next(10) as usize]);
        let amount = 1 + next(60);
        if next(3) == 0 && from != to {
            let operations = vec![transfer(from, to, amount.into())];
            match process.try_write_as(&client, sequence + 1, operations).await.expect("a store that answers") {
                WriteAnswer::Committed(_) => sequence += 1,
                WriteAnswer::Refused(error) => assert_eq!(error.code(), "INSUFFICIENT_CREDIT"),
            }
            continue;
        }
        let lease = lease();
        match process.hold(lease, &[hold_of(from, amount)]).await {
            HoldAnswer::Held => {
                let cost = next(amount + 1);
                let answer = process.settle(lease, &[(from, cost)]).await;
                assert_eq!((answer.paid, answer.debt, answer.uncollected), (cost, 0, 0));
                paid += cost;
            }
            HoldAnswer::Refused { .. } => {}
            HoldAnswer::Ended => panic!("{lease} has not ended"),
        }
        let (available, held, _) = process.balance_in(VaultName::MAIN, from).await.expect("an account");
        assert!(available >= 0, "{from} has {available}");
        assert!(held >= 0, "{from} holds {held}");
    }
    paid
}

/// Two processes, each on its own store.
async fn two_processes(fixture: &Fixture, stores: [Arc<dyn Store>; 2]) -> [Arc<TestProcess>; 2] {
    let [one, other] = stores;
    [Arc::new(fixture.process_on(one, options()).await), Arc::new(fixture.process_on(other, options()).await)]
}

/// Sixty-four tasks on two processes and ten accounts: no balance below zero, and no more spent than issued.
pub async fn many_spend_from_few_accounts_and_nothing_is_lost(stores: [Arc<dyn Store>; 2]) {
    let store = Arc::clone(&stores[0]);
    let fixture = Fixture::new(&store);
    let processes = two_processes(&fixture, stores).await;
    let opened = ACCOUNTS.iter().flat_map(|name| [open(name), issue(name, 600)]).collect();
    processes[0].write_next(opened).await;
    let callers: Vec<_> =
        (0..CALLERS).map(|caller| tokio::spawn(spend(Arc::clone(&processes[caller % 2]), caller, 5))).collect();
    let mut paid = 0;
    for caller in callers {
        paid += caller.await.expect("a caller that is served");
    }
    let mut left = 0;
    for name in ACCOUNTS {
        let (available, held) = processes[0].balance(name).await;
        assert_eq!(held, 0, "{name}");
        assert!(available >= 0, "{name} has {available}");
        left += available;
    }
    assert_eq!((left + i128::from(paid), processes[1].balance("revenue").await), (6_000, (paid.into(), 0)));
    processes[1].assert_balanced("main").await;
    processes[0].maintain().await;
    assert_eq!(store.orphans(9).await, Ok(vec![]));
}

/// Two processes that both see room under a cap cannot use it up twice, and use all of it.
pub async fn two_processes_cannot_both_use_up_a_cap(stores: [Arc<dyn Store>; 2]) {
    let fixture = Fixture::new(&stores[0]);
    let processes = two_processes(&fixture, stores).await;
    processes[0].write_next(vec![open_capped("acme", 100), open("bob"), open_capped("carl", 100)]).await;
    let caller = |number: usize| {
        let process = Arc::clone(&processes[number % 2]);
        tokio::spawn(async move {
            let held = process.hold(lease(), &[hold_of("acme", 30)]).await == HoldAnswer::Held;
            let operations = vec![transfer("carl", "bob", 30)];
            let written = process.try_write_as(&format!("caller-{number}"), 1, operations).await;
            let is_written = matches!(written.expect("a store that answers"), WriteAnswer::Committed(_));
            (u64::from(held), u64::from(is_written))
        })
    };
    let callers: Vec<_> = (0..16).map(caller).collect();
    let (mut held, mut written) = (0, 0);
    for caller in callers {
        let (of_one, of_other) = caller.await.expect("a caller that is served");
        (held, written) = (held + of_one, written + of_other);
    }
    assert_eq!((held, written), (3, 3));
    assert_eq!((processes[0].balance("acme").await, processes[1].balance("carl").await), ((-90, 90), (-90, 0)));
    // A deposit between two overdrafts must not hide one from the other.
    processes[1].write_next(vec![issue("carl", 95), issue("acme", 95)]).await;
    assert!(matches!(processes[0].hold(lease(), &[hold_of("carl", 106)]).await, HoldAnswer::Refused { .. }));
    assert_eq!(processes[1].hold(lease(), &[hold_of("carl", 105)]).await, HoldAnswer::Held);
    processes[0].assert_balanced("main").await;
}

/// Two processes commit the same entry: one effect, one receipt.
pub async fn copies_of_one_entry_at_two_processes_are_one_entry(stores: [Arc<dyn Store>; 2]) {
    let store = Arc::clone(&stores[0]);
    let fixture = Fixture::new(&store);
    let [a, b] = two_processes(&fixture, stores).await;
    a.write_next(vec![open("acme"), open("bob"), issue("acme", 10_000)]).await;
    for round in 1..=12_u64 {
        let operations = || vec![transfer("acme", "bob", 10)];
        let (first, second) = tokio::join!(a.commit(round + 1, operations()), b.commit(round + 1, operations()));
        assert_eq!(first, second);
        let lease = lease();
        let holds = [hold_of("acme", 100)];
        let (first, second) = tokio::join!(a.hold(lease, &holds), b.hold(lease, &holds));
        assert_eq!((first, second), (HoldAnswer::Held, HoldAnswer::Held));
        let (first, second) = tokio::join!(a.settle(lease, &[("acme", 40)]), b.settle(lease, &[("acme", 40)]));
        assert!(first.is_known && second.is_known);
        assert_eq!(first.paid + second.paid, 40, "the amount paid is reported once");
        let spent = i128::from(round);
        assert_eq!(a.balance("acme").await, (10_000 - 50 * spent, 0));
        assert_eq!((b.balance("bob").await, b.balance("revenue").await), ((10 * spent, 0), (40 * spent, 0)));
    }
    assert_eq!((a.last().await, a.history("main", "bob").await), (13, 12));
    a.assert_balanced("main").await;
    a.maintain().await;
    assert_eq!(store.orphans(9).await, Ok(vec![]));
}
