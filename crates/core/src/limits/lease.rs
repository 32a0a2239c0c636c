//! Records of leases that are not resolved: reservations and the time of deletion.

use super::buckets::Buckets;
use super::extended::{Extended, ExtendedLeases, ExtendedPart};
use super::live_count::LiveCount;
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

    /// Its kind and seconds, packed, and whether a shadow limit would have denied it.
    pub(crate) fn hold(&self) -> u32 {
        self.hold
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
        match self.code() {
            2 => PartKind::Concurrency,
            3 => PartKind::Credit,
            4 => PartKind::CreditExternal,
            5 => PartKind::Calendar,
            _ => PartKind::Rolling,
        }
    }

    pub(crate) fn code(&self) -> u32 {
        self.hold >> KIND_SHIFT & KIND
    }

    pub(crate) fn is_credit(&self) -> bool {
        (PartKind::Credit as u32..=PartKind::CreditExternal as u32).contains(&self.code())
    }

    /// Whether it ends with its lease, so that its end can be moved.
    #[inline]
    pub(crate) fn is_bound(&self) -> bool {
        (PartKind::Concurrency as u32..=PartKind::CreditExternal as u32).contains(&self.code())
    }

    pub(crate) fn hold_seconds(&self) -> u32 {
        self.hold & SECONDS
    }

    /// The same with another amount and hold.
    pub(crate) fn with(self, amount: u64, hold_seconds: u32) -> Reservation {
        Reservation { hold: self.hold & !SECONDS | hold_seconds & SECONDS, amount, ..self }
    }

    pub(crate) fn hold_ms(&self) -> u64 {
        seconds_to_ms(self.hold_seconds())
    }

    /// The end. A calendar period ends with a whole second, so its seconds count from the second of the reserve.
    #[inline]
    pub(crate) fn ends_at(&self, reserved_at: UnixMs) -> UnixMs {
        let is_calendar = self.code() == PartKind::Calendar as u32;
        let since = if is_calendar { reserved_at.second() } else { reserved_at };
        since.plus_ms(self.hold_ms())
    }
}

/// The tables of values by lease in which a lease has an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeaseFlags(u8);

impl LeaseFlags {
    /// The table of jobs.
    pub(crate) const JOB: LeaseFlags = LeaseFlags(1);
    /// The table of marks.
    pub(crate) const MARK: LeaseFlags = LeaseFlags(2);

