//! Leases that ran out without a complete, for the decision log. A read: the state keeps no trace of it.

use super::lease::Life;
use super::{ExtendedPart, Limits, Reservation};
use crate::book::{Book, LimitId, NamespaceId};
use crate::id::{JobId, LeaseId};
use crate::time::UnixMs;

/// Slots of leases that share one time of their last look.
const CHUNK: u32 = 1_024;
/// Chunks of slots that one call looks at: 65,536 leases, which takes less than a millisecond.
const CHUNKS_PER_CALL: u32 = 64;
/// Timeouts after which a call ends with its chunk.
const FOUND_MAX: usize = 4_096;

/// A lease whose concurrency or credit reservations ran out before it was completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedOut {
    /// The namespace of the lease.
    pub namespace: NamespaceId,
    /// The lease.
    pub lease: LeaseId,
    /// The job of its reserve.
    pub job: Option<JobId>,
    /// The reservations that ran out, ordered by slot.
    pub limits: Vec<(LimitId, u64)>,
}

/// The position of a scan for leases that ran out. It belongs to one reader and is not part of the state.
#[derive(Debug, Default)]
pub struct TimeoutScan {
    /// The first look of all. Leases that ran out before it are not reported.
    since: Option<UnixMs>,
    /// The last look at each chunk of slots. A lease that ran out after it has not been reported.
    looked_at: Vec<UnixMs>,
    /// The next chunk.
    next: u32,
}

/// The reservations of the lease that is looked at.
#[derive(Default)]
struct Buffers {
    parts: Vec<Reservation>,
    more: Vec<ExtendedPart>,
}

impl Limits {
    /// The leases that ran out since the scan last looked at their slots. Looks at a bounded number of slots, so a Book of
    /// many leases needs several calls for one round.
    fn timed_out(&self, now: UnixMs, scan: &mut TimeoutScan) -> Vec<TimedOut> {
        let now = self.at(now);
        let since = *scan.since.get_or_insert(now);
        let chunks = self.state.leases.slots().div_ceil(CHUNK);
        let (mut found, mut buffers) = (Vec::new(), Buffers::default());
        for _ in 0..chunks.min(CHUNKS_PER_CALL) {
            if found.len() >= FOUND_MAX {
                break;
            }
            if scan.next >= chunks {
                scan.next = 0;
            }
            let chunk = scan.next;
            scan.next = chunk.saturating_add(1);
            if scan.looked_at.len() <= chunk as usize {
                scan.looked_at.resize((chunk as usize).saturating_add(1), since);
            }
            let Some(looked_at) = scan.looked_at.get_mut(chunk as usize) else { continue };
            let before = std::mem::replace(looked_at, now.max(*looked_at));
            let first = chunk.saturating_mul(CHUNK);
            for slot in first..first.saturating_add(CHUNK).min(self.state.leases.slots()) {
                found.extend(self.timed_out_in(slot, (before, now), &mut buffers));
            }
        }
        found
    }

    /// The lease in a slot, if it ran out after `before` and until `now`.
    fn timed_out_in(&self, slot: u32, (before, now): (UnixMs, UnixMs), buffers: &mut Buffers) -> Option<TimedOut> {
        let record = self.state.leases.in_slot(slot)?;
        if record.reserved_at > now {
            return None;
        }
        let Buffers { parts, more } = buffers;
        self.state.leases.parts(record, parts);
        self.state.leases.extended_parts(record, more);
        let life = Life::of(record.reserved_at, parts, more);
        // Without concurrency or credit nothing runs out: rolling and calendar usage ends by itself.
        if life.bound <= before || life.bound > now {
            return None;
        }
        let end = |place: usize, part: &Reservation| {
            more.get(place).map_or_else(|| part.ends_at(record.reserved_at), |more| more.ends_at)
        };
        let total = |place: usize, part: &Reservation| more.get(place).map_or(part.amount, |more| more.total(part));
        let ended = parts.iter().enumerate().filter(|(place, part)| part.is_bound() && end(*place, part) <= now);
        let limits = ended.map(|(place, part)| (self.state.limits.id(part.limit), total(place, part))).collect();
        let job = self.state.jobs.get(record.namespace, record.id).cloned();
        Some(TimedOut { namespace: record.namespace, lease: record.id, job, limits })
    }
}

impl Book {
    /// The leases whose concurrency or credit reservations ran out since the last calls with this scan, each once. It
    /// reads a bounded number of leases per call.
    #[must_use]
    pub fn timed_out(&self, now: UnixMs, scan: &mut TimeoutScan) -> Vec<TimedOut> {
        self.limits.timed_out(now, scan)
    }
}
