//! Pots: amounts of one asset, of which a part is held for leases.

use crate::limits::timeline::{Nodes, Sums, Timeline};
use crate::time::UnixMs;

/// An amount and the holds on it. An account has one per asset for plain credit, and one per grant.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pot {
    /// The whole amount, held amounts included; negative if owed.
    pub(crate) amount: i128,
    /// The amounts held for leases, by expiry.
    pub(crate) held: Timeline,
    /// The amounts that holds will be charged even if they run out. They are held until that is recorded.
    pub(crate) due: u64,
}

/// The part of a hold that one pot covers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) amount: u64,
    /// The part that the timeout of the hold charges. It is held without an end.
    pub(crate) due: u64,
}

impl Piece {
    /// The part that is spendable when the hold ends.
    fn ending(self) -> u64 {
        self.amount.saturating_sub(self.due)
    }
}

impl Pot {
    /// The amount that no lease holds at `now`; negative if owed.
    pub(crate) fn free(&self, nodes: &Nodes, now: UnixMs) -> i128 {
        self.amount.saturating_sub(i128::from(self.held_at(nodes, now)))
    }

    pub(crate) fn held_at(&self, nodes: &Nodes, now: UnixMs) -> u64 {
        self.held.sums().minus(self.held.due(nodes, now)).total().saturating_add(self.due)
    }

    /// Counts a piece of a hold: what is spendable at its end until then, the rest without an end.
    pub(crate) fn hold(&mut self, nodes: &mut Nodes, ends_at: UnixMs, piece: Piece) {
        // Expired amounts still in the sum may make it wrap. It is correct again once they are removed.
        self.held.add(nodes, ends_at, Sums::unsettled(piece.ending()));
        self.due = self.due.wrapping_add(piece.due);
    }

    /// Takes off a piece of a hold that has not ended.
    pub(crate) fn release(&mut self, nodes: &mut Nodes, ends_at: UnixMs, piece: Piece) {
        if piece.ending() > 0 {
            self.held.change(nodes, ends_at, Sums::unsettled(piece.ending()).negated());
        }
        self.due = self.due.wrapping_sub(piece.due);
    }

    /// Takes off a piece of a hold that has ended.
    pub(crate) fn lapse(&mut self, nodes: &mut Nodes, now: UnixMs, piece: Piece) {
        self.held.expire(nodes, now);
        self.due = self.due.wrapping_sub(piece.due);
    }
}
