//! The ids of limits in the model: which slot a limit gets, and when it is freed.

use std::ops::{Index, IndexMut};

use earmark_core::LimitId;

use super::Model;
use super::lease::{Fate, Held};
use super::limit::{Limit, LimitPhase};

const SWEPT_PER_COMMAND: usize = 2;
const SWEPT_PER_TICK: usize = 1_024;

/// Limits by slot.
#[derive(Clone, Debug, Default)]
pub struct Slots {
    slots: Vec<Slot>,
    sweep: usize,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    generation: u32,
    limit: Option<Limit>,
}

impl Slots {
    /// Puts a limit into the first free slot.
    pub fn add(&mut self, limit: Limit) -> LimitId {
        let slot = self.slots.iter().position(|slot| slot.limit.is_none()).unwrap_or(self.slots.len());
        self.slots.resize(self.slots.len().max(slot + 1), Slot::default());
        self.slots[slot].limit = Some(limit);
        self.id(slot)
    }

    fn id(&self, slot: usize) -> LimitId {
        LimitId { slot: u32::try_from(slot).unwrap(), generation: self.slots[slot].generation }
    }

    pub fn get(&self, id: LimitId) -> Option<&Limit> {
        let slot = self.slots.get(id.slot as usize)?;
        slot.limit.as_ref().filter(|_| slot.generation == id.generation)
    }

    pub fn ids(&self) -> Vec<LimitId> {
        (0..self.slots.len()).filter(|slot| self.slots[*slot].limit.is_some()).map(|slot| self.id(slot)).collect()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Limit> {
        self.slots.iter().filter_map(|slot| slot.limit.as_ref())
    }
}

impl Index<LimitId> for Slots {
    type Output = Limit;

    fn index(&self, id: LimitId) -> &Limit {
        self.get(id).unwrap_or_else(|| panic!("{id:?} is stale"))
    }
}

impl IndexMut<LimitId> for Slots {
    fn index_mut(&mut self, id: LimitId) -> &mut Limit {
        assert!(self.get(id).is_some(), "{id:?} is stale");
        self.slots[id.slot as usize].limit.as_mut().unwrap()
    }
}

impl Model {
    /// Looks at a deleted limit, or at those of a lease that has ended, at the end of the command.
    pub fn look_at(&mut self, limit: LimitId) {
        self.touched.push(limit);
    }

    pub fn look_at_all(&mut self, parts: &[Held]) {
        self.touched.extend(parts.iter().map(|part| part.limit));
    }

    /// Frees deleted limits that no lease names, if the command touched them or the sweep comes by.
    pub fn sweep(&mut self, is_tick: bool) {
        for limit in std::mem::take(&mut self.touched) {
            self.free_if_gone(limit);
        }
        let may_go = |limit: &Limit| matches!(limit.standing, LimitPhase::Deleting | LimitPhase::Deleted);
        if !self.limits.iter().any(may_go) {
            return;
        }
        let count = self.limits.slots.len();
        for _ in 0..count.min(if is_tick { SWEPT_PER_TICK } else { SWEPT_PER_COMMAND }) {
            let slot = if self.limits.sweep >= count { 0 } else { self.limits.sweep };
            self.limits.sweep = slot + 1;
            self.free_if_gone(self.limits.id(slot));
        }
    }

    fn free_if_gone(&mut self, id: LimitId) {
        let is_deleted = self.limits.get(id).is_some_and(|limit| limit.standing == LimitPhase::Deleted);
        let names = |fate: &Fate| match fate {
            Fate::Held { parts, .. } => parts.iter().any(|part| part.limit == id),
            _ => false,
        };
        if is_deleted && !self.leases.iter().any(|lease| names(&lease.fate)) {
            let slot = &mut self.limits.slots[id.slot as usize];
            *slot = Slot { generation: slot.generation + 1, limit: None };
        }
    }
}
