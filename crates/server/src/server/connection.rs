//! One connection, from its first byte to its last.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::frames::Frames;
use super::io::{First, Heard, Stream};
use super::pulse::{Mark, Phase, Pulse};
use super::streams::{Owed, Streams, Watch};
use super::transport::Transport;
use crate::app::SHUTTING_DOWN;
use crate::door::{Parting, Peer, Presence};
use crate::grpc::{Grpc, Streaming, is_call};
use crate::http::Reply;
use crate::tls::HTTP_2;

/// The largest head of a request. Of headers there may be 100, which is fixed in hyper.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// The most that is buffered of what a client sends.
const BUFFER_BYTES_MAX: usize = 128 << 10;
/// The most requests at once on one connection of HTTP/2. Clients take it to be 100 until they are told.
const STREAMS_MAX: u32 = 128;
/// The most that one request of HTTP/2 may send ahead, or have waiting to be sent.
const STREAM_BYTES_MAX: usize = 64 << 10;
/// A connection on which nothing was asked for so long is closed; longer than clients keep one in store.
const IDLE_MAX: Duration = Duration::from_secs(300);
/// HTTP/2 is asked whether it is still there so often, and has so long to answer.
const PING: Duration = Duration::from_secs(30);
/// Within a timeout a connection is looked at so often.
const LOOKS: u32 = 4;
const LOOK_MIN: Duration = Duration::from_millis(5);
/// A client that is refused may take so long to say what it wanted and to hear it.
const REFUSAL_MAX: Duration = Duration::from_secs(1);

/// What holds for every connection.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    header_timeout: Duration,
    /// How long a client may refuse to take what is sent to it.
    write_timeout: Duration,
    look_every: Duration,
}

impl Terms {
    pub(super) fn new(header_timeout: Duration, write_timeout: Duration) -> Terms {
        let look_every = (header_timeout.min(write_timeout) / LOOKS).max(LOOK_MIN);
        Terms { header_timeout, write_timeout, look_every }
    }

    /// How long a connection may stay in a phase without moving.
    fn max(&self, phase: Phase) -> Duration {
        match phase {
            Phase::Idle => IDLE_MAX,
            Phase::Head => self.header_timeout,
            Phase::Handling => Duration::MAX,
            Phase::Writing => self.write_timeout,
        }
    }
}

/// What is served on every connection.
#[derive(Clone)]
pub(super) struct Services {
    pub(super) router: Router,
    /// Only over HTTP/2.
    pub(super) grpc: Grpc,
}

/// The word that everything is to end.
#[derive(Clone)]
pub(super) struct Stop(pub(super) watch::Receiver<bool>);

impl Stop {
    async fn said(&mut self) {
        // If whoever could say it is gone, everything ends as well.
        _ = self.0.wait_for(|is_said| *is_said).await;
    }
}

/// Serves one connection until its end.
pub(super) async fn serve(
    tcp: TcpStream,
    tls: Option<TlsAcceptor>,
    services: Services,
    terms: Terms,
    mut stop: Stop,
) {
    let peer = tcp.peer_addr().map(|address| Peer { address: address.ip(), presence: None }).ok();
    let begun = async {
        match tls {
            Some(tls) => shake_hands(tcp, tls, terms).await,
            None => begin(tcp, terms).await,
        }
    };
    let begun = tokio::select! {
        begun = begun => begun,
        () = stop.said() => return,
    };
    let Some(Begun { transport, first, is_http2 }) = begun else { return };
    if is_http2 {
        let stream = |pulse| Stream::new(transport, first, pulse, Heard::Frames(Frames::new()));
        http_2(stream, peer, services, terms, stop).await;
    } else {
        let presence = Arc::new(Presence::default());
        let peer = peer.map(|peer| Peer { presence: Some(Arc::clone(&presence)), ..peer });
        let stream = |pulse| Stream::new(transport, first, pulse, Heard::Presence(presence));
        http_1(stream, peer, services.router, terms, stop).await;
    }
}

/// A connection whose protocol is known.
struct Begun {
    transport: Transport,
    first: First,
    is_http2: bool,
}

