//! The path of one call: reserve, send, relay, settle, for each target until one answers.

mod answer;
mod content;
mod trace;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use earmark_client::core::{LeaseId, UnixMs};
use earmark_client::{Call, CallDecision, Certainty, Failure, ReserveAnswer};
use earmark_trace::{Span, within};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::http::uri::InvalidUri;
use hyper::{Request, Uri};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::api::Api;
use crate::body::Bound;
use crate::config::Target;
use crate::error::{ApiError, ErrorKind};
use crate::gateway::Shared;
use crate::head;
use crate::metrics::SettledBy;
use crate::open_calls::{End, OpenCall};
use crate::refusal::{self, unavailable};
use crate::relay::{Client, Relay};
use crate::renew::Renewal;
use crate::reply::Reply;
use crate::serve::{Caller, NOT_VALID, OUT_OF_REACH, is_about_client};
use crate::settle::Settlement;
use crate::upstream::{Connections, RequestBody};
use answer::Answered;
pub(crate) use content::Content;

const LEASE: HeaderName = HeaderName::from_static("x-earmark-lease");

/// A call in a task of its own, which outlives the connection of its client.
pub(crate) struct CallTask {
    pub(crate) shared: Arc<Shared>,
    pub(crate) request_id: String,
    pub(crate) started: Instant,
    pub(crate) caller: Caller,
    pub(crate) content: Content,
    pub(crate) query: Option<String>,
    /// The attributes that the request adds.
    pub(crate) added: BTreeMap<String, String>,
    /// The request, until an upstream answers: no other target needs it then.
    pub(crate) received: Mutex<Received>,
}

/// The request of a client, with the headers that its call needs.
#[derive(Default)]
pub(crate) struct Received {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// The end of one attempt.
enum Attempt {
    /// The upstream answered, and the client gets its answer.
    Answered(Box<Answered>),
    /// The client has its answer, or has gone.
    Done,
    /// The answer is this one, unless the next target has a better one.
    Next(Client, Reply),
    /// The answer is this one.
    Last(Client, Reply),
}

/// One attempt after its reserve.
struct Admitted {
    lease: LeaseId,
    open: OpenCall,
    bound: Bound,
    renewal: Option<Renewal>,
    place: Option<OwnedSemaphorePermit>,
    /// The span of the attempt, if the call is sampled.
    span: Option<Span>,
}

impl CallTask {
    /// Makes the call in the context of its trace.
    pub(crate) async fn run(self, client: Client, place: OwnedSemaphorePermit) {
        let (context, _span) = self.begin_trace();
        match context {
            None => self.make(client, place).await,
            Some(context) => Box::pin(within(context, self.make(client, place))).await,
        }
    }

    /// Makes the call, and relays its answer. A stream takes minutes, and its start needs far more memory than its
    /// relay: so the start has a box of its own, which is freed before the relay begins.
    async fn make(&self, client: Client, place: OwnedSemaphorePermit) {
        let answered = Box::pin(self.try_targets(client, place)).await;
        if let Some(answered) = answered {
            self.relay(answered).await;
        }
    }

    /// Tries the targets in order. Returns the answer of the first that has one; else the client has its reply.
    async fn try_targets(&self, mut client: Client, place: OwnedSemaphorePermit) -> Option<Box<Answered>> {
        let place = Mutex::new(Some(place));
        let mut best: Option<Reply> = None;
        let (api, model) = (self.content.api(), self.content.model());
        for target in model.targets.iter().filter(|target| target.upstream.api == api) {
            let Some(upstream) = self.shared.upstreams.get(&target.upstream.name) else { continue };
            if client.has_gone() {
                return None;
            }
            if !upstream.circuit.admits(Instant::now()) {
                let message = format!("the provider of {} fails repeatedly; retry in some seconds", model.name);
                best.get_or_insert_with(|| self.refuse(&unavailable(&message)));
                continue;
            }
            match self.attempt(target, upstream, client, &place).await {
                Attempt::Answered(answered) => return Some(answered),
                Attempt::Done => return None,
                Attempt::Last(mut client, reply) => {
                    client.reply(reply, Client::Done);
                    return None;
                }
                Attempt::Next(kept, reply) => {
                    client = kept;
                    best = Some(reply);
                }
            }
        }
        let unknown = || self.refuse(&ApiError::unknown_model(&model.name));
        client.reply(best.unwrap_or_else(unknown), Client::Done);
        None
    }

