//! Two real processes on one database: sixty-four callers, ten accounts. No balance below zero, and no more spent than
//! issued.
//!
//! An earlier test used two owners on one store object. They shared a queue, writers and connections, so they never met
//! in the database.

use std::io::{BufRead, stdin};
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use crate::process::{self, report};
use crate::support::{account, hold, namespace, settle, usd, vault, write};
use earmark_admission::{AccountPath, Clock, Credits, HoldAnswer, SystemClock, WriteAnswer, Writer};
use earmark_core::{AccountName, GrantTerms, LeaseId, Operation, Overdraft};
use earmark_credits::conformance::server::Server;
use earmark_credits::{Options, SagaCredits};

const ACCOUNTS: usize = 10;
/// Callers per process.
const CALLERS: usize = 32;
const ROUNDS: usize = 8;
/// Initial credit of each account: less than the callers ask for.
const DEPOSIT: u64 = 600;
/// Grants of each account, with their expiry in milliseconds after the start. Both processes see them expire.
const GRANTS: [(u64, u64); 3] = [(100, 500), (200, 1_500), (100, 2_500)];

fn options() -> Options {
    Options { deadline: Duration::from_secs(60), ..Options::default() }
}

/// A deterministic random number generator.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Spends and transfers randomly; returns the amount paid.
async fn spend(credits: Arc<SagaCredits>, client: String, mut random: Random) -> u64 {
    let (mut sequence, mut paid) = (0, 0);
    for _ in 0..ROUNDS {
        let (from, to) = (random.below(10) as usize, random.below(10) as usize);
        let amount = 1 + random.below(60);
        if random.below(3) == 0 && from != to {
            let (from, to, memo) = (account(from), account(to), String::new());
            let transfer = Operation::Transfer { from, to, asset: usd(), amount: amount.into(), memo };
            match credits
                .write(Writer::system(), write(&client, sequence + 1, vec![transfer]))
                .await
                .expect("an answer")
            {
                WriteAnswer::Committed(_) => sequence += 1,
                WriteAnswer::Refused(error) => assert_eq!(error.code(), "INSUFFICIENT_CREDIT"),
            }
            continue;
        }
        let lease = LeaseId::from_u128(ulid::Ulid::generate().0);
        let mut holding = hold(lease, from);
        holding.holds[0].amount = amount;
        if credits.hold(None, vec![holding]).await.remove(0).expect("an answer") == HoldAnswer::Held {
            let mut settling = settle(lease);
            settling.actuals[0].amount = random.below(amount + 1);
            let cost = settling.actuals[0].amount;
            let answer = credits.settle(None, vec![settling]).await.remove(0).expect("an answer");
            assert_eq!((answer.paid, answer.debt, answer.uncollected), (cost, 0, 0));
            paid += cost;
        }
    }
    paid
}

/// One of the two processes. It starts spending when the parent writes a line.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the tests below start it"]
async fn spender() {
    let Some((store, number)) = process::assignment() else { return };
    let credits = Arc::new(process::start(&store, options()).await);
    report("ready");
    stdin().lock().lines().next().expect("a word").expect("a word");
    let calls = (0..CALLERS).map(|caller| {
        let client = format!("spender-{number}-{caller}");
        let seed = number.parse::<u64>().expect("a number") * 1_000 + caller as u64;
        tokio::spawn(spend(Arc::clone(&credits), client, Random(seed * 2_654_435_761 + 1)))
    });
    let mut paid = 0;
    for call in calls.collect::<Vec<_>>() {
        paid += call.await.expect("a caller that is served");
    }
    report(&format!("paid {paid}"));
    credits.shut_down().await;
}

/// Lets both processes spend at once; returns what each paid.
fn run_both(store: &str) -> Vec<u64> {
    use std::io::Write;
    let mut spenders: Vec<Child> = (0..2).map(|_| process::spawn("storm::spender", store)).collect();
    let mut outputs: Vec<_> =
        spenders.iter_mut().map(|spender| process::lines_of(spender.stdout.take().expect("an output"))).collect();
    for output in &mut outputs {
        assert!(output.any(|line| line == "ready"), "a process that starts");
    }
    for spender in &mut spenders {
        spender.stdin.take().expect("an output").write_all(b"go\n").expect("a process that listens");
    }
    let paid = outputs.into_iter().map(|output| {
        // The pipe must be read to the end, or the process could not write its last line.
        let lines: Vec<String> = output.collect();
        let paid = lines.iter().find_map(|line| line.strip_prefix("paid ")?.parse().ok());
        paid.expect("a process that was served")
    });
    let paid = paid.collect();
    for mut spender in spenders {
        assert!(spender.wait().expect("a process that ends").success());
    }
    paid
}

