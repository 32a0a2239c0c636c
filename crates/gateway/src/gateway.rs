//! The gateway: its shared state, its start and its end.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use earmark_client::Failure;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::buffers::Buffers;
use crate::config::{Config, SecretError};
use crate::earmark::Earmark;
use crate::identities::Identities;
use crate::listener;
use crate::metrics::{Metrics, SettledBy};
use crate::open_calls::{FolderError, OpenCalls};
use crate::renew::Renewals;
use crate::settle::{Settlement, Settler};
use crate::tls::{self, TlsError};
use crate::upstream::{Connections, UpstreamError};

/// Credit limits that are named in the log because their timeout releases. Further ones are counted.
const RELEASING_MAX: usize = 20;

/// Why a gateway cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GatewayError {
    /// A key of an upstream is missing.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// An upstream cannot be used.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// The folder of open calls cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The certificate or its key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The address is in use or not available.
    #[error("listen: cannot listen on {listen}: {source}")]
    Listen {
        /// The address.
        listen: SocketAddr,
        /// The error of the system.
        source: std::io::Error,
    },
    /// Anyone who can connect could spend everything.
    #[error(
        "listen: found {listen}, but this gateway has no key, so that it takes every client for the same; set \
         EARMARK_KEY to a key of role gateway, or listen on a loopback address"
    )]
    NotLoopback {
        /// The address.
        listen: SocketAddr,
    },
    /// Earmark refuses the gateway's own key.
    #[error("the server refuses this gateway: {0}; set EARMARK_KEY to a key of role gateway")]
    Refused(Failure),
    /// The gateway's own key has another role.
    #[error("the key of this gateway has role {role}, and needs role gateway: earmark key create --role gateway")]
    Role {
        /// The role.
        role: String,
    },
}

/// The parts of a gateway.
pub struct GatewayOptions {
    /// The configuration.
    pub config: Config,
    /// Earmark.
    pub earmark: Arc<dyn Earmark>,
    /// The calls that are not settled.
    pub calls: OpenCalls,
    /// Whether the gateway has a key of its own. Without one the server must be open, and every client is the same.
    pub has_key: bool,
}

/// A gateway that listens. It accepts connections from [`Gateway::run`] on.
pub struct Gateway {
    shared: Arc<Shared>,
    listener: TcpListener,
    local_addr: SocketAddr,
    tls: Option<tokio_rustls::TlsAcceptor>,
}

/// The state that all requests share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) earmark: Arc<dyn Earmark>,
    pub(crate) identities: Identities,
    pub(crate) has_key: bool,
    pub(crate) upstreams: BTreeMap<String, Arc<Connections>>,
    pub(crate) calls: Arc<OpenCalls>,
    pub(crate) settler: Arc<Settler>,
    pub(crate) renewals: Arc<Renewals>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) places: Arc<Semaphore>,
    pub(crate) buffers: Buffers,
    pub(crate) is_stopping: AtomicBool,
    request_prefix: u32,
    requests: AtomicU64,
}

impl Shared {
    /// The id of a new request.
    pub(crate) fn request_id(&self) -> String {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let digit = |bits: u64| char::from_digit((bits & 15) as u32, 16).unwrap_or('0');
        let prefix = (0..8).rev().map(|place| digit(u64::from(self.request_prefix) >> (4 * place)));
        let number = (0..12).rev().map(|place| digit(number >> (4 * place)));
        prefix.chain(['-']).chain(number).collect()
    }
}

impl Gateway {
    /// Binds the address, opens the secrets, and asks Earmark who the gateway is.
    ///
    /// # Errors
    /// When a part of the configuration cannot be used, or Earmark refuses the gateway. A server that cannot be reached
    /// is no error: requests get 503 until it can.
    pub async fn bind(options: GatewayOptions) -> Result<Gateway, GatewayError> {
        let GatewayOptions { config, earmark, calls, has_key } = options;
        let listen = config.listen;
        if !has_key && !listen.ip().is_loopback() {
            return Err(GatewayError::NotLoopback { listen });
        }
        let mut secrets = config.open_secrets()?;
        let connections = config.upstreams.iter().map(|upstream| {
            let secret = secrets.remove(&upstream.name);
            Ok((upstream.name.clone(), Arc::new(Connections::new(Arc::clone(upstream), secret)?)))
        });
        let upstreams = connections.collect::<Result<BTreeMap<_, _>, GatewayError>>()?;
        let tls = config.tls.as_ref().map(|(cert, key)| tls::acceptor(cert, key)).transpose()?;
        check_identity(&*earmark, has_key).await?;
        let failed = |source| GatewayError::Listen { listen, source };
        let listener = TcpListener::bind(listen).await.map_err(failed)?;
        let local_addr = listener.local_addr().map_err(failed)?;
        let (calls, metrics) = (Arc::new(calls), Arc::new(Metrics::new()));
        let settler =
            Settler::new(Arc::clone(&earmark), Arc::clone(&calls), Arc::clone(&metrics), config.max_settlements);
        let shared = Arc::new(Shared {
            identities: Identities::new(Arc::clone(&earmark)),
            renewals: Arc::new(Renewals::new(Arc::clone(&earmark), config.renew_interval)),
            earmark,
            has_key,
            upstreams,
            calls,
            settler: Arc::new(settler),
            metrics,
            places: Arc::new(Semaphore::new(config.max_calls)),
            buffers: Buffers::new(config.max_buffered_bytes),
            is_stopping: AtomicBool::new(false),
            request_prefix: rand::random(),
            requests: AtomicU64::new(0),
            config,
        });
        Ok(Gateway { shared, listener, local_addr, tls })
    }

