//! The rows in a PostgreSQL database, which several processes may share.
//!
//! Writers take all calls that wait and make their changes in one statement, which is one transaction: sagas whose steps all
//! came in one list by the function `commit_sagas`, table by table, everything else by `write_4`, change by change. Reads are single
//! statements. See the migrations for the tables.

mod batch;
mod commit;
mod error;
mod log;
mod migrate;
mod read;
mod survey;
#[cfg(test)]
mod tests;
mod writer;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use earmark_admission::{Answer, CreditCursor};
use earmark_core::{AssetName, NamespaceName, UnixMs};
use sqlx::postgres::{PgConnectOptions, PgRow};
use sqlx::{ConnectOptions, Postgres};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::id::{GateId, OwnerId, ReservationId};
use crate::model::{AccountKey, LeaseKey, Posting, PostingState, StoredEntry, StoredRecord, VaultKey};
use crate::sql::pool::{Pool, SessionSql};
use crate::sql::queue::{Queue, Writes};
use crate::sql::surveys::{self, SURVEYORS, Surveys};
use crate::store::{
    CHANGES_MAX, Census, Change, DueQuery, Filter, FindRecord, Funds, RecordPage, Records, Spendable,
    StaleOwners, Store, StoreError, Survey, Surveyed, Transactions,
};

/// One that writes, and one that reads.
const CONNECTIONS_MIN: u32 = 2;

