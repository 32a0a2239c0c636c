//! The accept loop: accepts connections, serves them, and shuts down in order.

mod activity;
mod body_length;
mod connection;
mod frames;
mod io;
mod seldom;
mod streams;
mod transport;

use std::future::Future;
use std::io as std_io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use earmark_admission::{Answer, Backend, Cluster, MemoryRecords, RecordBounds, RecordStore};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::app::App;
use crate::auth::{AuthOptions, CertificateKeys, Issuer, Peer, QueueLimits};
use crate::client_network::ClientNetwork;
use crate::grpc::Grpc;
use crate::http::Routes;
use crate::in_process::InProcess;
use crate::metrics::install_metrics;
use crate::places::{Claimed, Place, Places};
use crate::tls::Tls;
use connection::{NotServed, Services, ShutdownSignal, Timeouts, refuse};
use seldom::Seldom;

/// Interval of housekeeping: metrics upkeep, and reloading certificates and issuer keys.
const UPKEEP: Duration = Duration::from_secs(1);
/// Pause after a failed accept, which means that the system is out of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Connections that the kernel queues before they are accepted.
const BACKLOG: u32 = 1_024;
/// Connections over the limit that get a 503 at once. Any more are closed without a response.
const REFUSALS_MAX: usize = 64;

/// The bounds of a decision log in memory.
pub const DECISIONS_IN_MEMORY: RecordBounds = RecordBounds { bytes: 16 << 20, age_ms: 7 * 24 * 60 * 60 * 1_000 };
/// Default of [`ServerOptions::requests_waiting_max`].
pub const REQUESTS_WAITING_MAX: usize = 4_096;
/// Default of [`ServerOptions::connections_per_address`]: a quarter of the connections of a server.
pub const CONNECTIONS_PER_ADDRESS: usize = 2_500;
/// Recommended [`ServerOptions::requests_at_once`].
pub const REQUESTS_AT_ONCE: u32 = 256;

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Listen address. Port 0 takes any free port.
    pub listen: SocketAddr,
    /// Concurrent connections. Beyond it, connections without valid credentials make room, the oldest first.
    /// Without such connections, new ones get 503 and are closed.
    pub connections_max: usize,
    /// Concurrent connections of one address, or of one IPv6 network of 64 bits. Beyond it the same happens within that
    /// address.
    pub connections_per_address: usize,
    /// Memory of all request bodies that arrive in pieces, in bytes. Beyond it requests get 503.
    pub bodies_bytes_max: usize,
    /// Memory of all large answers that clients have not read, in bytes. Beyond it requests with large answers get 503.
    pub answers_bytes_max: usize,
    /// Timeout of a request, its body included.
    pub request_timeout: Duration,
    /// Timeout of a request head, of a TLS handshake, and between two pieces of a body.
    pub header_timeout: Duration,
    /// Time that requests in flight have to finish at shutdown.
    pub shutdown_timeout: Duration,
    /// Issuer of session tokens, which are accepted besides keys.
    pub issuer: Option<Arc<Issuer>>,
    /// Keys of clients with a certificate. `tls` must verify certificates.
    pub certificate_keys: CertificateKeys,
    /// Requests per second and caller; unlimited if absent.
    pub requests_per_second: Option<u64>,
    /// Concurrent requests per caller; every eight items of a batch count as one. Unlimited if absent.
    pub requests_at_once: Option<NonZeroU32>,
    /// Waiting requests per caller, a batch as one.
    pub requests_waiting_max: usize,
    /// Failed logins that are delayed at once. Beyond it their connections are closed.
    pub failed_logins_waiting_max: usize,
    /// TLS for clients; plaintext if absent.
    pub tls: Option<Arc<Tls>>,
    /// Allows plaintext on an address that is not loopback, behind a proxy that terminates TLS.
    pub is_plaintext_allowed: bool,
    /// Whether answers to calls say in headers how much is left of their limits. A caller may not read limits otherwise.
    pub reveals_remaining: bool,
    /// Serves the console on an address that is not loopback. On loopback it is always served.
    pub console: bool,
    /// The store of the decision log; without it the log is off.
    pub decisions: Option<Arc<dyn RecordStore>>,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            listen: SocketAddr::from(([127, 0, 0, 1], 7878)),
            connections_max: 10_000,
            connections_per_address: CONNECTIONS_PER_ADDRESS,
            bodies_bytes_max: 256 << 20,
            answers_bytes_max: 256 << 20,
            request_timeout: Duration::from_secs(30),
            header_timeout: Duration::from_secs(10),
            shutdown_timeout: Duration::from_secs(30),
            issuer: None,
            certificate_keys: CertificateKeys::default(),
            requests_per_second: None,
            requests_at_once: None,
            requests_waiting_max: REQUESTS_WAITING_MAX,
            failed_logins_waiting_max: 1_024,
            tls: None,
            is_plaintext_allowed: false,
            reveals_remaining: false,
            console: false,
            decisions: Some(Arc::new(MemoryRecords::new(DECISIONS_IN_MEMORY))),
        }
    }
}

