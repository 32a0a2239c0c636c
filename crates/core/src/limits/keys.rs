//! The keys of limits: their texts, a hash table from key to limit, and their order.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::ops::Bound;
use std::sync::Arc;

use super::index::{Found, Hash, Index, Reference};
use super::slab::{NONE, Record, Slab};
use super::{Limit, LimitSlot, Limits, State, TemplateId, Text};
use crate::book::NamespaceId;
use crate::id::LimitKey;

/// Bytes of a key in one record, so that a record takes 32 bytes.
const PIECE_BYTES: usize = 27;
/// Slots in one chunk of the order. Inserting moves at most 2 KiB.
const CHUNK_MAX: usize = 512;
/// Slots in a chunk that is filled in order. The rest is room for later keys.
const CHUNK_FILLED: usize = CHUNK_MAX - CHUNK_MAX / 8;
/// Limits that a restore sorts at once. Their keys are copied meanwhile, which takes about 64 MiB.
const RUN_MAX: usize = 1 << 20;

/// A piece of the key of a derived limit.
#[derive(Clone, Copy)]
pub(crate) struct KeyPiece {
    text: [u8; PIECE_BYTES],
    len: u8,
    next: u32,
}

impl Default for KeyPiece {
    fn default() -> KeyPiece {
        KeyPiece { text: [0; PIECE_BYTES], len: 0, next: NONE }
    }
}

impl Record for KeyPiece {
    fn link(&self) -> u32 {
        self.next
    }
    fn set_link(&mut self, link: u32) {
        self.next = link;
    }
}

impl KeyPiece {
    fn bytes(&self) -> &[u8] {
        &self.text[..usize::from(self.len)]
    }
}

/// The text of a defined limit.
#[derive(Clone, Default)]
pub(crate) struct TextRecord {
    text: Option<Arc<Text>>,
    next: u32,
}

impl Record for TextRecord {
    fn link(&self) -> u32 {
        self.next
    }
    fn set_link(&mut self, link: u32) {
        (self.text, self.next) = (None, link);
    }
}

/// The texts of defined limits and the keys of derived ones. A snapshot shares them.
#[derive(Default)]
pub(crate) struct Texts {
    defined: Slab<TextRecord>,
    derived: Slab<KeyPiece>,
}

impl Texts {
    pub(crate) fn add_defined(&mut self, text: Arc<Text>) -> u32 {
        self.defined.insert(TextRecord { text: Some(text), next: NONE })
    }

    pub(crate) fn add_derived(&mut self, key: &LimitKey) -> u32 {
        let mut next = NONE;
        for piece in key.as_str().as_bytes().chunks(PIECE_BYTES).rev() {
            let mut record = KeyPiece { len: piece.len() as u8, next, ..KeyPiece::default() };
            record.text[..piece.len()].copy_from_slice(piece);
            next = self.derived.insert(record);
        }
        next
    }

    fn remove_derived(&mut self, first: u32) {
        let mut piece = first;
        while piece != NONE {
            let next = self.derived.get(piece).next;
            self.derived.remove(piece);
            piece = next;
        }
    }

    fn pieces(&self, first: u32) -> impl Iterator<Item = &[u8]> {
        let mut piece = first;
        std::iter::from_fn(move || {
            let record = (piece != NONE).then(|| self.derived.get(piece))?;
            piece = record.next;
            Some(record.bytes())
        })
    }

    fn compare_derived(&self, first: u32, key: &[u8]) -> Ordering {
        let mut rest = key;
        for piece in self.pieces(first) {
            let (head, tail) = rest.split_at(rest.len().min(piece.len()));
            match piece.cmp(head) {
                Ordering::Equal => rest = tail,
                other => return other,
            }
        }
        if rest.is_empty() { Ordering::Equal } else { Ordering::Less }
    }

    /// A copy for a snapshot.
    pub(crate) fn share(&mut self) -> Texts {
        Texts { defined: self.defined.share(), derived: self.derived.share() }
    }
}

impl State {
    /// The text of a defined limit; `None` for a derived one.
    pub(crate) fn text(&self, slot: LimitSlot) -> Option<&Arc<Text>> {
        self.text_of(self.limits.get(slot)?)
    }

    /// The text of a defined limit; `None` for a derived one.
    pub(crate) fn text_of(&self, limit: &Limit) -> Option<&Arc<Text>> {
        let is_defined = limit.template().is_none();
        if is_defined { self.texts.defined.get(limit.text).text.as_ref() } else { None }
    }

    pub(crate) fn set_text(&mut self, slot: LimitSlot, text: Arc<Text>) {
        if let Some(limit) = self.limits.get(slot).filter(|limit| limit.template().is_none()) {
            self.texts.defined.get_mut(limit.text).text = Some(text);
        }
    }

