//! One stream of events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::{Body, Bytes};
use earmark_admission::UsageQuery;
use earmark_core::UsageSort;
use futures_util::stream;
use serde::Serialize;
use serde_json::json;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::time::{Instant, Interval, MissedTickBehavior};

use crate::app::{App, SHUTTING_DOWN};
use crate::auth::Credentials;
use crate::caller::{Access, AuthError};
use crate::charts::ChartOf;
use crate::decisions::LoggedDecision;
use crate::events::{Feed, Subscription, USAGE_INTERVAL};
use crate::http::cluster::StatusWire;
use crate::http::decisions::DecisionWire;
use crate::http::top::TopLimitWire;
use crate::http::usage::LimitUsageWire;
use crate::top::{Measure, Within};

/// Time between two checks of the credentials. With the credential cache, which keeps a key for one second, a stream
/// closes within 1.5 s of a revocation.
const RECHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Time without an event after which a comment is sent, so that proxies keep the connection and a client that has gone
/// is noticed.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Limits in an event `usage`.
const USAGE_LIMITS: usize = 50;
/// Limits that denied most, in an event `usage`.
const DENIED_LIMITS: usize = 20;
/// Decisions in one piece of the response, so that a burst does not delay the check of the credentials.
const DECISIONS_PER_PIECE: usize = 64;
const COMMENT: &[u8] = b":\n\n";

/// The response body of a stream.
pub(in crate::http) fn body(app: Arc<App>, subscription: Subscription, credentials: Credentials) -> Body {
    let events = EventStream::new(app, subscription, credentials);
    Body::from_stream(stream::unfold(events, |mut events| async move {
        let piece = events.next().await?;
        Some((Ok::<Bytes, Infallible>(piece), events))
    }))
}

struct EventStream {
    app: Arc<App>,
    subscription: Subscription,
    credentials: Credentials,
    recheck: Interval,
    tick: Interval,
    draining: Pin<Box<dyn Future<Output = ()> + Send>>,
    pieces: VecDeque<Bytes>,
    is_server_admin: bool,
    /// The newest step whose event was sent.
    step: u64,
    cluster: Bytes,
    last_sent: Instant,
    is_over: bool,
}

/// The event that wakes a stream.
enum Woken {
    Draining,
    Recheck,
    Tick,
    Usage,
    Decision(Result<Arc<LoggedDecision>, RecvError>),
}

impl EventStream {
    fn new(app: Arc<App>, subscription: Subscription, credentials: Credentials) -> EventStream {
        let mut recheck = tokio::time::interval_at(Instant::now() + RECHECK_INTERVAL, RECHECK_INTERVAL);
        recheck.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut tick = tokio::time::interval(USAGE_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let hello = json!({"namespace": subscription.namespace.as_str(), "topics": subscription.topics.names()});
        let mut pieces = VecDeque::from([event("hello", &hello)]);
        let usage = subscription.usage.borrow().clone();
        if subscription.topics.usage && !usage.is_empty() {
            pieces.push_back(usage);
        }
        let mut stream = EventStream {
            draining: Box::pin(app.draining()),
            step: app.charts.current_step().saturating_sub(1),
            app,
            subscription,
            credentials,
            recheck,
            tick,
            pieces,
            is_server_admin: false,
            cluster: Bytes::new(),
            last_sent: Instant::now(),
            is_over: false,
        };
        stream.check();
        stream
    }

    /// The next piece of the response; `None` at its end.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                self.last_sent = Instant::now();
                return Some(piece);
            }
            if self.is_over {
                return None;
            }
            let Subscription { decisions, usage, topics, .. } = &mut self.subscription;
            let woken = tokio::select! {
                biased;
                () = &mut self.draining => Woken::Draining,
                _ = self.recheck.tick() => Woken::Recheck,
                _ = self.tick.tick() => Woken::Tick,
                Ok(()) = usage.changed(), if topics.usage => Woken::Usage,
                decision = received(decisions) => Woken::Decision(decision),
            };
            match woken {
                Woken::Draining => self.end("unavailable", SHUTTING_DOWN),
                Woken::Recheck => self.check(),
                Woken::Tick => self.look(),
                Woken::Usage => {
                    let newest = self.subscription.usage.borrow_and_update().clone();
                    self.pieces.push_back(newest);
                }
                Woken::Decision(decision) => self.decided(decision),
            }
        }
    }

    /// Ends the stream after what waits.
    fn end(&mut self, error: &str, message: &str) {
        self.pieces.push_back(event("end", &json!({"error": error, "message": message})));
        self.is_over = true;
    }

    /// Checks that the credentials still permit the stream.
    fn check(&mut self) {
        let caller = self.app.auth.recheck(&*self.app.backend, &self.credentials, Access::Read);
        let permitted = caller.and_then(|caller| {
            caller.check_limits_of(&self.subscription.namespace)?;
            Ok(caller.is_server_admin())
        });
        match permitted {
            Ok(is_server_admin) => self.is_server_admin = is_server_admin,
            Err(error) => {
                let is_known = matches!(error, AuthError::Forbidden(_));
                self.end(if is_known { "forbidden" } else { "unauthenticated" }, &error.message());
            }
        }
    }

    /// Looks for news, and for the need of a comment.
    fn look(&mut self) {
        if self.subscription.topics.usage {
            read_usage(&self.app, &self.subscription);
            let newest = self.app.charts.current_step().saturating_sub(1);
            if newest > self.step {
                self.step = newest;
                let of = ChartOf::Namespace(&self.subscription.namespace);
                self.pieces.push_back(event("chart", &self.app.charts.point(of, newest)));
            }
        }
        if self.subscription.topics.cluster {
            let state = self.cluster();
            if state != self.cluster {
                self.cluster = state.clone();
                self.pieces.push_back(state);
            }
        }
        if self.pieces.is_empty() && self.last_sent.elapsed() >= SILENCE_MAX {
            self.pieces.push_back(Bytes::from_static(COMMENT));
        }
    }

    /// Whether this node is ready, and for an admin of the server the state of its cluster.
    fn cluster(&self) -> Bytes {
        let ready = self.app.ready();
        let status = self.app.cluster.get().filter(|_| self.is_server_admin).map(|cluster| cluster.status());
        event(
            "cluster",
            &ClusterEvent {
                ready: ready.is_ok(),
                message: ready.err().or_else(|| self.app.backend.warning()),
                cluster: status.as_ref().map(StatusWire::of),
            },
        )
    }

    /// Adds a decision and those that follow it at once.
    fn decided(&mut self, first: Result<Arc<LoggedDecision>, RecvError>) {
        let mut piece = Vec::new();
        let mut next = first;
        for _ in 0..DECISIONS_PER_PIECE {
            match next {
                Ok(decision) => write(&mut piece, "decision", &DecisionWire::of(&decision)),
                Err(RecvError::Lagged(count)) => {
                    self.subscription.feeds.count_dropped(count);
                    write(&mut piece, "dropped", &json!({"count": count}));
                }
                Err(RecvError::Closed) => break,
            }
            next = match self.subscription.decisions.as_mut().map(Receiver::try_recv) {
                Some(Ok(decision)) => Ok(decision),
                Some(Err(TryRecvError::Lagged(count))) => Err(RecvError::Lagged(count)),
                Some(Err(TryRecvError::Empty | TryRecvError::Closed)) | None => break,
            };
        }
        self.pieces.push_back(Bytes::from(piece));
    }
}

