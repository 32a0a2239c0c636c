//! The stream `Leases`: many reserves, extends and completes over one call.
//!
//! One task serves a stream: hyper's, which polls [`LeaseStream`] whenever the client can take an answer. A client that
//! reads no answers is therefore not read either. Requests that wait while calls are under way share the next call.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use earmark_admission::{BATCH_MAX, CompleteRequest, ExtendRequest, ReserveRequest};
use earmark_proto::v1;
use earmark_proto::v1::leases_request::Request as Message;
use earmark_proto::v1::leases_response::Answer;
use earmark_trace::{Kind, Span, TraceContext, within};
use prost::Message as _;
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tonic::codegen::tokio_stream::Stream;
use tonic::{Request, Status, Streaming};

use super::ledger::context;
use super::limits::{
    check_authenticated, check_namespaces, complete_request, complete_response, extend_request, extend_response,
    reserve_request, reserve_response,
};
use super::status::retry_after_of;
use crate::answer::{CompleteWire, ExtendWire, ReserveWire};
use crate::app::{App, SHUTTING_DOWN};
use crate::auth::{Connection, Credentials, Refusal};
use crate::budget::{BudgetShare, LARGE_BYTES};
use crate::caller::{Access, AuthError};
use crate::execute::{self, RequestContext};
use crate::metrics::{Completed, Reserved};
use crate::trace;

/// The permission of the stream, for its beginning and while it lives.
pub(super) const ACCESS: Access = Access::Call;
/// Bytes of one request. 32 keys and namespaces of the longest kind, twice, stay below it.
pub(super) const REQUEST_BYTES_MAX: usize = 32 << 10;
/// Requests of one stream without an answer. Beyond it the server stops reading.
const IN_FLIGHT_MAX: usize = 1_024;
/// Concurrent backend calls of one stream and kind of request. Two keep the backend busy while answers are sent; more
/// would only make the batches smaller.
const CALLS_MAX: usize = 2;
/// Interval at which the credentials of a stream are checked again.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Estimated bytes of memory of a request and its answer: a fixed part, and a multiple of the request's length.
const MEMORY_BYTES: usize = 512;
const MEMORY_BYTES_PER_BYTE: usize = 4;

/// A request that waits for a call.
struct Waiting<Q> {
    id: u64,
    bytes: usize,
    request: Q,
}

/// An answer, and the memory that its request was charged with.
struct Answered {
    bytes: usize,
    response: v1::LeasesResponse,
}

impl Answered {
    fn new(id: u64, bytes: usize, answer: Answer) -> Answered {
        Answered { bytes, response: v1::LeasesResponse { request_id: id, answer: Some(answer) } }
    }

    fn refused(id: u64, bytes: usize, status: &Status) -> Answered {
        let retry_after_ms = retry_after_of(status).unwrap_or(0);
        let error =
            v1::LeasesError { code: status.code().into(), message: status.message().to_owned(), retry_after_ms };
        Answered::new(id, bytes, Answer::Error(error))
    }
}

/// The answers of a call, or the status that ends the stream.
type Outcome = Result<Vec<Answered>, Status>;
type Call = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// The requests of one kind that wait, and the calls under way.
struct Lane<Q> {
    waiting: Vec<Waiting<Q>>,
    calls: Vec<Call>,
}

impl<Q> Lane<Q> {
    const fn new() -> Lane<Q> {
        Lane { waiting: Vec::new(), calls: Vec::new() }
    }

    /// The next batch, if a call may begin.
    fn batch(&mut self) -> Option<Vec<Waiting<Q>>> {
        if self.waiting.is_empty() || self.calls.len() >= CALLS_MAX {
            return None;
        }
        let rest = self.waiting.split_off(self.waiting.len().min(BATCH_MAX));
        Some(std::mem::replace(&mut self.waiting, rest))
    }

    /// Polls the calls. Hands the outcome of each that is done to `done`.
    fn poll(&mut self, context: &mut Context<'_>, mut done: impl FnMut(Outcome)) -> bool {
        let before = self.calls.len();
        let mut index = 0;
        while let Some(call) = self.calls.get_mut(index) {
            match call.as_mut().poll(context) {
                Poll::Pending => index += 1,
                Poll::Ready(outcome) => {
                    drop(self.calls.swap_remove(index));
                    done(outcome);
                }
            }
        }
        self.calls.len() < before
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.calls.is_empty()
    }
}

