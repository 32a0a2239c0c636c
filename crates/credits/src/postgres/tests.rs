use earmark_admission::CreditCursor;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Executor, Row as _};

use super::*;
use crate::conformance::{a_list_that_is_made_again_changes_nothing_more, sample_plan, server};
use crate::id::{GateId, OwnerId, ReservationId};
use crate::model::{Plan, SagaToken};
use crate::sql::store;
use crate::store::{PostingQuery, Store, TransactionQuery};

fn url() -> String {
    server::shared().expect("a server")
}

fn options() -> PostgresOptions {
    let schema = format!("t{}", ulid::Ulid::generate()).to_ascii_lowercase();
    PostgresOptions { schema, keeps_time: false, ..PostgresOptions::default() }
}

/// The views are for operators, so Earmark itself would not notice a broken one.
#[tokio::test(flavor = "multi_thread")]
async fn every_view_can_be_read() {
    let store = PostgresStore::open(&url(), options()).await.expect("a store");
    a_list_that_is_made_again_changes_nothing_more(&store).await;
    let mut pooled = store.database.readers.acquire().await.expect("a connection");
    for view in ["balances", "grants", "live_holds", "history", "sagas_under_way"] {
        let sql = AssertSqlSafe(format!("select * from {view}"));
        let rows = sqlx::query(sql).fetch_all(&mut pooled.connection).await.expect("a view");
        let is_used = view == "balances" || view == "history";
        assert_eq!(!rows.is_empty(), is_used, "{view}");
    }
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_promised_waits_for_the_disk_also_where_a_site_has_turned_that_off() {
    let lax: PgConnectOptions = url().parse().expect("a URL");
    for (of_site, expected) in [("off", "on"), ("local", "local")] {
        let lax = lax.clone().options([("synchronous_commit", of_site)]);
        let store = PostgresStore::connect(lax, options()).await.expect("a store");
        let found = store.database.read("show synchronous_commit", values![]).await.expect("a setting");
        assert_eq!(found[0].get::<String, _>(0), expected);
        store.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_changes_that_a_caller_relies_on_wait_for_the_disk() {
    let plan = Arc::new(sample_plan());
    let token = SagaToken { gate: GateId(3), rid: ReservationId(5), owner: OwnerId(7) };
    let home = plan.entries[0].home.clone();
    let is_durable = |change: Change| ChangeList::of(&[vec![Change::Abort(token), change]]).is_durable;
    assert!(is_durable(Change::Record(token, Arc::clone(&plan))));
    assert!(is_durable(Change::OpenVault(home)));
    assert!(!is_durable(Change::Decide(token, Arc::clone(&plan))));
    assert!(!is_durable(Change::Reserve(token, plan)));
}

/// A plan of one entry without needs.
fn small_plan() -> Arc<Plan> {
    Arc::new(Plan { entries: sample_plan().entries.into_iter().take(1).collect(), ..Plan::default() })
}

fn record(gate: u128, plan: &Arc<Plan>) -> Arc<Record> {
    let rid = ReservationId(ulid::Ulid::generate().0);
    let token = SagaToken { gate: GateId(gate), rid, owner: OwnerId(7) };
    Arc::new(Record { token, lease: None, begun_at: UnixMs::new(1), plan: Arc::clone(plan) })
}

/// The steps of a plan without claims, inputs and outputs, up to its entry.
fn steps(gate: u128, plan: &Arc<Plan>) -> Vec<Change> {
    let (record, of) = (record(gate, plan), || Arc::clone(plan));
    let token = record.token;
    vec![Change::Begin(record), Change::Decide(token, of()), Change::Record(token, of())]
}

/// Commits plans on a connection, inside its transaction.
async fn commit(connection: &mut PgConnection, records: &[Arc<Record>]) -> Vec<bool> {
    let columns = Columns::of(records);
    columns.query().fetch_one(connection).await.expect("no deadlock").get(0)
}

/// Makes changes on a connection, inside its transaction.
async fn write(connection: &mut PgConnection, changes: &[Change]) -> Vec<i64> {
    let changes = ChangeList::of(&[changes.to_vec()]);
    changes.query().fetch_one(connection).await.expect("no deadlock").get(0)
}

/// Twenty thousand finished rows in each table that keeps growing.
const GROWN: &str = "
    insert into vaults (namespace, vault, last_number) values ('default', 'main', 20000);
    insert into postings (id, namespace, vault, account, asset, amount, state, reservation_id)
    select lpad(n::text, 26, '0'), 'default', 'main', 'a' || n % 20, 'usd', n, 'inactive', 'r' || n
    from generate_series(1, 20000) n;
    insert into postings (id, namespace, vault, account, asset, amount, lease, limit_key, ends_at_ms)
    select 'h' || lpad(n::text, 25, '0'), 'default', 'main', 'a' || n % 20, 'usd', n, 'l' || n, 'usd', 1700000000000
    from generate_series(1, 5000) n;
    insert into postings (id, namespace, vault, account, asset, amount)
    select 'f' || lpad(n::text, 25, '0'), 'default', 'main', 'a' || n % 20, 'usd', n
    from generate_series(1, 5000) n;
    insert into postings (id, namespace, vault, account, asset, amount, priority, expires_at_ms)
    select 'e' || lpad(n::text, 25, '0'), 'default', 'main', 'a' || n % 20, 'usd', n, n % 3, 1700000000000
    from generate_series(1, 200) n;
    insert into postings (id, namespace, vault, account, asset, amount, priority, expires_at_ms, plan)
    select 'm' || lpad(n::text, 25, '0'), 'default', 'main', 'a' || n, 'usd', 0, 128, 1800000000000, '{}'
    from generate_series(0, 19) n;
    insert into entries (namespace, vault, number, gate, place, at_ms, wall_ms, kind, lease, body)
    select 'default', 'main', n, 'g' || n, 0, n, n, 'merged', 'l' || n, '{}' from generate_series(1, 20000) n;
    insert into entries (namespace, vault, number, gate, place, at_ms, wall_ms, kind, actor, body, tx)
    select 'default', 'log', n, 't' || n, 0, n, n, 'transaction', 'user:' || n % 9, '{}', (1 + n / 9)::text::xid8
    from generate_series(1, 9000) n;
    insert into changes (namespace, vault, number, account, asset, amount, held)
    select 'default', 'main', n, 'a' || n % 20, 'usd', 1, 0 from generate_series(1, 20000) n;
    analyze vaults, accounts, assets, clients, postings, entries, changes, sagas";

/// Analyzes the tables of one test; other tests have their own.
const ANALYZE: &str = "analyze vaults, accounts, assets, clients, postings, entries, changes, sagas";

/// Transactions of several vaults, inserted in reverse order of time.
fn past() -> String {
    let body = crate::document::to_json(&sample_plan().entries[0].body).replace('\'', "''");
    format!(
        "insert into entries (namespace, vault, number, gate, place, at_ms, wall_ms, kind, body)
         select 'past', 'v' || n % 3, n, 'p' || n, 0, n * 1000, 0, 'transaction',
             '{body}' from generate_series(250, 1, -1) n"
    )
}

/// All transactions, `max` at a time.
fn all(max: usize) -> TransactionQuery {
    TransactionQuery { namespace: None, actor: None, after: CreditCursor::default(), max }
}

/// The numbers of those transactions as listed, `max` at a time.
async fn past_listed(store: &PostgresStore, max: usize) -> Vec<u64> {
    let mut query = TransactionQuery { namespace: "past".parse().ok(), ..all(max) };
    let mut numbers = Vec::new();
    loop {
        let page = store.transactions(query.clone()).await.expect("a page");
        numbers.extend(page.found.iter().map(|found| found.number));
        match page.next {
            Some(next) => query.after = next,
            None => return numbers,
        }
    }
}

/// Transactions are numbered by the server that committed them. Tables restored on another server had numbers that it
/// had not reached, and their transactions were not listed.
#[tokio::test(flavor = "multi_thread")]
async fn transactions_that_were_copied_from_another_server_are_listed_before_new_ones() {
    let options = options();
    let store = PostgresStore::open(&url(), options.clone()).await.expect("a store");
    let mut pooled = store.database.readers.acquire().await.expect("a connection");
    pooled.connection.execute(AssertSqlSafe(past())).await.expect("entries");
    let foreign = "update entries set tx = (9000000000000 + number)::text::xid8 where kind = 'transaction'";
    pooled.connection.execute(foreign).await.expect("numbers of another server");
    pooled.release();
    assert_eq!(past_listed(&store, 100).await, [0_u64; 0]);
    store.close().await;
    let store = PostgresStore::open(&url(), options).await.expect("a store");
    assert_eq!(past_listed(&store, 7).await, (1..=250).rev().collect::<Vec<_>>());
    let page = store.transactions(all(250)).await.expect("a page");
    let last = page.next.expect("the last one");
    assert_eq!((last, page.found.len()), (CreditCursor { commit: 1, given: 100 }, 250));
    let now = commit_number(&store).await;
    assert!(now > 3, "{now}");
    store.close().await;
}

/// The id of a PostgreSQL transaction that begins now.
async fn commit_number(store: &PostgresStore) -> u64 {
    let query = sqlx::query("select pg_current_xact_id()::text");
    let found =
        store.database.rows(&store.database.readers, query).await.map_err(|failed| failed.error).expect("a number");
    found[0].get::<String, _>(0).parse().expect("a number")
}

/// A commit that began first and ended last would appear among transactions that were already listed. A reader that
/// stops at a transaction it knows would miss it.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_began_first_and_ended_last_is_not_lost_by_those_who_read_meanwhile() {
    let store = PostgresStore::open(&url(), options()).await.expect("a store");
    let plan = |vault: &str| {
        let mut plan = Plan::clone(&small_plan());
        plan.entries[0].home.vault = vault.parse().expect("a vault");
        Arc::new(plan)
    };
    let read = async || {
        let page = store.transactions(all(9)).await.expect("a page");
        page.found.iter().map(|found| found.home.vault.to_string()).collect::<Vec<_>>()
    };
    // Other tests use the same server, so commits may be listed late.
    let wait = async |count: usize| {
        loop {
            let names = read().await;
            if names.len() >= count {
                return names;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert_eq!(store.commit(record(1, &plan("before"))).await, Ok(true));
    assert_eq!(wait(1).await, ["before"]);

    let mut slow = store.database.readers.acquire().await.expect("a connection");
    slow.connection.execute("begin; select pg_current_xact_id()").await.expect("a transaction with a number");
    assert_eq!(store.commit(record(2, &plan("fast"))).await, Ok(true));
    for _ in 0..20 {
        assert_eq!(read().await, ["before"]);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(commit(&mut slow.connection, &[record(3, &plan("slow"))]).await, [true]);
    assert_eq!(read().await, ["before"]);
    slow.connection.execute("commit").await.expect("a commit");
    slow.release();
    assert_eq!(wait(3).await, ["fast", "slow", "before"]);
    store.close().await;
}

/// A cursor deep in a long list is found by the index, whatever statistics the query plan was made with.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_the_log_reads_about_as_much_as_it_shows() {
    let store = PostgresStore::open(&url(), options()).await.expect("a store");
    let mut pooled = store.database.readers.acquire().await.expect("a connection");
    let connection = &mut pooled.connection;
    for (name, types, sql) in [
        ("page", "text, bigint, bigint, text", PostgresDatabase::TRANSACTIONS),
        ("page_by", "text, bigint, bigint, text, text", PostgresDatabase::TRANSACTIONS_BY),
    ] {
        let prepare = format!("prepare {name} ({types}) as {sql}");
        connection.execute(AssertSqlSafe(prepare)).await.expect("a statement");
    }
    // Few transactions are of user:rare, and all of them are old.
    let grow = "insert into entries (namespace, vault, number, gate, place, at_ms, wall_ms, kind, body, actor, tx)
        select 'default', 'log', n, 't' || n, 0, n, n, case n % 2 when 0 then 'transaction' else 'hold' end, '{}',
            case when n % 100 = 0 and n < 6000 then 'user:rare' else 'user:often' end,
            (1 + n / 20)::text::xid8 from generate_series(1, 20000) n";
    let calls = ["page('500', 3, 50, 'team')", "page_by('900', 3, 50, 'team', 'user:rare')"];
    for prepare in ["select 1", grow, ANALYZE] {
        connection.execute(AssertSqlSafe(prepare)).await.expect("more rows, or more knowledge of them");
        for call in calls {
            let explain = format!("explain (analyze, timing off, costs off, summary off) execute {call}");
            let rows = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_all(&mut *connection).await.expect("a plan");
            let lines: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
            let after = |line: &str, what: &str| line.split(what).nth(1)?.split(' ').next()?.parse::<u64>().ok();
            let counts: Vec<u64> = lines.iter().filter_map(|line| after(line, "actual rows=")).collect();
            assert!(counts.len() > 2, "{lines:#?}");
            assert!(counts.iter().all(|count| *count <= 70), "{lines:#?}");
            let removed: u64 = lines.iter().filter_map(|line| after(line, "Removed by Filter: ")).sum();
            assert!(removed <= 70, "{lines:#?}");
        }
    }
    pooled.release();
    store.close().await;
}

async fn whole_scans(connection: &mut PgConnection) -> i64 {
    let sql = "select sum(pg_stat_get_xact_numscans(name::regclass))::bigint
        from unnest(array['postings', 'entries', 'changes']) name";
    let row = sqlx::query(sql).fetch_one(connection).await.expect("a count");
    row.get(0)
}

/// PostgreSQL counts the scans of whole tables.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_a_saga_asks_reads_a_whole_table() {
    let store = PostgresStore::open(&url(), options()).await.expect("a store");
    let mut pooled = store.database.readers.acquire().await.expect("a connection");
    let connection = &mut pooled.connection;
    connection.execute("set statement_timeout to 0").await.expect("as long as it takes");
    connection.execute(GROWN).await.expect("rows");
    connection.execute("begin").await.expect("a transaction, in which scans are counted");
    // Earlier work of this connection, such as creating indexes, may still be included.
    let before = whole_scans(connection).await;
    let plan = Arc::new(sample_plan());
    let token = SagaToken { gate: GateId(3), rid: ReservationId(5), owner: OwnerId(7) };
    let begun = Record { token, lease: None, begun_at: UnixMs::new(1), plan: Arc::clone(&plan) };
    let of = || Arc::clone(&plan);
    // Only the account that the plan opens can be claimed here.
    let claims = sample_plan().claims.into_iter().take(1).collect();
    let decided = Plan { needs: vec![], sequence_claim: None, inputs: vec![], claims, ..sample_plan() };
    let changes = [
        Change::Begin(begun.into()),
        Change::Claim(token, of()),
        Change::Reserve(token, of()),
        Change::Decide(token, Arc::new(decided)),
        Change::Finalize(token, of()),
        Change::Create(token, of()),
        Change::Apply(token, of()),
        Change::Record(token, of()),
        Change::Release(token.rid),
        Change::Unclaim(token.rid),
        Change::End(token),
    ];
    // In two calls: within one call the taken rows are not counted again.
    let large = Arc::new(Plan { claims: vec![], ..sample_plan() });
    // More often than PostgreSQL makes a custom plan.
    for round in 0..8 {
        let mut counts = write(connection, &changes[..3]).await;
        counts.extend(write(connection, &changes[3..]).await);
        let committed = commit(connection, &[record(9, &large), record(10 + round, &small_plan())]).await;
        assert_eq!(committed, [false, true], "the large plan needs accounts that do not exist");
        let is_first = i64::from(round == 0);
        assert_eq!((counts[0], counts[3], counts[10]), (1, is_first, is_first), "{counts:?}");
        connection.execute("delete from sagas").await.expect("no saga");
        for (name, question, found) in reads() {
            let rows = question.fetch_all(&mut *connection).await.expect("rows");
            assert_eq!(items(name, &rows), found, "{name}");
        }
    }
    assert_eq!(whole_scans(connection).await, before);
    // The counter works.
    connection.execute("select count(*) from postings where amount = 7").await.expect("a count");
    assert!(whole_scans(connection).await > before);
}

/// A survey of one account.
fn survey() -> Question {
    let plan = sample_plan();
    let (account, asset) = (plan.inputs[0].account.clone(), plan.inputs[0].asset.clone());
    let posting_set = PostingQuery { account: account.clone(), asset, largest: 4, smallest: 4, count_max: 9 };
    let survey = Survey { accounts: vec![account], posting_sets: vec![posting_set], ..Survey::default() };
    let one_account = |question: Question| question.bind(vec!["default"]).bind(vec!["main"]).bind(vec!["a1"]);
    one_account(one_account(sqlx::query(AssertSqlSafe(survey::text(&survey)))))
        .bind(vec!["usd"])
        .bind(vec![4_i64])
        .bind(vec![4_i64])
        .bind(vec![9_i64])
}

type Question = sqlx::query::Query<'static, sqlx::Postgres, sqlx::postgres::PgArguments>;

/// The rows of a read. A survey has its postings as lists in one row, so it counts those.
fn items(name: &str, rows: &[PgRow]) -> usize {
    if name != "survey" {
        return rows.len();
    }
    let lists = rows.iter().flat_map(|row| ["a", "b", "c", "d"].map(|column| row.get::<Option<String>, _>(column)));
    lists.flatten().map(|list| list.split(',').count()).sum()
}

/// Every read, and the rows or postings it finds in the grown tables.
fn reads() -> [(&'static str, Question, usize); 16] {
    let by_lease = |sql| sqlx::query(sql).bind("default").bind("l7");
    let of_account = |query: Question| query.bind("default").bind("main").bind("a1");
    let page = |sql| sqlx::query(sql).bind("700").bind(1_i64).bind(10_i64).bind("default");
    let past = i64::MAX / 1_000_000;
    let first = |sql| sqlx::query(sql).bind(past).bind(0_i64).bind("").bind(10_i64);
    [
        ("entries", sqlx::query(store::ENTRIES).bind("g7"), 1),
        ("lease", by_lease(store::LEASE), 1),
        ("held", by_lease(store::HELD), 1),
        ("log", page(PostgresDatabase::TRANSACTIONS), 10),
        ("log of an actor", page(PostgresDatabase::TRANSACTIONS_BY).bind("user:7"), 10),
        ("history", of_account(sqlx::query(PostgresDatabase::HISTORY)).bind(100_i64).bind(10_i64), 10),
        ("newest", of_account(sqlx::query(PostgresDatabase::HISTORY_NEWEST)).bind(700_i64).bind(10_i64), 10),
        ("assets", of_account(sqlx::query(store::ASSETS_OF)).bind(10_i64), 1),
        ("due", first(store::DUE), 10),
        ("due of an account", of_account(first(store::DUE_OF)), 10),
        ("funds", of_account(sqlx::query(PostgresDatabase::FUNDS)).bind(1_i64).bind(1_i64), 2),
        ("spendable", of_account(sqlx::query(PostgresDatabase::SPENDABLE)).bind(1_i64).bind("usd").bind(1_i64), 1),
        ("expiring", first(store::EXPIRING), 10),
        ("expiring of an account", of_account(sqlx::query(store::EXPIRING_OF).bind(past)).bind(10_i64), 10),
        ("plan mark", of_account(sqlx::query(store::PLAN_MARK)), 1),
        // Ten grants and a plan mark, the four largest and the four smallest postings.
        ("survey", survey(), 19),
    ]
}

/// The row of a vault was locked with the first entry of a call. A call that held it waited for a gate of another call,
/// which waited for the row. PostgreSQL ended one of them after a second, in which no other call could use the vault.
#[tokio::test(flavor = "multi_thread")]
async fn calls_about_the_same_gate_wait_for_the_vault_first_and_so_not_for_each_other() {
    for is_late_whole in [false, true] {
        let store = PostgresStore::open(&url(), options()).await.expect("a store");
        store.write(vec![Change::OpenVault(small_plan().entries[0].home.clone())]).await.expect("a vault");
        let mut ahead = store.database.readers.acquire().await.expect("a connection");
        ahead.connection.execute("begin").await.expect("a transaction");
        assert_eq!(commit(&mut ahead.connection, &[record(1, &small_plan())]).await, [true]);
        let mut late = store.database.readers.acquire().await.expect("another connection");
        let pid = sqlx::query("select pg_backend_pid()").fetch_one(&mut late.connection).await;
        let pid: i32 = pid.expect("a pid").get(0);
        let waiting = async {
            match is_late_whole {
                true => {
                    let committed = commit(&mut late.connection, &[record(2, &small_plan())]).await;
                    assert_eq!(committed, [false], "the entry exists");
                }
                false => {
                    let counts = write(&mut late.connection, &steps(2, &small_plan())).await;
                    assert_eq!(counts, [1, 0, 0], "the entry exists");
                }
            }
        };
        let finish = async {
            let is_waiting = "select count(*) from pg_locks where pid = $1 and not granted";
            loop {
                let locks = sqlx::query(is_waiting).bind(pid).fetch_one(&mut ahead.connection).await;
                if locks.expect("locks").get::<i64, _>(0) > 0 {
                    break;
                }
            }
            assert_eq!(commit(&mut ahead.connection, &[record(2, &small_plan())]).await, [true]);
            ahead.connection.execute("commit").await.expect("a commit");
        };
        tokio::join!(waiting, finish);
    }
}

/// The hold of a lease and the record of its end share a gate, but may be in two vaults. The second commit waited at
/// the index of entries and was refused for good.
#[tokio::test(flavor = "multi_thread")]
async fn one_gate_in_two_vaults_at_once_happens_once_and_is_no_error() {
    let store = PostgresStore::open(&url(), options()).await.expect("a store");
    let elsewhere = |mut plan: Plan| {
        plan.entries[0].home.vault = "elsewhere".parse().expect("a vault");
        Arc::new(plan)
    };
    let there = elsewhere(Plan::clone(&small_plan()));
    for (gate, is_whole) in [(1, true), (2, false)] {
        let mut pooled = store.database.readers.acquire().await.expect("a connection");
        pooled.connection.execute("begin").await.expect("a call");
        assert_eq!(commit(&mut pooled.connection, &[record(gate, &small_plan())]).await, [true]);
        let second = async {
            match is_whole {
                true => assert_eq!(store.commit(record(gate, &there)).await, Ok(false)),
                false => assert_eq!(store.write(steps(gate, &there)).await, Ok(vec![1, 0, 0])),
            }
        };
        let ahead = async {
            let is_waiting = "select count(*) from pg_stat_activity
                where wait_event = 'transactionid' and pg_blocking_pids(pid) @> array[pg_backend_pid()]";
            loop {
                let row = sqlx::query(is_waiting).fetch_one(&mut pooled.connection).await.expect("a count");
                if row.get::<i64, _>(0) > 0 {
                    break;
                }
            }
            pooled.connection.execute("commit").await.expect("a commit");
            pooled.release();
        };
        tokio::join!(second, ahead);
        assert_eq!(store.entries(GateId(gate)).await.map(|entries| entries.len()), Ok(1));
    }
    store.close().await;
}

/// Index entries that this transaction has read.
async fn places_read(connection: &mut PgConnection) -> i64 {
    let read = "select sum(pg_stat_get_xact_tuples_returned(indexrelid))::bigint from pg_index
        where indrelid in ('postings'::regclass, 'accounts'::regclass, 'entries'::regclass, 'vaults'::regclass,
            'changes'::regclass)";
    sqlx::query(read).fetch_one(connection).await.expect("a count").get(0)
}

/// For a table without rows PostgreSQL planned a scan, and the writing connection kept that plan: with two hundred
/// thousand postings a batch took twenty seconds.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_was_planned_for_empty_tables_reads_no_whole_table_when_they_have_grown() {
    let store = PostgresStore::open(&url(), options()).await.expect("a store");
    let mut pooled = store.database.readers.acquire().await.expect("a connection");
    let connection = &mut pooled.connection;
    connection.execute("set statement_timeout to 0").await.expect("as long as it takes");
    connection.execute(ANALYZE).await.expect("knowledge of empty tables");
    let plan = Arc::new(Plan { claims: vec![], sequence_claim: None, ..sample_plan() });
    let commit_both = async |connection: &mut PgConnection, gate| {
        let committed = commit(connection, &[record(gate, &plan), record(gate + 1, &small_plan())]).await;
        assert_eq!(committed, [false, true]);
    };
    for gate in 0..8 {
        commit_both(connection, 1_000 + 2 * gate).await;
    }
    // Without statistics of the new rows.
    let grown = GROWN
        .replace(ANALYZE, "select 1")
        .replace("insert into vaults", "insert into assets")
        .replace(
            "(namespace, vault, last_number) values ('default', 'main', 20000)",
            "(namespace, vault, asset, issued, retired) values ('default', 'main', 'eur', 0, 0)",
        )
        .replace("'main', n, 'g'", "'grown', n, 'g'");
    connection.execute(AssertSqlSafe(grown)).await.expect("rows");
    let accounts = "insert into accounts (namespace, vault, account, standing, overdraft)
        select 'default', 'main', 'n' || n, 'open', 'deny' from generate_series(1, 20000) n";
    connection.execute(accounts).await.expect("accounts");
    connection.execute("begin").await.expect("a transaction, in which reads are counted");
    let before = places_read(connection).await;
    commit_both(connection, 3_000).await;
    let after = places_read(connection).await;
    assert!(after - before < 1_000, "{before} {after}");
    // The counter works.
    connection.execute("select count(amount) from postings where id > ''").await.expect("all of them");
    assert!(places_read(connection).await - after > 20_000);
    connection.execute("commit").await.expect("an end");
}

/// For an empty table every index is equally good, so a lease was looked up among all entries of its namespace for as
/// long as the connection kept its plan.
#[tokio::test(flavor = "multi_thread")]
async fn reads_read_about_what_they_show_soon_after_the_tables_have_grown() {
    let options = PostgresOptions { plans_for: Duration::ZERO, ..options() };
    let store = PostgresStore::open(&url(), options).await.expect("a store");
    let mut pooled = store.database.readers.acquire().await.expect("a connection");
    let connection = &mut pooled.connection;
    connection.execute("set statement_timeout to 0").await.expect("as long as it takes");
    connection.execute(ANALYZE).await.expect("knowledge of empty tables");
    for _ in 0..8 {
        for (_, question, _) in reads() {
            question.fetch_all(&mut *connection).await.expect("a plan, and hardly a row");
        }
    }
    // Without statistics of the new rows.
    connection.execute(AssertSqlSafe(GROWN.replace(ANALYZE, "select 1"))).await.expect("rows");
    pooled.release();
    for knowledge in ["select 1", ANALYZE] {
        // The same connection, after its plans have expired.
        let mut pooled = store.database.readers.acquire().await.expect("a connection");
        let connection = &mut pooled.connection;
        connection.execute(knowledge).await.expect("knowledge of them");
        connection.execute("begin").await.expect("a transaction, in which reads are counted");
        for (name, question, found) in reads() {
            let before = (whole_scans(connection).await, places_read(connection).await);
            let rows = question.fetch_all(&mut *connection).await.expect("rows");
            assert_eq!(items(name, &rows), found, "{name}");
            assert_eq!(whole_scans(connection).await, before.0, "{name}");
            // An account has 500 live postings, half of them holds that all end at once. Holds that have not timed out
            // are not read.
            let read = places_read(connection).await - before.1;
            let read_max = match name {
                "funds" | "due of an account" => 600,
                "spendable" => 280,
                _ => 30,
            };
            assert!((1..=read_max).contains(&read), "{name}: {read}, {knowledge}");
        }
        connection.execute("commit").await.expect("an end");
        pooled.release();
    }
    store.close().await;
}
