use earmark_admission::CreditCursor;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Executor, Row};

use super::batch::Batch;
use super::writer::Call;
use super::*;
use crate::conformance::{a_list_that_is_made_again_changes_nothing_more, sample_plan, server};
use crate::id::OwnerId;
use crate::model::{Plan, Record, SagaToken};
use crate::store::PostingQuery;

fn url() -> String {
    server::shared().expect("a server")
}

fn options() -> PostgresOptions {
    let schema = format!("t{}", ulid::Ulid::generate()).to_ascii_lowercase();
    PostgresOptions { schema, keeps_time: false, ..PostgresOptions::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_of_every_earlier_version_is_brought_up_to_date() {
    for version in 0..=migrate::VERSIONS.len() {
        let options = options();
        let database: PgConnectOptions = url().parse().expect("a URL");
        let mut connection = database.connect().await.expect("a connection");
        connection.execute(AssertSqlSafe(options.setup())).await.expect("a setup");
        migrate::migrate(&mut connection, &options.schema, version).await.expect("an earlier version");
        let is_grown = (1..migrate::VERSIONS.len()).contains(&version);
        if is_grown {
            connection.execute(AssertSqlSafe(past())).await.expect("entries of before");
        }
        let store = PostgresStore::open(&url(), options).await.expect("a store");
        a_list_that_is_made_again_changes_nothing_more(&store).await;
        if is_grown {
            let mut listed = past_listed(&store, 90).await;
            // They are listed once all who began before are done, and other tests share the server.
            for _ in 0..400 {
                if !listed.is_empty() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
                listed = past_listed(&store, 90).await;
            }
            assert_eq!(listed, (1..=250).collect::<Vec<_>>());
        }
        store.close().await;
        for view in ["balances", "live_holds", "history", "sagas_under_way"] {
            let sql = AssertSqlSafe(format!("select * from {view}"));
            let rows = sqlx::query(sql).fetch_all(&mut connection).await.expect("a view");
            let is_used = view == "balances" || view == "history";
            assert_eq!(!rows.is_empty(), is_used, "{view}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_promised_waits_for_the_disk_also_where_a_site_has_turned_that_off() {
    let lax: PgConnectOptions = url().parse().expect("a URL");
    for (of_site, expected) in [("off", "on"), ("local", "local")] {
        let lax = lax.clone().options([("synchronous_commit", of_site)]);
        let store = PostgresStore::connect(lax, options()).await.expect("a store");
        let found = store.inner.rows(sqlx::query("show synchronous_commit")).await.expect("a setting");
        assert_eq!(found[0].get::<String, _>(0), expected);
        store.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_batch_that_promises_something_waits_for_the_disk() {
    let plan = Arc::new(sample_plan());
    let token = SagaToken { gate: GateId(3), rid: ReservationId(5), owner: OwnerId(7) };
    let home = plan.entries[0].home.clone();
    let is_promised = |change: Change| Call::of(&[&[Change::Abort(token), change]]).is_promised();
    assert!(is_promised(Change::Record(token, Arc::clone(&plan))));
    assert!(is_promised(Change::OpenVault(home)));
    assert!(!is_promised(Change::Decide(token, Arc::clone(&plan))));
    assert!(!is_promised(Change::Reserve(token, plan)));
    assert!(Call::of(&[&whole(1, &small_plan())]).is_promised());
}

/// A plan of one entry that needs nothing.
fn small_plan() -> Arc<Plan> {
    Arc::new(Plan { entries: sample_plan().entries.into_iter().take(1).collect(), ..Plan::default() })
}

/// All steps of a saga that claims no account.
fn whole(gate: u128, plan: &Arc<Plan>) -> Vec<Change> {
    let rid = ReservationId(ulid::Ulid::generate().0);
    let token = SagaToken { gate: GateId(gate), rid, owner: OwnerId(7) };
    let record = Record { token, lease: None, begun_at: UnixMs::new(1), plan: Arc::clone(plan) };
    let of = || Arc::clone(plan);
    let mut steps = vec![Change::Begin(record.into())];
    if !plan.inputs.is_empty() {
        steps.push(Change::Reserve(token, of()));
    }
    steps.push(Change::Decide(token, of()));
    if !plan.inputs.is_empty() {
        steps.push(Change::Finalize(token, of()));
    }
    if !plan.outputs.is_empty() {
        steps.push(Change::Create(token, of()));
    }
    steps.extend([Change::Record(token, of()), Change::End(token)]);
    steps
}

/// Twenty thousand rows that are over and done with, in each table that grows for ever.
const GROWN: &str = "
    insert into vaults (namespace, vault, last_number) values ('default', 'main', 20000);
    insert into postings (id, namespace, vault, account, asset, amount, state, reservation_id)
    select lpad(n::text, 26, '0'), 'default', 'main', 'a' || n % 20, 'usd', n, 'inactive', 'r' || n
    from generate_series(1, 20000) n;
    insert into postings (id, namespace, vault, account, asset, amount, lease, limit_key, ends_at)
    select 'h' || lpad(n::text, 25, '0'), 'default', 'main', 'a' || n % 20, 'usd', n, 'l' || n, 'usd', now()
    from generate_series(1, 5000) n;
    insert into postings (id, namespace, vault, account, asset, amount)
    select 'f' || lpad(n::text, 25, '0'), 'default', 'main', 'a' || n % 20, 'usd', n
    from generate_series(1, 5000) n;
    insert into entries (namespace, vault, number, gate, place, at, kind, lease, body)
    select 'default', 'main', n, 'g' || n, 0, now(), 'merged', 'l' || n, '{}' from generate_series(1, 20000) n;
    insert into entries (namespace, vault, number, gate, place, at, kind, body, tx)
    select 'default', 'log', n, 't' || n, 0, now(), 'transaction', '{}', (1 + n / 9)::text::xid8
    from generate_series(1, 9000) n;
    insert into changes (namespace, vault, number, account, asset, amount, held)
    select 'default', 'main', n, 'a' || n % 20, 'usd', 1, 0 from generate_series(1, 20000) n;
    analyze vaults, accounts, assets, clients, postings, entries, changes, sagas";

/// What PostgreSQL is told to look at: the tables of one test, for others have theirs beside them.
const ANALYZE: &str = "analyze vaults, accounts, assets, clients, postings, entries, changes, sagas";

/// Transactions of a vault of before they had places, in another order than that of their times.
fn past() -> String {
    let body = crate::document::body_to_json(&sample_plan().entries[0].body).replace('\'', "''");
    format!(
        "insert into entries (namespace, vault, number, gate, place, at, kind, body)
         select 'past', 'v' || n % 3, n, 'p' || n, 0, 'epoch'::timestamptz + n * interval '1 second', 'transaction',
             '{body}' from generate_series(250, 1, -1) n"
    )
}

/// The numbers of those, as they are listed so many at a time.
async fn past_listed(store: &PostgresStore, max: usize) -> Vec<u64> {
    let (namespace, mut after, mut numbers) = ("past".parse().ok(), CreditCursor::default(), Vec::new());
    loop {
        let page = store.transactions(namespace.clone(), after, max).await.expect("a page");
        numbers.extend(page.found.iter().map(|found| found.number));
        match page.next {
            Some(next) => after = next,
            None => return numbers,
        }
    }
}

/// Numbers of transactions are those of the server that made them. Tables that are put back on another, from a dump, had
/// numbers which that one had not reached, and were not listed.
#[tokio::test(flavor = "multi_thread")]
async fn transactions_that_were_copied_from_another_server_are_listed_before_new_ones() {
    let options = options();
    let store = PostgresStore::open(&url(), options.clone()).await.expect("a store");
    let mut pooled = store.inner.pool.acquire().await.expect("a connection");
    pooled.connection.execute(AssertSqlSafe(past())).await.expect("entries");
    let foreign = "update entries set tx = (9000000000000 + number)::text::xid8 where kind = 'transaction'";
    pooled.connection.execute(foreign).await.expect("numbers of another server");
    pooled.release();
    assert_eq!(past_listed(&store, 100).await, [0_u64; 0]);
    store.close().await;
    let store = PostgresStore::open(&url(), options).await.expect("a store");
    assert_eq!(past_listed(&store, 7).await, (1..=250).collect::<Vec<_>>());
    let page = store.transactions(None, CreditCursor::default(), 250).await.expect("a page");
    let last = page.next.expect("the last one");
    assert_eq!((last, page.found.len()), (CreditCursor { commit: 3, given: 50 }, 250));
    let now = commit_number(&store).await;
    assert!(now > 3, "{now}");
    store.close().await;
}

/// The number of a transaction of PostgreSQL that begins now.
async fn commit_number(store: &PostgresStore) -> u64 {
    let query = sqlx::query("select pg_current_xact_id()::text");
    let found = store.inner.rows(query).await.expect("a number");
    found[0].get::<String, _>(0).parse().expect("a number")
}

/// A commit that began earlier and ended later would appear behind the back of whoever has read what is after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_began_first_and_ended_last_is_not_lost_by_those_who_read_meanwhile() {
    let store = PostgresStore::open(&url(), options()).await.expect("a store");
    let mut entries = sample_plan().entries;
    entries.truncate(1);
    let list = |gate, vault: &str| {
        let mut entries = entries.clone();
        entries[0].home.vault = vault.parse().expect("a vault");
        let plan = Arc::new(Plan { entries, ..Plan::default() });
        let token = SagaToken { gate: GateId(gate), rid: ReservationId(gate), owner: OwnerId(7) };
        let record = Record { token, lease: None, begun_at: UnixMs::new(1), plan: Arc::clone(&plan) };
        let of = || Arc::clone(&plan);
        vec![
            Change::OpenVault(plan.entries[0].home.clone()),
            Change::Begin(record.into()),
            Change::Decide(token, of()),
            Change::Record(token, of()),
            Change::End(token),
        ]
    };
    let read = async |after: CreditCursor| {
        let page = store.transactions(None, after, 9).await.expect("a page");
        let names = page.found.iter().map(|found| found.home.vault.to_string()).collect::<Vec<_>>();
        (names, page.found.last().map_or(after, |found| found.place))
    };
    // Others use the same server, so that what is there may show late, but it does show.
    let wait = async |after: CreditCursor, count: usize| {
        loop {
            let (names, place) = read(after).await;
            if names.len() >= count {
                return (names, place);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    store.write(list(1, "before")).await.expect("a commit");
    let (names, place) = wait(CreditCursor::default(), 1).await;
    assert_eq!(names, ["before"]);

    let mut slow = store.inner.pool.acquire().await.expect("a connection");
    slow.connection.execute("begin; select pg_current_xact_id()").await.expect("a transaction with a number");
    store.write(list(2, "fast")).await.expect("a commit");
    for _ in 0..20 {
        assert_eq!(read(place).await, (vec![], place));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let late = list(3, "slow");
    let made = Call::of(&[&late]).make(&mut slow.connection).await;
    made.map_err(|failed| failed.error).expect("counts");
    assert_eq!(read(place).await, (vec![], place));
    slow.connection.execute("commit").await.expect("a commit");
    slow.release();
    let (names, place) = wait(place, 2).await;
    assert_eq!(names, ["slow", "fast"]);
    assert_eq!(read(place).await, (vec![], place));
    store.close().await;
}

/// Places deep in a long list are found by the index, whatever PostgreSQL knew of the tables when it made its plan.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_the_log_reads_about_as_much_as_it_shows() {
    let store = PostgresStore::open(&url(), options()).await.expect("a store");
    let mut pooled = store.inner.pool.acquire().await.expect("a connection");
    let connection = &mut pooled.connection;
    let prepare = format!("prepare page (text, bigint, bigint, text) as {}", log::TRANSACTIONS);
    connection.execute(AssertSqlSafe(prepare)).await.expect("a statement");
    let grow = "insert into entries (namespace, vault, number, gate, place, at, kind, body, tx)
        select 'default', 'log', n, 't' || n, 0, now(), case n % 2 when 0 then 'transaction' else 'hold' end, '{}',
            (1 + n / 20)::text::xid8 from generate_series(1, 20000) n";
    for prepare in ["select 1", grow, ANALYZE] {
        connection.execute(AssertSqlSafe(prepare)).await.expect("more rows, or more knowledge of them");
        let explain =
            "explain (analyze, timing off, costs off, summary off) execute page('500', 3, 50, 'team')";
        let rows = sqlx::raw_sql(explain).fetch_all(&mut *connection).await.expect("a plan");
        let lines: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        let counts = lines.iter().filter_map(|line| line.split("actual rows=").nth(1)?.split(' ').next());
        let counts: Vec<u64> = counts.map(|count| count.parse().expect("a count")).collect();
        assert!(counts.len() > 2, "{lines:#?}");
        assert!(counts.iter().all(|count| *count <= 70), "{lines:#?}");
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

/// PostgreSQL counts the scans of whole tables itself.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_a_saga_asks_reads_a_whole_table() {
    let store = PostgresStore::open(&url(), options()).await.expect("a store");
    let mut pooled = store.inner.pool.acquire().await.expect("a connection");
    let connection = &mut pooled.connection;
    connection.execute("set statement_timeout to 0").await.expect("as long as it takes");
    connection.execute(GROWN).await.expect("rows");
    connection.execute("begin").await.expect("a transaction, in which scans are counted");
    // What the same connection did a moment ago, such as to make the indexes, may still be among it.
    let before = whole_scans(connection).await;
    let plan = Arc::new(sample_plan());
    let token = SagaToken { gate: GateId(3), rid: ReservationId(5), owner: OwnerId(7) };
    let record = Record { token, lease: None, begun_at: UnixMs::new(1), plan: Arc::clone(&plan) };
    let of = || Arc::clone(&plan);
    // Of what the plan takes only the account that it opens is there to be taken.
    let claims = sample_plan().claims.into_iter().take(1).collect();
    let decided = Plan { needs: vec![], sequence_claim: None, inputs: vec![], claims, ..sample_plan() };
    let changes = [
        Change::Begin(record.into()),
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
    // In two calls: what one call has taken it need not count.
    let batches = [&changes[..3], &changes[3..]].map(|list| Batch::of([list].into_iter()));
    let committed = whole(9, &Arc::new(Plan { claims: vec![], ..sample_plan() }));
    // More often than a plan is made anew for its values.
    for round in 0..8 {
        let mut counts: Vec<i64> = Vec::new();
        for batch in &batches {
            let query = sqlx::query("select write_4($1::jsonb, $2, $3::jsonb, $4)")
                .bind(batch.changes())
                .bind(&batch.texts)
                .bind(batch.vaults())
                .bind(batch.is_promised);
            let row = query.fetch_one(&mut *connection).await.expect("counts");
            counts.extend(row.get::<Vec<i64>, _>(0));
        }
        let made = Call::of(&[&committed]).make(&mut *connection).await.map_err(|failed| failed.error);
        assert_eq!(made, Ok(vec![vec![0; committed.len()]]), "it needs accounts that are not there");
        let small = whole(10 + round, &small_plan());
        let made = Call::of(&[&small]).make(&mut *connection).await.map_err(|failed| failed.error);
        assert_eq!(made, Ok(vec![vec![1; small.len()]]));
        let is_first = i64::from(round == 0);
        assert_eq!((counts[0], counts[3], counts[10]), (1, is_first, is_first), "{counts:?}");
        connection.execute("delete from sagas").await.expect("no saga");
        for (name, question, found) in reads() {
            let rows = question.fetch_all(&mut *connection).await.expect("rows");
            assert_eq!(rows.len(), found, "{name}");
        }
    }
    assert_eq!(whole_scans(connection).await, before);
    // It does count.
    connection.execute("select count(*) from postings where amount = 7").await.expect("a count");
    assert!(whole_scans(connection).await > before);
}

/// What a plan about one account is made from.
fn survey() -> Question {
    let plan = sample_plan();
    let (account, asset) = (plan.inputs[0].account.clone(), plan.inputs[0].asset.clone());
    let posting_set = PostingQuery { account: account.clone(), asset, largest: 4, smallest: 4, count_max: 9 };
    let survey = Survey { accounts: vec![account], posting_sets: vec![posting_set], ..Survey::default() };
    let one_account = |question: Question| question.bind(vec!["default"]).bind(vec!["main"]).bind(vec!["a1"]);
    one_account(one_account(sqlx::query(AssertSqlSafe(survey::question(&survey)))))
        .bind(vec!["usd"])
        .bind(vec![4_i64])
        .bind(vec![4_i64])
        .bind(vec![9_i64])
}

type Question = sqlx::query::Query<'static, sqlx::Postgres, sqlx::postgres::PgArguments>;

/// Every read, and how many rows it finds among those that there are when the tables have grown.
fn reads() -> [(&'static str, Question, usize); 11] {
    let by_lease = |sql| sqlx::query(sql).bind("default").bind("l7");
    let of_account = |query: Question| query.bind("default").bind("main").bind("a1");
    let past = i64::MAX / 1_000_000;
    let first = |sql| sqlx::query(sql).bind(past).bind(10_i64).bind(0_i64).bind("");
    [
        ("entries", sqlx::query(read::ENTRIES).bind("g7"), 1),
        ("lease", by_lease(read::LEASE), 1),
        ("held", by_lease(read::HELD), 1),
        ("log", sqlx::query(log::TRANSACTIONS).bind("700").bind(1_i64).bind(10_i64).bind("default"), 10),
        ("history", of_account(sqlx::query(read::HISTORY)).bind(100_i64).bind(10_i64), 10),
        ("assets", of_account(sqlx::query(read::ASSETS_OF)).bind(10_i64), 1),
        ("due", first(read::DUE), 10),
        ("due of an account", of_account(first(read::DUE_OF)), 10),
        ("funds", of_account(sqlx::query(survey::FUNDS)).bind(1_i64), 1),
        ("spendable", of_account(sqlx::query(survey::SPENDABLE)).bind(1_i64).bind("usd"), 1),
        ("survey", survey(), 9),
    ]
}

/// Entries of a vault are numbered by its row. When that was locked with the first entry of a call, and not before all else, a
/// call that had it waited for a gate which another had, who waited for the row: PostgreSQL ended one of them after a second,
/// in which nobody else had the vault either.
#[tokio::test(flavor = "multi_thread")]
async fn calls_about_the_same_gate_wait_for_the_vault_first_and_so_not_for_each_other() {
    for is_late_whole in [false, true] {
        let store = PostgresStore::open(&url(), options()).await.expect("a store");
        store.write(vec![Change::OpenVault(small_plan().entries[0].home.clone())]).await.expect("a vault");
        let mut pooled = store.inner.pool.acquire().await.expect("a connection");
        pooled.connection.execute("begin").await.expect("a call of several lists");
        let call = async |connection: &mut PgConnection, list: &[Change]| {
            Call::of(&[list]).make(connection).await.map_err(|failed| failed.error).expect("no deadlock")
        };
        assert_eq!(call(&mut pooled.connection, &whole(1, &small_plan())).await, [[1, 1, 1, 1]]);
        let mut other = store.inner.pool.acquire().await.expect("another connection");
        let pid = sqlx::query("select pg_backend_pid()").fetch_one(&mut other.connection).await;
        let pid: i32 = pid.expect("a pid").get(0);
        let mut late = whole(2, &small_plan());
        if !is_late_whole {
            late.pop();
        }
        let waiting = call(&mut other.connection, &late);
        let ahead = async {
            let is_waiting = "select count(*) from pg_locks where pid = $1 and not granted";
            loop {
                let locks = sqlx::query(is_waiting).bind(pid).fetch_one(&mut pooled.connection).await;
                if locks.expect("locks").get::<i64, _>(0) > 0 {
                    break;
                }
            }
            assert_eq!(call(&mut pooled.connection, &whole(2, &small_plan())).await, [[1, 1, 1, 1]]);
            pooled.connection.execute("commit").await.expect("a commit");
        };
        let (late, ()) = tokio::join!(waiting, ahead);
        let expected = if is_late_whole { vec![0; 4] } else { vec![1, 0, 0] };
        assert_eq!(late, [expected], "the entry was there");
    }
}

/// The hold of a lease and the mark that it ended have one gate, and need not be in one vault, whose row would keep the second
/// waiting: it waited at the index of entries instead, and was refused for good.
#[tokio::test(flavor = "multi_thread")]
async fn one_gate_in_two_vaults_at_once_happens_once_and_is_no_error() {
    let store = PostgresStore::open(&url(), options()).await.expect("a store");
    let elsewhere = |mut plan: Plan| {
        plan.entries[0].home.vault = "elsewhere".parse().expect("a vault");
        Arc::new(plan)
    };
    let there = elsewhere(Plan::clone(&small_plan()));
    for (gate, is_whole) in [(1, true), (2, false)] {
        let mut pooled = store.inner.pool.acquire().await.expect("a connection");
        pooled.connection.execute("begin").await.expect("a call");
        let first = whole(gate, &small_plan());
        let made = Call::of(&[&first]).make(&mut pooled.connection).await.map_err(|failed| failed.error);
        assert_eq!(made, Ok(vec![vec![1; 4]]));
        let mut second = whole(gate, &there);
        if !is_whole {
            second.pop();
        }
        let waiting = store.write(second);
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
        let (second, ()) = tokio::join!(waiting, ahead);
        assert_eq!(second, Ok(if is_whole { vec![0; 4] } else { vec![1, 0, 0] }));
        assert_eq!(store.entries(GateId(gate)).await.map(|entries| entries.len()), Ok(1));
    }
    store.close().await;
}

/// How many places of indexes this transaction has read.
async fn places_read(connection: &mut PgConnection) -> i64 {
    let read = "select sum(pg_stat_get_xact_tuples_returned(indexrelid))::bigint from pg_index
        where indrelid in ('postings'::regclass, 'accounts'::regclass, 'entries'::regclass, 'vaults'::regclass,
            'changes'::regclass)";
    sqlx::query(read).fetch_one(connection).await.expect("a count").get(0)
}

/// While a table was thought to be empty PostgreSQL chose to go through all of it, and the connection that writes kept to that: at two
/// hundred thousand postings a batch took twenty seconds.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_was_planned_for_empty_tables_reads_no_whole_table_when_they_have_grown() {
    let store = PostgresStore::open(&url(), options()).await.expect("a store");
    let mut pooled = store.inner.pool.acquire().await.expect("a connection");
    let connection = &mut pooled.connection;
    connection.execute("set statement_timeout to 0").await.expect("as long as it takes");
    connection.execute(ANALYZE).await.expect("knowledge of empty tables");
    let plan = Arc::new(Plan { claims: vec![], sequence_claim: None, ..sample_plan() });
    let commit = async |connection: &mut PgConnection, gate| {
        let lists = [whole(gate, &plan), whole(gate + 1, &small_plan())];
        let lists = lists.each_ref().map(Vec::as_slice);
        let made = Call::of(&lists).make(connection).await.map_err(|failed| failed.error);
        assert_eq!(made.map(|counts| counts[1].clone()), Ok(vec![1; 4]));
    };
    for gate in 0..8 {
        commit(connection, 1_000 + 2 * gate).await;
    }
    // Nobody tells PostgreSQL of what comes now.
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
    commit(connection, 3_000).await;
    let after = places_read(connection).await;
    assert!(after - before < 1_000, "{before} {after}");
    // It does count.
    connection.execute("select count(amount) from postings where id > ''").await.expect("all of them");
    assert!(places_read(connection).await - after > 20_000);
    connection.execute("commit").await.expect("an end");
}

/// Of an empty table any index reads little, so that entries of a lease were looked for among all those of the namespace, for as
/// long as a connection kept the plan from when it was new.
#[tokio::test(flavor = "multi_thread")]
async fn reads_read_about_what_they_show_soon_after_the_tables_have_grown() {
    let options = PostgresOptions { plans_for: Duration::ZERO, ..options() };
    let store = PostgresStore::open(&url(), options).await.expect("a store");
    let mut pooled = store.inner.pool.acquire().await.expect("a connection");
    let connection = &mut pooled.connection;
    connection.execute("set statement_timeout to 0").await.expect("as long as it takes");
    connection.execute(ANALYZE).await.expect("knowledge of empty tables");
    for _ in 0..8 {
        for (_, question, _) in reads() {
            question.fetch_all(&mut *connection).await.expect("a plan, and hardly a row");
        }
    }
    // Nobody tells PostgreSQL of what comes now.
    connection.execute(AssertSqlSafe(GROWN.replace(ANALYZE, "select 1"))).await.expect("rows");
    pooled.release();
    for knowledge in ["select 1", ANALYZE] {
        // The same one, which has waited for as long as it keeps plans.
        let mut pooled = store.inner.pool.acquire().await.expect("a connection");
        let connection = &mut pooled.connection;
        connection.execute(knowledge).await.expect("knowledge of them");
        connection.execute("begin").await.expect("a transaction, in which reads are counted");
        for (name, question, found) in reads() {
            let before = (whole_scans(connection).await, places_read(connection).await);
            assert_eq!(question.fetch_all(&mut *connection).await.expect("rows").len(), found, "{name}");
            assert_eq!(whole_scans(connection).await, before.0, "{name}");
            // An account has 500 live postings here: its funds are their sum, and its holds, which are half of them, all end
            // at once. Those that have not ended are out of reach, and are not read.
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

/// What was applied once is not applied again when its text changes: a change needs a version of its own.
#[test]
fn no_version_of_the_schema_is_changed_afterwards() {
    let sums = migrate::VERSIONS.map(|(_, sql)| crate::sql::checksum(sql));
    assert_eq!(
        sums,
        [
            0xaa7a_db27_a5fe_c04e,
            0xc0ec_1d1f_5e3a_fdb6,
            0xbdb7_83b6_d971_001b,
            0x88b6_7fd8_6717_f30a,
            0x7668_f9a7_504e_1452,
            0x912b_0c28_87b7_8b6a
        ]
    );
}