/// In clear the first bytes tell what is spoken.
async fn begin(tcp: TcpStream, terms: Terms) -> Option<Begun> {
    let mut first = First::default();
    match timeout(terms.header_timeout, first.read(&tcp)).await {
        Ok(Ok(Some(is_http2))) => Some(Begun { transport: Transport::Plain(tcp), first, is_http2 }),
        Ok(Ok(None) | Err(_)) => None,
        Err(_) if first.is_empty() => None,
        Err(_) => {
            say(tcp, &too_slow()).await;
            None
        }
    }
}

/// Behind TLS both ends have agreed on it.
async fn shake_hands(tcp: TcpStream, tls: TlsAcceptor, terms: Terms) -> Option<Begun> {
    match timeout(terms.header_timeout, tls.accept(tcp)).await {
        Ok(Ok(stream)) => {
            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(HTTP_2);
            let transport = Transport::Tls(Box::new(stream));
            Some(Begun { transport, first: First::default(), is_http2 })
        }
        Ok(Err(error)) => {
            tracing::debug!(%error, "a client did not agree on TLS");
            None
        }
        Err(_) => None,
    }
}

async fn http_1(
    stream: impl FnOnce(Arc<Pulse>) -> Stream,
    peer: Option<Peer>,
    router: Router,
    terms: Terms,
    stop: Stop,
) {
    let pulse = Arc::new(Pulse::default());
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // That timeout would also end connections that are only idle, and set a timer for every request.
        .header_read_timeout(None)
        .max_header_size(HEAD_BYTES_MAX)
        .max_buf_size(BUFFER_BYTES_MAX)
        // A client may say that it is done asking and still wait for the answer.
        .half_close(true)
        .serve_connection(TokioIo::new(stream(Arc::clone(&pulse))), marked(router, peer, Arc::clone(&pulse)));
    let graceful = |connection: &mut http1::Connection<_, _>| Pin::new(connection).graceful_shutdown();
    let mut seen = Seen { mark: pulse.look(), since: Instant::now() };
    let look = |now| seen.again(pulse.look(), now, &terms);
    match drive(&mut connection, graceful, look, terms, stop).await {
        Ending::Done | Ending::Stuck(Phase::Idle | Phase::Handling | Phase::Writing) => {}
        Ending::Stuck(Phase::Head) => {
            say(connection.into_parts().io.into_inner().into_transport(), &too_slow()).await;
        }
    }
}

async fn http_2(
    stream: impl FnOnce(Arc<Pulse>) -> Stream,
    peer: Option<Peer>,
    services: Services,
    terms: Terms,
    stop: Stop,
) {
    let (pulse, streams) = (Arc::new(Pulse::default()), Arc::new(Streams::default()));
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
            TokioIo::new(stream(Arc::clone(&pulse))),
            counted(services, peer, Arc::clone(&streams)),
        );
    let graceful = |connection: &mut http2::Connection<_, _, _>| Pin::new(connection).graceful_shutdown();
    let now = Instant::now();
    let (mut seen, mut watch) = (Seen { mark: pulse.look(), since: now }, Watch::since(now));
    let look = |now| match seen.again(pulse.look(), now, &terms) {
        _ if streams.is_parting() => Some(Phase::Idle),
        // That no bytes move, or only pings, says nothing of the requests.
        None | Some(Phase::Idle) => watch.again(&streams, now, terms.write_timeout, IDLE_MAX),
        stuck => stuck,
    };
    drive(&mut connection, graceful, look, terms, stop).await;
}

/// The services, with their requests and what became of their answers counted.
fn counted(
    services: Services,
    peer: Option<Peer>,
    streams: Arc<Streams>,
) -> impl Service<
    Request<Incoming>,
    Response = Response<Owed>,
    Error = std::convert::Infallible,
    Future: Send + 'static,
> + Unpin {
    let Services { router, grpc } = services;
    let router = TowerToHyperService::new(router);
    service_fn(move |mut request: Request<Incoming>| {
        peer.clone().map(|peer| request.extensions_mut().insert(peer));
        let (asked, router, grpc) = (streams.ask(), router.clone(), grpc.clone());
        async move {
            let response = if is_call(&request) {
                grpc.serve(request.map(Body::new)).await
            } else {
                router.call(request).await?
            };
            if response.extensions().get::<Parting>().is_some() {
                asked.part();
            }
            let is_streaming = response.extensions().get::<Streaming>().is_some();
            Ok(response.map(|body| if is_streaming { asked.stream(body) } else { asked.answer(body) }))
        }
    })
}

