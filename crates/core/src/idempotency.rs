//! Idempotency keys: a write with a key is applied once.
//!
//! A hash of every used key stays for ever, so a repeated write is never applied again. The answers to the latest keys
//! are kept for a day, so that a repeat gets the original answer. Their memory is bounded and shared fairly: a busy
//! namespace pushes out its own answers only.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::book::{NamespaceId, Receipt};
use crate::id::{Actor, LeaseId};
use crate::limits::index::{Found, Hash, Index, Reference};
use crate::limits::slab::{NONE, Record, Slab};
use crate::sequence::{ContentHash, Kept};
use crate::time::UnixMs;

/// Used keys of all namespaces: 2^24. A key takes about 32 bytes for ever, so all of them take 512 MiB.
pub const IDEMPOTENCY_KEYS_MAX: u32 = 1 << 24;
/// How long the answer to a key is kept: 24 hours of log time, in milliseconds.
pub const KEY_RESULTS_MS: u64 = 24 * 60 * 60 * 1_000;
/// Answers and results of operations that are kept: 2^18, which take at most 64 MiB. That is 131,072 writes with one
/// operation, or three in two seconds for a day. Beyond it the namespace with the most drops its oldest answer, whose key
/// stays used. So a namespace keeps its answers for the whole day while it has less than an equal share.
pub const KEY_RESULTS_MAX: usize = 1 << 18;
/// Expired answers deleted per command. One command adds at most one, so the queue shrinks.
const FORGET_STEPS: usize = 4;

/// A hash of a key and the vault of its scope: half of a SHA-256 digest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KeyHash(pub(crate) [u8; 16]);

/// A key that was used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UsedKey {
    pub(crate) namespace: NamespaceId,
    pub(crate) hash: KeyHash,
}

/// Used keys are never removed, so they need no link.
impl Record for UsedKey {
    fn link(&self) -> u32 {
        NONE
    }
    fn set_link(&mut self, _: u32) {}
}

/// The answer to a key.
pub(crate) type KeptAnswer = Kept<Arc<Receipt>>;

impl KeptAnswer {
    /// Its share of [`KEY_RESULTS_MAX`].
    fn weight(&self) -> usize {
        self.result.results.len().saturating_add(1)
    }

    pub(crate) fn is_expired_answer(&self, now: UnixMs) -> bool {
        self.at.plus_ms(KEY_RESULTS_MS) <= now
    }
}

/// The decision about a key.
#[derive(Debug)]
pub(crate) enum KeyVerdict<'a> {
    /// Used before, with this answer.
    Committed(&'a Arc<Receipt>),
    /// Used before, with other content or by another actor.
    Reused,
    /// Used before, and the answer is no longer kept.
    Forgotten,
    /// New, and the maximum number of keys is reached.
    TooMany,
    /// New: apply the transaction, then call [`IdempotencyKeys::commit`].
    New,
}

/// The replicated state, in tables that a snapshot can share.
pub(crate) struct UsedKeys {
    /// In the order in which they were used.
    pub(crate) used: Slab<UsedKey>,
    /// The kept answers by the position of their key, oldest first.
    pub(crate) answers: BTreeMap<u32, KeptAnswer>,
}

/// The keys of a namespace.
#[derive(Clone, Debug, Default)]
struct KeysOf {
    /// The number of used keys.
    count: u32,
    /// The weight of its answers.
    weight: usize,
    /// The positions of its answers, oldest first.
    answers: VecDeque<u32>,
}

/// All used keys, with the table that looks them up.
pub(crate) struct IdempotencyKeys {
    pub(crate) state: UsedKeys,
    index: Index,
    /// The weight of all answers.
    weight: usize,
    /// By the id of the namespace.
    namespaces: Vec<KeysOf>,
    /// The namespaces with answers, by the weight of these.
    by_weight: BTreeSet<(usize, NamespaceId)>,
}

impl IdempotencyKeys {
    pub(crate) fn new(table_seed: u64) -> IdempotencyKeys {
        IdempotencyKeys {
            state: UsedKeys { used: Slab::default(), answers: BTreeMap::new() },
            index: Index::new(table_seed),
            weight: 0,
            namespaces: Vec::new(),
            by_weight: BTreeSet::new(),
        }
    }

    /// A copy for a snapshot.
    pub(crate) fn share(&mut self) -> UsedKeys {
        UsedKeys { used: self.state.used.share(), answers: self.state.answers.clone() }
    }

    /// The number of keys that a namespace has used.
    pub(crate) fn count_of(&self, namespace: NamespaceId) -> u64 {
        self.namespaces.get(usize::from(namespace.0)).map_or(0, |keys| keys.count.into())
    }

    fn hash(&self, key: UsedKey) -> Hash {
        self.index.hash(key.namespace, LeaseId::from_u128(u128::from_le_bytes(key.hash.0)))
    }

