//! Surveys of many callers as one: those who pay from one account at the same time ask the same, and all ask about the
//! account that is paid.

use std::collections::HashMap;
use std::hash::Hash;

use super::queue::{Queue, Waiting};
use crate::store::{PurseQuery, StoreError, Survey, Surveyed};

/// So many are under way at once; the next ones gather meanwhile.
pub(crate) const SURVEYORS: usize = 2;

/// Callers that wait for a survey.
pub(crate) type Surveys = Queue<Survey, Surveyed>;

/// A shared look asks about so many purses at most. The others have the next one.
const PURSES_MAX: usize = 64;
/// Who wants to see more postings of a purse looks alone, so that the others need not wait for them.
const SEEN_MAX: usize = 64;

/// Whether a survey is one to share: those about a client are few, and those that look far take long.
pub(crate) fn is_shared(survey: &Survey) -> bool {
    let is_short = |purse: &PurseQuery| purse.largest <= SEEN_MAX && purse.smallest <= SEEN_MAX;
    survey.client.is_none() && survey.purses.iter().all(is_short)
}

/// Works until there will be no more calls. A survey begins after everybody who shares it has asked, so that nobody is told
/// less than was there when it asked.
pub(crate) async fn work<F>(waiting: Waiting<Survey, Surveyed>, look: impl Fn(Survey) -> F)
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
            let (mut shared, mut group) = (Shared::default(), Vec::new());
            while let Some(job) = jobs.next_if(|_| shared.purses.list.len() < PURSES_MAX) {
                group.push((shared.add(&job.asked), job));
            }
            match look(shared.survey()).await {
                Ok(found) => group.into_iter().for_each(|(places, job)| job.answer(Ok(places.of(&found)))),
                // What one of them asks about may be damaged, and that is not the fault of the others.
                Err(StoreError::Corrupt(_)) if group.len() > 1 => {
                    for (_, job) in group {
                        let found = look(job.asked.clone()).await;
                        job.answer(found);
                    }
                }
                Err(error) => group.into_iter().for_each(|(_, job)| job.answer(Err(error.clone()))),
            }
        }
    }
}

/// What is asked for, each once.
#[derive(Default)]
struct Shared {
    accounts: Once<crate::model::AccountKey>,
    purses: Once<crate::store::PurseQuery>,
    assets: Once<crate::model::AssetKey>,
}

/// Where in the shared survey the parts of one are.
struct Places {
    accounts: Vec<usize>,
    purses: Vec<usize>,
    assets: Vec<usize>,
}

impl Shared {
    fn add(&mut self, survey: &Survey) -> Places {
        Places {
            accounts: self.accounts.add(&survey.accounts),
            purses: self.purses.add(&survey.purses),
            assets: self.assets.add(&survey.assets),
        }
    }

    fn survey(self) -> Survey {
        let (accounts, purses, assets) = (self.accounts.list, self.purses.list, self.assets.list);
        Survey { accounts, purses, assets, client: None }
    }
}

impl Places {
    fn of(&self, found: &Surveyed) -> Surveyed {
        fn pick<T: Clone + Default>(places: &[usize], from: &[T]) -> Vec<T> {
            places.iter().map(|place| from.get(*place).cloned().unwrap_or_default()).collect()
        }
        Surveyed {
            accounts: pick(&self.accounts, &found.accounts),
            purses: pick(&self.purses, &found.purses),
            assets: pick(&self.assets, &found.assets),
            last_sequence: None,
        }
    }
}

/// A list in which nothing is twice.
struct Once<T> {
    places: HashMap<T, usize>,
    list: Vec<T>,
}

impl<T> Default for Once<T> {
    fn default() -> Once<T> {
        Once { places: HashMap::new(), list: Vec::new() }
    }
}

impl<T: Clone + Eq + Hash> Once<T> {
    /// Adds what is not there yet, and says where each is.
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
