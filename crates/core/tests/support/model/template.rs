//! Templates of the model: a list, searched from one end to the other.

use earmark_core::{
    Definition, DeleteTemplate, LimitId, LimitKey, LimitRef, NamespaceId, Part, PutTemplate, QuotaKind, TEMPLATES_MAX,
    Template, TemplateInfo, TemplateOutcome,
};

use super::Model;
use super::limit::{Derived, Limit, LimitPhase};
use super::parts::Named;

#[derive(Clone, Debug)]
pub struct ModelTemplate {
    pub namespace: NamespaceId,
    pub template: Template,
    pub revision: u64,
    /// It keeps its number until it is deleted.
    pub number: u64,
}

/// The template that a key follows, and its definition by it.
pub struct Followed {
    pub number: u64,
    pub revision: u64,
    pub template: LimitKey,
    pub definition: Definition,
}

/// How the requirements of a reserve follow templates.
#[derive(Default)]
pub struct Following {
    /// The requirements whose limits are in use with another kind.
    pub blocked: Vec<usize>,
    /// The limits that were derived, and those that they replace.
    pub derived: Vec<(LimitId, Option<Limit>)>,
    /// The requirements whose limits took a new revision, and these limits before.
    pub revised: Vec<(usize, LimitId, Limit)>,
}

impl Model {
    pub fn put_template(&mut self, put: PutTemplate<'_>) -> TemplateOutcome {
        if !self.knows(put.namespace) {
            return TemplateOutcome::UnknownNamespace;
        }
        let of_shape = |one: &&ModelTemplate| {
            one.namespace == put.namespace && shape(one.template.key()) == shape(put.template.key())
        };
        let found = self.templates.iter().find(of_shape);
        if let Some(other) = found.filter(|other| other.template.key() != put.template.key()) {
            return TemplateOutcome::DiffersInNamesOnly { key: other.template.key().clone() };
        }
        let revision = found.map_or(0, |found| found.revision);
        if put.expected_revision.is_some_and(|expected| expected != revision) {
            return TemplateOutcome::RevisionDiffers { revision };
        }
        match found {
            Some(found) if found.template == *put.template => return TemplateOutcome::Changed { revision },
            Some(found) if !found.template.definition().kind.is_same_kind(&put.template.definition().kind) => {
                return TemplateOutcome::KindDiffers;
            }
            Some(_) => {}
            None => {
                let used = self.used(self.time(), put.namespace, QuotaKind::Templates);
                if used >= self.quota(put.namespace, QuotaKind::Templates).min(TEMPLATES_MAX) {
                    return TemplateOutcome::QuotaExceeded(QuotaKind::Templates);
                }
            }
        }
        let number = found.map_or(self.template_number + 1, |found| found.number);
        self.template_number = self.template_number.max(number);
        self.revision += 1;
        self.template_changes.insert(put.namespace, self.revision);
        self.templates.retain(|one| !(one.namespace == put.namespace && one.template.key() == put.template.key()));
        let (namespace, template) = (put.namespace, put.template.clone());
        self.templates.push(ModelTemplate { namespace, template, revision: self.revision, number });
        TemplateOutcome::Changed { revision: self.revision }
    }

    pub fn delete_template(&mut self, delete: DeleteTemplate<'_>) -> TemplateOutcome {
        if !self.knows(delete.namespace) {
            return TemplateOutcome::UnknownNamespace;
        }
        let is_meant = |one: &ModelTemplate| one.namespace == delete.namespace && one.template.key() == delete.key;
        let found = self.templates.iter().position(is_meant);
        let revision = found.map_or(0, |place| self.templates[place].revision);
        if delete.expected_revision.is_some_and(|expected| expected != revision) {
            return TemplateOutcome::RevisionDiffers { revision };
        }
        let Some(place) = found else { return TemplateOutcome::NotFound };
        self.templates.remove(place);
        self.revision += 1;
        self.template_changes.insert(delete.namespace, self.revision);
        TemplateOutcome::Changed { revision: self.revision }
    }

    pub fn templates(&self, namespace: NamespaceId) -> Vec<TemplateInfo> {
        let of_namespace = self.templates.iter().filter(|one| one.namespace == namespace);
        let is_of =
            |limit: &Limit, one: &ModelTemplate| limit.derived.is_some_and(|derived| derived.template == one.number);
        let info = |one: &ModelTemplate| TemplateInfo {
            definition: one.template.definition().clone(),
            revision: one.revision,
            live: self.limits.iter().filter(|limit| is_of(limit, one)).count() as u64,
        };
        let mut infos: Vec<TemplateInfo> = of_namespace.map(info).collect();
        infos.sort_by_key(|info| info.definition.key.clone());
        infos
    }

    /// The template that a key follows: of all that match, the one with the leftmost literal.
    pub fn followed(&self, namespace: NamespaceId, key: &LimitKey) -> Option<Followed> {
        let of_namespace = self.templates.iter().filter(|one| one.namespace == namespace);
        let matching = of_namespace.filter(|one| one.template.matches(key));
        let is_placeholder = |one: &&ModelTemplate| -> Vec<bool> {
            shape(one.template.key()).iter().map(|segment| *segment == "{}").collect()
        };
        let best = matching.min_by_key(is_placeholder)?;
        let (number, revision) = (best.number, best.revision);
        let definition = best.template.derive(key)?;
        Some(Followed { number, revision, template: best.template.key().clone(), definition })
    }

