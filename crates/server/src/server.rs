//! The server: accepts connections, serves them, and ends in order.

mod connection;
mod frames;
mod io;
mod pulse;
mod streams;
mod transport;

use std::future::Future;
use std::io as std_io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use earmark_admission::{Backend, Cluster};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use crate::app::App;
use crate::door::{DoorOptions, Issuer, TurnTerms};
use crate::grpc::Grpc;
use crate::http::router;
use crate::metrics::install_metrics;
use crate::tls::Tls;
use connection::{Services, Stop, Terms, Unserved, refuse};

/// How often what was recorded is summed up.
const UPKEEP: Duration = Duration::from_secs(1);
/// How long nothing is accepted after the system refused to: it is out of files or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// So many connections wait to be accepted.
const BACKLOG: u32 = 1_024;
/// So many connections beyond the allowed are told so at once; any more are closed without a word.
const REFUSALS_MAX: usize = 64;

/// So many requests of a caller wait for their turn, if nobody says how many.
pub const REQUESTS_WAITING_MAX: usize = 4_096;
/// So many requests of a caller are worked on at once where that is bounded, if nobody says how many.
pub const REQUESTS_AT_ONCE: u32 = 256;

/// What an operator may set.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where to listen. Port 0 takes any that is free.
    pub listen: SocketAddr,
    /// The most connections at once. More get 503 and are closed.
    pub connections_max: usize,
    /// The most memory that bodies may take which come in pieces, of all requests together. More get 503.
    pub bodies_bytes_max: usize,
    /// How long a request may take, its body included.
    pub request_timeout: Duration,
    /// How long the head of a request may take.
    pub header_timeout: Duration,
    /// How long requests in flight may still take when it shuts down.
    pub shutdown_timeout: Duration,
    /// Whose session tokens are taken besides keys.
    pub issuer: Option<Arc<Issuer>>,
    /// How many requests each caller may make in a second; as many as they like if there is none.
    pub requests_per_second: Option<u64>,
    /// How many requests of each caller are worked on at once, every eight items of a batch one; as many as come if there is none.
    pub requests_at_once: Option<NonZeroU32>,
    /// How many more requests of each caller may wait for those, a batch as one.
    pub requests_waiting_max: usize,
    /// How many whose logins fail again and again are slowed at once. The connections of more are closed.
    pub failed_logins_waiting_max: usize,
    /// What clients connect by; in clear if there is none.
    pub tls: Option<Arc<Tls>>,
    /// Credentials may be sent in clear to an address that is not loopback: something before this server encrypts.
    pub is_plaintext_allowed: bool,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            listen: SocketAddr::from(([127, 0, 0, 1], 7878)),
            connections_max: 10_000,
            bodies_bytes_max: 256 << 20,
            request_timeout: Duration::from_secs(30),
            header_timeout: Duration::from_secs(10),
            shutdown_timeout: Duration::from_secs(30),
            issuer: None,
            requests_per_second: None,
            requests_at_once: None,
            requests_waiting_max: REQUESTS_WAITING_MAX,
            failed_logins_waiting_max: 1_024,
            tls: None,
            is_plaintext_allowed: false,
        }
    }
}

