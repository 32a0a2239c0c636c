//! Serves one connection: protocol detection, HTTP/1 or HTTP/2, and timeouts.
//!
//! A periodic check replaces a timer for every request: [`PhaseTimer`] watches the bytes of a connection, and
//! [`StreamTimer`] the requests of an HTTP/2 connection.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONNECTION, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::activity::{Activity, ActivityStamp, Phase};
use super::body_length::BodyLengths;
use super::frames::Frames;
use super::io::{Inbound, Preamble, Stream};
use super::seldom::Seldom;
use super::streams::{StreamTimer, StreamingBody, Streams, TrackedBody};
use super::transport::Transport;
use crate::app::SHUTTING_DOWN;
use crate::auth::{CloseAfterReply, Hangup, Peer};
use crate::grpc::{Grpc, Streaming, is_call};
use crate::http::{Reply, Routes};
use crate::tls::HTTP_2;

/// Largest request head, in bytes. hyper also allows at most 100 headers.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Read buffer of a connection, in bytes.
const BUFFER_BYTES_MAX: usize = 128 << 10;
/// Concurrent requests on one HTTP/2 connection. Many clients assume 100 until they receive the settings.
const STREAMS_MAX: u32 = 128;
/// Flow-control window and send buffer of one HTTP/2 request, in bytes.
const STREAM_BYTES_MAX: usize = 64 << 10;
/// A connection without requests is closed after this. It is longer than clients usually pool a connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// Interval and timeout of HTTP/2 pings.
const PING: Duration = Duration::from_secs(30);
/// Checks of a connection within its shortest timeout, so that a timeout is at most a quarter late.
const CHECKS_PER_TIMEOUT: u32 = 4;
/// Shortest time between two checks, so that short timeouts do not keep the CPU busy.
const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(5);
/// Time that a refused client has to send its request and to read the response.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// The timeouts of every connection.
#[derive(Clone, Copy)]
pub(super) struct Timeouts {
    /// Time that a client has for a TLS handshake, and for each request head.
    header_timeout: Duration,
    /// Time that a client may leave a response unread.
    write_timeout: Duration,
    check_interval: Duration,
}

impl Timeouts {
    pub(super) fn new(header_timeout: Duration, write_timeout: Duration) -> Timeouts {
        let check_interval = (header_timeout.min(write_timeout) / CHECKS_PER_TIMEOUT).max(CHECK_INTERVAL_MIN);
        Timeouts { header_timeout, write_timeout, check_interval }
    }

    /// How long a connection may stay in a phase without progress. Handlers have their own timeouts.
    fn max(&self, phase: Phase) -> Duration {
        match phase {
            Phase::Idle => IDLE_TIMEOUT,
            Phase::Head => self.header_timeout,
            Phase::Handling => Duration::MAX,
            Phase::Writing => self.write_timeout,
        }
    }
}

/// The services of every connection.
#[derive(Clone)]
pub(super) struct Services {
    pub(super) routes: Routes,
    /// gRPC, only over HTTP/2.
    pub(super) grpc: Grpc,
}

/// Tells connections to shut down.
#[derive(Clone)]
pub(super) struct ShutdownSignal(pub(super) watch::Receiver<bool>);

impl ShutdownSignal {
    async fn requested(&mut self) {
        // An error means that the sender is gone; the connection ends then too.
        _ = self.0.wait_for(|is_requested| *is_requested).await;
    }
}

