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

    /// Takes back a limit that nobody has seen.
    pub fn take_back(&mut self, id: LimitId) {
        let slot = id.slot as usize;
        self.slots[slot].limit = None;
        if slot + 1 == self.slots.len() && id.generation == 0 {
            self.slots.pop();
        }
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
        for limit in std::mem::take(&mut self.cleared) {
            self.evict(limit);
        }
        let derived = std::mem::take(&mut self.derived_now);
        let may_go = |limit: &Limit| {
            limit.derived.is_some() || matches!(limit.standing, LimitPhase::Deleting | LimitPhase::Deleted)
        };
        if !self.limits.iter().any(may_go) {
            return;
        }
        let count = self.limits.slots.len();
        let swept = if is_tick { SWEPT_PER_TICK } else { SWEPT_PER_COMMAND + 4 * derived };
        for _ in 0..count.min(swept) {
            let slot = if self.limits.sweep >= count { 0 } else { self.limits.sweep };
            self.limits.sweep = slot + 1;
            self.free_if_gone(self.limits.id(slot));
            self.evict(self.limits.id(slot));
        }
    }

    fn free_if_gone(&mut self, id: LimitId) {
        let is_deleted = self.limits.get(id).is_some_and(|limit| limit.standing == LimitPhase::Deleted);
        if is_deleted && !self.is_named_by_lease(id) && !self.is_paused(id) {
            self.free(id);
        }
    }

    fn free(&mut self, id: LimitId) {
        let slot = &mut self.limits.slots[id.slot as usize];
        *slot = Slot { generation: slot.generation + 1, limit: None };
    }

    fn is_paused(&self, id: LimitId) -> bool {
        self.limits.get(id).is_some_and(|limit| limit.pause_at(self.time()).is_some())
    }

    pub fn is_named_by_lease(&self, id: LimitId) -> bool {
        let names = |fate: &Fate| match fate {
            Fate::Held { parts, .. } => parts.iter().any(|part| part.limit == id),
            _ => false,
        };
        self.leases.iter().any(|lease| names(&lease.fate))
    }

    /// Frees a derived limit that nothing needs: idle for the retention time, or without a template.
    fn evict(&mut self, id: LimitId) {
        let Some(limit) = self.limits.get(id).filter(|limit| limit.derived.is_some()) else { return };
        if self.is_named_by_lease(id) || self.is_paused(id) || self.reserved(self.time(), id) > 0 {
            return;
        }
        let now = u32::try_from(self.time().get() / 1_000).unwrap_or(u32::MAX);
        let is_old = u64::from(now) > limit.decided + self.config.retention_ms.div_ceil(1_000);
        let has_template = self.followed(limit.namespace, &limit.definition.key).is_some();
        if is_old && limit.debt == 0 || !has_template {
            self.free(id);
        }
    }
}
