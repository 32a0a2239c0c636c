//! The records of extended leases, apart from the others, so that a lease that is never extended pays nothing.

use super::slab::{NONE, Record, Slab};
use super::{Reservation, fingerprint};
use crate::book::RequirementSet;
use crate::time::UnixMs;

/// Parts in one record: as many as a lease record has reservations.
const PARTS: usize = 4;

/// The answer to the last extension of a lease. The codes are part of the snapshot format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ExtensionAnswer {
    /// Extended; `at` is the first end of a concurrency or credit reservation, 0 without any.
    #[default]
    Extended = 1,
    /// Denied, with a retry hint until `at`.
    Denied = 2,
    /// Denied because the amount exceeds the capacity.
    DeniedNever = 3,
    /// Denied for lack of credit.
    NoCredit = 4,
    /// Denied because the account is frozen.
    AccountFrozen = 5,
    /// Denied because the account is closed.
    AccountClosed = 6,
}

impl ExtensionAnswer {
    pub(crate) fn from_code(code: u8) -> Option<ExtensionAnswer> {
        use ExtensionAnswer::{AccountClosed, AccountFrozen, Denied, DeniedNever, Extended, NoCredit};
        [Extended, Denied, DeniedNever, NoCredit, AccountFrozen, AccountClosed]
            .into_iter()
            .find(|answer| *answer as u8 == code)
    }

    /// Whether a limit or account was in the way.
    pub(crate) fn is_denial(self) -> bool {
        match self {
            ExtensionAnswer::Denied
            | ExtensionAnswer::DeniedNever
            | ExtensionAnswer::NoCredit
            | ExtensionAnswer::AccountFrozen
            | ExtensionAnswer::AccountClosed => true,
            ExtensionAnswer::Extended => false,
        }
    }
}

/// The last extension of a lease, and its reserve.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Extended {
    /// The fingerprint of its reserve, by which a repeated reserve is judged.
    pub(crate) original: u64,
    /// The fingerprint of the last extension.
    pub(crate) body: u64,
    /// See [`ExtensionAnswer`].
    pub(crate) at: UnixMs,
    /// The number of the last extension that was answered; 0 before the first.
    pub(crate) number: u32,
    /// The number of an extension whose credit has grown and is not confirmed; 0 without one.
    pub(crate) pending: u32,
    /// The fingerprint of that growth.
    pub(crate) pending_body: u64,
    /// Whether an extension was made. A denied one changes nothing.
    pub(crate) is_made: bool,
    /// See [`Extension`](crate::Extension); by the rank in `used`, ordered by namespace and key.
    pub(crate) ignored: RequirementSet,
    /// See [`Extension`](crate::Extension); by the rank in `used`, ordered by namespace and key.
    pub(crate) above: RequirementSet,
    /// The limit named in a denial: its rank in `add`, ordered by namespace and key.
    pub(crate) limited_by: u8,
    pub(crate) answer: ExtensionAnswer,
}

/// The changes of extensions to one reservation of a lease, whose record has the newest part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExtendedPart {
    /// The end of the newest part.
    pub(crate) ends_at: UnixMs,
    /// The sum of the earlier parts, which are settled.
    pub(crate) earlier: u64,
    /// The latest end of an earlier part; 0 without any.
    pub(crate) earlier_ends_at: UnixMs,
    /// The highest usage reported.
    pub(crate) used: u64,
    /// The amount that the last extension added.
    pub(crate) grown: u64,
}

impl ExtendedPart {
    /// A part that was not extended yet.
    pub(crate) fn of(part: &Reservation, reserved_at: UnixMs) -> ExtendedPart {
        ExtendedPart { ends_at: part.ends_at(reserved_at), ..ExtendedPart::default() }
    }

    /// The amount reserved in all, earlier parts included.
    pub(crate) fn total(&self, part: &Reservation) -> u64 {
        self.earlier.saturating_add(part.amount)
    }
}

/// An extended lease with its first parts.
#[derive(Clone, Copy, Default)]
struct First {
    extended: Extended,
    parts: [ExtendedPart; PARTS],
    next: u32,
}