    pub(crate) const fn has(self, flag: LeaseFlags) -> bool {
        self.0 & flag.0 != 0
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[must_use]
    pub(crate) const fn with(self, flags: LeaseFlags) -> LeaseFlags {
        LeaseFlags(self.0 | flags.0)
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
    /// The slot of its record among the extended leases.
    pub(crate) extended: u32,
    pub(crate) namespace: NamespaceId,
    count: u8,
    pub(crate) flags: LeaseFlags,
    parts: [Reservation; PARTS_INLINE],
}

const _: () = assert!(size_of::<Lease>() == 112, "a lease that was never extended pays nothing for those that are");

impl Lease {
    /// A lease that has reserved nothing yet.
    pub(crate) fn new(namespace: NamespaceId, id: LeaseId, reserved_at: UnixMs) -> Lease {
        Lease {
            id,
            reserved_at,
            prev: NONE,
            next: NONE,
            more: NONE,
            holds: NONE,
            extended: NONE,
            namespace,
            count: 0,
            flags: LeaseFlags::default(),
            parts: [Reservation::default(); PARTS_INLINE],
        }
    }
}

impl Record for Lease {
    fn link(&self) -> u32 {
        self.next
    }
    /// Frees the record. It has no reservations any more, so that a scan of the slots skips it.
    fn set_link(&mut self, link: u32) {
        self.next = link;
        self.count = 0;
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
    extended: ExtendedLeases,
    buckets: Buckets,
    len: u32,
    live: LiveCount,
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

    /// Adds a lease with its times: when it was reserved, when the last reservation ends, and when it runs out; see
    /// [`Life`]. `parts` are ordered by limit.
    pub(crate) fn insert(
        &mut self,
        namespace: NamespaceId,
        lease: LeaseId,
        (reserved_at, last, until): (UnixMs, UnixMs, UnixMs),
        parts: &[Reservation],
    ) -> u32 {
        let mut record = Lease { count: parts.len() as u8, ..Lease::new(namespace, lease, reserved_at) };
        record.parts.iter_mut().zip(parts).for_each(|(to, part)| *to = *part);
        if let Some(rest) = parts.get(PARTS_INLINE..).filter(|rest| !rest.is_empty()) {
            record.more = self.add_more(rest);
        }
        self.len = self.len.saturating_add(1);
        self.live.add(reserved_at, until);
        record.prev = self.append(end_second(lease, last), self.leases.next());
        self.leases.insert(record)
    }

    /// Stores the reservations that do not fit into the lease record.
    #[inline(never)]
    fn add_more(&mut self, parts: &[Reservation]) -> u32 {
        parts.chunks(PARTS_MORE).rev().fold(NONE, |next, chunk| {
            let mut more = More { next, ..More::default() };
            more.parts[..chunk.len()].copy_from_slice(chunk);
            self.more.insert(more)
        })
    }

    /// Appends a slot to the bucket of a second. Returns the slot before it, whose link it sets.
    #[inline]
    fn append(&mut self, second: u64, slot: u32) -> u32 {
        let prev = self.buckets.append(second, slot);
        if prev != NONE {
            self.leases.get_mut(prev).next = slot;
        }
        prev
    }

    /// Appends a lease to the bucket of a second.
    fn link(&mut self, second: u64, slot: u32) {
        let prev = self.append(second, slot);
        let record = self.leases.get_mut(slot);
        (record.prev, record.next) = (prev, NONE);
    }

    /// Takes a lease out of its bucket.
    fn unlink(&mut self, slot: u32, second: u64) {
        let &Lease { prev, next, .. } = self.leases.get(slot);
        if prev != NONE {
            self.leases.get_mut(prev).next = next;
        }
        if next != NONE {
            self.leases.get_mut(next).prev = prev;
        }
        if prev == NONE || next == NONE {
            self.move_ends(second, prev, next);
        }
    }

    /// A lease of this many limits, if it is plain: it has few limits, no credit and no growth that is pending.
    #[inline]
    pub(crate) fn plain(&self, slot: u32, limits: usize) -> Option<PlainLease<'_>> {
        let lease = self.leases.get(slot);
        if usize::from(lease.count) != limits || !(1..=PARTS_INLINE).contains(&limits) || lease.holds != NONE {
            return None;
        }
        let extended = (lease.extended != NONE).then(|| self.extended.first(lease.extended));
        if extended.is_some_and(|(extended, _)| extended.pending != 0) {
            return None;
        }
        Some(PlainLease { lease, parts: &lease.parts, extended })
    }

    /// The parts of a plain lease and its record among the extended leases, to change them. Before its first extension the
    /// record is empty.
    #[inline]
    pub(crate) fn plain_mut(&mut self, slot: u32) -> PlainParts<'_> {
        let lease = self.leases.get_mut(slot);
        if lease.extended == NONE {
            lease.extended = self.extended.insert();
        }
        let (extended, more) = self.extended.first_mut(lease.extended);
        PlainParts { parts: &mut lease.parts, more, extended }
    }

    /// Replaces the reservations of a lease by extended ones, ordered by limit. `before` are its ends until now, and
    /// `after` those of the extended ones.
    pub(crate) fn extend(
        &mut self,
        slot: u32,
        (before, after): (Life, Life),
        extended: Extended,
        (parts, more): (&[Reservation], &[ExtendedPart]),
    ) {
        let old = self.leases.get(slot).extended;
        self.store_parts(slot, parts);
        self.leases.get_mut(slot).extended = self.extended.store(old, extended, more);
        self.move_end(slot, (before.last, before.runs_out()), (after.last, after.runs_out()));
    }

    /// Counts a lease where it runs out now, and moves it to the second in which it is forgotten now. Both are given by its
    /// last end and the time when it runs out, before and after a change.
    #[inline]
    pub(crate) fn move_end(
        &mut self,
        slot: u32,
        (last, until): (UnixMs, UnixMs),
        (new_last, new_until): (UnixMs, UnixMs),
    ) {
        if (last, until) == (new_last, new_until) {
            return;
        }
        let &Lease { id, reserved_at, .. } = self.leases.get(slot);
        if until != new_until {
            self.live.change(reserved_at, until, new_until);
        }
        let (from, to) = (end_second(id, last), end_second(id, new_last));
        if from != to {
            self.unlink(slot, from);
            self.link(to, slot);
        }
    }

    /// Writes the reservations of a lease, which has at most as many now.
    fn store_parts(&mut self, slot: u32, parts: &[Reservation]) {
        let (inline, rest) = parts.split_at(parts.len().min(PARTS_INLINE));
        let lease = self.leases.get_mut(slot);
        lease.count = parts.len() as u8;
        lease.parts[..inline.len()].copy_from_slice(inline);
        let (mut more, mut last) = (lease.more, NONE);
        for chunk in rest.chunks(PARTS_MORE) {
            if more == NONE {
                more = self.more.insert(More { next: NONE, ..More::default() });
                match last {
                    NONE => self.leases.get_mut(slot).more = more,
                    last => self.more.get_mut(last).next = more,
                }
            }
            let record = self.more.get_mut(more);
            record.parts[..chunk.len()].copy_from_slice(chunk);
            last = more;
            more = record.next;
        }
    }

    /// The record of an extended lease.
    pub(crate) fn extended(&self, lease: &Lease) -> Option<&Extended> {
        (lease.extended != NONE).then(|| self.extended.get(lease.extended))
    }

    /// Reads the extended parts of a lease into `parts`, parallel to its reservations; none if it was never extended.
    #[inline]
    pub(crate) fn extended_parts(&self, lease: &Lease, parts: &mut Vec<ExtendedPart>) {
        parts.clear();
        if lease.extended != NONE {
            self.extended.parts(lease.extended, usize::from(lease.count), parts);
        }
    }

    /// The highest number of slots ever in use.
    pub(crate) fn slots(&self) -> u32 {
        self.leases.used()
    }

    /// The lease in a slot; `None` if the slot is free.
    pub(crate) fn in_slot(&self, slot: u32) -> Option<&Lease> {
        Some(self.leases.get(slot)).filter(|lease| lease.count > 0)
    }

    /// The number of leases that have not run out at `now`, to the second.
    pub(crate) fn live_at(&self, now: UnixMs) -> usize {
        self.live.at(now)
    }

    /// Removes a lease with these ends.
    pub(crate) fn remove(&mut self, slot: u32, life: Life) {
        let &Lease { id, reserved_at, extended, mut more, .. } = self.leases.get(slot);
        self.unlink(slot, end_second(id, life.last));
        self.live.remove(reserved_at, life.runs_out());
        if extended != NONE {
            self.extended.remove(extended);
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

    pub(crate) fn add_flags(&mut self, slot: u32, flags: LeaseFlags) {
        let lease = self.leases.get_mut(slot);
        lease.flags = lease.flags.with(flags);
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
    #[inline]
    pub(crate) fn first_due(&mut self, retention_ms: u64, now: UnixMs) -> Option<u32> {
        self.buckets.first_due(|second| is_due(second, retention_ms, now)).map(|bucket| bucket.first)
    }

    /// Whether a lease is due for deletion.
    pub(crate) fn has_due(&self, retention_ms: u64, now: UnixMs) -> bool {
        self.buckets.first().is_some_and(|(second, _)| is_due(second, retention_ms, now))
    }

    /// A copy for a snapshot.
    pub(crate) fn share(&mut self) -> Leases {
        Leases {
            leases: self.leases.share(),
            more: self.more.share(),
            extended: self.extended.share(),
            buckets: self.buckets.clone(),
            len: self.len,
            live: LiveCount::default(),
        }
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

/// A lease whose limits fit into its record, and whose ends move without credit.
pub(crate) struct PlainLease<'a> {
    pub(crate) lease: &'a Lease,
    pub(crate) parts: &'a [Reservation; PARTS_INLINE],
    /// Its last extension, and what extensions changed of `parts`.
    pub(crate) extended: Option<(&'a Extended, &'a [ExtendedPart; PARTS_INLINE])>,
}

/// The parts of a [`PlainLease`] while they are extended.
pub(crate) struct PlainParts<'a> {
    pub(crate) parts: &'a mut [Reservation; PARTS_INLINE],
    pub(crate) more: &'a mut [ExtendedPart; PARTS_INLINE],
    pub(crate) extended: &'a mut Extended,
}

/// The ends of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    /// The first end of a reservation.
    pub(crate) first: UnixMs,
    /// The last end of a reservation.
    pub(crate) last: UnixMs,
    /// The first end of a concurrency or credit reservation; `UnixMs::MAX` without any.
    pub(crate) bound: UnixMs,
}

impl Life {
    /// The ends of a lease that has reserved nothing yet.
    pub(crate) fn new(reserved_at: UnixMs) -> Life {
        Life { first: UnixMs::MAX, last: reserved_at, bound: UnixMs::MAX }
    }

    /// When the lease runs out: with the first end of a concurrency or credit reservation, or without any with the last
    /// end.
    #[inline]
    pub(crate) fn runs_out(&self) -> UnixMs {
        if self.bound == UnixMs::MAX { self.last } else { self.bound }
    }

    /// The first end of a concurrency or credit reservation, if there is any.
    pub(crate) fn bound_end(&self) -> Option<UnixMs> {
        (self.bound != UnixMs::MAX).then_some(self.bound)
    }

    /// The ends of `parts`. `more` is parallel to them, or empty if the lease was never extended.
    #[inline]
    pub(crate) fn of(reserved_at: UnixMs, parts: &[Reservation], more: &[ExtendedPart]) -> Life {
        let mut life = Life::new(reserved_at);
        if more.is_empty() {
            parts.iter().for_each(|part| life.add(part, part.ends_at(reserved_at)));
        } else {
            parts.iter().zip(more).for_each(|(part, more)| life.add_part(part, more));
        }
        life
    }

    /// Adds a reservation that was extended.
    #[inline]
    pub(crate) fn add_part(&mut self, part: &Reservation, more: &ExtendedPart) {
        self.add(part, more.ends_at);
        self.last = self.last.max(more.earlier_ends_at);
    }

    #[inline]
    pub(crate) fn add(&mut self, part: &Reservation, end: UnixMs) {
        self.first = self.first.min(end);
        self.last = self.last.max(end);
        if part.is_bound() {
            self.bound = self.bound.min(end);
        }
    }
}

/// Whether the record of an uncompleted lease is due for deletion.
pub(crate) fn is_forgotten(lease: LeaseId, ends_at: UnixMs, retention_ms: u64, now: UnixMs) -> bool {
    is_due(end_second(lease, ends_at), retention_ms, now)
}
