//! Undo of definition changes when a later operation of the same transaction is refused.

use std::sync::Arc;

use super::{Limit, LimitSlot, Limits, Text};
use crate::book::NamespaceId;
use crate::id::LimitKey;

/// A limit before a change.
pub(crate) enum UndoLimit {
    New { namespace: NamespaceId, key: LimitKey },
    Changed { slot: LimitSlot, limit: Box<Limit>, text: Arc<Text>, debt: u128 },
}

impl Limits {
    /// Records the limit before its next change.
    pub(crate) fn remember(&self, namespace: NamespaceId, key: &LimitKey) -> UndoLimit {
        let known = self.resolve(namespace, key);
        match known.and_then(|slot| Some((slot, self.state.text(slot)?))) {
            None => UndoLimit::New { namespace, key: key.clone() },
            Some((slot, text)) => {
                let (limit, debt) = (Box::new(self.state.limits[slot]), self.state.debt(slot));
                UndoLimit::Changed { slot, limit, text: Arc::clone(text), debt }
            }
        }
    }

    /// Undoes a change; call it for the latest change first, before deleted limits are freed. The timeline stays as it is: definitions do not change
    /// it, and its old nodes may have been freed.
    pub(crate) fn undo(&mut self, undo: UndoLimit) {
        self.version = self.version.wrapping_add(1);
        match undo {
            UndoLimit::New { namespace, key } => {
                if let Some(slot) = self.resolve(namespace, &key) {
                    self.unname_limit(slot);
                    self.state.limits.undo_insert(slot);
                }
            }
            UndoLimit::Changed { slot, limit, text, debt } => {
                self.state.limits[slot] = self.state.limits[slot].before_change(&limit);
                self.state.set_text(slot, text);
                self.state.set_debt(slot, debt);
            }
        }
    }
}
