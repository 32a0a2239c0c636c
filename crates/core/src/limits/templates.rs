//! The templates of each namespace, and the search for the template of a key.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Definition, Limits, Template};
use crate::book::{DeleteTemplate, NamespaceId, PutTemplate, TemplateOutcome};
use crate::id::LimitKey;
use crate::id::pattern::{Segment, segments};
use crate::quota::QuotaKind;

/// The maximum number of templates of a namespace.
pub const TEMPLATES_MAX: u64 = 1_024;

/// A template of a namespace, by its place in the namespace's table. A free place is given out again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TemplateId(pub(crate) u16);

impl TemplateId {
    /// Stands for no template.
    pub(crate) const NONE: TemplateId = TemplateId(u16::MAX);
}

impl Default for TemplateId {
    fn default() -> TemplateId {
        TemplateId::NONE
    }
}

/// A template and its revision.
#[derive(Clone, Debug)]
pub(crate) struct Revised {
    pub(crate) template: Template,
    pub(crate) revision: u64,
}

/// The templates of one namespace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Templates {
    /// The revision of their last change; 0 if there never were any. A derived limit that has seen another one looks
    /// for its template again.
    pub(crate) changed: u64,
    /// By [`TemplateId`]; `None` is free.
    pub(crate) all: Vec<Option<Arc<Revised>>>,
}

/// A template, as a list shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateInfo {
    /// The definition, with placeholders in its key and account.
    pub definition: Definition,
    /// The revision.
    pub revision: u64,
    /// The number of limits that are derived from it now.
    pub live: u64,
}

/// The templates of a namespace by the segments of their keys.
#[derive(Debug, Default)]
pub(crate) struct Branch {
    literals: BTreeMap<Box<str>, Branch>,
    placeholder: Option<Box<Branch>>,
    template: Option<TemplateId>,
}

impl Branch {
    /// The template of a key. A literal is tried before a placeholder, so the leftmost literal wins.
    pub(crate) fn find(&self, key: &str) -> Option<TemplateId> {
        self.find_rest(Some(key))
    }

    fn find_rest(&self, rest: Option<&str>) -> Option<TemplateId> {
        let Some(rest) = rest else { return self.template };
        let (segment, rest) = match rest.split_once(':') {
            Some((segment, rest)) => (segment, Some(rest)),
            None => (rest, None),
        };
        let literal = self.literals.get(segment).and_then(|branch| branch.find_rest(rest));
        let placeholder = || self.placeholder.as_ref().filter(|_| !segment.is_empty())?.find_rest(rest);
        literal.or_else(placeholder)
    }

    /// The template with the same literals and placeholders in the same places, whatever their names.
    fn same_shape(&self, key: &LimitKey) -> Option<TemplateId> {
        let mut branch = self;
        for segment in segments(key.as_str()) {
            branch = match segment {
                Segment::Literal(literal) => branch.literals.get(literal)?,
                Segment::Placeholder(_) => branch.placeholder.as_deref()?,
            };
        }
        branch.template
    }

    pub(super) fn insert(&mut self, key: &LimitKey, id: TemplateId) {
        let mut branch = self;
        for segment in segments(key.as_str()) {
            branch = match segment {
                Segment::Literal(literal) => branch.literals.entry(literal.into()).or_default(),
                Segment::Placeholder(_) => branch.placeholder.get_or_insert_default(),
            };
        }
        branch.template = Some(id);
    }

    /// Removes a template and the branches that lead to no other. Returns whether this one leads nowhere now.
    fn remove<'a>(&mut self, mut rest: impl Iterator<Item = Segment<'a>>) -> bool {
        match rest.next() {
            None => self.template = None,
            Some(Segment::Literal(literal)) => {
                if self.literals.get_mut(literal).is_some_and(|branch| branch.remove(rest)) {
                    self.literals.remove(literal);
                }
            }
            Some(Segment::Placeholder(_)) => {
                if self.placeholder.as_mut().is_some_and(|branch| branch.remove(rest)) {
                    self.placeholder = None;
                }
            }
        }
        self.template.is_none() && self.placeholder.is_none() && self.literals.is_empty()
    }
}

