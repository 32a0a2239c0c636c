//! The outcome of an extension.

use super::invalid::{invalid_parts, put_invalid_parts};
use super::reserve::{credit_denial, denial, put_credit_denial, put_denial, put_refusal, requirement_set};
use super::{Result, put_size, size, time};
use crate::book::codec::{CodecError, quota};
use crate::book::{ExtendOutcome, Extension, InvalidExtend};
use crate::wire::{Bytes, Put};

const INVALID: u8 = 1;
const STALE_LIMIT: u8 = 2;
const LEASE_EXPIRED: u8 = 3;
const NUMBER_REUSED: u8 = 4;
const NUMBER_DIFFERS: u8 = 5;
const UNKNOWN_LIMIT: u8 = 6;
const LIMIT_DECREASING: u8 = 7;
const LIMIT_PAUSED: u8 = 8;
const ACCOUNT_NOT_FOUND: u8 = 9;
const LIMITS_EXTERNAL: u8 = 10;
const TOO_MANY_LIMITS: u8 = 11;
const QUOTA_EXCEEDED: u8 = 12;
const DENIED: u8 = 13;
const INSUFFICIENT_CREDIT: u8 = 14;
const EXTENDED: u8 = 15;
const OWNED_BY_GATEWAY: u8 = 16;
const OTHER_CALL: u8 = 17;

const INVALID_NUMBER: u8 = 1;
const INVALID_ADD: u8 = 2;
const INVALID_USED: u8 = 3;

pub(super) fn put_extend(out: &mut Vec<u8>, outcome: &ExtendOutcome) {
    match outcome {
        ExtendOutcome::Invalid(why) => {
            out.put_u8(INVALID);
            put_invalid(out, *why);
        }
        ExtendOutcome::StaleLimit => out.put_u8(STALE_LIMIT),
        ExtendOutcome::LeaseExpired => out.put_u8(LEASE_EXPIRED),
        ExtendOutcome::OwnedByGateway => out.put_u8(OWNED_BY_GATEWAY),
        ExtendOutcome::OtherCall => out.put_u8(OTHER_CALL),
        ExtendOutcome::NumberReused => out.put_u8(NUMBER_REUSED),
        ExtendOutcome::NumberDiffers { expected } => {
            out.put_u8(NUMBER_DIFFERS);
            out.put_u32(*expected);
        }
        ExtendOutcome::UnknownLimit { part } => {
            out.put_u8(UNKNOWN_LIMIT);
            put_size(out, *part);
        }
        ExtendOutcome::LimitDecreasing { part, retry_after_ms } => {
            put_refusal(out, LIMIT_DECREASING, *part, *retry_after_ms);
        }
        ExtendOutcome::LimitPaused { part, retry_after_ms } => put_refusal(out, LIMIT_PAUSED, *part, *retry_after_ms),
        ExtendOutcome::AccountNotFound { part, retry_after_ms } => {
            put_refusal(out, ACCOUNT_NOT_FOUND, *part, *retry_after_ms);
        }
        ExtendOutcome::LimitsExternal => out.put_u8(LIMITS_EXTERNAL),
        ExtendOutcome::TooManyLimits { found } => {
            out.put_u8(TOO_MANY_LIMITS);
            put_size(out, *found);
        }
        ExtendOutcome::QuotaExceeded { kind, retry_after_ms } => {
            out.put_u8(QUOTA_EXCEEDED);
            out.put_u8(*kind as u8);
            out.put_u64(*retry_after_ms);
        }
        ExtendOutcome::Denied(denial) => {
            out.put_u8(DENIED);
            put_denial(out, denial);
        }
        ExtendOutcome::InsufficientCredit(denial) => {
            out.put_u8(INSUFFICIENT_CREDIT);
            put_credit_denial(out, denial);
        }
        ExtendOutcome::Extended(Extension { ends_at, ignored, above }) => {
            out.put_u8(EXTENDED);
            out.put_u8(ends_at.is_some().into());
            if let Some(ends_at) = ends_at {
                out.put_u64(ends_at.get());
            }
            out.put_u32(ignored.bits());
            out.put_u32(above.bits());
        }
    }
}

pub(super) fn extend(input: &mut Bytes<'_>) -> Result<ExtendOutcome> {
    Ok(match input.u8()? {
        INVALID => ExtendOutcome::Invalid(invalid(input)?),
        STALE_LIMIT => ExtendOutcome::StaleLimit,
        LEASE_EXPIRED => ExtendOutcome::LeaseExpired,
        OWNED_BY_GATEWAY => ExtendOutcome::OwnedByGateway,
        OTHER_CALL => ExtendOutcome::OtherCall,
        NUMBER_REUSED => ExtendOutcome::NumberReused,
        NUMBER_DIFFERS => ExtendOutcome::NumberDiffers { expected: input.u32()? },
        UNKNOWN_LIMIT => ExtendOutcome::UnknownLimit { part: size(input)? },
        LIMIT_DECREASING => ExtendOutcome::LimitDecreasing { part: size(input)?, retry_after_ms: input.u64()? },
        LIMIT_PAUSED => ExtendOutcome::LimitPaused { part: size(input)?, retry_after_ms: input.u64()? },
        ACCOUNT_NOT_FOUND => ExtendOutcome::AccountNotFound { part: size(input)?, retry_after_ms: input.u64()? },
        LIMITS_EXTERNAL => ExtendOutcome::LimitsExternal,
        TOO_MANY_LIMITS => ExtendOutcome::TooManyLimits { found: size(input)? },
        QUOTA_EXCEEDED => ExtendOutcome::QuotaExceeded { kind: quota::kind(input)?, retry_after_ms: input.u64()? },
        DENIED => ExtendOutcome::Denied(denial(input)?),
        INSUFFICIENT_CREDIT => ExtendOutcome::InsufficientCredit(credit_denial(input)?),
        EXTENDED => {
            let ends_at = if input.bool()? { Some(time(input)?) } else { None };
            let (ignored, above) = (requirement_set(input)?, requirement_set(input)?);
            ExtendOutcome::Extended(Extension { ends_at, ignored, above })
        }
        _ => return Err(CodecError::Malformed("what became of its extension is unknown")),
    })
}

fn put_invalid(out: &mut Vec<u8>, why: InvalidExtend) {
    match why {
        InvalidExtend::Number { found } => {
            out.put_u8(INVALID_NUMBER);
            out.put_u32(found);
        }
        InvalidExtend::Add(why) => {
            out.put_u8(INVALID_ADD);
            put_invalid_parts(out, why);
        }
        InvalidExtend::Used(why) => {
            out.put_u8(INVALID_USED);
            put_invalid_parts(out, why);
        }
    }
}

fn invalid(input: &mut Bytes<'_>) -> Result<InvalidExtend> {
    Ok(match input.u8()? {
        INVALID_NUMBER => InvalidExtend::Number { found: input.u32()? },
        INVALID_ADD => InvalidExtend::Add(invalid_parts(input)?),
        INVALID_USED => InvalidExtend::Used(invalid_parts(input)?),
        _ => return Err(CodecError::Malformed("what is wrong with its extension is unknown")),
    })
}
