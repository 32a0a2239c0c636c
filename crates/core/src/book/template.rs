//! Commands that change templates, and their journal records.

use super::{
    Book, DeleteTemplate, JournalRecord, LimitEdit, LimitEntry, LimitOutcome, NamespaceId, PutTemplate, TemplateOutcome,
};
use crate::id::LimitKey;
use crate::limits::Definition;
use crate::time::Moment;

impl Book {
    pub(super) fn put_template(&mut self, at: Moment, command: &PutTemplate<'_>) -> TemplateOutcome {
        let (namespace, new) = (command.namespace, command.template.definition());
        // Earmark's own puts come from the limits file, which is read before a vault can be opened.
        if self.credits.actor.is_some() && self.lacks_vault(namespace, new) {
            return TemplateOutcome::VaultNotFound;
        }
        if let Some(full) = self.full_journal_for_template(namespace, at) {
            return full;
        }
        let old = self.template_definition(namespace, &new.key);
        let before = self.limits.state.revision;
        let outcome = self.limits.put_template(command);
        if self.limits.state.revision != before {
            self.record_template(at, namespace, LimitEdit::Put { old, new: new.clone() });
        }
        outcome
    }

    pub(super) fn delete_template(&mut self, at: Moment, command: &DeleteTemplate<'_>) -> TemplateOutcome {
        if let Some(full) = self.full_journal_for_template(command.namespace, at) {
            return full;
        }
        let old = self.template_definition(command.namespace, command.key);
        let outcome = self.limits.delete_template(command);
        if let (TemplateOutcome::Changed { .. }, Some(old)) = (&outcome, old) {
            self.record_template(at, command.namespace, LimitEdit::Deleted { old });
        }
        outcome
    }

    fn full_journal_for_template(&self, namespace: NamespaceId, at: Moment) -> Option<TemplateOutcome> {
        match self.full_journal(namespace, at.log)? {
            LimitOutcome::QuotaExceeded(kind) => Some(TemplateOutcome::QuotaExceeded(kind)),
            _ => None,
        }
    }

    fn template_definition(&self, namespace: NamespaceId, key: &LimitKey) -> Option<Definition> {
        let id = self.limits.template_id(namespace, key)?;
        Some(self.limits.template(namespace, id)?.template.definition().clone())
    }

    /// Records the last change of a template in the journal, if the command has an actor.
    fn record_template(&mut self, at: Moment, namespace: NamespaceId, edit: LimitEdit) {
        if let Some(actor) = self.credits.actor.clone() {
            let entry = LimitEntry { at, namespace, edit, revision: self.limits.state.revision, actor };
            self.credits.journal.push(JournalRecord::Template(entry.into()));
        }
    }
}
