//! Commands that change limits, and their journal records.

use super::{
    Book, DeleteLimit, JournalRecord, LimitEdit, LimitEntry, LimitOutcome, NamespaceId, PauseEntry, PauseLimit,
    PauseOutcome, PutLimit,
};
use crate::id::LimitKey;
use crate::limits::Definition;
use crate::time::{Moment, UnixMs};

impl Book {
    pub(super) fn put_limit(&mut self, at: Moment, command: &PutLimit<'_>) -> LimitOutcome {
        let (namespace, new) = (command.namespace, command.definition);
        // Earmark's own puts come from the limits file, which is read before a vault can be opened.
        if self.credits.actor.is_some() && self.lacks_vault(namespace, new) {
            return LimitOutcome::VaultNotFound;
        }
        if let Some(full) = self.full_journal(namespace, at.log) {
            return full;
        }
        let old = self.definition(at.log, namespace, &new.key);
        let outcome = self.limits.put_limit(at.log, command);
        self.record_limit(at, namespace, &outcome, || Some(LimitEdit::Put { old, new: new.clone() }));
        outcome
    }

    pub(super) fn delete_limit(&mut self, at: Moment, command: &DeleteLimit<'_>) -> LimitOutcome {
        if let Some(full) = self.full_journal(command.namespace, at.log) {
            return full;
        }
        let found = self.limits.resolve(command.namespace, command.key);
        let old = found.and_then(|slot| self.limits.limit_info(at.log, slot)).map(|info| info.definition);
        let outcome = self.limits.delete_limit(at.log, command);
        self.record_limit(at, command.namespace, &outcome, || Some(LimitEdit::Deleted { old: old? }));
        outcome
    }

    pub(super) fn pause_limit(&mut self, at: Moment, command: &PauseLimit<'_>) -> PauseOutcome {
        if let Some(LimitOutcome::QuotaExceeded(kind)) = self.full_journal(command.namespace, at.log) {
            return PauseOutcome::QuotaExceeded(kind);
        }
        let outcome = self.limits.pause_limit(at.log, command);
        let until = match outcome {
            PauseOutcome::Paused { until } => Some(until),
            PauseOutcome::Resumed => None,
            _ => return outcome,
        };
        if let Some(actor) = self.credits.actor.clone() {
            let (namespace, key, reason) = (command.namespace, command.key.clone(), command.reason.to_owned());
            self.credits.journal.push(JournalRecord::Pause(PauseEntry { at, namespace, key, until, reason, actor }));
        }
        outcome
    }

    /// The last definition of a limit that was put and exists at `now`.
    pub(super) fn definition(&self, now: UnixMs, namespace: NamespaceId, key: &LimitKey) -> Option<Definition> {
        let limit = self.limits.resolve(namespace, key)?;
        let info = self.limits.limit_info(now, limit)?;
        info.template.is_none().then_some(info.definition)
    }

    /// Whether a definition names a vault that does not exist.
    pub(super) fn lacks_vault(&self, namespace: NamespaceId, definition: &Definition) -> bool {
        let vault = definition.kind.terms().map(|terms| &terms.vault);
        self.limits.has_namespace(namespace)
            && vault.is_some_and(|vault| self.credits.vault(namespace, vault).is_none())
    }

    /// Records a change of a limit in the journal, if the command has an actor.
    fn record_limit(
        &mut self,
        at: Moment,
        namespace: NamespaceId,
        outcome: &LimitOutcome,
        edit: impl FnOnce() -> Option<LimitEdit>,
    ) {
        if let (LimitOutcome::Changed { revision, .. }, Some(actor)) = (outcome, &self.credits.actor)
            && let Some(edit) = edit()
        {
            let entry = LimitEntry { at, namespace, edit, revision: *revision, actor: actor.clone() };
            self.credits.journal.push(JournalRecord::Limit(entry.into()));
        }
    }
}
