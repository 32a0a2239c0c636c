//! Limits on a TigerBeetle cluster, and a bare client for comparison. Needs the feature `tigerbeetle`.

use std::time::Duration;

/// Timeout of a reserve. It is longer than that of a server, because the benchmark fills the queue on purpose: 16,384
/// reserves at 3,000 a second take more than 5 s.
pub(super) const RESERVE_TIMEOUT: Duration = Duration::from_secs(60);

#[cfg(feature = "tigerbeetle")]
mod with {
    use std::sync::Arc;
    use std::time::Duration;

    use earmark_admission::{Backend, BookCredits, Composed, LocalBook, LocalOptions};
    use earmark_core::{ExternalParts, LimitKey};
    pub(in super::super) use earmark_tigerbeetle::LedgerUrl;
    use earmark_tigerbeetle::{TigerBeetleLimits, TigerBeetleOptions, measure_bare_client};

    use super::RESERVE_TIMEOUT;
    use crate::bench::job::{Calls, Owner, Part};
    use crate::failure::Failure;

    /// Distinct calls that the bare client cycles through.
    const CALLS: usize = 4_096;

    pub(in super::super) fn parse(text: &str) -> Result<LedgerUrl, String> {
        text.parse().map_err(|error: earmark_tigerbeetle::LedgerUrlError| error.to_string())
    }

    /// Limits on TigerBeetle with a queue for `transfers`; everything else in memory.
    pub(in super::super) async fn open(
        url: &LedgerUrl,
        transfers: usize,
    ) -> Result<Arc<dyn Backend>, Failure> {
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
    pub(in super::super) async fn bare(
        url: &LedgerUrl,
        parts: &[Part],
        duration: Duration,
    ) -> Result<f64, Failure> {
        let keys: Result<Vec<Vec<LimitKey>>, _> = parts.iter().map(Part::keys).collect();
        let keys = keys.map_err(|error| Failure::Bench(error.to_string()))?;
        let mut calls = Calls::new();
        let call = |_| {
            let call = calls.next();
            let number = |part: &Part| match part.owner {
                Owner::Model => call.model,
                Owner::Tenant => call.tenant,
            };
            parts.iter().zip(&keys).map(|(part, keys)| keys[number(part)].clone()).collect()
        };
        let calls: Vec<Vec<LimitKey>> = (0..CALLS).map(call).collect();
        let sessions = TigerBeetleOptions::new(url.clone()).sessions;
        measure_bare_client(url, sessions, &calls, duration).await.map_err(Failure::Bench)
    }
}

#[cfg(feature = "tigerbeetle")]
pub(super) use with::{LedgerUrl, bare, open, parse};

#[cfg(not(feature = "tigerbeetle"))]
mod without {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::time::Duration;

    use earmark_admission::Backend;

    use crate::bench::job::Part;
    use crate::failure::Failure;

    /// A build without the TigerBeetle client has no URL type.
    pub(in super::super) type LedgerUrl = Infallible;

    pub(in super::super) fn parse(_: &str) -> Result<LedgerUrl, String> {
        Err("--ledger: this build has no TigerBeetle client; build with the feature `tigerbeetle`".into())
    }

    pub(in super::super) async fn open(url: &LedgerUrl, _: usize) -> Result<Arc<dyn Backend>, Failure> {
        match *url {}
    }

    pub(in super::super) async fn bare(url: &LedgerUrl, _: &[Part], _: Duration) -> Result<f64, Failure> {
        match *url {}
    }
}

#[cfg(not(feature = "tigerbeetle"))]
pub(super) use without::{LedgerUrl, bare, open, parse};
