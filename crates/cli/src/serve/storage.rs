//! `--ledger` and `--credits`: limits and credit outside of the Book.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use earmark_admission::{
    Backend, BookBackend, BookCredits, BookHost, BookLimits, Composed, Credits, Limits, PlacementError, exposure,
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
    /// Store accounts and credit in a database, sqlite:PATH or postgres://USER@HOST/DATABASE. Other users of the machine
    /// see this flag, so give a URL with a password in EARMARK_CREDITS_URL or --credits-url-file
    #[arg(long, value_name = "URL")]
    credits: Option<String>,
    /// File that holds the URL of --credits, alone on its first line
    #[arg(long, value_name = "FILE", conflicts_with = "credits")]
    credits_url_file: Option<PathBuf>,
    /// The origin of `credits`, unless that is the command line.
    #[arg(skip)]
    pub(super) credits_origin: Option<CreditsOrigin>,
}

/// A variable or a file that holds the URL of `--credits`.
#[derive(Debug)]
pub(super) struct CreditsOrigin {
    /// The variable, or the file with its line.
    pub(super) name: String,
    /// The file, which others must not be able to read.
    pub(super) file: Option<PathBuf>,
}

/// Hides the credit URL, which may contain a password.
impl fmt::Debug for StorageArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let credits = self.credits.as_ref().map(|_| "..");
        let (ledger, file) = (&self.ledger, &self.credits_url_file);
        f.debug_struct("StorageArgs")
            .field("ledger", ledger)
            .field("credits", &credits)
            .field("credits_url_file", file)
            .finish()
    }
}

pub(super) struct Storage {
    ledger: Option<LedgerUrl>,
    credits: Option<CreditsUrl>,
    /// A way in which others can learn the password of the database.
    warning: Option<String>,
}

impl StorageArgs {
    pub(super) fn parse(&self) -> Result<Storage, Failure> {
        let ledger = self.ledger.as_deref().map(tigerbeetle::parse).transpose().map_err(Failure::Usage)?;
        let source = match (&self.credits, &self.credits_url_file) {
            (Some(url), _) => {
                Some((self.credits_origin.as_ref().map_or("--credits", |origin| &origin.name), url.clone()))
            }
            (None, Some(path)) => Some(("--credits-url-file", first_line(path)?)),
            (None, None) => None,
        };
        let parse = |(source, text): (&str, String)| CreditsUrl::parse(source, &text).map_err(Failure::Usage);
        let credits = source.map(parse).transpose()?;
        let has_password = self.credits.is_some() && credits.as_ref().is_some_and(CreditsUrl::has_password);
        let warning = match (&self.credits_origin, &self.credits_url_file) {
            (None, _) if has_password => Some(
                "--credits: other users see the password in the list of processes; use --credits-url-file or \
                 EARMARK_CREDITS_URL"
                    .to_owned(),
            ),
            (Some(CreditsOrigin { file: Some(path), .. }), _) if has_password => exposure(path),
            (_, Some(path)) => exposure(path),
            (_, None) => None,
        };
        Ok(Storage { ledger, credits, warning })
    }
}

fn first_line(path: &Path) -> Result<String, Failure> {
    let text = std::fs::read_to_string(path);
    let unreadable = |error| Failure::Usage(format!("--credits-url-file: cannot read {}: {error}", path.display()));
    Ok(text.map_err(unreadable)?.lines().next().unwrap_or_default().trim().to_owned())
}

impl Storage {
    fn external(&self) -> ExternalParts {
        ExternalParts { limits: self.ledger.is_some(), credit: self.credits.is_some() }
    }

    /// Logs a way in which others can learn the password of the database.
    pub(super) fn warn(&self) {
        if let Some(warning) = &self.warning {
            tracing::warn!("{warning}");
        }
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
            let (ledger, credits) = (ledger.map(Into::into), credits.map(Into::into));
            StorageArgs { ledger, credits, credits_url_file: None, credits_origin: None }
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
        let args = StorageArgs { ledger: None, credits, credits_url_file: None, credits_origin: None };
        assert!(!format!("{args:?}").contains("secret"), "{args:?}");
    }

    #[test]
    fn a_url_in_a_file_is_its_first_line_and_only_a_flag_with_a_password_is_warned_about() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("credits-url");
        let mut file = earmark_admission::create_private(&path).unwrap();
        std::io::Write::write_all(&mut file, b"postgres://earmark:secret@db/money\n").unwrap();
        let credits_url_file = Some(path.clone());
        let args = StorageArgs { ledger: None, credits: None, credits_url_file, credits_origin: None };
        let storage_of_file = args.parse().unwrap();
        assert_eq!(storage_of_file.credit().as_deref(), Some("postgres://earmark@db/money"));
        assert_eq!(storage_of_file.warning, None);
        for (url, is_warned) in [
            ("postgres://earmark:secret@db/money", true),
            ("postgres://db/money?user=a&password=secret", true),
            ("postgres://earmark@db/money", false),
            ("sqlite:credit.db", false),
        ] {
            let warning = storage(None, Some(url)).unwrap().warning;
            assert_eq!(warning.is_some(), is_warned, "{url}");
            assert!(!warning.unwrap_or_default().contains("secret"));
        }
        std::fs::write(&path, "").unwrap();
        let error = args.parse().map(drop).unwrap_err().to_string();
        assert!(error.starts_with("--credits-url-file: found \"\", allowed are"), "{error}");
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
