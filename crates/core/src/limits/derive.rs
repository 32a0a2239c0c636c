//! Derived limits: a key that matches a template becomes a limit of its own with its first allowed reserve.
//!
//! A reserve derives its missing limits before it is decided, so that the same rules decide about them. If it is not
//! allowed, they are taken back, and nothing of them is left. Extensions and pauses do the same.

use std::sync::Arc;

use super::reserve::{ResolvedPart, UNKNOWN};
use super::templates::Revised;
use super::{Definition, Limit, LimitSlot, Limits, Phase, TemplateId};
use crate::book::{LimitRef, NamespaceId, Reserve};
use crate::id::LimitKey;
use crate::quota::QuotaKind;
use crate::time::UnixMs;

/// The template that a key follows, and the definition that the key has by it.
pub(super) struct Followed {
    pub(super) id: TemplateId,
    pub(super) template: Arc<Revised>,
    pub(super) definition: Definition,
}

/// Derived limits that a command without room for a limit counts as. The sweep looks at four slots for each, so at 256.
/// Otherwise limits that may be evicted would keep new keys out for long.
pub(super) const DERIVED_REFUSED: u32 = 64;

/// Whole seconds of log time, for the age of the last decision.
pub(crate) fn decided_at(now: UnixMs) -> u32 {
    u32::try_from(now.get() / 1_000).unwrap_or(u32::MAX)
}

impl Limits {
    /// Lets the requirements that follow templates name limits: those that are missing are derived, and those of an
    /// older revision take the new one. [`Limits::end_derivation`] keeps both or takes them back.
    #[inline]
    pub(super) fn follow_templates(&mut self, now: UnixMs, command: &Reserve<'_>, resolved: &mut [ResolvedPart]) {
        if !self.is_followed(resolved) {
            self.follow_slowly(now, command, resolved);
        }
    }

    /// Whether all limits are there, and have the current revisions of their templates.
    #[inline]
    pub(super) fn is_followed(&self, resolved: &[ResolvedPart]) -> bool {
        !self.has_templates || self.are_all_current(resolved)
    }

    /// As [`Limits::is_followed`], in a Book that has templates.
    #[inline(never)]
    fn are_all_current(&self, resolved: &[ResolvedPart]) -> bool {
        let is_settled = |limit: &Limit| match limit.template() {
            Some(_) => limit.revision == self.templates_revision(limit.namespace),
            None => matches!(limit.phase, Phase::Active | Phase::Decreasing),
        };
        resolved.iter().all(|part| self.state.limits.get(part.limit).is_some_and(is_settled))
    }

    /// As [`Limits::follow_templates`], if a limit is missing or has an older revision.
    #[inline(never)]
    fn follow_slowly(&mut self, now: UnixMs, command: &Reserve<'_>, resolved: &mut [ResolvedPart]) {
        // Whatever changes below, the limits are looked at again.
        resolved.iter_mut().for_each(|part| (part.room, part.plain) = (0, 0));
        // In the order of the command, so that the slots do not depend on which limits are there.
        resolved.sort_unstable_by_key(|part| part.position);
        for part in resolved.iter_mut() {
            let Some(owner) = self.owner(command, part) else { continue };
            let changed = self.templates_revision(owner);
            let found = self.state.limits.get(part.limit).copied();
            let is_derived = found.is_some_and(|limit| limit.template().is_some());
            if changed == 0 || is_derived && found.is_some_and(|limit| limit.revision == changed) {
                continue;
            }
            // A limit that an operator defined overrides the template.
            if self.advanced(owner, part.limit, now).is_some() && !is_derived {
                continue;
            }
            let key = match &command.requirements[part.position].limit {
                LimitRef::Key(key) => Some(key.clone()),
                LimitRef::Foreign(limit) => Some(limit.key.clone()),
                LimitRef::Id(_) => self.state.key(part.limit),
            };
            let is_open = |followed: &Followed| owner == command.namespace || followed.definition.shared;
            part.limit = match key.and_then(|key| self.followed(owner, &key)).filter(is_open) {
                None if is_derived => UNKNOWN,
                None => part.limit,
                Some(followed) => self.follow(now, owner, part, &followed),
            };
        }
        resolved.sort_unstable_by_key(|part| part.limit);
    }

