//! `--ledger`: limits on a TigerBeetle cluster. Needs the feature `tigerbeetle`.

#[cfg(feature = "tigerbeetle")]
mod with {
    use std::sync::Arc;

    use earmark_admission::{Limits, Registry};
    pub(in super::super) use earmark_tigerbeetle::LedgerUrl;
    use earmark_tigerbeetle::{TigerBeetleLimits, TigerBeetleOptions};

    use crate::failure::Failure;
    use crate::serve::storage::EngineConfig;

    pub(in super::super) fn parse(text: &str) -> Result<LedgerUrl, String> {
        text.parse().map_err(|error: earmark_tigerbeetle::LedgerUrlError| error.to_string())
    }

    pub(in super::super) async fn open(
        url: &LedgerUrl,
        engine: EngineConfig,
        registry: Arc<dyn Registry>,
    ) -> Result<Arc<dyn Limits>, Failure> {
        let options = TigerBeetleOptions {
            config: engine.config,
            queue_max: engine.queue_max,
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
    use crate::serve::storage::EngineConfig;

    /// A build without the TigerBeetle client has no URL type.
    pub(in super::super) type LedgerUrl = Infallible;

    pub(in super::super) fn parse(_: &str) -> Result<LedgerUrl, String> {
        Err("--ledger: this build has no TigerBeetle client; build with the feature `tigerbeetle`".into())
    }

    pub(in super::super) async fn open(
        url: &LedgerUrl,
        _: EngineConfig,
        _: Arc<dyn Registry>,
    ) -> Result<Arc<dyn Limits>, Failure> {
        match *url {}
    }
}

#[cfg(not(feature = "tigerbeetle"))]
pub(super) use without::{LedgerUrl, open, parse};
