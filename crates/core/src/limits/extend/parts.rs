//! Changes of one reservation by an extension.

use super::super::complete::settled_end;
use super::super::reserve::ResolvedPart;
use super::super::{ExtendedPart, Limit, Nodes, PartKind, Phase, Reservation, Sums};
use crate::time::UnixMs;

/// How long after its reserve a lease can be renewed: 24 hours, so that a forgotten stream ends at some time.
const RENEW_MS_MAX: u64 = 24 * 60 * 60 * 1_000;

impl Limit {
    /// Adds to a reservation of a live lease. Earlier usage of a window or period is settled as it is; slots and credit
    /// end with the lease, so their reservation grows. With a latest end slots are renewed.
    #[inline(always)]
    pub(super) fn add_to_part(
        &mut self,
        nodes: &mut Nodes,
        (now, latest, retention_ms): (UnixMs, Option<UnixMs>, u64),
        amount: u64,
        (part, more): (&mut Reservation, &mut ExtendedPart),
    ) {
        match part.kind() {
            PartKind::Credit | PartKind::CreditExternal => {
                *part = part.with(part.amount.saturating_add(amount), part.hold_seconds());
            }
            PartKind::Concurrency => {
                let sum = part.amount.saturating_add(amount);
                let ends_at = match latest {
                    Some(latest) => renewed_end(self, part, more, (now, latest)),
                    None => more.ends_at,
                };
                if ends_at == more.ends_at {
                    self.add(nodes, ends_at, Sums::unsettled(amount));
                } else {
                    self.move_to(nodes, (more.ends_at, part.amount), (ends_at, sum));
                }
                more.ends_at = ends_at;
                *part = part.with(sum, part.hold_seconds());
            }
            PartKind::Rolling | PartKind::Calendar => {
                let (hold_seconds, ends_at) = self.hold(now);
                let settles_at = settled_end(part, more.ends_at, retention_ms);
                if more.ends_at <= now {
                    self.add(nodes, ends_at, Sums::unsettled(amount));
                } else if settles_at == more.ends_at {
                    self.settle_and_add(nodes, (settles_at, part.amount), (ends_at, amount));
                } else {
                    self.move_to(nodes, (more.ends_at, part.amount), (ends_at, amount));
                    self.add(nodes, settles_at, Sums::settled(part.amount));
                }
                more.earlier = more.total(part);
                more.earlier_ends_at = more.earlier_ends_at.max(more.ends_at);
                more.ends_at = ends_at;
                *part = part.with(amount, hold_seconds);
            }
        }
    }

    /// Takes a limit that the lease has not reserved yet, as a reserve does.
    pub(super) fn add_part(
        &mut self,
        nodes: &mut Nodes,
        now: UnixMs,
        part: &ResolvedPart,
        is_external: bool,
    ) -> (Reservation, ExtendedPart) {
        self.leases = self.leases.saturating_add(1);
        let (hold_seconds, ends_at) = self.hold(now);
        let kind = match self.part_kind() {
            PartKind::Credit if is_external => PartKind::CreditExternal,
            kind => kind,
        };
        if !self.is_credit() {
            self.add(nodes, ends_at, Sums::unsettled(part.amount));
        }
        let reservation = Reservation::new(part.limit, kind, hold_seconds, part.amount);
        (reservation, ExtendedPart { ends_at, ..ExtendedPart::default() })
    }
}

/// The latest end of a renewal.
pub(super) fn latest_end(reserved_at: UnixMs) -> UnixMs {
    reserved_at.plus_ms(RENEW_MS_MAX)
}

/// The end of a concurrency or credit reservation after a renewal.
#[inline]
pub(super) fn renewed_end(
    limit: &Limit,
    part: &Reservation,
    more: &ExtendedPart,
    (now, latest): (UnixMs, UnixMs),
) -> UnixMs {
    // A limit that was deleted, and perhaps made again as another kind, has no timeout for this reservation.
    let is_same = limit.phase != Phase::Deleted && limit.is_credit() == part.is_credit();
    let is_same = is_same && !matches!(limit.part_kind(), PartKind::Rolling | PartKind::Calendar);
    let timeout_ms = if is_same { limit.hold_ms() } else { part.hold_ms() };
    more.ends_at.max(now.plus_ms(timeout_ms).min(latest))
}