async fn funds(credits: &SagaCredits, account: AccountName) -> (i128, i128, i128) {
    let path = AccountPath { namespace: namespace(), vault: vault(), account };
    let balances = credits.balances(path).await.expect("a store that answers");
    let of_usd = balances.iter().find(|balance| balance.asset == usd());
    of_usd.map_or((0, 0, 0), |found| (found.available, found.held, found.pending))
}

fn revenue() -> AccountName {
    AccountName::new(AccountName::REVENUE).expect("a valid account")
}

async fn storm(store: String) {
    let credits = process::start(&store, options()).await;
    let open = |number| Operation::OpenAccount { account: account(number), overdraft: Overdraft::Deny, plan: None };
    let issue = |number| {
        let (account, asset, memo) = (account(number), usd(), String::new());
        Operation::Issue { account, asset, amount: DEPOSIT.into(), memo, terms: GrantTerms::PLAIN }
    };
    let start_ms = SystemClock::new().now().wall;
    let grant = |(number, (amount, after_ms)): (usize, (u64, u64))| {
        let (account, asset, memo) = (account(number), usd(), String::new());
        let terms = GrantTerms::new(7, Some(start_ms.plus_ms(after_ms + 500)));
        Operation::Issue { account, asset, amount: amount.into(), memo, terms }
    };
    let grants = (0..ACCOUNTS).flat_map(|number| GRANTS.map(|terms| (number, terms))).map(grant);
    let operations = (0..ACCOUNTS).map(open).chain((0..ACCOUNTS).map(issue)).chain(grants).collect();
    let opened = credits.write(Writer::system(), write("operator", 1, operations)).await;
    assert!(matches!(opened, Ok(WriteAnswer::Committed(_))), "{opened:?}");
    let spending = tokio::task::spawn_blocking({
        let store = store.clone();
        move || run_both(&store)
    });
    let granted: u64 = GRANTS.iter().map(|(amount, _)| amount).sum();
    let issued = i128::from(DEPOSIT + granted) * ACCOUNTS as i128;
    while !spending.is_finished() {
        for number in 0..ACCOUNTS {
            let (available, held, _) = funds(&credits, account(number)).await;
            assert!(available >= 0 && held >= 0, "account {number} has {available} and holds {held}");
        }
        let (spent, _, _) = funds(&credits, revenue()).await;
        assert!(spent <= issued, "{spent} were spent");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let paid = spending.await.expect("processes that end");
    assert!(paid.iter().all(|paid| *paid > 0), "both had their share: {paid:?}");
    while SystemClock::new().now().wall < start_ms.plus_ms(4_000) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    credits.maintain().await.expect("a store that answers");
    let mut left = 0;
    for number in 0..ACCOUNTS {
        let (available, held, pending) = funds(&credits, account(number)).await;
        assert_eq!((held, pending), (0, 0), "account {number}");
        assert!(available >= 0, "account {number} has {available}");
        left += available;
    }
    let paid = i128::from(paid.iter().sum::<u64>());
    let audit = credits.audit(namespace(), vault()).await.expect("a store that answers");
    assert!(audit.balanced, "{audit:?}");
    let expired = audit.assets[0].expired;
    println!("{paid} paid, {expired} expired, {left} left");
    assert_eq!((funds(&credits, revenue()).await, left + paid + expired), ((paid, 0, 0), issued));
    for number in 0..ACCOUNTS {
        let path = AccountPath { namespace: namespace(), vault: vault(), account: account(number) };
        let left = credits.grants(path).await.expect("a store that answers");
        assert!(left.iter().all(|grant| grant.terms.expires_at().is_none()), "{left:?}");
    }
    credits.shut_down().await;
    let rows = process::open(&store).await;
    assert_eq!(rows.orphans(9).await, Ok(vec![]), "nothing is reserved by nobody");
    rows.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_on_postgresql_spend_no_more_than_there_is() {
    let server = Server::start().expect("a server");
    storm(server.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_on_one_file_of_sqlite_spend_no_more_than_there_is() {
    let folder = tempfile::tempdir().expect("a folder");
    storm(format!("sqlite:{}", folder.path().join("credits.db").display())).await;
}