/// The next decision; never without the topic.
async fn received(decisions: &mut Option<Receiver<Arc<LoggedDecision>>>) -> Result<Arc<LoggedDecision>, RecvError> {
    match decisions {
        Some(decisions) => decisions.recv().await,
        None => std::future::pending().await,
    }
}

#[derive(Serialize)]
struct ClusterEvent<'a> {
    ready: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<StatusWire<'a>>,
}

#[derive(Serialize)]
struct UsageEvent<'a> {
    at_unix_ms: u64,
    /// The fullest limits.
    usage: Vec<LimitUsageWire<'a>>,
    /// The limits that denied most within one minute.
    denied: Vec<TopLimitWire<'a>>,
}

/// Reads the usage for all streams of a namespace, in a task of its own, unless that is under way or was done just now.
fn read_usage(app: &Arc<App>, subscription: &Subscription) {
    let began = Instant::now();
    if !subscription.feed.begin_read(began) {
        return;
    }
    let (app, feed, namespace) = (Arc::clone(app), Arc::clone(&subscription.feed), subscription.namespace.clone());
    tokio::spawn(async move {
        let query = UsageQuery { sort: UsageSort::Fullness, page_size: USAGE_LIMITS, ..UsageQuery::default() };
        let read = app.by(began + app.request_timeout, app.backend.usage_page(namespace.clone(), query)).await;
        match read {
            Ok(Ok(page)) => {
                let top = app.top.top(&namespace, Measure::Denied, Within::Minute, "");
                publish(
                    &feed,
                    &UsageEvent {
                        at_unix_ms: now_unix_ms(),
                        usage: page.usage.iter().map(LimitUsageWire::of).collect(),
                        denied: top.iter().take(DENIED_LIMITS).map(TopLimitWire::of).collect(),
                    },
                );
            }
            // Without a leader the event `cluster` says so; the next read may succeed.
            Ok(Err(error)) => tracing::debug!(%error, "cannot read usage for event streams"),
            Err(error) => tracing::debug!(%error, "cannot read usage for event streams"),
        }
        feed.end_read(began, Instant::now());
    });
}

fn publish(feed: &Feed, usage: &UsageEvent<'_>) {
    feed.usage.send_replace(event("usage", usage));
}

fn now_unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// An event with its data.
fn event(name: &str, data: &impl Serialize) -> Bytes {
    let mut piece = Vec::new();
    write(&mut piece, name, data);
    Bytes::from(piece)
}

/// Writes an event. JSON has no line breaks, so the data is one line.
fn write(piece: &mut Vec<u8>, name: &str, data: &impl Serialize) {
    piece.extend_from_slice(b"event: ");
    piece.extend_from_slice(name.as_bytes());
    piece.extend_from_slice(b"\ndata: ");
    // Serializing into memory does not fail.
    _ = serde_json::to_writer(&mut *piece, data);
    piece.extend_from_slice(b"\n\n");
}
