//! The rows in a PostgreSQL database, which several processes may share.
//!
//! Whole plans are committed by the function `commit_plans`, single changes by `write_changes`. Each call is one
//! statement, and so one transaction. See the schema for the tables.

mod changes;
mod commit;
mod error;
mod migrate;
mod survey;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use earmark_admission::Answer;
use earmark_core::UnixMs;
use sqlx::postgres::{PgArguments, PgConnectOptions, PgRow};
use sqlx::query::Query;
use sqlx::{ConnectOptions, Connection, Postgres, Row as _};
use tokio::time::timeout;

use crate::model::Record;
use crate::sql::database::{Database, Row, Value, values};
use crate::sql::pool::{Pool, SessionSql};
use crate::sql::store::{SqlStore, entry_sql, start};
use crate::store::{Change, StoreError, Survey};
use changes::ChangeList;
use commit::Columns;
use error::{Failed, failed, read_error};

/// One connection that writes and one that reads.
const CONNECTIONS_MIN: u32 = 2;

/// Retries of a call that conflicted with another.
const CONFLICTS_MAX: usize = 10;

/// Settings of a PostgreSQL store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresOptions {
    /// Connections in total; at least 2.
    pub connections: u32,
    /// Connections that only write. Waiting calls are committed together, so few work best.
    pub writers: u32,
    /// How long a call waits for a connection.
    pub connect_timeout: Duration,
    /// The database cancels a statement after this time.
    pub statement_timeout: Duration,
    /// How long a statement waits for a locked row, such as one in a transaction that was left open. Calls behind the
    /// same writer wait as long. It must exceed PostgreSQL's deadlock timeout, so that deadlocks are detected and
    /// retried.
    pub lock_timeout: Duration,
    /// How long a connection keeps its query plans, which were made for smaller tables.
    pub plans_for: Duration,
    /// The schema of the tables: lower-case letters, digits and underscores.
    pub schema: String,
    /// Whether the clock of the database is the shared clock, as it must be if processes run on several machines.
    pub keeps_time: bool,
}

impl Default for PostgresOptions {
    fn default() -> PostgresOptions {
        PostgresOptions {
            connections: 8,
            writers: 1,
            connect_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(10),
            lock_timeout: Duration::from_secs(2),
            plans_for: Duration::from_secs(10),
            schema: "earmark".to_owned(),
            keeps_time: true,
        }
    }
}

impl PostgresOptions {
    /// How long to wait for an answer. The database cancels the statement before that.
    fn answer_timeout(&self) -> Duration {
        self.statement_timeout.saturating_add(Duration::from_secs(2))
    }

    /// The settings of a new connection.
    fn setup(&self) -> String {
        // Every statement has one good plan, which uses its index, and planning each call would cost more than running
        // it. If the site turned synchronous commits off, they are turned on again. The functions need `read
        // committed`.
        format!(
            "set search_path to \"{}\"; set statement_timeout to {}; set lock_timeout to {}; set idle_in_transaction_session_timeout to {};
             set default_transaction_isolation to 'read committed';
             set enable_seqscan to off; set plan_cache_mode to force_generic_plan; set jit to off; set timezone to 'UTC';
             select set_config('synchronous_commit', 'on', false)
             where current_setting('synchronous_commit') = 'off';",
            self.schema,
            self.statement_timeout.as_millis(),
            self.lock_timeout.as_millis(),
            self.answer_timeout().as_millis(),
        )
    }

    /// The connections that write and that read, at least one each.
    fn shares(&self) -> (u32, u32) {
        let writers = self.writers.min(self.connections.saturating_sub(1)).max(1);
        (writers, self.connections.saturating_sub(writers).max(1))
    }

    fn check(&self) -> Result<(), StoreError> {
        if !self.has_plain_schema() {
            return Err(StoreError::Refused(format!(
                "schema: found {:?}; use up to 63 lower-case letters, digits and underscores",
                self.schema
            )));
        }
        if self.connections < CONNECTIONS_MIN {
            return Err(StoreError::Refused(format!(
                "connections: found {}; use {CONNECTIONS_MIN} or more",
                self.connections
            )));
        }
        Ok(())
    }

    fn has_plain_schema(&self) -> bool {
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        let starts_well = self.schema.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
        starts_well && self.schema.len() <= 63 && self.schema.bytes().all(is_plain)
    }
}

