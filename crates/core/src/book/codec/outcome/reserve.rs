//! The outcome of a reserve.

use super::invalid::{invalid_parts, put_invalid_parts};
use super::{Result, list, put_list, put_size, size, time};
use crate::book::codec::{CodecError, quota};
use crate::book::{CreditDenial, CreditShortage, Denial, RequirementSet, ReserveOutcome};
use crate::time::UnixMs;
use crate::wire::{Bytes, Put};

const INVALID: u8 = 1;
const EXISTS_WITH_OTHER_REQUIREMENTS: u8 = 2;
const EXISTS: u8 = 3;
const EXISTS_DENIED: u8 = 4;
const EXISTS_INSUFFICIENT_CREDIT: u8 = 5;
const LEASE_EXPIRED: u8 = 6;
const LEASE_TOO_OLD: u8 = 7;
const LEASE_IN_FUTURE: u8 = 8;
const UNKNOWN_LIMIT: u8 = 9;
const LIMIT_DECREASING: u8 = 10;
const OVERLOADED: u8 = 11;
const DENIED: u8 = 12;
const INSUFFICIENT_CREDIT: u8 = 13;
const CREATED: u8 = 14;
const LIMITS_EXTERNAL: u8 = 15;
const ACCOUNT_NOT_FOUND: u8 = 16;
const QUOTA_EXCEEDED: u8 = 17;
const STALE_LIMIT: u8 = 18;
const LIMIT_PAUSED: u8 = 19;
const OWNED_BY_GATEWAY: u8 = 20;
const CALL_EXISTS: u8 = 21;

pub(super) fn put_reserve(out: &mut Vec<u8>, outcome: &ReserveOutcome) {
    match outcome {
        ReserveOutcome::Invalid(why) => {
            out.put_u8(INVALID);
            put_invalid_parts(out, *why);
        }
        ReserveOutcome::StaleLimit { requirement } => {
            out.put_u8(STALE_LIMIT);
            put_size(out, *requirement);
        }
        ReserveOutcome::ExistsWithOtherRequirements => out.put_u8(EXISTS_WITH_OTHER_REQUIREMENTS),
        ReserveOutcome::OwnedByGateway => out.put_u8(OWNED_BY_GATEWAY),
        ReserveOutcome::Exists { reserved_at, would_deny, policy_revision } => {
            put_allowed(out, if policy_revision.is_some() { CALL_EXISTS } else { EXISTS }, *reserved_at, *would_deny);
            policy_revision.iter().for_each(|revision| out.put_u64(*revision));
        }
        ReserveOutcome::ExistsDenied(denial) => {
            out.put_u8(EXISTS_DENIED);
            put_denial(out, denial);
        }
        ReserveOutcome::ExistsInsufficientCredit(denial) => {
            out.put_u8(EXISTS_INSUFFICIENT_CREDIT);
            put_credit_denial(out, denial);
        }
        ReserveOutcome::LeaseExpired => out.put_u8(LEASE_EXPIRED),
        ReserveOutcome::LeaseTooOld { lease_time, forgotten_before } => {
            out.put_u8(LEASE_TOO_OLD);
            out.put_u64(lease_time.get());
            out.put_u64(forgotten_before.get());
        }
        ReserveOutcome::LeaseInFuture { lease_time, wall } => {
            out.put_u8(LEASE_IN_FUTURE);
            out.put_u64(lease_time.get());
            out.put_u64(wall.get());
        }
        ReserveOutcome::UnknownLimit { requirement } => {
            out.put_u8(UNKNOWN_LIMIT);
            put_size(out, *requirement);
        }
        ReserveOutcome::LimitDecreasing { requirement, retry_after_ms } => {
            put_refusal(out, LIMIT_DECREASING, *requirement, *retry_after_ms);
        }
        ReserveOutcome::LimitPaused { requirement, retry_after_ms } => {
            put_refusal(out, LIMIT_PAUSED, *requirement, *retry_after_ms);
        }
        ReserveOutcome::AccountNotFound { requirement, retry_after_ms } => {
            put_refusal(out, ACCOUNT_NOT_FOUND, *requirement, *retry_after_ms);
        }
        ReserveOutcome::LimitsExternal => out.put_u8(LIMITS_EXTERNAL),
        ReserveOutcome::Overloaded => out.put_u8(OVERLOADED),
        ReserveOutcome::QuotaExceeded { kind, retry_after_ms } => {
            out.put_u8(QUOTA_EXCEEDED);
            out.put_u8(*kind as u8);
            out.put_u64(*retry_after_ms);
        }
        ReserveOutcome::Denied(denial) => {
            out.put_u8(DENIED);
            put_denial(out, denial);
        }
        ReserveOutcome::InsufficientCredit(denial) => {
            out.put_u8(INSUFFICIENT_CREDIT);
            put_credit_denial(out, denial);
        }
        ReserveOutcome::Created { reserved_at, would_deny } => {
            put_allowed(out, CREATED, *reserved_at, *would_deny);
        }
    }
}

