//! The memory of all buffers together: request bodies, answers that are held back, and pieces that slow clients have not
//! taken.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The unit of the budget in bytes. A semaphore counts at most 2^29 permits on small machines.
const UNIT_BYTES: usize = 1 << 10;

/// The budget of all buffers.
#[derive(Clone)]
pub(crate) struct Buffers {
    free: Arc<Semaphore>,
    units_max: u32,
}

/// A share of the budget. It returns when it is dropped.
pub(crate) struct Share(OwnedSemaphorePermit);

impl Buffers {
    pub(crate) fn new(bytes_max: usize) -> Buffers {
        let units_max = units(bytes_max);
        Buffers { free: Arc::new(Semaphore::new(units_max as usize)), units_max }
    }

    /// A share of this many bytes. `None` if they are not free.
    pub(crate) fn try_take(&self, bytes: usize) -> Option<Share> {
        Arc::clone(&self.free).try_acquire_many_owned(units(bytes)).ok().map(Share)
    }

    /// Waits for a share of this many bytes, or of all if there are fewer.
    pub(crate) async fn take(&self, bytes: usize) -> Option<Share> {
        // The semaphore is never closed.
        Arc::clone(&self.free).acquire_many_owned(units(bytes).min(self.units_max)).await.ok().map(Share)
    }

    /// The bytes that are in use.
    pub(crate) fn used_bytes(&self) -> usize {
        (self.units_max as usize).saturating_sub(self.free.available_permits()).saturating_mul(UNIT_BYTES)
    }
}

impl Share {
    /// Adds another share to this one.
    pub(crate) fn add(&mut self, other: Share) {
        self.0.merge(other.0);
    }

    /// Bytes that keep this share until the last copy of them is dropped.
    pub(crate) fn hold(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Held { bytes, _share: self })
    }
}

struct Held {
    bytes: Bytes,
    _share: Share,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_return_when_they_are_dropped_and_more_than_is_free_is_refused() {
        let buffers = Buffers::new(10_000);
        let mut share = buffers.try_take(4_000).unwrap();
        share.add(buffers.try_take(1).unwrap());
        assert_eq!(buffers.used_bytes(), 4 * 1_024 + 1_024);
        assert!(buffers.try_take(6_000).is_none());
        let held = share.hold(Bytes::from_static(b"abc"));
        let part = held.slice(1..);
        drop(held);
        assert!(buffers.used_bytes() > 0, "a part of the bytes keeps them all");
        assert_eq!(part, "bc");
        drop(part);
        assert!(buffers.try_take(10_000).is_some());
    }
}
