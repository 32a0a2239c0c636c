//! One request, until its call begins: the route, the client, the body.

mod models;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use earmark_client::{ClientKey, Failure, Identity};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, UPGRADE};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode, Uri};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use crate::api::{Api, Endpoint};
use crate::body::CallBody;
use crate::buffers::Share;
use crate::call::{CallTask, Content, Received};
use crate::config::Route;
use crate::error::{ApiError, ErrorKind};
use crate::gateway::Shared;
use crate::head::{self, HeadRefusal};
use crate::origin;
use crate::progress::{Answer, Progress};
use crate::refusal::{busy, invalid, reply, unavailable};
use crate::relay::Client;
use crate::reply::{Reply, ReplyBody};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The message about a key that is missing or wrong.
pub(crate) const NOT_VALID: &str = "the Earmark key is missing or not valid";
/// The message while Earmark is out of reach.
pub(crate) const OUT_OF_REACH: &str = "Earmark cannot be reached, so nothing was sent; retry later";
/// The paths of health checks and metrics, which would fill the log.
const PROBES: [&str; 3] = ["/healthz", "/readyz", "/metrics"];
/// How long the body of a refused request is read.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);
const ANTHROPIC_VERSION: &str = "anthropic-version";

/// A client, as far as it is known.
#[derive(Clone)]
pub(crate) struct Caller {
    /// Its key. `None` on an open server.
    pub(crate) key: Option<ClientKey>,
    /// Its identity. `None` on an open server.
    pub(crate) identity: Option<Arc<Identity>>,
    /// The id of its key.
    pub(crate) key_id: Option<String>,
}

/// The route of a request that is served.
enum Served {
    Endpoint(Endpoint),
    Flat(Arc<Route>),
}

impl Served {
    fn of(shared: &Shared, method: &Method, path: &str) -> Option<Served> {
        let endpoint = Endpoint::of(method.as_str(), path).map(Served::Endpoint);
        endpoint.or_else(|| shared.config.route(method, path).cloned().map(Served::Flat))
    }

    /// The name in metrics.
    fn name(&self) -> &'static str {
        match self {
            Served::Endpoint(endpoint) => endpoint.operation(),
            Served::Flat(_) => Endpoint::Flat.operation(),
        }
    }
}

/// Serves one request. The progress of its answer is noted, if its connection says so.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    request: Request<Incoming>,
    peer: SocketAddr,
    noted: Option<Arc<Progress>>,
) -> Result<Response<Answer>, Infallible> {
    let (request_id, started) = (shared.request_id(), Instant::now());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let served = Served::of(&shared, &method, &path);
    let name = served.as_ref().map_or("none", Served::name);
    let is_probe = PROBES.contains(&path.as_str());
    // The path of a request that is not served may be anything.
    let path = if served.is_some() { path } else { "other".to_owned() };
    let (parts, mut incoming) = request.into_parts();
    // The memory of the route is freed before the call begins.
    let routed = match Box::pin(route(&shared, parts, &mut incoming, (served, &request_id, peer))).await {
        Ok(Routed::Answered(reply)) => Ok(reply),
        Ok(Routed::Calling(api, reply)) => {
            reply.await.map_err(|_| (api, unavailable("this gateway failed; see its log")))
        }
        Err(refusal) => Err(refusal),
    };
    let mut reply = match routed {
        Ok(reply) => reply,
        Err((api, error)) => {
            if error.kind != ErrorKind::ClientTimeout {
                discard(&mut incoming).await;
            }
            reply(api, &error, &request_id)
        }
    };
    let status = reply.status().as_u16();
    shared.metrics.request(name, status);
    let ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    if !is_probe {
        tracing::info!(target: "earmark_gateway::access", request_id, %method, path, status, ms, "request");
    }
    if let Ok(value) = HeaderValue::from_str(&request_id) {
        reply.headers_mut().insert(REQUEST_ID, value);
    }
    Ok(reply.map(|body| Answer::new(body, noted)))
}

/// The answer of a route.
enum Routed {
    Answered(Reply),
    /// It comes from the task of a call.
    Calling(Api, oneshot::Receiver<Reply>),
}