    /// The key of a limit, live or deleted.
    pub(crate) fn key(&self, slot: LimitSlot) -> Option<LimitKey> {
        let limit = self.limits.get(slot)?;
        if let Some(text) = self.text(slot) {
            return Some(text.key.clone());
        }
        let bytes: Vec<u8> = self.texts.pieces(limit.text).flatten().copied().collect();
        LimitKey::new(std::str::from_utf8(&bytes).ok()?).ok()
    }

    /// The bytes of the key of a limit.
    fn key_bytes(&self, slot: u32) -> Box<[u8]> {
        match self.text(LimitSlot(slot)) {
            Some(text) => text.key.as_str().as_bytes().into(),
            None => self.texts.pieces(self.limits[LimitSlot(slot)].text).flatten().copied().collect(),
        }
    }

    /// Reads the key of a derived limit ahead.
    pub(crate) fn peek_key(&self, slot: LimitSlot) -> u64 {
        let limit = &self.limits[slot];
        limit.template().map_or(0, |_| self.texts.derived.get(limit.text).len.into())
    }

    /// Compares the key of a limit with `key`.
    pub(crate) fn compare_key(&self, slot: LimitSlot, key: &str) -> Ordering {
        match self.text(slot) {
            Some(text) => text.key.as_str().cmp(key),
            None => self.texts.compare_derived(self.limits[slot].text, key.as_bytes()),
        }
    }

    /// Turns a limit into a derived one of this template, or into a defined one with this text. Its key stays.
    pub(crate) fn retext(&mut self, slot: LimitSlot, template: TemplateId, text: Option<Arc<Text>>) {
        let Some(key) = self.key(slot) else { return };
        self.remove_text(slot);
        let text = match text {
            Some(text) => self.texts.add_defined(text),
            None => self.texts.add_derived(&key),
        };
        let limit = &mut self.limits[slot];
        (limit.template, limit.text) = (template, text);
    }

    /// Removes the text of a limit that is freed.
    pub(crate) fn remove_text(&mut self, slot: LimitSlot) {
        let limit = self.limits[slot];
        match limit.template() {
            None => self.texts.defined.remove(limit.text),
            Some(_) => self.texts.remove_derived(limit.text),
        }
    }
}

/// Finds limits by key, and lists them in key order. It follows from the state and is not part of a snapshot.
pub(crate) struct KeyIndex {
    index: Index,
    /// All limits, by namespace.
    orders: Vec<Order>,
    /// The defined limits, by namespace, so that reading them does not read the derived ones.
    defined: Vec<Order>,
    /// Whether a snapshot is being restored. Its limits are put in order at the end.
    is_restoring: bool,
}

/// The limits that a list has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listed {
    All,
    Defined,
}

/// The limits of one namespace in key order, in chunks. No chunk is empty.
#[derive(Default)]
struct Order {
    chunks: Vec<OrderChunk>,
    len: u64,
    /// Restored limits that are not in order yet.
    unordered: Vec<u32>,
}

/// Slots in key order.
struct OrderChunk {
    /// No key of this chunk is before this one, except in the first chunk. Finding a chunk therefore reads no limit.
    first: Box<str>,
    slots: Vec<u32>,
}

impl Limits {
    /// Turns a limit into a derived one of this template, or into a defined one with this text. Its key stays.
    pub(super) fn retext(&mut self, slot: LimitSlot, template: TemplateId, text: Option<Arc<Text>>) {
        let Some(key) = self.state.key(slot) else { return };
        self.keys.remove_defined(&self.state, slot, key.as_str());
        self.state.retext(slot, template, text);
        self.keys.insert_defined(&self.state, slot, key.as_str());
    }

    /// Puts restored limits in the order of their keys.
    pub(crate) fn end_restore(&mut self) {
        self.keys.end_restore(&self.state);
    }

    /// Restores limits from now on. Call [`Limits::end_restore`] before they are listed.
    pub(crate) fn begin_restore(&mut self) {
        self.keys.begin_restore();
    }
}

impl KeyIndex {
    pub(crate) fn new(seed: u64) -> KeyIndex {
        KeyIndex { index: Index::new(seed), orders: Vec::new(), defined: Vec::new(), is_restoring: false }
    }

    pub(crate) fn add_namespace(&mut self) {
        self.orders.push(Order::default());
        self.defined.push(Order::default());
    }

    /// Begins to restore a snapshot. Nothing is listed until [`KeyIndex::end_restore`].
    pub(crate) fn begin_restore(&mut self) {
        self.is_restoring = true;
    }

