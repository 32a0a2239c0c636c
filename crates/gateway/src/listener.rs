//! Accepts connections, and serves HTTP/1.1 and HTTP/2 on them.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::gateway::Shared;
use crate::progress::{Progress, Watched, first_bytes};
use crate::serve;

/// Open connections. Beyond it new ones wait in the queue of the system.
const CONNECTIONS_MAX: usize = 10_000;
/// Time for a TLS handshake, for the first bytes behind it, and for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest head of a request, in bytes. hyper also allows at most 100 headers.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Concurrent requests on one HTTP/2 connection.
const STREAMS_MAX: u32 = 128;
/// Flow-control window and send buffer of one HTTP/2 request, in bytes.
const STREAM_BYTES_MAX: usize = 64 << 10;
/// Interval and timeout of HTTP/2 pings.
const PING: Duration = Duration::from_secs(30);
/// Pause after a failed accept, which means that the system is out of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Checks of a connection while its client may take nothing, so that it is closed at most a quarter late.
const CHECKS_PER_TIMEOUT: u32 = 4;
/// Interval of housekeeping.
const UPKEEP: Duration = Duration::from_secs(5);

/// The open connections.
pub(crate) struct Connections {
    tasks: JoinSet<()>,
    stop: watch::Sender<bool>,
}

/// Accepts and serves connections until `shutdown` completes.
pub(crate) async fn accept_until(
    shared: &Arc<Shared>,
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    shutdown: impl Future<Output = ()> + Send,
) -> Connections {
    let mut shutdown = pin!(shutdown);
    let mut connections = Connections { tasks: JoinSet::new(), stop: watch::channel(false).0 };
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut upkeep = tokio::time::interval(UPKEEP);
    loop {
        let accept = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        tokio::select! {
            (place, accepted) = accept => match accepted {
                Ok((stream, peer)) => {
                    let (shared, tls, stop) = (Arc::clone(shared), tls.clone(), connections.stop.subscribe());
                    connections.tasks.spawn(async move {
                        connection(shared, stream, peer, tls, stop).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.tasks.join_next() => {}
            _ = upkeep.tick() => {
                shared.metrics.upkeep();
                shared.upstreams.values().for_each(|upstream| upstream.upkeep());
            }
            () = &mut shutdown => return connections,
        }
    }
}

/// Lets every connection finish its requests.
pub(crate) async fn finish(mut connections: Connections) {
    connections.stop.send_replace(true);
    while connections.tasks.join_next().await.is_some() {}
}

async fn connection(
    shared: Arc<Shared>,
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<TlsAcceptor>,
    stop: watch::Receiver<bool>,
) {
    // The pieces of a stream are small, and Nagle's algorithm would delay them.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    match tls {
        None => http(shared, stream, peer, stop).await,
        // A connection without TLS does not need the memory of one with it.
        Some(tls) => Box::pin(https(shared, stream, peer, tls, stop)).await,
    }
}

async fn https(
    shared: Arc<Shared>,
    stream: TcpStream,
    peer: SocketAddr,
    tls: TlsAcceptor,
    stop: watch::Receiver<bool>,
) {
    match timeout(HEAD_TIMEOUT, tls.accept(stream)).await {
        Ok(Ok(stream)) => http(shared, stream, peer, stop).await,
        Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => tracing::debug!("TLS handshake timed out"),
    }
}

async fn http(
    shared: Arc<Shared>,
    mut stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    peer: SocketAddr,
    mut stop: watch::Receiver<bool>,
) {
    let (first, is_http2) = tokio::select! {
        first = timeout(HEAD_TIMEOUT, first_bytes(&mut stream)) => match first {
            Ok(Ok((first, is_http2))) if !first.is_empty() => (first, is_http2),
            _ => return,
        },
        () = stopped(&mut stop) => return,
    };
    // The client of a stream may take nothing for as long as its upstream allows.
    let take_timeout =
        shared.config.upstreams.iter().map(|upstream| upstream.timeouts.idle).max().unwrap_or(HEAD_TIMEOUT);
    let progress = Arc::new(Progress::default());
    let stream = TokioIo::new(Watched::new(stream, first, &progress));
    let of_connection = Arc::clone(&progress);
    let service = service_fn(move |request: Request<Incoming>| {
        // Over HTTP/1 an answer that is not taken blocks the connection.
        let noted = is_http2.then(|| Arc::clone(&of_connection));
        // Boxed: hyper keeps the memory of the last future for as long as the connection.
        Box::pin(serve::serve(Arc::clone(&shared), request, peer, noted))
    });
    let watch = Watch { progress, take_timeout, stop };
    if is_http2 {
        // A connection of HTTP/1 does not need the memory of one of HTTP/2.
        let mut serving = Box::pin(http2_builder().serve_connection(stream, service));
        watch.until_served(serving.as_mut(), http2::Connection::graceful_shutdown).await;
    } else {
        let serving = pin!(http1_builder().serve_connection(stream, service));
        watch.until_served(serving, http1::Connection::graceful_shutdown).await;
    }
}

fn http1_builder() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(HEAD_BYTES_MAX);
    builder
}

fn http2_builder() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEAD_BYTES_MAX as u32)
        .initial_stream_window_size(STREAM_BYTES_MAX as u32)
        .max_send_buf_size(STREAM_BYTES_MAX)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING);
    builder
}

/// The reasons to end a connection, beside its own end.
struct Watch {
    progress: Arc<Progress>,
    take_timeout: Duration,
    stop: watch::Receiver<bool>,
}

impl Watch {
    /// Serves a connection until it ends, its client takes nothing any more, or the gateway stops and its requests are
    /// finished.
    async fn until_served<C>(self, mut serving: Pin<&mut C>, finish: fn(Pin<&mut C>))
    where
        C: Future<Output = hyper::Result<()>>,
    {
        let Watch { progress, take_timeout, mut stop } = self;
        let interval = HEAD_TIMEOUT.min(take_timeout / CHECKS_PER_TIMEOUT);
        let mut check = pin!(sleep(interval));
        let mut stopped = pin!(stopped(&mut stop));
        let mut is_stopping = false;
        let ended = loop {
            tokio::select! {
                ended = serving.as_mut() => break ended,
                () = stopped.as_mut(), if !is_stopping => {
                    is_stopping = true;
                    finish(serving.as_mut());
                }
                () = check.as_mut() => {
                    let now = Instant::now();
                    if progress.is_stalled(now, take_timeout) {
                        tracing::debug!("closed a connection whose client takes nothing");
                        return;
                    }
                    check.as_mut().reset(now + interval);
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection failed");
        }
    }
}

/// Waits until the gateway stops. An error means that it is gone.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    _ = stop.wait_for(|stops| *stops).await.is_ok();
}
