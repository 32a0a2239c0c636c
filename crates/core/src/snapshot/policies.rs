//! The records of policies, ordered by namespace and revision.

use crate::book::{Book, NamespaceId};
use crate::policies::PolicyRevision;
use crate::wire::{Bytes, Malformed, Put};

pub(super) fn put_policy(out: &mut Vec<u8>, namespace: NamespaceId, policy: &PolicyRevision) {
    out.put_u16(namespace.0);
    out.put_u64(policy.revision);
    out.put_text(&policy.text);
}

/// Restores a record, which must be of the namespace of the last one or a later one.
pub(super) fn read_policy(
    book: &mut Book,
    last: &mut Option<NamespaceId>,
    input: &mut Bytes<'_>,
) -> Result<(), Malformed> {
    let (namespace, revision) = (NamespaceId(input.u16()?), input.u64()?);
    let text = input.text()?.into();
    if last.replace(namespace).is_some_and(|last| last > namespace) || !book.limits.has_namespace(namespace) {
        return Err(Malformed("policies are out of order or of no namespace"));
    }
    let is_given = revision > 0 && revision <= book.limits.state.revision;
    if is_given && book.policies.restore(namespace, PolicyRevision { revision, text }) {
        Ok(())
    } else {
        Err(Malformed("a policy is too long, or its revisions are too many or out of order"))
    }
}