impl Templates {
    pub(crate) fn get(&self, id: TemplateId) -> Option<&Arc<Revised>> {
        self.all.get(usize::from(id.0))?.as_ref()
    }

    pub(crate) fn count(&self) -> u64 {
        self.all.iter().flatten().count() as u64
    }

    /// Sets the template at a place, and drops free places from the end.
    pub(crate) fn set(&mut self, id: TemplateId, template: Option<Arc<Revised>>) {
        let position = usize::from(id.0);
        if self.all.len() <= position {
            self.all.resize(position.saturating_add(1), None);
        }
        self.all[position] = template;
        while matches!(self.all.last(), Some(None)) {
            self.all.pop();
        }
    }
}

impl Limits {
    pub(crate) fn put_template(&mut self, command: &PutTemplate<'_>) -> TemplateOutcome {
        let PutTemplate { namespace, template, expected_revision } = *command;
        let Some(space) = self.templates_of(namespace) else { return TemplateOutcome::UnknownNamespace };
        let found = self.patterns(namespace).and_then(|patterns| patterns.same_shape(template.key()));
        let old = found.and_then(|id| space.get(id));
        if let Some(other) = old.filter(|old| old.template.key() != template.key()) {
            return TemplateOutcome::DiffersInNamesOnly { key: other.template.key().clone() };
        }
        let revision = old.map_or(0, |old| old.revision);
        if expected_revision.is_some_and(|expected| expected != revision) {
            return TemplateOutcome::RevisionDiffers { revision };
        }
        match old {
            Some(old) if old.template == *template => return TemplateOutcome::Changed { revision },
            Some(old) if !old.template.definition().kind.is_same_kind(&template.definition().kind) => {
                return TemplateOutcome::KindDiffers;
            }
            Some(_) => {}
            None if space.count() >= self.quota(namespace, QuotaKind::Templates).min(TEMPLATES_MAX) => {
                return TemplateOutcome::QuotaExceeded(QuotaKind::Templates);
            }
            None => {}
        }
        let Some(id) = found.or_else(|| self.free_template(namespace)) else {
            return TemplateOutcome::QuotaExceeded(QuotaKind::Templates);
        };
        let revision = self.state.next_revision();
        self.add_template(namespace, id, Revised { template: template.clone(), revision });
        self.note_change(namespace, revision);
        TemplateOutcome::Changed { revision }
    }

    pub(crate) fn delete_template(&mut self, command: &DeleteTemplate<'_>) -> TemplateOutcome {
        let DeleteTemplate { namespace, key, expected_revision } = *command;
        if !self.has_namespace(namespace) {
            return TemplateOutcome::UnknownNamespace;
        }
        let found = self.template_id(namespace, key);
        let revision = found.and_then(|id| self.template(namespace, id)).map_or(0, |found| found.revision);
        if expected_revision.is_some_and(|expected| expected != revision) {
            return TemplateOutcome::RevisionDiffers { revision };
        }
        let Some(id) = found else { return TemplateOutcome::NotFound };
        let revision = self.state.next_revision();
        self.set_template(namespace, id, None);
        if let Some(patterns) = self.patterns.get_mut(usize::from(namespace.0)) {
            patterns.remove(segments(key.as_str()));
        }
        self.note_change(namespace, revision);
        TemplateOutcome::Changed { revision }
    }

    /// Adds a template, or replaces the one with this id, which has the same key.
    pub(crate) fn add_template(&mut self, namespace: NamespaceId, id: TemplateId, template: Revised) {
        if let Some(patterns) = self.patterns.get_mut(usize::from(namespace.0)) {
            patterns.insert(template.template.key(), id);
        }
        self.set_template(namespace, id, Some(Arc::new(template)));
    }

    fn set_template(&mut self, namespace: NamespaceId, id: TemplateId, template: Option<Arc<Revised>>) {
        if let Some(space) = self.state.templates.get_mut(usize::from(namespace.0)) {
            let space = Arc::make_mut(space);
            space.set(id, template);
        }
    }

