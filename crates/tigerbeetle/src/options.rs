//! Where the ledger is, and how it is used.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use earmark_admission::{Clock, SystemClock};
use earmark_core::Config;

const SCHEME: &str = "tigerbeetle://";
/// As many replicas as a cluster has at most, standbys included.
const ADDRESSES_MAX: usize = 12;

/// Where a cluster of TigerBeetle is: `tigerbeetle://10.0.0.1:3000,10.0.0.2:3000?cluster=7`. The addresses are in
/// the order of the replicas; without `cluster` it is cluster 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerUrl {
    /// The replicas, in their order.
    pub replicas: Vec<SocketAddr>,
    /// The number of the cluster.
    pub cluster: u128,
}

/// Why a text names no cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerUrlError {
    /// It is something else.
    #[error("--ledger: found {found:?}, allowed is tigerbeetle://IP:PORT,...?cluster=N")]
    Scheme {
        /// The whole text.
        found: String,
    },
    /// An address that is none.
    #[error(
        "--ledger: found {found:?} as an address, allowed are an IP address and a port, such as 10.0.0.1:3000"
    )]
    Address {
        /// The address.
        found: String,
    },
    /// More addresses than a cluster has.
    #[error("--ledger: found {found} addresses, allowed are 1 to {ADDRESSES_MAX}")]
    Addresses {
        /// How many there were.
        found: usize,
    },
    /// A number that is none.
    #[error("--ledger: found {found:?} as the number of the cluster, allowed are integers from 0 on")]
    Cluster {
        /// The text.
        found: String,
    },
    /// A parameter that nothing knows.
    #[error("--ledger: found the parameter {found:?}, allowed is cluster=N, once")]
    Parameter {
        /// The parameter.
        found: String,
    },
}

impl FromStr for LedgerUrl {
    type Err = LedgerUrlError;

    fn from_str(text: &str) -> Result<LedgerUrl, LedgerUrlError> {
        let rest =
            text.strip_prefix(SCHEME).ok_or_else(|| LedgerUrlError::Scheme { found: text.to_owned() })?;
        let (addresses, query) = rest.split_once('?').unwrap_or((rest, ""));
        let address = |found: &str| {
            found.parse::<SocketAddr>().map_err(|_| LedgerUrlError::Address { found: found.to_owned() })
        };
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
    /// The addresses as the client wants them.
    pub(crate) fn addresses(&self) -> String {
        self.replicas.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",")
    }
}

/// How limits on TigerBeetle are set up.
pub struct TigerBeetleOptions {
    /// Where the cluster is.
    pub url: LedgerUrl,
    /// How many sessions send transfers; one more reads. A cluster has room for 64 of all its users.
    pub sessions: usize,
    /// The longest that a caller waits for an answer. What it asked for may happen later nevertheless.
    pub deadline: Duration,
    /// The most transfers that wait in all sessions together, but no less for each than one caller may send together.
    /// For completes a quarter more may.
    pub queue_max: usize,
    /// The rules about age and about hints, those of a Book.
    pub config: Config,
    /// The wall clock that judges the age of leases.
    pub clock: Arc<dyn Clock>,
}

impl TigerBeetleOptions {
    /// The usual ones, for this cluster.
    #[must_use]
    pub fn new(url: LedgerUrl) -> TigerBeetleOptions {
        TigerBeetleOptions {
            url,
            sessions: 2,
            deadline: Duration::from_secs(5),
            queue_max: 131_072,
            config: Config::default(),
            clock: Arc::new(SystemClock::new()),
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
            assert_eq!(
                text.parse::<LedgerUrl>().unwrap().to_string(),
                "tigerbeetle://127.0.0.1:3000?cluster=0"
            );
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
            ("tigerbeetle://127.0.0.1:3000?cluster=x", "\"x\" as the number"),
            ("tigerbeetle://127.0.0.1:3000?cluster=-1", "\"-1\" as the number"),
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
