//! The rows in a file of SQLite, for one machine.
//!
//! One writer makes the changes of all calls that wait inside one transaction, and they are answered when it is on disk.
//! Reads have connections of their own and see what was committed. Other processes may use the same file; then writers wait
//! for each other.

mod change;
mod commit;
mod error;
mod log;
mod migrate;
mod order;
mod read;
mod record;
mod script;
mod survey;
#[cfg(test)]
mod tests;
mod writer;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use earmark_admission::{Answer, CreditCursor};
use earmark_core::{AssetName, NamespaceName, UnixMs};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, Sqlite};
use tokio::task::JoinHandle;

use crate::id::{GateId, OwnerId, ReservationId};
use crate::model::{AccountKey, LeaseKey, Posting, PostingState, StoredEntry, StoredRecord, VaultKey};
use crate::sql::pool::{Pool, SessionSql};
use crate::sql::queue::Queue;
use crate::sql::surveys::{self, SURVEYORS, Surveys};
use crate::store::{
    CHANGES_MAX, Census, Change, DueQuery, Filter, FindRecord, Funds, RecordPage, Records, Spendable,
    StaleOwners, Store, StoreError, Survey, Surveyed, Transactions,
};
use error::refused;

/// How a file is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqliteOptions {
    /// So many reads at once.
    pub readers: u32,
    /// So long another process may hold the file before a call fails.
    pub busy_timeout: Duration,
    /// Whether the wall clock of the machine is everybody's, as it must be where several processes use the file.
    pub keeps_time: bool,
}

impl Default for SqliteOptions {
    fn default() -> SqliteOptions {
        SqliteOptions { readers: 4, busy_timeout: Duration::from_secs(5), keeps_time: true }
    }
}

/// So many statements stay prepared per connection: lists of changes come in a few dozen shapes.
const STATEMENTS_MAX: usize = 256;

/// The rows in a file.
pub struct SqliteStore {
    queue: Queue<Vec<Change>, Vec<u64>>,
    surveys: Surveys,
    workers: Mutex<Vec<JoinHandle<()>>>,
    readers: Arc<Readers>,
    keeps_time: bool,
}

impl SqliteStore {
    /// Opens a file, makes it if there is none, and brings its schema up to date.
    ///
    /// # Errors
    /// When the file cannot be used, or was written by a later version.
    pub async fn open(path: &Path, options: SqliteOptions) -> Result<SqliteStore, StoreError> {
        let mut connection = connect(path, &options).await?;
        migrate::migrate(&mut connection, migrate::VERSIONS.len()).await?;
        let reader = file(path, &options).read_only(true);
        let readers = Pool::new(reader, SessionSql::default(), options.readers, options.busy_timeout);
        let readers = Arc::new(Readers(readers));
        let (queue, waiting) = Queue::new();
        let keeps_time = options.keeps_time;
        let mut workers = vec![tokio::spawn(writer::work(waiting, connection, path.to_owned(), options))];
        let (surveys, waiting) = Surveys::new();
        for _ in 0..SURVEYORS {
            let readers = Arc::clone(&readers);
            let look = move |survey: Survey| {
                let readers = Arc::clone(&readers);
                async move { readers.read(async move |reader| survey::survey(reader, &survey).await).await }
            };
            workers.push(tokio::spawn(surveys::work(waiting.clone(), look)));
        }
        Ok(SqliteStore { queue, surveys, workers: Mutex::new(workers), readers, keeps_time })
    }
}

/// Connections that only read.
struct Readers(Pool<Sqlite>);

impl Readers {
    /// Reads with a connection that nobody else uses meanwhile.
    async fn read<T>(
        &self,
        look: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut pooled = self.0.acquire().await?;
        let found = look(&mut pooled.connection).await?;
        pooled.release();
        Ok(found)
    }
}

