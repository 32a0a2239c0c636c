//! `--credits`: opens the credit database.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use earmark_admission::{Credits, SystemClock};
use earmark_credits::{
    OpenStore, Options, PostgresOptions, PostgresStore, SagaCredits, SqliteOptions, SqliteStore, Store, StoreError,
};

use crate::failure::Failure;

const ALLOWED: &str = "allowed are sqlite:PATH and postgres://USER:PASSWORD@HOST/DATABASE";

/// The URL of a credit database. `Display` and `Debug` hide the password.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum CreditsUrl {
    Sqlite(PathBuf),
    /// The full PostgreSQL URL.
    Postgres(String),
}

impl CreditsUrl {
    /// Parses a URL. `source` is the flag or variable that it comes from.
    pub(super) fn parse(source: &str, text: &str) -> Result<CreditsUrl, String> {
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            return Ok(CreditsUrl::Postgres(text.to_owned()));
        }
        let Some(path) = text.strip_prefix("sqlite:") else {
            // The URL of an unsupported database may contain a password too.
            let shown = text.split_once("://").map_or_else(|| text.to_owned(), |(kind, _)| format!("{kind}://..."));
            return Err(format!("{source}: found {shown:?}, {ALLOWED}"));
        };
        // Both forms are in use: sqlite:file and sqlite:///folder/file.
        let path = path.strip_prefix("//").unwrap_or(path);
        if path.is_empty() || path.starts_with(':') {
            return Err(format!("{source}: found {path:?} as a path, allowed is the path of a file"));
        }
        Ok(CreditsUrl::Sqlite(PathBuf::from(path)))
    }

    /// Whether the URL contains a password.
    pub(super) fn has_password(&self) -> bool {
        let CreditsUrl::Postgres(url) = self else { return false };
        let (_, target) = url.split_once("://").unwrap_or_default();
        let (target, query) = target.split_once('?').unwrap_or((target, ""));
        let user = target.rsplit_once('@').map_or("", |(user, _)| user);
        user.contains(':') || query.split('&').any(|parameter| parameter.starts_with("password="))
    }
}

impl fmt::Debug for CreditsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for CreditsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CreditsUrl::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            // A query parameter may hold a password too.
            CreditsUrl::Postgres(url) => {
                let (_, target) = url.split_once("://").unwrap_or_default();
                let (target, _) = target.split_once('?').unwrap_or((target, ""));
                let (user, host) = target.rsplit_once('@').unwrap_or(("", target));
                let (user, _) = user.split_once(':').unwrap_or((user, ""));
                let at = if user.is_empty() { "" } else { "@" };
                write!(f, "postgres://{user}{at}{host}")
            }
        }
    }
}

/// Opens the database and finishes the sagas of an earlier process. Waits in the background for a database that is
/// down. Fails if the database refuses the connection or has a newer format.
pub(super) async fn open(url: &CreditsUrl) -> Result<Arc<dyn Credits>, Failure> {
    let clock = Arc::new(SystemClock::new());
    let open: OpenStore = Box::new({
        let url = url.clone();
        move || Box::pin(open_store(url.clone()))
    });
    let started = SagaCredits::open(open, clock, Options::default()).await;
    let failed = |error: StoreError| Failure::Usage(format!("--credits: cannot use {url}: {error}"));
    Ok(Arc::new(started.map_err(failed)?))
}

async fn open_store(url: CreditsUrl) -> Result<Arc<dyn Store>, StoreError> {
    Ok(match url {
        CreditsUrl::Sqlite(path) => Arc::new(SqliteStore::open(&path, SqliteOptions::default()).await?),
        CreditsUrl::Postgres(url) => Arc::new(PostgresStore::open(&url, PostgresOptions::default()).await?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_is_named_by_its_kind_and_its_path() {
        for (text, path) in [
            ("sqlite:credit.db", "credit.db"),
            ("sqlite:/var/lib/credit.db", "/var/lib/credit.db"),
            ("sqlite:///var/lib/credit.db", "/var/lib/credit.db"),
        ] {
            let url: CreditsUrl = CreditsUrl::parse("--credits", text).unwrap();
            assert_eq!(url, CreditsUrl::Sqlite(PathBuf::from(path)));
            assert_eq!(url.to_string(), format!("sqlite:{path}"));
        }
    }

    #[test]
    fn a_password_is_in_no_banner_and_no_message() {
        for (text, shown) in [
            (
                "postgres://earmark:secret@db.internal:5432/money?sslmode=require",
                "postgres://earmark@db.internal:5432/money",
            ),
            ("postgresql://earmark:s@cret@db/money", "postgres://earmark@db/money"),
            ("postgres://db/money?password=secret", "postgres://db/money"),
            ("postgres:///money", "postgres:///money"),
        ] {
            let url: CreditsUrl = CreditsUrl::parse("--credits", text).unwrap();
            assert_eq!((url.to_string(), format!("{url:?}")), (shown.into(), shown.into()));
        }
        let refused = CreditsUrl::parse("--credits", "mysql://earmark:secret@db/money").unwrap_err();
        assert!(refused.contains("mysql://...") && !refused.contains("secret"), "{refused}");
    }

    #[test]
    fn an_invalid_url_is_refused_with_the_allowed_forms() {
        for (text, part) in [
            ("credit.db", "found \"credit.db\", allowed are sqlite:PATH and postgres://"),
            ("mysql://localhost", "allowed are sqlite:PATH"),
            ("sqlite:", "found \"\" as a path"),
            ("sqlite::memory:", "found \":memory:\" as a path"),
        ] {
            let error = CreditsUrl::parse("--credits", text).unwrap_err();
            assert!(error.starts_with("--credits: ") && error.contains(part), "{text}: {error}");
        }
    }
}