    /// Puts the restored limits in order, which is much faster than one by one.
    pub(crate) fn end_restore(&mut self, state: &State) {
        self.is_restoring = false;
        self.orders.iter_mut().chain(&mut self.defined).for_each(|order| order.fill(state));
    }

    fn hash(&self, namespace: NamespaceId, key: &str) -> Hash {
        self.index.hash_name(namespace.0.into(), key)
    }

    pub(crate) fn find(&self, state: &State, namespace: NamespaceId, key: &str) -> Option<LimitSlot> {
        let is_meant = |reference: Reference| match reference.found() {
            Found::Record(slot) => {
                let slot = LimitSlot(slot);
                state.limits[slot].namespace == namespace && state.compare_key(slot, key) == Ordering::Equal
            }
            Found::Tombstone(_) => false,
        };
        match self.index.find(self.hash(namespace, key), is_meant)?.1.found() {
            Found::Record(slot) => Some(LimitSlot(slot)),
            Found::Tombstone(_) => None,
        }
    }

    /// The limit that a key probably names, unchecked, to read it ahead.
    pub(crate) fn peek(&self, namespace: NamespaceId, key: &str) -> Option<LimitSlot> {
        match self.index.peek(self.hash(namespace, key))?.found() {
            Found::Record(slot) => Some(LimitSlot(slot)),
            Found::Tombstone(_) => None,
        }
    }

    /// Adds a limit whose text is in the state.
    pub(crate) fn insert(&mut self, state: &State, slot: LimitSlot, key: &str) {
        let namespace = state.limits[slot].namespace;
        self.index.insert(self.hash(namespace, key), Reference::record(slot.0));
        let is_restoring = self.is_restoring;
        if let Some(order) = self.orders.get_mut(usize::from(namespace.0)) {
            order.add(state, slot, key, is_restoring);
        }
        self.insert_defined(state, slot, key);
    }

    /// Lists a limit among the defined ones, if it is one.
    pub(crate) fn insert_defined(&mut self, state: &State, slot: LimitSlot, key: &str) {
        let Some(limit) = state.limits.get(slot).filter(|limit| limit.template().is_none()) else { return };
        if let Some(order) = self.defined.get_mut(usize::from(limit.namespace.0)) {
            order.add(state, slot, key, self.is_restoring);
        }
    }

    /// Takes a defined limit off the list of defined ones.
    pub(crate) fn remove_defined(&mut self, state: &State, slot: LimitSlot, key: &str) {
        let Some(limit) = state.limits.get(slot).filter(|limit| limit.template().is_none()) else { return };
        if let Some(order) = self.defined.get_mut(usize::from(limit.namespace.0)) {
            order.remove(state, key);
        }
    }

    /// Removes a limit whose text is still in the state.
    pub(crate) fn remove(&mut self, state: &State, slot: LimitSlot, key: &str) {
        let namespace = state.limits[slot].namespace;
        let hash = self.hash(namespace, key);
        if let Some((position, _)) = self.index.find(hash, |found| found == Reference::record(slot.0)) {
            self.index.remove(position);
        }
        if let Some(order) = self.orders.get_mut(usize::from(namespace.0)) {
            order.remove(state, key);
        }
        self.remove_defined(state, slot, key);
    }

    /// The number of limits of a namespace.
    pub(crate) fn len(&self, namespace: NamespaceId) -> u64 {
        self.orders.get(usize::from(namespace.0)).map_or(0, |order| order.len)
    }

    /// The limits of a namespace from a key on, in key order.
    pub(crate) fn range<'a>(
        &'a self,
        state: &State,
        namespace: NamespaceId,
        listed: Listed,
        start: Bound<&str>,
    ) -> impl Iterator<Item = LimitSlot> + use<'a> {
        let orders = match listed {
            Listed::All => &self.orders,
            Listed::Defined => &self.defined,
        };
        let order = orders.get(usize::from(namespace.0));
        order.map(|order| order.from(state, start)).into_iter().flatten()
    }
}

impl Order {
    /// The chunk and the position of the first key for which `is_before` does not hold.
    fn position(&self, state: &State, is_before: impl Fn(Ordering) -> bool, key: &str) -> (usize, usize) {
        let before = |slot: &u32| is_before(state.compare_key(LimitSlot(*slot), key));
        let chunk = self.chunks.partition_point(|chunk| *chunk.first <= *key).saturating_sub(1);
        let position = self.chunks.get(chunk).map_or(0, |chunk| chunk.slots.partition_point(before));
        (chunk, position)
    }

