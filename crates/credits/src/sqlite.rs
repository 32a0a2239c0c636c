//! The rows in a SQLite file, for one machine.
//!
//! One connection writes. Reads have their own connections and see committed data. Other processes may use the same
//! file; then the writers wait for each other.

mod change;
mod commit;
mod error;
mod migrate;
mod order;
mod script;
mod survey;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use earmark_admission::{Answer, private_file, restrict};
use earmark_core::UnixMs;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteRow, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, Row as _, Sqlite};
use tokio::sync::Mutex;

use crate::model::Record;
use crate::sql::database::{Database, Row, Value};
use crate::sql::pool::{Pool, SessionSql};
use crate::sql::store::{SqlStore, entry_sql, start};
use crate::store::{Change, StoreError, Survey};
use error::{refused, unknown};

/// Settings of a SQLite store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqliteOptions {
    /// Concurrent reads.
    pub readers: u32,
    /// How long to wait for a lock that another process holds on the file.
    pub busy_timeout: Duration,
    /// Whether the wall clock of the machine is the shared clock, as it must be if several processes use the file.
    pub keeps_time: bool,
}

impl Default for SqliteOptions {
    fn default() -> SqliteOptions {
        SqliteOptions { readers: 4, busy_timeout: Duration::from_secs(5), keeps_time: true }
    }
}

/// Prepared statements per connection. Lists of changes and surveys have a few dozen shapes.
const STATEMENTS_MAX: usize = 256;

/// A store in a SQLite file.
pub type SqliteStore = SqlStore<SqliteDatabase>;

/// A SQLite file.
pub struct SqliteDatabase {
    path: PathBuf,
    options: SqliteOptions,
    readers: Pool<Sqlite>,
    /// `None` after the store was closed.
    writer: Mutex<Option<SqliteConnection>>,
}

impl SqliteStore {
    /// Opens a file; creates it and its tables if they are missing.
    ///
    /// # Errors
    /// When the file cannot be used, or a later version wrote it.
    pub fn open(path: &Path, options: SqliteOptions) -> Answer<'_, Result<SqliteStore, StoreError>> {
        Box::pin(SqliteStore::start(path, options))
    }

    async fn start(path: &Path, options: SqliteOptions) -> Result<SqliteStore, StoreError> {
        create(path);
        let mut connection = connect(path, &options).await?;
        migrate::migrate(&mut connection).await?;
        restrict_files(path);
        let reader = file(path, &options).read_only(true);
        let readers = Pool::new(reader, SessionSql::default(), options.readers, options.busy_timeout);
        let (path, writer) = (path.to_owned(), Mutex::new(Some(connection)));
        Ok(start(SqliteDatabase { path, options, readers, writer }, 1))
    }
}

/// Creates a missing file for its owner only. SQLite gives its companions the permissions of the file, and reports a path
/// that cannot be used.
fn create(path: &Path) {
    _ = private_file().write(true).create_new(true).open(path);
}

/// Takes the file and its companions from other users. The path may be a link: SQLite puts the companions beside the file
/// that it leads to.
fn restrict_files(path: &Path) {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    for suffix in ["", "-wal", "-shm"] {
        let mut file = path.as_os_str().to_owned();
        file.push(suffix);
        restrict(Path::new(&file));
    }
}

fn file(path: &Path, options: &SqliteOptions) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .busy_timeout(options.busy_timeout)
        .statement_cache_capacity(STATEMENTS_MAX)
        .disable_statement_logging()
}

async fn connect(path: &Path, options: &SqliteOptions) -> Result<SqliteConnection, StoreError> {
    let file = file(path, options)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full);
    SqliteConnection::connect_with(&file).await.map_err(refused)
}

impl Row for SqliteRow {
    fn text_or_null(&self, column: &'static str) -> Result<Option<String>, StoreError> {
        self.try_get(column).map_err(refused)
    }

    fn int_or_null(&self, column: &'static str) -> Result<Option<i64>, StoreError> {
        self.try_get(column).map_err(refused)
    }
}

