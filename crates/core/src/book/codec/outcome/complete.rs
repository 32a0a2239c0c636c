//! The outcome of a complete.

use super::invalid::{invalid_parts, put_invalid_parts};
use super::{Result, list, put_list, put_size, size};
use crate::book::codec::{CodecError, limit_id, put_limit_id};
use crate::book::{Charge, CompleteOutcome, OverageHow, OverageTaken, Settlement};
use crate::wire::{Bytes, Put};

const INVALID: u8 = 1;
const BEFORE: u8 = 2;
const HELD_NOTHING: u8 = 3;
const UNKNOWN_BY_AGE: u8 = 4;
const OVERLOADED: u8 = 5;
const MARKED: u8 = 6;
const COMPLETED: u8 = 7;
const LEASES_QUOTA_EXCEEDED: u8 = 8;
const STALE_LIMIT: u8 = 9;
const OWNED_BY_GATEWAY: u8 = 10;
const OTHER_CALL: u8 = 11;

pub(super) fn put_complete(out: &mut Vec<u8>, outcome: &CompleteOutcome) {
    match outcome {
        CompleteOutcome::Invalid(why) => {
            out.put_u8(INVALID);
            put_invalid_parts(out, *why);
        }
        CompleteOutcome::StaleLimit { actual } => {
            out.put_u8(STALE_LIMIT);
            put_size(out, *actual);
        }
        CompleteOutcome::OwnedByGateway => out.put_u8(OWNED_BY_GATEWAY),
        CompleteOutcome::OtherCall => out.put_u8(OTHER_CALL),
        CompleteOutcome::Before => out.put_u8(BEFORE),
        CompleteOutcome::HeldNothing => out.put_u8(HELD_NOTHING),
        CompleteOutcome::UnknownByAge => out.put_u8(UNKNOWN_BY_AGE),
        CompleteOutcome::Overloaded => out.put_u8(OVERLOADED),
        CompleteOutcome::LeasesQuotaExceeded => out.put_u8(LEASES_QUOTA_EXCEEDED),
        CompleteOutcome::Marked => out.put_u8(MARKED),
        CompleteOutcome::Completed(settlement) => {
            out.put_u8(COMPLETED);
            put_settlement(out, settlement);
        }
    }
}

pub(super) fn complete(input: &mut Bytes<'_>) -> Result<CompleteOutcome> {
    Ok(match input.u8()? {
        INVALID => CompleteOutcome::Invalid(invalid_parts(input)?),
        STALE_LIMIT => CompleteOutcome::StaleLimit { actual: size(input)? },
        OWNED_BY_GATEWAY => CompleteOutcome::OwnedByGateway,
        OTHER_CALL => CompleteOutcome::OtherCall,
        BEFORE => CompleteOutcome::Before,
        HELD_NOTHING => CompleteOutcome::HeldNothing,
        UNKNOWN_BY_AGE => CompleteOutcome::UnknownByAge,
        OVERLOADED => CompleteOutcome::Overloaded,
        LEASES_QUOTA_EXCEEDED => CompleteOutcome::LeasesQuotaExceeded,
        MARKED => CompleteOutcome::Marked,
        COMPLETED => CompleteOutcome::Completed(settlement(input)?),
        _ => return Err(CodecError::Malformed("what became of its complete is unknown")),
    })
}

fn put_settlement(out: &mut Vec<u8>, settlement: &Settlement) {
    let Settlement { ignored, raised, overages, charges, is_extended } = settlement;
    put_list(out, ignored, |out, position| put_size(out, *position));
    put_list(out, raised, |out, position| put_size(out, *position));
    put_list(out, overages, put_overage);
    put_list(out, charges, put_charge);
    out.put_u8(u8::from(*is_extended));
}

fn settlement(input: &mut Bytes<'_>) -> Result<Settlement> {
    let (ignored, raised) = (list(input, size)?, list(input, size)?);
    let (overages, charges) = (list(input, overage)?, list(input, charge)?);
    Ok(Settlement { ignored, raised, overages, charges, is_extended: input.bool()? })
}

fn put_overage(out: &mut Vec<u8>, overage: &OverageTaken) {
    let OverageTaken { limit, amount, how } = overage;
    put_limit_id(out, *limit);
    out.put_u64(*amount);
    out.put_u8(match how {
        OverageHow::Reserved => 1,
        OverageHow::Debt => 2,
        OverageHow::Dropped => 3,
    });
}

fn overage(input: &mut Bytes<'_>) -> Result<OverageTaken> {
    Ok(OverageTaken {
        limit: limit_id(input)?,
        amount: input.u64()?,
        how: match input.u8()? {
            1 => OverageHow::Reserved,
            2 => OverageHow::Debt,
            3 => OverageHow::Dropped,
            _ => return Err(CodecError::Malformed("what became of its overage is unknown")),
        },
    })
}

fn put_charge(out: &mut Vec<u8>, charge: &Charge) {
    let Charge { limit, cost, paid, debt, uncollected } = charge;
    put_limit_id(out, *limit);
    for amount in [cost, paid, debt, uncollected] {
        out.put_u64(*amount);
    }
}

fn charge(input: &mut Bytes<'_>) -> Result<Charge> {
    Ok(Charge {
        limit: limit_id(input)?,
        cost: input.u64()?,
        paid: input.u64()?,
        debt: input.u64()?,
        uncollected: input.u64()?,
    })
}
