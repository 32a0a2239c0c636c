//! Cache of recently authenticated credentials.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use earmark_core::SecretHash;

use crate::caller::Caller;

/// Cached callers. Beyond this the cache is emptied, which only costs lookups.
const CALLERS_MAX: usize = 10_000;

/// A hash of the credentials, so that they are not kept in memory.
type Digest = [u8; 32];

pub(super) fn digest(text: &str) -> Digest {
    *SecretHash::of(text.as_bytes()).as_bytes()
}

#[derive(Default)]
pub(super) struct CredentialCache(RwLock<HashMap<Digest, (Arc<Caller>, Instant)>>);

impl CredentialCache {
    pub(super) fn get(&self, digest: &Digest) -> Option<Arc<Caller>> {
        let callers = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let (caller, until) = callers.get(digest)?;
        (Instant::now() < *until).then(|| Arc::clone(caller))
    }

    pub(super) fn insert(&self, digest: Digest, caller: Arc<Caller>, until: Instant) {
        let mut callers = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if callers.len() >= CALLERS_MAX {
            let now = Instant::now();
            callers.retain(|_, (_, until)| now < *until);
        }
        if callers.len() >= CALLERS_MAX {
            callers.clear();
        }
        callers.insert(digest, (caller, until));
    }

    pub(super) fn forget(&self, caller: &Caller) {
        let mut callers = self.0.write().unwrap_or_else(PoisonError::into_inner);
        callers.retain(|_, (other, _)| other.by != caller.by && other.by != *caller.settles_by());
    }
}
