//! The feeds of `GET /v1/events`: what happens in each namespace that has open streams.
//!
//! A feed exists while a stream reads it. Decisions go through a bounded channel; a slow reader loses the oldest ones and
//! is told how many. The usage of limits is read once for all streams of a namespace.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Bytes;
use earmark_core::NamespaceName;
use metrics::{Counter, Gauge};
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

use crate::caller::CallerShares;
use crate::decisions::LoggedDecision;
use crate::top::lock;

/// Open streams of a server. Each may keep 100 kB in buffers.
pub(crate) const STREAMS_MAX: usize = 256;
/// Open streams of one namespace, so that one cannot lock out the others.
pub(crate) const STREAMS_PER_NAMESPACE: usize = 64;
/// Open streams of one caller: some people with some tabs.
pub(crate) const STREAMS_PER_CALLER: usize = 16;
/// Decisions that a namespace keeps for its slowest reader.
const DECISIONS_KEPT: usize = 256;
/// Time between two reads of the usage.
pub(crate) const USAGE_INTERVAL: Duration = Duration::from_secs(2);
/// Parts of the time during which usage is not read, for each part during which it is: at most 5% are spent on it.
const IDLE_PARTS: u32 = 19;

/// The parts of a namespace that a stream shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Topics {
    pub(crate) decisions: bool,
    pub(crate) usage: bool,
    pub(crate) cluster: bool,
}

impl Topics {
    /// The names, in the API.
    pub(crate) const NAMES: [&'static str; 3] = ["decisions", "usage", "cluster"];

    /// The topics of a checked list with commas.
    pub(crate) fn from_list(list: &str) -> Topics {
        let has = |name: &str| list.split(',').any(|found| found == name);
        let [decisions, usage, cluster] = Topics::NAMES.map(has);
        Topics { decisions, usage, cluster }
    }

    /// The names of its topics.
    pub(crate) fn names(self) -> Vec<&'static str> {
        let shown = [self.decisions, self.usage, self.cluster];
        Topics::NAMES.into_iter().zip(shown).filter(|(_, is_shown)| *is_shown).map(|(name, _)| name).collect()
    }
}

/// The bound that a new stream would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TooManyStreams {
    Caller,
    Namespace,
    Server,
}

impl TooManyStreams {
    pub(crate) fn message(self) -> String {
        let (who, max) = match self {
            TooManyStreams::Caller => ("this caller", STREAMS_PER_CALLER),
            TooManyStreams::Namespace => ("this namespace", STREAMS_PER_NAMESPACE),
            TooManyStreams::Server => ("this server", STREAMS_MAX),
        };
        format!("{who} has {max} open event streams, which is the maximum; close some, or retry later")
    }
}

/// The feed of one namespace.
pub(crate) struct Feed {
    decisions: broadcast::Sender<Arc<LoggedDecision>>,
    /// The newest usage, as it is sent.
    pub(crate) usage: watch::Sender<Bytes>,
    reading: Mutex<Reading>,
}

/// When usage is read.
struct Reading {
    is_underway: bool,
    next: Instant,
}

impl Feed {
    fn new() -> Feed {
        Feed {
            decisions: broadcast::Sender::new(DECISIONS_KEPT),
            usage: watch::Sender::new(Bytes::new()),
            reading: Mutex::new(Reading { is_underway: false, next: Instant::now() }),
        }
    }

    /// Whether the caller of this function must read the usage now, and then call [`Feed::end_read`].
    pub(crate) fn begin_read(&self, now: Instant) -> bool {
        let mut reading = lock(&self.reading);
        let is_due = !reading.is_underway && now >= reading.next;
        reading.is_underway |= is_due;
        is_due
    }

    /// Records that the usage was read. A long read delays the next one.
    pub(crate) fn end_read(&self, began: Instant, now: Instant) {
        let pause = now.duration_since(began).saturating_mul(IDLE_PARTS).max(USAGE_INTERVAL / 2);
        *lock(&self.reading) = Reading { is_underway: false, next: now + pause };
    }
}

/// The feeds of a server.
pub(crate) struct Feeds {
    namespaces: Mutex<HashMap<NamespaceName, (Arc<Feed>, usize)>>,
    open: AtomicUsize,
    streams: Gauge,
    dropped: Counter,
}

impl Feeds {
    pub(crate) fn new(streams: Gauge, dropped: Counter) -> Arc<Feeds> {
        Arc::new(Feeds { namespaces: Mutex::default(), open: AtomicUsize::new(0), streams, dropped })
    }

    /// Publishes a decision, if a stream of its namespace may show it. Without streams it costs one load.
    pub(crate) fn publish(&self, namespace: &NamespaceName, decision: impl FnOnce() -> Option<LoggedDecision>) {
        if self.open.load(Ordering::Relaxed) == 0 {
            return;
        }
        let feed = lock(&self.namespaces).get(namespace).map(|(feed, _)| Arc::clone(feed));
        let Some(feed) = feed.filter(|feed| feed.decisions.receiver_count() > 0) else { return };
        if let Some(decision) = decision() {
            // An error means that the last reader has just gone.
            _ = feed.decisions.send(Arc::new(decision));
        }
    }

    /// Counts events that a slow reader lost.
    pub(crate) fn count_dropped(&self, count: u64) {
        self.dropped.increment(count);
    }

