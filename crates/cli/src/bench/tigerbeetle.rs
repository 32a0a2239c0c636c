//! Limits on a TigerBeetle cluster, and a bare client for comparison. Needs the feature `tigerbeetle`.

use std::sync::Arc;
use std::time::Duration;

use earmark_admission::Backend;
#[cfg(feature = "tigerbeetle")]
use earmark_admission::{BookCredits, Composed, LocalBook, LocalOptions};
#[cfg(feature = "tigerbeetle")]
use earmark_core::{ExternalParts, LimitKey};
#[cfg(feature = "tigerbeetle")]
use earmark_tigerbeetle::{TigerBeetleLimits, TigerBeetleOptions, measure_bare_client};

use super::job::Part;
#[cfg(feature = "tigerbeetle")]
use super::job::{Calls, Keys};
use crate::failure::Failure;
use crate::serve::LedgerUrl;

/// Timeout of a reserve. It is longer than that of a server, because the benchmark fills the queue on purpose: 16,384
/// reserves at 3,000 a second take more than 5 s.
pub(super) const RESERVE_TIMEOUT: Duration = Duration::from_secs(60);
/// Distinct calls that the bare client cycles through.
#[cfg(feature = "tigerbeetle")]
const CALLS: usize = 4_096;

/// Limits on TigerBeetle with a queue for `transfers`; everything else in memory.
#[cfg(feature = "tigerbeetle")]
pub(super) async fn open(url: &LedgerUrl, transfers: usize) -> Result<Arc<dyn Backend>, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::Bench(error.to_string());
    let book = LocalBook::open(LocalOptions::default()).await?;
    let defaults = TigerBeetleOptions::new(url.clone());
    let queue_max = defaults.queue_max.max(transfers.saturating_mul(2));
    let options = TigerBeetleOptions { queue_max, deadline: RESERVE_TIMEOUT, ..defaults };
    let limits = TigerBeetleLimits::open(options, Arc::new(book.clone())).await;
    let limits = Arc::new(limits.map_err(|error| failed(&error))?);
    let credits = Arc::new(BookCredits::new(book.clone()));
    let parts = Composed::new(book, limits, credits, ExternalParts { limits: true, credit: false });
    parts.start().await.map_err(|error| failed(&error))?;
    Ok(Arc::new(parts))
}

/// Ops per second of a bare client with the same transfers and number of sessions.
#[cfg(feature = "tigerbeetle")]
pub(super) async fn bare(url: &LedgerUrl, parts: &[Part], duration: Duration) -> Result<f64, Failure> {
    let keys = Keys::of(parts)?;
    let mut calls = Calls::new();
    let call = |_| {
        let call = calls.next();
        keys.iter().map(|keys| keys.key(&call)).collect()
    };
    let calls: Vec<Vec<LimitKey>> = (0..CALLS).map(call).collect();
    let sessions = TigerBeetleOptions::new(url.clone()).sessions;
    measure_bare_client(url, sessions, &calls, duration).await.map_err(Failure::Bench)
}

#[cfg(not(feature = "tigerbeetle"))]
pub(super) async fn open(url: &LedgerUrl, _: usize) -> Result<Arc<dyn Backend>, Failure> {
    match *url {}
}

#[cfg(not(feature = "tigerbeetle"))]
pub(super) async fn bare(url: &LedgerUrl, _: &[Part], _: Duration) -> Result<f64, Failure> {
    match *url {}
}
