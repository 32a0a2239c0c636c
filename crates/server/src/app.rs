//! State that all requests share.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use axum::body::Bytes;
use earmark_admission::{Backend, BackendError, Cluster};
use earmark_core::NameError;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::auth::{Auth, AuthOptions};
use crate::body::BodyBounds;
use crate::budget::{Budget, Purpose};
use crate::calls::PolicyCache;
use crate::charts::Charts;
use crate::decisions::DecisionLog;
use crate::events::Feeds;
use crate::execute::RequestContext;
use crate::http::{Console, RequestIds, document};
use crate::log_rate::LogRate;
use crate::metrics::Metrics;
use crate::server::ServerOptions;
use crate::top::Top;

/// Readiness message of a server that drains.
pub(crate) const SHUTTING_DOWN: &str = "shutting down";

pub(crate) struct App {
    pub(crate) backend: Arc<dyn Backend>,
    /// The cluster, if the backend is a node of one.
    pub(crate) cluster: OnceLock<Arc<dyn Cluster>>,
    pub(crate) auth: Auth,
    /// The compiled policies of calls.
    pub(crate) policies: PolicyCache,
    /// Whether answers to calls say how much is left of their limits.
    pub(crate) reveals_remaining: bool,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) request_ids: RequestIds,
    pub(crate) request_timeout: Duration,
    /// Timeout between two pieces of a body.
    pub(crate) stall_timeout: Duration,
    pub(crate) log_rate: LogRate,
    pub(crate) openapi: Bytes,
    /// Memory for request bodies that arrive in pieces.
    pub(crate) bodies: Arc<Budget>,
    /// Memory for large answers that clients have not read.
    pub(crate) responses: Arc<Budget>,
    /// Recent denials, refusals, timeouts and overages.
    pub(crate) decisions: DecisionLog,
    /// The heaviest limits of each namespace.
    pub(crate) top: Top,
    /// The last hour of reserves.
    pub(crate) charts: Charts,
    /// The feeds of event streams.
    pub(crate) feeds: Arc<Feeds>,
    /// The files of the console; `None` where it is off.
    pub(crate) console: Option<Console>,
    is_draining: watch::Sender<bool>,
}

impl App {
    pub(crate) fn new(backend: Arc<dyn Backend>, options: &ServerOptions, auth: AuthOptions) -> Result<App, NameError> {
        let metrics = Arc::new(Metrics::new());
        let (streams, dropped) = metrics.event_streams();
        let feeds = Feeds::new(streams, dropped);
        Ok(App {
            decisions: DecisionLog::start(
                options.decisions.clone(),
                &backend,
                Arc::clone(&feeds),
                metrics.decisions(),
            )?,
            top: Top::new(),
            charts: Charts::new(),
            feeds,
            console: options.has_console().then(Console::new),
            backend,
            cluster: OnceLock::new(),
            auth: Auth::new(auth, metrics.auth())?,
            policies: PolicyCache::default(),
            reveals_remaining: options.reveals_remaining,
            log_rate: LogRate::new(metrics.dropped_lines()),
            metrics,
            request_ids: RequestIds::new(),
            request_timeout: options.request_timeout,
            stall_timeout: options.header_timeout,
            openapi: Bytes::from(document().to_string()),
            bodies: Budget::new(Purpose::Bodies, options.bodies_bytes_max),
            responses: Budget::new(Purpose::Answers, options.answers_bytes_max),
            is_draining: watch::Sender::new(false),
        })
    }

    /// Starts draining: the server reports that it is not ready.
    pub(crate) fn drain(&self) {
        self.is_draining.send_replace(true);
    }

    /// Completes when draining starts.
    pub(crate) fn draining(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut is_draining = self.is_draining.subscribe();
        async move {
            // An error means that the app is gone; the server ends then too.
            _ = is_draining.wait_for(|is_draining| *is_draining).await;
        }
    }

    pub(crate) fn is_draining(&self) -> bool {
        *self.is_draining.borrow()
    }

    /// Whether the server can serve; the error says why not.
    pub(crate) fn ready(&self) -> Result<(), String> {
        if self.is_draining() {
            return Err(SHUTTING_DOWN.into());
        }
        self.backend.ready()
    }

    /// The bounds of a request's body.
    pub(crate) fn body_bounds<'a>(&'a self, context: &'a RequestContext) -> BodyBounds<'a> {
        BodyBounds {
            deadline: context.deadline,
            stall_timeout: self.stall_timeout,
            budget: &self.bodies,
            holders: context.holders(),
        }
    }

    /// The time since a request with this deadline began.
    pub(crate) fn time_taken(&self, deadline: Instant) -> Duration {
        self.request_timeout.saturating_sub(deadline.saturating_duration_since(Instant::now()))
    }

    /// Waits for the backend until the deadline. A submitted request is executed even if its wait ends.
    pub(crate) async fn by<T>(&self, deadline: Instant, answer: impl Future<Output = T>) -> Result<T, BackendError> {
        tokio::time::timeout_at(deadline, answer).await.map_err(|_| self.no_answer())
    }

    /// Waits as [`App::by`] does. A connection of HTTP/1 polls its request whenever it checks its own timeouts, so that
    /// the request needs no timer, which would be set and cancelled millions of times for each time it fires.
    pub(crate) async fn in_time<T>(
        &self,
        context: &RequestContext,
        answer: impl Future<Output = T>,
    ) -> Result<T, BackendError> {
        if context.peer.as_ref().is_none_or(|peer| peer.hangup.is_none()) {
            return Box::pin(self.by(context.deadline, answer)).await;
        }
        let mut answer = pin!(answer);
        poll_fn(|task| match answer.as_mut().poll(task) {
            Poll::Ready(answer) => Poll::Ready(Ok(answer)),
            Poll::Pending if Instant::now() >= context.deadline => Poll::Ready(Err(self.no_answer())),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    fn no_answer(&self) -> BackendError {
        BackendError::Failed(format!("no answer within {:?}; the outcome is unknown", self.request_timeout))
    }
}