    /// The definition of a limit as reads show it, and its template. `None` if it is derived and has none.
    pub fn shown(&self, limit: &Limit) -> Option<(Definition, Option<LimitKey>)> {
        if limit.derived.is_none() {
            return Some((limit.definition.clone(), None));
        }
        let followed = self.followed(limit.namespace, &limit.definition.key)?;
        Some((followed.definition, Some(followed.template)))
    }

    /// The revision of a limit as reads show it. A derived one shows that of its template, as with its definition.
    pub fn shown_revision(&self, limit: &Limit) -> Option<u64> {
        if limit.derived.is_none() {
            return Some(limit.revision);
        }
        Some(self.followed(limit.namespace, &limit.definition.key)?.revision)
    }

    /// Lets a deleted limit that is in use follow its template instead. Returns whether it does.
    pub fn follow_instead(&mut self, id: LimitId) -> bool {
        let (namespace, key) = (self.limits[id].namespace, self.limits[id].definition.key.clone());
        let Some(followed) = self.followed(namespace, &key) else { return false };
        if !self.limits[id].definition.kind.is_same_kind(&followed.definition.kind) {
            return false;
        }
        if self.is_empty(id) && !self.is_named_by_lease(id) {
            return false;
        }
        self.take_revision(id, &followed);
        self.limits[id].decided = self.decided();
        true
    }

    fn is_empty(&self, id: LimitId) -> bool {
        self.reserved(self.time(), id) == 0 && self.limits[id].debt == 0
    }

    fn epoch(&self, namespace: NamespaceId) -> u64 {
        self.template_changes.get(&namespace).copied().unwrap_or(0)
    }

    fn take_revision(&mut self, id: LimitId, followed: &Followed) {
        let derived = Derived { template: followed.number, epoch: self.epoch(self.limits[id].namespace) };
        let reserved = self.reserved(self.time(), id);
        let limit = &mut self.limits[id];
        limit.define(&followed.definition, reserved);
        limit.derived = Some(derived);
        self.finish_decreases();
    }

    pub fn decided(&self) -> u64 {
        (self.time().get() / 1_000).min(u32::MAX.into())
    }

    /// Derives the missing limits of a reserve and gives stale ones the new revision of their templates.
    pub fn follow_templates(&mut self, namespace: NamespaceId, names: &mut [Named], parts: &[Part]) -> Following {
        let mut following = Following::default();
        for (place, name) in names.iter_mut().enumerate() {
            let id = match name {
                Named::Number(id) => Some(*id),
                Named::Unknown(_) => None,
            };
            let found = id.and_then(|id| self.limits.get(id)).cloned();
            let (owner, key) = match (&parts[place].limit, &found) {
                (LimitRef::Key(key), _) => (namespace, key.clone()),
                (LimitRef::Foreign(limit), _) => {
                    let Some(owner) = self.namespaces.iter().position(|name| *name == limit.namespace) else {
                        continue;
                    };
                    (NamespaceId(u16::try_from(owner).unwrap()), limit.key.clone())
                }
                (LimitRef::Id(_), Some(limit)) => (limit.namespace, limit.definition.key.clone()),
                (LimitRef::Id(_), None) => continue,
            };
            let before = found.as_ref().and_then(|limit| limit.derived);
            let exists = found.as_ref().is_some_and(|limit| limit.standing != LimitPhase::Deleted);
            let is_current = before.is_some_and(|before| before.epoch == self.epoch(owner));
            if is_current || exists && before.is_none() {
                continue;
            }
            let followed = self.followed(owner, &key);
            let Some(followed) = followed.filter(|it| owner == namespace || it.definition.shared) else {
                if before.is_some() {
                    let name_of = |id: NamespaceId| &self.namespaces[usize::from(id.0)];
                    let foreign = LimitKey::in_namespace(name_of(owner), &key);
                    *name = Named::Unknown(foreign.seen_from(name_of(namespace)));
                }
                continue;
            };
            if let (Some(id), Some(_)) = (id, before) {
                if self.limits[id].definition.kind.is_same_kind(&followed.definition.kind) {
                    following.revised.push((place, id, self.limits[id].clone()));
                    self.take_revision(id, &followed);
                    continue;
                }
                if !self.is_empty(id) {
                    following.blocked.push(place);
                    continue;
                }
            }
            let mut limit = Limit::new(owner, &followed.definition);
            limit.derived = Some(Derived { template: followed.number, epoch: self.epoch(owner) });
            limit.decided = self.decided();
            limit.pause = found.as_ref().and_then(|limit| limit.pause.clone());
            let id = match id {
                Some(id) => {
                    self.limits[id] = limit;
                    id
                }
                None => self.limits.add(limit),
            };
            following.derived.push((id, found));
            *name = Named::Number(id);
        }
        following
    }

    /// Takes back the limits that a command derived, unless it was allowed, and the revisions that it gave to limits
    /// of requirements that it did not decide about.
    pub fn take_back(&mut self, following: Following, is_allowed: bool, is_decided: impl Fn(usize) -> bool) {
        for (place, id, before) in following.revised {
            if !is_decided(place) {
                self.limits[id] = before;
            }
        }
        if is_allowed {
            return;
        }
        for (id, before) in following.derived.into_iter().rev() {
            match before {
                Some(limit) => self.limits[id] = limit,
                None => self.limits.take_back(id),
            }
        }
    }
}

/// A key with the names of its placeholders removed.
fn shape(key: &LimitKey) -> Vec<&str> {
    key.as_str().split(':').map(|segment| if segment.starts_with('{') { "{}" } else { segment }).collect()
}
