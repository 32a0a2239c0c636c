//! Accepts connections, and serves HTTP/1.1 and HTTP/2 on them.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Version};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::gateway::Shared;
use crate::progress::{Progress, Watched};
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
            _ = upkeep.tick() => shared.metrics.upkeep(),
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
        Some(tls) => match timeout(HEAD_TIMEOUT, tls.accept(stream)).await {
            // A connection without TLS does not need the memory of one with it.
            Ok(Ok(stream)) => Box::pin(http(shared, stream, peer, stop)).await,
            Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => tracing::debug!("TLS handshake timed out"),
        },
    }
}

async fn http(
    shared: Arc<Shared>,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    peer: SocketAddr,
    mut stop: watch::Receiver<bool>,
) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(HEAD_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEAD_BYTES_MAX as u32)
        .initial_stream_window_size(STREAM_BYTES_MAX as u32)
        .max_send_buf_size(STREAM_BYTES_MAX)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING);
    // The client of a stream may take nothing for as long as its upstream allows.
    let take_timeout =
        shared.config.upstreams.iter().map(|upstream| upstream.timeouts.idle).max().unwrap_or(HEAD_TIMEOUT);
    let progress = Progress::new();
    let stream = TokioIo::new(Watched::new(stream, &progress));
    let of_connection = Arc::clone(&progress);
    let service = service_fn(move |request: Request<Incoming>| {
        // Over HTTP/1 an answer that is not taken blocks the connection.
        let noted = (request.version() == Version::HTTP_2).then(|| Arc::clone(&of_connection));
        serve::serve(Arc::clone(&shared), request, peer, noted)
    });
    let mut serving = pin!(builder.serve_connection(stream, service));
    let interval = HEAD_TIMEOUT.min(take_timeout / CHECKS_PER_TIMEOUT);
    let mut check = pin!(sleep(interval));
    // An error means that the gateway is gone.
    let mut stopped = pin!(async move { _ = stop.wait_for(|stops| *stops).await.is_ok() });
    let mut is_stopping = false;
    let ended = loop {
        tokio::select! {
            ended = serving.as_mut() => break ended,
            () = stopped.as_mut(), if !is_stopping => {
                is_stopping = true;
                serving.as_mut().graceful_shutdown();
            }
            () = check.as_mut() => {
                let now = Instant::now();
                if let Some(why) = progress.stalled(now, HEAD_TIMEOUT, take_timeout) {
                    tracing::debug!(why, "closed a connection");
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
