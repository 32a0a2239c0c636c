//! The call behind a reserve, and claims on leases.

use super::CodecError;
use crate::book::{CallMark, LeaseClaim, Reserve};
use crate::wire::{Bytes, Put, Wire, wire_struct};

const HAS_JOB: u8 = 1;
const HAS_CALL: u8 = 2;
const BY_GATEWAY: u8 = 4;

const HAS_ATTRIBUTES: u8 = 1;
const CLAIMED_BY_GATEWAY: u8 = 2;

/// The head of a reserve for a call or by a gateway.
#[derive(Default)]
pub(super) struct Marked {
    pub(super) has_job: bool,
    pub(super) call: Option<CallMark>,
    pub(super) by_gateway: bool,
}

pub(super) fn put_reserve(out: &mut Vec<u8>, command: &Reserve<'_>) {
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    let (job, call) = (flag(command.job.is_some(), HAS_JOB), flag(command.call.is_some(), HAS_CALL));
    out.put_u8(job | call | flag(command.by_gateway, BY_GATEWAY));
    if let Some(call) = command.call {
        call.write(out);
    }
}

pub(super) fn reserve(input: &mut Bytes<'_>) -> Result<Marked, CodecError> {
    let flags = input.u8()?;
    if flags & (HAS_CALL | BY_GATEWAY) == 0 || flags > (HAS_JOB | HAS_CALL | BY_GATEWAY) {
        return Err(CodecError::Malformed("the flags of its reserve are unknown"));
    }
    let call = if flags & HAS_CALL == 0 { None } else { Some(CallMark::read(input)?) };
    Ok(Marked { has_job: flags & HAS_JOB != 0, call, by_gateway: flags & BY_GATEWAY != 0 })
}

wire_struct!(CallMark { attributes, bounds, policy_revision });

impl Wire for LeaseClaim {
    fn write(&self, out: &mut Vec<u8>) {
        let attributes = if self.attributes.is_some() { HAS_ATTRIBUTES } else { 0 };
        out.put_u8(attributes | if self.by_gateway { CLAIMED_BY_GATEWAY } else { 0 });
        if let Some(attributes) = self.attributes {
            out.put_u32(attributes);
        }
    }

    fn read(input: &mut Bytes<'_>) -> Result<LeaseClaim, CodecError> {
        let flags = input.u8()?;
        if flags > (HAS_ATTRIBUTES | CLAIMED_BY_GATEWAY) {
            return Err(CodecError::Malformed("the flags of its claim are unknown"));
        }
        let attributes = if flags & HAS_ATTRIBUTES == 0 { None } else { Some(input.u32()?) };
        Ok(LeaseClaim { attributes, by_gateway: flags & CLAIMED_BY_GATEWAY != 0 })
    }
}
