//! Templates as bytes: in commands, snapshots and the journal.

use super::{CodecError, definition_named, pattern, revision};
use crate::book::{DeleteTemplate, PutTemplate};
use crate::id::{AccountName, LimitKey};
use crate::limits::Template;
use crate::wire::{Bytes, Put, Wire};

type Result<T> = std::result::Result<T, CodecError>;

/// A template. Its definition was written.
pub(crate) fn template(input: &mut Bytes<'_>) -> Result<Template> {
    let definition = definition_named(input, LimitKey::pattern, AccountName::pattern)?;
    Template::new(definition).map_err(|_| CodecError::Malformed("its template is invalid"))
}

pub(super) fn put_put(out: &mut Vec<u8>, tag: u8, command: &PutTemplate<'_>) {
    out.put_u8(tag);
    command.namespace.write(out);
    revision::write(&command.expected_revision, out);
    command.template.definition().write(out);
}

pub(super) fn put<'a>(input: &mut Bytes<'_>, buffer: &'a mut Option<Template>) -> Result<PutTemplate<'a>> {
    let (namespace, expected_revision) = (Wire::read(input)?, revision::read(input)?);
    let template = buffer.insert(template(input)?);
    Ok(PutTemplate { namespace, template, expected_revision })
}

pub(super) fn put_delete(out: &mut Vec<u8>, tag: u8, command: &DeleteTemplate<'_>) {
    out.put_u8(tag);
    command.namespace.write(out);
    revision::write(&command.expected_revision, out);
    command.key.write(out);
}

pub(super) fn delete<'a>(input: &mut Bytes<'_>, buffer: &'a mut Option<LimitKey>) -> Result<DeleteTemplate<'a>> {
    let (namespace, expected_revision) = (Wire::read(input)?, revision::read(input)?);
    let key = buffer.insert(pattern::read(input)?);
    Ok(DeleteTemplate { namespace, key, expected_revision })
}
