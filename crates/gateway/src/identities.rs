//! The identities of clients, remembered for a second.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use earmark_client::{ClientKey, Failure, Identity};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::earmark::Earmark;
use crate::serve::is_about_client;

/// How long an identity is believed. A revoked key works for this time at most.
const BELIEVED: Duration = Duration::from_secs(1);
/// Remembered keys, valid or not. Beyond it all are forgotten.
const KEYS_MAX: usize = 16_384;

/// The identities of clients.
pub(crate) struct Identities {
    earmark: Arc<dyn Earmark>,
    known: Mutex<HashMap<ClientKey, Entry>>,
}

struct Entry {
    since: Instant,
    /// One look-up for all requests that wait for it.
    answer: Arc<OnceCell<Result<Arc<Identity>, Failure>>>,
}

impl Identities {
    pub(crate) fn new(earmark: Arc<dyn Earmark>) -> Identities {
        Identities { earmark, known: Mutex::default() }
    }

    /// The identity of a client.
    pub(crate) async fn of(&self, key: &ClientKey) -> Result<Arc<Identity>, Failure> {
        let answer = self.entry(key);
        let ask = || async { self.earmark.who(Some(key)).await.map(Arc::new) };
        let found = answer.get_or_init(ask).await.clone();
        if found.as_ref().is_err_and(|failure| !is_about_client(failure)) {
            // An outage is over as soon as it is over.
            self.lock().remove(key);
        }
        found
    }

    fn entry(&self, key: &ClientKey) -> Arc<OnceCell<Result<Arc<Identity>, Failure>>> {
        let now = Instant::now();
        let mut known = self.lock();
        if let Some(entry) = known.get(key)
            && now.saturating_duration_since(entry.since) < BELIEVED
        {
            return Arc::clone(&entry.answer);
        }
        if known.len() >= KEYS_MAX {
            known.clear();
        }
        let answer = Arc::new(OnceCell::new());
        known.insert(key.clone(), Entry { since: now, answer: Arc::clone(&answer) });
        answer
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ClientKey, Entry>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
