//! The records of templates, ordered by namespace and place. The revision of the last change of a namespace comes first.

use crate::book::codec::template;
use crate::book::{Book, NamespaceId};
use crate::limits::{Revised, State, TEMPLATES_MAX, TemplateId};
use crate::wire::{Bytes, Malformed, Put, Wire};

const CHANGES: u8 = 1;
const TEMPLATE: u8 = 2;

/// A record about templates.
#[derive(Clone, Copy)]
pub(super) enum TemplateRecord<'a> {
    /// The revision of the last change of a namespace's templates.
    Changes(NamespaceId, u64),
    Template(NamespaceId, TemplateId, &'a Revised),
}

/// The place of a record in the order.
pub(super) type TemplatePlace = (NamespaceId, Option<TemplateId>);

/// All records, in order.
pub(super) fn all_templates(state: &State) -> impl Iterator<Item = TemplateRecord<'_>> + Send {
    let namespaces = (0..=u16::MAX).map(NamespaceId).zip(&state.templates);
    namespaces.filter(|(_, templates)| templates.changed > 0).flat_map(|(namespace, templates)| {
        let all = (0..=u16::MAX).map(TemplateId).zip(&templates.all);
        let all = all.filter_map(move |(id, template)| {
            template.as_deref().map(|template| TemplateRecord::Template(namespace, id, template))
        });
        std::iter::once(TemplateRecord::Changes(namespace, templates.changed)).chain(all)
    })
}

impl TemplateRecord<'_> {
    pub(super) fn put(self, out: &mut Vec<u8>) {
        match self {
            TemplateRecord::Changes(namespace, revision) => {
                out.put_u8(CHANGES);
                out.put_u16(namespace.0);
                out.put_u64(revision);
            }
            TemplateRecord::Template(namespace, id, revised) => {
                out.put_u8(TEMPLATE);
                out.put_u16(namespace.0);
                out.put_u16(id.0);
                out.put_u64(revised.revision);
                revised.template.definition().write(out);
            }
        }
    }
}

/// Restores a record, which must follow `last`.
pub(super) fn read_template(
    book: &mut Book,
    last: &mut Option<TemplatePlace>,
    input: &mut Bytes<'_>,
) -> Result<(), Malformed> {
    let (tag, namespace) = (input.u8()?, NamespaceId(input.u16()?));
    let id = match tag {
        CHANGES => None,
        TEMPLATE => Some(TemplateId(input.u16()?)),
        _ => return Err(Malformed("a record of templates is unknown")),
    };
    if last.replace((namespace, id)).is_some_and(|last| last >= (namespace, id)) {
        return Err(Malformed("templates are doubled or out of order"));
    }
    let limits = &mut book.limits;
    let Some(id) = id else {
        let revision = input.u64()?;
        return match limits.restore_changed(namespace, revision) {
            true => Ok(()),
            false => Err(Malformed("templates are of no namespace, or were never changed")),
        };
    };
    let revision = input.u64()?;
    let template = template(input).map_err(|_| Malformed("a template is invalid"))?;
    if revision == 0 || revision > limits.templates_revision(namespace) || id == TemplateId::NONE {
        return Err(Malformed("a template has no revision or no place"));
    }
    if limits.has_shape(namespace, template.key()) || limits.template_count(namespace) >= TEMPLATES_MAX {
        return Err(Malformed("templates are too many or differ in names of placeholders only"));
    }
    limits.add_template(namespace, id, Revised { template, revision });
    Ok(())
}