async fn route(
    shared: &Arc<Shared>,
    parts: Parts,
    incoming: &mut Incoming,
    (served, request_id, peer): (Option<Served>, &str, SocketAddr),
) -> Result<Routed, (Api, ApiError)> {
    let (uri, headers) = (&parts.uri, &parts.headers);
    let api = match &served {
        Some(Served::Flat(route)) => route.api(),
        _ => Api::of(uri.path(), headers.contains_key(ANTHROPIC_VERSION)),
    };
    let refuse = |refusal| (api, refusal);
    if parts.method == Method::GET
        && let Some(reply) = operations(shared, uri.path(), peer).await
    {
        return Ok(Routed::Answered(reply));
    }
    let Some(served) = served.filter(|_| !headers.contains_key(UPGRADE)) else {
        return Err(refuse(ApiError::unknown_path()));
    };
    let caller = caller(shared, uri, headers).await.map_err(refuse)?;
    if matches!(served, Served::Endpoint(Endpoint::Models)) {
        return Ok(Routed::Answered(models::list(shared, api, &caller).await));
    }
    let reply = call(shared, (parts, incoming), served, caller, request_id).await.map_err(refuse)?;
    Ok(Routed::Calling(api, reply))
}

/// The routes for operators.
async fn operations(shared: &Arc<Shared>, path: &str, peer: SocketAddr) -> Option<Reply> {
    let text = |status, text: &str| {
        let mut reply = Response::new(ReplyBody::whole(text.to_owned()));
        *reply.status_mut() = status;
        reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        reply
    };
    match path {
        "/healthz" => Some(text(StatusCode::OK, "ok\n")),
        "/readyz" => {
            let problem = not_ready(shared).await;
            Some(match problem {
                None => text(StatusCode::OK, "ready\n"),
                Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, &format!("not ready: {why}\n")),
            })
        }
        // Names of models and costs are for operators, who are on this machine or scrape through a proxy on it.
        "/metrics" if peer.ip().to_canonical().is_loopback() => {
            let busy = shared.config.max_calls.saturating_sub(shared.places.available_permits());
            shared.metrics.calls(busy, shared.settler.waiting(), shared.buffers.used_bytes());
            for (name, upstream) in &shared.upstreams {
                let drains = upstream.config.drain_max.saturating_sub(upstream.drains.available_permits());
                shared.metrics.upstream(name, upstream.circuit.is_open(), drains);
            }
            Some(text(StatusCode::OK, &shared.metrics.text()))
        }
        _ => None,
    }
}

/// Why no call can be made now. Only Earmark and the disk matter: calls go to the next upstream when one is down.
async fn not_ready(shared: &Shared) -> Option<String> {
    if shared.is_stopping.load(Ordering::Relaxed) {
        return Some("shutting down".into());
    }
    if shared.calls.has_failed() {
        return Some("the disk of --calls failed".into());
    }
    shared.earmark.who(None).await.err().map(|failure| failure.to_string())
}

/// The client of a request.
async fn caller(shared: &Shared, uri: &Uri, headers: &HeaderMap) -> Result<Caller, ApiError> {
    head::check_query(uri.query()).map_err(bad_head)?;
    let key = head::client_key(headers).map_err(bad_head)?;
    if !shared.has_key {
        return match origin::is_local(uri, headers) {
            true => Ok(Caller { key: None, identity: None, key_id: None }),
            false => Err(ApiError::new(
                ErrorKind::Forbidden,
                "a gateway without keys serves programs on this machine only, not web pages",
            )),
        };
    }
    let missing = || ApiError::new(ErrorKind::Unauthenticated, NOT_VALID);
    let key = key.ok_or_else(missing)?;
    match shared.identities.of(&key).await {
        Ok(identity) => {
            let key_id = identity.key_id.clone().or_else(|| head::key_id(headers));
            Ok(Caller { key: Some(key), identity: Some(identity), key_id })
        }
        Err(failure) if is_about_client(&failure) => Err(missing()),
        Err(Failure::Forbidden { message }) => Err(ApiError::new(ErrorKind::Forbidden, message)),
        Err(failure) => {
            tracing::warn!(%failure, "cannot ask who a client is");
            Err(unavailable(OUT_OF_REACH))
        }
    }
}

