//! Commands that change templates, and their journal records.

use super::{
    Book, DeleteTemplate, JournalRecord, LimitEdit, LimitEntry, LimitId, LimitOutcome, LimitStatus, NamespaceId,
    PutTemplate, TemplateOutcome,
};
use crate::id::LimitKey;
use crate::limits::{Definition, LimitInfo, Pause, Usage};
use crate::time::{Moment, UnixMs};

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

    /// The definition that `key` has by its template, and the revision of the template. `None` if no template matches,
    /// or the account of a credit limit would be longer than a name may be.
    #[must_use]
    pub fn derive(&self, namespace: NamespaceId, key: &LimitKey) -> Option<(Definition, u64)> {
        let found = self.limits.template_of(namespace, key)?;
        Some((found.template.derive(key)?, found.revision))
    }

    /// The definition and status of a key: of the limit that was put, or as its template derives it.
    #[must_use]
    pub fn find_limit(&self, now: UnixMs, namespace: NamespaceId, key: &LimitKey) -> Option<LimitInfo> {
        let limit = self.resolve(namespace, key).and_then(|limit| self.limit(now, limit));
        limit.or_else(|| {
            let found = self.limits.template_of(namespace, key)?;
            let (definition, revision) = (found.template.derive(key)?, found.revision);
            let (capacity, status) = (definition.capacity, LimitStatus::Active);
            let template = Some(found.template.key().clone());
            let pause = self.pause_of(now, namespace, key).cloned();
            Some(LimitInfo { definition, capacity, status, revision, template, pause })
        })
    }

    /// Whether a limit is derived from a template.
    #[must_use]
    pub fn is_derived(&self, limit: LimitId) -> bool {
        let slot = self.limits.state.limits.slot(limit);
        slot.is_some_and(|slot| self.limits.state.limits[slot].template().is_some())
    }

    /// The template that a key follows, unless a limit with this key was put.
    #[must_use]
    pub fn template_of(&self, namespace: NamespaceId, key: &LimitKey) -> Option<&LimitKey> {
        let is_defined = self.resolve(namespace, key).is_some_and(|limit| !self.is_derived(limit));
        let found = self.limits.template_of(namespace, key).filter(|_| !is_defined)?;
        Some(found.template.key())
    }

    /// The usage of the limit with this key; see [`Book::usage`] and [`Book::find_limit`].
    #[must_use]
    pub fn find_usage(&self, now: UnixMs, namespace: NamespaceId, key: &LimitKey) -> Option<Usage> {
        if let Some(usage) = self.resolve(namespace, key).and_then(|id| self.usage(now, id)) {
            return Some(usage);
        }
        let (definition, _) = self.derive(namespace, key)?;
        let (capacity, status) = (definition.capacity, LimitStatus::Active);
        let paused_until = self.pause_of(now, namespace, key).map(|pause| pause.until);
        let unused = Usage { capacity, reserved: 0, available: capacity, debt: 0, status, paused_until };
        let balance = definition.kind.terms().and_then(|terms| {
            let vault = self.credits.vault(namespace, &terms.vault)?;
            let account = self.credits.account(vault, &terms.account)?;
            Some((account, self.credits.state.asset(vault, &terms.asset)?))
        });
        let credit = |balance| Usage { paused_until, ..self.credits.usage(self.limits.at(now), balance, status) };
        Some(balance.map_or(unused, credit))
    }

    /// The pause of a key whose limit was deleted, and which follows a template now.
    fn pause_of(&self, now: UnixMs, namespace: NamespaceId, key: &LimitKey) -> Option<&Pause> {
        let slot = self.limits.resolve(namespace, key)?;
        self.limits.state.pauses.get(slot, self.limits.at(now))
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
