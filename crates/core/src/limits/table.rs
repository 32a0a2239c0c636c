//! An append-only table by limit id, in chunks, so that growing moves nothing.

use std::ops::{Index, IndexMut};

use crate::book::LimitId;

const CHUNK_BITS: u32 = 10;
const CHUNK_RECORDS: usize = 1 << CHUNK_BITS;

/// A growing list in chunks, so that it never moves its items. Nothing is removed.
#[derive(Clone)]
pub(crate) struct Table<T> {
    chunks: Vec<Vec<T>>,
    len: u32,
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table { chunks: Vec::new(), len: 0 }
    }
}

impl<T> Table<T> {
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn get(&self, id: LimitId) -> Option<&T> {
        self.chunks.get((id.0 >> CHUNK_BITS) as usize)?.get(id.0 as usize % CHUNK_RECORDS)
    }

    pub(crate) fn get_mut(&mut self, id: LimitId) -> Option<&mut T> {
        self.chunks.get_mut((id.0 >> CHUNK_BITS) as usize)?.get_mut(id.0 as usize % CHUNK_RECORDS)
    }

    /// Appends a record and returns its id.
    pub(crate) fn push(&mut self, record: T) -> LimitId {
        let id = LimitId(self.len);
        match self.chunks.last_mut() {
            Some(chunk) if chunk.len() < CHUNK_RECORDS => chunk.push(record),
            _ => {
                let mut chunk = Vec::with_capacity(CHUNK_RECORDS);
                chunk.push(record);
                self.chunks.push(chunk);
            }
        }
        self.len = self.len.saturating_add(1);
        id
    }

    /// Removes the last record.
    pub(crate) fn pop(&mut self) {
        if let Some(chunk) = self.chunks.last_mut() {
            chunk.pop();
            if chunk.is_empty() {
                self.chunks.pop();
            }
            self.len = self.len.saturating_sub(1);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flatten()
    }
}

/// For ids that are known to exist.
impl<T> Index<LimitId> for Table<T> {
    type Output = T;

    fn index(&self, id: LimitId) -> &T {
        &self.chunks[(id.0 >> CHUNK_BITS) as usize][id.0 as usize % CHUNK_RECORDS]
    }
}

impl<T> IndexMut<LimitId> for Table<T> {
    fn index_mut(&mut self, id: LimitId) -> &mut T {
        &mut self.chunks[(id.0 >> CHUNK_BITS) as usize][id.0 as usize % CHUNK_RECORDS]
    }
}
