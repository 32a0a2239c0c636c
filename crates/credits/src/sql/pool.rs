//! Connections that wait to be used again.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Database, Executor};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout_at;

use crate::store::StoreError;

/// A connection that waited for longer is asked whether it is still there: a firewall may have cut it, or the database may
/// have started again.
const DOUBT_AFTER: Duration = Duration::from_secs(1);

type Options<DB> = <<DB as Database>::Connection as Connection>::Options;

/// So many connections at most. One that failed, or whose caller went away, is dropped and never used again: nobody knows
/// what it is in the middle of. That, and a round trip per use, is why this is not sqlx's own pool.
pub(crate) struct Pool<DB: Database> {
    options: Options<DB>,
    greeting: Option<String>,
    wait: Duration,
    free: Semaphore,
    idle: Mutex<Vec<(DB::Connection, Instant)>>,
}

/// A connection in use.
pub(crate) struct Lent<'a, DB: Database> {
    pool: &'a Pool<DB>,
    pub(crate) connection: DB::Connection,
    _permit: SemaphorePermit<'a>,
}

impl<DB: Database> Pool<DB>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    /// Connections that are greeted with some SQL, if they need settings.
    pub(crate) fn new(options: Options<DB>, greeting: Option<String>, size: u32, wait: Duration) -> Pool<DB> {
        let free = Semaphore::new(usize::try_from(size.max(1)).unwrap_or(1));
        Pool { options, greeting, wait, free, idle: Mutex::new(Vec::new()) }
    }

    /// Waits for a connection. Whatever goes wrong here, nothing was done.
    pub(crate) async fn lend(&self) -> Result<Lent<'_, DB>, StoreError> {
        let until = tokio::time::Instant::now().checked_add(self.wait);
        let until = until.unwrap_or_else(tokio::time::Instant::now);
        let permit = match timeout_at(until, self.free.acquire()).await {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) => return Err(StoreError::Busy("it is closed")),
            Err(_) => return Err(StoreError::Busy("no connection was free in time")),
        };
        while let Some((mut connection, since)) = self.take() {
            let is_sure = since.elapsed() < DOUBT_AFTER;
            if is_sure || matches!(timeout_at(until, connection.ping()).await, Ok(Ok(()))) {
                return Ok(Lent { pool: self, connection, _permit: permit });
            }
        }
        match timeout_at(until, self.connect()).await {
            Ok(Ok(connection)) => Ok(Lent { pool: self, connection, _permit: permit }),
            Ok(Err(error)) => Err(unconnected(&error)),
            Err(_) => Err(StoreError::Busy("no connection to it was made in time")),
        }
    }

    async fn connect(&self) -> Result<DB::Connection, sqlx::Error> {
        let mut connection = self.options.connect().await?;
        if let Some(greeting) = &self.greeting {
            sqlx::raw_sql(AssertSqlSafe(greeting.as_str())).execute(&mut connection).await?;
        }
        Ok(connection)
    }

    fn take(&self) -> Option<(DB::Connection, Instant)> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// Lends no more, and closes those that are not in use.
    pub(crate) async fn close(&self) {
        self.free.close();
        while let Some((connection, _)) = self.take() {
            let _ = connection.close().await;
        }
    }
}

/// Whether there is nobody at the other end, for now, or somebody who says no: to the user, the password, the name of the
/// database, the certificate.
fn unconnected(error: &sqlx::Error) -> StoreError {
    let message = format!("there is no connection to it: {error}");
    let is_away = match error {
        // A certificate that is not trusted is invalid data.
        sqlx::Error::Io(error) => error.kind() != std::io::ErrorKind::InvalidData,
        // It starts, it stops, it has no connection left, the line broke.
        sqlx::Error::Database(database) => database
            .code()
            .is_some_and(|code| ["57P", "53", "08"].iter().any(|class| code.starts_with(class))),
        _ => false,
    };
    if is_away { StoreError::Unreachable(message) } else { StoreError::Refused(message) }
}

impl<DB: Database> Lent<'_, DB> {
    /// Gives the connection back, which is between two calls.
    pub(crate) fn done(self) {
        if !self.pool.free.is_closed() {
            let mut idle = self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.push((self.connection, Instant::now()));
        }
    }
}
