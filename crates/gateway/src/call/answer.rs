//! The answer of an upstream, or its absence.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use earmark_client::{CallCompleted, CallUsage};
use earmark_policy::{Attributes, Call};
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, TRANSFER_ENCODING};
use hyper::http::response::Parts;
use hyper::{Response, StatusCode, Version};
use tokio::time::{Instant, timeout};

use super::{Admitted, Attempt, CallTask, with_lease};
use crate::api::Endpoint;
use crate::buffers::{Buffers, Share};
use crate::config::Target;
use crate::error::{ApiError, ErrorKind};
use crate::head;
use crate::open_calls::End;
use crate::relay::{Client, Next, Relay};
use crate::reply::{Reply, ReplyBody};
use crate::upstream::{AnswerBody, Connections, NoAnswer};
use crate::usage::{AnswerUsage, Stream};

const COST: HeaderName = HeaderName::from_static("x-earmark-cost");
/// Bytes of an answer that is held back until its cost is known, and of an error that is read: 1 MiB.
const WHOLE_BYTES_MAX: usize = 1 << 20;
/// How long an answer waits for its cost. It does not depend on Earmark any more.
const COST_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause after a 429 that does not say how long to wait.
const PAUSE_DEFAULT: Duration = Duration::from_secs(5);

/// An answer on its way to the client.
pub(super) struct Answered {
    relay: Relay,
    admitted: Admitted,
    head: Response<()>,
    body: AnswerBody,
    form: Form,
}

/// The form of an answer. Without a length, the end of the connection is its end.
#[derive(Clone, Copy)]
struct Form {
    /// Whether it is server-sent events that can be read.
    is_stream: bool,
    /// Nothing can be read of an encoded one.
    is_encoded: bool,
    is_delimited: bool,
}

impl Form {
    /// The form that the head of an answer announces.
    fn of(parts: &Parts) -> Form {
        let headers = &parts.headers;
        let is_encoded = headers.get(CONTENT_ENCODING).is_some_and(|value| value != "identity");
        let is_stream = headers.get(CONTENT_TYPE).is_some_and(|value| {
            value.as_bytes().get(..17).is_some_and(|kind| kind.eq_ignore_ascii_case(b"text/event-stream"))
        });
        let is_delimited = parts.version != Version::HTTP_11 && parts.version != Version::HTTP_10
            || [TRANSFER_ENCODING, CONTENT_LENGTH].iter().any(|name| headers.contains_key(name));
        Form { is_stream: is_stream && !is_encoded, is_encoded, is_delimited }
    }
}

impl CallTask {
    /// The upstream gave no answer.
    pub(super) fn no_answer(
        &self,
        upstream: &Connections,
        relay: Relay,
        admitted: Admitted,
        why: &NoAnswer,
    ) -> Attempt {
        let name = &upstream.config.name;
        tracing::warn!(upstream = name, lease = %admitted.lease, %why, "an upstream gave no answer");
        if upstream.circuit.failed(Instant::now()) {
            tracing::warn!(upstream = name, "its circuit is open");
        }
        let (end, kind, may_try_next) = match why {
            NoAnswer::NotConnected(_) => (End::Refused, ErrorKind::UpstreamFailed, true),
            NoAnswer::Broken(_) => (End::Unknown, ErrorKind::UpstreamFailed, upstream.config.retry_unknown),
            NoAnswer::TimedOut(_) => (End::Unknown, ErrorKind::UpstreamTimeout, upstream.config.retry_unknown),
        };
        let what = match why {
            NoAnswer::NotConnected(_) => "cannot be reached; nothing was sent",
            NoAnswer::Broken(_) => "broke off before it answered",
            NoAnswer::TimedOut(_) => "gave no answer in time",
        };
        let mut reply = self.refuse(&ApiError::new(kind, format!("the provider of this model {what}")));
        with_lease(&mut reply, admitted.lease);
        self.settle(admitted, end);
        let client = relay.into_client();
        if may_try_next { Attempt::Next(client, reply) } else { Attempt::Last(client, reply) }
    }

