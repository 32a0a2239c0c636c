//! A real PostgreSQL that goes away, cuts connections, or has few of them: callers get errors, and the same request
//! works later, once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::{DEPOSIT, account, fill, hold, namespace, settle, usd, vault, write};
use earmark_admission::{BackendError, Credits, HoldAnswer, SystemClock, WriteAnswer, Writer};
use earmark_core::{LeaseId, Operation};
use earmark_credits::conformance::server::Server;
use earmark_credits::{Options, PostgresOptions, PostgresStore, SagaCredits};
use sqlx::Connection;

const ACCOUNTS: usize = 4;

fn options() -> Options {
    let deadline = Duration::from_secs(3);
    Options { deadline, owner_timeout_ms: 800, heartbeat: Duration::from_millis(100), ..Options::default() }
}

async fn start(server: &Server, connections: u32) -> Arc<SagaCredits> {
    let options = PostgresOptions {
        connections,
        writers: connections.min(2),
        connect_timeout: Duration::from_secs(1),
        ..PostgresOptions::default()
    };
    let store = PostgresStore::open(&server.url(), options).await.expect("a store");
    let started = SagaCredits::start(Arc::new(store), Arc::new(SystemClock::new()), self::options()).await;
    Arc::new(started.expect("a store that answers"))
}

fn transfer(caller: usize) -> Vec<Operation> {
    vec![Operation::Transfer {
        from: account(caller % ACCOUNTS),
        to: account((caller + 1) % ACCOUNTS),
        asset: usd(),
        amount: 3,
        memo: String::new(),
    }]
}

/// Repeats a request until it is answered.
async fn retry<T, F>(ask: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, BackendError>>,
{
    let start = Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) => assert!(start.elapsed() < Duration::from_secs(60), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// One caller that writes, holds and settles, repeating each until it is answered.
async fn call(credits: Arc<SagaCredits>, caller: usize, rounds: u64) {
    let client = format!("caller-{caller}");
    for sequence in 1..=rounds {
        let answer =
            retry(|| async { credits.write(Writer::system(), write(&client, sequence, transfer(caller))).await }).await;
        assert!(matches!(&answer, WriteAnswer::Committed(receipt) if receipt.sequence == Some(sequence)), "{answer:?}");
        let lease = LeaseId::from_u128(ulid::Ulid::generate().0);
        let held = retry(|| async { credits.hold(None, vec![hold(lease, caller % ACCOUNTS)]).await.remove(0) }).await;
        assert_eq!(held, HoldAnswer::Held);
        assert!(retry(|| async { credits.settle(None, vec![settle(lease)]).await.remove(0) }).await.is_known);
    }
}

/// Everything balances, and each lease paid once.
async fn check(credits: &SagaCredits, callers: usize, rounds: u64) {
    // Abandoned sagas are recovered within a heartbeat or two.
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    credits.maintain().await.expect("a store that answers");
    let audit = credits.audit(namespace(), vault()).await.expect("a store that answers");
    assert!(audit.balanced, "{audit:?}");
    assert_eq!(audit.assets[0].live, (DEPOSIT * ACCOUNTS as u128) as i128);
    let revenue = earmark_admission::AccountPath {
        namespace: namespace(),
        vault: vault(),
        account: earmark_core::AccountName::new("revenue").expect("a valid account"),
    };
    let paid = credits.balances(revenue).await.expect("a store that answers");
    assert_eq!(paid[0].available, 7 * i128::from(rounds) * callers as i128, "each lease has paid once");
    assert_eq!(paid[0].pending, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_was_gone_is_used_again_without_a_restart() {
    let server = Server::start().expect("a server");
    let credits = start(&server, 4).await;
    fill(&credits, ACCOUNTS).await;
    call(Arc::clone(&credits), 0, 2).await;
    server.stop().expect("a server that stops");
    let (asked, lease) = (Instant::now(), LeaseId::from_u128(ulid::Ulid::generate().0));
    let failed = credits.write(Writer::system(), write("caller-0", 3, transfer(0))).await;
    assert!(matches!(&failed, Err(BackendError::Failed(_) | BackendError::Overloaded(_))), "{failed:?}");
    assert!(credits.hold(None, vec![hold(lease, 0)]).await.remove(0).is_err());
    assert!(asked.elapsed() < Duration::from_secs(20), "callers are told in time: {:?}", asked.elapsed());
    assert!(credits.maintain().await.is_err());
    let why = credits.ready().expect_err("a database that is gone");
    assert!(why.contains("the store"), "{why}");
    server.restart().expect("a server that starts");
    let answer = retry(|| async { credits.write(Writer::system(), write("caller-0", 3, transfer(0))).await }).await;
    assert!(matches!(answer, WriteAnswer::Committed(_)), "{answer:?}");
    let held = retry(|| async { credits.hold(None, vec![hold(lease, 0)]).await.remove(0) }).await;
    assert_eq!(held, HoldAnswer::Held);
    assert!(retry(|| async { credits.settle(None, vec![settle(lease)]).await.remove(0) }).await.is_known);
    credits.maintain().await.expect("a store that answers");
    assert_eq!(credits.ready(), Ok(()));
    check(&credits, 1, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_cut_at_any_moment_lose_and_double_nothing() {
    let server = Server::start().expect("a server");
    let credits = start(&server, 4).await;
    fill(&credits, ACCOUNTS).await;
    let (callers, rounds) = (8, 60);
    let (is_over, cuts) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let cutting = tokio::spawn({
        let (is_over, cuts, url) = (Arc::clone(&is_over), Arc::clone(&cuts), server.url());
        async move {
            let mut connection = sqlx::PgConnection::connect(&url).await.expect("a connection");
            while !is_over.load(Ordering::Relaxed) {
                // A busy connection, if there is one.
                let others = "select pg_terminate_backend(pid) from pg_stat_activity
                    where backend_type = 'client backend' and pid <> pg_backend_pid()
                    order by state = 'active' desc, random() limit 1";
                let cut = sqlx::query(others).execute(&mut connection).await.expect("a superuser");
                cuts.fetch_add(cut.rows_affected(), Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(29)).await;
            }
        }
    });
    let calls: Vec<_> = (0..callers).map(|caller| tokio::spawn(call(Arc::clone(&credits), caller, rounds))).collect();
    for call in calls {
        call.await.expect("a caller that is served in the end");
    }
    is_over.store(true, Ordering::Relaxed);
    cutting.await.expect("connections that were cut");
    assert!(cuts.load(Ordering::Relaxed) > 10, "connections were cut");
    check(&credits, callers, rounds).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_serves_a_crowd() {
    let server = Server::start_without_fsync().expect("a server");
    let credits = start(&server, 2).await;
    fill(&credits, ACCOUNTS).await;
    let calls: Vec<_> = (0..64).map(|caller| tokio::spawn(call(Arc::clone(&credits), caller, 2))).collect();
    for call in calls {
        call.await.expect("a caller that is served");
    }
    check(&credits, 64, 2).await;
}