/// Serves one connection until it ends.
pub(super) async fn serve(
    (tcp, peer): (TcpStream, Peer),
    tls: Option<TlsAcceptor>,
    services: Services,
    timeouts: Timeouts,
    mut shutdown: ShutdownSignal,
) {
    let negotiated = async {
        match tls {
            Some(tls) => tls_handshake(tcp, tls, timeouts).await,
            None => detect_protocol(tcp, timeouts).await,
        }
    };
    let negotiated = tokio::select! {
        negotiated = negotiated => negotiated,
        () = shutdown.requested() => return,
    };
    let Some(Negotiated { transport, preamble, is_http2 }) = negotiated else { return };
    let peer = Peer { certificate: transport.certificate().map(Arc::new), ..peer };
    if is_http2 {
        let stream = |activity| Stream::new(transport, preamble, activity, Inbound::Frames(Frames::new()));
        http_2(stream, peer, services, timeouts, shutdown).await;
    } else {
        // HTTP/2 drops the request of a client that has gone; HTTP/1 has to look for it while a request is queued.
        let hangup = Arc::new(Hangup::default());
        let peer = Peer { hangup: Some(Arc::clone(&hangup)), ..peer };
        let stream =
            |activity| Stream::new(transport, preamble, activity, Inbound::Http1(hangup, BodyLengths::default()));
        http_1(stream, peer, services.routes, timeouts, shutdown).await;
    }
}

/// A connection with a known protocol.
struct Negotiated {
    transport: Transport,
    /// The bytes that the detection has read; empty with TLS.
    preamble: Preamble,
    is_http2: bool,
}

/// Detects HTTP/1 or HTTP/2 on a plaintext connection by its first bytes.
async fn detect_protocol(tcp: TcpStream, timeouts: Timeouts) -> Option<Negotiated> {
    let mut preamble = Preamble::default();
    match timeout(timeouts.header_timeout, preamble.read(&tcp)).await {
        Ok(Ok(Some(is_http2))) => Some(Negotiated { transport: Transport::Plain(tcp), preamble, is_http2 }),
        Ok(Ok(None) | Err(_)) => None,
        // A client that has sent nothing expects no response.
        Err(_) if preamble.is_empty() => None,
        Err(_) => {
            write_reply(tcp, &too_slow()).await;
            None
        }
    }
}

/// Negotiates TLS, and the protocol by ALPN.
async fn tls_handshake(tcp: TcpStream, tls: TlsAcceptor, timeouts: Timeouts) -> Option<Negotiated> {
    match timeout(timeouts.header_timeout, tls.accept(tcp)).await {
        Ok(Ok(stream)) => {
            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(HTTP_2);
            let transport = Transport::Tls(Box::new(stream));
            Some(Negotiated { transport, preamble: Preamble::default(), is_http2 })
        }
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS handshake failed");
            None
        }
        Err(_) => None,
    }
}

async fn http_1(
    stream: impl FnOnce(Arc<Activity>) -> Stream,
    peer: Peer,
    routes: Routes,
    timeouts: Timeouts,
    shutdown: ShutdownSignal,
) {
    let activity = Arc::new(Activity::default());
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // hyper's own timeout would also end idle connections, and would set a timer for every request.
        .header_read_timeout(None)
        .max_header_size(HEAD_BYTES_MAX)
        .max_buf_size(BUFFER_BYTES_MAX)
        // A client may close its sending side and still wait for the response.
        .half_close(true)
        .serve_connection(
            TokioIo::new(stream(Arc::clone(&activity))),
            http1_service(routes, peer, Arc::clone(&activity)),
        );
    let graceful = |connection: &mut http1::Connection<_, _>| Pin::new(connection).graceful_shutdown();
    let mut timer = PhaseTimer { stamp: activity.stamp(), since: Instant::now() };
    let timed_out = |now| timer.check(activity.stamp(), now, &timeouts);
    match drive(&mut connection, graceful, timed_out, timeouts, shutdown).await {
        Ending::Done | Ending::TimedOut(Phase::Idle | Phase::Handling | Phase::Writing) => {}
        Ending::TimedOut(Phase::Head) => {
            write_reply(connection.into_parts().io.into_inner().into_transport(), &too_slow()).await;
        }
    }
}