    /// Opens a stream, if its caller, its namespace and the server may have another one.
    pub(crate) fn open(
        self: &Arc<Feeds>,
        namespace: NamespaceName,
        caller: Option<Arc<CallerShares>>,
        topics: Topics,
    ) -> Result<Subscription, TooManyStreams> {
        if let Some(caller) = &caller {
            take(&caller.event_streams, STREAMS_PER_CALLER).ok_or(TooManyStreams::Caller)?;
        }
        let opened = self.enter(&namespace);
        if let (Err(_), Some(caller)) = (&opened, &caller) {
            caller.event_streams.fetch_sub(1, Ordering::Relaxed);
        }
        let feed = opened?;
        self.streams.increment(1);
        let decisions = topics.decisions.then(|| feed.decisions.subscribe());
        let usage = feed.usage.subscribe();
        Ok(Subscription { namespace, topics, decisions, usage, feed, caller, feeds: Arc::clone(self) })
    }

    fn enter(&self, namespace: &NamespaceName) -> Result<Arc<Feed>, TooManyStreams> {
        let mut namespaces = lock(&self.namespaces);
        let of_namespace = namespaces.get(namespace).map_or(0, |(_, streams)| *streams);
        if of_namespace >= STREAMS_PER_NAMESPACE {
            return Err(TooManyStreams::Namespace);
        }
        take(&self.open, STREAMS_MAX).ok_or(TooManyStreams::Server)?;
        let (feed, streams) = namespaces.entry(namespace.clone()).or_insert_with(|| (Arc::new(Feed::new()), 0));
        *streams += 1;
        Ok(Arc::clone(feed))
    }

    fn leave(&self, namespace: &NamespaceName) {
        let mut namespaces = lock(&self.namespaces);
        if let Some((_, streams)) = namespaces.get_mut(namespace) {
            *streams -= 1;
            if *streams == 0 {
                namespaces.remove(namespace);
            }
        }
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Adds one to a counter unless it is at its maximum.
fn take(counter: &AtomicUsize, max: usize) -> Option<usize> {
    let more = |count: usize| (count < max).then_some(count.saturating_add(1));
    counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()
}

/// One stream's place, and its ends of the feed. Dropping it gives the place back.
pub(crate) struct Subscription {
    pub(crate) namespace: NamespaceName,
    pub(crate) topics: Topics,
    pub(crate) decisions: Option<broadcast::Receiver<Arc<LoggedDecision>>>,
    pub(crate) usage: watch::Receiver<Bytes>,
    pub(crate) feed: Arc<Feed>,
    caller: Option<Arc<CallerShares>>,
    pub(crate) feeds: Arc<Feeds>,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(caller) = &self.caller {
            caller.event_streams.fetch_sub(1, Ordering::Relaxed);
        }
        self.feeds.leave(&self.namespace);
        self.feeds.streams.decrement(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Topics = Topics { decisions: true, usage: true, cluster: true };

    fn feeds() -> Arc<Feeds> {
        Feeds::new(Gauge::noop(), Counter::noop())
    }

    fn space(text: &str) -> NamespaceName {
        NamespaceName::new(text).unwrap()
    }

    #[test]
    fn streams_are_bounded_by_caller_namespace_and_server_and_places_are_given_back() {
        let feeds = feeds();
        let caller = Arc::new(CallerShares::default());
        let open = |name: &str, caller: Option<&Arc<CallerShares>>| feeds.open(space(name), caller.cloned(), ALL);
        let mut streams: Vec<Subscription> =
            (0..STREAMS_PER_CALLER).map(|_| open("team", Some(&caller)).unwrap_or_else(|_| panic!())).collect();
        assert_eq!(open("team", Some(&caller)).err(), Some(TooManyStreams::Caller));
        while let Ok(stream) = open("team", None) {
            streams.push(stream);
        }
        assert_eq!(streams.len(), STREAMS_PER_NAMESPACE);
        assert_eq!(open("team", None).err(), Some(TooManyStreams::Namespace));
        for number in 0.. {
            match open(&format!("n{}", number / 60), None) {
                Ok(stream) => streams.push(stream),
                Err(why) => {
                    assert_eq!(why, TooManyStreams::Server);
                    break;
                }
            }
        }
        assert_eq!(streams.len(), STREAMS_MAX);
        streams.clear();
        assert!(lock(&feeds.namespaces).is_empty());
        assert_eq!((feeds.open.load(Ordering::Relaxed), caller.event_streams.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn usage_is_read_once_for_all_streams_and_a_long_read_delays_the_next() {
        let (feed, start) = (Feed::new(), Instant::now());
        let second = Duration::from_secs(1);
        assert!(feed.begin_read(start) && !feed.begin_read(start + second));
        feed.end_read(start, start + 2 * second);
        assert!(!feed.begin_read(start + 39 * second));
        assert!(feed.begin_read(start + 40 * second));
        feed.end_read(start + 40 * second, start + 40 * second);
        assert!(!feed.begin_read(start + 40 * second));
        assert!(feed.begin_read(start + 41 * second));
    }

    #[test]
    fn topics_are_read_from_a_list() {
        assert_eq!(Topics::from_list("usage,decisions").names(), ["decisions", "usage"]);
        assert_eq!(Topics::from_list("cluster").names(), ["cluster"]);
    }
}
