//! The records of templates, ordered by namespace and place.

use crate::book::codec::{self, put_definition};
use crate::book::{Book, NamespaceId};
use crate::limits::{Revised, State, TEMPLATES_MAX, TemplateId};
use crate::wire::{Bytes, Malformed, Put};

/// All templates, in order.
pub(super) fn all_templates(state: &State) -> impl Iterator<Item = (NamespaceId, TemplateId, &Revised)> + Send + '_ {
    let namespaces = (0..=u16::MAX).map(NamespaceId).zip(&state.templates);
    namespaces.flat_map(|(namespace, templates)| {
        let all = (0..=u16::MAX).map(TemplateId).zip(&templates.all);
        all.filter_map(move |(id, template)| Some((namespace, id, template.as_deref()?)))
    })
}

pub(super) fn put_template(out: &mut Vec<u8>, namespace: NamespaceId, id: TemplateId, revised: &Revised) {
    out.put_u16(namespace.0);
    out.put_u16(id.0);
    out.put_u64(revised.revision);
    put_definition(out, revised.template.definition());
}

/// Restores a template, which must follow `last`.
pub(super) fn read_template(
    book: &mut Book,
    last: &mut Option<(NamespaceId, TemplateId)>,
    input: &mut Bytes<'_>,
) -> Result<(), Malformed> {
    let (namespace, id, revision) = (NamespaceId(input.u16()?), TemplateId(input.u16()?), input.u64()?);
    let template = codec::template(input).map_err(|_| Malformed("a template is invalid"))?;
    if last.replace((namespace, id)).is_some_and(|last| last >= (namespace, id)) {
        return Err(Malformed("templates are doubled or out of order"));
    }
    let limits = &mut book.limits;
    if revision == 0 || revision > limits.state.revision || !limits.has_namespace(namespace) {
        return Err(Malformed("a template has no revision or no namespace"));
    }
    if limits.has_shape(namespace, template.key()) || limits.template_count(namespace) >= TEMPLATES_MAX {
        return Err(Malformed("templates are too many or differ in names of placeholders only"));
    }
    limits.add_template(namespace, id, Revised { template, revision });
    Ok(())
}