impl ServerOptions {
    /// Whether callers need credentials.
    fn has_callers(&self, backend: &dyn Backend) -> bool {
        self.issuer.is_some() || backend.keys().is_some_and(|keys| keys.has_keys())
    }

    /// Whether the console is served.
    pub(crate) fn has_console(&self) -> bool {
        self.console || self.listen.ip().is_loopback()
    }

    /// Rejects a listen address that would expose the server or its credentials.
    fn check(&self, backend: &dyn Backend) -> Result<(), ServerError> {
        let found = self.listen;
        if found.ip().is_loopback() {
            Ok(())
        } else if !self.has_callers(backend) {
            Err(ServerError::NotLoopback { found })
        } else if self.tls.is_none() && !self.is_plaintext_allowed {
            Err(ServerError::Plaintext { found })
        } else {
            Ok(())
        }
    }
}

/// An error that keeps the server from starting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The server has no keys and would listen on a network.
    #[error(
        "listen: found {found}, but there are no keys, so anyone who can connect could do everything. Listen on a \
         loopback address such as 127.0.0.1:7878, or create the first key: start once with --bootstrap-key on a new \
         data folder, which prints one, or on a loopback address and run `earmark key create --name root --role admin`"
    )]
    NotLoopback {
        /// The listen address.
        found: SocketAddr,
    },
    /// Credentials would cross a network unencrypted.
    #[error(
        "listen: found {found}, where credentials would cross the network unencrypted. Give a certificate with \
         --tls-cert and --tls-key, or use --insecure-plaintext behind a proxy that terminates TLS"
    )]
    Plaintext {
        /// The listen address.
        found: SocketAddr,
    },
    /// The address is in use or not available.
    #[error("listen: cannot listen on {listen}: {source}")]
    Listen {
        /// The listen address.
        listen: SocketAddr,
        /// The I/O error.
        source: std_io::Error,
    },
    /// A bug: a built-in name is invalid.
    #[error(transparent)]
    Namespace(#[from] earmark_core::NameError),
    /// A bug: the compiled-in gRPC descriptors are invalid.
    #[error("cannot read the gRPC descriptors: {0}")]
    Description(#[from] tonic_reflection::server::Error),
}

/// A bound address of a server whose backend is not open yet. Connections are refused until [`BoundAddress::serve`].
pub struct BoundAddress {
    options: ServerOptions,
    socket: TcpSocket,
}

impl BoundAddress {
    /// Binds the address.
    ///
    /// # Errors
    /// When it is in use or not available.
    pub fn bind(options: ServerOptions) -> Result<BoundAddress, ServerError> {
        let listen = options.listen;
        let bind = || {
            let socket = if listen.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            // Lingering connections of a server that has just stopped must not block the address.
            socket.set_reuseaddr(true)?;
            socket.bind(listen)?;
            Ok(socket)
        };
        let socket = bind().map_err(|source| ServerError::Listen { listen, source })?;
        Ok(BoundAddress { options, socket })
    }

    /// Replaces the store of the decision log, which is opened after the data folder.
    #[must_use]
    pub fn with_decisions(self, decisions: Option<Arc<dyn RecordStore>>) -> BoundAddress {
        BoundAddress { options: ServerOptions { decisions, ..self.options }, ..self }
    }

    /// Starts to listen.
    ///
    /// # Errors
    /// When another process listens there, or the address would expose the server or its credentials.
    pub fn serve(self, backend: Arc<dyn Backend>) -> Result<Server, ServerError> {
        let BoundAddress { options, socket } = self;
        options.check(&*backend)?;
        install_metrics();
        let failed = |source| ServerError::Listen { listen: options.listen, source };
        let listener = socket.listen(BACKLOG).map_err(failed)?;
        let local_addr = listener.local_addr().map_err(failed)?;
        let auth = AuthOptions {
            is_strict: !options.listen.ip().is_loopback(),
            issuer: options.issuer.clone(),
            certificate_keys: options.certificate_keys.clone(),
            failed_waiting_max: options.failed_logins_waiting_max,
            requests_per_second: options.requests_per_second,
            queue: options
                .requests_at_once
                .map(|concurrent| QueueLimits { concurrent, waiting_max: options.requests_waiting_max }),
        };
        let app = Arc::new(App::new(backend, &options, auth)?);
        let services = Services { routes: Routes::new(&app), grpc: Grpc::new(&app)? };
        Ok(Server { options, listener, local_addr, app, services })
    }
}

/// A listening server. It accepts connections from [`Server::run`] on.
pub struct Server {
    options: ServerOptions,
    listener: TcpListener,
    local_addr: SocketAddr,
    app: Arc<App>,
    services: Services,
}

impl Server {
    /// Binds the address and starts to listen.
    ///
    /// # Errors
    /// When the address is not available, or would expose the server or its credentials.
    pub async fn bind(options: ServerOptions, backend: Arc<dyn Backend>) -> Result<Server, ServerError> {
        options.check(&*backend)?;
        BoundAddress::bind(options)?.serve(backend)
    }

    /// Adds the routes for cluster administration.
    #[must_use]
    pub fn with_cluster(self, cluster: Arc<dyn Cluster>) -> Server {
        // Only the first call counts: one backend has one cluster.
        _ = self.app.cluster.set(cluster);
        self
    }

    /// The address it listens on.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// The server, for a gateway in this process.
    #[must_use]
    pub fn in_process(&self) -> InProcess {
        InProcess::new(self.services.routes.clone(), self.options.has_callers(&*self.app.backend))
    }

    /// Serves until `shutdown` completes. Then it finishes requests in flight, up to the shutdown timeout, and shuts the
    /// backend down. Connections that arrive meanwhile get 503.
    ///
    /// # Errors
    /// None so far.
    pub fn run<'a>(self, shutdown: impl Future<Output = ()> + Send + 'a) -> Answer<'a, Result<(), ServerError>> {
        self.run_until(Box::pin(shutdown))
    }

    fn run_until(self, shutdown: Answer<'_, ()>) -> Answer<'_, Result<(), ServerError>> {
        Box::pin(self.accept_until(shutdown))
    }

    async fn accept_until(self, mut shutdown: Answer<'_, ()>) -> Result<(), ServerError> {
        let Server { options, listener, app, services, .. } = self;
        let mut connections = Connections::new(&options, &app, services);
        let mut upkeep = tokio::time::interval(UPKEEP);
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, address)) => connections.add(stream, address),
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(_) = connections.tasks.join_next() => {}
                _ = upkeep.tick() => {
                    app.metrics.upkeep();
                    app.log_rate.next_second();
                    let logging = Arc::clone(&app);
                    tokio::spawn(async move { logging.decisions.record_new_timeouts().await });
                    if let Some(tls) = &options.tls {
                        tls.refresh();
                    }
                    if let Some(issuer) = &options.issuer {
                        issuer.refresh();
                    }
                }
                () = &mut shutdown => break,
            }
        }
        app.drain();
        connections.finish(listener, options.shutdown_timeout).await;
        app.decisions.stop().await;
        app.backend.shut_down().await;
        Ok(())
    }
}