    /// Restores the revision of the last change of a namespace's templates. Returns false if that is not allowed.
    pub(crate) fn restore_changed(&mut self, namespace: NamespaceId, revision: u64) -> bool {
        let is_allowed = revision > 0 && revision <= self.state.revision && self.has_namespace(namespace);
        if is_allowed {
            self.note_change(namespace, revision);
        }
        is_allowed
    }

    /// Notes the revision of the last change of a namespace's templates.
    fn note_change(&mut self, namespace: NamespaceId, revision: u64) {
        self.version = self.version.wrapping_add(1);
        self.swept_at = None;
        if let Some(space) = self.state.templates.get_mut(usize::from(namespace.0)) {
            Arc::make_mut(space).changed = revision;
            self.has_templates = true;
        }
    }

    /// The lowest free place. That of a deleted template is free once no limit is left of it.
    fn free_template(&self, namespace: NamespaceId) -> Option<TemplateId> {
        let space = self.templates_of(namespace)?;
        let mut places = (0..TemplateId::NONE.0).map(TemplateId);
        places.find(|id| space.get(*id).is_none() && self.live(namespace, *id) == 0)
    }

    /// The revision of the last change of a namespace's templates; 0 if there never were any.
    pub(crate) fn templates_revision(&self, namespace: NamespaceId) -> u64 {
        self.templates_of(namespace).map_or(0, |space| space.changed)
    }

    /// The template that the limit `key` follows.
    pub(super) fn template_for(&self, namespace: NamespaceId, key: &LimitKey) -> Option<TemplateId> {
        // The name of a limit of another namespace is not a key of this one.
        self.patterns(namespace)?.find(key.as_str()).filter(|_| key.foreign().is_none())
    }

    /// The template whose key, with the names of its placeholders, is `key`.
    pub(crate) fn template_id(&self, namespace: NamespaceId, key: &LimitKey) -> Option<TemplateId> {
        let id = self.patterns(namespace)?.same_shape(key)?;
        self.template(namespace, id).filter(|found| found.template.key() == key).map(|_| id)
    }

    /// Whether a template differs from `key` at most in the names of placeholders.
    pub(crate) fn has_shape(&self, namespace: NamespaceId, key: &LimitKey) -> bool {
        self.patterns(namespace).is_some_and(|patterns| patterns.same_shape(key).is_some())
    }

    pub(crate) fn template(&self, namespace: NamespaceId, id: TemplateId) -> Option<&Arc<Revised>> {
        self.templates_of(namespace)?.get(id)
    }

    /// The template that the limit `key` follows.
    pub(crate) fn template_of(&self, namespace: NamespaceId, key: &LimitKey) -> Option<&Arc<Revised>> {
        self.template(namespace, self.template_for(namespace, key)?)
    }

    /// The number of templates of a namespace.
    pub(crate) fn template_count(&self, namespace: NamespaceId) -> u64 {
        self.templates_of(namespace).map_or(0, |space| space.count())
    }

    /// All templates of a namespace, ordered by key.
    pub(crate) fn template_infos(&self, namespace: NamespaceId) -> Vec<TemplateInfo> {
        let places = (0..TemplateId::NONE.0).map(TemplateId);
        let all = self.templates_of(namespace).into_iter().flat_map(|space| places.clone().zip(&space.all));
        let all = all.filter_map(|(id, found)| Some((id, found.as_ref()?)));
        let info = |(id, found): (TemplateId, &Arc<Revised>)| TemplateInfo {
            definition: found.template.definition().clone(),
            revision: found.revision,
            live: self.live(namespace, id).into(),
        };
        let mut infos: Vec<TemplateInfo> = all.map(info).collect();
        infos.sort_unstable_by(|a, b| a.definition.key.cmp(&b.definition.key));
        infos
    }

    fn templates_of(&self, namespace: NamespaceId) -> Option<&Arc<Templates>> {
        self.state.templates.get(usize::from(namespace.0))
    }

    fn patterns(&self, namespace: NamespaceId) -> Option<&Branch> {
        self.patterns.get(usize::from(namespace.0))
    }
}
