use sqlx::Executor;

use super::*;
use crate::conformance::{a_list_that_is_made_again_changes_nothing_more, sample_plan};
use crate::id::{GateId, OwnerId, ReservationId};
use crate::model::{AssetKey, ClientKey, Plan, SagaToken};
use crate::sql::store;
use crate::store::{PostingQuery, Renewal, Store};
use script::Script;

/// The views are for operators, so Earmark itself would not notice a broken one.
#[tokio::test(flavor = "multi_thread")]
async fn every_view_can_be_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("credits.db");
    let store = SqliteStore::open(&path, SqliteOptions::default()).await.expect("a store");
    a_list_that_is_made_again_changes_nothing_more(&store).await;
    store.close().await;
    let mut connection = connect(&path, &SqliteOptions::default()).await.expect("a connection");
    for view in ["balances", "grants", "plans", "live_holds", "history", "sagas_under_way"] {
        let sql = sqlx::AssertSqlSafe(format!("select * from {view}"));
        let rows = sqlx::query(sql).fetch_all(&mut connection).await.expect("a view");
        let is_used = view == "balances" || view == "history";
        assert_eq!(!rows.is_empty(), is_used, "{view}");
    }
}

/// A connection to a file with empty tables.
async fn empty_file() -> (tempfile::TempDir, SqliteConnection) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("credits.db");
    SqliteStore::open(&path, SqliteOptions::default()).await.expect("a store").close().await;
    let connection = connect(&path, &SqliteOptions::default()).await.expect("a connection");
    (folder, connection)
}

fn survey_of(plan: &crate::model::Plan) -> Survey {
    let account = plan.inputs[0].account.clone();
    let asset = plan.inputs[0].asset.clone();
    let client =
        ClientKey { home: account.home.clone(), ..plan.sequence_claim.clone().expect("a sequence_claim").client };
    let assets = vec![AssetKey { home: account.home.clone(), asset: asset.clone() }];
    let posting_set = PostingQuery { account: account.clone(), asset, largest: 4, smallest: 4, count_max: 9 };
    Survey { accounts: vec![account], posting_sets: vec![posting_set], client: Some(client), assets }
}

fn renewal(plan: &Plan) -> Renewal {
    let (posting, hold) = plan.inputs.iter().find_map(|input| Some((input, input.hold.clone()?))).expect("a hold");
    Renewal { id: posting.id, read: 0, hold }
}

/// No query of a saga scans a table that keeps growing.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_a_saga_asks_reads_a_whole_table() {
    let (_folder, mut connection) = empty_file().await;
    let plan = std::sync::Arc::new(sample_plan());
    let (rid, owner) = (ReservationId(5), OwnerId(7));
    let token = SagaToken { gate: GateId(3), rid, owner };
    let record = Record { token, lease: None, begun_at: UnixMs::new(1), plan: plan.clone() };
    let of = || std::sync::Arc::clone(&plan);
    let mut script = survey::script(&survey_of(&plan));
    let changes = [
        Change::OpenVault(plan.entries[0].home.clone()),
        Change::Begin(record.into()),
        Change::Claim(token, of()),
        Change::Reserve(token, of()),
        Change::Decide(token, of()),
        Change::Finalize(token, of()),
        Change::Create(token, of()),
        Change::Apply(token, of()),
        Change::Abort(token),
        Change::Release(rid),
        Change::Renew(vec![renewal(&plan)]),
        Change::Unclaim(rid),
        Change::End(token),
        Change::TakeOver { token, to: owner, expired_since: UnixMs::new(1) },
        Change::Heartbeat(owner, UnixMs::new(1)),
        Change::Leave(owner),
    ];
    for (place, change) in changes.iter().enumerate() {
        script.change(place, change);
    }
    check(script, &mut connection, 30).await;
    let whole = Plan { claims: vec![], ..sample_plan() };
    let record = Record { token, lease: None, begun_at: UnixMs::new(1), plan: whole.into() };
    for script in commit::scripts(&[record.into()]) {
        check(script, &mut connection, 6).await;
    }
}

/// Whether a step of a query plan reads a growing table completely, or all its rows of one namespace or vault. The
/// index of pending postings may be scanned: few are pending at any time.
fn reads_all(step: &str) -> bool {
    let growing =
        ["postings", "p", "entries", "e", "changes", "c", "transactions", "accounts", "a", "clients", "sagas"];
    let mut words = step.split(' ');
    let (verb, table) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let is_bound = match verb {
        "SCAN" => step.contains(" VIRTUAL TABLE ") || step.ends_with(" INDEX postings_pending"),
        "SEARCH" => !step.contains("(namespace=?)") && !step.contains("(namespace=? AND vault=?)"),
        _ => true,
    };
    !is_bound && growing.contains(&table)
}