    /// The upstream answered.
    pub(super) async fn answer(
        &self,
        target: &Target,
        upstream: &Arc<Connections>,
        relay: Relay,
        admitted: Admitted,
        answer: Response<AnswerBody>,
    ) -> Attempt {
        let (parts, body) = answer.into_parts();
        match parts.status.as_u16() {
            200..=299 => {
                upstream.circuit.succeeded();
                self.drop_received();
                let (head, form) = (self.head(upstream, &parts, &admitted), Form::of(&parts));
                Attempt::Answered(Box::new(Answered { relay, admitted, head, body, form }))
            }
            0..=399 => {
                // A redirect would take the key of the upstream somewhere else, and no upgrade was asked for.
                let message = "the provider of this model redirects or upgrades, which this gateway does not follow";
                self.settle(admitted, End::Refused);
                Attempt::Last(relay.into_client(), self.refuse(&ApiError::new(ErrorKind::UpstreamFailed, message)))
            }
            _ => self.upstream_refused(target, upstream, relay, admitted, (parts, body)).await,
        }
    }

    /// The upstream refused the call: everything is released.
    async fn upstream_refused(
        &self,
        target: &Target,
        upstream: &Arc<Connections>,
        mut relay: Relay,
        admitted: Admitted,
        (parts, mut body): (Parts, AnswerBody),
    ) -> Attempt {
        let mut held = HeldAnswer::default();
        while let Next::Bytes(bytes) = relay.next(&mut body).await {
            if !held.push(&self.shared.buffers, &bytes) {
                break;
            }
        }
        let is_full = held.is_full;
        let read = held.into_bytes();
        let status = parts.status;
        let is_failure = status.is_server_error();
        if is_failure && upstream.circuit.failed(Instant::now()) {
            tracing::warn!(upstream = upstream.config.name, "its circuit is open");
        } else if !is_failure {
            upstream.circuit.succeeded();
        }
        let is_quota = memchr::memmem::find(&read, b"insufficient_quota").is_some();
        if status == StatusCode::TOO_MANY_REQUESTS && !is_quota {
            self.pause(target, upstream, &parts, &admitted);
        }
        let is_ours = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        let holds_secret = upstream.secret.as_ref().is_some_and(|secret| secret.is_in(&read));
        let reply = if is_ours || holds_secret || is_full {
            tracing::error!(
                upstream = upstream.config.name,
                status = status.as_u16(),
                "an upstream refuses this gateway"
            );
            let message = format!("the provider of this model refuses this gateway (status {})", status.as_u16());
            let mut reply = self.refuse(&ApiError::new(ErrorKind::UpstreamFailed, message));
            with_lease(&mut reply, admitted.lease);
            reply
        } else {
            self.head(upstream, &parts, &admitted).map(|()| ReplyBody::whole(read))
        };
        self.settle(admitted, End::Refused);
        let may_try_next = is_failure || is_ours || status == StatusCode::TOO_MANY_REQUESTS;
        let client = relay.into_client();
        if may_try_next { Attempt::Next(client, reply) } else { Attempt::Last(client, reply) }
    }

    /// The head of the client's answer.
    fn head(&self, upstream: &Connections, parts: &Parts, admitted: &Admitted) -> Response<()> {
        let holds_secret = |value: &[u8]| upstream.secret.as_ref().is_some_and(|secret| secret.is_in(value));
        let mut head = Response::new(());
        *head.status_mut() = parts.status;
        *head.headers_mut() = head::reply_headers(&parts.headers, holds_secret);
        if let Ok(value) = HeaderValue::from_str(&admitted.lease.to_string()) {
            head.headers_mut().insert(super::LEASE, value);
        }
        head
    }

    /// Relays an answer to the client, and settles the call.
    pub(super) async fn relay(&self, answered: Box<Answered>) {
        if answered.form.is_stream {
            self.stream(answered).await;
        } else {
            Box::pin(async move {
                let Answered { relay, admitted, head, body, form } = *answered;
                self.whole(relay, admitted, (head, form), body).await;
            })
            .await;
        }
    }

