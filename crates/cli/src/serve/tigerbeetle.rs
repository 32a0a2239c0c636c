//! `--ledger`: limits on a TigerBeetle cluster. Needs the feature `tigerbeetle`.

use std::sync::Arc;

use earmark_admission::{Limits, Registry};
#[cfg(feature = "tigerbeetle")]
pub(crate) use earmark_tigerbeetle::LedgerUrl;
#[cfg(feature = "tigerbeetle")]
use earmark_tigerbeetle::{TigerBeetleLimits, TigerBeetleOptions};

use crate::failure::Failure;

/// A build without the TigerBeetle client has no URL type.
#[cfg(not(feature = "tigerbeetle"))]
pub(crate) type LedgerUrl = std::convert::Infallible;

#[cfg(feature = "tigerbeetle")]
pub(crate) fn parse(text: &str) -> Result<LedgerUrl, String> {
    text.parse().map_err(|error: earmark_tigerbeetle::LedgerUrlError| error.to_string())
}

#[cfg(not(feature = "tigerbeetle"))]
pub(crate) fn parse(_: &str) -> Result<LedgerUrl, String> {
    Err("--ledger: this build has no TigerBeetle client; build with the feature `tigerbeetle`".into())
}

#[cfg(feature = "tigerbeetle")]
pub(super) async fn open(
    url: &LedgerUrl,
    queue_max: usize,
    registry: Arc<dyn Registry>,
) -> Result<Arc<dyn Limits>, Failure> {
    let options = TigerBeetleOptions { queue_max, ..TigerBeetleOptions::new(url.clone()) };
    let limits = TigerBeetleLimits::open(options, registry).await;
    Ok(Arc::new(limits.map_err(|error| Failure::Usage(format!("--ledger: {error}")))?))
}

#[cfg(not(feature = "tigerbeetle"))]
pub(super) async fn open(url: &LedgerUrl, _: usize, _: Arc<dyn Registry>) -> Result<Arc<dyn Limits>, Failure> {
    match *url {}
}