#[test]
fn a_plan_that_goes_through_a_namespace_is_told_from_one_that_looks_something_up() {
    for step in [
        "SCAN postings",
        "SCAN changes USING COVERING INDEX changes_account",
        "SEARCH e USING PRIMARY KEY (namespace=?)",
        "SEARCH c USING PRIMARY KEY (namespace=? AND vault=?) LEFT-JOIN",
    ] {
        assert!(reads_all(step), "{step}");
    }
    for step in [
        "SCAN c VIRTUAL TABLE INDEX 1:",
        "SCAN postings USING INDEX postings_pending",
        "SEARCH v USING PRIMARY KEY (namespace=? AND vault=?)",
        "SEARCH e USING INDEX entries_lease (namespace=? AND lease=?)",
        "USE TEMP B-TREE FOR ORDER BY",
    ] {
        assert!(!reads_all(step), "{step}");
    }
}

async fn check(script: Script, connection: &mut SqliteConnection, steps_min: usize) {
    let plans = script.explain(connection).await;
    assert!(plans.len() > steps_min, "{plans:?}");
    for (sql, plan) in plans {
        assert!(!reads_all(&plan), "{plan} in {sql}");
    }
}

/// Reads of the same growing tables. A lease was once looked up among all entries of its namespace.
#[tokio::test(flavor = "multi_thread")]
async fn reads_of_leases_and_histories_use_their_indexes() {
    let (_folder, mut connection) = empty_file().await;
    let queries = [
        store::ENTRIES,
        store::LEASE,
        store::ASSETS_OF,
        store::HELD,
        store::DUE,
        store::DUE_OF,
        store::GRANTS,
        store::EXPIRING,
        store::EXPIRING_OF,
        store::PLAN_MARK,
        store::ORPHANS,
        SqliteDatabase::HISTORY,
        SqliteDatabase::HISTORY_NEWEST,
        store::ACCOUNTS,
        SqliteDatabase::TRANSACTIONS,
        SqliteDatabase::TRANSACTIONS_BY,
        SqliteDatabase::FUNDS,
        SqliteDatabase::SPENDABLE,
    ];
    // Without statistics, then with statistics of empty tables.
    for knowledge in ["select 1", "analyze"] {
        connection.execute(knowledge).await.expect("statistics");
        for sql in queries {
            let explain = sqlx::AssertSqlSafe(format!("explain query plan {sql}"));
            let steps = sqlx::query(explain).fetch_all(&mut connection).await.expect("a plan");
            let steps: Vec<String> = steps.iter().map(|row| sqlx::Row::get(row, "detail")).collect();
            assert!(!steps.is_empty(), "{sql}");
            assert!(!steps.iter().any(|step| reads_all(step)), "{steps:?} in {sql}");
            // Holds that have not timed out are not read.
            let is_bounded = steps.iter().any(|step| step.contains("ends_at_ms<?"));
            assert!(sql != SqliteDatabase::SPENDABLE || is_bounded, "{steps:?}");
            // Transactions of other actors are not read.
            let is_of_actor = steps.iter().any(|step| step.contains("(actor=? AND rowid<?)"));
            assert!(sql != SqliteDatabase::TRANSACTIONS_BY || is_of_actor, "{steps:?}");
        }
    }
}

/// The file and its companions were readable by every user of the machine.
#[cfg(unix)]
#[tokio::test]
async fn the_file_and_its_companions_are_their_owners() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let [new, old] = ["new.db", "old.db"].map(|name| folder.path().join(name));
    // A link was left alone, and so was the file behind it.
    let (links, linked) = (tempfile::tempdir().unwrap(), folder.path().join("linked.db"));
    std::fs::write(&linked, "").unwrap();
    std::fs::set_permissions(&linked, std::fs::Permissions::from_mode(0o644)).unwrap();
    let link = links.path().join("link.db");
    std::os::unix::fs::symlink(&linked, &link).unwrap();
    let _linked = SqliteStore::open(&link, SqliteOptions::default()).await.unwrap();
    drop(SqliteStore::open(&old, SqliteOptions::default()).await.unwrap());
    for suffix in ["", "-wal", "-shm"] {
        let path = folder.path().join(format!("old.db{suffix}"));
        std::fs::write(&path, std::fs::read(&path).unwrap_or_default()).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    }
    let stores = [SqliteStore::open(&new, SqliteOptions::default()), SqliteStore::open(&old, SqliteOptions::default())];
    for store in stores {
        let _store = store.await.unwrap();
    }
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", entry.file_name());
    }
}