    /// Makes the call at one target, with a lease of its own.
    async fn attempt(
        &self,
        target: &Target,
        upstream: &Arc<Connections>,
        client: Client,
        place: &Mutex<Option<OwnedSemaphorePermit>>,
    ) -> Attempt {
        let bound = match self.content.bound(&self.body(), &target.rules) {
            Ok(bound) => bound,
            Err(refusal) => return Attempt::Last(client, self.refuse(&ApiError::from(refusal))),
        };
        let mut admitted = match self.reserve(target, bound).await {
            Ok(admitted) => admitted,
            Err((is_last, reply)) if is_last => return Attempt::Last(client, reply),
            Err((_, reply)) => return Attempt::Next(client, reply),
        };
        if client.has_gone() {
            self.settle(admitted, End::Refused);
            return Attempt::Done;
        }
        if let Err(error) = self.shared.calls.sent(admitted.lease, admitted.open.policy_revision).await {
            tracing::error!(%error, "cannot write down that a call is sent, so it is not");
            self.settle(admitted, End::Refused);
            return Attempt::Last(
                client,
                self.refuse(&unavailable("the disk of this gateway failed; nothing was sent")),
            );
        }
        admitted.open.is_sent = true;
        admitted.place = place.lock().ok().and_then(|mut place| place.take());
        admitted.renewal = Some(self.shared.renewals.add(admitted.lease, admitted.open.clone()));
        admitted.span = self.begin_attempt(target, &admitted.bound);
        let attempt = self.send(target, upstream, client, admitted).await;
        if let Attempt::Next(_, _) = attempt
            && let Ok(next) = Arc::clone(&self.shared.places).try_acquire_owned()
            && let Ok(mut place) = place.lock()
        {
            *place = Some(next);
        }
        attempt
    }

    /// Sends the call, and relays the answer.
    async fn send(&self, target: &Target, upstream: &Arc<Connections>, client: Client, admitted: Admitted) -> Attempt {
        let mut relay = Relay::new(client, Arc::clone(upstream), self.shared.buffers.clone());
        let request = match self.request(target, &admitted.bound) {
            Ok(request) => request,
            Err(error) => {
                tracing::error!(upstream = target.upstream.name, %error, "cannot make a request of the configuration");
                self.settle(admitted, End::Refused);
                let message = "the configuration of this gateway makes no request for this model";
                return Attempt::Last(
                    relay.into_client(),
                    self.refuse(&ApiError::new(ErrorKind::UpstreamFailed, message)),
                );
            }
        };
        let request = self.in_context(request, admitted.span.as_ref());
        let sent_at = Instant::now();
        let Some(answer) = relay.send(target, request).await else {
            // The client has gone, or the total time is over: the upstream may have made the call.
            self.settle(admitted, End::Unknown);
            let message = "the provider of this model gave no answer in time";
            return Attempt::Last(
                relay.into_client(),
                self.refuse(&ApiError::new(ErrorKind::UpstreamTimeout, message)),
            );
        };
        match answer {
            Ok(answer) => {
                self.shared.metrics.first_byte(&target.upstream.name, sent_at.elapsed());
                self.answer(target, upstream, relay, admitted, answer).await
            }
            Err(no_answer) => self.no_answer(upstream, relay, admitted, &no_answer),
        }
    }