    /// Relays an answer that is not a stream. Up to 1 MiB it is held back until its cost is known.
    async fn whole(
        &self,
        mut relay: Relay,
        admitted: Admitted,
        (head, form): (Response<()>, Form),
        mut body: AnswerBody,
    ) {
        let mut usage = AnswerUsage::new(self.content.endpoint());
        let mut held = HeldAnswer::default();
        let mut head = Some(head);
        loop {
            let next = match relay.next(&mut body).await {
                Next::End if self.is_cut(form, &usage) => Next::Broken("the connection ended before its JSON".into()),
                next => next,
            };
            match next {
                Next::Bytes(bytes) => {
                    if !form.is_encoded {
                        usage.push(&bytes);
                    }
                    if head.is_some() && held.push(&self.shared.buffers, &bytes) {
                        continue;
                    }
                    // Too much to hold back: the client gets it in pieces, without its cost.
                    if let Some(head) = head.take() {
                        start(&mut relay, head);
                        // Their share returns before the relay takes one: otherwise all could wait for each other.
                        let first = std::mem::take(&mut held).bytes.freeze();
                        if !first.is_empty() && !relay.write(first).await {
                            break;
                        }
                    }
                    if !relay.write(bytes).await {
                        break;
                    }
                }
                Next::End => {
                    let end = self.end_of(usage.usage(), &admitted);
                    drop(body);
                    let mut settling = Box::pin(self.shared.settler.settling(self.settlement(admitted, end)));
                    let Some(head) = head else {
                        tokio::join!(async move { relay.end().await }, settling);
                        return;
                    };
                    let mut client = relay.into_client();
                    let completed = timeout(COST_TIMEOUT, &mut settling).await;
                    if completed.is_err() {
                        // An outage of Earmark may last longer than the call should be held in memory.
                        tokio::spawn(settling);
                    }
                    let reply = head.map(|()| ReplyBody::whole(held.into_bytes()));
                    client.reply(with_cost(reply, completed.ok().flatten()), Client::Done);
                    return;
                }
                Next::Broken(why) => {
                    tracing::warn!(lease = %admitted.lease, why, "an answer broke off");
                    if head.is_some() {
                        let message = "the answer of the provider broke off";
                        let mut reply = self.refuse(&ApiError::new(ErrorKind::UpstreamFailed, message));
                        with_lease(&mut reply, admitted.lease);
                        relay.client.reply(reply, Client::Done);
                    }
                    break;
                }
                Next::Cancelled => break,
            }
        }
        relay.cut_off();
        self.settle(admitted, End::Unknown);
    }

    /// Whether an answer without a length ended before its JSON did. Of a route the gateway knows no format.
    fn is_cut(&self, form: Form, usage: &AnswerUsage) -> bool {
        let is_json = !form.is_encoded && self.content.endpoint() != Endpoint::Flat;
        is_json && !form.is_delimited && !usage.is_complete()
    }

    /// Relays a stream, each frame as it came. The parts of the answer stay in their box: its task would need their memory
    /// a second time.
    async fn stream(&self, mut answered: Box<Answered>) {
        let mut stream = Stream::new(self.content.endpoint(), self.content.removes_usage_chunk());
        let Answered { relay, admitted, head, body, form } = &mut *answered;
        start(relay, std::mem::take(head));
        let ended = loop {
            match relay.next(body).await {
                Next::Bytes(bytes) => {
                    let mut out = BytesMut::new();
                    let mut whole: Option<Bytes> = None;
                    stream.push(bytes, |bytes| match (&whole, out.is_empty()) {
                        (None, true) => whole = Some(bytes),
                        _ => {
                            if let Some(first) = whole.take() {
                                out.extend_from_slice(&first);
                            }
                            out.extend_from_slice(&bytes);
                        }
                    });
                    if let (Some(renewal), Some(used)) = (&admitted.renewal, stream.reader().so_far()) {
                        renewal.used(used);
                    }
                    let out = whole.unwrap_or_else(|| out.freeze());
                    if !out.is_empty() && !relay.write(out).await {
                        break false;
                    }
                }
                Next::End => break true,
                Next::Broken(why) => {
                    tracing::warn!(lease = %admitted.lease, why, "a stream broke off");
                    break false;
                }
                Next::Cancelled => break false,
            }
        };
        let rest = if ended { stream.finish() } else { None };
        let has_terminal = stream.reader().has_ended();
        // Of an answer without a length, only the terminal event tells whether it is complete.
        if ended && (form.is_delimited || has_terminal) {
            if let Some(rest) = rest {
                relay.write(rest).await;
            }
            relay.end().await;
        } else {
            relay.cut_off();
        }
        let usage = if has_terminal { stream.reader().usage() } else { None };
        let end = if ended || usage.is_some() { self.end_of(usage, admitted) } else { End::Unknown };
        self.settle(answered.admitted, end);
    }

