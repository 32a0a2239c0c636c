//! The keys of limits: their texts, a hash table from key to limit, and their order.

use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

use super::index::{Found, Hash, Index, Reference};
use super::slab::{NONE, Record, Slab};
use super::{LimitSlot, State, TemplateId, Text};
use crate::book::NamespaceId;
use crate::id::LimitKey;

/// Bytes of a key in one record, so that a record takes 32 bytes.
const PIECE_BYTES: usize = 27;
/// Slots in one chunk of the order. Inserting moves at most 2 KiB.
const CHUNK_MAX: usize = 512;

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
        let limit = self.limits.get(slot).filter(|limit| limit.template().is_none())?;
        self.texts.defined.get(limit.text).text.as_ref()
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
    /// By namespace.
    orders: Vec<Order>,
}

/// The limits of one namespace in key order, in chunks. No chunk is empty.
#[derive(Default)]
struct Order {
    chunks: Vec<OrderChunk>,
    len: u64,
}

/// Slots in key order.
struct OrderChunk {
    /// No key of this chunk is before this one, except in the first chunk. Finding a chunk therefore reads no limit.
    first: Box<str>,
    slots: Vec<u32>,
}

impl KeyIndex {
    pub(crate) fn new(seed: u64) -> KeyIndex {
        KeyIndex { index: Index::new(seed), orders: Vec::new() }
    }

    pub(crate) fn add_namespace(&mut self) {
        self.orders.push(Order::default());
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
        if let Some(order) = self.orders.get_mut(usize::from(namespace.0)) {
            order.insert(state, slot, key);
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
        start: Bound<&str>,
    ) -> impl Iterator<Item = LimitSlot> + use<'a> {
        let order = self.orders.get(usize::from(namespace.0));
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

    fn insert(&mut self, state: &State, slot: LimitSlot, key: &str) {
        let (chunk, position) = self.position(state, Ordering::is_lt, key);
        self.len = self.len.saturating_add(1);
        let Some(found) = self.chunks.get_mut(chunk).map(|chunk| &mut chunk.slots) else {
            return self.chunks.push(OrderChunk { first: key.into(), slots: vec![slot.0] });
        };
        found.insert(position, slot.0);
        if found.len() > CHUNK_MAX {
            // Keys often come in order, so the earlier part is left fuller.
            let middle = if position == CHUNK_MAX { CHUNK_MAX - CHUNK_MAX / 8 } else { CHUNK_MAX / 2 };
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
        } else if found.len() < found.capacity() / 4 {
            found.shrink_to(found.len().saturating_mul(2));
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