    /// Reserves what the call may need. The error is a reply, and whether the next target cannot have a better one.
    async fn reserve(&self, target: &Target, bound: Bound) -> Result<Admitted, (bool, Reply)> {
        let stated = self.stated(target);
        let lease = new_lease();
        let call = Call {
            lease,
            job: None,
            attributes: Arc::clone(&stated),
            input_tokens_max: u64::from(bound.input_tokens_max),
            output_tokens_max: u64::from(bound.output_tokens_max),
        };
        let mut open = self.open_call(stated);
        if let Err(error) = self.shared.calls.begin(lease, open.clone()) {
            tracing::error!(%error, "cannot write down a call, so it is not made");
            return Err((true, self.refuse(&unavailable("the disk of this gateway failed; nothing was sent"))));
        }
        let answer = match self.shared.earmark.call(&call, self.caller.key.as_ref()).await {
            Ok(answer) => answer,
            Err(failure) => {
                if failure.certainty() == Certainty::NothingHappened && !failure.is_transient() {
                    if matches!(failure, Failure::Unauthorized { .. }) && !is_about_client(&failure) {
                        tracing::error!(%failure, "Earmark refuses this gateway; restart it, with a key of role gateway");
                    }
                    self.shared.calls.settled(lease);
                } else {
                    tracing::warn!(%lease, %failure, "a call got no answer from Earmark");
                    self.release(lease, open);
                }
                return Err((true, self.refuse(&of_failure(&failure))));
            }
        };
        open.policy_revision = answer.policy_revision;
        let Some(error) = ApiError::of(&answer.decision) else {
            return Ok(Admitted { lease, open, bound, renewal: None, place: None, span: None });
        };
        self.shared.calls.settled(lease);
        let mut reply = self.refuse(&error);
        with_lease(&mut reply, lease);
        Err((!may_differ(&answer.decision), reply))
    }

    /// The answer that refuses the call.
    fn refuse(&self, error: &ApiError) -> Reply {
        refusal::reply(self.content.api(), error, &self.request_id)
    }

    /// The request of the client. Empty once an upstream has answered.
    fn received(&self) -> MutexGuard<'_, Received> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The body of the request.
    fn body(&self) -> Bytes {
        self.received().body.clone()
    }

    /// Frees the memory of the request, which no other target needs.
    fn drop_received(&self) {
        *self.received() = Received::default();
    }

    /// The attributes that the gateway states: those of the route, and those that the request adds.
    fn stated(&self, target: &Target) -> Arc<BTreeMap<String, String>> {
        let mut stated = self.added.clone();
        if let Some(user) = self.content.user()
            && self.may_set("user")
        {
            stated.entry("user".to_owned()).or_insert_with(|| user.to_owned());
        }
        for (name, value) in [
            ("model", target.model.as_str()),
            ("alias", &self.content.model().name),
            ("provider", &target.upstream.name),
            ("operation", self.content.endpoint().operation()),
        ] {
            stated.insert(name.to_owned(), value.to_owned());
        }
        Arc::new(stated)
    }

    /// Whether the client may set an attribute. On an open server every client may set all.
    fn may_set(&self, name: &str) -> bool {
        self.caller.identity.as_ref().is_none_or(|identity| {
            identity.may_set.iter().any(|allowed| allowed == name) && !identity.labels.contains_key(name)
        })
    }

    /// The call as it is settled: with all its attributes.
    fn open_call(&self, mut attributes: Arc<BTreeMap<String, String>>) -> OpenCall {
        let identity = self.caller.identity.as_ref();
        if let Some(identity) = identity {
            let all = Arc::make_mut(&mut attributes);
            all.extend(identity.labels.clone());
            all.extend(self.caller.key_id.clone().map(|id| ("key".to_owned(), id)));
        }
        let namespace = identity.map(|identity| identity.namespace.clone());
        OpenCall { namespace, attributes, policy_revision: None, is_sent: false, end: None }
    }