    /// The end of a call that was answered.
    fn end_of(&self, usage: Option<CallUsage>, admitted: &Admitted) -> End {
        match self.content.fixed_usage().or(usage) {
            Some(mut usage) => {
                usage.output_tokens = usage.output_tokens.saturating_add(u64::from(admitted.bound.fee_output_tokens));
                End::Used(usage)
            }
            None => End::Done,
        }
    }

    /// Pauses the limits that the upstream names, for as long as its 429 says.
    fn pause(&self, target: &Target, upstream: &Arc<Connections>, parts: &Parts, admitted: &Admitted) {
        let Some(policy) = &target.upstream.pause else { return };
        let Ok(attributes) = Attributes::new(&*admitted.open.attributes) else { return };
        let call = Call { attributes: &attributes, input_tokens_max: 0, output_tokens_max: 0 };
        let keys = match policy.evaluate(&call) {
            Ok(requirements) => requirements.into_iter().map(|part| part.key).collect::<Vec<_>>(),
            Err(refusal) => {
                tracing::warn!(upstream = upstream.config.name, error = %refusal.error(), "cannot name limits to pause");
                return;
            }
        };
        let length = retry_after(parts).unwrap_or(PAUSE_DEFAULT).min(upstream.config.pause_max);
        let (shared, name) = (Arc::clone(&self.shared), upstream.config.name.clone());
        tokio::spawn(async move {
            for key in keys {
                let paused = shared.earmark.pause(&key, length, "429 of the provider").await;
                shared.metrics.paused(&name, paused.is_ok());
                match paused {
                    Ok(()) => tracing::info!(upstream = name, %key, seconds = length.as_secs(), "paused a limit"),
                    Err(failure) => tracing::warn!(upstream = name, %key, %failure, "cannot pause a limit"),
                }
            }
        });
    }
}

/// An answer that is held back, with its share of the memory for buffers.
#[derive(Default)]
struct HeldAnswer {
    bytes: BytesMut,
    share: Option<Share>,
    /// Whether a piece did not fit any more.
    is_full: bool,
}

impl HeldAnswer {
    /// Holds back a piece, unless the answer is too large or the memory is in use.
    fn push(&mut self, buffers: &Buffers, bytes: &Bytes) -> bool {
        let length = self.bytes.len() + bytes.len();
        let share = buffers.try_take(bytes.len()).filter(|_| length <= WHOLE_BYTES_MAX);
        self.is_full = share.is_none();
        if let Some(share) = share {
            self.bytes.extend_from_slice(bytes);
            match &mut self.share {
                Some(all) => all.add(share),
                none => *none = Some(share),
            }
        }
        !self.is_full
    }

    /// The bytes, which keep their share.
    fn into_bytes(self) -> Bytes {
        let bytes = self.bytes.freeze();
        match self.share {
            Some(share) => share.hold(bytes),
            None => bytes,
        }
    }
}

/// Sends the head of an answer in pieces.
fn start(relay: &mut Relay, head: Response<()>) {
    let (pieces, body) = ReplyBody::pieces();
    if !relay.is_draining() {
        relay.client.reply(head.map(|()| body), Client::Taking(pieces));
    }
}

/// How long the upstream asks to wait.
fn retry_after(parts: &Parts) -> Option<Duration> {
    let number = |name: &str| parts.headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok();
    let millis = number("retry-after-ms").or_else(|| number("retry-after").map(|seconds| seconds * 1_000.0))?;
    // A date, or nonsense, is not a number.
    (millis.is_finite() && millis >= 0.0).then(|| Duration::from_secs_f64((millis / 1_000.0).min(86_400.0)))
}

fn with_cost(mut reply: Reply, completed: Option<CallCompleted>) -> Reply {
    let cost = completed.and_then(|completed| completed.cost);
    if let Some(value) = cost.and_then(|cost| HeaderValue::from_str(&cost.to_string()).ok()) {
        reply.headers_mut().insert(COST, value);
    }
    reply
}
