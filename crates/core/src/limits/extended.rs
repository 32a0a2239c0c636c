//! The records of extended leases, apart from the others, so that a lease that is never extended pays nothing.

use super::slab::{NONE, Record, Slab};
use super::{Reservation, fingerprint};
use crate::book::RequirementSet;
use crate::time::UnixMs;

/// Parts in one record of the chain.
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
    /// The first record of its parts; only the table of extended leases sets it.
    pub(crate) parts: u32,
    /// The limit named in a denial: its rank in `add`, ordered by namespace and key.
    pub(crate) limited_by: u8,
    pub(crate) answer: ExtensionAnswer,
}

impl Record for Extended {
    fn link(&self) -> u32 {
        self.parts
    }
    fn set_link(&mut self, link: u32) {
        self.parts = link;
    }
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

#[derive(Clone, Copy, Default)]
struct Parts {
    parts: [ExtendedPart; PARTS],
    next: u32,
}

impl Record for Parts {
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
    leases: Slab<Extended>,
    parts: Slab<Parts>,
}

impl ExtendedLeases {
    pub(crate) fn get(&self, slot: u32) -> &Extended {
        self.leases.get(slot)
    }

    /// A lease with the first of its parts.
    #[inline]
    pub(crate) fn first_parts(&self, slot: u32) -> (&Extended, &[ExtendedPart; PARTS]) {
        let extended = self.leases.get(slot);
        (extended, &self.parts.get(extended.parts).parts)
    }

    /// [`ExtendedLeases::store`] of a lease whose parts fit into one record.
    #[inline]
    pub(crate) fn store_first(&mut self, slot: u32, extended: Extended, parts: &[ExtendedPart; PARTS]) -> u32 {
        if slot == NONE {
            let parts = self.parts.insert(Parts { parts: *parts, next: NONE });
            return self.leases.insert(Extended { parts, ..extended });
        }
        let found = self.leases.get_mut(slot);
        *found = Extended { parts: found.parts, ..extended };
        self.parts.get_mut(found.parts).parts = *parts;
        slot
    }

    /// Reads `count` parts of a lease.
    pub(crate) fn parts(&self, slot: u32, count: usize, parts: &mut Vec<ExtendedPart>) {
        parts.clear();
        let mut record = self.leases.get(slot).parts;
        while parts.len() < count && record != NONE {
            let found = self.parts.get(record);
            let rest = count.saturating_sub(parts.len()).min(PARTS);
            parts.extend_from_slice(&found.parts[..rest]);
            record = found.next;
        }
    }

    /// Stores the record of a lease in place of that in `slot`, or in a new one. Returns its slot.
    pub(crate) fn store(&mut self, slot: u32, extended: Extended, parts: &[ExtendedPart]) -> u32 {
        let (slot, mut record) = if slot == NONE {
            (self.leases.insert(Extended { parts: NONE, ..extended }), NONE)
        } else {
            let found = self.leases.get_mut(slot);
            let first = found.parts;
            *found = Extended { parts: first, ..extended };
            (slot, first)
        };
        let mut last = NONE;
        for chunk in parts.chunks(PARTS) {
            if record == NONE {
                record = self.parts.insert(Parts { next: NONE, ..Parts::default() });
                match last {
                    NONE => self.leases.get_mut(slot).parts = record,
                    last => self.parts.get_mut(last).next = record,
                }
            }
            let found = self.parts.get_mut(record);
            found.parts[..chunk.len()].copy_from_slice(chunk);
            last = record;
            record = found.next;
        }
        slot
    }

    pub(crate) fn remove(&mut self, slot: u32) {
        let mut record = self.leases.get(slot).parts;
        while record != NONE {
            let next = self.parts.get(record).next;
            self.parts.remove(record);
            record = next;
        }
        self.leases.remove(slot);
    }

    /// A copy for a snapshot.
    pub(crate) fn share(&mut self) -> ExtendedLeases {
        ExtendedLeases { leases: self.leases.share(), parts: self.parts.share() }
    }
}

/// The fingerprint of an extension: by the [`fingerprint`] of what it adds, by what it reports, by
/// [`key_hash`](super::key_hash) and amount, and whether it renews. Stored, so it must never change.
pub(crate) fn extension_fingerprint(added: u64, used: impl Iterator<Item = (u32, u64)>, renew: bool) -> u64 {
    added.wrapping_add(fingerprint(used).rotate_left(17)).wrapping_add(u64::from(renew))
}