    /// The namespace whose limit a requirement names.
    fn owner(&self, command: &Reserve<'_>, part: &ResolvedPart) -> Option<NamespaceId> {
        match &command.requirements[part.position].limit {
            LimitRef::Key(_) => Some(command.namespace),
            LimitRef::Foreign(limit) => self.namespace(&limit.namespace),
            LimitRef::Id(_) => self.state.limits.get(part.limit).map(|limit| limit.namespace),
        }
    }

    /// Derives the limit of a part, or gives it the current revision of its template.
    fn follow(
        &mut self,
        now: UnixMs,
        namespace: NamespaceId,
        part: &mut ResolvedPart,
        followed: &Followed,
    ) -> LimitSlot {
        let live = self.state.limits.get(part.limit).filter(|limit| limit.template().is_some());
        let Some(limit) = live else { return self.derive_limit(now, namespace, followed) };
        if limit.is_of_kind(&followed.definition.kind) {
            self.undo_revised.push((part.position, self.remember_slot(part.limit)));
            self.take_revision(part.limit, followed);
        } else if self.is_empty(part.limit) {
            return self.derive_limit(now, namespace, followed);
        } else {
            part.is_blocked = true;
        }
        part.limit
    }

    /// Applies the current revision of a template to a live limit of the same kind.
    fn take_revision(&mut self, slot: LimitSlot, followed: &Followed) {
        self.count_reclaimable(slot, false);
        let changed = self.templates_revision(self.state.limits[slot].namespace);
        if self.state.limits[slot].template().is_none() {
            self.retext(slot, followed.id, None);
        }
        let limit = &mut self.state.limits[slot];
        limit.define(&followed.definition);
        limit.revision = changed;
        limit.template = followed.id;
        let is_decreasing = limit.phase == Phase::Decreasing;
        self.state.set_target(slot, is_decreasing.then_some(followed.definition.capacity));
        self.state.note_limit(slot);
        self.count_reclaimable(slot, true);
    }

    /// Adds the limit of a key that follows a template, in the slot of a limit with the same key that is deleted or
    /// empty, if there is one. Notes how to take it back.
    fn derive_limit(&mut self, now: UnixMs, namespace: NamespaceId, followed: &Followed) -> LimitSlot {
        let key = &followed.definition.key;
        self.undo_derived.push(self.remember(namespace, key));
        let derived = Limit {
            namespace,
            revision: self.templates_revision(namespace),
            template: followed.id,
            decided: decided_at(now),
            ..Limit::of(&followed.definition)
        };
        let Some(slot) = self.resolve(namespace, key) else { return self.add_derived(derived, key) };
        self.count_reclaimable(slot, false);
        self.retext(slot, followed.id, None);
        let Limit { key_hash, text, generation, leases, .. } = self.state.limits[slot];
        self.state.limits[slot] = Limit { key_hash, text, generation, leases, ..derived };
        self.state.note_limit(slot);
        self.count_reclaimable(slot, true);
        slot
    }

    /// Notes that limits were decided about, although nothing was taken.
    pub(super) fn note_decision(&mut self, now: UnixMs, resolved: &[ResolvedPart]) {
        for part in resolved {
            if let Some(limit) = self.state.limits.get_mut(part.limit) {
                limit.decided = decided_at(now);
            }
        }
    }

    /// Keeps the limits that a command derived if it was allowed, else takes them back. A live limit keeps a new
    /// revision of its template only if the command decided about the requirement at its position.
    pub(super) fn end_derivation(&mut self, is_allowed: bool, is_decided: impl Fn(usize) -> bool) {
        if is_allowed {
            self.derived_now = u32::try_from(self.undo_derived.len()).unwrap_or(u32::MAX);
            self.undo_derived.clear();
        }
        while let Some((position, undo)) = self.undo_revised.pop() {
            if !is_decided(position) {
                self.restore_limit(undo);
            }
        }
        while let Some(undo) = self.undo_derived.pop() {
            self.restore_limit(undo);
        }
    }

    /// Whether the limits that the command derived are within the quotas of their owners and the bound of all limits.
    pub(super) fn has_room_for_derived(&self) -> bool {
        let is_within = |owner| self.derived_of(owner) <= self.quota(owner, QuotaKind::DerivedLimits);
        self.undo_derived.is_empty()
            || self.state.limits.len() <= self.state.config.limits_max
                && self.undo_derived.iter().all(|undo| is_within(undo.namespace()))
    }