fn wall_time() -> UnixMs {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixMs::new(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
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

impl Store for SqliteStore {
    fn write(&self, changes: Vec<Change>) -> Answer<'_, Result<Vec<u64>, StoreError>> {
        debug_assert!(changes.len() <= CHANGES_MAX, "a list of changes is bounded");
        Box::pin(self.queue.ask(changes))
    }

    fn survey(&self, survey: Survey) -> Answer<'_, Result<Surveyed, StoreError>> {
        Box::pin(async move {
            match surveys::is_shared(&survey) {
                true => self.surveys.ask(survey).await,
                false => self.readers.read(async move |reader| survey::survey(reader, &survey).await).await,
            }
        })
    }

    fn entries(&self, gate: GateId) -> Answer<'_, Result<Vec<StoredEntry>, StoreError>> {
        Box::pin(self.readers.read(async move |reader| read::entries(reader, gate).await))
    }

    fn lease(&self, lease: LeaseKey) -> Answer<'_, Result<Vec<StoredEntry>, StoreError>> {
        Box::pin(self.readers.read(async move |reader| read::lease(reader, &lease).await))
    }

    fn held(&self, lease: LeaseKey) -> Answer<'_, Result<Vec<(Posting, PostingState)>, StoreError>> {
        Box::pin(self.readers.read(async move |reader| read::held(reader, &lease).await))
    }

    fn record(&self, find: FindRecord) -> Answer<'_, Result<Option<StoredRecord>, StoreError>> {
        Box::pin(self.readers.read(async move |reader| read::record(reader, &find).await))
    }

    fn records(&self, filter: Filter, page: RecordPage) -> Answer<'_, Result<Records, StoreError>> {
        Box::pin(self.readers.read(async move |reader| read::records(reader, &filter, &page).await))
    }

    fn stale_owners(&self, gone: StaleOwners, max: usize) -> Answer<'_, Result<Vec<OwnerId>, StoreError>> {
        Box::pin(self.readers.read(async move |reader| read::stale_owners(reader, gone, max).await))
    }

    fn orphans(&self, max: usize) -> Answer<'_, Result<Vec<ReservationId>, StoreError>> {
        Box::pin(self.readers.read(async move |reader| read::orphans(reader, max).await))
    }

    fn due(&self, due: DueQuery, max: usize) -> Answer<'_, Result<Vec<Posting>, StoreError>> {
        Box::pin(self.readers.read(async move |reader| read::due(reader, &due, max).await))
    }

    fn funds(&self, account: AccountKey, now: UnixMs) -> Answer<'_, Result<Vec<Funds>, StoreError>> {
        Box::pin(self.readers.read(async move |reader| survey::funds(reader, &account, now).await))
    }

    fn spendable(
        &self,
        account: AccountKey,
        asset: AssetName,
        now: UnixMs,
    ) -> Answer<'_, Result<Spendable, StoreError>> {
        let read =
            async move |reader: &mut SqliteConnection| survey::spendable(reader, &account, &asset, now).await;
        Box::pin(self.readers.read(read))
    }

    fn assets_of(&self, account: AccountKey) -> Answer<'_, Result<Vec<AssetName>, StoreError>> {
        Box::pin(self.readers.read(async move |reader| read::assets_of(reader, &account).await))
    }

    fn history(
        &self,
        account: AccountKey,
        after: u64,
        max: usize,
    ) -> Answer<'_, Result<Vec<StoredEntry>, StoreError>> {
        Box::pin(self.readers.read(async move |reader| read::history(reader, &account, after, max).await))
    }

    fn transactions(
        &self,
        namespace: Option<NamespaceName>,
        after: CreditCursor,
        max: usize,
    ) -> Answer<'_, Result<Transactions, StoreError>> {
        let read = async move |reader: &mut SqliteConnection| {
            log::transactions(reader, namespace.as_ref(), after, max).await
        };
        Box::pin(self.readers.read(read))
    }

    fn census(&self, home: VaultKey) -> Answer<'_, Result<Census, StoreError>> {
        Box::pin(self.readers.read(async move |reader| survey::census(reader, &home).await))
    }

    fn clients(&self) -> Answer<'_, Result<u64, StoreError>> {
        Box::pin(self.readers.read(async move |reader| read::clients(reader).await))
    }

    fn time(&self) -> Answer<'_, Result<Option<UnixMs>, StoreError>> {
        // Processes that share a file share a machine, for its log is in memory that they share.
        let wall = self.keeps_time.then(wall_time);
        Box::pin(std::future::ready(Ok(wall)))
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            self.queue.close();
            self.surveys.close();
            let workers = std::mem::take(&mut *self.workers.lock().unwrap_or_else(PoisonError::into_inner));
            for worker in workers {
                let _ = worker.await;
            }
            self.readers.0.close().await;
        })
    }
}
