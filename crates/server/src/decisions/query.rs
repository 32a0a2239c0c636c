//! Reads of the decision log, newest first.

use std::collections::HashMap;
use std::sync::Arc;

use earmark_admission::{BackendError, RecordSegment};
use earmark_core::{Actor, JobId, NamespaceName, UnixMs};

use crate::auth::CHANGE_LOG_PAGE_COST;

use super::record::{LoggedDecision, Outcome, Record, decode, peek};
use super::{DecisionLog, Shared, now};

/// Segments that one page reads: 16 MiB of a full log. A page with a rare filter may be short or empty, and has a `next`.
const SEGMENTS_PER_PAGE: usize = 4;

/// Which decisions to list.
#[derive(Clone, Debug)]
pub(crate) struct DecisionQuery {
    pub(crate) namespace: NamespaceName,
    /// Only decisions about a limit whose key begins like this.
    pub(crate) key: Option<String>,
    pub(crate) actor: Option<Actor>,
    pub(crate) job: Option<JobId>,
    pub(crate) outcome: Option<Outcome>,
    /// Only decisions at this time or later.
    pub(crate) since: UnixMs,
    /// Only decisions before this time.
    pub(crate) until: UnixMs,
    /// Only decisions before this position.
    pub(crate) after: u64,
    pub(crate) page_size: usize,
}

/// A page of decisions, newest first.
#[derive(Debug, Default)]
pub(crate) struct DecisionPage {
    pub(crate) decisions: Vec<LoggedDecision>,
    /// `after` of the next page; `None` on the last one.
    pub(crate) next: Option<u64>,
}

impl DecisionQuery {
    /// The items that a page is charged as. Every page is filtered by its namespace, so it may read many decisions for
    /// each one that it finds.
    pub(crate) fn cost(&self) -> usize {
        self.page_size.max(CHANGE_LOG_PAGE_COST)
    }

    fn accepts(&self, decision: &LoggedDecision) -> bool {
        let has_key = |prefix: &String| decision.limits.iter().any(|limit| limit.key.as_str().starts_with(prefix));
        self.key.as_ref().is_none_or(has_key)
            && self.actor.as_ref().is_none_or(|actor| decision.actor == *actor)
            && self.job.as_ref().is_none_or(|job| decision.job.as_ref() == Some(job))
    }
}

impl DecisionLog {
    /// A page of the log, with everything that this node decided before the call.
    /// `None` if the log is off.
    pub(crate) async fn read(&self, query: DecisionQuery) -> Result<Option<DecisionPage>, BackendError> {
        let Some(shared) = &self.log else { return Ok(None) };
        self.record_timeouts(&self.timeouts.lock().await).await;
        shared.queue.written().await;
        let failed = |why: String| BackendError::Failed(why);
        let _permit = shared.reads.acquire().await.map_err(|error| failed(error.to_string()))?;
        let reading = Arc::clone(shared);
        let read = tokio::task::spawn_blocking(move || reading.page(&query)).await;
        read.map_err(|error| failed(error.to_string()))?.map(Some).map_err(failed)
    }
}

impl Shared {
    fn page(&self, query: &DecisionQuery) -> Result<DecisionPage, String> {
        // Older decisions may still be in a segment with newer ones.
        let oldest = now().minus_ms(self.store.bounds().age_ms);
        let since = query.since.max(oldest);
        let mut page = DecisionPage::default();
        let mut before = query.after;
        for _ in 0..SEGMENTS_PER_PAGE {
            let Some(segment) = self.store.segment_before(before)? else { return Ok(page) };
            let first = segment.first;
            if read_segment(&segment, query, since, &mut page) == Reading::Over {
                return Ok(page);
            }
            before = first;
        }
        page.next = self.store.segment_before(before)?.map(|_| before);
        Ok(page)
    }
}

#[derive(PartialEq, Eq)]
enum Reading {
    /// The page may have more from older segments.
    GoesOn,
    /// The page is full, or all older decisions are too old.
    Over,
}

/// Adds the decisions of a segment to a page. All repeats of its decisions are in it.
fn read_segment(segment: &RecordSegment, query: &DecisionQuery, since: UnixMs, page: &mut DecisionPage) -> Reading {
    let mut repeats: HashMap<u64, u64> = HashMap::new();
    for record in &segment.records {
        if let Some(Record::Repeats { of, count }) = decode_repeats(record.at, &record.payload) {
            let sum = repeats.entry(of).or_default();
            *sum = sum.saturating_add(count);
        }
    }
    for record in segment.records.iter().rev().filter(|record| record.number < query.after) {
        if record.at < since {
            return Reading::Over;
        }
        let Some((outcome, namespace)) = peek(&record.payload) else { continue };
        let is_asked = query.outcome.is_none_or(|asked| asked as u8 == outcome);
        if record.at >= query.until || namespace != query.namespace.as_str() || !is_asked {
            continue;
        }
        let Some(Record::Decision(decision)) = decode(record.at, &record.payload) else { continue };
        if !query.accepts(&decision) {
            continue;
        }
        if page.decisions.len() == query.page_size {
            // One more was found, so the page after this one is not empty.
            page.next = Some(record.number.saturating_add(1));
            return Reading::Over;
        }
        let repeated = repeats.get(&record.number).copied().unwrap_or_default();
        page.decisions.push(LoggedDecision { repeated, ..*decision });
    }
    Reading::GoesOn
}

fn decode_repeats(at: UnixMs, payload: &[u8]) -> Option<Record> {
    if peek(payload).is_some() { None } else { decode(at, payload) }
}
