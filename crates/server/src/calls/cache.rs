//! Compiled policies, so that a call does not parse one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use earmark_admission::{Backend, BackendError};
use earmark_core::{NamespaceName, PolicyRevision};
use earmark_policy::Policy;

/// The maximum length of all cached documents together: 64 of the longest. A compiled policy takes a few times its text.
const CACHED_BYTES_MAX: usize = 16 << 20;

/// A compiled policy with its revision.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) revision: u64,
    pub(crate) policy: Policy,
    bytes: usize,
    /// The tick of its last use.
    used: AtomicU64,
}

/// The compiled policies that calls used last. A revision is one of the whole Book, so it names its namespace too.
#[derive(Debug, Default)]
pub(crate) struct PolicyCache {
    by_revision: RwLock<HashMap<u64, Arc<Compiled>>>,
    tick: AtomicU64,
    /// One policy is compiled at a time, so that the calls after a change do not all compile it.
    compiling: tokio::sync::Mutex<()>,
}

impl PolicyCache {
    /// The newest policy that this process has applied. `None` if the namespace has none.
    pub(crate) async fn newest(
        &self,
        backend: &Arc<dyn Backend>,
        namespace: &NamespaceName,
    ) -> Result<Option<Arc<Compiled>>, BackendError> {
        match backend.applied_policy(namespace, None) {
            Some(found) => self.compiled(namespace, found).await.map(Some),
            None => Ok(None),
        }
    }

    /// The policy with this revision. `None` if it is no longer kept.
    pub(crate) async fn kept(
        &self,
        backend: &Arc<dyn Backend>,
        namespace: &NamespaceName,
        revision: u64,
    ) -> Result<Option<Arc<Compiled>>, BackendError> {
        let applied = || backend.applied_policy(namespace, Some(revision)).filter(|found| found.revision == revision);
        let found = match applied() {
            Some(found) => Some(found),
            // Another node may have applied it already. A linearizable read waits until this one has too.
            None => backend.policy(namespace.clone()).await?.and_then(|_| applied()),
        };
        match found {
            Some(found) => self.compiled(namespace, found).await.map(Some),
            None => Ok(None),
        }
    }

    async fn compiled(&self, namespace: &NamespaceName, found: PolicyRevision) -> Result<Arc<Compiled>, BackendError> {
        if let Some(cached) = self.get(found.revision) {
            return Ok(cached);
        }
        let _turn = self.compiling.lock().await;
        if let Some(cached) = self.get(found.revision) {
            return Ok(cached);
        }
        let PolicyRevision { revision, text } = found;
        let (namespace, bytes) = (namespace.clone(), text.len());
        // Hundreds of conditions take long enough to keep others waiting.
        let parsed = tokio::task::spawn_blocking(move || Policy::parse(&namespace, &text)).await;
        let failed = |error: String| BackendError::Failed(format!("policy revision {revision}: {error}"));
        let policy =
            parsed.map_err(|error| failed(error.to_string()))?.map_err(|mistake| failed(mistake.to_string()))?;
        let compiled = Arc::new(Compiled { revision, policy, bytes, used: AtomicU64::new(0) });
        self.insert(Arc::clone(&compiled));
        Ok(compiled)
    }

    fn get(&self, revision: u64) -> Option<Arc<Compiled>> {
        let cached = self.by_revision.read().unwrap_or_else(PoisonError::into_inner).get(&revision).map(Arc::clone)?;
        cached.used.store(self.tick.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        Some(cached)
    }

    fn insert(&self, compiled: Arc<Compiled>) {
        compiled.used.store(self.tick.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        let mut cached = self.by_revision.write().unwrap_or_else(PoisonError::into_inner);
        let mut bytes: usize = cached.values().map(|cached| cached.bytes).sum::<usize>() + compiled.bytes;
        while bytes > CACHED_BYTES_MAX
            && let Some((revision, oldest)) =
                cached.iter().min_by_key(|(_, cached)| cached.used.load(Ordering::Relaxed))
        {
            bytes -= oldest.bytes;
            let revision = *revision;
            cached.remove(&revision);
        }
        cached.insert(compiled.revision, compiled);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cached(cache: &PolicyCache) -> Vec<u64> {
        let mut revisions: Vec<u64> = cache.by_revision.read().unwrap().keys().copied().collect();
        revisions.sort_unstable();
        revisions
    }

    #[tokio::test]
    async fn the_cache_is_bounded_and_keeps_what_was_used_last() {
        let cache = PolicyCache::default();
        let namespace = "team".parse().unwrap();
        let text: Arc<str> = format!("#{}", "x".repeat(earmark_core::POLICY_BYTES_MAX - 1)).into();
        let of = |revision| PolicyRevision { revision, text: text.clone() };
        let most = (CACHED_BYTES_MAX / text.len()) as u64;
        for revision in 1..=most {
            cache.compiled(&namespace, of(revision)).await.unwrap();
        }
        assert_eq!(cached(&cache).len() as u64, most);
        cache.compiled(&namespace, of(1)).await.unwrap();
        cache.compiled(&namespace, of(most + 1)).await.unwrap();
        assert_eq!(cached(&cache).len() as u64, most);
        assert_eq!(cached(&cache)[..2], [1, 3], "the second was used least recently");
    }
}
