//! The grants behind a hold: which it took from, and how much.
//!
//! A hold of plain credit has no parts. Plain credit holds what the parts leave of the amount.

use super::grant::GrantTerms;
use super::hold::Hold;
use super::pot::{Piece, Pot};
use super::{Credits, State};
use crate::limits::slab::{NONE, Record};
use crate::limits::timeline::Nodes;

/// The share of a grant in a hold.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HoldPart {
    pub(crate) grant: u32,
    pub(crate) amount: u64,
    /// The next part of the same hold, in spending order.
    pub(crate) next: u32,
}

impl Record for HoldPart {
    fn link(&self) -> u32 {
        self.next
    }
    fn set_link(&mut self, link: u32) {
        self.next = link;
    }
}

impl State {
    /// The parts of a hold, in spending order.
    pub(crate) fn hold_parts(&self, hold: &Hold) -> impl Iterator<Item = &HoldPart> {
        let mut slot = hold.parts;
        std::iter::from_fn(move || {
            let found = (slot != NONE).then(|| self.parts.get(slot))?;
            slot = found.next;
            Some(found)
        })
    }

    /// Visits the pots that a hold took from, in spending order. Those that are spent first pay its timeout.
    pub(crate) fn each_piece(&mut self, hold: &Hold, mut visit: impl FnMut(&mut Pot, &mut Nodes, Piece)) {
        if hold.parts == NONE {
            let piece = Piece { amount: hold.amount, due: hold.due() };
            return visit(&mut self.balances.get_mut(hold.balance).pot, &mut self.nodes, piece);
        }
        let in_parts = self.hold_parts(hold).fold(0_u64, |sum, part| sum.saturating_add(part.amount));
        let State { balances, grants, nodes, parts, .. } = self;
        let mut due = hold.due();
        let mut piece = |amount: u64| {
            let piece = Piece { amount, due: due.min(amount) };
            due = due.saturating_sub(piece.due);
            piece
        };
        let (mut slot, mut plain) = (hold.parts, Some(hold.amount.saturating_sub(in_parts)));
        loop {
            let part = (slot != NONE).then(|| *parts.get(slot));
            let is_before_plain = part.is_some_and(|part| grants.get(part.grant).terms < GrantTerms::PLAIN);
            if !is_before_plain && let Some(amount) = plain.take() {
                visit(&mut balances.get_mut(hold.balance).pot, nodes, piece(amount));
            }
            let Some(part) = part else { return };
            visit(&mut grants.get_mut(part.grant).pot, nodes, piece(part.amount));
            slot = part.next;
        }
    }
}

impl Credits {
    /// Stores the parts of a new hold, and returns the first.
    pub(super) fn add_parts(&mut self, drawn: &[(u32, u64)]) -> u32 {
        let mut next = NONE;
        for &(grant, amount) in drawn.iter().rev() {
            let holds = &mut self.state.grants.get_mut(grant).holds;
            *holds = holds.saturating_add(1);
            next = self.state.parts.insert(HoldPart { grant, amount, next });
        }
        next
    }

    /// Replaces the parts of a hold. `drawn` is in spending order.
    pub(super) fn set_parts(&mut self, slot: u32, drawn: &[(u32, u64)]) {
        let first = self.state.holds.get(slot).parts;
        if first == NONE && drawn.is_empty() {
            return;
        }
        let added = self.add_parts(drawn);
        let mut old = first;
        while old != NONE {
            let HoldPart { grant, next, .. } = *self.state.parts.get(old);
            let holds = &mut self.state.grants.get_mut(grant).holds;
            *holds = holds.saturating_sub(1);
            self.state.parts.remove(old);
            old = next;
        }
        self.state.holds.get_mut(slot).parts = added;
    }

    /// The parts of a hold after it took `drawn` more.
    pub(super) fn grown_parts(&self, hold: &Hold, drawn: &[(u32, u64)]) -> Vec<(u32, u64)> {
        let mut parts: Vec<(u32, u64)> = self.state.hold_parts(hold).map(|part| (part.grant, part.amount)).collect();
        for &(grant, amount) in drawn {
            let terms = self.state.grants.get(grant).terms;
            match parts.binary_search_by_key(&terms, |(part, _)| self.state.grants.get(*part).terms) {
                Ok(position) => parts[position].1 = parts[position].1.saturating_add(amount),
                Err(position) => parts.insert(position, (grant, amount)),
            }
        }
        parts
    }

    /// The parts of a hold after it returned `less`: first what is spent last.
    pub(super) fn shrunk_parts(&self, hold: &Hold, less: u64) -> Vec<(u32, u64)> {
        let mut parts: Vec<(u32, u64)> = self.state.hold_parts(hold).map(|part| (part.grant, part.amount)).collect();
        let in_parts = parts.iter().fold(0_u64, |sum, (_, amount)| sum.saturating_add(*amount));
        let (mut less, mut plain) = (less, Some(hold.amount.saturating_sub(in_parts)));
        for (grant, amount) in parts.iter_mut().rev() {
            if self.state.grants.get(*grant).terms < GrantTerms::PLAIN {
                less = less.saturating_sub(plain.take().unwrap_or(0));
            }
            let returned = less.min(*amount);
            *amount = amount.saturating_sub(returned);
            less = less.saturating_sub(returned);
        }
        parts.retain(|(_, amount)| *amount > 0);
        parts
    }
}