/// Further parts.
#[derive(Clone, Copy, Default)]
struct More {
    parts: [ExtendedPart; PARTS],
    next: u32,
}

impl Record for First {
    fn link(&self) -> u32 {
        self.next
    }
    fn set_link(&mut self, link: u32) {
        self.next = link;
    }
}

impl Record for More {
    fn link(&self) -> u32 {
        self.next
    }
    fn set_link(&mut self, link: u32) {
        self.next = link;
    }
}

/// The records of all extended leases.
#[derive(Default)]
pub(crate) struct ExtendedLeases {
    leases: Slab<First>,
    more: Slab<More>,
}

impl ExtendedLeases {
    pub(crate) fn get(&self, slot: u32) -> &Extended {
        &self.leases.get(slot).extended
    }

    /// A lease with the first of its parts.
    #[inline]
    pub(crate) fn first(&self, slot: u32) -> (&Extended, &[ExtendedPart; PARTS]) {
        let First { extended, parts, .. } = self.leases.get(slot);
        (extended, parts)
    }

    /// [`ExtendedLeases::first`] for writing.
    #[inline]
    pub(crate) fn first_mut(&mut self, slot: u32) -> (&mut Extended, &mut [ExtendedPart; PARTS]) {
        let First { extended, parts, .. } = self.leases.get_mut(slot);
        (extended, parts)
    }

    /// Adds an empty record. Returns its slot.
    #[inline]
    pub(crate) fn insert(&mut self) -> u32 {
        self.leases.insert(First { next: NONE, ..First::default() })
    }

    /// Reads `count` parts of a lease.
    pub(crate) fn parts(&self, slot: u32, count: usize, parts: &mut Vec<ExtendedPart>) {
        let &First { parts: ref first, mut next, .. } = self.leases.get(slot);
        parts.clear();
        parts.extend_from_slice(&first[..count.min(PARTS)]);
        while parts.len() < count && next != NONE {
            let found = self.more.get(next);
            let rest = count.saturating_sub(parts.len()).min(PARTS);
            parts.extend_from_slice(&found.parts[..rest]);
            next = found.next;
        }
    }

    /// Stores the record of a lease in place of that in `slot`, or in a new one. Returns its slot.
    pub(crate) fn store(&mut self, slot: u32, extended: Extended, parts: &[ExtendedPart]) -> u32 {
        let slot = if slot == NONE { self.insert() } else { slot };
        let (inline, rest) = parts.split_at(parts.len().min(PARTS));
        let first = self.leases.get_mut(slot);
        first.extended = extended;
        first.parts[..inline.len()].copy_from_slice(inline);
        let (mut more, mut last) = (first.next, NONE);
        for chunk in rest.chunks(PARTS) {
            if more == NONE {
                more = self.more.insert(More { next: NONE, ..More::default() });
                match last {
                    NONE => self.leases.get_mut(slot).next = more,
                    last => self.more.get_mut(last).next = more,
                }
            }
            let found = self.more.get_mut(more);
            found.parts[..chunk.len()].copy_from_slice(chunk);
            last = more;
            more = found.next;
        }
        slot
    }

    pub(crate) fn remove(&mut self, slot: u32) {
        let mut more = self.leases.get(slot).next;
        while more != NONE {
            let next = self.more.get(more).next;
            self.more.remove(more);
            more = next;
        }
        self.leases.remove(slot);
    }

    /// A copy for a snapshot.
    pub(crate) fn share(&mut self) -> ExtendedLeases {
        ExtendedLeases { leases: self.leases.share(), more: self.more.share() }
    }
}

/// The fingerprint of an extension: by the [`fingerprint`] of what it adds, by what it reports, by
/// [`key_hash`](super::key_hash) and amount, and whether it renews. Stored, so it must never change.
pub(crate) fn extension_fingerprint(added: u64, used: impl Iterator<Item = (u32, u64)>, renew: bool) -> u64 {
    added.wrapping_add(fingerprint(used).rotate_left(17)).wrapping_add(u64::from(renew))
}
