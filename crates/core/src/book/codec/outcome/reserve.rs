//! The outcome of a reserve.

use super::list;
use crate::book::codec::CodecError;
use crate::book::{CreditDenial, CreditShortage, Denial, RequirementSet, ReserveOutcome};
use crate::wire::{Bytes, Put, Wire, wire_enum, wire_struct};

/// The tag of `Exists` with a policy revision.
const CALL_EXISTS: u8 = 21;

pub(super) fn write(outcome: &ReserveOutcome, out: &mut Vec<u8>) {
    let ReserveOutcome::Exists { reserved_at, would_deny, policy_revision: Some(revision) } = outcome else {
        return outcome.write(out);
    };
    out.put_u8(CALL_EXISTS);
    reserved_at.write(out);
    would_deny.write(out);
    revision.write(out);
}

pub(super) fn read(input: &mut Bytes<'_>) -> Result<ReserveOutcome, CodecError> {
    let Some((&CALL_EXISTS, rest)) = input.0.split_first() else { return Wire::read(input) };
    input.0 = rest;
    let (reserved_at, would_deny) = (Wire::read(input)?, Wire::read(input)?);
    Ok(ReserveOutcome::Exists { reserved_at, would_deny, policy_revision: Some(input.u64()?) })
}

wire_enum!(ReserveOutcome or "what became of its reserve is unknown" {
    1 => Invalid(why),
    2 => ExistsWithOtherRequirements,
    3 => Exists { reserved_at, would_deny, policy_revision via no_revision },
    4 => ExistsDenied(denial),
    5 => ExistsInsufficientCredit(denial),
    6 => LeaseExpired,
    7 => LeaseTooOld { lease_time, forgotten_before },
    8 => LeaseInFuture { lease_time, wall },
    9 => UnknownLimit { requirement },
    10 => LimitDecreasing { requirement, retry_after_ms },
    11 => Overloaded,
    12 => Denied(denial),
    13 => InsufficientCredit(denial),
    14 => Created { reserved_at, would_deny },
    15 => LimitsExternal,
    16 => AccountNotFound { requirement, retry_after_ms },
    17 => QuotaExceeded { kind, retry_after_ms },
    18 => StaleLimit { requirement },
    19 => LimitPaused { requirement, retry_after_ms },
    20 => OwnedByGateway,
    22 => ExistsDeniedByPolicy { policy_revision },
});

/// The policy revision of `Exists` under its plain tag: none.
mod no_revision {
    use super::{Bytes, CodecError};

    pub(super) fn write(_: &Option<u64>, _: &mut Vec<u8>) {}

    pub(super) fn read(_: &mut Bytes<'_>) -> Result<Option<u64>, CodecError> {
        Ok(None)
    }
}

impl Wire for RequirementSet {
    fn write(&self, out: &mut Vec<u8>) {
        out.put_u32(self.bits());
    }

    fn read(input: &mut Bytes<'_>) -> Result<RequirementSet, CodecError> {
        Ok(RequirementSet::from_bits(input.u32()?))
    }
}

wire_struct!(Denial { retry_after_ms, limited_by via list, never });

wire_struct!(CreditDenial { requirement, retry_after_ms, why });

wire_enum!(CreditShortage or "why there was no credit is unknown" {
    1 => UnknownAccount,
    2 => Frozen,
    3 => Closed,
    4 => NotEnough,
});
