//! Extensions of leases.

use super::{CodecError, call, lease, parts, put_lease, put_parts};
use crate::book::{Extend, ExtendStep, Part};
use crate::wire::{Bytes, Put};

pub(super) fn put(out: &mut Vec<u8>, tag: u8, command: &Extend<'_>) {
    out.put_u8(tag);
    put_lease(out, command.namespace, command.lease);
    out.put_u32(command.number);
    out.put_u8(command.step as u8);
    out.put_u8(command.renew.into());
    call::put_claim(out, command.claim);
    put_parts(out, command.add);
    put_parts(out, command.used);
}

pub(super) fn extend<'a>(
    input: &mut Bytes<'_>,
    add: &'a mut Vec<Part>,
    used: &'a mut Vec<Part>,
) -> Result<Extend<'a>, CodecError> {
    let (namespace, lease) = lease(input)?;
    let number = input.u32()?;
    let step =
        ExtendStep::from_code(input.u8()?).ok_or(CodecError::Malformed("the step of its extension is unknown"))?;
    let (renew, claim) = (input.bool()?, call::claim(input)?);
    Ok(Extend { namespace, lease, number, add: parts(input, add)?, used: parts(input, used)?, renew, step, claim })
}
