//! Records of leases that are not resolved: reservations and the time of deletion.

use super::buckets::{Bucket, Buckets};
use super::slab::{NONE, Record, Slab};
use super::table::LimitSlot;
use crate::book::NamespaceId;
use crate::id::LeaseId;
use crate::time::{UnixMs, seconds_to_ms};

const PARTS_INLINE: usize = 4;
const PARTS_MORE: usize = 7;
/// The bits of [`Reservation`] that hold seconds: 366 days fit.
const SECONDS: u32 = (1 << 25) - 1;
const KIND_SHIFT: u32 = 25;
const KIND: u32 = 7;
const WOULD_DENY: u32 = 1 << 28;

/// How a reservation ends and settles. The codes are part of the snapshot format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum PartKind {
    /// Ends one window after it was reserved. Its usage is kept until then.
    #[default]
    Rolling = 1,
    /// Ends when its lease does.
    Concurrency = 2,
    /// A hold of credit.
    Credit = 3,
    /// Credit that an external credit store holds.
    CreditExternal = 4,
    /// Ends with a calendar period. Its usage is kept until then.
    Calendar = 5,
}

impl PartKind {
    pub(crate) fn from_code(code: u8) -> Option<PartKind> {
        use PartKind::{Calendar, Concurrency, Credit, CreditExternal, Rolling};
        [Rolling, Concurrency, Credit, CreditExternal, Calendar].into_iter().find(|kind| *kind as u8 == code)
    }
}

/// The reservation of one limit by a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub(crate) limit: LimitSlot,
    /// Seconds until its end, its kind, and whether it was above the capacity of a shadow limit.
    hold: u32,
    pub(crate) amount: u64,
}

impl Reservation {
    pub(crate) fn new(limit: LimitSlot, kind: PartKind, hold_seconds: u32, amount: u64) -> Reservation {
        let hold = hold_seconds & SECONDS | u32::from(kind as u8) << KIND_SHIFT;
        Reservation { limit, hold, amount }
    }

    /// A reservation whose kind and seconds are packed already; see [`Limit::hold`](super::Limit::hold).
    pub(crate) fn held(limit: LimitSlot, hold: u32, amount: u64) -> Reservation {
        Reservation { limit, hold, amount }
    }

    /// Whether a limit that is not enforced would have denied it.
    pub(crate) fn would_deny(&self) -> bool {
        self.hold & WOULD_DENY != 0
    }

    #[must_use]
    pub(crate) fn with_would_deny(self, would_deny: bool) -> Reservation {
        let flag = if would_deny { WOULD_DENY } else { 0 };
        Reservation { hold: self.hold & !WOULD_DENY | flag, ..self }
    }

    pub(crate) fn kind(&self) -> PartKind {
        match self.hold >> KIND_SHIFT & KIND {
            2 => PartKind::Concurrency,
            3 => PartKind::Credit,
            4 => PartKind::CreditExternal,
            5 => PartKind::Calendar,
            _ => PartKind::Rolling,
        }
    }

    pub(crate) fn is_credit(&self) -> bool {
        matches!(self.kind(), PartKind::Credit | PartKind::CreditExternal)
    }

    /// Whether it ends with its lease, so that its end can be moved.
    pub(crate) fn is_bound(&self) -> bool {
        matches!(self.kind(), PartKind::Concurrency | PartKind::Credit | PartKind::CreditExternal)
    }

    pub(crate) fn hold_seconds(&self) -> u32 {
        self.hold & SECONDS
    }

    pub(crate) fn hold_ms(&self) -> u64 {
        seconds_to_ms(self.hold_seconds())
    }

    /// The end. A calendar period ends with a whole second, so its seconds count from the second of the reserve.
    pub(crate) fn ends_at(&self, reserved_at: UnixMs) -> UnixMs {
        let since = match self.kind() {
            PartKind::Calendar => reserved_at.second(),
            PartKind::Rolling | PartKind::Concurrency | PartKind::Credit | PartKind::CreditExternal => reserved_at,
        };
        since.plus_ms(self.hold_ms())
    }
}

/// A lease with its first reservations, ordered by limit.
#[derive(Clone, Copy, Default)]
pub(crate) struct Lease {
    pub(crate) id: LeaseId,
    pub(crate) reserved_at: UnixMs,
    prev: u32,
    next: u32,
    more: u32,
    /// The slot of its first credit hold.
    pub(crate) holds: u32,
    pub(crate) namespace: NamespaceId,
    count: u8,
    /// Whether it has an entry in the table of jobs.
    pub(crate) has_job: bool,
    parts: [Reservation; PARTS_INLINE],
}

impl Record for Lease {
    fn link(&self) -> u32 {
        self.next
    }
    fn set_link(&mut self, link: u32) {
        self.next = link;
    }
}

/// Reservations that did not fit into the lease record.
#[derive(Clone, Copy, Default)]
struct More {
    parts: [Reservation; PARTS_MORE],
    next: u32,
}

impl Record for More {
    fn link(&self) -> u32 {
        self.next
    }
    fn set_link(&mut self, link: u32) {
        self.next = link;
    }
}

/// All live leases, and the second in which each is forgotten.
#[derive(Default)]
pub(crate) struct Leases {
    leases: Slab<Lease>,
    more: Slab<More>,
    buckets: Buckets,
    len: u32,
}

/// The second after the end of an uncompleted lease. Its record is deleted one retention later. The retention is not
/// part of it, so that a change of the retention moves no record.
pub(crate) fn end_second(lease: LeaseId, ends_at: UnixMs) -> u64 {
    lease.time().max(ends_at).get().div_ceil(1_000)
}

