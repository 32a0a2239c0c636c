//! Undo of definition changes when a later operation of the same transaction is refused.

use std::sync::Arc;

use super::{Limit, Limits, Text};
use crate::book::{LimitId, NamespaceId};
use crate::id::LimitKey;

/// A limit before a change.
pub(crate) enum UndoLimit {
    New { namespace: NamespaceId, key: LimitKey },
    Changed { id: LimitId, limit: Box<Limit>, text: Arc<Text> },
}

impl Limits {
    /// Records the limit before its next change.
    pub(crate) fn remember(&self, namespace: NamespaceId, key: &LimitKey) -> UndoLimit {
        match self.resolve(namespace, key) {
            None => UndoLimit::New { namespace, key: key.clone() },
            Some(id) => {
                let text = Arc::clone(&self.state.texts[id.0 as usize]);
                UndoLimit::Changed { id, limit: Box::new(self.state.limits[id]), text }
            }
        }
    }

    /// Undoes a change; call it for the latest change first. The timeline stays as it is: definitions do not change
    /// it, and its old nodes may have been freed.
    pub(crate) fn undo(&mut self, undo: UndoLimit) {
        self.version = self.version.wrapping_add(1);
        match undo {
            UndoLimit::New { namespace, key } => {
                let keys = self.keys.get_mut(usize::from(namespace.0));
                if keys.is_some_and(|keys| keys.remove(&key).is_some()) {
                    self.state.limits.pop();
                    self.state.texts.pop();
                }
            }
            UndoLimit::Changed { id, limit, text } => {
                let timeline = self.state.limits[id].timeline;
                self.state.limits[id] = Limit { timeline, ..*limit };
                self.state.texts[id.0 as usize] = text;
            }
        }
    }
}