async fn http_2(
    stream: impl FnOnce(Arc<Activity>) -> Stream,
    peer: Peer,
    services: Services,
    timeouts: Timeouts,
    shutdown: ShutdownSignal,
) {
    let (activity, streams) = (Arc::new(Activity::default()), Arc::new(Streams::default()));
    let mut connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEAD_BYTES_MAX as u32)
        .initial_connection_window_size(BUFFER_BYTES_MAX as u32)
        .initial_stream_window_size(STREAM_BYTES_MAX as u32)
        .max_send_buf_size(STREAM_BYTES_MAX)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING)
        .serve_connection(
            TokioIo::new(stream(Arc::clone(&activity))),
            http2_service(services, peer, Arc::clone(&streams)),
        );
    let graceful = |connection: &mut http2::Connection<_, _, _>| Pin::new(connection).graceful_shutdown();
    let now = Instant::now();
    let (mut timer, mut stream_timer) = (PhaseTimer { stamp: activity.stamp(), since: now }, StreamTimer::new(now));
    let timed_out = |now| match timer.check(activity.stamp(), now, &timeouts) {
        // Reported once, so that the connection gets a graceful shutdown and is not dropped by the next check.
        _ if streams.take_close_request() => Some(Phase::Idle),
        // Byte progress, such as pings, says nothing about the requests.
        None | Some(Phase::Idle) => stream_timer.check(&streams, now, timeouts.write_timeout, IDLE_TIMEOUT),
        phase => phase,
    };
    drive(&mut connection, graceful, timed_out, timeouts, shutdown).await;
}

/// The services of an HTTP/2 connection, which track requests and unread responses.
fn http2_service(
    services: Services,
    peer: Peer,
    streams: Arc<Streams>,
) -> impl Service<
    Request<Incoming>,
    Response = Response<TrackedBody>,
    Error = std::convert::Infallible,
    Future: Send + 'static,
> + Unpin {
    // A request counts one reference to the services, in place of one to each of their parts.
    let services = Arc::new(services);
    service_fn(move |request: Request<Incoming>| {
        let (request_guard, services, peer) = (streams.begin_request(), Arc::clone(&services), peer.clone());
        // hyper moves the future three times before its first poll.
        Box::pin(async move {
            let response = if is_call(&request) {
                services.grpc.serve(request, peer).await
            } else {
                services.routes.serve(request, &peer).await
            };
            if response.extensions().get::<CloseAfterReply>().is_some() {
                request_guard.close_connection();
            }
            let is_streaming = response.extensions().get::<Streaming>().is_some();
            Ok(response.map(|body| if is_streaming { request_guard.stream(body) } else { request_guard.answer(body) }))
        })
    })
}

/// The router of an HTTP/1 connection, which records where a request begins and ends.
fn http1_service(
    routes: Routes,
    peer: Peer,
    activity: Arc<Activity>,
) -> impl Service<Request<Incoming>, Response = Response<axum::body::Body>, Error = std::convert::Infallible, Future: Send>
+ Unpin {
    service_fn(move |request: Request<Incoming>| {
        activity.enter(Phase::Handling);
        let serving = (!activity.is_ambiguous()).then(|| routes.serve(request, &peer));
        let activity = Arc::clone(&activity);
        async move {
            let response = match serving {
                Some(serving) => serving.await,
                None => ambiguous_length(),
            };
            if response.extensions().get::<Streaming>().is_some() {
                return Ok(response.map(|body| Body::new(StreamingBody::new(body, activity))));
            }
            activity.enter(Phase::Idle);
            Ok(response)
        }
    })
}

