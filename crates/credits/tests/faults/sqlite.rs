//! A file that other processes use too.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use earmark_admission::{Clock, ManualClock, SystemClock};
use earmark_credits::{Change, Options, SagaCredits, SqliteOptions, SqliteStore, Store, StoreError};
use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection, Executor};

use super::helpers::{home, issue, issuing, one_is_refused, record, token, total};

const AMOUNTS: i128 = 20;

async fn open(path: &Path, busy_timeout: Duration) -> SqliteStore {
    let options = SqliteOptions { busy_timeout, ..SqliteOptions::default() };
    SqliteStore::open(path, options).await.expect("a store")
}

async fn other(path: &Path) -> SqliteConnection {
    SqliteConnection::connect(&format!("sqlite:{}", path.display())).await.expect("a connection")
}

#[tokio::test(flavor = "multi_thread")]
async fn two_stores_on_one_file_do_not_disturb_each_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("credits.db");
    // Both create the tables; one of them finds them.
    let (first, second) = tokio::join!(open(&path, Duration::from_secs(30)), open(&path, Duration::from_secs(30)));
    let stores = [Arc::new(first), Arc::new(second)];
    let calls = (0..AMOUNTS).map(|amount| {
        let store = Arc::clone(&stores[usize::from(amount % 2 == 0)]);
        tokio::spawn(async move { issue(&*store, amount + 1).await })
    });
    for call in calls.collect::<Vec<_>>() {
        assert_eq!(call.await.expect("no panic"), Ok(true));
    }
    for store in stores {
        assert_eq!(total(&*store).await, AMOUNTS * (AMOUNTS + 1) / 2);
        store.close().await;
    }
}

/// Each process had its own clock, which starts at the wall clock and follows it slowly. After the wall clock was set
/// by more than a few seconds, an older and a newer process took each other for dead, and holds ended early for one of
/// them.
#[tokio::test(flavor = "multi_thread")]
async fn processes_on_one_file_go_by_one_clock() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("credits.db");
    let store: Arc<dyn Store> = Arc::new(open(&path, Duration::from_secs(5)).await);
    // A process that started when the wall clock was two days ahead.
    let wrong = ManualClock::at(wall_ms() + 2 * 24 * 60 * 60 * 1_000);
    let options = || Options { heartbeat: Duration::from_secs(3_600), ..Options::default() };
    let start = async |clock: Arc<dyn Clock>| {
        let started = SagaCredits::start(Arc::clone(&store), clock, options()).await;
        started.expect("a store that answers")
    };
    let (ahead, right) = (start(wrong).await, start(Arc::new(SystemClock::new())).await);
    let mut other = other(&path).await;
    for credits in [&ahead, &right] {
        let heard = "select heartbeat_at_ms from owners where owner = ?";
        let query = sqlx::query_scalar(heard).bind(credits.owner().to_string());
        let heard_at_ms: i64 = query.fetch_one(&mut other).await.expect("a sign of life");
        assert!(heard_at_ms.unsigned_abs().abs_diff(wall_ms()) < 60_000, "{heard_at_ms}");
    }
}

fn wall_ms() -> u64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    u64::try_from(since_epoch.expect("a clock").as_millis()).expect("a time")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_another_process_holds_is_busy_and_nothing_was_done() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("credits.db");
    let store = open(&path, Duration::from_millis(50)).await;
    issue(&store, 1).await.expect("an entry");
    let mut other = other(&path).await;
    other.execute("begin immediate").await.expect("a lock");
    assert_eq!(issue(&store, 2).await, Err(StoreError::Busy("another process has locked the file")));
    assert_eq!(total(&store).await, 1);
    other.execute("rollback").await.expect("no lock");
    issue(&store, 4).await.expect("an entry");
    assert_eq!(total(&store).await, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_the_file_refuses_takes_no_other_down() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("credits.db");
    let store = Arc::new(open(&path, Duration::from_secs(5)).await);
    let mut other = other(&path).await;
    other.execute("begin immediate").await.expect("a lock");
    one_is_refused(store, other.execute("rollback"), "CHECK").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_a_later_version_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("credits.db");
    open(&path, Duration::from_secs(5)).await.close().await;
    let insert = "insert into earmark_schema (version) values (99)";
    other(&path).await.execute(insert).await.expect("a row");
    let error = SqliteStore::open(&path, SqliteOptions::default()).await.err().expect("a refusal").to_string();
    assert!(error.contains("version 99") && error.contains("use the Earmark that wrote it"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_file_of_earmark_is_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("notes.txt");
    let text = "these are my notes, and no database at all\n".repeat(100);
    std::fs::write(&path, &text).expect("a file");
    assert!(SqliteStore::open(&path, SqliteOptions::default()).await.is_err());
    assert_eq!(std::fs::read_to_string(&path).expect("a file"), text);
    let nowhere = folder.path().join("no/such/folder/credits.db");
    assert!(matches!(SqliteStore::open(&nowhere, SqliteOptions::default()).await.err(), Some(StoreError::Refused(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_store_has_made_what_it_took_and_takes_no_more() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("credits.db");
    let store = Arc::new(open(&path, Duration::from_secs(5)).await);
    let call = |amount| {
        let token = token();
        let (store, plan) = (Arc::clone(&store), issuing(token, amount));
        async move { store.commit(record(token, &plan)).await }
    };
    call(1).await.expect("an issue");
    let calls: Vec<_> = (2..=10).map(|amount| (amount, tokio::spawn(call(amount)))).collect();
    tokio::task::yield_now().await;
    store.close().await;
    let mut made = 1;
    for (amount, call) in calls {
        match call.await.expect("no panic") {
            Ok(_) => made += amount,
            Err(error) => assert_eq!(error, StoreError::Busy("closed")),
        }
    }
    assert_eq!(call(11).await, Err(StoreError::Busy("closed")));
    assert_eq!(store.write(vec![Change::OpenVault(home())]).await, Err(StoreError::Busy("closed")));
    assert_eq!(total(&open(&path, Duration::from_secs(5)).await).await, made);
}
