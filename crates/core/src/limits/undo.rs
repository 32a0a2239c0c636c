//! Undo of definition changes when a later operation of the same transaction is refused.

use std::sync::Arc;

use super::{Limit, LimitSlot, Limits, Text};
use crate::book::NamespaceId;
use crate::id::LimitKey;

/// A limit before a change. A derived one has no text.
pub(crate) enum UndoLimit {
    New { namespace: NamespaceId, key: LimitKey },
    Changed { slot: LimitSlot, limit: Box<Limit>, text: Option<Arc<Text>>, debt: u128, target: Option<u64> },
}

impl UndoLimit {
    /// The namespace of the limit.
    pub(super) fn namespace(&self) -> NamespaceId {
        match self {
            UndoLimit::New { namespace, .. } => *namespace,
            UndoLimit::Changed { limit, .. } => limit.namespace,
        }
    }
}

impl Limits {
    /// Records the limit before its next change.
    pub(crate) fn remember(&self, namespace: NamespaceId, key: &LimitKey) -> UndoLimit {
        match self.resolve(namespace, key) {
            None => UndoLimit::New { namespace, key: key.clone() },
            Some(slot) => self.remember_slot(slot),
        }
    }

    /// Records the limit in a slot before its next change.
    pub(super) fn remember_slot(&self, slot: LimitSlot) -> UndoLimit {
        let (limit, text) = (Box::new(self.state.limits[slot]), self.state.text(slot).cloned());
        let (debt, target) = (self.state.debt(slot), self.state.targets.get(slot).copied());
        UndoLimit::Changed { slot, limit, text, debt, target }
    }

    /// Undoes a change; call it for the latest change first, before deleted limits are freed.
    pub(crate) fn undo(&mut self, undo: UndoLimit) {
        self.version = self.version.wrapping_add(1);
        self.restore_limit(undo);
    }

    /// Undoes a change that nobody has seen. The timeline stays as it is: definitions do not change it, and its old
    /// nodes may have been freed.
    pub(super) fn restore_limit(&mut self, undo: UndoLimit) {
        match undo {
            UndoLimit::New { namespace, key } => {
                if let Some(slot) = self.resolve(namespace, &key) {
                    self.unname_limit(slot);
                    self.state.limits.undo_insert(slot);
                    self.state.note_limit(slot);
                }
            }
            UndoLimit::Changed { slot, limit, text, debt, target } => {
                self.count_reclaimable(slot, false);
                self.retext(slot, limit.template, text);
                let text = self.state.limits[slot].text;
                self.state.limits[slot] = Limit { text, ..self.state.limits[slot].before_change(&limit) };
                self.state.set_debt(slot, debt);
                self.state.set_target(slot, target);
                self.state.note_limit(slot);
                self.count_reclaimable(slot, true);
            }
        }
    }

    /// Adds a limit to the counts of derived and of reclaimable limits, or takes it off.
    pub(super) fn count_reclaimable(&mut self, slot: LimitSlot, is_added: bool) {
        let limit = self.state.limits[slot];
        if limit.template().is_some() {
            self.count_derived(slot, is_added);
        } else if limit.is_reclaimable() {
            let count = self.state.reclaimable;
            self.state.reclaimable = if is_added { count.saturating_add(1) } else { count.saturating_sub(1) };
        }
    }
}