impl SqliteDatabase {
    /// Runs some work on the writing connection in one transaction.
    async fn transact<T>(
        &self,
        work: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut writer = self.writer.lock().await;
        let Some(connection) = writer.as_mut() else { return Err(StoreError::Busy("closed")) };
        let result = in_transaction(connection, work).await;
        if result.is_err() && is_stuck(connection).await {
            match connect(&self.path, &self.options).await {
                Ok(fresh) => *connection = fresh,
                Err(error) => tracing::warn!(%error, "cannot reopen the credit file"),
            }
        }
        result
    }
}

async fn in_transaction<T>(
    connection: &mut SqliteConnection,
    work: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    // Takes the write lock at once: a transaction that starts with a read could not get it later.
    let mut transaction = connection.begin_with("begin immediate").await.map_err(refused)?;
    match work(&mut transaction).await {
        Ok(done) => {
            transaction.commit().await.map_err(unknown)?;
            Ok(done)
        }
        Err(error) => {
            // If the rollback fails, the transaction ends with the connection.
            let _ = transaction.rollback().await;
            Err(error)
        }
    }
}

/// Whether sqlx believes that a transaction is open. When a disk is full, SQLite ends it alone, and sqlx would never
/// begin another.
async fn is_stuck(connection: &mut SqliteConnection) -> bool {
    // The ping also waits for a pending rollback.
    connection.ping().await.is_err() || connection.is_in_transaction()
}

