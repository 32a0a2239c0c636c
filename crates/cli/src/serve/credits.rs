//! Credit in a database.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use earmark_admission::{Credits, SystemClock};
use earmark_credits::{Options, SagaCredits, SqliteOptions, SqliteStore, Store, StoreError};

use crate::failure::Failure;

const ALLOWED: &str = "allowed is sqlite:PATH";

/// Where a database is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CreditsUrl {
    /// In a file of this machine.
    Sqlite(PathBuf),
}

impl FromStr for CreditsUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<CreditsUrl, String> {
        let Some(path) = text.strip_prefix("sqlite:") else {
            return Err(format!("--credits: found {text:?}, {ALLOWED}"));
        };
        // Both forms are about: sqlite:file and sqlite:///folder/file.
        let path = path.strip_prefix("//").unwrap_or(path);
        if path.is_empty() || path.starts_with(':') {
            return Err(format!("--credits: found {path:?} as a path, allowed is that of a file"));
        }
        Ok(CreditsUrl::Sqlite(PathBuf::from(path)))
    }
}

impl fmt::Display for CreditsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CreditsUrl::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
        }
    }
}

/// Opens the database and finishes what an earlier process left in it.
pub(super) async fn open(url: &CreditsUrl) -> Result<Arc<dyn Credits>, Failure> {
    let failed = |error: StoreError| Failure::Usage(format!("--credits: cannot use {url}: {error}"));
    let store: Arc<dyn Store> = match url {
        CreditsUrl::Sqlite(path) => {
            Arc::new(SqliteStore::open(path, SqliteOptions::default()).await.map_err(failed)?)
        }
    };
    let clock = Arc::new(SystemClock::new());
    Ok(Arc::new(SagaCredits::start(store, clock, Options::default()).await.map_err(failed)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_is_named_by_its_kind_and_its_place() {
        for (text, path) in [
            ("sqlite:credit.db", "credit.db"),
            ("sqlite:/var/lib/credit.db", "/var/lib/credit.db"),
            ("sqlite:///var/lib/credit.db", "/var/lib/credit.db"),
        ] {
            let url: CreditsUrl = text.parse().unwrap();
            assert_eq!(url, CreditsUrl::Sqlite(PathBuf::from(path)));
            assert_eq!(url.to_string(), format!("sqlite:{path}"));
        }
    }

    #[test]
    fn what_names_no_database_is_refused_with_what_is_allowed() {
        for (text, part) in [
            ("credit.db", "found \"credit.db\", allowed is sqlite:PATH"),
            ("mysql://localhost", "allowed is sqlite:PATH"),
            ("sqlite:", "found \"\" as a path"),
            ("sqlite::memory:", "found \":memory:\" as a path"),
        ] {
            let error = text.parse::<CreditsUrl>().unwrap_err();
            assert!(error.starts_with("--credits: ") && error.contains(part), "{text}: {error}");
        }
    }
}