/// Whether the client's key is wrong. Else it is the gateway's own, which is no mistake of the client.
pub(crate) fn is_about_client(failure: &Failure) -> bool {
    matches!(failure, Failure::Unauthorized { message } if message.starts_with("x-earmark-client-key"))
}

fn bad_head(refusal: HeadRefusal) -> ApiError {
    match refusal {
        HeadRefusal::NotBearer => ApiError::new(ErrorKind::Unauthenticated, refusal.to_string()),
        _ => invalid(&refusal),
    }
}

/// Reads the body, and makes the call in a task of its own, which sends the reply.
async fn call(
    shared: &Arc<Shared>,
    (parts, incoming): (Parts, &mut Incoming),
    served: Served,
    caller: Caller,
    request_id: &str,
) -> Result<oneshot::Receiver<Reply>, ApiError> {
    if shared.is_stopping.load(Ordering::Relaxed) {
        return Err(unavailable("this gateway is shutting down; nothing was sent"));
    }
    head::check_encoding(&parts.headers).map_err(|refusal| invalid(&refusal))?;
    let added = head::attributes(&parts.headers).map_err(|refusal| invalid(&refusal))?;
    let (headers, query) = (head::needed(&parts.headers), parts.uri.query().map(str::to_owned));
    drop(parts);
    if shared.settler.is_full() {
        return Err(busy("calls that wait for their settlement"));
    }
    let Ok(place) = Arc::clone(&shared.places).try_acquire_owned() else { return Err(busy("calls")) };
    let body = read_body(shared, incoming).await?;
    let content = match served {
        Served::Flat(route) => Content::Flat(route),
        Served::Endpoint(endpoint) => {
            let scan = CallBody::scan(endpoint, &body)?;
            let unknown = || ApiError::unknown_model(&scan.model);
            let model = Arc::clone(shared.config.models.get(&scan.model).ok_or_else(unknown)?);
            Content::Scanned(Box::new(scan), model)
        }
    };
    let (sender, receiver) = oneshot::channel();
    let task = CallTask {
        shared: Arc::clone(shared),
        request_id: request_id.to_owned(),
        started: Instant::now(),
        caller,
        content,
        query,
        added,
        received: Mutex::new(Received { headers, body }),
    };
    tokio::spawn(task.run(Client::Waiting(sender), place));
    Ok(receiver)
}

/// Reads a body within its own bound and the bound of all buffers.
async fn read_body(shared: &Shared, incoming: &mut Incoming) -> Result<Bytes, ApiError> {
    let max = shared.config.max_body_bytes;
    let too_large =
        || ApiError::new(ErrorKind::TooLarge, format!("body: found more than {max} bytes, allowed are {max}"));
    if incoming.size_hint().lower() > max as u64 {
        return Err(too_large());
    }
    let reading = async {
        let (mut body, mut share) = (Vec::new(), hold(shared, 0)?);
        while let Some(frame) = incoming.frame().await {
            let frame = frame.map_err(|_| invalid(&"body: it broke off"))?;
            let Ok(bytes) = frame.into_data() else { continue };
            if body.len() + bytes.len() > max {
                return Err(too_large());
            }
            let needed = body.len() + bytes.len();
            if needed > body.capacity() {
                let capacity = needed.max(body.capacity().saturating_mul(2)).min(max);
                share.add(hold(shared, capacity - body.capacity())?);
                body.reserve_exact(capacity - body.len());
            }
            body.extend_from_slice(&bytes);
        }
        Ok(share.hold(Bytes::from(body)))
    };
    let seconds = shared.config.body_timeout.as_secs();
    let late = |_| ApiError::new(ErrorKind::ClientTimeout, format!("body: it did not arrive within {seconds} s"));
    timeout(shared.config.body_timeout, reading).await.map_err(late)?
}

/// Reads the rest of a body that is refused. A client that still writes when its connection closes may never see the
/// answer, and would take it for a broken connection.
async fn discard(incoming: &mut Incoming) {
    let reading = async { while let Some(Ok(_)) = incoming.frame().await {} };
    _ = timeout(DISCARD_TIMEOUT, reading).await;
}

/// A share of the memory for all buffers.
fn hold(shared: &Shared, bytes: usize) -> Result<Share, ApiError> {
    shared.buffers.try_take(bytes).ok_or_else(|| busy("bytes in its buffers"))
}
