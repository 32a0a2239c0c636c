//! `--ledger` and `--credits`: limits and credit outside of the Book.

use std::fmt;
use std::sync::Arc;

use clap::Args;
use earmark_admission::{
    Backend, BookBackend, BookCredits, BookHost, BookLimits, Composed, Credits, Limits, PlacementError,
};
use earmark_core::ExternalParts;

use super::credits::{self, CreditsUrl};
use super::tigerbeetle::{self, LedgerUrl};
use crate::failure::Failure;

#[derive(Args)]
pub(super) struct StorageArgs {
    /// Enforce limits on a TigerBeetle cluster, tigerbeetle://IP:PORT,...?cluster=N. This server still stores their
    /// definitions
    #[arg(long, value_name = "URL")]
    ledger: Option<String>,
    /// Store accounts and credit in a database, sqlite:PATH or postgres://USER:PASSWORD@HOST/DATABASE
    #[arg(long, value_name = "URL")]
    credits: Option<String>,
}

/// Hides the credit URL, which may contain a password.
impl fmt::Debug for StorageArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let credits = self.credits.as_ref().map(|_| "..");
        f.debug_struct("StorageArgs").field("ledger", &self.ledger).field("credits", &credits).finish()
    }
}

pub(super) struct Storage {
    ledger: Option<LedgerUrl>,
    credits: Option<CreditsUrl>,
}

impl StorageArgs {
    pub(super) fn parse(&self) -> Result<Storage, Failure> {
        let ledger = self.ledger.as_deref().map(tigerbeetle::parse).transpose().map_err(Failure::Usage)?;
        let credits = self.credits.as_deref().map(str::parse).transpose().map_err(Failure::Usage)?;
        Ok(Storage { ledger, credits })
    }
}

impl Storage {
    fn external(&self) -> ExternalParts {
        ExternalParts { limits: self.ledger.is_some(), credit: self.credits.is_some() }
    }

    /// The TigerBeetle URL for messages; `None` if the Book enforces limits.
    pub(super) fn limits(&self) -> Option<String> {
        self.ledger.as_ref().map(ToString::to_string)
    }

    /// The credit URL for messages; `None` if the Book holds credit.
    pub(super) fn credit(&self) -> Option<String> {
        self.credits.as_ref().map(ToString::to_string)
    }

    /// Opens the backend. Waits in the background for a part that does not answer yet.
    pub(super) async fn open<K: BookHost>(
        &self,
        book: &BookBackend<K>,
        queue_max: usize,
    ) -> Result<Service<K>, Failure> {
        let external = self.external();
        if external == ExternalParts::default() {
            return Ok(Service::Book(Arc::new(book.with_placement(external))));
        }
        let limits: Arc<dyn Limits> = match &self.ledger {
            Some(url) => tigerbeetle::open(url, queue_max, Arc::new(book.clone())).await?,
            None => Arc::new(BookLimits::new(book.clone())),
        };
        let credits: Arc<dyn Credits> = match &self.credits {
            Some(url) => credits::open(url).await?,
            None => Arc::new(BookCredits::new(book.clone())),
        };
        Ok(Service::Parts(Arc::new(Composed::new(book.clone(), limits, credits, external))))
    }
}

pub(super) enum Service<K> {
    /// The Book holds limits and credit.
    Book(Arc<BookBackend<K>>),
    /// Limits or credit are outside of the Book.
    Parts(Arc<Composed<K>>),
}

impl<K: BookHost> Service<K> {
    pub(super) fn backend(&self) -> Arc<dyn Backend> {
        match self {
            Service::Book(book) => Arc::clone(book) as _,
            Service::Parts(parts) => Arc::clone(parts) as _,
        }
    }

    /// Checks that the data folder matches these storage settings, and records them.
    pub(super) async fn start(&self) -> Result<(), PlacementError> {
        match self {
            Service::Book(book) => book.record_placement(ExternalParts::default()).await,
            Service::Parts(parts) => parts.start().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl StorageArgs {
        pub(in crate::serve) fn of(ledger: Option<&str>, credits: Option<&str>) -> StorageArgs {
            StorageArgs { ledger: ledger.map(Into::into), credits: credits.map(Into::into) }
        }
    }

    fn storage(ledger: Option<&str>, credits: Option<&str>) -> Result<Storage, String> {
        StorageArgs::of(ledger, credits).parse().map_err(|error| error.to_string())
    }

    #[test]
    fn the_book_holds_everything_by_default() {
        let storage = storage(None, None).unwrap();
        assert_eq!(storage.external(), ExternalParts::default());
        assert_eq!((storage.limits(), storage.credit()), (None, None));
    }

    #[test]
    fn debug_output_of_the_flags_hides_the_password() {
        let credits = Some("postgres://earmark:secret@db/money".to_owned());
        let args = StorageArgs { ledger: None, credits };
        assert_eq!(format!("{args:?}"), r#"StorageArgs { ledger: None, credits: Some("..") }"#);
    }

    #[test]
    fn a_database_is_named_by_its_kind_and_its_path() {
        let storage = storage(None, Some("sqlite:credit.db")).unwrap();
        assert_eq!(storage.external(), ExternalParts { limits: false, credit: true });
        assert_eq!(storage.credit().as_deref(), Some("sqlite:credit.db"));
    }

    #[cfg(feature = "tigerbeetle")]
    #[test]
    fn a_tigerbeetle_cluster_is_named_by_its_address() {
        let storage = storage(Some("tigerbeetle://127.0.0.1:3000"), None).unwrap();
        assert_eq!(storage.external(), ExternalParts { limits: true, credit: false });
        assert_eq!(storage.limits().as_deref(), Some("tigerbeetle://127.0.0.1:3000?cluster=0"));
    }

    #[test]
    fn an_invalid_url_is_refused_with_the_flag() {
        let error = storage(Some("127.0.0.1:3000"), None).map(drop).unwrap_err();
        assert!(error.starts_with("--ledger: "), "{error}");
        let error = storage(None, Some("credit.db")).map(drop).unwrap_err();
        assert!(error.starts_with("--credits: "), "{error}");
    }
}