/// The router, with marks where a request begins and ends.
fn marked(
    router: Router,
    peer: Option<Peer>,
    pulse: Arc<Pulse>,
) -> impl Service<
    Request<Incoming>,
    Response = Response<axum::body::Body>,
    Error = std::convert::Infallible,
    Future: Send,
> + Unpin {
    let router = TowerToHyperService::new(router);
    service_fn(move |mut request: Request<Incoming>| {
        peer.clone().map(|peer| request.extensions_mut().insert(peer));
        pulse.enter(Phase::Handling);
        let (handling, pulse) = (router.call(request), Arc::clone(&pulse));
        async move {
            let response = handling.await;
            pulse.enter(Phase::Idle);
            response
        }
    })
}

enum Ending {
    Done,
    /// It was in this phase for too long.
    Stuck(Phase),
}

/// Drives a connection to its end, and looks after it meanwhile.
async fn drive<C: Future<Output = hyper::Result<()>> + Unpin>(
    connection: &mut C,
    graceful: impl Fn(&mut C),
    mut stuck: impl FnMut(Instant) -> Option<Phase>,
    terms: Terms,
    mut stop: Stop,
) -> Ending {
    let look = sleep(terms.look_every);
    tokio::pin!(look);
    let mut is_ending = false;
    loop {
        tokio::select! {
            // Nearly always it is the connection that has something to do.
            biased;
            ended = &mut *connection => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection broke");
                }
                return Ending::Done;
            }
            () = &mut look => {
                let now = Instant::now();
                look.as_mut().reset(now + terms.look_every);
                match stuck(now) {
                    None => {}
                    // One that is only idle may be told to end, and is given the time to.
                    Some(Phase::Idle) if !is_ending => {
                        is_ending = true;
                        graceful(connection);
                    }
                    Some(phase) => return Ending::Stuck(phase),
                }
            }
            () = stop.said(), if !is_ending => {
                is_ending = true;
                graceful(connection);
            }
        }
    }
}

/// What was seen, and since when it has not changed.
struct Seen {
    mark: Mark,
    since: Instant,
}

impl Seen {
    /// The phase that has lasted too long, if it has.
    fn again(&mut self, mark: Mark, now: Instant, terms: &Terms) -> Option<Phase> {
        if mark != self.mark {
            *self = Seen { mark, since: now };
        }
        (now - self.since >= terms.max(mark.phase())).then_some(mark.phase())
    }
}

fn too_slow() -> Reply {
    Reply::too_slow("head: found only a part of it in time, allowed is to send it at once")
}

/// Why a connection is not served.
#[derive(Clone, Copy)]
pub(super) enum Unserved {
    TooMany,
    ShuttingDown,
}

impl Unserved {
    fn reply(self, head: &[u8]) -> Reply {
        match self {
            Unserved::TooMany => {
                Reply::overloaded("too many connections are open; close some, or come back later")
            }
            Unserved::ShuttingDown if head.starts_with(b"GET /readyz ") => Reply::not_ready(SHUTTING_DOWN),
            Unserved::ShuttingDown => Reply::overloaded("shutting down, and nothing happened; retry later"),
        }
    }
}

/// Tells a client that it is not served, once it has said what it wants.
pub(super) async fn refuse(tcp: TcpStream, why: Unserved) {
    let mut head = [0; HEAD_BYTES_MAX];
    let mut length = 0;
    // A client that has not sent anything yet might not expect an answer.
    if timeout(REFUSAL_MAX, tcp.readable()).await.is_ok() {
        length = tcp.try_read(&mut head).unwrap_or_default();
    }
    say(tcp, &why.reply(&head[..length])).await;
}

/// Answers on a connection that is not served, and closes it.
async fn say(mut stream: impl AsyncWrite + Unpin, reply: &Reply) {
    let text = format!(
        "HTTP/1.1 {}\r\n{CONTENT_TYPE}: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        reply.status,
        reply.body.len(),
    );
    let saying = async {
        stream.write_all(text.as_bytes()).await?;
        stream.write_all(&reply.body).await?;
        stream.shutdown().await
    };
    if !matches!(timeout(REFUSAL_MAX, saying).await, Ok(Ok(()))) {
        tracing::debug!(status = StatusCode::as_u16(&reply.status), "a client did not wait for its answer");
    }
}
