//! Where limits and credit are kept, if not in the Book.

use std::fmt;
use std::sync::Arc;

use clap::Args;
use earmark_admission::{
    Backend, BookBackend, BookCredits, BookHost, BookLimits, Composed, Credits, KeepError, Limits,
};
use earmark_core::{Config, Elsewhere};

use super::credits::{self, CreditsUrl};
use super::ledger::{self, LedgerUrl};
use crate::failure::Failure;

#[derive(Args)]
pub(super) struct PartsArgs {
    /// Enforce limits on a cluster of TigerBeetle, tigerbeetle://IP:PORT,...?cluster=N; limits are still defined at this
    /// server
    #[arg(long, value_name = "URL")]
    ledger: Option<String>,
    /// Keep accounts and credit in a database, sqlite:PATH or postgres://USER:PASSWORD@HOST/DATABASE, instead of with
    /// the other data
    #[arg(long, value_name = "URL")]
    credits: Option<String>,
}

/// A URL may have a password in it.
impl fmt::Debug for PartsArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let credits = self.credits.as_ref().map(|_| "..");
        f.debug_struct("PartsArgs").field("ledger", &self.ledger).field("credits", &credits).finish()
    }
}

/// What is kept where.
pub(super) struct Places {
    ledger: Option<LedgerUrl>,
    credits: Option<CreditsUrl>,
}

/// What the parts have in common with the Book.
#[cfg_attr(not(feature = "tigerbeetle"), expect(dead_code, reason = "only a ledger has bounds of its own"))]
pub(super) struct Bounds {
    pub(super) config: Config,
    pub(super) queue_max: usize,
}

impl PartsArgs {
    /// Reads the addresses, before anything is made.
    pub(super) fn places(&self) -> Result<Places, Failure> {
        let ledger = self.ledger.as_deref().map(ledger::parse).transpose().map_err(Failure::Usage)?;
        let credits = self.credits.as_deref().map(str::parse).transpose().map_err(Failure::Usage)?;
        Ok(Places { ledger, credits })
    }
}

impl Places {
    fn elsewhere(&self) -> Elsewhere {
        Elsewhere { limits: self.ledger.is_some(), credit: self.credits.is_some() }
    }

    /// Where limits are enforced, for people; none if with everything else.
    pub(super) fn limits(&self) -> Option<String> {
        self.ledger.as_ref().map(ToString::to_string)
    }

    /// Where credit is kept, for people; none if with everything else.
    pub(super) fn credit(&self) -> Option<String> {
        self.credits.as_ref().map(ToString::to_string)
    }

    /// What is to be served from a Book. A part that does not answer yet is waited for in the background.
    pub(super) async fn open<K: BookHost>(
        &self,
        book: &BookBackend<K>,
        bounds: Bounds,
    ) -> Result<Service<K>, Failure> {
        let elsewhere = self.elsewhere();
        if elsewhere == Elsewhere::default() {
            return Ok(Service::Book(Arc::new(book.leaving(elsewhere))));
        }
        let limits: Arc<dyn Limits> = match &self.ledger {
            Some(url) => ledger::open(url, bounds, Arc::new(book.clone())).await?,
            None => Arc::new(BookLimits::new(book.clone())),
        };
        let credits: Arc<dyn Credits> = match &self.credits {
            Some(url) => credits::open(url).await?,
            None => Arc::new(BookCredits::new(book.clone())),
        };
        Ok(Service::Parts(Arc::new(Composed::new(book.clone(), limits, credits, elsewhere))))
    }
}

/// What is served.
pub(super) enum Service<K> {
    /// The Book, which has everything.
    Book(Arc<BookBackend<K>>),
    /// The Book and others.
    Parts(Arc<Composed<K>>),
}

impl<K: BookHost> Service<K> {
    pub(super) fn backend(&self) -> Arc<dyn Backend> {
        match self {
            Service::Book(book) => Arc::clone(book) as _,
            Service::Parts(parts) => Arc::clone(parts) as _,
        }
    }

    /// Makes sure that the Book has what it is asked for, and nobody else.
    pub(super) async fn start(&self) -> Result<(), KeepError> {
        match self {
            Service::Book(book) => book.keep(Elsewhere::default()).await,
            Service::Parts(parts) => parts.start().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(ledger: Option<&str>, credits: Option<&str>) -> Result<Places, String> {
        let args = PartsArgs { ledger: ledger.map(Into::into), credits: credits.map(Into::into) };
        args.places().map_err(|error| error.to_string())
    }

    #[test]
    fn nothing_is_elsewhere_unless_it_is_said() {
        let places = places(None, None).unwrap();
        assert_eq!(places.elsewhere(), Elsewhere::default());
        assert_eq!((places.limits(), places.credit()), (None, None));
    }

    #[test]
    fn a_password_is_not_among_what_is_printed_of_the_flags() {
        let credits = Some("postgres://earmark:secret@db/money".to_owned());
        let args = PartsArgs { ledger: None, credits };
        assert_eq!(format!("{args:?}"), r#"PartsArgs { ledger: None, credits: Some("..") }"#);
    }

    #[test]
    fn a_database_is_named_by_its_kind_and_its_path() {
        let places = places(None, Some("sqlite:credit.db")).unwrap();
        assert_eq!(places.elsewhere(), Elsewhere { limits: false, credit: true });
        assert_eq!(places.credit().as_deref(), Some("sqlite:credit.db"));
    }

    #[cfg(feature = "tigerbeetle")]
    #[test]
    fn a_ledger_is_named_by_its_address() {
        let places = places(Some("tigerbeetle://127.0.0.1:3000"), None).unwrap();
        assert_eq!(places.elsewhere(), Elsewhere { limits: true, credit: false });
        assert_eq!(places.limits().as_deref(), Some("tigerbeetle://127.0.0.1:3000?cluster=0"));
    }

    #[test]
    fn an_address_that_is_none_is_refused_with_what_is_allowed() {
        let error = places(Some("127.0.0.1:3000"), None).map(drop).unwrap_err();
        assert!(error.starts_with("--ledger: "), "{error}");
        let error = places(None, Some("credit.db")).map(drop).unwrap_err();
        assert!(error.starts_with("--credits: "), "{error}");
    }
}