/// The response to a request that states the length of its body twice. The connection closes.
fn ambiguous_length() -> Response<Body> {
    let why = "content-length: found it with transfer-encoding, allowed is one of them";
    let Reply { status, body, .. } = Reply::invalid(why);
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// How a connection ended.
enum Ending {
    /// It closed or failed.
    Done,
    /// It stayed in a phase for too long, and must be dropped.
    TimedOut(Phase),
}

/// Drives a connection to its end, and checks its timeouts meanwhile.
async fn drive<C: Future<Output = hyper::Result<()>> + Unpin>(
    connection: &mut C,
    graceful: impl Fn(&mut C),
    mut timed_out: impl FnMut(Instant) -> Option<Phase>,
    timeouts: Timeouts,
    shutdown: ShutdownSignal,
) -> Ending {
    let mut is_ending = false;
    // Both in one future, because the connection polls it several times per request.
    let next = |is_ending: bool| {
        let mut shutdown = shutdown.clone();
        Seldom::new(async move {
            tokio::select! {
                () = sleep(timeouts.check_interval) => Interruption::Check,
                () = shutdown.requested(), if !is_ending => Interruption::Shutdown,
            }
        })
    };
    let mut interruption = next(is_ending);
    loop {
        tokio::select! {
            // The connection is nearly always the one that is ready.
            biased;
            ended = &mut *connection => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "connection failed");
                }
                return Ending::Done;
            }
            interrupted = &mut interruption => {
                match interrupted {
                    Interruption::Check => match timed_out(Instant::now()) {
                        None => {}
                        // An idle connection gets a graceful shutdown. It is dropped if the next check finds it idle too.
                        Some(Phase::Idle) if !is_ending => {
                            is_ending = true;
                            graceful(connection);
                        }
                        Some(phase) => return Ending::TimedOut(phase),
                    },
                    Interruption::Shutdown => {
                        is_ending = true;
                        graceful(connection);
                    }
                }
                interruption = next(is_ending);
            }
        }
    }
}

/// An event that interrupts the serving of a connection.
enum Interruption {
    /// The next check of its timeouts is due.
    Check,
    Shutdown,
}

/// The last activity stamp, and since when it has not changed.
struct PhaseTimer {
    stamp: ActivityStamp,
    since: Instant,
}

impl PhaseTimer {
    /// The phase, if it has timed out.
    fn check(&mut self, stamp: ActivityStamp, now: Instant, timeouts: &Timeouts) -> Option<Phase> {
        if stamp != self.stamp {
            *self = PhaseTimer { stamp, since: now };
        }
        (now - self.since >= timeouts.max(stamp.phase())).then_some(stamp.phase())
    }
}

fn too_slow() -> Reply {
    Reply::too_slow("head: it did not arrive in time; send it at once")
}

/// The reason why a connection is not served.
#[derive(Clone, Copy)]
pub(super) enum NotServed {
    TooManyConnections,
    TooManyOfAddress,
    ShuttingDown,
}

impl NotServed {
    fn reply(self, head: &[u8]) -> Reply {
        match self {
            NotServed::TooManyConnections => Reply::overloaded("too many connections; close some, or retry later"),
            NotServed::TooManyOfAddress => Reply::overloaded(
                "too many connections of this address (--connections-per-address); close some, or retry later",
            ),
            NotServed::ShuttingDown if head.starts_with(b"GET /readyz ") => Reply::not_ready(SHUTTING_DOWN),
            NotServed::ShuttingDown => Reply::overloaded("shutting down; nothing happened, retry later"),
        }
    }
}

/// Reads the beginning of a request and answers that it is not served. For plaintext connections only: before a TLS
/// handshake no response can be sent.
pub(super) async fn refuse(tcp: TcpStream, why: NotServed) {
    let mut head = [0; HEAD_BYTES_MAX];
    let mut length = 0;
    // A response before the request would confuse some clients, so the request comes first if it arrives in time.
    if timeout(REFUSAL_TIMEOUT, tcp.readable()).await.is_ok() {
        length = tcp.try_read(&mut head).unwrap_or_default();
    }
    write_reply(tcp, &why.reply(&head[..length])).await;
}

/// Writes an HTTP/1 response without hyper, and closes the connection.
async fn write_reply(mut stream: impl AsyncWrite + Unpin, reply: &Reply) {
    let text = format!(
        "HTTP/1.1 {}\r\n{CONTENT_TYPE}: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        reply.status,
        reply.body.len(),
    );
    let writing = async {
        stream.write_all(text.as_bytes()).await?;
        stream.write_all(&reply.body).await?;
        stream.shutdown().await
    };
    if !matches!(timeout(REFUSAL_TIMEOUT, writing).await, Ok(Ok(()))) {
        tracing::debug!(status = StatusCode::as_u16(&reply.status), "a client closed before it read its response");
    }
}