/// Refuses certificate files that cannot be read. sqlx would report them per connection, like a database that is down.
fn check_files(database: &PgConnectOptions) -> Result<(), StoreError> {
    for (name, value) in database.to_url_lossy().query_pairs() {
        // The form that sqlx gives to a path.
        if matches!(&*name, "sslrootcert" | "sslcert" | "sslkey")
            && let Some(path) = value.strip_prefix("file: ")
            && let Err(error) = std::fs::File::open(path)
        {
            return Err(StoreError::Refused(format!("{name}: cannot read {path}: {error}")));
        }
    }
    Ok(())
}

/// A store in a PostgreSQL database.
pub type PostgresStore = SqlStore<PostgresDatabase>;

/// A PostgreSQL database.
pub struct PostgresDatabase {
    options: PostgresOptions,
    readers: Pool<Postgres>,
    /// Connections for writers, heartbeats and the clock, which must not wait for reads.
    writers: Pool<Postgres>,
}

impl PostgresStore {
    /// Connects to `postgres://user:password@host/database?sslmode=verify-full` and creates the schema if it is
    /// missing.
    ///
    /// # Errors
    /// When the URL is invalid, the database cannot be used, or a later version wrote its schema.
    pub fn open(url: &str, options: PostgresOptions) -> Answer<'_, Result<PostgresStore, StoreError>> {
        Box::pin(async move {
            let parsed: Result<PgConnectOptions, _> = url.parse();
            // The URL may contain a password, so the message does not repeat it.
            let database = parsed.map_err(|error| StoreError::Refused(format!("invalid URL: {error}")))?;
            PostgresStore::connect(database, options).await
        })
    }

    /// Connects with options of sqlx.
    ///
    /// # Errors
    /// When the database cannot be used, or a later version wrote its schema.
    pub async fn connect(database: PgConnectOptions, options: PostgresOptions) -> Result<PostgresStore, StoreError> {
        options.check()?;
        check_files(&database)?;
        let database = database.application_name("earmark").disable_statement_logging();
        let (writers, readers) = options.shares();
        // A plan made for an empty table may use the wrong index, and read the whole table when it has grown. Without
        // this only autovacuum would make PostgreSQL plan again.
        let session =
            || SessionSql { setup: Some(options.setup()), refresh: Some(("discard plans", options.plans_for)) };
        let pool = |size| Pool::new(database.clone(), session(), size, options.connect_timeout);
        let (readers, writing) = (pool(readers), pool(writers));
        let mut pooled = writing.acquire().await?;
        migrate::migrate(&mut pooled.connection, &options.schema).await?;
        pooled.release();
        Ok(start(PostgresDatabase { options, readers, writers: writing }, writers))
    }
}

impl Row for PgRow {
    fn text_or_null(&self, column: &'static str) -> Result<Option<String>, StoreError> {
        self.try_get(column).map_err(read_error)
    }

    fn int_or_null(&self, column: &'static str) -> Result<Option<i64>, StoreError> {
        self.try_get(column).map_err(read_error)
    }
}

impl PostgresDatabase {
    /// Runs one statement on a connection of a pool.
    async fn rows(&self, pool: &Pool<Postgres>, query: Query<'_, Postgres, PgArguments>) -> Result<Vec<PgRow>, Failed> {
        let unusable = |error| Failed { error, is_conflict: false, is_usable: false };
        let mut pooled = pool.acquire().await.map_err(unusable)?;
        match timeout(self.options.answer_timeout(), query.fetch_all(&mut pooled.connection)).await {
            Ok(Ok(rows)) => {
                pooled.release();
                Ok(rows)
            }
            Ok(Err(error)) => {
                let failed = failed(&error);
                if failed.is_usable {
                    pooled.release();
                }
                Err(failed)
            }
            Err(_) => Err(unusable(StoreError::Unavailable("the database did not answer in time".to_owned()))),
        }
    }

    /// Calls a function that writes and returns an array of `expected` items. Retries conflicts.
    async fn call<'q, T>(
        &self,
        query: &(dyn Fn() -> Query<'q, Postgres, PgArguments> + Sync),
        expected: usize,
    ) -> Result<Vec<T>, StoreError>
    where
        Vec<T>: for<'r> sqlx::Decode<'r, Postgres> + sqlx::Type<Postgres>,
    {
        let mut retries = 0..CONFLICTS_MAX;
        loop {
            match self.rows(&self.writers, query()).await {
                Ok(rows) => {
                    let found = rows.first().map(|row| row.try_get::<Vec<T>, _>(0)).transpose();
                    let found = found.map_err(read_error)?.filter(|found| found.len() == expected);
                    let foreign = || StoreError::Corrupt("the schema has functions of another program".to_owned());
                    return found.ok_or_else(foreign);
                }
                Err(failed) if failed.is_conflict && retries.next().is_some() => {}
                Err(failed) => return Err(failed.error),
            }
        }
    }
}