    /// The position of a key in the order of use.
    fn find(&self, key: UsedKey) -> Option<u32> {
        let is_meant = |reference: Reference| match reference.found() {
            Found::Record(number) => {
                let used = self.state.used.get(number);
                used.namespace == key.namespace && used.hash == key.hash
            }
            Found::Tombstone(_) => false,
        };
        match self.index.find(self.hash(key), is_meant)?.1.found() {
            Found::Record(number) => Some(number),
            Found::Tombstone(_) => None,
        }
    }

    /// Decides about a transaction with this key, content and actor. `quota` is the number of keys that its namespace
    /// may use.
    pub(crate) fn judge(
        &self,
        now: UnixMs,
        key: UsedKey,
        (content, actor): (ContentHash, &Actor),
        quota: u64,
    ) -> KeyVerdict<'_> {
        let Some(number) = self.find(key) else {
            let is_full = self.state.used.used() >= IDEMPOTENCY_KEYS_MAX || self.count_of(key.namespace) >= quota;
            return if is_full { KeyVerdict::TooMany } else { KeyVerdict::New };
        };
        match self.state.answers.get(&number).filter(|kept| !kept.is_expired_answer(now)) {
            Some(kept) if kept.content == content && kept.result.actor == *actor => KeyVerdict::Committed(&kept.result),
            Some(_) => KeyVerdict::Reused,
            None => KeyVerdict::Forgotten,
        }
    }

    /// Records that a new key was used.
    pub(crate) fn commit(&mut self, key: UsedKey, answer: KeptAnswer) {
        let number = self.insert(key);
        self.push(key.namespace, number, answer);
        // A new answer weighs at most 257, so this drops at most as many.
        while self.weight > KEY_RESULTS_MAX {
            let Some(&(_, heaviest)) = self.by_weight.last() else { return };
            self.drop_oldest_of(heaviest);
        }
    }

    fn insert(&mut self, key: UsedKey) -> u32 {
        let number = self.state.used.insert(key);
        self.index.insert(self.hash(key), Reference::record(number));
        let namespace = usize::from(key.namespace.0);
        if self.namespaces.len() <= namespace {
            self.namespaces.resize_with(namespace.saturating_add(1), KeysOf::default);
        }
        let keys = &mut self.namespaces[namespace];
        keys.count = keys.count.saturating_add(1);
        number
    }

    fn push(&mut self, namespace: NamespaceId, number: u32, answer: KeptAnswer) {
        let weight = answer.weight();
        if let Some(keys) = self.namespaces.get_mut(usize::from(namespace.0)) {
            keys.answers.push_back(number);
            self.by_weight.remove(&(keys.weight, namespace));
            keys.weight = keys.weight.saturating_add(weight);
            self.by_weight.insert((keys.weight, namespace));
        }
        self.weight = self.weight.saturating_add(weight);
        self.state.answers.insert(number, answer);
    }

    /// Drops the oldest answer of a namespace.
    fn drop_oldest_of(&mut self, namespace: NamespaceId) {
        let Some(keys) = self.namespaces.get_mut(usize::from(namespace.0)) else { return };
        self.by_weight.remove(&(keys.weight, namespace));
        let dropped = keys.answers.pop_front().and_then(|number| self.state.answers.remove(&number));
        let weight = dropped.map_or(0, |answer| answer.weight());
        self.weight = self.weight.saturating_sub(weight);
        keys.weight = keys.weight.saturating_sub(weight);
        if !keys.answers.is_empty() {
            self.by_weight.insert((keys.weight, namespace));
        }
    }

    /// Whether an expired answer is still stored.
    pub(crate) fn is_due(&self, now: UnixMs) -> bool {
        self.state.answers.first_key_value().is_some_and(|(_, answer)| answer.is_expired_answer(now))
    }

    /// Deletes expired answers, at most [`FORGET_STEPS`].
    pub(crate) fn forget(&mut self, now: UnixMs) {
        for _ in 0..FORGET_STEPS {
            let oldest = self.state.answers.first_key_value();
            let Some((&number, _)) = oldest.filter(|(_, answer)| answer.is_expired_answer(now)) else { return };
            // The oldest answer of all is the oldest of its namespace.
            self.drop_oldest_of(self.state.used.get(number).namespace);
        }
    }

    /// Restores a used key from a snapshot. Returns false if it is a duplicate or one too many.
    pub(crate) fn restore(&mut self, key: UsedKey) -> bool {
        let is_new = self.state.used.used() < IDEMPOTENCY_KEYS_MAX && self.find(key).is_none();
        if is_new {
            self.insert(key);
        }
        is_new
    }

    /// Restores the answer to the key at a position from a snapshot. Returns false if it belongs to no key, is out of
    /// order or one too many.
    pub(crate) fn restore_answer(&mut self, number: u32, answer: KeptAnswer) -> bool {
        let last = self.state.answers.last_key_value();
        let is_next = last.is_none_or(|(last, newest)| *last < number && newest.at <= answer.at);
        let is_of_key = number < self.state.used.used();
        let has_room = self.weight.saturating_add(answer.weight()) <= KEY_RESULTS_MAX;
        let is_right = is_next && is_of_key && has_room;
        if is_right {
            self.push(self.state.used.get(number).namespace, number, answer);
        }
        is_right
    }
}

#[cfg(test)]
mod tests;