impl ServerOptions {
    /// Whether it is safe to listen where it is to.
    fn check(&self, backend: &dyn Backend) -> Result<(), ServerError> {
        let found = self.listen;
        let has_callers = self.issuer.is_some() || backend.keys().is_some_and(|keys| keys.has_keys());
        if found.ip().is_loopback() {
            Ok(())
        } else if !has_callers {
            Err(ServerError::NotLoopback { found })
        } else if self.tls.is_none() && !self.is_plaintext_allowed {
            Err(ServerError::Plaintext { found })
        } else {
            Ok(())
        }
    }
}

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// Anyone could call it.
    #[error(
        "listen: found {found}, and there are no keys, so that everyone who can connect could do everything. Allowed are \
         loopback addresses such as 127.0.0.1:7878; or make the first key: start once with --bootstrap-key on a new \
         data folder, which prints one, or on a loopback address and `earmark key create --name root --role admin`"
    )]
    NotLoopback {
        /// The address.
        found: SocketAddr,
    },
    /// Anyone on the way could read the credentials.
    #[error(
        "listen: found {found}, where credentials would be sent in clear. Give a certificate with --tls-cert and \
         --tls-key; or, if something before this server encrypts, say --insecure-plaintext"
    )]
    Plaintext {
        /// The address.
        found: SocketAddr,
    },
    /// The address cannot be listened on.
    #[error("listen: {listen} cannot be listened on: {source}")]
    Listen {
        /// The address.
        listen: SocketAddr,
        /// What the system says.
        source: std_io::Error,
    },
    /// A bug: the namespace that always exists has no name.
    #[error(transparent)]
    Namespace(#[from] earmark_core::NameError),
    /// A bug: what the server says of its gRPC services cannot be read.
    #[error("the description of the gRPC services cannot be read: {0}")]
    Description(#[from] tonic_reflection::server::Error),
}

/// An address that is taken for a server whose backend is not there yet. Whoever connects is refused until it is.
pub struct Address {
    options: ServerOptions,
    socket: TcpSocket,
}

impl Address {
    /// Takes the address.
    ///
    /// # Errors
    /// When it is taken.
    pub fn take(options: ServerOptions) -> Result<Address, ServerError> {
        let listen = options.listen;
        let taken = || {
            let socket = if listen.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            // Connections of a server that has just stopped linger, and are in nobody's way.
            socket.set_reuseaddr(true)?;
            socket.bind(listen)?;
            Ok(socket)
        };
        let socket = taken().map_err(|source| ServerError::Listen { listen, source })?;
        Ok(Address { options, socket })
    }

    /// Listens.
    ///
    /// # Errors
    /// When another process has come first, anyone could call from elsewhere, or credentials would come in clear.
    pub fn serve(self, backend: Arc<dyn Backend>) -> Result<Server, ServerError> {
        let Address { options, socket } = self;
        options.check(&*backend)?;
        install_metrics();
        let failed = |source| ServerError::Listen { listen: options.listen, source };
        let listener = socket.listen(BACKLOG).map_err(failed)?;
        let local_addr = listener.local_addr().map_err(failed)?;
        let door = DoorOptions {
            is_strict: !options.listen.ip().is_loopback(),
            issuer: options.issuer.clone(),
            failed_waiting_max: options.failed_logins_waiting_max,
            requests_per_second: options.requests_per_second,
            turns: options
                .requests_at_once
                .map(|at_once| TurnTerms { at_once, waiting_max: options.requests_waiting_max }),
        };
        let app = Arc::new(App::new(backend, options.request_timeout, options.bodies_bytes_max, door)?);
        let services = Services { router: router(&app), grpc: Grpc::new(&app)? };
        Ok(Server { options, listener, local_addr, app, services })
    }
}

/// A server that listens. Nothing is accepted before [`Server::run`].
pub struct Server {
    options: ServerOptions,
    listener: TcpListener,
    local_addr: SocketAddr,
    app: Arc<App>,
    services: Services,
}

impl Server {
    /// Listens.
    ///
    /// # Errors
    /// When anyone could call from elsewhere, or the address cannot be listened on.
    pub async fn bind(options: ServerOptions, backend: Arc<dyn Backend>) -> Result<Server, ServerError> {
        options.check(&*backend)?;
        Address::take(options)?.serve(backend)
    }

    /// Lets operators look after the cluster that the backend belongs to.
    #[must_use]
    pub fn with_cluster(self, cluster: Arc<dyn Cluster>) -> Server {
        // There is one backend, so there is one cluster: the first.
        _ = self.app.cluster.set(cluster);
        self
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Serves until `shutdown`. Then what is in flight is finished, or given up after the timeout, and the
    /// backend is shut down. Until that is done, whoever still connects is told that it is shutting down.
    ///
    /// # Errors
    /// None so far.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) -> Result<(), ServerError> {
        let Server { options, listener, app, services, .. } = self;
        let mut connections = Connections::new(&options, &app, services);
        let mut upkeep = tokio::time::interval(UPKEEP);
        tokio::pin!(shutdown);
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => connections.add(stream),
                    Err(error) => {
                        tracing::warn!(%error, "could not accept a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(_) = connections.tasks.join_next() => {}
                _ = upkeep.tick() => {
                    app.metrics.upkeep();
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
        app.backend.shut_down().await;
        Ok(())
    }
}

/// The connections that are open.
struct Connections {
    app: Arc<App>,
    services: Services,
    tls: Option<Arc<Tls>>,
    terms: Terms,
    places: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    stop: (watch::Sender<bool>, Stop),
    tasks: JoinSet<()>,
}

impl Connections {
    fn new(options: &ServerOptions, app: &Arc<App>, services: Services) -> Connections {
        let (say, hear) = watch::channel(false);
        Connections {
            app: Arc::clone(app),
            services,
            tls: options.tls.clone(),
            terms: Terms::new(options.header_timeout, options.request_timeout),
            places: Arc::new(Semaphore::new(options.connections_max.min(Semaphore::MAX_PERMITS))),
            refusals: Arc::new(Semaphore::new(REFUSALS_MAX)),
            stop: (say, Stop(hear)),
            tasks: JoinSet::new(),
        }
    }

    fn add(&mut self, stream: TcpStream) {
        // An answer is one small packet; waiting for more to put into it only delays it.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection was gone before it was served");
            return;
        }
        if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
            let open = Open::new(Arc::clone(&self.app), place);
            let tls = self.tls.as_ref().map(|tls| tls.acceptor());
            let serving =
                connection::serve(stream, tls, self.services.clone(), self.terms, self.stop.1.clone());
            self.tasks.spawn(async move {
                serving.await;
                drop(open);
            });
            return;
        }
        self.app.metrics.connection_refused();
        // Before a handshake there is no way to say anything.
        if self.tls.is_some() {
            return;
        }
        if let Ok(place) = Arc::clone(&self.refusals).try_acquire_owned() {
            self.tasks.spawn(async move {
                refuse(stream, Unserved::TooMany).await;
                drop(place);
            });
        }
    }

    /// Lets every connection finish the request it is at, and serves no others.
    async fn finish(mut self, listener: TcpListener, timeout: Duration) {
        self.stop.0.send_replace(true);
        // Apart from the others: they hold nothing up, and end when this is dropped.
        let mut late = JoinSet::new();
        let all = async {
            loop {
                tokio::select! {
                    ended = self.tasks.join_next() => if ended.is_none() { break },
                    Some(_) = late.join_next() => {}
                    accepted = listener.accept() => match accepted {
                        Ok((stream, _)) if late.len() < REFUSALS_MAX && self.tls.is_none() => {
                            late.spawn(refuse(stream, Unserved::ShuttingDown));
                        }
                        Ok(_) => {}
                        Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
                    },
                }
            }
        };
        if tokio::time::timeout(timeout, all).await.is_err() {
            tracing::warn!(connections = self.tasks.len(), ?timeout, "gave up on requests in flight");
            self.tasks.shutdown().await;
        }
    }
}

/// Counts a connection for as long as it is open, however it ends.
struct Open {
    app: Arc<App>,
    _place: OwnedSemaphorePermit,
}

impl Open {
    fn new(app: Arc<App>, place: OwnedSemaphorePermit) -> Open {
        app.metrics.connection_opened();
        Open { app, _place: place }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.app.metrics.connection_closed();
    }
}
