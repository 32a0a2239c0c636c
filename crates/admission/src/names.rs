//! A cache of the ids that the Book gave to namespaces and limits.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use earmark_core::{Book, LimitId, LimitKey, LimitRef, NamespaceId, NamespaceName};

use crate::book_request::NamesLimits;

/// Limits whose ids are cached, in all namespaces. Others travel by key, which costs the Book a lookup.
const LIMITS_MAX: usize = 1 << 16;
/// Requests with an uncached key for one lookup of ids. A lookup waits for the Book, and most keys may have no id to
/// cache.
const LEARN_EVERY: u64 = 64;

/// Ids by name. The id of a deleted limit is stale: the Book refuses it, and it is forgotten here. A name without a
/// cached id goes to the Book as it is.
#[derive(Default)]
pub(crate) struct Names {
    namespaces: RwLock<HashMap<NamespaceName, Namespace, NameHash>>,
    /// Requests with an uncached key so far.
    misses: AtomicU64,
}

/// A namespace and the limits of it that were looked up.
struct Namespace {
    id: NamespaceId,
    limits: HashMap<LimitKey, LimitId, NameHash>,
}

/// Hashes names, with a random seed for each table. Every reserve hashes all its keys, and the hasher of the standard
/// library takes five times the instructions.
#[derive(Clone, Debug)]
pub struct NameHash(u64);

impl Default for NameHash {
    fn default() -> NameHash {
        NameHash(RandomState::new().hash_one(0))
    }
}

impl BuildHasher for NameHash {
    type Hasher = NameHasher;

    fn build_hasher(&self) -> NameHasher {
        NameHasher(self.0)
    }
}

/// The state of a hash; see [`NameHash`].
#[derive(Clone, Debug)]
pub struct NameHasher(u64);

impl NameHasher {
    /// Multiplies to 128 bits and folds the halves, so that every bit of a word affects every bit of the hash.
    fn mix(&mut self, word: u64) {
        // The fraction of the golden ratio, an odd number without a pattern.
        const FACTOR: u128 = 0x9e37_79b9_7f4a_7c15;
        let product = u128::from(self.0 ^ word).wrapping_mul(FACTOR);
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}

impl Hasher for NameHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.mix(u64::from_le_bytes(*word)));
        let last = rest.iter().fold(bytes.len() as u64, |last, byte| (last << 8) | u64::from(*byte));
        self.mix(last);
    }

    /// The end of a text. Its length is already mixed in.
    fn write_u8(&mut self, _: u8) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Names {
    /// The id of a namespace.
    pub(crate) fn namespace(&self, name: &NamespaceName) -> Option<NamespaceId> {
        if name.is_default() {
            return Some(NamespaceId::DEFAULT);
        }
        let names = self.namespaces.read().unwrap_or_else(PoisonError::into_inner);
        names.get(name).map(|namespace| namespace.id)
    }

    /// Calls `resolve` with a function that turns a key into a reference for the Book.
    pub(crate) fn with<T>(
        &self,
        namespace: &NamespaceName,
        resolve: impl FnOnce(&dyn Fn(&LimitKey) -> LimitRef) -> T,
    ) -> T {
        let names = self.namespaces.read().unwrap_or_else(PoisonError::into_inner);
        let limits = |namespace: &NamespaceName| names.get(namespace).map(|namespace| &namespace.limits);
        let own = limits(namespace);
        resolve(&|key| {
            let id = match key.foreign() {
                None => own.and_then(|limits| limits.get(key)),
                Some((namespace, key)) => limits(&namespace).and_then(|limits| limits.get(&key)),
            };
            id.map_or_else(|| LimitRef::from(key.clone()), |id| LimitRef::Id(*id))
        })
    }

    /// Whether a request with an uncached key looks ids up: the first, and one of many after it.
    pub(crate) fn may_learn(&self) -> bool {
        self.misses.fetch_add(1, Ordering::Relaxed).is_multiple_of(LEARN_EVERY)
    }

    /// Caches the id of a limit, if there is room.
    pub(crate) fn learn(&self, book: &Book, namespace: &NamespaceName, key: &LimitKey) {
        let foreign = key.foreign();
        let (namespace, key) = foreign.as_ref().map_or((namespace, key), |(namespace, key)| (namespace, key));
        let Some(id) = book.namespace(namespace) else { return };
        let mut names = self.namespaces.write().unwrap_or_else(PoisonError::into_inner);
        let cached: usize = names.values().map(|namespace| namespace.limits.len()).sum();
        let entry = names.entry(namespace.clone()).or_insert_with(|| Namespace { id, limits: HashMap::default() });
        // Derived limits are without number and travel by key.
        match book.resolve(id, key).filter(|limit| !book.is_derived(*limit)) {
            Some(limit) if cached < LIMITS_MAX => _ = entry.limits.insert(key.clone(), limit),
            Some(_) => {}
            None => _ = entry.limits.remove(key),
        }
    }

    /// Forgets the ids of a request that the Book refused as stale.
    pub(crate) fn forget(&self, request: &impl NamesLimits) {
        let (Some(id), amounts) = request.names() else { return };
        let mut names = self.namespaces.write().unwrap_or_else(PoisonError::into_inner);
        for amount in amounts {
            match amount.key.foreign() {
                Some((namespace, key)) => {
                    names.get_mut(&namespace).and_then(|namespace| namespace.limits.remove(&key));
                }
                None => {
                    let own = names.values_mut().find(|namespace| namespace.id == id);
                    own.and_then(|namespace| namespace.limits.remove(&amount.key));
                }
            }
        }
    }
}
