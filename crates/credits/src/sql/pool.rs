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

/// SQL that a connection is told.
#[derive(Default)]
pub(crate) struct Words {
    /// First, if it needs settings.
    pub(crate) greeting: Option<String>,
    /// Again whenever so much time has passed, before it is used.
    pub(crate) renewal: Option<(&'static str, Duration)>,
}

/// So many connections at most. One that failed, or whose caller went away, is dropped and never used again: nobody knows
/// what it is in the middle of. That, and a round trip per use, is why this is not sqlx's own pool.
pub(crate) struct Pool<DB: Database> {
    options: Options<DB>,
    words: Words,
    wait: Duration,
    free: Semaphore,
    idle: Mutex<Vec<Idle<DB>>>,
}

/// A connection that waits to be used.
struct Idle<DB: Database> {
    connection: DB::Connection,
    since: Instant,
    renewed: Instant,
}

/// A connection in use.
pub(crate) struct Lent<'a, DB: Database> {
    pool: &'a Pool<DB>,
    pub(crate) connection: DB::Connection,
    renewed: Instant,
    _permit: SemaphorePermit<'a>,
}

impl<DB: Database> Pool<DB>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    pub(crate) fn new(options: Options<DB>, words: Words, size: u32, wait: Duration) -> Pool<DB> {
        let free = Semaphore::new(usize::try_from(size.max(1)).unwrap_or(1));
        Pool { options, words, wait, free, idle: Mutex::new(Vec::new()) }
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
        while let Some(mut idle) = self.take() {
            if matches!(timeout_at(until, self.rouse(&mut idle)).await, Ok(Ok(()))) {
                let Idle { connection, renewed, .. } = idle;
                return Ok(Lent { pool: self, connection, renewed, _permit: permit });
            }
        }
        match timeout_at(until, self.connect()).await {
            Ok(Ok(connection)) => {
                Ok(Lent { pool: self, connection, renewed: Instant::now(), _permit: permit })
            }
            Ok(Err(error)) => Err(unconnected(&error)),
            Err(_) => Err(StoreError::Busy("no connection to it was made in time")),
        }
    }

    /// Makes sure that a connection is fit to be used.
    async fn rouse(&self, idle: &mut Idle<DB>) -> Result<(), sqlx::Error> {
        match self.words.renewal {
            Some((renewal, after)) if idle.renewed.elapsed() >= after => {
                sqlx::raw_sql(renewal).execute(&mut idle.connection).await?;
                idle.renewed = Instant::now();
                Ok(())
            }
            _ if idle.since.elapsed() < DOUBT_AFTER => Ok(()),
            _ => idle.connection.ping().await,
        }
    }

    async fn connect(&self) -> Result<DB::Connection, sqlx::Error> {
        let mut connection = self.options.connect().await?;
        if let Some(greeting) = &self.words.greeting {
            sqlx::raw_sql(AssertSqlSafe(greeting.as_str())).execute(&mut connection).await?;
        }
        Ok(connection)
    }

    fn take(&self) -> Option<Idle<DB>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// Lends no more, and closes those that are not in use.
    pub(crate) async fn close(&self) {
        self.free.close();
        while let Some(idle) = self.take() {
            let _ = idle.connection.close().await;
        }
    }
}

/// Whether there is nobody at the other end, for now, or somebody who says no: to the user, the password, the name of the
/// database, the certificate.
fn unconnected(error: &sqlx::Error) -> StoreError {
    let why = match error {
        // Without the line of the database's own source.
        sqlx::Error::Database(database) => database.message().to_owned(),
        other => other.to_string(),
    };
    let message = format!("there is no connection to it: {why}");
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
            let Lent { connection, renewed, .. } = self;
            let mut idle = self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.push(Idle { connection, since: Instant::now(), renewed });
        }
    }
}
