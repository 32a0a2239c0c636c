//! Many at once.

use std::sync::Arc;

use earmark_admission::{HoldAnswer, WriteAnswer};
use earmark_core::VaultName;

use super::bank::{Bank, Town, issue, lease, on, open, open_overdrawn, options, transfer};
use crate::store::Store;

const CALLERS: usize = 64;
const ACCOUNTS: [&str; 10] = ["a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9"];

/// One tenant, one big posting, and as many calls at once as it likes: they do not fail each other.
pub async fn one_deposit_and_many_callers_at_once(store: Arc<dyn Store>) {
    let town = Town::new(&store);
    let bank = Arc::new(town.bank().await);
    bank.does(vec![open("acme"), issue("acme", 64_000)]).await;
    let calls = (0..CALLERS).map(|_| {
        let bank = Arc::clone(&bank);
        tokio::spawn(async move {
            for _ in 0..3 {
                let lease = lease();
                assert_eq!(bank.hold(lease, &[on("acme", 100)]).await, HoldAnswer::Held);
                assert_eq!(bank.settle(lease, &[("acme", 90)]).await.paid, 90);
            }
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.expect("a call that is served");
    }
    let paid = 3 * 90 * CALLERS as i128;
    assert_eq!((bank.purse("acme").await, bank.purse("revenue").await), ((64_000 - paid, 0), (paid, 0)));
    bank.audits("main").await;
}

/// The sums of an account were once read from SQLite select by select, each at its own moment. Whoever looked while a posting
/// was consumed and its change created found neither, and was refused for good. Here all there is is one posting, too small
/// to be split, that everybody wants at once, to its last unit.
pub async fn one_posting_and_many_callers_at_once(store: Arc<dyn Store>) {
    let town = Town::new(&store);
    let bank = Arc::new(town.bank().await);
    bank.does(vec![open("acme"), issue("acme", 60)]).await;
    let calls = (0..60).map(|_| {
        let bank = Arc::clone(&bank);
        tokio::spawn(async move {
            assert_eq!(bank.hold(lease(), &[on("acme", 1)]).await, HoldAnswer::Held);
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.expect("a call that is served");
    }
    assert_eq!(bank.purse("acme").await, (0, 60));
    let one_more = bank.hold(lease(), &[on("acme", 1)]).await;
    assert!(matches!(one_more, HoldAnswer::Refused { .. }), "{one_more:?}");
    bank.audits("main").await;
}

/// An account that may go below zero was refused for good as short, if another call was at work on what it had.
pub async fn an_account_that_may_owe_is_never_short(store: Arc<dyn Store>) {
    let town = Town::new(&store);
    let bank = Arc::new(town.bank().await);
    bank.does(vec![open_overdrawn("acme"), issue("acme", 100)]).await;
    let calls = (0..40).map(|_| {
        let bank = Arc::clone(&bank);
        tokio::spawn(async move {
            assert_eq!(bank.hold(lease(), &[on("acme", 50)]).await, HoldAnswer::Held);
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.expect("a call that is served");
    }
    assert_eq!(bank.purse("acme").await, (100 - 40 * 50, 40 * 50));
    bank.audits("main").await;
}

/// Spends at random from a few accounts, and sends things around between them.
async fn spend(bank: Arc<Bank>, caller: usize, rounds: usize) -> u64 {
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
            match bank.try_write_as(&client, sequence + 1, operations).await.expect("a store that answers") {
                WriteAnswer::Committed(_) => sequence += 1,
                WriteAnswer::Refused(error) => assert_eq!(error.code(), "INSUFFICIENT_CREDIT"),
            }
            continue;
        }
        let lease = lease();
        match bank.hold(lease, &[on(from, amount)]).await {
            HoldAnswer::Held => {
                let cost = next(amount + 1);
                let answer = bank.settle(lease, &[(from, cost)]).await;
                assert_eq!((answer.paid, answer.debt, answer.uncollected), (cost, 0, 0));
                paid += cost;
            }
            HoldAnswer::Refused { .. } => {}
            HoldAnswer::Ended => panic!("{lease} has not ended"),
        }
        let (available, held, _) = bank.purse_in(VaultName::MAIN, from).await.expect("an account");
        assert!(available >= 0, "{from} has {available}");
        assert!(held >= 0, "{from} holds {held}");
    }
    paid
}

/// Two processes of a town, each with a store of its own.
async fn two_banks(town: &Town, stores: [Arc<dyn Store>; 2]) -> [Arc<Bank>; 2] {
    let [one, other] = stores;
    [Arc::new(town.bank_on(one, options()).await), Arc::new(town.bank_on(other, options()).await)]
}

/// Sixty-four tasks of two processes, ten accounts, one total: never below zero, never more spent than issued.
pub async fn many_spend_from_few_accounts_and_nothing_is_lost(stores: [Arc<dyn Store>; 2]) {
    let store = Arc::clone(&stores[0]);
    let town = Town::new(&store);
    let banks = two_banks(&town, stores).await;
    let opened = ACCOUNTS.iter().flat_map(|name| [open(name), issue(name, 600)]).collect();
    banks[0].does(opened).await;
    let callers: Vec<_> =
        (0..CALLERS).map(|caller| tokio::spawn(spend(Arc::clone(&banks[caller % 2]), caller, 5))).collect();
    let mut paid = 0;
    for caller in callers {
        paid += caller.await.expect("a caller that is served");
    }
    let mut left = 0;
    for name in ACCOUNTS {
        let (available, held) = banks[0].purse(name).await;
        assert_eq!(held, 0, "{name}");
        assert!(available >= 0, "{name} has {available}");
        left += available;
    }
    assert_eq!((left + i128::from(paid), banks[1].purse("revenue").await), (6_000, (paid.into(), 0)));
    banks[1].audits("main").await;
    banks[0].tend().await;
    assert_eq!(store.orphans(9).await, Ok(vec![]));
}

/// One entry driven by two processes: one effect, one receipt.
pub async fn copies_of_one_entry_at_two_processes_are_one_entry(stores: [Arc<dyn Store>; 2]) {
    let store = Arc::clone(&stores[0]);
    let town = Town::new(&store);
    let [a, b] = two_banks(&town, stores).await;
    a.does(vec![open("acme"), open("bob"), issue("acme", 10_000)]).await;
    for round in 1..=12_u64 {
        let operations = || vec![transfer("acme", "bob", 10)];
        let (first, second) =
            tokio::join!(a.commit(round + 1, operations()), b.commit(round + 1, operations()));
        assert_eq!(first, second);
        let lease = lease();
        let holds = [on("acme", 100)];
        let (first, second) = tokio::join!(a.hold(lease, &holds), b.hold(lease, &holds));
        assert_eq!((first, second), (HoldAnswer::Held, HoldAnswer::Held));
        let (first, second) =
            tokio::join!(a.settle(lease, &[("acme", 40)]), b.settle(lease, &[("acme", 40)]));
        assert!(first.is_known && second.is_known);
        assert_eq!(first.paid + second.paid, 40, "what was paid is told once");
        let spent = i128::from(round);
        assert_eq!(a.purse("acme").await, (10_000 - 50 * spent, 0));
        assert_eq!((b.purse("bob").await, b.purse("revenue").await), ((10 * spent, 0), (40 * spent, 0)));
    }
    assert_eq!((a.last().await, a.history("main", "bob").await), (13, 12));
    a.audits("main").await;
    a.tend().await;
    assert_eq!(store.orphans(9).await, Ok(vec![]));
}