/// How a database is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresOptions {
    /// So many connections at most; at least 2, for those who write have their own.
    pub connections: u32,
    /// So many of them write, and nothing else. What waits is committed together, so few do best.
    pub writers: u32,
    /// So long a call waits for a connection.
    pub connect_timeout: Duration,
    /// So long the database may work on a statement.
    pub statement_timeout: Duration,
    /// So long a statement may wait for a row that somebody holds, such as whoever left a transaction open; those who wait
    /// for the same writer wait as long. It is above the time after which the database looks for deadlocks, which are told
    /// apart and tried again.
    pub lock_timeout: Duration,
    /// So long a connection keeps the plans that it made, while the tables that they were made for grow.
    pub plans_for: Duration,
    /// Where the tables are: a name of small letters, digits and underscores.
    pub schema: String,
    /// Whether the clock of the database is everybody's, as it must be where the processes are on several machines.
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
    /// Beyond this the database will not answer any more: it would have given up by itself.
    fn answer_timeout(&self) -> Duration {
        self.statement_timeout.saturating_add(Duration::from_secs(2))
    }

    /// What a connection is told first.
    fn setup(&self) -> String {
        // Every statement has one good plan, by its index, and making it for every call would cost more than following it.
        // A site that turned synchronous commits off
        // still gets them for what Earmark promises, and one that chose another isolation gets the one that the
        // functions are made for: there each statement sees what was committed before it.
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

    /// How many connections write, and how many read. There is one of each at least.
    fn shares(&self) -> (u32, u32) {
        let writers = self.writers.min(self.connections.saturating_sub(1)).max(1);
        (writers, self.connections.saturating_sub(writers).max(1))
    }

    fn check(&self) -> Result<(), StoreError> {
        if !self.has_plain_schema() {
            return Err(StoreError::Refused(format!(
                "schema: found {:?}, allowed are up to 63 small letters, digits and underscores",
                self.schema
            )));
        }
        if self.connections < CONNECTIONS_MIN {
            return Err(StoreError::Refused(format!(
                "connections: found {}, allowed are {CONNECTIONS_MIN} and more",
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

/// Files of certificates that are not there. sqlx would find out with every connection, and it would look like a database that is
/// away, which is waited for.
fn check_files(database: &PgConnectOptions) -> Result<(), StoreError> {
    for (name, value) in database.to_url_lossy().query_pairs() {
        // This is how sqlx writes one that is not in the URL itself.
        if matches!(&*name, "sslrootcert" | "sslcert" | "sslkey")
            && let Some(path) = value.strip_prefix("file: ")
            && let Err(error) = std::fs::File::open(path)
        {
            return Err(StoreError::Refused(format!("{name}: found {path}, which cannot be read: {error}")));
        }
    }
    Ok(())
}

struct Inner {
    options: PostgresOptions,
    /// For reads, of which there may be any number, and an audit takes long.
    pool: Pool<Postgres>,
    /// For writers and signs of life, which must not wait for reads.
    writing: Pool<Postgres>,
}

/// The rows in a database.
pub struct PostgresStore {
    queue: Queue<Vec<Change>, Vec<u64>>,
    surveys: Surveys,
    workers: Mutex<Vec<JoinHandle<()>>>,
    inner: Arc<Inner>,
}

impl PostgresStore {
    /// Connects to a database by its URL, `postgres://user:password@host/database?sslmode=verify-full`, and brings the schema
    /// up to date.
    ///
    /// # Errors
    /// When the URL is none, the database cannot be used, or its schema was written by a later version.
    pub async fn open(url: &str, options: PostgresOptions) -> Result<PostgresStore, StoreError> {
        let parsed: Result<PgConnectOptions, _> = url.parse();
        // The URL may hold a password, so it is not repeated.
        let database = parsed.map_err(|error| StoreError::Refused(format!("the URL is none: {error}")))?;
        PostgresStore::connect(database, options).await
    }

    /// The same with the options of sqlx.
    ///
    /// # Errors
    /// When the database cannot be used, or its schema was written by a later version.
    pub async fn connect(
        database: PgConnectOptions,
        options: PostgresOptions,
    ) -> Result<PostgresStore, StoreError> {
        options.check()?;
        check_files(&database)?;
        let database = database.application_name("earmark").disable_statement_logging();
        let (writers, readers) = options.shares();
        // Of a table that is empty any index reads little, so that a plan may have the wrong one, and read all of the table
        // when that has grown. Nobody but the autovacuum would tell PostgreSQL to plan anew, and that takes its time.
        let words = || SessionSql {
            setup: Some(options.setup()),
            refresh: Some(("discard plans", options.plans_for)),
        };
        let share = |size| Pool::new(database.clone(), words(), size, options.connect_timeout);
        let (pool, writing) = (share(readers), share(writers));
        let mut pooled = writing.acquire().await?;
        migrate::migrate(&mut pooled.connection, &options.schema, migrate::VERSIONS.len()).await?;
        pooled.release();
        let (queue, waiting) = Queue::new();
        let inner = Arc::new(Inner { options, pool, writing });
        let write = |waiting: &Writes| tokio::spawn(writer::work(waiting.clone(), Arc::clone(&inner)));
        let mut workers: Vec<_> = (0..writers).map(|_| write(&waiting)).collect();
        let (surveys, waiting) = Surveys::new();
        for _ in 0..SURVEYORS {
            let inner = Arc::clone(&inner);
            let look = move |survey: Survey| {
                let inner = Arc::clone(&inner);
                async move { inner.survey(&survey).await }
            };
            workers.push(tokio::spawn(surveys::work(waiting.clone(), look)));
        }
        Ok(PostgresStore { queue, surveys, workers: Mutex::new(workers), inner })
    }
}

impl Inner {
    /// The rows of one statement.
    async fn rows(
        &self,
        query: sqlx::query::Query<'_, Postgres, sqlx::postgres::PgArguments>,
    ) -> Result<Vec<PgRow>, StoreError> {
        self.rows_by(&self.pool, query).await
    }

    /// The same, by one of these connections.
    async fn rows_by(
        &self,
        pool: &Pool<Postgres>,
        query: sqlx::query::Query<'_, Postgres, sqlx::postgres::PgArguments>,
    ) -> Result<Vec<PgRow>, StoreError> {
        let mut pooled = pool.acquire().await?;
        match timeout(self.options.answer_timeout(), query.fetch_all(&mut pooled.connection)).await {
            Ok(Ok(rows)) => {
                pooled.release();
                Ok(rows)
            }
            Ok(Err(error)) => {
                let failed = error::failed(&error);
                if failed.is_whole {
                    pooled.release();
                }
                Err(failed.error)
            }
            Err(_) => Err(StoreError::Unavailable("the database did not answer in time".to_owned())),
        }
    }
}

impl Store for PostgresStore {
    fn write(&self, changes: Vec<Change>) -> Answer<'_, Result<Vec<u64>, StoreError>> {
        debug_assert!(changes.len() <= CHANGES_MAX, "a list of changes is bounded");
        Box::pin(self.queue.ask(changes))
    }

    fn survey(&self, survey: Survey) -> Answer<'_, Result<Surveyed, StoreError>> {
        Box::pin(async move {
            match surveys::is_shared(&survey) {
                true => self.surveys.ask(survey).await,
                false => self.inner.survey(&survey).await,
            }
        })
    }

    fn entries(&self, gate: GateId) -> Answer<'_, Result<Vec<StoredEntry>, StoreError>> {
        Box::pin(self.inner.entries(gate))
    }

    fn lease(&self, lease: LeaseKey) -> Answer<'_, Result<Vec<StoredEntry>, StoreError>> {
        Box::pin(async move { self.inner.lease(&lease).await })
    }

    fn held(&self, lease: LeaseKey) -> Answer<'_, Result<Vec<(Posting, PostingState)>, StoreError>> {
        Box::pin(async move { self.inner.held(&lease).await })
    }

    fn record(&self, find: FindRecord) -> Answer<'_, Result<Option<StoredRecord>, StoreError>> {
        Box::pin(async move { self.inner.record(&find).await })
    }

    fn records(&self, filter: Filter, page: RecordPage) -> Answer<'_, Result<Records, StoreError>> {
        Box::pin(async move { self.inner.records(&filter, &page).await })
    }

    fn stale_owners(&self, gone: StaleOwners, max: usize) -> Answer<'_, Result<Vec<OwnerId>, StoreError>> {
        Box::pin(self.inner.stale_owners(gone, max))
    }

    fn orphans(&self, max: usize) -> Answer<'_, Result<Vec<ReservationId>, StoreError>> {
        Box::pin(self.inner.orphans(max))
    }

    fn due(&self, due: DueQuery, max: usize) -> Answer<'_, Result<Vec<Posting>, StoreError>> {
        Box::pin(async move { self.inner.due(&due, max).await })
    }

    fn funds(&self, account: AccountKey, now: UnixMs) -> Answer<'_, Result<Vec<Funds>, StoreError>> {
        Box::pin(async move { self.inner.funds(&account, now).await })
    }

    fn spendable(
        &self,
        account: AccountKey,
        asset: AssetName,
        now: UnixMs,
    ) -> Answer<'_, Result<Spendable, StoreError>> {
        Box::pin(async move { self.inner.spendable(&account, &asset, now).await })
    }

    fn assets_of(&self, account: AccountKey) -> Answer<'_, Result<Vec<AssetName>, StoreError>> {
        Box::pin(async move { self.inner.assets_of(&account).await })
    }

    fn history(
        &self,
        account: AccountKey,
        after: u64,
        max: usize,
    ) -> Answer<'_, Result<Vec<StoredEntry>, StoreError>> {
        Box::pin(async move { self.inner.history(&account, after, max).await })
    }

    fn transactions(
        &self,
        namespace: Option<NamespaceName>,
        after: CreditCursor,
        max: usize,
    ) -> Answer<'_, Result<Transactions, StoreError>> {
        Box::pin(async move { self.inner.transactions(namespace.as_ref(), after, max).await })
    }

    fn census(&self, home: VaultKey) -> Answer<'_, Result<Census, StoreError>> {
        Box::pin(async move { self.inner.census(&home).await })
    }

    fn clients(&self) -> Answer<'_, Result<u64, StoreError>> {
        Box::pin(self.inner.clients())
    }

    fn time(&self) -> Answer<'_, Result<Option<UnixMs>, StoreError>> {
        Box::pin(
            async move { if self.inner.options.keeps_time { self.inner.time().await } else { Ok(None) } },
        )
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            self.queue.close();
            self.surveys.close();
            let workers = std::mem::take(&mut *self.workers.lock().unwrap_or_else(PoisonError::into_inner));
            for worker in workers {
                let _ = worker.await;
            }
            self.inner.pool.close().await;
            self.inner.writing.close().await;
        })
    }
}
