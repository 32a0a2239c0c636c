//! Templates of the model: a list, searched from one end to the other.

use earmark_core::{
    DeleteTemplate, LimitKey, NamespaceId, PutTemplate, QuotaKind, TEMPLATES_MAX, Template, TemplateInfo,
    TemplateOutcome,
};

use super::Model;

#[derive(Clone, Debug)]
pub struct ModelTemplate {
    pub namespace: NamespaceId,
    pub template: Template,
    pub revision: u64,
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
        self.revision += 1;
        self.templates.retain(|one| !(one.namespace == put.namespace && one.template.key() == put.template.key()));
        let (namespace, template) = (put.namespace, put.template.clone());
        self.templates.push(ModelTemplate { namespace, template, revision: self.revision });
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
        TemplateOutcome::Changed { revision: self.revision }
    }

    pub fn templates(&self, namespace: NamespaceId) -> Vec<TemplateInfo> {
        let of_namespace = self.templates.iter().filter(|one| one.namespace == namespace);
        let info = |one: &ModelTemplate| TemplateInfo {
            definition: one.template.definition().clone(),
            revision: one.revision,
            live: 0,
        };
        let mut infos: Vec<TemplateInfo> = of_namespace.map(info).collect();
        infos.sort_by_key(|info| info.definition.key.clone());
        infos
    }
}

/// A key with the names of its placeholders removed.
fn shape(key: &LimitKey) -> Vec<&str> {
    key.as_str().split(':').map(|segment| if segment.starts_with('{') { "{}" } else { segment }).collect()
}
