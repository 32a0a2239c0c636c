//! Credentials that were found good a moment ago.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use earmark_core::SecretHash;

use crate::caller::Caller;

/// So many are remembered. More callers than this within a second only cost more.
const KNOWN_MAX: usize = 10_000;

/// What stands for credentials here, so that they are kept nowhere.
type Digest = [u8; 32];

pub(super) fn digest(text: &str) -> Digest {
    *SecretHash::of(text.as_bytes()).as_bytes()
}

#[derive(Default)]
pub(super) struct Known(RwLock<HashMap<Digest, (Arc<Caller>, Instant)>>);

impl Known {
    pub(super) fn get(&self, digest: &Digest) -> Option<Arc<Caller>> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let (caller, until) = known.get(digest)?;
        (Instant::now() < *until).then(|| Arc::clone(caller))
    }

    pub(super) fn insert(&self, digest: Digest, caller: Arc<Caller>, until: Instant) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_MAX {
            let now = Instant::now();
            known.retain(|_, (_, until)| now < *until);
        }
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(digest, (caller, until));
    }

    pub(super) fn forget(&self, caller: &Arc<Caller>) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, (other, _)| !Arc::ptr_eq(other, caller));
    }
}