fn put_allowed(out: &mut Vec<u8>, tag: u8, reserved_at: UnixMs, would_deny: RequirementSet) {
    out.put_u8(tag);
    out.put_u64(reserved_at.get());
    out.put_u32(would_deny.bits());
}

/// A refusal that names a requirement and a time to wait.
pub(super) fn put_refusal(out: &mut Vec<u8>, tag: u8, requirement: usize, retry_after_ms: u64) {
    out.put_u8(tag);
    put_size(out, requirement);
    out.put_u64(retry_after_ms);
}

pub(super) fn reserve(input: &mut Bytes<'_>) -> Result<ReserveOutcome> {
    Ok(match input.u8()? {
        INVALID => ReserveOutcome::Invalid(invalid_parts(input)?),
        STALE_LIMIT => ReserveOutcome::StaleLimit { requirement: size(input)? },
        EXISTS_WITH_OTHER_REQUIREMENTS => ReserveOutcome::ExistsWithOtherRequirements,
        OWNED_BY_GATEWAY => ReserveOutcome::OwnedByGateway,
        tag @ (EXISTS | CALL_EXISTS) => ReserveOutcome::Exists {
            reserved_at: time(input)?,
            would_deny: requirement_set(input)?,
            policy_revision: if tag == EXISTS { None } else { Some(input.u64()?) },
        },
        EXISTS_DENIED => ReserveOutcome::ExistsDenied(denial(input)?),
        EXISTS_INSUFFICIENT_CREDIT => ReserveOutcome::ExistsInsufficientCredit(credit_denial(input)?),
        LEASE_EXPIRED => ReserveOutcome::LeaseExpired,
        LEASE_TOO_OLD => ReserveOutcome::LeaseTooOld { lease_time: time(input)?, forgotten_before: time(input)? },
        LEASE_IN_FUTURE => ReserveOutcome::LeaseInFuture { lease_time: time(input)?, wall: time(input)? },
        UNKNOWN_LIMIT => ReserveOutcome::UnknownLimit { requirement: size(input)? },
        LIMIT_DECREASING => ReserveOutcome::LimitDecreasing { requirement: size(input)?, retry_after_ms: input.u64()? },
        LIMIT_PAUSED => ReserveOutcome::LimitPaused { requirement: size(input)?, retry_after_ms: input.u64()? },
        ACCOUNT_NOT_FOUND => {
            ReserveOutcome::AccountNotFound { requirement: size(input)?, retry_after_ms: input.u64()? }
        }
        LIMITS_EXTERNAL => ReserveOutcome::LimitsExternal,
        OVERLOADED => ReserveOutcome::Overloaded,
        QUOTA_EXCEEDED => ReserveOutcome::QuotaExceeded { kind: quota::kind(input)?, retry_after_ms: input.u64()? },
        DENIED => ReserveOutcome::Denied(denial(input)?),
        INSUFFICIENT_CREDIT => ReserveOutcome::InsufficientCredit(credit_denial(input)?),
        CREATED => ReserveOutcome::Created { reserved_at: time(input)?, would_deny: requirement_set(input)? },
        _ => return Err(CodecError::Malformed("what became of its reserve is unknown")),
    })
}

pub(super) fn requirement_set(input: &mut Bytes<'_>) -> Result<RequirementSet> {
    Ok(RequirementSet::from_bits(input.u32()?))
}

pub(super) fn put_denial(out: &mut Vec<u8>, denial: &Denial) {
    let Denial { retry_after_ms, limited_by, never } = denial;
    out.put_u64(*retry_after_ms);
    put_list(out, limited_by, |out, requirement| put_size(out, *requirement));
    out.put_u8((*never).into());
}

pub(super) fn denial(input: &mut Bytes<'_>) -> Result<Denial> {
    Ok(Denial { retry_after_ms: input.u64()?, limited_by: list(input, size)?, never: input.bool()? })
}

pub(super) fn put_credit_denial(out: &mut Vec<u8>, denial: &CreditDenial) {
    let CreditDenial { requirement, retry_after_ms, why } = denial;
    put_size(out, *requirement);
    out.put_u64(*retry_after_ms);
    out.put_u8(match why {
        CreditShortage::UnknownAccount => 1,
        CreditShortage::Frozen => 2,
        CreditShortage::Closed => 3,
        CreditShortage::NotEnough => 4,
    });
}

pub(super) fn credit_denial(input: &mut Bytes<'_>) -> Result<CreditDenial> {
    Ok(CreditDenial {
        requirement: size(input)?,
        retry_after_ms: input.u64()?,
        why: match input.u8()? {
            1 => CreditShortage::UnknownAccount,
            2 => CreditShortage::Frozen,
            3 => CreditShortage::Closed,
            4 => CreditShortage::NotEnough,
            _ => return Err(CodecError::Malformed("why there was no credit is unknown")),
        },
    })
}
