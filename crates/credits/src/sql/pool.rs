//! A connection pool.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Database, Executor};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout_at;

use crate::store::StoreError;

/// An idle connection older than this is pinged before use: a firewall may have cut it, or the database may have
/// restarted.
const DOUBT_AFTER: Duration = Duration::from_secs(1);

type Options<DB> = <<DB as Database>::Connection as Connection>::Options;

/// SQL that prepares a connection.
#[derive(Default)]
pub(crate) struct SessionSql {
    /// Run on a new connection.
    pub(crate) setup: Option<String>,
    /// Run before use when this much time has passed since the last run.
    pub(crate) refresh: Option<(&'static str, Duration)>,
}

/// A bounded set of connections. A connection that failed, or whose caller was cancelled, is dropped, because its state
/// is unknown. That, and a round trip per use, is why this is not sqlx's own pool.
pub(crate) struct Pool<DB: Database> {
    options: Options<DB>,
    session: SessionSql,
    wait: Duration,
    free: Semaphore,
    idle: Mutex<Vec<Idle<DB>>>,
}

/// An idle connection.
struct Idle<DB: Database> {
    connection: DB::Connection,
    since: Instant,
    renewed: Instant,
}

/// A connection in use.
pub(crate) struct PooledConnection<'a, DB: Database> {
    pool: &'a Pool<DB>,
    pub(crate) connection: DB::Connection,
    renewed: Instant,
    _permit: SemaphorePermit<'a>,
}

impl<DB: Database> Pool<DB>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    pub(crate) fn new(options: Options<DB>, session: SessionSql, size: u32, wait: Duration) -> Pool<DB> {
        let free = Semaphore::new(usize::try_from(size.max(1)).unwrap_or(1));
        Pool { options, session, wait, free, idle: Mutex::new(Vec::new()) }
    }

    /// Waits for a connection. After an error nothing was done.
    pub(crate) async fn acquire(&self) -> Result<PooledConnection<'_, DB>, StoreError> {
        let until = tokio::time::Instant::now().checked_add(self.wait);
        let until = until.unwrap_or_else(tokio::time::Instant::now);
        let permit = match timeout_at(until, self.free.acquire()).await {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) => return Err(StoreError::Busy("closed")),
            Err(_) => return Err(StoreError::Busy("no connection was free in time")),
        };
        while let Some(mut idle) = self.take() {
            if matches!(timeout_at(until, self.check(&mut idle)).await, Ok(Ok(()))) {
                let Idle { connection, renewed, .. } = idle;
                return Ok(PooledConnection { pool: self, connection, renewed, _permit: permit });
            }
        }
        match timeout_at(until, self.connect()).await {
            Ok(Ok(connection)) => {
                Ok(PooledConnection { pool: self, connection, renewed: Instant::now(), _permit: permit })
            }
            Ok(Err(error)) => Err(connect_error(&error)),
            Err(_) => Err(StoreError::Busy("could not connect in time")),
        }
    }

    /// Checks that an idle connection is usable.
    async fn check(&self, idle: &mut Idle<DB>) -> Result<(), sqlx::Error> {
        match self.session.refresh {
            Some((refresh, after)) if idle.renewed.elapsed() >= after => {
                sqlx::raw_sql(refresh).execute(&mut idle.connection).await?;
                idle.renewed = Instant::now();
                Ok(())
            }
            _ if idle.since.elapsed() < DOUBT_AFTER => Ok(()),
            _ => idle.connection.ping().await,
        }
    }

    async fn connect(&self) -> Result<DB::Connection, sqlx::Error> {
        let mut connection = self.options.connect().await?;
        if let Some(setup) = &self.session.setup {
            sqlx::raw_sql(AssertSqlSafe(setup.as_str())).execute(&mut connection).await?;
        }
        Ok(connection)
    }

    fn take(&self) -> Option<Idle<DB>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// Refuses further calls and closes the idle connections.
    pub(crate) async fn close(&self) {
        self.free.close();
        while let Some(idle) = self.take() {
            let _ = idle.connection.close().await;
        }
    }
}

/// Tells a database that is away for now from one that refuses the user, the password, the database name or the
/// certificate.
fn connect_error(error: &sqlx::Error) -> StoreError {
    let why = match error {
        // The full error includes a line of the database's own source code.
        sqlx::Error::Database(database) => database.message().to_owned(),
        other => other.to_string(),
    };
    let message = format!("cannot connect: {why}");
    let is_away = match error {
        // An untrusted certificate is reported as invalid data.
        sqlx::Error::Io(error) => error.kind() != std::io::ErrorKind::InvalidData,
        // Shutdown or startup, too many connections, broken connection.
        sqlx::Error::Database(database) => {
            database.code().is_some_and(|code| ["57P", "53", "08"].iter().any(|class| code.starts_with(class)))
        }
        _ => false,
    };
    if is_away { StoreError::Unreachable(message) } else { StoreError::Refused(message) }
}

impl<DB: Database> PooledConnection<'_, DB> {
    /// Returns a connection that is between two calls.
    pub(crate) fn release(self) {
        if !self.pool.free.is_closed() {
            let PooledConnection { connection, renewed, .. } = self;
            let mut idle = self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.push(Idle { connection, since: Instant::now(), renewed });
        }
    }
}
