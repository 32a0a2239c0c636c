//! Combines the surveys of concurrent callers into one: calls that pay from one account ask the same, and all ask about
//! the account that is paid.

use std::collections::HashMap;
use std::hash::Hash;

use super::queue::{Queue, QueueReader};
use crate::store::{PostingQuery, StoreError, Survey, Surveyed};

/// Concurrent combined surveys. Callers that arrive meanwhile join the next.
pub(crate) const SURVEYORS: usize = 2;

/// The callers that wait for a survey.
pub(crate) type Surveys = Queue<Survey, Surveyed>;

/// Posting queries per combined survey. The remaining callers join the next.
const QUERIES_MAX: usize = 64;
/// Postings per query up to which a survey is combined. Larger surveys run alone, so that others need not wait for
/// them.
const POSTINGS_MAX: usize = 64;

/// Whether a survey is combined. Surveys of clients are few, and large ones take long.
pub(crate) fn is_shared(survey: &Survey) -> bool {
    let is_short =
        |posting_set: &PostingQuery| posting_set.largest <= POSTINGS_MAX && posting_set.smallest <= POSTINGS_MAX;
    survey.client.is_none() && survey.posting_sets.iter().all(is_short)
}

/// Runs until the queue is closed. A combined survey starts after every caller in it has asked, so that none misses
/// rows that existed when it asked.
pub(crate) async fn work<F>(waiting: QueueReader<Survey, Surveyed>, look: impl Fn(Survey) -> F)
where
    F: Future<Output = Result<Surveyed, StoreError>>,
{
    loop {
        let jobs = waiting.next().await;
        if jobs.is_empty() {
            return;
        }
        let mut jobs = jobs.into_iter().peekable();
        while jobs.peek().is_some() {
            let (mut shared, mut group) = (CombinedSurvey::default(), Vec::new());
            while let Some(job) = jobs.next_if(|_| shared.posting_sets.list.len() < QUERIES_MAX) {
                group.push((shared.add(&job.request), job));
            }
            match look(shared.survey()).await {
                Ok(found) => group.into_iter().for_each(|(places, job)| drop(job.answer.send(Ok(places.of(&found))))),
                // A damaged row must only fail the caller that asked about it.
                Err(StoreError::Corrupt(_)) if group.len() > 1 => {
                    for (_, job) in group {
                        let found = look(job.request.clone()).await;
                        let _ = job.answer.send(found);
                    }
                }
                Err(error) => group.into_iter().for_each(|(_, job)| drop(job.answer.send(Err(error.clone())))),
            }
        }
    }
}

/// The parts of a combined survey, each once.
#[derive(Default)]
struct CombinedSurvey {
    accounts: DedupList<crate::model::AccountKey>,
    posting_sets: DedupList<crate::store::PostingQuery>,
    assets: DedupList<crate::model::AssetKey>,
}

/// The indexes of one caller's parts in the combined survey.
struct PartIndexes {
    accounts: Vec<usize>,
    posting_sets: Vec<usize>,
    assets: Vec<usize>,
}

impl CombinedSurvey {
    fn add(&mut self, survey: &Survey) -> PartIndexes {
        PartIndexes {
            accounts: self.accounts.add(&survey.accounts),
            posting_sets: self.posting_sets.add(&survey.posting_sets),
            assets: self.assets.add(&survey.assets),
        }
    }

    fn survey(self) -> Survey {
        let (accounts, posting_sets, assets) = (self.accounts.list, self.posting_sets.list, self.assets.list);
        Survey { accounts, posting_sets, assets, client: None }
    }
}

impl PartIndexes {
    fn of(&self, found: &Surveyed) -> Surveyed {
        fn pick<T: Clone + Default>(places: &[usize], from: &[T]) -> Vec<T> {
            places.iter().map(|place| from.get(*place).cloned().unwrap_or_default()).collect()
        }
        Surveyed {
            accounts: pick(&self.accounts, &found.accounts),
            posting_sets: pick(&self.posting_sets, &found.posting_sets),
            assets: pick(&self.assets, &found.assets),
            client: None,
        }
    }
}

/// A list without duplicates.
struct DedupList<T> {
    places: HashMap<T, usize>,
    list: Vec<T>,
}

impl<T> Default for DedupList<T> {
    fn default() -> DedupList<T> {
        DedupList { places: HashMap::new(), list: Vec::new() }
    }
}

impl<T: Clone + Eq + Hash> DedupList<T> {
    /// Adds missing items and returns the index of each.
    fn add(&mut self, wanted: &[T]) -> Vec<usize> {
        let place = |each: &T| {
            if let Some(place) = self.places.get(each) {
                return *place;
            }
            let place = self.list.len();
            self.places.insert(each.clone(), place);
            self.list.push(each.clone());
            place
        };
        wanted.iter().map(place).collect()
    }
}

#[cfg(test)]
mod tests;
