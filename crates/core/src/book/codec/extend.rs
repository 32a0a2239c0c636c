//! Extensions of leases.

use super::{CodecError, call, lease, parts, put_lease, put_parts, time};
use crate::book::{Extend, ExtendStep, Part};
use crate::wire::{Bytes, Put};

pub(super) fn put(out: &mut Vec<u8>, tag: u8, command: &Extend<'_>) {
    out.put_u8(tag);
    put_lease(out, command.namespace, command.lease);
    out.put_u32(command.number);
    put_step(out, command.step);
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
    let step = step(input)?;
    let (renew, claim) = (input.bool()?, call::claim(input)?);
    Ok(Extend { namespace, lease, number, add: parts(input, add)?, used: parts(input, used)?, renew, step, claim })
}

fn put_step(out: &mut Vec<u8>, step: ExtendStep) {
    out.put_u8(match step {
        ExtendStep::Whole => 1,
        ExtendStep::Grow => 2,
        ExtendStep::Return => 3,
        ExtendStep::Renew => 4,
        ExtendStep::Judge => 5,
        ExtendStep::Deny => 6,
        ExtendStep::DenyFrozen => 7,
        ExtendStep::DenyClosed => 8,
        ExtendStep::Begin { .. } => 9,
    });
    if let ExtendStep::Begin { reserved_at } = step {
        out.put_u64(reserved_at.get());
    }
}

fn step(input: &mut Bytes<'_>) -> Result<ExtendStep, CodecError> {
    Ok(match input.u8()? {
        1 => ExtendStep::Whole,
        2 => ExtendStep::Grow,
        3 => ExtendStep::Return,
        4 => ExtendStep::Renew,
        5 => ExtendStep::Judge,
        6 => ExtendStep::Deny,
        7 => ExtendStep::DenyFrozen,
        8 => ExtendStep::DenyClosed,
        9 => ExtendStep::Begin { reserved_at: time(input)? },
        _ => return Err(CodecError::Malformed("the step of its extension is unknown")),
    })
}
