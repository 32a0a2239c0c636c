//! Derived limits: a key that matches a template becomes a limit of its own with its first allowed reserve.
//!
//! A reserve derives its missing limits before it is decided, so that the same rules decide about them. If it is not
//! allowed, they are taken back, and nothing of them is left.

use std::sync::Arc;

use super::reserve::{ResolvedPart, UNKNOWN};
use super::templates::Revised;
use super::undo::UndoLimit;
use super::{Definition, Limit, LimitSlot, Limits, Phase, TemplateId, Text};
use crate::book::{LimitRef, NamespaceId, Reserve};
use crate::id::LimitKey;
use crate::quota::QuotaKind;
use crate::time::UnixMs;

/// The template that a key follows, and the definition that the key has by it.
struct Followed {
    id: TemplateId,
    template: Arc<Revised>,
    definition: Definition,
}

impl Limit {
    pub(crate) fn is_derived(&self) -> bool {
        self.template != TemplateId::NONE
    }

    /// Whether nothing is reserved or owed, so that nothing is lost with the limit.
    fn is_empty(&self) -> bool {
        self.reserved() == 0 && self.debt == 0
    }
}

/// Whole seconds of log time, for the age of the last decision.
pub(super) fn decided_at(now: UnixMs) -> u32 {
    u32::try_from(now.get() / 1_000).unwrap_or(u32::MAX)
}