    /// Lets a limit that is deleted follow its template instead, if something is reserved or owed or a lease names it.
    /// Returns whether it does.
    pub(super) fn follow_instead(&mut self, now: UnixMs, slot: LimitSlot) -> bool {
        let limit = self.state.limits[slot];
        let key = self.state.key(slot);
        let followed = key.and_then(|key| self.followed(limit.namespace, &key));
        let Some(followed) = followed.filter(|followed| limit.is_of_kind(&followed.definition.kind)) else {
            return false;
        };
        if self.is_empty(slot) && limit.leases == 0 {
            return false;
        }
        self.take_revision(slot, &followed);
        self.state.limits[slot].decided = decided_at(now);
        true
    }

    /// The template of a key and the definition by it. `None` if no template matches, or the account of a credit limit
    /// would be longer than a name may be.
    fn followed(&self, namespace: NamespaceId, key: &LimitKey) -> Option<Followed> {
        let id = self.template_for(namespace, key)?;
        let template = Arc::clone(self.template(namespace, id)?);
        let definition = template.template.derive(key)?;
        Some(Followed { id, template, definition })
    }

    /// The template of a derived limit; `None` if none matches its key any more.
    pub(super) fn followed_by(&self, slot: LimitSlot) -> Option<Followed> {
        let namespace = self.state.limits.get(slot)?.namespace;
        self.followed(namespace, &self.state.key(slot)?)
    }

    /// Whether a derived limit follows the template that its key has now, and is of its kind.
    pub(crate) fn is_of_its_template(&self, slot: LimitSlot) -> bool {
        let limit = &self.state.limits[slot];
        let is_it = |found: Followed| found.id == limit.template && limit.is_of_kind(&found.definition.kind);
        self.followed_by(slot).is_some_and(is_it)
    }

    /// Whether nothing is reserved or owed, so that nothing is lost with the limit.
    fn is_empty(&self, slot: LimitSlot) -> bool {
        self.state.limits[slot].reserved() == 0 && self.state.debt(slot) == 0
    }

    /// Whether a limit is derived and its namespace's templates changed since it last took a revision.
    pub(super) fn is_stale(&self, limit: &Limit) -> bool {
        limit.template().is_some() && self.templates_revision(limit.namespace) != limit.revision
    }

    /// Whether a limit is derived and no template matches its key any more, so that the key is unknown.
    pub(super) fn is_orphan(&self, slot: LimitSlot) -> bool {
        let Some(limit) = self.state.limits.get(slot) else { return false };
        self.is_stale(limit) && self.state.key(slot).is_none_or(|key| self.followed(limit.namespace, &key).is_none())
    }

    /// Whether the sweep frees a derived limit: no lease names it, nothing is reserved, and it is an orphan, or nothing
    /// is owed and its last decision is older than the retention time.
    pub(super) fn is_evictable(&self, slot: LimitSlot, now: UnixMs) -> bool {
        let Some(limit) = self.state.limits.get(slot).filter(|limit| limit.template().is_some()) else { return false };
        if limit.leases > 0 || limit.reserved() > 0 {
            return false;
        }
        let retention_seconds = self.state.config.retention_ms.div_ceil(1_000);
        let is_old = u64::from(decided_at(now)) > u64::from(limit.decided).saturating_add(retention_seconds);
        is_old && self.state.debt(slot) == 0 || self.is_orphan(slot)
    }

    /// The number of limits that are derived from a template, or were from one that was deleted.
    pub(super) fn live(&self, namespace: NamespaceId, id: TemplateId) -> u32 {
        let live = self.live.get(usize::from(namespace.0));
        live.and_then(|live| live.get(usize::from(id.0))).copied().unwrap_or(0)
    }

    /// Counts a derived limit for its template, or takes it off.
    pub(super) fn count_live(&mut self, slot: LimitSlot, is_added: bool) {
        let limit = &self.state.limits[slot];
        let place = usize::from(limit.template.0);
        let Some(live) = self.live.get_mut(usize::from(limit.namespace.0)) else { return };
        if live.len() <= place {
            live.resize(place.saturating_add(1), 0);
        }
        live[place] = if is_added { live[place].saturating_add(1) } else { live[place].saturating_sub(1) };
    }
}
