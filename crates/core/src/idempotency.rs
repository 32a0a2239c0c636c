//! Idempotency keys: a write with a key is applied once.
//!
//! A hash of every used key stays for ever, so a repeated write is never applied again. The answers to the latest keys
//! are kept for a day, so that a repeat gets the original answer.

use std::collections::VecDeque;
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
/// operation, or three in two seconds for a day. Beyond it the oldest answer is dropped, and its key stays used.
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
    /// The answers to the last of the used keys, oldest first.
    pub(crate) answers: VecDeque<KeptAnswer>,
}

/// All used keys, with the table that looks them up.
pub(crate) struct IdempotencyKeys {
    pub(crate) state: UsedKeys,
    index: Index,
    /// The weight of all answers.
    weight: usize,
    /// The number of used keys by namespace.
    counts: Vec<u32>,
}

impl IdempotencyKeys {
    pub(crate) fn new(table_seed: u64) -> IdempotencyKeys {
        IdempotencyKeys {
            state: UsedKeys { used: Slab::default(), answers: VecDeque::new() },
            index: Index::new(table_seed),
            weight: 0,
            counts: Vec::new(),
        }
    }

    /// A copy for a snapshot.
    pub(crate) fn share(&mut self) -> UsedKeys {
        UsedKeys { used: self.state.used.share(), answers: self.state.answers.clone() }
    }

    /// The number of keys that a namespace has used.
    pub(crate) fn count_of(&self, namespace: NamespaceId) -> u64 {
        self.counts.get(usize::from(namespace.0)).copied().unwrap_or_default().into()
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
        match self.answer(now, number) {
            Some(kept) if kept.content == content && kept.result.actor == *actor => KeyVerdict::Committed(&kept.result),
            Some(_) => KeyVerdict::Reused,
            None => KeyVerdict::Forgotten,
        }
    }

    /// The answer to the key at a position, if it is still kept at `now`. The answers belong to the last keys.
    fn answer(&self, now: UnixMs, number: u32) -> Option<&KeptAnswer> {
        let first = (self.state.used.used() as usize).checked_sub(self.state.answers.len())?;
        let kept = self.state.answers.get((number as usize).checked_sub(first)?)?;
        (!kept.is_expired_answer(now)).then_some(kept)
    }

    /// Records that a new key was used.
    pub(crate) fn commit(&mut self, key: UsedKey, answer: KeptAnswer) {
        self.insert(key);
        self.push(answer);
        // A new answer weighs at most 257, so this drops at most as many.
        while self.weight > KEY_RESULTS_MAX && self.drop_oldest() {}
    }

    fn insert(&mut self, key: UsedKey) {
        let number = self.state.used.insert(key);
        self.index.insert(self.hash(key), Reference::record(number));
        let namespace = usize::from(key.namespace.0);
        if self.counts.len() <= namespace {
            self.counts.resize(namespace.saturating_add(1), 0);
        }
        self.counts[namespace] = self.counts[namespace].saturating_add(1);
    }

    fn push(&mut self, answer: KeptAnswer) {
        self.weight = self.weight.saturating_add(answer.weight());
        self.state.answers.push_back(answer);
    }

    fn drop_oldest(&mut self) -> bool {
        let Some(answer) = self.state.answers.pop_front() else { return false };
        self.weight = self.weight.saturating_sub(answer.weight());
        true
    }

    /// Whether an expired answer is still stored.
    pub(crate) fn is_due(&self, now: UnixMs) -> bool {
        self.state.answers.front().is_some_and(|answer| answer.is_expired_answer(now))
    }

    /// Deletes expired answers, at most [`FORGET_STEPS`].
    pub(crate) fn forget(&mut self, now: UnixMs) {
        for _ in 0..FORGET_STEPS {
            if !self.is_due(now) {
                return;
            }
            self.drop_oldest();
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

    /// Restores an answer from a snapshot. Returns false if it belongs to no key, is out of order or one too many.
    pub(crate) fn restore_answer(&mut self, answer: KeptAnswer) -> bool {
        let newest = self.state.answers.back().map_or(UnixMs::default(), |last| last.at);
        let is_of_key = self.state.answers.len() < self.state.used.used() as usize;
        let has_room = self.weight.saturating_add(answer.weight()) <= KEY_RESULTS_MAX;
        let is_right = is_of_key && has_room && newest <= answer.at;
        if is_right {
            self.push(answer);
        }
        is_right
    }
}

#[cfg(test)]
mod tests;
