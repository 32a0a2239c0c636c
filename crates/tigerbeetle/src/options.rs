//! Address and settings of the ledger.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use earmark_admission::{Clock, SystemClock};

use crate::ledger_client::{Connect, Official};

const SCHEME: &str = "tigerbeetle://";
/// Maximum replicas of a cluster, standbys included.
const ADDRESSES_MAX: usize = 12;

/// Address of a TigerBeetle cluster: `tigerbeetle://10.0.0.1:3000,10.0.0.2:3000?cluster=7`. Addresses are in replica
/// order. `cluster` defaults to 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerUrl {
    /// Addresses in replica order.
    pub replicas: Vec<SocketAddr>,
    /// Cluster id.
    pub cluster: u128,
}

/// Why a ledger URL is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerUrlError {
    /// Not a ledger URL.
    #[error("--ledger: found {found:?}, expected tigerbeetle://IP:PORT,...?cluster=N")]
    Scheme {
        /// The text.
        found: String,
    },
    /// An invalid address.
    #[error("--ledger: found {found:?} as an address, expected IP:PORT, such as 10.0.0.1:3000")]
    Address {
        /// The text.
        found: String,
    },
    /// Too many addresses.
    #[error("--ledger: found {found} addresses, expected 1 to {ADDRESSES_MAX}")]
    Addresses {
        /// Number of addresses.
        found: usize,
    },
    /// An invalid cluster id.
    #[error("--ledger: found {found:?} as the cluster id, expected an integer from 0")]
    Cluster {
        /// The text.
        found: String,
    },
    /// An unknown parameter.
    #[error("--ledger: unknown parameter {found:?}; the only parameter is cluster=N, once")]
    Parameter {
        /// The text.
        found: String,
    },
}

impl FromStr for LedgerUrl {
    type Err = LedgerUrlError;

    fn from_str(text: &str) -> Result<LedgerUrl, LedgerUrlError> {
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| LedgerUrlError::Scheme { found: text.to_owned() })?;
        let (addresses, query) = rest.split_once('?').unwrap_or((rest, ""));
        let address =
            |found: &str| found.parse::<SocketAddr>().map_err(|_| LedgerUrlError::Address { found: found.to_owned() });
        let addresses = addresses.trim_end_matches('/');
        let replicas: Vec<SocketAddr> = addresses.split(',').map(address).collect::<Result<_, _>>()?;
        if replicas.len() > ADDRESSES_MAX {
            return Err(LedgerUrlError::Addresses { found: replicas.len() });
        }
        let mut cluster = None;
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let number = parameter.strip_prefix("cluster=").filter(|_| cluster.is_none());
            let number = number.ok_or_else(|| LedgerUrlError::Parameter { found: parameter.to_owned() })?;
            let parsed = number.parse().map_err(|_| LedgerUrlError::Cluster { found: number.to_owned() })?;
            cluster = Some(parsed);
        }
        Ok(LedgerUrl { replicas, cluster: cluster.unwrap_or(0) })
    }
}

impl fmt::Display for LedgerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}?cluster={}", self.addresses(), self.cluster)
    }
}

impl LedgerUrl {
    /// Addresses in the client's format.
    pub(crate) fn addresses(&self) -> String {
        self.replicas.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",")
    }
}

/// Settings of limits on TigerBeetle.
pub struct TigerBeetleOptions {
    /// Address of the cluster.
    pub url: LedgerUrl,
    /// Sessions that create transfers; one more session reads. A cluster allows 64 sessions in total.
    pub sessions: usize,
    /// Maximum wait of a caller. The request may still take effect later.
    pub deadline: Duration,
    /// Maximum queued transfers over all sessions; each session has room for at least one full batch. Completes may use
    /// a quarter more.
    pub queue_max: usize,
    /// Wall clock that judges the age of leases.
    pub clock: Arc<dyn Clock>,
    /// Creates the clients of the sessions.
    pub connect: Arc<dyn Connect>,
}

impl TigerBeetleOptions {
    /// Default settings for a cluster.
    #[must_use]
    pub fn new(url: LedgerUrl) -> TigerBeetleOptions {
        TigerBeetleOptions {
            url,
            sessions: 2,
            deadline: Duration::from_secs(5),
            queue_max: 131_072,
            clock: Arc::new(SystemClock::new()),
            connect: Arc::new(Official),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_named_by_its_replicas_and_its_number() {
        let url: LedgerUrl = "tigerbeetle://10.0.0.1:3000,10.0.0.2:3000?cluster=7".parse().unwrap();
        assert_eq!((url.addresses().as_str(), url.cluster), ("10.0.0.1:3000,10.0.0.2:3000", 7));
        assert_eq!(url.to_string(), "tigerbeetle://10.0.0.1:3000,10.0.0.2:3000?cluster=7");
        for text in ["tigerbeetle://127.0.0.1:3000", "tigerbeetle://127.0.0.1:3000/?cluster=0"] {
            assert_eq!(text.parse::<LedgerUrl>().unwrap().to_string(), "tigerbeetle://127.0.0.1:3000?cluster=0");
        }
        let url: LedgerUrl = format!("tigerbeetle://127.0.0.1:3000?cluster={}", u128::MAX).parse().unwrap();
        assert_eq!(url.cluster, u128::MAX);
    }

    #[test]
    fn what_names_no_cluster_is_refused_by_what_is_wrong_with_it() {
        for (text, part) in [
            ("postgres://127.0.0.1", "tigerbeetle://IP:PORT"),
            ("tigerbeetle://", "\"\" as an address"),
            ("tigerbeetle://127.0.0.1", "\"127.0.0.1\" as an address"),
            ("tigerbeetle://ledger.internal:3000", "\"ledger.internal:3000\" as an address"),
            ("tigerbeetle://127.0.0.1:3000,", "\"\" as an address"),
            ("tigerbeetle://127.0.0.1:3000?cluster=x", "\"x\" as the cluster id"),
            ("tigerbeetle://127.0.0.1:3000?cluster=-1", "\"-1\" as the cluster id"),
            ("tigerbeetle://127.0.0.1:3000?replica=1", "\"replica=1\""),
            ("tigerbeetle://127.0.0.1:3000?cluster=1&cluster=2", "\"cluster=2\""),
        ] {
            let message = text.parse::<LedgerUrl>().unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
        let many = vec!["127.0.0.1:3000"; 13].join(",");
        let error = format!("tigerbeetle://{many}").parse::<LedgerUrl>().unwrap_err();
        assert_eq!(error, LedgerUrlError::Addresses { found: 13 });
    }
}