// Only commits older than every open PostgreSQL transaction, so that none can still appear behind them. First the rest of
// the cursor's commit, then earlier commits, including all entries of the last one: their order within it is not in the
// index.
macro_rules! transactions_sql {
    ($rest_filter:literal, $filter:literal, $order:literal) => {
        concat!(
            "select page.tx::text as commit_id, namespace, vault, number, wall_ms,
                case when $4::text is null or namespace = $4 then body::text end as body
             from (
                (select tx, namespace, vault, number, at_ms, wall_ms, body from entries
                 where kind = 'transaction' and tx = $1::text::xid8 and tx < pg_snapshot_xmin(pg_current_snapshot()) ",
            $rest_filter,
            "    order by at_ms desc, namespace desc, vault desc, number desc offset $2)
                union all
                (select tx, namespace, vault, number, at_ms, wall_ms, body from entries
                 where kind = 'transaction' and tx < $1::text::xid8 and tx < pg_snapshot_xmin(pg_current_snapshot()) ",
            $filter,
            "    order by ",
            $order,
            "tx desc fetch first ($3) rows with ties)) page
             order by page.tx desc, page.at_ms desc, page.namespace desc, page.vault desc, page.number desc limit $3"
        )
    };
}

impl Database for PostgresDatabase {
    type Row = PgRow;

    // Numbers first, then each row by itself: before the tables were analyzed, a plain join may be planned as a cross
    // join.
    const HISTORY: &'static str = entry_sql!(
        "from (select distinct number from changes
             where namespace = $1 and vault = $2 and account = $3 and number > $4 order by number limit $5) page
         cross join lateral (select * from entries
             where namespace = $1 and vault = $2 and number = page.number offset 0) e
         cross join lateral (select * from changes
             where namespace = $1 and vault = $2 and number = page.number offset 0) c
         order by e.number, c.account, c.asset"
    );

    const HISTORY_NEWEST: &'static str = entry_sql!(
        "from (select distinct number from changes
             where namespace = $1 and vault = $2 and account = $3 and number < $4 order by number desc limit $5) page
         cross join lateral (select * from entries
             where namespace = $1 and vault = $2 and number = page.number offset 0) e
         cross join lateral (select * from changes
             where namespace = $1 and vault = $2 and number = page.number offset 0) c
         order by e.number desc, c.account, c.asset"
    );

    const FUNDS: &'static str = "
        select asset, part, cast(sum(amount) as text) as amount from (
            select asset, 'active' as part, amount from postings
            where namespace = $1 and vault = $2 and account = $3 and state = 'active' and lease is null
            and priority is null
            union all
            select asset, case when expires_at_ms <= $5 then 'expired' else 'active' end, amount from postings
            where namespace = $1 and vault = $2 and account = $3 and priority is not null and state <> 'inactive'
            and state = 'active'
            union all
            select asset, 'pending', amount from postings
            where state = 'pending' and lease is null and namespace = $1 and vault = $2 and account = $3
            union all
            select asset, case when ends_at_ms <= $4 then 'due' else 'held' end, amount from postings
            where namespace = $1 and vault = $2 and account = $3 and lease is not null and state <> 'inactive'
            union all
            select asset, 'kept', kept from postings
            where namespace = $1 and vault = $2 and account = $3 and ends_at_ms <= $4
            and lease is not null and state <> 'inactive') parts
        group by asset, part";

    const SPENDABLE: &'static str = "
        select part, cast(sum(amount) as text) as amount from (
            select 'active' as part, amount from postings
            where namespace = $1 and vault = $2 and account = $3 and asset = $5
            and state = 'active' and lease is null and priority is null
            union all
            select 'active', amount from postings
            where namespace = $1 and vault = $2 and account = $3 and asset = $5 and priority is not null
            and state <> 'inactive' and state = 'active' and (expires_at_ms is null or expires_at_ms > $6)
            union all
            select 'pending', amount from postings
            where state = 'pending' and lease is null
            and namespace = $1 and vault = $2 and account = $3 and asset = $5
            union all
            select 'due', amount from postings
            where namespace = $1 and vault = $2 and account = $3 and asset = $5 and ends_at_ms <= $4
            and lease is not null and state <> 'inactive'
            union all
            select 'kept', kept from postings
            where namespace = $1 and vault = $2 and account = $3 and asset = $5 and ends_at_ms <= $4
            and lease is not null and state <> 'inactive') parts
        group by part";

    const USAGE: &'static str = "
        select k.place - 1 as place, u.used from jsonb_array_elements($1::jsonb) with ordinality k (of, place)
        cross join lateral (select used from quota_usage
            where namespace = k.of->>0 and vault = k.of->>1 and kind = k.of->>2 offset 0) u";

    const TRANSACTIONS: &'static str = transactions_sql!("", "", "");
    // The bounds on the actor leave one actor. An equality would let the planner take the index of all transactions.
    const TRANSACTIONS_BY: &'static str =
        transactions_sql!("and actor = $5", "and actor >= $5 and (actor, tx) < ($5, $1::text::xid8)", "actor desc, ");

    const CENSUS: &'static str = "
        select 'issued' as part, asset, null as account, cast(issued as text) as amount, cast(null as bigint) as low
        from assets where namespace = $1 and vault = $2
        union all
        select 'retired', asset, null, cast(retired as text), null from assets where namespace = $1 and vault = $2
        union all
        select 'expired', asset, null, cast(expired as text), null from assets where namespace = $1 and vault = $2
        union all
        select 'live', asset, account, cast(sum(amount) as text), null from postings
        where namespace = $1 and vault = $2 and state <> 'inactive' group by asset, account
        union all
        select 'entered', asset, account, cast(sum(amount) + sum(held) as text), null from changes
        where namespace = $1 and vault = $2 group by asset, account
        union all
        select 'plan', null, null, plan::text, null from sagas";

    async fn read<const N: usize>(&self, sql: &'static str, values: [Value; N]) -> Result<Vec<PgRow>, StoreError> {
        self.rows(&self.readers, bind(sql, values)).await.map_err(|failed| failed.error)
    }

    async fn survey(&self, survey: &Survey) -> Result<Vec<PgRow>, StoreError> {
        self.rows(&self.readers, survey::query(survey)).await.map_err(|failed| failed.error)
    }

    async fn census(&self, values: [Value; 2]) -> Result<Vec<PgRow>, StoreError> {
        let mut pooled = self.readers.acquire().await?;
        let mut transaction = pooled.connection.begin().await.map_err(read_error)?;
        // The census scans whole tables, without a timeout.
        let scans = "set local enable_seqscan to on; set local statement_timeout to 0";
        sqlx::raw_sql(scans).execute(&mut *transaction).await.map_err(read_error)?;
        let found = bind(Self::CENSUS, values).fetch_all(&mut *transaction).await.map_err(read_error)?;
        transaction.rollback().await.map_err(read_error)?;
        pooled.release();
        Ok(found)
    }

    async fn commit(&self, plans: &[Arc<Record>]) -> Result<Vec<bool>, StoreError> {
        let columns = Columns::of(plans);
        self.call(&|| columns.query(), plans.len()).await
    }

    async fn write(&self, lists: &[Vec<Change>]) -> Result<Vec<Vec<u64>>, StoreError> {
        let changes = ChangeList::of(lists);
        let counts: Vec<i64> = self.call(&|| changes.query(), lists.iter().map(Vec::len).sum()).await?;
        let mut counts = counts.into_iter().map(i64::unsigned_abs);
        Ok(lists.iter().map(|list| counts.by_ref().take(list.len()).collect()).collect())
    }

    async fn time(&self) -> Result<Option<UnixMs>, StoreError> {
        if !self.options.keeps_time {
            return Ok(None);
        }
        let sql = "select (extract(epoch from clock_timestamp()) * 1000)::bigint as now_ms";
        let found = self.rows(&self.writers, bind(sql, values![])).await.map_err(|failed| failed.error)?;
        found.first().map(|row| row.count("now_ms").map(UnixMs::new)).transpose()
    }

    async fn close(&self) {
        self.readers.close().await;
        self.writers.close().await;
    }
}

fn bind<const N: usize>(sql: &'static str, values: [Value; N]) -> Query<'static, Postgres, PgArguments> {
    values.into_iter().fold(sqlx::query(sql), |query, value| match value {
        Value::Text(text) => query.bind(text),
        Value::Int(number) => query.bind(number),
        Value::Null => query.bind(None::<String>),
    })
}
