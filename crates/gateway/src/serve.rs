//! One request, until its call begins: the route, the client, the body.

mod models;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use earmark_client::{ClientKey, Failure, Identity};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, UPGRADE};
use hyper::{Method, Request, Response, StatusCode, Uri};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::{Instant, timeout};

use crate::api::{Api, Endpoint};
use crate::body::CallBody;
use crate::call::CallTask;
use crate::error::{ApiError, ErrorKind};

use crate::gateway::{BUFFER_UNIT, Shared};
use crate::head::{self, HeadRefusal};
use crate::origin;
use crate::refusal::{busy, invalid, reply, unavailable};
use crate::relay::Client;
use crate::reply::{Reply, ReplyBody, Served};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The message about a key that is missing or wrong.
pub(crate) const NOT_VALID: &str = "the Earmark key is missing or not valid";
/// The message while Earmark is out of reach.
pub(crate) const OUT_OF_REACH: &str = "Earmark cannot be reached, so nothing was sent; retry later";
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

/// Serves one request.
pub(crate) async fn serve(shared: Arc<Shared>, request: Request<Incoming>, peer: SocketAddr) -> Served {
    let (request_id, started) = (shared.request_id(), Instant::now());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let endpoint = Endpoint::of(method.as_str(), &path);
    let name = endpoint.map_or("none", Endpoint::operation);
    let mut reply = match route(&shared, request, endpoint, &request_id, peer).await {
        Ok(reply) => reply,
        Err((api, error)) => reply(api, &error, &request_id),
    };
    let status = reply.status().as_u16();
    shared.metrics.request(name, status);
    // The path of a request that is not served may be anything.
    let path = if endpoint.is_some() { path.as_str() } else { "other" };
    let ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    tracing::info!(target: "earmark_gateway::access", request_id, %method, path, status, ms, "request");
    if let Ok(value) = HeaderValue::from_str(&request_id) {
        reply.headers_mut().insert(REQUEST_ID, value);
    }
    Ok(reply)
}

async fn route(
    shared: &Arc<Shared>,
    request: Request<Incoming>,
    endpoint: Option<Endpoint>,
    request_id: &str,
    peer: SocketAddr,
) -> Result<Reply, (Api, ApiError)> {
    let (uri, headers) = (request.uri(), request.headers());
    let api = Api::of(uri.path(), headers.contains_key(ANTHROPIC_VERSION));
    let refuse = |refusal| (api, refusal);
    if *request.method() == Method::GET
        && let Some(reply) = operations(shared, uri.path(), peer).await
    {
        return Ok(reply);
    }
    let endpoint = endpoint.filter(|_| *request.method() != Method::CONNECT && !headers.contains_key(UPGRADE));
    let Some(endpoint) = endpoint else {
        return Err(refuse(ApiError::unknown_path()));
    };
    let caller = caller(shared, uri, headers).await.map_err(refuse)?;
    if endpoint == Endpoint::Models {
        return Ok(models::list(shared, api, &caller).await);
    }
    call(shared, request, endpoint, caller, request_id).await.map_err(refuse)
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
            shared.metrics.calls(busy, shared.settler.waiting());
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

/// Reads the body, and makes the call in a task of its own.
async fn call(
    shared: &Arc<Shared>,
    request: Request<Incoming>,
    endpoint: Endpoint,
    caller: Caller,
    request_id: &str,
) -> Result<Reply, ApiError> {
    if shared.is_stopping.load(Ordering::Relaxed) {
        return Err(unavailable("this gateway is shutting down; nothing was sent"));
    }
    let (parts, incoming) = request.into_parts();
    head::check_encoding(&parts.headers).map_err(|refusal| invalid(&refusal))?;
    let added = head::attributes(&parts.headers).map_err(|refusal| invalid(&refusal))?;
    if shared.settler.is_full() {
        return Err(busy("calls that wait for their settlement"));
    }
    let Ok(place) = Arc::clone(&shared.places).try_acquire_owned() else { return Err(busy("calls")) };
    let (body, buffer) = read_body(shared, incoming).await?;
    let scan = CallBody::scan(endpoint, &body)?;
    let unknown = || ApiError::unknown_model(&scan.model);
    let model = Arc::clone(shared.config.models.get(&scan.model).ok_or_else(unknown)?);
    let (sender, receiver) = oneshot::channel();
    let task = CallTask {
        shared: Arc::clone(shared),
        request_id: request_id.to_owned(),
        started: Instant::now(),
        caller,
        endpoint,
        api: endpoint.api().unwrap_or(Api::OpenAi),
        query: parts.uri.query().map(str::to_owned),
        headers: parts.headers,
        added,
        body,
        scan,
        model,
    };
    tokio::spawn(async move {
        task.run(Client::Waiting(sender), place).await;
        drop(buffer);
    });
    receiver.await.map_err(|_| unavailable("this gateway failed; see its log"))
}

/// Reads a body within its own bound and the bound of all buffers.
async fn read_body(shared: &Shared, incoming: Incoming) -> Result<(Bytes, OwnedSemaphorePermit), ApiError> {
    let max = shared.config.max_body_bytes;
    let too_large =
        || ApiError::new(ErrorKind::TooLarge, format!("body: found more than {max} bytes, allowed are {max}"));
    if incoming.size_hint().lower() > max as u64 {
        return Err(too_large());
    }
    let reading = async {
        let mut incoming = incoming;
        let (mut body, mut held) = (BytesMut::new(), hold(shared, 0)?);
        while let Some(frame) = incoming.frame().await {
            let frame = frame.map_err(|_| invalid(&"body: it broke off"))?;
            let Ok(bytes) = frame.into_data() else { continue };
            if body.len() + bytes.len() > max {
                return Err(too_large());
            }
            held.merge(hold(shared, bytes.len())?);
            body.extend_from_slice(&bytes);
        }
        Ok((body.freeze(), held))
    };
    let seconds = shared.config.body_timeout.as_secs();
    let late = |_| ApiError::new(ErrorKind::ClientTimeout, format!("body: it did not arrive within {seconds} s"));
    timeout(shared.config.body_timeout, reading).await.map_err(late)?
}

/// A share of the memory for all buffers.
fn hold(shared: &Shared, bytes: usize) -> Result<OwnedSemaphorePermit, ApiError> {
    let units = u32::try_from(bytes.div_ceil(BUFFER_UNIT)).unwrap_or(u32::MAX);
    Arc::clone(&shared.buffers).try_acquire_many_owned(units).map_err(|_| busy("bytes in its buffers"))
}
