//! A server that goes away, connections that are cut, locks that others hold.

use std::sync::Arc;
use std::time::{Duration, Instant};

use earmark_core::UnixMs;
use earmark_credits::conformance::server::{self, Server};
use earmark_credits::{
    Change, FindRecord, OwnerId, PostgresOptions, PostgresStore, Store, StoreError, UsageKey, UsageKind,
};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection, Executor};

use super::helpers::{begin, freezing, home, issue, issuing, one_is_refused, record, token, total};
use super::proxy::Proxy;

fn options() -> PostgresOptions {
    let schema = format!("t{}", ulid::Ulid::generate()).to_ascii_lowercase();
    PostgresOptions { schema, keeps_time: false, ..PostgresOptions::default() }
}

fn url() -> String {
    server::shared().expect("a server")
}

async fn open(options: &PostgresOptions) -> PostgresStore {
    PostgresStore::open(&url(), options.clone()).await.expect("a store")
}

/// The counter of all clients.
fn all_clients() -> Vec<UsageKey> {
    vec![UsageKey { namespace: None, vault: None, kind: UsageKind::Clients }]
}

/// Another session on the same schema.
async fn other(options: &PostgresOptions) -> PgConnection {
    let mut other = PgConnection::connect(&url()).await.expect("a connection");
    let look = format!("set search_path to {}", options.schema);
    other.execute(AssertSqlSafe(look)).await.expect("a schema");
    other
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_is_cut_before_the_answer_leaves_the_outcome_unknown() {
    let server = Server::start_without_fsync().expect("a server");
    let proxy = Proxy::to(server.socket()).await;
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres?sslmode=disable", proxy.port);
    let store = PostgresStore::open(&url, options()).await.expect("a store");
    issue(&store, 1).await.expect("an entry");
    let saga = token();
    let plan = issuing(saga, 2);
    proxy.cut_answers();
    let cut = store.commit(record(saga, &plan)).await;
    assert!(matches!(cut, Err(StoreError::Unavailable(_))), "{cut:?}");
    proxy.repair();
    // It was committed, and a repeat changes nothing.
    assert_eq!(store.entries(saga.gate).await.map(|entries| entries.len()), Ok(1));
    assert_eq!(store.commit(record(saga, &plan)).await, Ok(false));
    assert_eq!(total(&store).await, 3);

    let saga = token();
    let plan = issuing(saga, 4);
    proxy.cut_requests();
    let cut = store.commit(record(saga, &plan)).await;
    assert!(matches!(cut, Err(StoreError::Unavailable(_))), "{cut:?}");
    proxy.repair();
    assert_eq!(store.entries(saga.gate).await, Ok(vec![]));
    assert_eq!(store.commit(record(saga, &plan)).await, Ok(true));
    assert_eq!(total(&store).await, 7);
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_went_away_and_came_back_has_all_that_was_acknowledged() {
    // This server uses fsync and is stopped like a power failure.
    let server = Server::start().expect("a server");
    let options = PostgresOptions { connect_timeout: Duration::from_secs(1), ..options() };
    let store = Arc::new(PostgresStore::open(&server.url(), options).await.expect("a store"));
    let mut acknowledged = 0;
    for round in 0..3 {
        let calls: Vec<_> = (0..16)
            .map(|amount: i128| {
                let store = Arc::clone(&store);
                tokio::spawn(async move { issue(&*store, amount + 1).await.map(|_| amount + 1) })
            })
            .collect();
        if round == 1 {
            server.stop().expect("a server that stops");
        }
        let mut unknown = 0;
        for call in calls {
            match call.await.expect("no panic") {
                Ok(amount) => acknowledged += amount,
                Err(StoreError::Unavailable(_)) => unknown += 1,
                Err(StoreError::Unreachable(_) | StoreError::Busy(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        if round == 1 {
            // The pool first tries and drops the connections it has. Then it cannot connect.
            let mut down = issue(&*store, 1).await;
            for _ in 0..20 {
                if !matches!(down, Err(StoreError::Unavailable(_))) {
                    break;
                }
                down = issue(&*store, 1).await;
            }
            assert!(matches!(down, Err(StoreError::Unreachable(_) | StoreError::Busy(_))), "{down:?}");
            server.restart().expect("a server that starts");
            // The read connections have not noticed the restart yet.
            while store.usage(all_clients()).await.is_err() {}
        }
        let found = total(&*store).await;
        assert!(found >= acknowledged, "{found} of {acknowledged}");
        assert!(unknown > 0 || found == acknowledged, "{found} of {acknowledged}");
        acknowledged = found;
    }
    assert!(acknowledged >= 2 * 16 * 17 / 2);
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_server_there_is_no_store() {
    let url = "postgres://postgres@127.0.0.1:1/postgres?sslmode=disable";
    let error = PostgresStore::open(url, options()).await.err();
    assert!(matches!(error, Some(StoreError::Unreachable(_))), "{error:?}");
    let secret = "postgres://me:secret@127.0.0.1:x/postgres";
    let error = PostgresStore::open(secret, options()).await.err().expect("a refusal").to_string();
    assert!(!error.contains("secret"), "{error}");
    let odd = PostgresOptions { schema: "a\"b".to_owned(), ..options() };
    let error = PostgresStore::open(&self::url(), odd).await.err().expect("a refusal").to_string();
    assert!(error.contains("lower-case letters"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn when_all_connections_are_in_use_the_next_call_is_told_that_nothing_was_done() {
    let options = PostgresOptions { connections: 2, connect_timeout: Duration::from_millis(200), ..options() };
    let store = Arc::new(open(&options).await);
    issue(&*store, 1).await.expect("an entry");
    let mut other = other(&options).await;
    other.execute("begin; lock table quota_usage in access exclusive mode").await.expect("a lock");
    let stuck = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.usage(all_clients()).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let busy = store.orphans(9).await;
    assert_eq!(busy, Err(StoreError::Busy("no connection was free in time")));
    other.execute("rollback").await.expect("no lock");
    assert_eq!(stuck.await.expect("no panic"), Ok(vec![0]));
    assert_eq!(total(&*store).await, 1);
    store.close().await;
}

/// Writers, readers and the clock query shared all connections. A few slow reads delayed every commit, and a process
/// that could not write its heartbeat counted as dead.
#[tokio::test(flavor = "multi_thread")]
async fn reads_that_take_long_hold_up_neither_writers_nor_signs_of_life() {
    let connect_timeout = Duration::from_millis(500);
    let options = PostgresOptions { connections: 4, writers: 2, connect_timeout, keeps_time: true, ..options() };
    let store = Arc::new(open(&options).await);
    let mut other = other(&options).await;
    other.execute("begin; lock table quota_usage in access exclusive mode").await.expect("a lock");
    let reads: Vec<_> = (0..8)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.usage(all_clients()).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let (saga, plan) = (token(), freezing(&[]));
    let steps = vec![begin(saga, &plan), Change::Abort(saga), Change::End(saga)];
    assert_eq!(store.write(steps).await, Ok(vec![1; 3]));
    assert!(store.time().await.expect("a time").is_some());
    let heartbeat = Change::Heartbeat(OwnerId(7), UnixMs::new(1));
    assert_eq!(store.write(vec![heartbeat]).await, Ok(vec![1]));
    let waiting = "select count(*) from pg_locks where relation = 'quota_usage'::regclass and not granted";
    let waiting: i64 = sqlx::query_scalar(waiting).fetch_one(&mut other).await.expect("a count");
    assert_eq!(waiting, 2, "as many reads are under way as there are connections for them");
    other.execute("rollback").await.expect("no lock");
    for read in reads {
        let answer = read.await.expect("no panic");
        assert!(matches!(answer, Ok(_) | Err(StoreError::Busy(_))), "{answer:?}");
    }
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_takes_too_long_is_given_up_and_undone() {
    let options = PostgresOptions { statement_timeout: Duration::from_millis(200), ..options() };
    let store = open(&options).await;
    issue(&store, 1).await.expect("an entry");
    let mut other = other(&options).await;
    other.execute("begin; lock table entries in exclusive mode").await.expect("a lock");
    let late = issue(&store, 2).await;
    assert_eq!(late, Err(StoreError::Busy("the statement timed out")));
    other.execute("rollback").await.expect("no lock");
    assert_eq!(total(&store).await, 1);
    assert_eq!(issue(&store, 4).await, Ok(true));
    store.close().await;
}

/// A transaction left open on one row blocked the only writer for the whole statement timeout, and with it every
/// caller.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_somebody_holds_open_keeps_those_who_need_it_and_others_for_a_moment_only() {
    let lock_timeout = Duration::from_millis(400);
    let options = PostgresOptions { writers: 1, lock_timeout, ..options() };
    let store = Arc::new(open(&options).await);
    issue(&*store, 1).await.expect("an entry");
    let mut other = other(&options).await;
    let insert = "insert into accounts (namespace, vault, account, standing, overdraft)
        values ('default', 'main', 'a', 'open', 'deny')";
    other.execute(insert).await.expect("an account");
    other.execute("begin; update accounts set overdraft = 'allow' where account = 'a'").await.expect("a lock");
    let start = Instant::now();
    let claim = |store: Arc<PostgresStore>| async move {
        let (saga, plan) = (token(), freezing(&["a"]));
        store.write(vec![begin(saga, &plan), Change::Claim(saga, plan), Change::Abort(saga)]).await
    };
    let stuck = tokio::spawn(claim(Arc::clone(&store)));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(issue(&*store, 2).await, Ok(true));
    let busy = Err(StoreError::Busy("a row stayed locked too long"));
    assert_eq!(stuck.await.expect("no panic"), busy);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert_eq!(claim(Arc::clone(&store)).await, busy);
    other.execute("rollback").await.expect("no lock");
    assert_eq!(claim(Arc::clone(&store)).await, Ok(vec![1; 3]));
    assert_eq!(total(&*store).await, 3);
    store.close().await;
}

/// A batch that timed out was retried one by one. A hundred callers then waited ten seconds each, and nothing else was
/// written.
#[tokio::test(flavor = "multi_thread")]
async fn what_took_too_long_together_is_not_tried_again_one_by_one() {
    let statement_timeout = Duration::from_millis(500);
    let options = PostgresOptions { writers: 1, statement_timeout, ..options() };
    let store = Arc::new(open(&options).await);
    issue(&*store, 1).await.expect("an entry");
    let mut other = other(&options).await;
    other.execute("begin; lock table entries in exclusive mode").await.expect("a lock");
    let start = Instant::now();
    let calls = (0..40).map(|_| {
        let store = Arc::clone(&store);
        tokio::spawn(async move { issue(&*store, 1).await })
    });
    for call in calls.collect::<Vec<_>>() {
        let late = call.await.expect("no panic");
        assert_eq!(late, Err(StoreError::Busy("the statement timed out")));
    }
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    other.execute("rollback").await.expect("no lock");
    assert_eq!(total(&*store).await, 1);
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_the_database_refuses_takes_no_other_down() {
    let options = PostgresOptions { writers: 1, ..options() };
    let store = Arc::new(open(&options).await);
    store.write(vec![Change::OpenVault(home())]).await.expect("a vault");
    let mut other = other(&options).await;
    other.execute("begin; lock table entries in exclusive mode").await.expect("a lock");
    one_is_refused(Arc::clone(&store) as _, other.execute("rollback"), "23514").await;
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_is_tried_again() {
    let options = options();
    let store = Arc::new(open(&options).await);
    let mut other = other(&options).await;
    let insert = "insert into accounts (namespace, vault, account, standing, overdraft)
        values ('default', 'main', 'a', 'open', 'deny'), ('default', 'main', 'b', 'open', 'deny')";
    other.execute(insert).await.expect("accounts");
    // A long deadlock timeout makes the store the session that detects the deadlock and fails.
    other.execute("set deadlock_timeout to '1min'").await.expect("a setting");
    other.execute("begin; select from accounts where account = 'b' for update").await.expect("a lock");
    let (saga, plan) = (token(), freezing(&["a", "b"]));
    let claim = tokio::spawn({
        let (store, steps) = (Arc::clone(&store), vec![begin(saga, &plan), Change::Claim(saga, plan)]);
        async move { store.write(steps).await }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    // Each waits for the other.
    let crossing = other.execute("select from accounts where account = 'a' for update").await;
    crossing.expect("the store to be the one that fails");
    other.execute("commit").await.expect("no lock");
    assert_eq!(claim.await.expect("no panic"), Ok(vec![1, 2]));
    assert!(store.record(FindRecord::Gate(saga.gate)).await.expect("a store that answers").is_some());
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_start_at_once_make_the_schema_once() {
    let options = options();
    let stores = (0..4).map(|_| {
        let options = options.clone();
        tokio::spawn(async move { open(&options).await })
    });
    for store in stores.collect::<Vec<_>>() {
        store.await.expect("no panic").close().await;
    }
    let mut other = other(&options).await;
    let insert = "insert into earmark_schema (version) values (99)";
    other.execute(insert).await.expect("one row of each version, and room for another");
    let error = PostgresStore::open(&url(), options).await.err().expect("a refusal").to_string();
    assert!(error.contains("version 99") && error.contains("use the Earmark that wrote it"), "{error}");
}
