//! Extensions of leases.

use super::{CodecError, lease, parts, put_lease, put_parts};
use crate::book::{Extend, ExtendStep, Part};
use crate::wire::{Bytes, Put, Wire, wire_enum};

pub(super) fn put(out: &mut Vec<u8>, tag: u8, command: &Extend<'_>) {
    out.put_u8(tag);
    put_lease(out, command.namespace, command.lease);
    command.number.write(out);
    command.step.write(out);
    command.renew.write(out);
    command.claim.write(out);
    put_parts(out, command.add);
    put_parts(out, command.used);
}

pub(super) fn extend<'a>(
    input: &mut Bytes<'_>,
    add: &'a mut Vec<Part>,
    used: &'a mut Vec<Part>,
) -> Result<Extend<'a>, CodecError> {
    let (namespace, lease) = lease(input)?;
    let (number, step) = (input.u32()?, Wire::read(input)?);
    let (renew, claim) = (input.bool()?, Wire::read(input)?);
    Ok(Extend { namespace, lease, number, add: parts(input, add)?, used: parts(input, used)?, renew, step, claim })
}

wire_enum!(ExtendStep or "the step of its extension is unknown" {
    1 => Whole,
    2 => Grow,
    3 => Return,
    4 => Renew,
    5 => Judge,
    6 => Deny,
    7 => DenyFrozen,
    8 => DenyClosed,
    9 => Begin { reserved_at },
});
