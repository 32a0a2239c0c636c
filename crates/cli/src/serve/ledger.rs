//! Limits on a cluster of TigerBeetle, where this build has its client.

#[cfg(feature = "tigerbeetle")]
mod with {
    use std::sync::Arc;

    use earmark_admission::{Limits, Registry};
    pub(in super::super) use earmark_tigerbeetle::LedgerUrl;
    use earmark_tigerbeetle::{TigerBeetleLimits, TigerBeetleOptions};

    use crate::failure::Failure;
    use crate::serve::parts::Bounds;

    pub(in super::super) fn parse(text: &str) -> Result<LedgerUrl, String> {
        text.parse().map_err(|error: earmark_tigerbeetle::LedgerUrlError| error.to_string())
    }

    pub(in super::super) async fn open(
        url: &LedgerUrl,
        bounds: Bounds,
        registry: Arc<dyn Registry>,
    ) -> Result<Arc<dyn Limits>, Failure> {
        let options = TigerBeetleOptions {
            config: bounds.config,
            queue_max: bounds.queue_max,
            ..TigerBeetleOptions::new(url.clone())
        };
        let limits = TigerBeetleLimits::open(options, registry).await;
        Ok(Arc::new(limits.map_err(|error| Failure::Usage(format!("--ledger: {error}")))?))
    }
}

#[cfg(feature = "tigerbeetle")]
pub(super) use with::{LedgerUrl, open, parse};

#[cfg(not(feature = "tigerbeetle"))]
mod without {
    use std::convert::Infallible;
    use std::sync::Arc;

    use earmark_admission::{Limits, Registry};

    use crate::failure::Failure;
    use crate::serve::parts::Bounds;

    /// There is none in a build without the client.
    pub(in super::super) type LedgerUrl = Infallible;

    pub(in super::super) fn parse(_: &str) -> Result<LedgerUrl, String> {
        Err("--ledger: this program was built without the feature `tigerbeetle`; use one that has it".into())
    }

    pub(in super::super) async fn open(
        url: &LedgerUrl,
        _: Bounds,
        _: Arc<dyn Registry>,
    ) -> Result<Arc<dyn Limits>, Failure> {
        match *url {}
    }
}

#[cfg(not(feature = "tigerbeetle"))]
pub(super) use without::{LedgerUrl, open, parse};
