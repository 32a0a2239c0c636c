//! Recovery of a dead process's sagas next to unreadable ones.

use std::sync::{Arc, OnceLock};

use crate::support::{fill, namespace, vault};
use earmark_admission::{Credits, SystemClock};
use earmark_core::UnixMs;
use earmark_credits::conformance::{sample_plan, server};
use earmark_credits::{
    Change, Filter, GateId, Options, OwnerId, Plan, PostgresOptions, PostgresStore, Record, RecordPage, Records,
    ReservationId, SagaCredits, SagaToken, SqliteOptions, SqliteStore, Store,
};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use sqlx::postgres::PgConnection;
use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Connection, Executor};

/// More than one page of recovery.
const UNREADABLE: u64 = 70;
const READABLE: u64 = 70;
const BEGUN_AT_MS: u64 = 1_700_000_000_000;

fn record(number: u64) -> Record {
    let id = u128::from(number) + 1;
    let token = SagaToken { gate: GateId(id), rid: ReservationId(id << 20), owner: OwnerId(9) };
    let plan = Arc::new(Plan { sequence_claim: None, claims: vec![], ..sample_plan() });
    Record { token, lease: None, begun_at: UnixMs::new(BEGUN_AT_MS + number), plan }
}

async fn left(store: &dyn Store) -> Records {
    let filter = Filter::Expired { except: OwnerId(1), since: UnixMs::new(BEGUN_AT_MS) };
    store.records(filter, RecordPage::first(1_000)).await.expect("a store that answers")
}

/// A dead process left sagas, and the older ones are unreadable.
async fn leave(store: &dyn Store) {
    for number in 0..UNREADABLE + READABLE {
        let begun = store.write(vec![Change::Begin(Arc::new(record(number)))]).await;
        assert_eq!(begun, Ok(vec![1]));
    }
}

/// The metrics recorder of this test process.
fn measured() -> &'static PrometheusHandle {
    static MEASURED: OnceLock<PrometheusHandle> = OnceLock::new();
    MEASURED.get_or_init(|| PrometheusBuilder::new().install_recorder().expect("the only recorder"))
}

/// Recovery stopped at the first record that it could not read, such as one that a newer version wrote before a
/// rollback. No saga of a dead process was finished again, and no process could start.
async fn looks_after_the_others(store: Arc<dyn Store>) {
    let measured = measured();
    let before = left(&*store).await;
    assert_eq!((before.unread.len() as u64, before.found.len() as u64), (UNREADABLE, READABLE));
    let clock = Arc::new(SystemClock::new());
    let started = SagaCredits::start(Arc::clone(&store), clock, Options::default()).await;
    let credits = started.expect("a store that is served");
    let after = left(&*store).await;
    assert_eq!((after.unread.len() as u64, after.found), (UNREADABLE, vec![]));
    assert!(after.unread[0].why.to_string().contains("version 99"), "{:?}", after.unread[0]);
    // Again, as it happens every second.
    credits.maintain().await.expect("a store that answers");
    assert_eq!(credits.ready(), Ok(()));
    let text = measured.render();
    assert!(text.contains(&format!("\nearmark_credit_stuck_sagas {UNREADABLE}\n")), "{text}");
    fill(&credits, 2).await;
    let audit = credits.audit(namespace(), vault()).await.expect("a store that answers");
    assert!(audit.balanced, "{audit:?}");
    credits.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_in_sqlite_that_cannot_be_read_keeps_nobody_from_the_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("credits.db");
    let store = SqliteStore::open(&path, SqliteOptions::default()).await.expect("a store");
    leave(&store).await;
    let mut other = SqliteConnection::connect(&format!("sqlite:{}", path.display())).await.expect("a file");
    let damage = format!(
        "update sagas set plan = replace(plan, '\"version\":1', '\"version\":99') where begun_at_ms < {}",
        BEGUN_AT_MS + UNREADABLE
    );
    other.execute(AssertSqlSafe(damage)).await.expect("a change by hand");
    looks_after_the_others(Arc::new(store)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_in_postgresql_that_cannot_be_read_keeps_nobody_from_the_others() {
    let url = server::shared().expect("a server");
    let schema = format!("t{}", ulid::Ulid::generate()).to_ascii_lowercase();
    let options = PostgresOptions { schema: schema.clone(), ..PostgresOptions::default() };
    let store = PostgresStore::open(&url, options).await.expect("a store");
    leave(&store).await;
    let mut other = PgConnection::connect(&url).await.expect("a connection");
    let damage = format!(
        "update {schema}.sagas set plan = replace(plan::text, '\"version\":1', '\"version\":99')::json
         where begun_at_ms < {}",
        BEGUN_AT_MS + UNREADABLE
    );
    other.execute(AssertSqlSafe(damage)).await.expect("a change by hand");
    looks_after_the_others(Arc::new(store)).await;
}