    /// The request to a target, but for its host and its key.
    fn request(&self, target: &Target, bound: &Bound) -> Result<Request<RequestBody>, InvalidUri> {
        let upstream = &target.upstream;
        let (method, path) = self.content.upstream_route();
        let mut url = target.url.path.clone() + path;
        // Anthropic's SDK marks calls of its beta with a query.
        let beta = self.query.as_deref().filter(|query| upstream.api == Api::Anthropic && *query == "beta=true");
        for (query, before) in beta.into_iter().chain(upstream.query.as_deref()).zip(["?", "&"]) {
            url.push_str(before);
            url.push_str(query);
        }
        let received = self.received();
        let mut request = Request::new(RequestBody::new(self.content.body_for(bound, &target.model, &received.body)));
        *request.method_mut() = method;
        *request.uri_mut() = Uri::from_maybe_shared(Bytes::from(url))?;
        *request.headers_mut() = head::upstream_headers(&received.headers, upstream);
        Ok(request)
    }

    /// Settles a call in a task of its own.
    fn settle(&self, admitted: Admitted, end: End) {
        self.shared.settler.settle(self.settlement(admitted, end));
    }

    /// The settlement of a call, which is written to the access log.
    fn settlement(&self, admitted: Admitted, end: End) -> Settlement {
        let Admitted { lease, open, renewal, place, span, .. } = admitted;
        drop(renewal);
        if let Some(span) = span {
            trace::end_attempt(span, lease, &end);
        }
        let by = SettledBy::of(&end);
        let actor = self.caller.identity.as_ref().map_or("", |identity| identity.actor.as_str());
        let usage = match &end {
            End::Used(usage) => Some(usage),
            End::Done | End::Refused | End::Unknown => None,
        };
        let attribute = |name| open.attributes.get(name).map_or("", String::as_str);
        tracing::info!(
            target: "earmark_gateway::access",
            request_id = self.request_id,
            %lease,
            actor,
            alias = self.content.model().name,
            provider = attribute("provider"),
            settled = by.name(),
            input_tokens = usage.map(|usage| usage.input_tokens),
            output_tokens = usage.map(|usage| usage.output_tokens),
            ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            "call"
        );
        Settlement { lease, call: open, end, by, is_reserved: true, permit: place }
    }

    /// Releases a call whose reserve has no answer.
    fn release(&self, lease: LeaseId, call: OpenCall) {
        let (end, by) = (End::Refused, SettledBy::Released);
        self.shared.settler.settle(Settlement { lease, call, end, by, is_reserved: false, permit: None });
    }
}

/// The error behind a reserve without an answer.
fn of_failure(failure: &Failure) -> ApiError {
    match failure {
        failure if is_about_client(failure) => ApiError::new(ErrorKind::Unauthenticated, NOT_VALID),
        Failure::Forbidden { message } => ApiError::new(ErrorKind::Forbidden, message.as_str()),
        Failure::Invalid { message } => ApiError::new(ErrorKind::Invalid, message.as_str()),
        // The server bounds the requests of each client, too.
        Failure::RateLimited { message, .. } => {
            ApiError { retry_after_ms: 1_000, ..ApiError::new(ErrorKind::RateLimited, message.as_str()) }
        }
        Failure::DeadlinePassed { last: Some(last) } => of_failure(last),
        _ => unavailable(OUT_OF_REACH),
    }
}

/// Whether the limits of another target could decide otherwise: those of a provider may be full or paused.
const fn may_differ(decision: &CallDecision) -> bool {
    matches!(
        decision,
        CallDecision::Limits(
            ReserveAnswer::Denied(_)
                | ReserveAnswer::LimitDecreasing(_)
                | ReserveAnswer::LimitPaused(_)
                | ReserveAnswer::Never { .. }
        )
    )
}

/// A lease of its own for each attempt.
pub(crate) fn new_lease() -> LeaseId {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    LeaseId::from_parts(UnixMs::new(u64::try_from(now.as_millis()).unwrap_or(u64::MAX)), rand::random())
}

fn with_lease(reply: &mut Reply, lease: LeaseId) {
    if let Ok(value) = HeaderValue::from_str(&lease.to_string()) {
        reply.headers_mut().insert(LEASE, value);
    }
}