    /// The address that it listens on.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Settles what an earlier process left, and serves until `shutdown` completes. Then it finishes the calls in flight,
    /// up to the shutdown timeout; calls beyond that are settled at the next start.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) {
        let Gateway { shared, listener, tls, .. } = self;
        recover(&shared);
        tokio::spawn(warn_of_releasing(Arc::clone(&shared.earmark)));
        // It ends with this function.
        let mut renewing = JoinSet::new();
        renewing.spawn(Arc::clone(&shared.renewals).run());
        let connections = listener::accept_until(&shared, listener, tls, shutdown).await;
        shared.is_stopping.store(true, Ordering::Relaxed);
        let all = u32::try_from(shared.config.max_calls).unwrap_or(u32::MAX);
        let finishing = async {
            listener::finish(connections).await;
            // A call has its place until it is settled.
            _ = shared.places.acquire_many(all).await;
            shared.settler.finished().await;
        };
        if timeout(shared.config.shutdown_timeout, finishing).await.is_err() {
            let open = shared.calls.list().len();
            tracing::warn!(open, "stopped before all calls were settled; the next start settles them");
        }
    }
}

/// Checks everything of a configuration that needs no network: keys of upstreams, certificates.
///
/// # Errors
/// The first part that cannot be used.
pub fn check(config: &Config) -> Result<(), GatewayError> {
    let mut secrets = config.open_secrets()?;
    for upstream in &config.upstreams {
        Connections::new(Arc::clone(upstream), secrets.remove(&upstream.name))?;
    }
    config.tls.as_ref().map(|(cert, key)| tls::acceptor(cert, key)).transpose()?;
    Ok(())
}

/// Refuses a start with a key that Earmark refuses.
async fn check_identity(earmark: &dyn Earmark, has_key: bool) -> Result<(), GatewayError> {
    match earmark.who(None).await {
        Ok(identity) if has_key && identity.role != "gateway" => Err(GatewayError::Role { role: identity.role }),
        Ok(_) => Ok(()),
        Err(failure @ (Failure::Unauthorized { .. } | Failure::Forbidden { .. })) => {
            Err(GatewayError::Refused(failure))
        }
        Err(failure) => {
            tracing::warn!(%failure, "the server does not answer; requests get 503 until it does");
            Ok(())
        }
    }
}

/// Warns of each credit limit whose timeout releases calls that no gateway settles in time: they would be free.
async fn warn_of_releasing(earmark: Arc<dyn Earmark>) {
    match earmark.releasing().await {
        Ok(keys) => {
            for key in keys.iter().take(RELEASING_MAX) {
                tracing::warn!(%key, "a call that is not settled before the timeout of this credit limit is free; set its on_timeout to charge");
            }
            if let Some(more) = keys.len().checked_sub(RELEASING_MAX).filter(|more| *more > 0) {
                tracing::warn!(more, "further credit limits release what is not settled in time");
            }
        }
        Err(failure) => tracing::info!(%failure, "cannot check on_timeout of the credit limits"),
    }
}

/// Settles the calls that an earlier process left.
fn recover(shared: &Arc<Shared>) {
    let left = shared.calls.list();
    if !left.is_empty() {
        tracing::info!(calls = left.len(), "settling the calls of an earlier process");
    }
    for (lease, call) in left {
        let (end, is_reserved) = (call.end_after_crash(), call.is_sent);
        let by = SettledBy::Recovered;
        shared.settler.settle(Settlement { lease, call, end, by, is_reserved, permit: None });
    }
}