fn is_due(end_second: u64, retention_ms: u64, now: UnixMs) -> bool {
    end_second.saturating_mul(1_000).saturating_add(retention_ms) <= now.get()
}

impl Leases {
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn get(&self, slot: u32) -> &Lease {
        self.leases.get(slot)
    }

    /// Adds a lease, the last of whose reservations expires at `ends_at`. `parts` are ordered by limit.
    pub(crate) fn insert(
        &mut self,
        namespace: NamespaceId,
        lease: LeaseId,
        (reserved_at, ends_at): (UnixMs, UnixMs),
        parts: &[Reservation],
    ) -> u32 {
        let mut record = Lease {
            id: lease,
            reserved_at,
            prev: NONE,
            next: NONE,
            more: NONE,
            holds: NONE,
            namespace,
            count: parts.len() as u8,
            has_job: false,
            parts: [Reservation::default(); PARTS_INLINE],
        };
        let (inline, rest) = parts.split_at(parts.len().min(PARTS_INLINE));
        record.parts[..inline.len()].copy_from_slice(inline);
        for chunk in rest.chunks(PARTS_MORE).rev() {
            let mut more = More { next: record.more, ..More::default() };
            more.parts[..chunk.len()].copy_from_slice(chunk);
            record.more = self.more.insert(more);
        }
        let second = end_second(lease, ends_at);
        self.len = self.len.saturating_add(1);
        self.link(second, record)
    }

    fn link(&mut self, second: u64, mut record: Lease) -> u32 {
        match self.buckets.get_mut(second) {
            Some(bucket) => {
                record.prev = bucket.last;
                let slot = self.leases.insert(record);
                self.leases.get_mut(bucket.last).next = slot;
                bucket.last = slot;
                slot
            }
            None => {
                let slot = self.leases.insert(record);
                self.buckets.insert(second, Bucket { first: slot, last: slot });
                slot
            }
        }
    }

    /// Removes a lease. `ends_at` is when the last of its reservations expires.
    pub(crate) fn remove(&mut self, slot: u32, ends_at: UnixMs) {
        let &Lease { id, prev, next, mut more, .. } = self.leases.get(slot);
        if prev != NONE {
            self.leases.get_mut(prev).next = next;
        }
        if next != NONE {
            self.leases.get_mut(next).prev = prev;
        }
        if prev == NONE || next == NONE {
            self.move_ends(end_second(id, ends_at), prev, next);
        }
        while more != NONE {
            let next = self.more.get(more).next;
            self.more.remove(more);
            more = next;
        }
        self.leases.remove(slot);
        self.len = self.len.saturating_sub(1);
    }

    /// Updates the bucket of a lease that was its first or last.
    fn move_ends(&mut self, second: u64, prev: u32, next: u32) {
        if prev == NONE && next == NONE {
            self.buckets.remove(second);
        } else if let Some(bucket) = self.buckets.get_mut(second) {
            if prev == NONE {
                bucket.first = next;
            } else {
                bucket.last = prev;
            }
        }
    }

    pub(crate) fn set_holds(&mut self, slot: u32, first: u32) {
        self.leases.get_mut(slot).holds = first;
    }

    pub(crate) fn set_has_job(&mut self, slot: u32) {
        self.leases.get_mut(slot).has_job = true;
    }

    /// Reads the reservations of a lease into `parts`.
    pub(crate) fn parts(&self, lease: &Lease, parts: &mut Vec<Reservation>) {
        parts.clear();
        let count = usize::from(lease.count);
        parts.extend_from_slice(&lease.parts[..count.min(PARTS_INLINE)]);
        let mut more = lease.more;
        while parts.len() < count && more != NONE {
            let record = self.more.get(more);
            let rest = count.saturating_sub(parts.len()).min(PARTS_MORE);
            parts.extend_from_slice(&record.parts[..rest]);
            more = record.next;
        }
    }

    /// The slot of the first lease that is due for deletion.
    pub(crate) fn first_due(&self, retention_ms: u64, now: UnixMs) -> Option<u32> {
        let (second, bucket) = self.buckets.first()?;
        is_due(second, retention_ms, now).then_some(bucket.first)
    }

    /// A copy for a snapshot.
    pub(crate) fn share(&mut self) -> Leases {
        Leases { leases: self.leases.share(), more: self.more.share(), buckets: self.buckets.clone(), len: self.len }
    }

    /// All leases, in the order of deletion.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Lease> {
        self.buckets.iter().flat_map(move |bucket| {
            let mut slot = bucket.first;
            std::iter::from_fn(move || {
                let lease = (slot != NONE).then(|| self.leases.get(slot))?;
                slot = lease.next;
                Some(lease)
            })
        })
    }
}

/// When the first and the last of `parts` expire.
pub(crate) fn ends(reserved_at: UnixMs, parts: &[Reservation]) -> (UnixMs, UnixMs) {
    let ends = parts.iter().map(|part| part.ends_at(reserved_at));
    ends.fold((UnixMs::MAX, reserved_at), |(first, last), end| (end.min(first), end.max(last)))
}

/// When a lease runs out: with the first of its concurrency and credit reservations, without any with the last of all.
pub(crate) fn alive_until(reserved_at: UnixMs, parts: &[Reservation]) -> UnixMs {
    let bound = parts.iter().filter(|part| part.is_bound()).map(|part| part.ends_at(reserved_at)).min();
    bound.unwrap_or_else(|| ends(reserved_at, parts).1)
}

/// Whether the record of an uncompleted lease is due for deletion.
pub(crate) fn is_forgotten(lease: LeaseId, ends_at: UnixMs, retention_ms: u64, now: UnixMs) -> bool {
    is_due(end_second(lease, ends_at), retention_ms, now)
}