impl Limits {
    /// Lets the requirements that follow templates name limits: those that are missing are derived, and those of an
    /// older revision take the new one. Limits that were derived are in `self.derived`, to be kept or taken back.
    pub(super) fn follow_templates(&mut self, now: UnixMs, command: &Reserve<'_>, resolved: &mut [ResolvedPart]) {
        let namespace = command.namespace;
        let Some(epoch) = self.epoch(namespace).filter(|epoch| *epoch > 0) else { return };
        let mut is_moved = false;
        for part in resolved.iter_mut() {
            let found = self.state.limit(namespace, part.limit).copied();
            if found.is_some_and(|limit| limit.is_derived() && limit.epoch == epoch) {
                continue;
            }
            let exists = self.advanced(namespace, part.limit, now).is_some();
            let is_derived = found.is_some_and(|limit| limit.is_derived());
            if exists && !is_derived || found.is_none() && part.limit != UNKNOWN {
                continue;
            }
            let key = match &command.requirements[part.position].limit {
                LimitRef::Key(key) => Some(key.clone()),
                LimitRef::Id(_) => self.state.key(part.limit).cloned(),
            };
            let slot = match key.and_then(|key| self.followed(namespace, &key)) {
                None if is_derived => UNKNOWN,
                None => continue,
                Some(followed) => self.follow(now, namespace, part, &followed),
            };
            is_moved |= slot != part.limit;
            part.limit = slot;
        }
        if is_moved {
            resolved.sort_unstable_by_key(|part| part.limit);
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
        let live = self.state.limits.get(part.limit).filter(|limit| limit.is_derived());
        let Some(limit) = live else { return self.derive_limit(now, namespace, followed) };
        if limit.is_of_kind(&followed.definition.kind) {
            self.take_revision(part.limit, followed);
        } else if limit.is_empty() {
            return self.derive_limit(now, namespace, followed);
        } else {
            part.is_blocked = true;
        }
        part.limit
    }

    /// Applies the current revision of a template to a live limit of the same kind.
    fn take_revision(&mut self, slot: LimitSlot, followed: &Followed) {
        self.count_derived(slot, false);
        let epoch = self.epoch(self.state.limits[slot].namespace).unwrap_or_default();
        let limit = &mut self.state.limits[slot];
        limit.define(&followed.definition);
        limit.revision = followed.template.revision;
        limit.template = followed.id;
        limit.epoch = epoch;
        self.count_derived(slot, true);
    }

    /// Adds the limit of a key that follows a template, in the slot of a deleted limit with the same key if there is
    /// one. Notes how to take it back.
    fn derive_limit(&mut self, now: UnixMs, namespace: NamespaceId, followed: &Followed) -> LimitSlot {
        let key = &followed.definition.key;
        self.derived.push(self.remember(namespace, key));
        let derived = Limit {
            namespace,
            revision: followed.template.revision,
            template: followed.id,
            epoch: self.epoch(namespace).unwrap_or_default(),
            decided: decided_at(now),
            ..Limit::of(&followed.definition)
        };
        let slot = match self.resolve(namespace, key) {
            Some(slot) => {
                self.count_derived(slot, false);
                let before = self.state.limits[slot];
                self.state.reclaimable = self.state.reclaimable.saturating_sub(before.is_reclaimable().into());
                let Limit { key_hash, generation, leases, .. } = before;
                self.state.limits[slot] = Limit { key_hash, generation, leases, ..derived };
                self.state.texts[slot.0 as usize] = Some(Arc::new(Text::of_key(key)));
                slot
            }
            None => self.add_limit(derived, Text::of_key(key)),
        };
        self.state.reclaimable = self.state.reclaimable.saturating_add(1);
        self.count_derived(slot, true);
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

    /// Keeps the limits that the reserve derived. Returns their number.
    pub(super) fn keep_derived(&mut self) -> u32 {
        let count = u32::try_from(self.derived.len()).unwrap_or(u32::MAX);
        self.derived.clear();
        count
    }

    /// Takes back the limits that the reserve derived, because it was not allowed.
    pub(super) fn take_back_derived(&mut self) {
        while let Some(undo) = self.derived.pop() {
            self.restore_limit(undo);
        }
    }

    /// Whether the limits that the reserve derived are within the quota and the bound of all limits.
    pub(super) fn has_room_for_derived(&self, namespace: NamespaceId) -> bool {
        self.derived.is_empty()
            || self.state.limits.len() <= self.state.config.limits_max
                && self.derived_of(namespace) <= self.quota(namespace, QuotaKind::DerivedLimits)
    }

    /// Lets a limit that is deleted follow its template instead, if something is reserved or owed or a lease names it.
    /// Returns whether it does.
    pub(super) fn follow_instead(&mut self, now: UnixMs, slot: LimitSlot) -> bool {
        let limit = self.state.limits[slot];
        let key = self.state.key(slot).cloned();
        let followed = key.and_then(|key| self.followed(limit.namespace, &key));
        let Some(followed) = followed.filter(|followed| limit.is_of_kind(&followed.definition.kind)) else {
            return false;
        };
        if limit.is_empty() && limit.leases == 0 {
            return false;
        }
        self.take_revision(slot, &followed);
        self.state.limits[slot].decided = decided_at(now);
        self.state.texts[slot.0 as usize] = Some(Arc::new(Text::of_key(&followed.definition.key)));
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

    /// The definition of a derived limit by its template; `None` if no template matches its key any more.
    pub(super) fn derived_definition(&self, slot: LimitSlot) -> Option<(Definition, LimitKey)> {
        let namespace = self.state.limits.get(slot)?.namespace;
        let followed = self.followed(namespace, self.state.key(slot)?)?;
        Some((followed.definition, followed.template.template.key().clone()))
    }

    /// Whether a limit is derived and no template matches its key any more, so that the key is unknown.
    pub(super) fn is_orphan(&self, slot: LimitSlot) -> bool {
        let Some(limit) = self.state.limits.get(slot).filter(|limit| limit.is_derived()) else { return false };
        let is_current = self.epoch(limit.namespace) == Some(limit.epoch);
        !is_current && self.state.key(slot).is_none_or(|key| self.followed(limit.namespace, key).is_none())
    }

    /// Whether the sweep frees a derived limit: no lease names it, nothing is reserved, and it is an orphan, or nothing
    /// is owed and its last decision is older than the retention time.
    pub(super) fn is_evictable(&self, slot: LimitSlot, now: UnixMs) -> bool {
        let Some(limit) = self.state.limits.get(slot).filter(|limit| limit.is_derived()) else { return false };
        if limit.leases > 0 || limit.reserved() > 0 {
            return false;
        }
        let retention_seconds = self.state.config.retention_ms.div_ceil(1_000);
        let is_old = u64::from(decided_at(now)) > u64::from(limit.decided).saturating_add(retention_seconds);
        is_old && limit.debt == 0 || self.is_orphan(slot)
    }

    /// The number of derived limits of a namespace.
    pub(crate) fn derived_of(&self, namespace: NamespaceId) -> u64 {
        let live = self.live.get(usize::from(namespace.0));
        live.map_or(0, |live| live.iter().fold(0, |sum, count| sum.saturating_add(u64::from(*count))))
    }

    /// The number of limits that are derived from a template, or were from one that was deleted.
    pub(super) fn live(&self, namespace: NamespaceId, id: TemplateId) -> u32 {
        let live = self.live.get(usize::from(namespace.0));
        live.and_then(|live| live.get(usize::from(id.0))).copied().unwrap_or(0)
    }

    /// Counts a derived limit for its template, or takes it off. Does nothing for others.
    pub(crate) fn count_derived(&mut self, slot: LimitSlot, is_added: bool) {
        let Some(limit) = self.state.limits.get(slot).filter(|limit| limit.is_derived()) else { return };
        let place = usize::from(limit.template.0);
        let Some(live) = self.live.get_mut(usize::from(limit.namespace.0)) else { return };
        if live.len() <= place {
            live.resize(place.saturating_add(1), 0);
        }
        live[place] = if is_added { live[place].saturating_add(1) } else { live[place].saturating_sub(1) };
    }
}

impl Text {
    /// The text of a derived limit; the rest is in its template.
    pub(crate) fn of_key(key: &LimitKey) -> Text {
        Text { key: key.clone(), unit: String::new(), description: String::new(), credit: None }
    }
}