    fn add(&mut self, state: &State, slot: LimitSlot, key: &str, is_restoring: bool) {
        self.len = self.len.saturating_add(1);
        if is_restoring {
            self.unordered.push(slot.0);
        } else {
            self.insert(state, slot, key);
        }
    }

    /// Puts the restored limits in order: sorts runs of them, and merges the runs.
    fn fill(&mut self, state: &State) {
        let unordered = std::mem::take(&mut self.unordered);
        let sorted = |run: &[u32]| {
            let mut run: Vec<(Box<[u8]>, u32)> = run.iter().map(|slot| (state.key_bytes(*slot), *slot)).collect();
            run.sort_unstable();
            run.into_iter().map(|(_, slot)| slot).collect::<Vec<u32>>().into_iter()
        };
        let mut runs: Vec<_> = unordered.chunks(RUN_MAX).map(sorted).collect();
        let mut heads = BinaryHeap::new();
        let mut take = |run: usize| {
            let slot = runs.get_mut(run)?.next()?;
            Some(Reverse((state.key_bytes(slot), slot, run)))
        };
        heads.extend((0..unordered.len().div_ceil(RUN_MAX)).filter_map(&mut take));
        while let Some(Reverse((key, slot, run))) = heads.pop() {
            heads.extend(take(run));
            match self.chunks.last_mut().filter(|chunk| chunk.slots.len() < CHUNK_FILLED) {
                Some(chunk) => chunk.slots.push(slot),
                None => {
                    let mut slots = Vec::with_capacity(CHUNK_FILLED);
                    slots.push(slot);
                    self.chunks.push(OrderChunk { first: String::from_utf8_lossy(&key).into(), slots });
                }
            }
        }
    }

    fn insert(&mut self, state: &State, slot: LimitSlot, key: &str) {
        let (chunk, position) = self.position(state, Ordering::is_lt, key);
        let Some(found) = self.chunks.get_mut(chunk).map(|chunk| &mut chunk.slots) else {
            return self.chunks.push(OrderChunk { first: key.into(), slots: vec![slot.0] });
        };
        found.insert(position, slot.0);
        if found.len() > CHUNK_MAX {
            // Keys often come in order, so the earlier part is left fuller.
            let middle = if position == CHUNK_MAX { CHUNK_FILLED } else { CHUNK_MAX / 2 };
            let rest = found.split_off(middle);
            found.shrink_to_fit();
            let first = rest.first().and_then(|slot| state.key(LimitSlot(*slot)));
            let first = first.map_or_else(|| key.into(), |key| key.as_str().into());
            self.chunks.insert(chunk.saturating_add(1), OrderChunk { first, slots: rest });
        }
    }

    fn remove(&mut self, state: &State, key: &str) {
        let (chunk, position) = self.position(state, Ordering::is_le, key);
        let Some(position) = position.checked_sub(1) else { return };
        let Some(found) = self.chunks.get_mut(chunk).map(|chunk| &mut chunk.slots) else { return };
        found.remove(position);
        self.len = self.len.saturating_sub(1);
        if found.is_empty() {
            self.chunks.remove(chunk);
            return;
        }
        if found.len() < found.capacity() / 4 {
            found.shrink_to(found.len().saturating_mul(2));
        }
        self.merge(chunk);
        if let Some(before) = chunk.checked_sub(1) {
            self.merge(before);
        }
    }

    /// Merges a chunk with the next one if both are small. Otherwise many limits that come and go would leave a chunk for
    /// each that stays.
    fn merge(&mut self, chunk: usize) {
        let next = chunk.saturating_add(1);
        let (Some(first), Some(second)) = (self.chunks.get(chunk), self.chunks.get(next)) else { return };
        if first.slots.len().saturating_add(second.slots.len()) <= CHUNK_MAX / 4 {
            let rest = self.chunks.remove(next).slots;
            self.chunks[chunk].slots.extend(rest);
        }
    }

    fn from(&self, state: &State, start: Bound<&str>) -> impl Iterator<Item = LimitSlot> + use<'_> {
        let (chunk, position) = match start {
            Bound::Included(key) => self.position(state, Ordering::is_lt, key),
            Bound::Excluded(key) => self.position(state, Ordering::is_le, key),
            Bound::Unbounded => (0, 0),
        };
        let (first, rest) = match self.chunks.get(chunk..) {
            Some([first, rest @ ..]) => (first.slots.get(position..).unwrap_or_default(), rest),
            Some([]) | None => (&[][..], &[][..]),
        };
        first.iter().chain(rest.iter().flat_map(|chunk| &chunk.slots)).map(|slot| LimitSlot(*slot))
    }
}

#[cfg(test)]
mod tests;