/// The answers of one stream.
pub(super) struct LeaseStream {
    app: Arc<App>,
    context: RequestContext,
    credentials: Credentials,
    /// The context that the stream was opened with: the parent of the spans of its calls.
    parent: Option<TraceContext>,
    recheck: Interval,
    requests: Streaming<v1::LeasesRequest>,
    reserves: Lane<ReserveRequest>,
    extends: Lane<ExtendRequest>,
    completes: Lane<CompleteRequest>,
    answers: VecDeque<Answered>,
    /// Requests without an answer, or with one that is not sent.
    in_flight: usize,
    /// Estimated memory of the requests in flight.
    bytes: usize,
    /// The share of the memory for request bodies, in steps of [`LARGE_BYTES`].
    share: BudgetShare,
    /// The status after the last answer. Set once no more requests are read.
    end: Option<Result<(), Status>>,
}

impl LeaseStream {
    pub(super) fn new(app: Arc<App>, request: Request<Streaming<v1::LeasesRequest>>) -> Result<LeaseStream, Status> {
        let context = context(&request)?;
        let headers = request.metadata().clone().into_headers();
        let parent = trace::parent(&headers);
        let credentials = Credentials::new(headers, context.peer.as_ref());
        let mut recheck = tokio::time::interval_at(Instant::now() + RECHECK_INTERVAL, RECHECK_INTERVAL);
        recheck.set_missed_tick_behavior(MissedTickBehavior::Delay);
        app.metrics.stream_opened();
        Ok(LeaseStream {
            share: app.bodies.empty_share(context.holders()),
            app,
            context,
            credentials,
            parent,
            recheck,
            requests: request.into_inner(),
            reserves: Lane::new(),
            extends: Lane::new(),
            completes: Lane::new(),
            answers: VecDeque::new(),
            in_flight: 0,
            bytes: 0,
            end: None,
        })
    }

    /// Reads no more requests. `status` follows the last answer; the first one counts.
    fn stop(&mut self, status: Result<(), Status>) {
        self.end.get_or_insert(status);
    }

    /// Ends the stream without the requests that wait.
    fn abort(&mut self, status: Status) {
        self.reserves.waiting.clear();
        self.extends.waiting.clear();
        self.completes.waiting.clear();
        if !matches!(self.end, Some(Err(_))) {
            self.end = Some(Err(status));
        }
    }

    /// Checks once a second that the credentials are still valid.
    fn poll_recheck(&mut self, context: &mut Context<'_>) {
        while self.end.is_none() && self.recheck.poll_tick(context).is_ready() {
            match self.app.auth.recheck(&*self.app.backend, &self.credentials, ACCESS) {
                Ok(caller) => self.context.caller = caller,
                Err(error) => self.abort(error.into()),
            }
        }
    }

    /// Reads what has arrived. Returns whether it read anything.
    fn poll_requests(&mut self, context: &mut Context<'_>) -> bool {
        let mut is_read = false;
        while self.end.is_none() && self.in_flight < IN_FLIGHT_MAX {
            match Pin::new(&mut self.requests).poll_next(context) {
                Poll::Pending => break,
                Poll::Ready(Some(Ok(request))) => self.accept(request),
                Poll::Ready(Some(Err(status))) => self.stop(Err(status)),
                Poll::Ready(None) if self.app.is_draining() => {
                    let message = format!("the server is {SHUTTING_DOWN}; open the stream again, on another server");
                    self.stop(Err(Status::unavailable(message)));
                }
                Poll::Ready(None) => self.stop(Ok(())),
            }
            is_read = true;
        }
        is_read
    }

    /// Takes a request: it waits for a call, or has its refusal.
    fn accept(&mut self, message: v1::LeasesRequest) {
        let id = message.request_id;
        let bytes = MEMORY_BYTES + message.encoded_len().saturating_mul(MEMORY_BYTES_PER_BYTE);
        self.in_flight += 1;
        self.bytes += bytes;
        self.app.metrics.stream_requests(1);
        let charge = self.bytes / LARGE_BYTES * LARGE_BYTES;
        let charged = if charge > self.share.bytes() { self.share.grow_to(charge) } else { Ok(()) };
        let taken = match charged {
            Ok(()) => self.wait(id, bytes, message.request),
            Err(who) => Err(Status::unavailable(format!(
                "too many requests of {who} are in flight; nothing happened, retry later"
            ))),
        };
        if let Err(status) = taken {
            self.answers.push_back(Answered::refused(id, bytes, &status));
        }
    }

