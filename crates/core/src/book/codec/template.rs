//! Templates as bytes: in commands, outcomes, snapshots and the journal.

use super::{CodecError, definition_named, put_definition, put_revision, quota, revision};
use crate::book::{DeleteTemplate, NamespaceId, PutTemplate, TemplateOutcome};
use crate::id::{AccountName, LimitKey};
use crate::limits::Template;
use crate::wire::{Bytes, Put};

type Result<T> = std::result::Result<T, CodecError>;

const UNKNOWN_NAMESPACE: u8 = 1;
const DIFFERS_IN_NAMES_ONLY: u8 = 2;
const REVISION_DIFFERS: u8 = 3;
const NOT_FOUND: u8 = 4;
const KIND_DIFFERS: u8 = 5;
const VAULT_NOT_FOUND: u8 = 6;
const QUOTA_EXCEEDED: u8 = 7;
const CHANGED: u8 = 8;

/// A template, which [`put_definition`] wrote.
pub(crate) fn template(input: &mut Bytes<'_>) -> Result<Template> {
    let definition = definition_named(input, LimitKey::pattern, AccountName::pattern)?;
    Template::new(definition).map_err(|_| CodecError::Malformed("its template is invalid"))
}

pub(super) fn put_put(out: &mut Vec<u8>, tag: u8, command: &PutTemplate<'_>) {
    out.put_u8(tag);
    out.put_u16(command.namespace.0);
    put_revision(out, command.expected_revision);
    put_definition(out, command.template.definition());
}

pub(super) fn put<'a>(input: &mut Bytes<'_>, buffer: &'a mut Option<Template>) -> Result<PutTemplate<'a>> {
    let namespace = NamespaceId(input.u16()?);
    let expected_revision = revision(input)?;
    let template = buffer.insert(template(input)?);
    Ok(PutTemplate { namespace, template, expected_revision })
}

pub(super) fn put_delete(out: &mut Vec<u8>, tag: u8, command: &DeleteTemplate<'_>) {
    out.put_u8(tag);
    out.put_u16(command.namespace.0);
    put_revision(out, command.expected_revision);
    out.put_text(command.key.as_str());
}

pub(super) fn delete<'a>(input: &mut Bytes<'_>, buffer: &'a mut Option<LimitKey>) -> Result<DeleteTemplate<'a>> {
    let namespace = NamespaceId(input.u16()?);
    let expected_revision = revision(input)?;
    let key = buffer.insert(LimitKey::pattern(input.text()?)?);
    Ok(DeleteTemplate { namespace, key, expected_revision })
}

pub(super) fn put_outcome(out: &mut Vec<u8>, outcome: &TemplateOutcome) {
    match outcome {
        TemplateOutcome::UnknownNamespace => out.put_u8(UNKNOWN_NAMESPACE),
        TemplateOutcome::DiffersInNamesOnly { key } => {
            out.put_u8(DIFFERS_IN_NAMES_ONLY);
            out.put_text(key.as_str());
        }
        TemplateOutcome::RevisionDiffers { revision } => {
            out.put_u8(REVISION_DIFFERS);
            out.put_u64(*revision);
        }
        TemplateOutcome::NotFound => out.put_u8(NOT_FOUND),
        TemplateOutcome::KindDiffers => out.put_u8(KIND_DIFFERS),
        TemplateOutcome::VaultNotFound => out.put_u8(VAULT_NOT_FOUND),
        TemplateOutcome::QuotaExceeded(kind) => {
            out.put_u8(QUOTA_EXCEEDED);
            out.put_u8(*kind as u8);
        }
        TemplateOutcome::Changed { revision } => {
            out.put_u8(CHANGED);
            out.put_u64(*revision);
        }
    }
}

pub(super) fn outcome(input: &mut Bytes<'_>) -> Result<TemplateOutcome> {
    Ok(match input.u8()? {
        UNKNOWN_NAMESPACE => TemplateOutcome::UnknownNamespace,
        DIFFERS_IN_NAMES_ONLY => TemplateOutcome::DiffersInNamesOnly { key: LimitKey::pattern(input.text()?)? },
        REVISION_DIFFERS => TemplateOutcome::RevisionDiffers { revision: input.u64()? },
        NOT_FOUND => TemplateOutcome::NotFound,
        KIND_DIFFERS => TemplateOutcome::KindDiffers,
        VAULT_NOT_FOUND => TemplateOutcome::VaultNotFound,
        QUOTA_EXCEEDED => TemplateOutcome::QuotaExceeded(quota::kind(input)?),
        CHANGED => TemplateOutcome::Changed { revision: input.u64()? },
        _ => return Err(CodecError::Malformed("what became of its template is unknown")),
    })
}
