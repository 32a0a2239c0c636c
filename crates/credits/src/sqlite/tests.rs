use earmark_admission::CreditCursor;
use sqlx::Executor;

use super::change::Totals;
use super::*;
use crate::conformance::{a_list_that_is_made_again_changes_nothing_more, sample_plan};
use crate::id::OwnerId;
use crate::model::{AssetKey, ClientKey, Plan, Record, SagaToken};
use crate::store::PostingQuery;
use script::Script;

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_every_earlier_version_is_brought_up_to_date() {
    let folder = tempfile::tempdir().expect("a folder");
    for version in 0..=migrate::VERSIONS.len() {
        let path = folder.path().join(format!("{version}.db"));
        let mut connection = connect(&path, &SqliteOptions::default()).await.expect("a connection");
        migrate::migrate(&mut connection, version).await.expect("an earlier version");
        let is_grown = (1..migrate::VERSIONS.len()).contains(&version);
        if is_grown {
            let body = crate::document::body_to_json(&sample_plan().entries[0].body).replace('\'', "''");
            let sql = format!(
                "with recursive n (n) as (select 250 union all select n - 1 from n where n > 1)
                 insert into entries (namespace, vault, number, gate, place, at_ms, kind, body)
                 select 'past', 'v' || n % 3, n, 'p' || n, 0, n, 'transaction', '{body}' from n"
            );
            connection.execute(sqlx::AssertSqlSafe(sql)).await.expect("entries of before");
        }
        connection.close().await.expect("a close");
        let store = SqliteStore::open(&path, SqliteOptions::default()).await.expect("a store");
        a_list_that_is_made_again_changes_nothing_more(&store).await;
        let page = store.transactions("past".parse().ok(), CreditCursor::default(), 250).await;
        let numbers: Vec<u64> = page.expect("a page").found.iter().map(|found| found.number).collect();
        assert_eq!(numbers, if is_grown { (1..=250).collect::<Vec<_>>() } else { vec![] });
        store.close().await;
        let mut connection = connect(&path, &SqliteOptions::default()).await.expect("a connection");
        for view in ["balances", "live_holds", "history", "sagas_under_way"] {
            let sql = sqlx::AssertSqlSafe(format!("select * from {view}"));
            let rows = sqlx::query(sql).fetch_all(&mut connection).await.expect("a view");
            let is_used = view == "balances" || view == "history";
            assert_eq!(!rows.is_empty(), is_used, "{view}");
        }
    }
}

fn survey_of(plan: &crate::model::Plan) -> Survey {
    let account = plan.inputs[0].account.clone();
    let asset = plan.inputs[0].asset.clone();
    let client = ClientKey {
        home: account.home.clone(),
        ..plan.sequence_claim.clone().expect("a sequence_claim").client
    };
    let assets = vec![AssetKey { home: account.home.clone(), asset: asset.clone() }];
    let posting_set = PostingQuery { account: account.clone(), asset, largest: 4, smallest: 4, count_max: 9 };
    Survey { accounts: vec![account], posting_sets: vec![posting_set], client: Some(client), assets }
}

/// Of a table that grows for ever nothing is looked for row by row, whatever a saga asks.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_a_saga_asks_reads_a_whole_table() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("credits.db");
    SqliteStore::open(&path, SqliteOptions::default()).await.expect("a store").close().await;
    let mut connection = connect(&path, &SqliteOptions::default()).await.expect("a connection");
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
        Change::Record(token, of()),
        Change::Abort(token),
        Change::Release(rid),
        Change::Unclaim(rid),
        Change::End(token),
        Change::TakeOver { token, to: owner, expired_since: UnixMs::new(1) },
        Change::Heartbeat(owner, UnixMs::new(1)),
        Change::Leave(owner),
    ];
    for (place, change) in changes.iter().enumerate() {
        script.change(place, change, &Totals::new());
    }
    check(script, &mut connection, 40).await;
    let whole = Plan { claims: vec![], ..sample_plan() };
    let record = Record { token, lease: None, begun_at: UnixMs::new(1), plan: whole.into() };
    for script in commit::scripts(&[&record]) {
        check(script, &mut connection, 6).await;
    }
}

/// Whether a step of a plan goes through a table that grows for ever: all of it, or all that one namespace or vault has there.
/// What is pending at any time is little, so its index may be read as a whole.
fn reads_all(step: &str) -> bool {
    let growing = [
        "postings",
        "p",
        "entries",
        "e",
        "changes",
        "c",
        "transactions",
        "accounts",
        "a",
        "clients",
        "sagas",
    ];
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

/// Reads that no saga waits for, with their tables of the same growing kind. A lease was looked for among all entries of its
/// namespace once.
#[tokio::test(flavor = "multi_thread")]
async fn reads_of_leases_and_histories_use_their_indexes() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("credits.db");
    SqliteStore::open(&path, SqliteOptions::default()).await.expect("a store").close().await;
    let mut connection = connect(&path, &SqliteOptions::default()).await.expect("a connection");
    let input = &sample_plan().inputs[0];
    let funds = || survey::funds_script(&input.account, UnixMs::new(1));
    let spendable = || survey::spendable_script(&input.account, &input.asset, UnixMs::new(1));
    // Nobody knows how many rows there are; then it is known that there are none.
    for knowledge in ["select 1", "analyze"] {
        connection.execute(knowledge).await.expect("statistics");
        for sql in read::QUERIES.into_iter().chain([log::TRANSACTIONS]) {
            let explain = sqlx::AssertSqlSafe(format!("explain query plan {sql}"));
            for row in sqlx::query(explain).fetch_all(&mut connection).await.expect("a plan") {
                let plan: String = sqlx::Row::get(&row, "detail");
                assert!(!reads_all(&plan), "{plan} in {sql}");
            }
        }
        check(funds(), &mut connection, 2).await;
        check(spendable(), &mut connection, 2).await;
        // What is held for longer is not read.
        let plans = spendable().explain(&mut connection).await;
        assert!(plans.iter().any(|(_, plan)| plan.contains("ends_at_ms<?")), "{plans:?}");
    }
}

/// What was applied once is not applied again when its text changes: a change needs a version of its own.
#[test]
fn no_version_of_the_schema_is_changed_afterwards() {
    let sums = migrate::VERSIONS.map(|(_, sql)| crate::sql::checksum(sql));
    assert_eq!(sums, [0x1b34_8286_6bed_9d8c, 0x6844_2e69_4ee9_136a, 0xfe12_7a39_90e4_441b]);
}