    /// Checks a request and puts it into its lane.
    fn wait(&mut self, id: u64, bytes: usize, message: Option<Message>) -> Result<(), Status> {
        match message {
            Some(Message::Reserve(message)) => {
                let request = reserve_request(&self.context, message)
                    .inspect_err(|_| self.app.metrics.reserved(Reserved::InvalidRequest))?;
                check_namespaces(&self.context, [&request.namespace])?;
                self.reserves.waiting.push(Waiting { id, bytes, request });
            }
            Some(Message::Extend(message)) => {
                let request = extend_request(&self.context, message)
                    .inspect_err(|_| self.app.metrics.extended(Reserved::InvalidRequest))?;
                check_namespaces(&self.context, [&request.namespace])?;
                self.extends.waiting.push(Waiting { id, bytes, request });
            }
            Some(Message::Complete(message)) => {
                let request = complete_request(&self.context, message)
                    .inspect_err(|_| self.app.metrics.completed(Completed::InvalidRequest))?;
                check_namespaces(&self.context, [&request.namespace])?;
                self.completes.waiting.push(Waiting { id, bytes, request });
            }
            None => {
                let message = "request: found none, allowed are reserve, extend and complete";
                return Err(Status::invalid_argument(message));
            }
        }
        Ok(())
    }

    /// The context of a call, with the deadline of a single request.
    fn call_context(&self) -> RequestContext {
        RequestContext { deadline: Instant::now() + self.app.request_timeout, ..self.context.clone() }
    }

    /// The span of a call, if it is sampled: as the header of the stream says, or by the ratio for each call.
    fn span(&self, name: &'static str, requests: usize) -> Option<Span> {
        let mut span = Span::of_request(name, Kind::Server, self.parent)?;
        span.set("earmark.requests", requests as u64);
        Some(span)
    }

    /// Begins calls with what waits.
    fn begin_calls(&mut self) -> bool {
        let mut has_begun = false;
        while let Some(batch) = self.reserves.batch() {
            let span = self.span("earmark.v1.LimitsService/Leases reserve", batch.len());
            let call = reserve(Arc::clone(&self.app), self.call_context(), batch);
            self.reserves.calls.push(in_span(span, call));
            has_begun = true;
        }
        while let Some(batch) = self.extends.batch() {
            let span = self.span("earmark.v1.LimitsService/Leases extend", batch.len());
            let call = extend(Arc::clone(&self.app), self.call_context(), batch);
            self.extends.calls.push(in_span(span, call));
            has_begun = true;
        }
        while let Some(batch) = self.completes.batch() {
            let span = self.span("earmark.v1.LimitsService/Leases complete", batch.len());
            let call = complete(Arc::clone(&self.app), self.call_context(), batch);
            self.completes.calls.push(in_span(span, call));
            has_begun = true;
        }
        has_begun
    }

    fn poll_calls(&mut self, context: &mut Context<'_>) -> bool {
        let (answers, mut failed) = (&mut self.answers, None);
        let mut done = |outcome: Outcome| match outcome {
            Ok(answered) => answers.extend(answered),
            Err(status) => failed = Some(status),
        };
        let reserved = self.reserves.poll(context, &mut done);
        let extended = self.extends.poll(context, &mut done);
        let completed = self.completes.poll(context, &mut done);
        if let Some(status) = failed {
            self.abort(status);
        }
        reserved || extended || completed
    }

    /// Returns the memory of an answer that is sent.
    fn sent(&mut self, Answered { bytes, response }: Answered) -> v1::LeasesResponse {
        self.in_flight -= 1;
        self.bytes -= bytes;
        // In steps, so that most answers touch no shared counter.
        if self.share.bytes() >= self.bytes + 2 * LARGE_BYTES {
            self.share.set(self.bytes / LARGE_BYTES * LARGE_BYTES);
        }
        response
    }
}