/// The open connections.
struct Connections {
    app: Arc<App>,
    services: Services,
    tls: Option<Arc<Tls>>,
    timeouts: Timeouts,
    places: Places,
    refusal_permits: Arc<Semaphore>,
    shutdown: (watch::Sender<bool>, ShutdownSignal),
    tasks: JoinSet<()>,
}

impl Connections {
    fn new(options: &ServerOptions, app: &Arc<App>, services: Services) -> Connections {
        let (sender, receiver) = watch::channel(false);
        Connections {
            app: Arc::clone(app),
            services,
            tls: options.tls.clone(),
            timeouts: Timeouts::new(options.header_timeout, options.request_timeout),
            places: Places::new(options.connections_max, options.connections_per_address),
            refusal_permits: Arc::new(Semaphore::new(REFUSALS_MAX)),
            shutdown: (sender, ShutdownSignal(receiver)),
            tasks: JoinSet::new(),
        }
    }

    fn add(&mut self, stream: TcpStream, address: SocketAddr) {
        // A response is one small packet, which Nagle's algorithm would only delay.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection closed before it was served");
            return;
        }
        let why = match self.places.claim(address.ip()) {
            Claimed::Place { place, evicted } => {
                self.app.metrics.connections_evicted(evicted);
                return self.serve(stream, address, place);
            }
            Claimed::NetworkFull => NotServed::TooManyOfAddress,
            Claimed::ServerFull => NotServed::TooManyConnections,
        };
        self.app.metrics.connection_refused();
        // Before a TLS handshake no response can be sent.
        if self.tls.is_some() {
            return;
        }
        if let Ok(permit) = Arc::clone(&self.refusal_permits).try_acquire_owned() {
            self.tasks.spawn(async move {
                refuse(stream, why).await;
                drop(permit);
            });
        }
    }

    fn serve(&mut self, stream: TcpStream, address: SocketAddr, place: Arc<Place>) {
        let connection = Arc::clone(&place.connection);
        let (network, connection_state) = (ClientNetwork::of(address.ip()), Arc::clone(&connection));
        let peer = Peer { network, connection: connection_state, hangup: None, certificate: None };
        let open = OpenConnection::new(Arc::clone(&self.app), place);
        let tls = self.tls.as_ref().map(|tls| tls.acceptor());
        let (services, shutdown) = (self.services.clone(), self.shutdown.1.clone());
        let serving = connection::serve((stream, peer), tls, services, self.timeouts, shutdown);
        self.tasks.spawn(async move {
            tokio::select! {
                // The connection is nearly always the one that is ready.
                biased;
                () = serving => {}
                () = Seldom::new(connection.evicted()) => {}
            }
            drop(open);
        });
    }

    /// Lets every connection finish its current request, and refuses new connections.
    async fn finish(mut self, listener: TcpListener, timeout: Duration) {
        self.shutdown.0.send_replace(true);
        // Refusals are not waited for; they end when this set is dropped.
        let mut refusals = JoinSet::new();
        let all = async {
            loop {
                tokio::select! {
                    ended = self.tasks.join_next() => if ended.is_none() { break },
                    Some(_) = refusals.join_next() => {}
                    accepted = listener.accept() => match accepted {
                        Ok((stream, _)) if refusals.len() < REFUSALS_MAX && self.tls.is_none() => {
                            refusals.spawn(refuse(stream, NotServed::ShuttingDown));
                        }
                        Ok(_) => {}
                        Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
                    },
                }
            }
        };
        if tokio::time::timeout(timeout, all).await.is_err() {
            tracing::warn!(
                connections = self.tasks.len(),
                ?timeout,
                "shutdown timeout: requests in flight were aborted"
            );
            self.tasks.shutdown().await;
        }
    }
}

/// Counts an open connection until it is dropped.
struct OpenConnection {
    app: Arc<App>,
    _place: Arc<Place>,
}

impl OpenConnection {
    fn new(app: Arc<App>, place: Arc<Place>) -> OpenConnection {
        app.metrics.connection_opened();
        OpenConnection { app, _place: place }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.app.metrics.connection_closed();
    }
}
