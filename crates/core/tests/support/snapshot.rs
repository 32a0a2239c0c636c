//! Snapshot helpers.

use earmark_core::{Book, Restore, SnapshotError};

pub fn snapshot(book: &mut Book) -> Vec<u8> {
    let frozen = book.freeze();
    let mut bytes = Vec::new();
    for block in frozen.encode() {
        bytes.extend_from_slice(&block);
    }
    bytes
}

/// Restores a Book from a snapshot fed in pieces of this size.
pub fn restore(bytes: &[u8], piece: usize, table_seed: u64) -> Result<Book, SnapshotError> {
    let mut restore = Restore::new(table_seed);
    for piece in bytes.chunks(piece) {
        restore.feed(piece)?;
    }
    restore.finish()
}

/// The Book as its own snapshot restores it.
pub fn restored(book: &mut Book) -> Book {
    restore(&snapshot(book), 1_000, 9).unwrap()
}