impl Stream for LeaseStream {
    type Item = Result<v1::LeasesResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(answered) = this.answers.pop_front() {
                return Poll::Ready(Some(Ok(this.sent(answered))));
            }
            this.poll_recheck(context);
            let is_read = this.poll_requests(context);
            let has_begun = this.begin_calls();
            let is_done = this.poll_calls(context);
            if is_read || has_begun || is_done {
                continue;
            }
            let is_idle = this.reserves.is_empty() && this.extends.is_empty() && this.completes.is_empty();
            if !is_idle {
                return Poll::Pending;
            }
            return match &mut this.end {
                None => Poll::Pending,
                Some(end) => match std::mem::replace(end, Ok(())) {
                    Ok(()) => Poll::Ready(None),
                    Err(status) => Poll::Ready(Some(Err(status))),
                },
            };
        }
    }
}

impl Drop for LeaseStream {
    fn drop(&mut self) {
        self.app.metrics.stream_closed();
    }
}

/// A call that runs in its span and ends it.
fn in_span(span: Option<Span>, call: impl Future<Output = Outcome> + Send + 'static) -> Call {
    let Some(mut span) = span else { return Box::pin(call) };
    Box::pin(async move {
        let outcome = within(span.context(), call).await;
        if let Err(status) = &outcome {
            span.fail(status.message());
        }
        outcome
    })
}

async fn reserve(app: Arc<App>, context: RequestContext, batch: Vec<Waiting<ReserveRequest>>) -> Outcome {
    let (ids, requests) = split(batch);
    let permit = match context.admit_all(&app, requests.len()).await {
        Ok(permit) => permit,
        Err(error) => return refuse(&app, &context, ids, error).await,
    };
    let answers = execute::reserve(&app, &context, requests).await;
    drop(permit);
    check_authenticated(&answers)?;
    let answer =
        |((id, bytes), answer)| Answered::new(id, bytes, Answer::Reserve(reserve_response(ReserveWire::of(answer))));
    Ok(ids.into_iter().zip(&answers).map(answer).collect())
}

async fn extend(app: Arc<App>, context: RequestContext, batch: Vec<Waiting<ExtendRequest>>) -> Outcome {
    let (ids, requests) = split(batch);
    let permit = match context.admit_all(&app, requests.len()).await {
        Ok(permit) => permit,
        Err(error) => return refuse(&app, &context, ids, error).await,
    };
    let answers = execute::extend(&app, &context, requests).await;
    drop(permit);
    check_authenticated(&answers)?;
    let answer =
        |((id, bytes), answer)| Answered::new(id, bytes, Answer::Extend(extend_response(ExtendWire::of(answer))));
    Ok(ids.into_iter().zip(&answers).map(answer).collect())
}

async fn complete(app: Arc<App>, context: RequestContext, batch: Vec<Waiting<CompleteRequest>>) -> Outcome {
    let (ids, requests) = split(batch);
    let permit = match context.admit_all(&app, requests.len()).await {
        Ok(permit) => permit,
        Err(error) => return refuse(&app, &context, ids, error).await,
    };
    let answers = execute::complete(&app, &context, requests).await;
    drop(permit);
    check_authenticated(&answers)?;
    let answer =
        |((id, bytes), answer)| Answered::new(id, bytes, Answer::Complete(complete_response(CompleteWire::of(answer))));
    Ok(ids.into_iter().zip(&answers).map(answer).collect())
}

fn split<Q>(batch: Vec<Waiting<Q>>) -> (Vec<(u64, usize)>, Vec<Q>) {
    batch.into_iter().map(|Waiting { id, bytes, request }| ((id, bytes), request)).unzip()
}

/// Refuses a batch whose caller exceeded its rate or its queue, after the delay that a single call would have.
async fn refuse(app: &App, context: &RequestContext, ids: Vec<(u64, usize)>, error: AuthError) -> Outcome {
    let retry_after_ms = match &error {
        AuthError::RateLimited { retry_after_ms } => *retry_after_ms,
        AuthError::Unauthenticated
        | AuthError::ClientUnauthenticated
        | AuthError::Certificate(_)
        | AuthError::Forbidden(_)
        | AuthError::NotLocal => 0,
    };
    let status = Status::from(error);
    match app.auth.delay_refusal(&context.caller, retry_after_ms) {
        Refusal::Immediate(Connection::Closes) => return Err(status),
        Refusal::Immediate(Connection::Stays) => {}
        Refusal::Delayed(delay) => delay.wait(Duration::MAX, app.draining()).await,
    }
    Ok(ids.into_iter().map(|(id, bytes)| Answered::refused(id, bytes, &status)).collect())
}