// One writer at a time commits, so every transaction has its own place.
macro_rules! transactions_sql {
    ($filter:literal) => {
        concat!(
            "select cast(t.place as text) as commit_id, e.namespace, e.vault, e.number, e.wall_ms,
                case when $4 is null or e.namespace = $4 then e.body end as body
             from (select * from transactions ",
            $filter,
            " place < cast($1 as integer) + ($2 = 0) order by place desc limit $3) t
             join entries e using (namespace, vault, number) order by t.place desc"
        )
    };
}

impl Database for SqliteDatabase {
    type Row = SqliteRow;

    const HISTORY: &'static str = entry_sql!(
        "from (select distinct namespace, vault, number from changes
             where namespace = $1 and vault = $2 and account = $3 and number > $4 order by number limit $5)
         join entries e using (namespace, vault, number) join changes c using (namespace, vault, number)
         order by e.number, c.account, c.asset"
    );

    const HISTORY_NEWEST: &'static str = entry_sql!(
        "from (select distinct namespace, vault, number from changes
             where namespace = $1 and vault = $2 and account = $3 and number < $4 order by number desc limit $5)
         join entries e using (namespace, vault, number) join changes c using (namespace, vault, number)
         order by e.number desc, c.account, c.asset"
    );

    // The sums may exceed 64 bits, so they are not made in SQL. Few postings are pending, so their index may be
    // scanned.
    const FUNDS: &'static str = "
        select asset, 'active' as part, amount from postings
        where namespace = $1 and vault = $2 and account = $3 and state = 'active' and lease is null and priority is null
        union all
        select asset, iif(expires_at_ms <= $5, 'expired', 'active'), amount from postings
        where namespace = $1 and vault = $2 and account = $3 and priority is not null and state <> 'inactive'
        and state = 'active'
        union all
        select asset, 'pending', amount from postings indexed by postings_pending
        where state = 'pending' and lease is null and namespace = $1 and vault = $2 and account = $3
        union all
        select asset, iif(ends_at_ms <= $4, 'due', 'held'), amount from postings
        where namespace = $1 and vault = $2 and account = $3 and lease is not null and state <> 'inactive'
        union all
        select asset, 'kept', kept from postings
        where namespace = $1 and vault = $2 and account = $3 and ends_at_ms <= $4
        and lease is not null and state <> 'inactive'";

    const SPENDABLE: &'static str = "
        select 'active' as part, amount from postings
        where namespace = $1 and vault = $2 and account = $3 and asset = $5
        and state = 'active' and lease is null and priority is null
        union all
        select 'active', amount from postings
        where namespace = $1 and vault = $2 and account = $3 and asset = $5 and priority is not null
        and state <> 'inactive' and state = 'active' and (expires_at_ms is null or expires_at_ms > $6)
        union all
        select 'pending', amount from postings indexed by postings_pending
        where state = 'pending' and lease is null and namespace = $1 and vault = $2 and account = $3 and asset = $5
        union all
        select 'due', amount from postings
        where namespace = $1 and vault = $2 and account = $3 and asset = $5 and ends_at_ms <= $4
        and lease is not null and state <> 'inactive'
        union all
        select 'kept', kept from postings
        where namespace = $1 and vault = $2 and account = $3 and asset = $5 and ends_at_ms <= $4
        and lease is not null and state <> 'inactive'";

    const TRANSACTIONS: &'static str = transactions_sql!("where");
    const TRANSACTIONS_BY: &'static str = transactions_sql!("indexed by transactions_actor where actor = $5 and");

    const USAGE: &'static str = "
        select k.key as place, u.used from json_each($1) k cross join quota_usage u
        where u.namespace = k.value->>0 and u.vault = k.value->>1 and u.kind = k.value->>2";

    // Sums by halves of 32 bits, which a billion rows cannot overflow, and the rows above 62 bits one by one.
    const CENSUS: &'static str = "
        with parts (asset, account, exact, rough) as (
            select asset, account, amount, amount_order from changes where namespace = $1 and vault = $2
            union all select asset, account, held, held_order from changes where namespace = $1 and vault = $2)
        select 'issued' as part, asset, null as account, issued as amount, null as low from assets
        where namespace = $1 and vault = $2
        union all
        select 'retired', asset, null, retired, null from assets where namespace = $1 and vault = $2
        union all
        select 'expired', asset, null, expired, null from assets where namespace = $1 and vault = $2
        union all
        select 'live', asset, account, cast(sum(amount_order >> 32) as text), sum(amount_order & 4294967295)
        from postings where namespace = $1 and vault = $2 and state <> 'inactive'
        and abs(amount_order) < 4611686018427387904 group by asset, account
        union all
        select 'live', asset, account, amount, null from postings
        where namespace = $1 and vault = $2 and state <> 'inactive' and abs(amount_order) >= 4611686018427387904
        union all
        select 'entered', asset, account, cast(sum(rough >> 32) as text), sum(rough & 4294967295) from parts
        where abs(rough) < 4611686018427387904 group by asset, account
        union all
        select 'entered', asset, account, exact, null from parts where abs(rough) >= 4611686018427387904
        union all
        select 'plan', null, null, plan, null from sagas";

    async fn read<const N: usize>(&self, sql: &'static str, values: [Value; N]) -> Result<Vec<SqliteRow>, StoreError> {
        let mut pooled = self.readers.acquire().await?;
        let found = script::bind(sqlx::query(sql), values).fetch_all(&mut pooled.connection).await;
        let found = found.map_err(refused)?;
        pooled.release();
        Ok(found)
    }

    async fn survey(&self, survey: &Survey) -> Result<Vec<SqliteRow>, StoreError> {
        let mut pooled = self.readers.acquire().await?;
        let found = survey::script(survey).run_at_once(&mut pooled.connection).await.map_err(refused)?;
        pooled.release();
        Ok(found)
    }

    async fn census(&self, values: [Value; 2]) -> Result<Vec<SqliteRow>, StoreError> {
        self.read(Self::CENSUS, values).await
    }

    async fn commit(&self, plans: &[Arc<Record>]) -> Result<Vec<bool>, StoreError> {
        self.transact(async |connection| commit::commit(connection, plans).await).await
    }

    async fn write(&self, lists: &[Vec<Change>]) -> Result<Vec<Vec<u64>>, StoreError> {
        let write_all = async |connection: &mut SqliteConnection| {
            let mut counts = Vec::with_capacity(lists.len());
            for list in lists {
                counts.push(change::write(connection, list).await?);
            }
            Ok(counts)
        };
        self.transact(write_all).await
    }

    async fn time(&self) -> Result<Option<UnixMs>, StoreError> {
        // Processes that share a file share a machine, because its index is in shared memory.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = UnixMs::new(u64::try_from(now.as_millis()).unwrap_or(u64::MAX));
        Ok(self.options.keeps_time.then_some(now))
    }

    async fn close(&self) {
        if let Some(writer) = self.writer.lock().await.take() {
            let _ = writer.close().await;
        }
        self.readers.close().await;
    }
}
